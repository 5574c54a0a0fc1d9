"""The benchmark server, a separate process that answers with precomputed bytes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import json
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

CHUNKS = 500
LONG_CHUNKS = 10_000
# Chunks of a token's length that never repeat: litellm treats a repeated chunk as a failure.
PIECES = [f"word{number % 10}" for number in range(10_000)]
TOOL_ARGUMENTS = '{"city": "Oslo", "days": 3, "units": "metric"}'
# Seconds between two chunks of a paced stream, so that the reader wakes up for each.
PAUSE = 0.0003


# --- replies of the openai wire ----------------------------------------------------------------


def _chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {
        "id": "chatcmpl-0123456789",
        "object": "chat.completion.chunk",
        "created": 1763164800,
        "model": "bench-1",
    }
    return (
        b"data: "
        + json.dumps({**head, "system_fingerprint": "fp_0", "choices": [choice]}).encode()
        + b"\n\n"
    )


def stream_frames(chunks: int = CHUNKS) -> list[bytes]:
    usage = {"prompt_tokens": 20, "completion_tokens": chunks, "total_tokens": 20 + chunks}
    last = {
        "id": "chatcmpl-0123456789",
        "object": "chat.completion.chunk",
        "created": 1763164800,
        "model": "bench-1",
    }
    return [
        _chunk({"role": "assistant", "content": ""}),
        *[_chunk({"content": piece}) for piece in PIECES[:chunks]],
        _chunk({}, "stop"),
        b"data: " + json.dumps({**last, "choices": [], "usage": usage}).encode() + b"\n\n",
        b"data: [DONE]\n\n",
    ]


def body(tool: bool) -> bytes:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": TOOL_ARGUMENTS},
    }
    message: dict[str, object] = {
        "role": "assistant",
        "content": None if tool else "word " * 100,
        "refusal": None,
    }
    if tool:
        message["tool_calls"] = [call]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": "tool_calls" if tool else "stop",
    }
    usage = {"prompt_tokens": 20, "completion_tokens": 100, "total_tokens": 120}
    head = {
        "id": "chatcmpl-0123456789",
        "object": "chat.completion",
        "created": 1763164800,
        "model": "bench-1",
    }
    return json.dumps(
        {**head, "choices": [choice], "usage": usage, "system_fingerprint": "fp_0"}
    ).encode()


# --- replies of the anthropic wire -------------------------------------------------------------


def anthropic_frames(chunks: int = CHUNKS) -> list[bytes]:
    start = {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "bench-1",
        "content": [],
    }
    start |= {
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 20, "output_tokens": 1},
    }
    events: list[dict[str, object]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *[
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": piece},
            }
            for piece in PIECES[:chunks]
        ],
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": chunks},
        },
        {"type": "message_stop"},
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]


def anthropic_body(tool: bool) -> bytes:
    call = {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "weather",
        "input": json.loads(TOOL_ARGUMENTS),
    }
    head = {"id": "msg_01", "type": "message", "role": "assistant", "model": "bench-1"}
    content = [call] if tool else [{"type": "text", "text": "word " * 100}]
    end = {"stop_reason": "tool_use" if tool else "end_turn", "stop_sequence": None}
    return json.dumps(
        {**head, "content": content, **end, "usage": {"input_tokens": 20, "output_tokens": 100}}
    ).encode()


# --- the HTTP server ---------------------------------------------------------------------------

# About as many headers as a hosted API sends.
_HEADERS = b"".join(
    [
        b"date: Sat, 15 Nov 2026 00:00:00 GMT\r\n",
        *[b"x-header-%d: a value as long as most\r\n" % number for number in range(18)],
    ]
)
HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    + _HEADERS
    + b"content-type: text/event-stream\r\n"
    + b"transfer-encoding: chunked\r\n\r\n"
)


def _whole(data: bytes) -> bytes:
    length = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data)
    return b"HTTP/1.1 200 OK\r\n" + _HEADERS + length + data


def _framed(frames: list[bytes]) -> list[bytes]:
    return [b"%x\r\n" % len(frame) + frame + b"\r\n" for frame in frames] + [b"0\r\n\r\n"]


WHOLE = {
    ("text", False): _whole(body(False)),
    ("tool", False): _whole(body(True)),
    ("text", True): _whole(anthropic_body(False)),
    ("tool", True): _whole(anthropic_body(True)),
}
STREAMS = {False: _framed(stream_frames()), True: _framed(anthropic_frames())}
LONG = _framed(stream_frames(LONG_CHUNKS))


class Protocol(asyncio.Protocol):
    """Answer each complete request; its path begins with the kind of reply and ends with the wire."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.buffer = bytearray()
        self.size: int | None = None  # length of the request that is being received
        self.resumed = asyncio.Event()
        self.resumed.set()

    def pause_writing(self) -> None:
        self.resumed.clear()

    def resume_writing(self) -> None:
        self.resumed.set()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while self.buffer:
            if self.size is None:
                end = self.buffer.find(b"\r\n\r\n")
                if end < 0:
                    return
                self.size = end + 4 + _content_length(bytes(self.buffer[:end]).lower())
            if len(self.buffer) < self.size:
                return
            path = bytes(self.buffer[: self.buffer.index(b"\r")]).split(b" ")[1].decode()
            del self.buffer[: self.size]
            self.size = None
            self.answer(path.partition("?")[0])

    def answer(self, path: str) -> None:
        kind = path.split("/")[1]
        anthropic = path.endswith("/messages")
        if (kind, anthropic) in WHOLE:
            self.transport.write(WHOLE[kind, anthropic])
        elif kind == "burst":
            self.transport.write(HEAD + b"".join(STREAMS[anthropic]))
        elif kind == "paced":
            self.task = asyncio.ensure_future(self.trickle(STREAMS[anthropic], PAUSE))
        else:
            self.task = asyncio.ensure_future(self.trickle(LONG, None))

    async def trickle(self, frames: list[bytes], pause: float | None) -> None:
        self.transport.write(HEAD)
        for at, frame in enumerate(frames):
            self.transport.write(frame)
            if pause is not None:
                await asyncio.sleep(pause)
            elif at % 50 == 0:
                await asyncio.sleep(0)
                await self.resumed.wait()

    def connection_lost(self, error: Exception | None) -> None:
        self.resumed.set()
        if hasattr(self, "task"):
            self.task.cancel()


