"""Test that a session which is cancelled during any of its writes loses and invents nothing.

The cancellation arrives while a record is being written, so it takes effect right after that
write. Records that were announced are written all the same, and all accounts agree.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

import dragoman as d
from dragoman.calls import CallCompleted, CallFailed, CallStarted, RoutingSwitched
from dragoman.events import ToolIntent, Usage
from dragoman.log import LogRecord, MemoryLog, MessageRecorded, SessionFinished, read_uses
from dragoman.permission import Decision, Policy, Rule
from dragoman.session import Summarise
from dragoman.session.pending import list_pending
from dragoman.transport import FixtureTransport
from dragoman.wire import SERVER_CODECS, Asked

from ..listed import reply
from .playing import ALL, Answer, call, check_evidence, look, propose

SESSIONS = 20 if os.environ.get("DRAGOMAN_EXHAUSTIVE") else 4  # of each part
PARTS = 100 if os.environ.get("DRAGOMAN_EXHAUSTIVE") else 1
USAGE = Usage(input_tokens=522, output_tokens=7)
MODELS = {"openai": "gpt-5", "anthropic": "claude-sonnet-4-6"}
DOWN = (500, {}, [b'{"error": {"message": "down", "type": "server_error"}}'])
Stack = Callable[[Callable[[str, bool], d.Provider]], d.Provider]


def encode(
    wire: str, answer: Answer, *, breaks: bool = False
) -> tuple[int, dict[str, str], list[bytes]]:
    """Return a streamed reply of a wire whose bytes arrive in one piece.

    A reply that ``breaks`` has all its blocks, but not its end.
    """
    request = d.Request([d.User("x")], stream=True, model="m", request_id="R", check_calls=False)
    encoder = SERVER_CODECS[wire].encoder(Asked(request=request))
    events = answer(request)
    if breaks:
        data = b"".join([encoder.feed(event) for event in events[:-1]])
    else:
        data = b"".join([encoder.feed(event) for event in events]) + encoder.end()
    return 200, {"content-type": "text/event-stream"}, [data]


def retry(model: d.Provider) -> d.Provider:
    return d.Retry(model, backoff=lambda attempt: 0.0)


STACKS: dict[str, Stack] = {
    "bare": lambda model: model("a", False),
    "retry": lambda model: retry(model("a", True)),
    "fallback": lambda model: d.Fallback([model("a", True), model("b", False)]),
    "retry in a fallback": lambda model: d.Fallback(
        [d.Retry(model("a", True), max_retries=0), retry(model("b", True))]
    ),
}


def spend(model: Callable[[str, bool], d.Provider]) -> d.Provider:
    return d.Spend(retry(model("a", True)), usd=1)


class Run:
    """A session over servers whose replies arrive at once, and that is cancelled once."""

    def __init__(self, wire: str, stack: str, usage: Usage, context: Any = None) -> None:
        self.wire = wire
        self.usage = usage
        self.log = MemoryLog()
        self.seen = list[Any]()
        self.context = context
        self.provider = STACKS.get(stack, spend)(self._make_model)
        self.writes = 0
        self._stopping: list[asyncio.Task[Any]] = []

    def _make_model(self, name: str, fails: bool) -> d.Provider:
        look_up = [call("look", call_id=f"c{at}", word="ox") for at in range(2)]
        answers = [
            propose(*look_up, words="Let me look.", usage=self.usage),
            reply("Done, and this is what I have found.", usage=self.usage),
        ]
        if self.context is not None:  # the conversation is longer, and its summary is a reply
            answers = [answers[0], *answers, *answers[1:], *answers[1:]]
        replies = [encode(self.wire, each) for each in answers]
        if fails:  # each reply follows a failure
            replies = [each for answer in replies for each in (DOWN, answer)]
        model = MODELS[self.wire]
        return d.Observe(
            d.connect(
                model, wire=self.wire, base_url="http://127.0.0.1:9/v1", name=name,
                transport=FixtureTransport(*replies), priced_as=f"{self.wire}:{model}",
            ),
            self.seen.append,
        )  # fmt: skip

    async def play(self, at: int, *, by_session: bool, again: bool = False) -> None:
        """Run the session; cancel it while it writes the record number ``at``.

        With ``again``, cancel it in the other way while it writes each later record.
        """

        def watch(record: LogRecord) -> None:
            self.writes = record.seq
            if not at or record.seq < at or (record.seq > at and not again):
                return
            if by_session == (record.seq == at):
                self._stopping.append(asyncio.ensure_future(session.cancel("enough")))
            else:
                task.cancel()

        session = d.Session(
            self.provider, [look], ALL, self.log, session_id="s", on_record=watch,
            context=self.context, config={"max_tokens": 99},
        )  # fmt: skip
        task = asyncio.ensure_future(session.run("Go."))
        await asyncio.wait([task])
        if not task.cancelled():
            self.finish(task)
        for each in self._stopping:
            await each
        await self.provider.close()
        self.spent = session.state.spent

    def finish(self, task: asyncio.Task[Any]) -> None:
        """Raise the error of a session that ended by itself."""
        task.result()


class BrokenRun(Run):
    """A session that fails because a reply breaks off after its calls."""

    def _make_model(self, name: str, fails: bool) -> d.Provider:
        look_up = [call("look", call_id=f"c{at}", word="ox") for at in range(3)]
        model = MODELS[self.wire]
        reply = encode(self.wire, propose(*look_up, usage=self.usage), breaks=True)
        return d.Observe(
            d.connect(
                model, wire=self.wire, base_url="http://127.0.0.1:9/v1", name=name,
                transport=FixtureTransport(reply), priced_as=f"{self.wire}:{model}",
            ),
            self.seen.append,
        )  # fmt: skip

    def finish(self, task: asyncio.Task[Any]) -> None:
        *_, last = self.log.read("s")
        assert isinstance(last.payload, SessionFinished)
        if last.payload.outcome == "failed":
            assert isinstance(task.exception(), d.StreamInterruptedError)
        else:
            assert task.result().outcome == last.payload.outcome == "cancelled"


class WaitingRun(Run):
    """A session that is run step by step, and whose calls wait for decisions from outside.

    It is cancelled once, and continues until it ends.
    """

    def _make_model(self, name: str, fails: bool) -> d.Provider:
        look_up = [call("look", call_id=f"c{at}", word="ox") for at in range(2)]
        first = encode(self.wire, propose(*look_up, words="Let me look.", usage=self.usage))
        last = encode(self.wire, reply("Done, and this is what I have found.", usage=self.usage))
        replies = [each for answer in (first, last) for each in ([DOWN] * fails) + [answer]]
        model = MODELS[self.wire]
        return d.Observe(
            d.connect(
                model, wire=self.wire, base_url="http://127.0.0.1:9/v1", name=name,
                transport=FixtureTransport(*replies, *[last] * 3), priced_as=f"{self.wire}:{model}",
            ),
            self.seen.append,
        )  # fmt: skip

    async def play(self, at: int, *, by_session: bool, again: bool = False) -> None:
        def watch(record: LogRecord) -> None:
            self.writes = record.seq
            if record.seq != at:
                return
            if by_session:
                self._stopping.append(asyncio.ensure_future(session.cancel("enough")))
            else:
                task.cancel()

        session = d.Session(
            self.provider, [look], Policy([Rule("ask")]), self.log, session_id="s",
            on_record=watch, config={"max_tokens": 99}, approve="wait",
        )  # fmt: skip
        goal: str | None = "Go."
        while not session.state.has_answered:
            task = asyncio.ensure_future(session.step(goal))
            goal = None
            await asyncio.wait([task, *self._stopping])
            if not task.cancelled():
                task.result()
            for each in list_pending(self.log, "s", session.state):
                await session.answer(each.intent_id, Decision(True, "ann"))
        if session.state.finished is None:
            await session.step()
        await self.provider.close()
        self.spent = session.state.spent


class RandomRun(Run):
    """A session over servers that answer, fail and break off at random, the same for a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        dice = random.Random(seed)
        wire = dice.choice([*MODELS])
        stack = dice.choice([*STACKS])
        super().__init__(wire, stack, dice.choice([USAGE, USAGE, Usage()]))

    def _make_model(self, name: str, fails: bool) -> d.Provider:
        dice = random.Random(f"{self.seed} {name}")
        replies = []
        for turn in range(dice.randint(1, 4)):
            said = "Let me look. " * dice.randint(0, 3)
            found = [
                call("look", call_id=f"c{turn}{at}", word="ox") for at in range(dice.randint(1, 3))
            ]
            whole = encode(self.wire, propose(*found, words=said, usage=self.usage))
            replies += [_fail(dice, whole) for _ in range(dice.choice([0, 0, 1, 2]))]
            replies.append(whole)
        done = encode(self.wire, reply("Done.", usage=self.usage))
        replies += [_fail(dice, done) for _ in range(dice.choice([0, 0, 1]))]
        replies += [done] * 3
        model = MODELS[self.wire]
        return d.Observe(
            d.connect(
                model, wire=self.wire, base_url="http://127.0.0.1:9/v1", name=name,
                transport=FixtureTransport(*replies), priced_as=f"{self.wire}:{model}",
            ),
            self.seen.append,
        )  # fmt: skip

    def finish(self, task: asyncio.Task[Any]) -> None:
        error = task.exception()
        if error is not None and not isinstance(error, d.ProviderError):
            raise error


