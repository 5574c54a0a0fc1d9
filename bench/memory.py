"""Memory of many long streams at once: how much each grows between its first event and its last but a few."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import psutil

from dragoman import connect


async def main(base: str, streams: int, keep_raw: bool) -> None:
    model = connect("bench-1", base_url=f"{base}/long/v1", keep_raw=keep_raw)
    async for _ in model.stream("Hi"):  # everything that is made once is made now
        pass
    gc.collect()
    process = psutil.Process()
    held = [model.stream("Hi") for _ in range(streams)]

    async def read(stream: Any, events: int) -> None:
        count = 0
        async for _ in stream:
            count += 1
            if count == events:
                return

    await asyncio.gather(*[read(stream, 2) for stream in held])
    gc.collect()
    before = process.memory_info().rss
    await asyncio.gather(*[read(stream, 9_990) for stream in held])
    gc.collect()
    print((process.memory_info().rss - before) / streams / 1024)
    for stream in held:
        await stream.aclose()
    await model.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1"))
