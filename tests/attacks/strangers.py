"""Hostile HTTP clients in a separate process: ``python -m tests.attacks.strangers KIND PORT NUMBER
[KEY]``.

Each client keeps its connection open as long as the server allows, and then opens another one.
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Awaitable, Callable

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
PAGE = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n"
HEADERS = b"".join(b"h%05d: v\r\n" % number for number in range(5000))
LONG = (
    b'{"model": "fast", "stream": true, "messages": [{"role": "user", "content": "A long text, '
    b'please."}]}'
)
PAUSE = 0.5  # seconds that an attacker waits between two bytes or two connections

Send = Callable[[bytes], Awaitable[None]]


async def _drip(send: Send, first: bytes, byte: bytes) -> None:
    await send(first)
    while True:
        await asyncio.sleep(PAUSE)
        await send(byte)


async def _flood(send: Send, first: bytes, piece: bytes) -> None:
    await send(first)
    while True:
        await send(piece)


def _slow(first: bytes, byte: bytes) -> Callable[[Send], Awaitable[None]]:
    return lambda send: _drip(send, first, byte)


def _fast(first: bytes, piece: bytes) -> Callable[[Send], Awaitable[None]]:
    return lambda send: _flood(send, first, piece)


def kinds(key: str) -> dict[str, Callable[[Send], Awaitable[None]]]:
    """Return, for each kind of client, the function that sends its bytes on a connection. The
    names of the kinds show which clients have a key.
    """
    ours = b"authorization: Bearer " + key.encode() + b"\r\n"
    stream = POST + ours + b"content-length: %d\r\n\r\n" % len(LONG) + LONG
    return {
        "slow heads": _slow(b"GET /health HTTP/1.1\r\n", b"a: b\r\n"),
        "empty lines": _slow(GET, b"\r\n"),
        "holds after 401": _slow(POST + b"content-length: 100000\r\n\r\n", b"x"),
        "holds after 404": _slow(
            POST.replace(b"/v1/", b"/no/") + b"content-length: 100000\r\n\r\n", b"x"
        ),
        "slow bodies, with a key": _slow(POST + ours + b"content-length: 100000\r\n\r\n", b"x"),
        "endless header": _fast(b"GET /health HTTP/1.1\r\nx: ", b"a" * 65536),
        "many headers": _fast(b"GET /health HTTP/1.1\r\n", HEADERS),
        "trailers": _fast(POST + b"transfer-encoding: chunked\r\n\r\n0\r\n", HEADERS),
        "bodies after 401": _fast(POST + b"content-length: 99999999999\r\n\r\n", b"x" * 65536),
        "pipelines never read": _fast(b"", GET * 2000),
        "pages never read": _fast(b"", PAGE * 100),
        "streams never read, with a key": _slow(stream, b"\r\n"),
    }


async def _client(port: int, act: Callable[[Send], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        with socket.socket() as client, contextlib.suppress(OSError):
            # A small receive buffer, because this client never reads a reply.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
            await act(lambda data, client=client: loop.sock_sendall(client, data))  # type: ignore[misc]
        await asyncio.sleep(PAUSE)


async def main(kind: str, port: int, number: int, key: str) -> None:
    """Run a number of clients of one kind, or of every kind, until the process is killed."""
    acts = [act for name, act in kinds(key).items() if kind in (name, "each")]
    clients = [_client(port, act) for act in acts for _ in range(number)]
    print("ready", flush=True)
    await asyncio.gather(*clients)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