def _fail(dice: random.Random, whole: tuple[int, dict[str, str], list[bytes]]) -> Any:
    """Return a failure before a reply, or a reply that breaks off."""
    if dice.random() < 0.5:
        status = dice.choice([429, 500, 503, 529])
        return status, {"retry-after": "0"}, [b'{"error": {"message": "no"}}']
    status, headers, [data] = whole
    return status, headers, [data[: dice.randrange(1, len(data))]]


def add_up(ends: list[Any]) -> tuple[int, Decimal]:
    tokens = [(each.input_tokens or 0) + (each.output_tokens or 0) for each in ends]
    return sum(tokens), sum([each.cost_usd or Decimal(0) for each in ends], Decimal(0))


def check_run(run: Run) -> None:
    records = list(run.log.read("s"))
    check_evidence(records)
    assert records[-1].type == "session.finished"
    calls: list[Any] = []
    open_call: CallStarted | None = None
    unreported = 0
    started = ""
    for record in records:
        payload = record.payload
        if isinstance(payload, CallStarted):
            assert open_call is None, "a start before the end of the call before it"
            open_call = payload
            started = record.id
        elif isinstance(payload, ToolIntent | MessageRecorded) and open_call is not None:
            assert record.parent == started, "an intent or a reply of another call"
        elif isinstance(payload, CallCompleted | CallFailed):
            assert open_call is not None, "an end without a start"
            assert record.parent == started, "an end whose parent is another start"
            assert payload.request_id == open_call.request_id
            assert payload.attempt == open_call.attempt
            calls.append(payload)
            if isinstance(payload, CallCompleted) and payload.input_tokens is None:
                unreported += open_call.estimated_input_tokens or 0  # the budget counts estimates
            open_call = None
    assert open_call is None, "a start without an end"
    served: dict[str, set[str]] = {}
    for end in calls:
        served.setdefault(end.request_id, set()).add(end.provider)
    switched = [each.payload for each in records if isinstance(each.payload, RoutingSwitched)]
    changes = sum([len(names) - 1 for names in served.values()])
    # A random run may pass over a candidate that the circuit breaker considers unavailable.
    assert len(switched) == changes or (isinstance(run, RandomRun) and len(switched) > changes)
    seen = [each for each in run.seen if isinstance(each, CallCompleted | CallFailed)]
    # the log also has a call that was cancelled before its request left
    unsent = Counter(map(_facts, calls)) - Counter(map(_facts, seen))
    assert not Counter(map(_facts, seen)) - Counter(map(_facts, calls))
    assert unsent.total() <= 1
    assert all(facts[2] == Usage() for facts in unsent)
    tokens, cost = add_up(calls)
    assert tokens + unreported == run.spent.tokens
    assert cost == run.spent.cost_usd
    assert cost == sum([use.old or 0 for use in read_uses(run.log)])
    if isinstance(run.provider, d.Spend):
        assert run.provider.wallet.spent_usd == cost
        assert run.provider.wallet.reserved_usd == 0


