"""Measure the memory of many simultaneous long streams: the growth of the process, in KiB per
stream.

The growth is measured when all streams have ended and all replies are still referenced.

    python -m bench.memory BASE_URL STREAMS connection|lean|raw|floor [later]

``connection`` uses our transport alone and discards the bytes, which shows the memory that the
HTTP library needs for a connection. ``lean`` and ``raw`` are Dragoman without and with
``keep_raw``. ``floor`` is the client written by hand, which keeps nothing. The data that a reply
must keep is reported separately: its text, and with ``raw`` the provider's bytes. With ``later``
the process first handles the same number of short streams, like a server that has run for a while.
The growth then comes from the length of the streams, not from their connections.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import psutil

from dragoman import connect
from dragoman.transport import HttpTransport, Timeouts
from dragoman.wire import HttpRequest

from .floors import HEADERS, Aiohttp
from .server import LONG_CHUNKS, PIECES, stream_frames

Read = Callable[[], Awaitable[Any]]


def read_by_hand(base: str, kind: str) -> Read:
    floor = Aiohttp(base, "openai")
    return lambda: floor.stream(kind, [{"role": "user", "content": "Hi"}])


def read_bytes(base: str, kind: str) -> Read:
    transport = HttpTransport()
    request = HttpRequest("POST", f"{base}/{kind}/v1/chat/completions", HEADERS, b"{}")

    async def read() -> None:
        async with transport.send(request, {}, Timeouts(), stream=True) as reply:
            while await reply.receive():
                pass

    return read


def read_events(base: str, kind: str, keep_raw: bool) -> Read:
    model = connect("bench-1", base_url=f"{base}/{kind}/v1", keep_raw=keep_raw)

    async def read() -> Any:
        stream = model.stream("Hi")
        async for _ in stream:
            pass
        assert stream.response is not None
        assert kind != "long" or len(stream.response.text) == sum(map(len, PIECES))
        return stream.response

    return read


def reader(base: str, kind: str, mode: str) -> Read:
    makers = {"connection": read_bytes, "floor": read_by_hand}
    return makers[mode](base, kind) if mode in makers else read_events(base, kind, mode == "raw")


async def main(base: str, streams: int, mode: str, *, later: bool) -> None:
    read = reader(base, "long", mode)
    await read()  # a first call creates everything that is created only once
    if later:
        short = reader(base, "burst", mode)
        await asyncio.gather(*[short() for _ in range(streams)])
    gc.collect()
    before = psutil.Process().memory_info().rss
    held = await asyncio.gather(*[read() for _ in range(streams)])
    # Linux reports ru_maxrss in KiB.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert len(held) == streams
    ours = mode in ("lean", "raw")
    text = sum(map(len, PIECES)) / 1024 if ours else 0.0
    raw = sum(map(len, stream_frames(LONG_CHUNKS))) / 1024 if mode == "raw" else 0.0
    print(
        json.dumps({"grown": (most - before) / streams / 1024, "text": text, "raw": raw}),
        flush=True,
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], later=sys.argv[4:] == ["later"]))
