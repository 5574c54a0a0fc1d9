"""``python -m bench.endurance [CALLS]``: check that memory does not grow over a million calls.

The replies are canned, so only the memory of this library is measured. They are texts, tool calls
and streams, and one in a thousand fails. Prints the resident memory regularly.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import psutil

from dragoman import ProviderError, RuntimeConfig, User, connect
from dragoman.transport import HttpStream, Secret, Timeouts, Transport
from dragoman.wire import HttpRequest

from .ours import WEATHER
from .server import body, stream_frames


class _Canned(HttpStream, AbstractAsyncContextManager[HttpStream]):
    headers: Mapping[str, str] = {}

    def __init__(self, status: int, *chunks: bytes) -> None:
        self.status = status
        self._chunks = iter(chunks)

    async def __aenter__(self) -> HttpStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def receive(self) -> bytes:
        return next(self._chunks, b"")


class Canned(Transport):
    def __init__(self) -> None:
        self._text = body(False)
        self._call = body(True)
        self._stream = b"".join(stream_frames(10))
        self._turns = itertools.count(1)

    def send(
        self,
        request: HttpRequest,
        credentials: Mapping[str, Secret],
        timeouts: Timeouts,
        *,
        stream: bool = False,
    ) -> AbstractAsyncContextManager[HttpStream]:
        if next(self._turns) % 1000 == 0:
            return _Canned(503, b'{"error": {"message": "overloaded"}}')
        if stream:
            return _Canned(200, self._stream[:1000], self._stream[1000:])
        return _Canned(200, self._call if b'"tools"' in request.body else self._text)


async def call(model: Any, turn: int) -> None:
    try:
        if turn % 10 == 0:
            async for _ in model.stream(f"Hi {turn}"):
                pass
        elif turn % 3 == 0:
            await model.complete([User(f"Hi {turn}")], [WEATHER])
        else:
            await model.complete([User(f"Hi {turn}")], config=RuntimeConfig(seed=turn))
    except ProviderError:
        pass


async def main(calls: int) -> None:
    process = psutil.Process()
    model = connect("bench-1", base_url="http://127.0.0.1:1/v1", api_key="key", transport=Canned())
    marks = sorted({max(1, calls * part // 100) for part in (1, 5, 10, 25, 50, 75, 100)})
    resident: dict[int, int] = {}
    began = time.process_time()
    for turn in range(1, calls + 1):
        await call(model, turn)
        if turn in marks:
            gc.collect()
            resident[turn] = process.memory_info().rss // 1024
            print(f"{turn:>10,} calls {resident[turn]:>9,} KiB", flush=True)
    first = resident[marks[0]]
    last = resident[marks[-1]]
    spent = (time.process_time() - began) / calls * 1e6
    print(
        json.dumps({"calls": calls, "grown_kib": last - first, "cpu_us_per_call": round(spent, 1)})
    )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
