"""Memory of many long streams held at once, in KiB each: how much one grows from its second event to its end.

    python -m bench.memory BASE_URL STREAMS raw|lean

What a stream has to keep, its text and with ``raw`` the bytes of the provider, is told beside it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from typing import Any

import psutil

from dragoman import connect

from .server import LONG_CHUNKS, PIECES, stream_frames


async def read(stream: Any, events: int) -> None:
    count = 0
    async for _ in stream:
        count += 1
        if count == events:
            return


async def main(base: str, streams: int, keep_raw: bool) -> None:
    model = connect("bench-1", base_url=f"{base}/long/v1", keep_raw=keep_raw)
    async for _ in model.stream("Hi"):  # everything that is made once is made now
        pass
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    held = [model.stream("Hi") for _ in range(streams)]
    await asyncio.gather(*[read(stream, 2) for stream in held])
    gc.collect()
    opened = process.memory_info().rss
    await asyncio.gather(*[read(stream, LONG_CHUNKS - 10) for stream in held])
    gc.collect()
    ended = process.memory_info().rss
    for stream in held:
        await stream.aclose()
    await model.close()
    text = sum(map(len, PIECES)) / 1024
    raw = sum(map(len, stream_frames(LONG_CHUNKS))) / 1024 if keep_raw else 0.0
    grown = (ended - opened) / streams / 1024
    told = {"opened": (opened - before) / streams / 1024, "grown": grown, "text": text, "raw": raw}
    print(json.dumps({**told, "beyond": grown - text - raw}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "raw"))
