"""Memory of many long streams at once, in KiB each: how far the process grows until all have ended, replies held.

    python -m bench.memory BASE_URL STREAMS connection|lean|raw|floor [later]

``connection`` is our transport alone, whose bytes are thrown away: what the HTTP library takes for a connection.
``lean`` and ``raw`` are ours without and with ``keep_raw``; ``floor`` is the client written by hand, which keeps
nothing. What a reply has to keep, its text and with ``raw`` the bytes of the provider, is reported
separately. With ``later`` the process has had as many short streams at once before, as one that
serves has: what it grows by then is not what connections take, but what the length of streams does.
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
    await read()  # warm up: create everything that is created once
    if later:
        short = reader(base, "burst", mode)
        await asyncio.gather(*[short() for _ in range(streams)])
    gc.collect()
    before = psutil.Process().memory_info().rss
    held = await asyncio.gather(*[read() for _ in range(streams)])
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    assert len(held) == streams
    ours = mode in ("lean", "raw")
    text = sum(map(len, PIECES)) / 1024 if ours else 0.0
    raw = sum(map(len, stream_frames(LONG_CHUNKS))) / 1024 if mode == "raw" else 0.0
    print(json.dumps({"grown": (most - before) / streams / 1024, "text": text, "raw": raw}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], later=sys.argv[4:] == ["later"]))
