"""The other side of the measurement: a server that answers from precomputed bytes, in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

CHUNKS = 500
TOOL_ARGUMENTS = '{"city": "Oslo", "days": 3, "units": "metric"}'


def _chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-0123456789", "object": "chat.completion.chunk", "created": 1763164800, "model": "bench-1"}
    return b"data: " + json.dumps({**head, "system_fingerprint": "fp_0", "choices": [choice]}).encode() + b"\n\n"


def stream_frames(chunks: int = CHUNKS) -> list[bytes]:
    usage = {"prompt_tokens": 20, "completion_tokens": chunks, "total_tokens": 20 + chunks}
    last = {"id": "chatcmpl-0123456789", "object": "chat.completion.chunk", "model": "bench-1", "choices": []}
    return [
        _chunk({"role": "assistant", "content": ""}),
        *[_chunk({"content": " word"}) for _ in range(chunks)],
        _chunk({}, "stop"),
        b"data: " + json.dumps({**last, "usage": usage}).encode() + b"\n\n",
        b"data: [DONE]\n\n",
    ]


def body(tool: bool) -> bytes:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": TOOL_ARGUMENTS}}
    message = {"role": "assistant", "content": None if tool else "word " * 100, "refusal": None}
    if tool:
        message["tool_calls"] = [call]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls" if tool else "stop"}
    usage = {"prompt_tokens": 20, "completion_tokens": 100, "total_tokens": 120}
    head = {"id": "chatcmpl-0123456789", "object": "chat.completion", "created": 1763164800, "model": "bench-1"}
    return json.dumps({**head, "choices": [choice], "usage": usage, "system_fingerprint": "fp_0"}).encode()


def _whole(data: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data


def _framed(frames: list[bytes]) -> list[bytes]:
    return [b"%x\r\n" % len(frame) + frame + b"\r\n" for frame in frames] + [b"0\r\n\r\n"]


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
REPLIES = {b"/text": _whole(body(False)), b"/tool": _whole(body(True))}
BURST = HEAD + b"".join(_framed(stream_frames()))
PACED = _framed(stream_frames())
LONG = _framed(stream_frames(10_000))


class Protocol(asyncio.Protocol):
    """Answers as soon as a request is whole; the path says what with."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 : head.find(b"\r", at) if head.find(b"\r", at) > 0 else None]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + size:
                return
            self.buffer = self.buffer[end + 4 + size :]
            path = head.split(b" ", 2)[1]
            self.answer(path)

    def answer(self, path: bytes) -> None:
        kind = b"/" + path.split(b"/")[1]
        if kind in REPLIES:
            self.transport.write(REPLIES[kind])
        elif kind == b"/burst":
            self.transport.write(BURST)
        else:
            self.task = asyncio.ensure_future(self.trickle(LONG if kind == b"/long" else PACED, kind))

    async def trickle(self, frames: list[bytes], kind: bytes) -> None:
        self.transport.write(HEAD)
        for at, frame in enumerate(frames):
            self.transport.write(frame)
            if kind == b"/paced" or at % 50 == 0:
                await asyncio.sleep(0)


async def main() -> None:
    listener = await asyncio.get_running_loop().create_server(Protocol, "127.0.0.1", 0)
    print(listener.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


@contextlib.contextmanager
def running() -> Iterator[str]:
    """The server in a child process; yields its address."""
    child = subprocess.Popen([sys.executable, "-m", "bench.server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        yield f"http://127.0.0.1:{int(child.stdout.readline())}"
    finally:
        child.kill()
        child.wait()


if __name__ == "__main__":
    asyncio.run(main())
