"""Test RateLimit: no call starts early or gets lost, waiting calls start in order, and estimates
are corrected.
"""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman as d
from dragoman.events import Usage
from dragoman.middleware import Limiter, RateLimit, Retry, describe
from dragoman.validate import build_request
from tests.listed import Clock, Listed, broken, collect, reply
from tests.rows import read_table
from tests.waiting import arrival


class Ticking(Clock):
    """Act as a clock that the test advances; it wakes any number of sleepers in order of time."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        future = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, future))
        await future

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    async def run_to(self, when: float) -> None:
        """Advance the clock to the given time, and wake each sleeper when it is due."""
        await self.settle()
        while True:
            self._sleepers = [each for each in self._sleepers if not each[1].done()]
            due = [each for each in self._sleepers if each[0] <= when]
            if not due:
                break
            first = min(due, key=lambda each: each[0])
            self._sleepers.remove(first)
            self.now = max(self.now, first[0])
            first[1].set_result(None)
            await self.settle()
        self.now = when
        await self.settle()


class Queue:
    """Start calls against a limiter, and record when each was admitted."""

    def __init__(self, **limits: Any) -> None:
        self.clock = Ticking()
        self.limiter = Limiter(**limits, clock=self.clock, sleep=self.clock.sleep)
        self.passed: list[tuple[str, float]] = []
        self.leases: dict[str, Any] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, name: str, tokens: int = 0) -> None:
        async def call() -> None:
            self.leases[name] = await self.limiter.acquire(tokens)
            self.passed.append((name, self.clock.now))

        self.tasks[name] = asyncio.ensure_future(call())

    async def end(self, name: str, spent: int | None = None) -> None:
        await self.limiter.settle(self.leases.pop(name), spent)
        await self.clock.settle()


# --- the rate limiter --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "tokens", "passed"),
    [
        ({"requests_per_minute": 6}, [0] * 9, [0] * 6 + [10, 20, 30]),
        ({"requests_per_minute": 60, "burst_seconds": 2}, [0] * 4, [0, 0, 1, 2]),
        ({"tokens_per_minute": 600}, [500, 200], [0, 10]),
        ({"tokens_per_minute": 600}, [600, 500, 1], [0, 50, 50.1]),
        ({"tokens_per_minute": 600}, [60, 1200, 60], [0, 6, 72]),
    ],
    ids=[
        "a burst, then a steady rate", "the burst is configurable", "a call waits for its tokens",
        "a small call does not overtake a large one",
        "a call larger than the bucket waits until it is full",
    ],
)  # fmt: skip
async def test_calls_are_admitted_in_order_as_the_bucket_fills(
    limits: dict[str, float], tokens: list[int], passed: list[float]
) -> None:
    queue = Queue(**limits)
    for number, asked in enumerate(tokens):
        queue.ask(str(number), asked)
    await queue.clock.run_to(1000)
    assert [int(name) for name, _ in queue.passed] == list(range(len(tokens)))
    assert [at for _, at in queue.passed] == pytest.approx(passed)


@pytest.mark.parametrize(
    ("spent", "next_at"),
    [(None, 60.0), (600, 60.0), (100, 10.0), (0, 0.0), (1200, 120.0)],
)
async def test_estimated_tokens_are_corrected_by_the_reported_usage(
    spent: int | None, next_at: float
) -> None:
    queue = Queue(tokens_per_minute=600)
    queue.ask("a", 600)
    queue.ask("b", 600)
    await queue.clock.run_to(0)
    await queue.end("a", spent)
    await queue.clock.run_to(200)
    assert queue.passed == [("a", 0), ("b", pytest.approx(next_at))]


async def test_number_of_concurrent_calls_is_limited() -> None:
    queue = Queue(max_concurrency=2)
    for name in "abcd":
        queue.ask(name)
    await queue.clock.run_to(0)
    assert queue.limiter.running == 2
    assert queue.limiter.waiting == 2
    await queue.clock.run_to(7)
    await queue.end("b")
    assert [name for name, _ in queue.passed] == ["a", "b", "c"]
    await queue.end("a")
    assert queue.passed[2:] == [("c", 7), ("d", 7)]
    for name in "cd":
        await queue.end(name)
    assert queue.limiter.running == 0
    assert queue.limiter.waiting == 0


@pytest.mark.parametrize("victims", ["b", "c", "bc", "bcd"])
async def test_cancelled_waiting_call_consumes_no_tokens_and_no_slot(victims: str) -> None:
    queue = Queue(requests_per_minute=1, max_concurrency=1)
    for name in "abcde":
        queue.ask(name)
    await queue.clock.run_to(1)
    for name in victims:
        queue.tasks[name].cancel()
    await queue.clock.settle()
    left = [name for name in "bcde" if name not in victims]
    assert queue.limiter.waiting == len(left)
    await queue.end("a")
    for number, name in enumerate(left, 1):
        await queue.clock.run_to(60 * number)
        assert queue.passed[-1] == (name, 60 * number)
        await queue.end(name)
    assert queue.limiter.running == 0
    assert queue.limiter.waiting == 0


async def test_next_call_proceeds_if_the_first_in_the_queue_is_cancelled() -> None:
    queue = Queue(max_concurrency=1)
    for name in "abc":
        queue.ask(name)
    await queue.clock.run_to(0)
    # B is next in the queue, but has not been woken yet.
    await queue.limiter.settle(queue.leases.pop("a"), None)
    queue.tasks["b"].cancel()
    await queue.clock.settle()
    assert [name for name, _ in queue.passed] == ["a", "c"]
    assert queue.limiter.running == 1
    assert queue.limiter.waiting == 0


@given(
    st.floats(1, 1000),
    st.floats(1, 60),
    st.lists(st.tuples(st.floats(0, 30), st.integers(0, 2000)), min_size=1, max_size=30),
)
def test_calls_never_exceed_the_burst_plus_the_refill_rate(
    per_minute: float, burst: float, calls: list[tuple[float, int]]
) -> None:
    passed = asyncio.run(_let_through(per_minute, burst, calls))
    rate = per_minute / 60
    capacity = per_minute * burst / 60
    assert [name for name, *_ in passed] == [str(number) for number in range(len(calls))]
    for start in range(len(passed)):
        for end in range(start, len(passed)):
            # A call larger than the bucket leaves a deficit that later calls wait for.
            cost = sum(tokens for _, _, tokens in passed[start:end]) + min(
                passed[end][2], capacity
            )
            span = passed[end][1] - passed[start][1]
            assert cost <= capacity + max(0, passed[start][2] - capacity) + rate * span + 1e-6 * (
                1 + cost
            )


async def _let_through(
    per_minute: float, burst: float, calls: list[tuple[float, int]]
) -> list[tuple[str, float, int]]:
    queue = Queue(tokens_per_minute=per_minute, burst_seconds=burst)
    for number, (pause, tokens) in enumerate(calls):
        queue.ask(str(number), tokens)
        await queue.clock.run_to(queue.clock.now + pause)
    await queue.clock.run_to(1e9)
    return [(name, at, calls[int(name)][1]) for name, at in queue.passed]


def test_a_limiter_belongs_to_one_event_loop() -> None:
    limiter = Limiter(max_concurrency=5)
    asyncio.run(limiter.acquire())
    with pytest.raises(RuntimeError, match="this Limiter belongs to another event loop"):
        asyncio.run(limiter.acquire())


@pytest.mark.parametrize(("limits", "field"), read_table("error_names_an_invalid_limit"))
def test_error_names_an_invalid_limit(limits: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Limiter(**limits)


# --- the rate limit middleware -----------------------------------------------------------------


class Watched(Limiter):
    """Act as a limiter that records every reservation of tokens and every correction."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        self.log: list[Any] = []

    async def acquire(self, tokens: int = 0) -> Any:
        self.log.append(tokens)
        return await super().acquire(tokens)

    async def settle(self, lease: Any, spent: int | None) -> None:
        self.log.append(spent)
        await super().settle(lease, spent)