def _content_length(head: bytes) -> int:
    _, found, rest = head.partition(b"content-length:")
    return int(rest.partition(b"\r")[0]) if found else 0


async def main(folder: str) -> None:
    loop = asyncio.get_running_loop()
    # Make the certificate in this process: in the parent, the imports would add to the memory of
    # all child processes.
    make_certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
    listeners = [
        await loop.create_server(Protocol, "127.0.0.1", 0, ssl=each) for each in (None, context)
    ]
    print(*[each.sockets[0].getsockname()[1] for each in listeners], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def make_certificate(folder: str) -> None:
    """Write a self-signed certificate for 127.0.0.1."""
    from cryptography import x509  # imported here, because only the server process needs it
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8
    Path(folder, "cert.pem").write_bytes(made.public_bytes(pem))
    Path(folder, "key.pem").write_bytes(
        key.private_bytes(pem, plain, serialization.NoEncryption())
    )


@contextlib.contextmanager
def running() -> Iterator[str]:
    """Run the server in a child process and yield its address; set ``BENCH_TLS`` to its TLS
    address and certificate.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.server", folder]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            plain, secure = map(int, child.stdout.readline().split())
            os.environ["BENCH_TLS"] = f"https://127.0.0.1:{secure} {folder}/cert.pem"
            yield f"http://127.0.0.1:{plain}"
        finally:
            child.kill()
            child.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
