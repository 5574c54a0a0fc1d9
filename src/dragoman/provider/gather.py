"""``gather``: call a model for many prompts with bounded concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any, Generic, Unpack

from msgspec import Struct

from ..events import Parsed, Response
from ..messages import RuntimeConfig
from ..validate import build_request
from ..validate.arguments import (
    ConfigRecord,
    Messages,
    ResponseSchema,
    Settings,
    ToolChoices,
    Tools,
    Wanted,
)
from .contract import Provider


class Gathered(Struct, Generic[Parsed], frozen=True):
    """The result of one call of ``gather``: the prompt, its position, and the reply or error."""

    index: int
    prompt: Messages
    response: Response[Parsed] | None = None
    error: Exception | None = None


async def gather(
    model: Provider,
    prompts: Iterable[Messages] | AsyncIterable[Messages],
    tools: Tools | None = None,
    config: RuntimeConfig | ConfigRecord | None = None,
    response_schema: ResponseSchema[Wanted] | None = None,
    tool_choice: ToolChoices | None = None,
    *,
    concurrency: int = 8,
    ordered: bool = False,
    session_id: str | None = None,
    metadata: Mapping[str, str] | None = None,
    **settings: Unpack[Settings],
) -> AsyncGenerator[Gathered[Wanted], None]:
    """Call ``complete`` for every prompt, at most ``concurrency`` at once; yield each result.

    Results are yielded when their calls end, or in the order of the prompts with ``ordered``. If a
    call fails, its result has ``error``, and the other calls continue. A prompt is read only when
    its call can begin, and at most ``2 * concurrency`` results are pending, so memory use does not
    depend on the number of prompts. Closing the generator, or cancelling the task that reads it,
    cancels the calls in flight. The other arguments are those of ``complete``; invalid ones raise
    an error before the first call.
    """
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise ValueError(f"concurrency: must be a whole number of at least 1, not {concurrency!r}")
    if isinstance(prompts, str):
        raise TypeError("prompts: must be an iterable of prompts; for one prompt, use complete()")
    build_request("", tools, config, response_schema, tool_choice, settings=settings)

    async def call(prompt: Messages) -> Response[Wanted]:
        return await model.complete(
            prompt, tools, config, response_schema, tool_choice,
            session_id=session_id, metadata=metadata, **settings,
        )  # fmt: skip

    batch: _Batch[Wanted] = _Batch(_iterate(prompts), call, concurrency)
    try:
        async for item in batch.items(ordered=ordered):
            yield item
    finally:
        await batch.close()


class _Batch(Generic[Parsed]):
    """Worker tasks that read prompts, call the model, and put the results into a queue.

    A worker acquires a slot of a semaphore before it reads a prompt. The slot is released when the
    caller receives the result.
    """

    def __init__(self, prompts: AsyncIterator[Messages], call: Any, concurrency: int) -> None:
        self._prompts = prompts
        self._call = call
        self._taking = asyncio.Lock()
        self._slots = asyncio.Semaphore(2 * concurrency)
        self._queue: asyncio.Queue[Gathered[Parsed] | Exception | None] = asyncio.Queue()
        self._taken = 0
        self._exhausted = False
        self._workers = [asyncio.create_task(self._work()) for _ in range(concurrency)]

    async def items(self, *, ordered: bool) -> AsyncIterator[Gathered[Parsed]]:
        """Yield the results until every worker has ended.

        An error that the iterator of prompts raises is raised here.
        """
        waiting: dict[int, Gathered[Parsed]] = {}
        due = 0
        working = len(self._workers)
        while working:
            item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                working -= 1
                continue
            waiting[item.index] = item
            if not ordered:
                due = item.index
            while due in waiting:
                yield waiting.pop(due)
                self._slots.release()
                due += 1

    async def close(self) -> None:
        """Cancel the calls in flight, wait until they end, and close the iterator of prompts."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        close = getattr(self._prompts, "aclose", None)
        if close is not None:
            await close()

    async def _work(self) -> None:
        try:
            while (taken := await self._take()) is not None:
                index, prompt = taken
                try:
                    item: Gathered[Parsed] = Gathered(index, prompt, await self._call(prompt))
                except Exception as error:
                    item = Gathered(index, prompt, error=error)
                self._queue.put_nowait(item)
        except Exception as error:  # the caller's iterator of prompts has raised an error
            self._queue.put_nowait(error)
        else:
            self._queue.put_nowait(None)

    async def _take(self) -> tuple[int, Messages] | None:
        """Return the next prompt with its position; ``None`` if there is none left."""
        await self._slots.acquire()
        async with self._taking:
            if not self._exhausted:
                try:
                    prompt = await anext(self._prompts)
                except StopAsyncIteration:
                    self._exhausted = True
                else:
                    self._taken += 1
                    return self._taken - 1, prompt
        self._slots.release()
        return None


async def _iterate(
    prompts: Iterable[Messages] | AsyncIterable[Messages],
) -> AsyncIterator[Messages]:
    if isinstance(prompts, AsyncIterable):
        async for prompt in prompts:
            yield prompt
    else:
        for prompt in prompts:
            yield prompt