def _facts(end: CallCompleted | CallFailed) -> tuple[Any, ...]:
    return end.provider, end.request_id, end.usage, end.cost_usd


@pytest.mark.parametrize("by_session", [True, False])
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize(
    ("wire", "usage"), [("openai", USAGE), ("anthropic", USAGE), ("openai", Usage())]
)
async def test_session_can_be_cancelled_at_each_of_its_writes(
    wire: str, usage: Usage, stack: str, by_session: bool, count: Callable[[str, int], None]
) -> None:
    await _cancel_everywhere(lambda: Run(wire, stack, usage), by_session, count)


@pytest.mark.parametrize("by_session", [True, False])
async def test_amount_of_a_session_that_is_cancelled_is_what_its_log_says(
    by_session: bool, count: Callable[[str, int], None]
) -> None:
    await _cancel_everywhere(lambda: Run("anthropic", "spend", USAGE), by_session, count)


@pytest.mark.parametrize("by_session", [True, False])
@pytest.mark.parametrize("stack", ["bare", "retry", "fallback"])
async def test_session_can_be_cancelled_at_each_write_of_a_summary(
    stack: str, by_session: bool, count: Callable[[str, int], None]
) -> None:
    policy = Summarise(window=100, keep=1)
    await _cancel_everywhere(lambda: Run("openai", stack, USAGE, policy), by_session, count)