def fixed(*answers: Any) -> Listed:
    class Fixed(Listed):
        def estimate_input_tokens(self, *_: Any) -> int:
            return 100

    return Fixed(*answers)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("answer", "spent"),
    [
        (reply("x", usage=Usage(30, 7)), 37),
        (reply("x", usage=Usage(30, None)), 80),
        (reply("x", usage=Usage(None, 7)), 107),
        (reply("x", usage=Usage(total_tokens=44)), 44),
        (reply("x", usage=Usage()), None),
        (d.UnavailableError("refused"), 0),
        (d.RateLimitError("refused"), 0),
        (d.TimedOutError("silence"), None),
        (d.StreamInterruptedError("nothing came"), None),
        (broken("half", d.StreamInterruptedError("cut")), None),
        (ZeroDivisionError("bug"), None),
    ],
)
async def test_tokens_are_reserved_before_and_corrected_after_each_call(
    stream: bool, answer: Any, spent: int | None
) -> None:
    limiter = Watched(tokens_per_minute=1e6)
    model = RateLimit(fixed(answer), limiter=limiter)
    await collect(model.events(build_request("hi", config={"max_tokens": 50}, stream=stream)))
    assert limiter.log == [150, spent]
    assert limiter.running == 0


async def test_tokens_are_not_estimated_without_a_token_limit() -> None:
    class Dear(Listed):
        def estimate_input_tokens(self, *_: Any) -> int:
            raise AssertionError("asked for an estimate nobody needs")

    assert (await RateLimit(Dear("ok"), max_concurrency=1).complete("hi")).text == "ok"


