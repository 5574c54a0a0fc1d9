"""After a failed call, nothing refers to its request without the cyclic collector.

The collector counts objects, not bytes: large requests in a few reference cycles would fill the
memory long before it runs.
"""

import asyncio
import gc
from collections.abc import Callable

import pytest

import dragoman as d
from tests.server import Connection, serve
from tests.waiting import settle, until

TIMES = 4
SIZE = 1_000
STACKS: dict[str, Callable[[d.Provider], d.Provider]] = {
    "alone": lambda model: model,
    "Observe": lambda model: d.Observe(model, lambda _: None),
    "Retry": lambda model: d.Retry(model, max_retries=1, sleep=lambda _: asyncio.sleep(0)),
    "Fallback": lambda model: d.Fallback([model]),
    "RateLimit": lambda model: d.RateLimit(model, requests_per_minute=1e6),
}
CHUNK = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'


async def answer(connection: Connection) -> None:
    """Answer as the first part of the path names it."""
    way = connection.seen.path.split("/")[1].replace("%20", " ")
    if way in ("429", "400"):
        connection.reply(int(way), b'{"error": {"message": "no"}}')
    elif way == "not JSON":
        connection.reply(200, b"<html>")
    elif way == "hangs":
        await asyncio.Event().wait()
    else:
        connection.begin_stream()
        connection.chunk(CHUNK)
        connection.writer.close()


async def call(model: d.Provider, *, is_stream: bool) -> bool:
    """Call a model with a large request; return whether the call failed."""
    # The collector does not track dictionaries of strings, so each property holds a list.
    properties = {f"p{number}": {"type": ["string"]} for number in range(SIZE)}
    tool = d.Tool("t", "", parameters={"type": "object", "properties": properties})
    try:
        if is_stream:
            async with model.stream("hi", tools=[tool]) as events:
                [event async for event in events]
        else:
            await model.complete("hi", tools=[tool])
    except d.ProviderError:
        return True
    return False


async def cancel(model: d.Provider, *, is_stream: bool) -> bool:
    """Cancel a call; return whether it was cancelled."""
    task = asyncio.ensure_future(call(model, is_stream=is_stream))
    await settle()
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


async def flush(model: d.Provider) -> None:
    await settle()
    if isinstance(model, d.Observe):
        await model.flush()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("way", ["429", "400", "not JSON", "cut", "hangs"])
@pytest.mark.parametrize(
    ("stack", "is_stream"), [("alone", False), *[(name, True) for name in STACKS]]
)
async def test_failed_call_is_freed_at_once(way: str, stack: str, is_stream: bool) -> None:
    async with serve(answer) as server:
        url = f"{server.url}/{way.replace(' ', '%20')}/v1"
        async with STACKS[stack](d.connect("m", base_url=url, retries=0)) as model:
            fail = cancel if way == "hangs" else call
            await fail(model, is_stream=is_stream)  # what is kept once, such as prices
            await flush(model)
            before = len(gc.get_objects())
            for _ in range(TIMES):
                assert await fail(model, is_stream=is_stream)
            await until(lambda: server.in_flight == 0, "the end of the calls")
            await flush(model)
            # There are a dictionary and a list for each property.
            await until(lambda: len(gc.get_objects()) - before < TIMES * SIZE, "less garbage")