@pytest.mark.parametrize("by_session", [True, False])
async def test_session_can_be_cancelled_again_at_each_of_its_writes(
    by_session: bool, count: Callable[[str, int], None]
) -> None:
    make = lambda: Run("openai", "retry", USAGE)
    await _cancel_everywhere(make, by_session, count, again=True)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("by_session", [True, False])
async def test_failing_session_can_be_cancelled_at_each_of_its_writes(
    by_session: bool, again: bool, count: Callable[[str, int], None]
) -> None:
    make = lambda: BrokenRun("anthropic", "bare", USAGE)
    await _cancel_everywhere(make, by_session, count, again=again)


@pytest.mark.parametrize("by_session", [True, False])
@pytest.mark.parametrize("stack", ["fallback", "spend"])
async def test_waiting_session_can_be_cancelled_at_each_of_its_writes(
    stack: str, by_session: bool, count: Callable[[str, int], None]
) -> None:
    await _cancel_everywhere(lambda: WaitingRun("openai", stack, USAGE), by_session, count)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
async def test_random_session_can_be_cancelled_at_each_of_its_writes(
    part: int, count: Callable[[str, int], None]
) -> None:
    for seed in range(part * SESSIONS, (part + 1) * SESSIONS):
        make = lambda seed=seed: RandomRun(seed)
        try:
            await _cancel_everywhere(make, bool(seed % 2), count, again=bool(seed % 4 // 2))
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


async def _cancel_everywhere(
    make: Callable[[], Run],
    by_session: bool,
    count: Callable[[str, int], None],
    *,
    again: bool = False,
) -> None:
    whole = make()
    await whole.play(0, by_session=by_session)
    check_run(whole)
    for at in range(1, whole.writes + 1):
        run = make()
        await run.play(at, by_session=by_session, again=again)
        try:
            check_run(run)
        except AssertionError as error:
            error.add_note(f"cancelled at record {at}")
            raise
    if whole.context is not None:
        assert any(each.type == "context.summarised" for each in whole.log.read("s"))
    count("sessions cancelled during a write", whole.writes)