async def test_a_stream_holds_its_slot_until_it_ends_or_is_closed() -> None:
    model = RateLimit(Listed("one", "two", "three"), max_concurrency=1)
    (limiter,) = model.limiters
    source = model.events(build_request("hi", stream=True))
    await source.__anext__()
    assert limiter.running == 1
    await source.aclose()  # type: ignore[attr-defined]
    assert limiter.running == 0
    assert len([event async for event in model.stream("hi")]) == 4
    assert limiter.running == 0


async def test_call_cancelled_in_the_queue_is_not_sent_and_loses_no_slot() -> None:
    gate = asyncio.Event()
    inner = Listed(lambda request: [gate, *reply("one")(request)], "two")
    model = RateLimit(inner, max_concurrency=1)
    first = asyncio.ensure_future(model.complete("hi"))
    second = asyncio.ensure_future(model.complete("hi", request_id="r2"))
    while model.limiters[0].waiting < 1:
        await asyncio.sleep(0)
    assert await model.cancel("r2")
    with pytest.raises(d.CallCancelledError):
        await second
    gate.set()
    assert (await first).text == "one"
    assert (await model.complete("hi")).text == "two"
    assert len(inner.requests) == 2


async def test_limits_of_a_provider_and_of_a_model_both_apply() -> None:
    everybody = Limiter(max_concurrency=3)
    gate = asyncio.Event()
    inners = [
        Listed(*[lambda request: [gate, *reply("x")(request)]] * 4, name="p", model=model)
        for model in ("a", "b")
    ]
    models = [RateLimit(inner, max_concurrency=2, limiter=everybody) for inner in inners]
    calls = [asyncio.ensure_future(model.complete("hi")) for model in models for _ in range(4)]
    for _ in range(50):
        await asyncio.sleep(0)
    assert [inner.running for inner in inners] == [2, 1]
    assert everybody.running == 3
    gate.set()
    assert len(await asyncio.gather(*calls)) == 8
    assert everybody.running == 0
    assert everybody.waiting == 0


async def test_reserved_tokens_are_returned_if_a_later_limiter_fails() -> None:
    two = Watched(max_concurrency=1)
    one = Watched(tokens_per_minute=1000)
    held = await two.acquire()
    model = RateLimit(fixed("x"), limiter=[one, two])
    call = asyncio.ensure_future(model.complete("hi", request_id="r"))
    while two.waiting < 1:
        await asyncio.sleep(0)
    await model.cancel("r")
    with pytest.raises(d.CallCancelledError):
        await call
    assert one.log == [100, 0]
    assert one.running == 0
    await two.settle(held, None)
    assert two.running == 0


async def test_limiters_listed_in_different_orders_do_not_deadlock() -> None:
    one = Limiter(max_concurrency=1)
    two = Limiter(max_concurrency=1)
    forward = RateLimit(Listed("f", repeat=True), limiter=[one, two])
    backward = RateLimit(Listed("b", repeat=True), limiter=[two, one])
    assert forward.limiters == backward.limiters == (two, one)
    calls = [model.complete("hi") for _ in range(20) for model in (forward, backward)]
    assert len(await arrival(asyncio.gather(*calls), "all calls")) == 40


async def test_every_retry_is_rate_limited() -> None:
    clock = Clock()
    limiter = Watched(requests_per_minute=1000)
    inner = Listed(d.UnavailableError("1"), d.UnavailableError("2"), "ok")
    model = Retry(RateLimit(inner, limiter=limiter), clock=clock, sleep=clock.sleep)
    assert (await model.complete("hi")).text == "ok"
    assert limiter.log == [0, 0, 0, 0, 0, 15]


async def test_cancelling_the_release_of_one_limiter_still_releases_the_others() -> None:
    class Interrupted(Watched):
        async def settle(self, lease: Any, spent: int | None) -> None:
            raise asyncio.CancelledError

    two = Interrupted(max_concurrency=1)
    one = Watched(max_concurrency=1)
    with pytest.raises(asyncio.CancelledError):
        await RateLimit(Listed("x"), limiter=[one, two]).complete("hi")
    assert one.running == 0


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({}, "give one of"),
        ({"limiter": [3]}, "limiter must be a Limiter or a list of them, not int"),
        ({"limiter": []}, "give one of"),
        ({"requests_per_minute": -3}, "requests_per_minute"),
    ],
)
def test_error_names_an_invalid_setting(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        RateLimit(Listed(), **settings)
    twice = Limiter(max_concurrency=1)
    with pytest.raises(ValueError, match="the same Limiter twice"):
        RateLimit(Listed(), limiter=[twice, twice])


def test_description_of_a_rate_limit_shows_its_limits() -> None:
    shared = Limiter(tokens_per_minute=1e5)
    assert (
        describe(RateLimit(Listed(), 60)) == "RateLimit(requests_per_minute=60)\nListed listed:m"
    )
    stacked = describe(RateLimit(Listed(), max_concurrency=4, limiter=shared)).splitlines()[0]
    assert stacked == "RateLimit(limiter1.max_concurrency=4, limiter2.tokens_per_minute=100000.0)"
    assert repr(shared) == "Limiter(tokens_per_minute=100000)"
