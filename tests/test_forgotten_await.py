"""Test that a call which was not awaited names what to write, however it is used."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import dragoman as d
from dragoman.transport import FixtureTransport

BODY = (
    b'{"choices": [{"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}'
)


def ask() -> Any:
    transport = FixtureTransport((200, {}, [BODY]))
    return d.connect("m", base_url="http://box.example/v1", transport=transport).complete("Hi")


def embed() -> Any:
    return d.connect_embedder("m", base_url="http://box.example/v1").embed("Hi")


def rank() -> Any:
    return d.connect_reranker("m", base_url="http://box.example/v1").rerank("Hi", ["a"])


def iterate(call: Any) -> None:
    async def read() -> None:
        async for _ in call:
            pass

    asyncio.run(read())


@pytest.mark.parametrize(
    ("make", "use", "advice"),
    [
        (ask, lambda call: call.text, "write (await ...complete(...)).text"),
        (embed, lambda call: call.vectors, "write (await ...embed(...)).vectors"),
        (rank, lambda call: call.results, "write (await ...rerank(...)).results"),
        (
            ask,
            lambda call: call["text"],
            "complete() was not awaited; write await ...complete(...)",
        ),
        (ask, list, "complete() was not awaited; write await ...complete(...)"),
        (ask, iterate, "the events of a reply are yielded by stream()"),
    ],
)
def test_use_without_await_says_what_to_write(
    make: Callable[[], Any], use: Callable[[Any], Any], advice: str
) -> None:
    call = make()
    with pytest.raises((AttributeError, TypeError)) as caught:
        use(call)
    call.close()
    assert advice in str(caught.value)
    assert "not awaited; write await" in repr(call)


async def test_call_can_be_awaited_and_be_a_task() -> None:
    assert (await ask()).text == "Hi"
    assert (await asyncio.create_task(ask())).text == "Hi"
    assert [reply.text for reply in await asyncio.gather(ask(), ask())] == ["Hi", "Hi"]
    async with asyncio.TaskGroup() as group:
        task = group.create_task(ask())
        assert "complete" in repr(task)
    assert task.result().text == "Hi"


async def test_task_of_a_call_is_cancelled() -> None:
    task = asyncio.create_task(ask())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_call_can_be_the_main_coroutine() -> None:
    assert asyncio.run(ask()).text == "Hi"
    call = ask()
    assert asyncio.iscoroutine(call)
    call.close()


def test_signature_of_a_call_is_kept() -> None:
    assert "response_schema" in inspect.signature(d.Provider.complete).parameters
    assert d.Provider.complete.__doc__ is not None


def test_call_that_is_dropped_is_reported() -> None:
    with pytest.warns(RuntimeWarning, match="complete.* was never awaited"):
        ask()
