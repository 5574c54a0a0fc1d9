"""``gather``: many calls at once, with bounded concurrency and memory."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

import dragoman
from dragoman import Gathered, InvalidRequestError, RateLimitError, User, gather
from dragoman.messages import Assistant
from dragoman.sim import ScriptedProvider
from dragoman.sync import SyncProvider
from dragoman.sync import gather as blocking_gather

from .waiting import block_until, settle


class Slow(ScriptedProvider):
    """Answers every prompt after the seconds in ``waits``, and counts the calls in flight."""

    def __init__(self, waits: dict[str, float] | None = None, answer: Any = "Hello.") -> None:
        super().__init__(answer)
        self.waits = waits or {}
        self.flying = self.most = self.cancelled = 0

    async def complete(self, messages: Any, *more: Any, **settings: Any) -> Any:
        self.flying += 1
        self.most = max(self.most, self.flying)
        try:
            await asyncio.sleep(self.waits.get(str(messages), 0.001))
            if messages == "fail":
                raise RateLimitError("slow down")
            return await super().complete(messages, *more, **settings)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.flying -= 1


@pytest.mark.usefixtures("virtual_time")
async def test_replies_arrive_in_order_of_completion_within_the_concurrency_limit() -> None:
    model = Slow({"0": 20})
    items = [item async for item in gather(model, [str(n) for n in range(20)], concurrency=4)]
    assert sorted(item.index for item in items) == list(range(20))
    assert all(item.prompt == str(item.index) and item.error is None for item in items)
    assert all(item.response is not None and item.response.text == "Hello." for item in items)
    assert items[0].index != 0
    assert model.most == 4


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("slow", ["0", "3", "7"])
async def test_replies_arrive_in_input_order_on_request(slow: str) -> None:
    model = Slow({slow: 5})
    items = [
        item
        async for item in gather(model, [str(n) for n in range(8)], concurrency=3, ordered=True)
    ]
    assert [item.index for item in items] == list(range(8))
    assert model.most == 3


@pytest.mark.parametrize("ordered", [True, False])
async def test_failed_call_does_not_stop_the_others(ordered: bool) -> None:
    items = [
        item
        async for item in gather(Slow(), ["a", "fail", "b", []], concurrency=2, ordered=ordered)
    ]
    by_place = {item.index: item for item in items}
    expected = [type(None), RateLimitError, type(None), InvalidRequestError]
    assert [type(by_place[at].error) for at in range(4)] == expected
    assert by_place[1].response is None
    assert by_place[2].response is not None


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("ordered", [True, False])
async def test_prompts_are_read_lazily(ordered: bool) -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "0" if taken == 1 else "x"

    model = Slow({"0": 50})
    seen = 0
    async with aclosing(gather(model, endless(), concurrency=3, ordered=ordered)) as items:
        async for _ in items:
            seen += 1
            await asyncio.sleep(1)
            assert taken <= seen + 2 * 3
            if seen == 30:
                break
    assert model.flying == 0


async def test_prompts_may_be_an_asynchronous_iterator() -> None:
    closed = False

    async def source() -> AsyncIterator[User]:
        nonlocal closed
        try:
            for word in ("a", "b", "c"):
                await asyncio.sleep(0)
                yield User(word)
        finally:
            closed = True

    items = [
        item
        async for item in gather(ScriptedProvider("Hello."), source(), concurrency=2, ordered=True)
    ]
    assert [item.prompt for item in items] == [User("a"), User("b"), User("c")]
    assert closed


async def test_error_in_the_prompt_iterator_is_raised_and_cancels_running_calls() -> None:
    def broken() -> Iterator[str]:
        yield "slow"
        raise OSError("the file is gone")

    model = Slow({"slow": 60})
    with pytest.raises(OSError, match="the file is gone"):
        [item async for item in gather(model, broken(), concurrency=2)]
    assert model.flying == 0
    assert model.cancelled == 1


async def test_leaving_the_loop_cancels_running_calls() -> None:
    model = Slow({"slow": 60})
    async with aclosing(gather(model, ["a", "slow", "slow"], concurrency=3)) as items:
        assert (await anext(items)).prompt == "a"
    assert model.flying == 0
    assert model.cancelled == 2


async def test_cancelling_the_reader_cancels_running_calls() -> None:
    model = Slow({"slow": 60})

    async def read() -> None:
        async for _ in gather(model, ["slow"] * 3, concurrency=3):
            pass

    task = asyncio.create_task(read())
    await settle()
    assert model.flying == 3
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.flying == 0
    assert model.cancelled == 3


class River(msgspec.Struct):
    name: str


async def test_settings_and_schemas_are_passed_to_every_call() -> None:
    model = ScriptedProvider('{"name": "Rhine"}')
    async for item in gather(
        model, ["?"], response_schema=River, system="Be brief.", temperature=0, session_id="s"
    ):
        assert isinstance(item, Gathered)
        assert item.response.parsed == River("Rhine")
        assert item.response.message == Assistant('{"name": "Rhine"}')
    (request,) = model.requests
    assert request.messages[0] == dragoman.System("Be brief.")
    assert request.config.temperature == 0
    assert request.session_id == "s"


@pytest.mark.parametrize(
    ("prompts", "settings", "kind", "message"),
    [
        (["a"], {"temprature": 0}, TypeError, "did you mean temperature"),
        (["a"], {"response_schema": 3}, InvalidRequestError, "response_schema"),
        (["a"], {"concurrency": 0}, ValueError, "concurrency"),
        (["a"], {"concurrency": True}, ValueError, "concurrency"),
        ("a", {}, TypeError, "use complete"),
    ],
)
async def test_invalid_arguments_are_raised_before_the_first_call(
    prompts: Any, settings: dict[str, Any], kind: type[Exception], message: str
) -> None:
    model = ScriptedProvider("Hello.")
    with pytest.raises(kind, match=message):
        [item async for item in gather(model, prompts, **settings)]
    assert model.requests == []


async def test_empty_input_gives_no_replies() -> None:
    assert [item async for item in gather(ScriptedProvider("Hello."), [])] == []


def test_blocking_gather_works_without_an_event_loop() -> None:
    model = SyncProvider(Slow({"1": 0.05}))
    items = list(blocking_gather(model, (str(n) for n in range(5)), concurrency=2, ordered=True))
    assert [(item.index, item.prompt) for item in items] == [(n, str(n)) for n in range(5)]
    assert {item.response.text for item in items if item.response} == {"Hello."}


def test_prompts_of_blocking_gather_may_call_the_model() -> None:
    model = SyncProvider(Slow())
    prompts = (model.complete(f"Name prompt {n}.").text for n in range(3))
    assert [item.prompt for item in blocking_gather(model, prompts, concurrency=2)] == [
        "Hello."
    ] * 3


def test_leaving_a_blocking_loop_cancels_running_calls() -> None:
    slow = Slow({"slow": 60})
    items = blocking_gather(SyncProvider(slow), ["a", "slow", "slow"], concurrency=3)
    assert next(items).prompt == "a"
    items.close()  # type: ignore[attr-defined]
    assert slow.flying == 0


def test_blocking_gather_raises_usage_errors_and_errors_of_the_prompts() -> None:
    model = SyncProvider(Slow())
    with pytest.raises(TypeError, match="use complete"):
        next(blocking_gather(model, "one prompt"))

    def broken() -> Iterator[str]:
        yield "a"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        list(blocking_gather(model, broken(), concurrency=1))


def test_interrupting_a_blocking_loop_cancels_running_calls() -> None:
    slow = Slow({"slow": 60})
    items = blocking_gather(SyncProvider(slow), ["slow", "slow"], concurrency=2)
    here = threading.get_ident()

    def interrupt() -> None:
        block_until(lambda: slow.flying == 2, "both calls")
        signal.pthread_kill(here, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        next(items)
    assert slow.flying == 0
