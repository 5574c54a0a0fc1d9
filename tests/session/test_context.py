"""Test long conversations: a context policy shortens what is sent, and the log keeps everything
and records each shortening.
"""

import json
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import (
    Budget,
    Capabilities,
    ContextOverflowError,
    DropOldToolResults,
    Fallback,
    KeepAll,
    OverloadedError,
    Request,
    RuntimeConfig,
    Session,
    Summarise,
    Usage,
    Window,
)
from dragoman.log import LeftOut, MemoryLog, SqliteLog
from dragoman.messages import Assistant, Message, System, ToolResult, User
from dragoman.replay import describe, to_steps
from dragoman.session import ContextPolicy, ContextView, Part, Projection, reduce_records
from dragoman.session.state import State
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule
from dragoman.tokens import estimate_input_tokens
from dragoman.tools import tool
from dragoman.validate import build_request, check_request
from dragoman.wire import CODECS

from ..listed import Listed, reply
from .playing import ALL, call, check_evidence, of, propose, take_turn, types

EXHAUSTIVE = bool(os.environ.get("DRAGOMAN_EXHAUSTIVE"))
TURNS = 40 if EXHAUSTIVE else 20
WINDOW = 400 * TURNS
# The number of turns in a tenth of the long run; work is counted for each tenth.
TENTH = 100 if EXHAUSTIVE else 15


@tool(side_effect="read")
def read_page(number: int) -> str:
    """Read a page of a book."""
    return f"page {number}: " + "the quick brown fox jumps over the lazy dog " * 90


def reader(turns: int = TURNS, **settings: Any) -> ScriptedProvider:
    """Return a model that reads one page per turn and then answers. It counts its own calls,
    because a context policy may omit messages.
    """
    asked = 0

    def answer(request: Request) -> Answer:
        nonlocal asked
        asked += 1
        if asked > turns:
            return Answer("All read.")
        return Answer(f"Page {asked}.", tool_calls=[Call("read_page", {"number": asked})])

    window = settings.pop("window", WINDOW)
    return ScriptedProvider(
        ScriptRule(answer), capabilities={"max_context_tokens": window}, **settings
    )


def short() -> ScriptedProvider:
    return reader(12, window=4_000)


def check_requests(requests: Sequence[Request], window: int) -> None:
    for request in requests:
        check_request(build_request(request.messages, [], None, None, None, model="m"))
        assert estimate_input_tokens(request.messages, request.tools) <= window


POLICIES: dict[str, Any] = {
    "results": DropOldToolResults(),
    "window": Window(),
    "both": [DropOldToolResults(), Window()],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", POLICIES)
async def test_long_conversation_fits_a_small_context_window(name: str) -> None:
    log = MemoryLog()
    provider = reader()
    session = Session(provider, [read_page], ALL, log, context=POLICIES[name], system="Read.")
    outcome = await session.run("Read all pages.")
    assert outcome.outcome == "completed"
    assert outcome.text == "All read."
    assert outcome.spent.turns == TURNS + 1
    records = list(log.read(session.id))
    check_evidence(records)
    check_requests(provider.requests, WINDOW)
    projected = of(records, "context.projected")
    assert projected
    assert {each.reason for each in projected} == {"share"}
    assert all(
        each.tokens_after < each.tokens_before <= WINDOW == each.window for each in projected
    )
    assert all(
        each.tokens_before > 0.8 * WINDOW for each in projected if each.rule == projected[0].rule
    )
    # The log contains every page without omissions.
    pages = [
        each.message.content
        for each in of(records, "message.recorded")
        if isinstance(each.message, ToolResult)
    ]
    # The function of a tool has no public accessor.
    assert pages == [read_page._function(number) for number in range(1, TURNS + 1)]  # noqa: SLF001
    assert [type(message) for message in provider.requests[-1].messages[:2]] == [System, User]
    assert provider.requests[-1].messages[1].text == "Read all pages."  # type: ignore[union-attr]


def encode(wire: str, request: Request) -> tuple[str, Any]:
    """Return the encoded messages of a request as text, and all other encoded fields."""
    codec = CODECS[wire].connect("m", "http://127.0.0.1:9/v1", None, Capabilities())
    body = json.loads(codec.encode(replace(request, config=RuntimeConfig(max_tokens=9))).http.body)
    turns = next(body.pop(key) for key in ("messages", "contents", "input") if key in body)
    return json.dumps(turns).removesuffix("]"), body


@pytest.mark.parametrize(("name", "reply"), [("both", None), ("both", 2_000), ("window", 2_000)])
async def test_sent_messages_keep_the_same_prefix_between_shortenings(
    name: str, reply: int | None
) -> None:
    """A prompt cache reuses only an unchanged prefix, so shortening the context must make space
    for several turns at once.
    """

    @tool(side_effect="read")
    async def look(number: int) -> str:
        """Describe a place."""
        return f"{number}: " + "the quick brown fox " * 30

    calls = [propose(call("look", call_id=f"c{at}", number=at)) for at in range(TURNS)]
    log = MemoryLog()
    provider = Listed(*calls, "Done.", capabilities={"max_context_tokens": 4_000})
    config = RuntimeConfig(max_tokens=reply)
    session = Session(
        provider, [look], ALL, log, context=POLICIES[name], system="Look.", config=config
    )
    await session.run("Look everywhere.")
    changed = [
        later
        for early, later in pairwise(provider.requests)
        if later.messages[: len(early.messages)] != early.messages
    ]
    projected = {
        record.turn for record in log.read(session.id) if record.type == "context.projected"
    }
    assert len(changed) == len(projected) <= TURNS / 4
    for wire in sorted(CODECS) if reply is None else ():
        sent = [encode(wire, request) for request in provider.requests]
        assert all(rest == sent[0][1] for _, rest in sent)
        moved = [later for (early, _), (later, _) in pairwise(sent) if not later.startswith(early)]
        assert len(moved) == len(projected)


async def test_long_task_overflows_the_context_window_without_a_context_policy() -> None:
    for context in (None, KeepAll()):
        session = Session(short(), [read_page], ALL, MemoryLog(), context=context)
        with pytest.raises(ContextOverflowError):
            await session.run("Read all pages.")


async def test_placeholder_for_an_omitted_result_explains_how_to_read_it_again() -> None:
    provider = short()
    await Session(provider, [read_page], ALL, MemoryLog(), context=DropOldToolResults()).run(
        "Read."
    )
    first = next(m for m in provider.requests[-1].messages if isinstance(m, ToolResult))
    assert (
        first.content
        == '[Left out to save space: the result of read_page {"number":1}, 3968 characters; '
        "call read_page again with the same input to read it again.]"
    )


async def test_placeholder_for_an_omitted_write_does_not_suggest_repeating_it() -> None:
    @tool(side_effect="write")
    def pay(number: int) -> str:
        """Pay an invoice."""
        return "receipt " * 600

    answers = [propose(call("pay", call_id=f"c{at}", number=at)) for at in range(6)]
    provider = Listed(*answers, "Done.", capabilities={"max_context_tokens": 4_000})
    await Session(provider, [pay], ALL, MemoryLog(), context=DropOldToolResults(keep=1)).run(
        "Pay."
    )
    first = next(m for m in provider.requests[-1].messages if isinstance(m, ToolResult))
    assert "of this session's log holds it" in first.text
    assert "again" not in first.text


async def test_replay_shows_sent_and_omitted_messages() -> None:
    log = MemoryLog()
    session = Session(short(), [read_page], ALL, log, context=DropOldToolResults())
    await session.run("Read all pages.")
    records = list(log.read(session.id))
    [first, *_] = [record for record in records if record.type == "context.projected"]
    left = len(of(records, "context.projected")[0].left_out)
    assert f"context DropOldToolResults: {left} messages left out" in describe(first)
    assert not [step.notes for step in to_steps(records) if step.notes]
    # The state, and therefore what a resumed session sends, is computed from the records.
    state = reduce_records(records)
    assert state.project("sim") == session.messages
    assert len(state.messages) == 2 + 2 * 12


# --- context overflow reported by the model ----------------------------------------------------


class Narrow(Listed):
    """Act as a model that rejects requests beyond its context window, although its capabilities do
    not declare the window.
    """

    def __init__(self, window: int, *answers: Any) -> None:
        super().__init__(*answers)
        self.window = window

    def _next(self, request: Request) -> Any:
        if estimate_input_tokens(request.messages, request.tools) > self.window:
            return [ContextOverflowError("too long", status=400)]
        return super()._next(request)


def pages(count: int) -> list[Any]:
    return [propose(call("read_page", call_id=f"c{at}", number=at)) for at in range(count)]


async def test_context_is_shortened_and_the_call_repeated_once_after_an_overflow(
    log: SqliteLog,
) -> None:
    provider = Narrow(4_000, *pages(12), "Done.")
    session = Session(provider, [read_page], ALL, log, context=[DropOldToolResults(), Window()])
    assert (await session.run("Read.")).text == "Done."
    records = list(log.read(session.id))
    at = types(records).index("context.projected")
    assert types(records)[at - 3 : at + 2] == [
        "turn.started", "llm.call_started", "llm.call_failed", "context.projected",
        "llm.call_started",
    ]  # fmt: skip
    assert of(records, "context.projected")[0].reason == "overflow"
    assert of(records, "llm.call_failed")[0].error_class == "context_overflow"
    assert len(of(records, "turn.started")) == 13
    check_evidence(records)


async def test_a_second_context_overflow_in_the_same_turn_is_raised(log: SqliteLog) -> None:
    provider = Narrow(10, "Done.")
    session = Session(provider, [read_page], ALL, log, context=Window())
    with pytest.raises(ContextOverflowError):
        await session.run("word " * 100)
    # There is nothing to omit from the history, so the call is not repeated.
    assert len(provider.requests) == 1
    provider = Narrow(10, *pages(2), "Done.")
    session = Session(provider, [read_page], ALL, log, context=Window())
    provider.window = 10_000
    await session.step("Read.")
    provider.window = 10
    with pytest.raises(ContextOverflowError):
        await session.run()
    assert len(provider.requests) == 3


async def test_result_too_long_for_the_context_window_is_truncated(log: SqliteLog) -> None:
    @tool(side_effect="read", output_limit=200_000)
    def read_book() -> str:
        """Read the whole book."""
        return "many words " * 10_000

    provider = Listed(
        propose(call("read_book"), call("read_book", call_id="2")),
        "Done.",
        capabilities={"max_context_tokens": 8_000},
    )
    session = Session(provider, [read_book], ALL, log, context=DropOldToolResults())
    assert (await session.run("Read.")).text == "Done."
    check_requests(provider.requests, 8_000)
    result = provider.requests[1].messages[-1]
    assert "It was cut to save space" in result.text  # type: ignore[union-attr]


# --- summaries of earlier messages -------------------------------------------------------------


def cheap(text: str = "Pages 1 to 9 are about a fox.", **facts: Any) -> Listed:
    return Listed(reply(text, usage=Usage(100, 20), **facts), name="cheap", repeat=True)


async def test_a_cheaper_model_writes_the_summary(log: SqliteLog) -> None:
    provider = short()
    writer = cheap()
    session = Session(provider, [read_page], ALL, log, context=Summarise(writer, keep=1))
    outcome = await session.run("Read all pages.")
    assert outcome.outcome == "completed"
    records = list(log.read(session.id))
    check_evidence(records)
    check_requests(provider.requests, 4_000)
    summaries = of(records, "context.summarised")
    projected = of(records, "context.projected")
    assert len(summaries) == len(projected) == len(writer.requests) > 1
    for summary, projection in zip(summaries, projected, strict=True):
        numbers = [each.seq for each in projection.left_out]
        assert summary.first == min(numbers)
        assert summary.last == max(numbers)
        assert summary.messages == len(numbers)
        assert summary.text in projection.note
        assert next(r.payload for r in records if r.id == projection.summary) == summary
    started = [each for each in of(records, "llm.call_started") if each.is_worker]
    assert {each.provider for each in started} == {"cheap"}
    asked = writer.requests[0]
    assert "CALLS read_page" in asked.messages[1].text  # type: ignore[union-attr]
    assert "Pages 1 to 9 are about a fox." in provider.requests[-1].messages[1].text  # type: ignore[union-attr]
    calls = {each.request_id for each in started}
    completed = [each for each in of(records, "llm.call_completed") if each.request_id in calls]
    assert [each.input_tokens for each in completed] == [100] * len(summaries)


async def test_the_sessions_own_model_writes_the_summary_by_default(log: SqliteLog) -> None:
    def answer(request: Request) -> Answer | str:
        if not request.tools:
            return "A summary."
        return script.answer(request)

    script = short().rules[0]
    provider = ScriptedProvider(ScriptRule(answer), capabilities={"max_context_tokens": 4_000})
    session = Session(provider, [read_page], ALL, log, context=Summarise(keep=1))
    assert (await session.run("Read all pages.")).outcome == "completed"
    assert of(list(log.read(session.id)), "context.summarised")[0].provider == "sim"


async def test_old_turns_are_omitted_if_no_summary_can_be_written(log: SqliteLog) -> None:
    writer = Listed(OverloadedError("busy"), repeat=True, name="cheap")
    session = Session(short(), [read_page], ALL, log, context=Summarise(writer, keep=1))
    assert (await session.run("Read all pages.")).outcome == "completed"
    records = list(log.read(session.id))
    assert not of(records, "context.summarised")
    assert of(records, "context.projected")
    assert {each.provider for each in of(records, "llm.call_failed")} == {"cheap"}
    check_evidence(records)


async def test_a_summary_counts_towards_the_budget(log: SqliteLog) -> None:
    writer = cheap()
    free = Session(short(), [read_page], ALL, log, context=Summarise(writer, keep=1))
    spent = (await free.run("Read all pages.")).spent.tokens
    counted = sum(
        (each.input_tokens or 0) + (each.output_tokens or 0)
        for each in of(list(log.read(free.id)), "llm.call_completed")
    )
    assert spent == counted
    given = {"context": Summarise(writer, keep=1), "budget": Budget(tokens=1_000)}
    bounded: Any = Session(short(), [read_page], ALL, log, **given)
    assert (await bounded.run("Read.")).outcome == "exhausted"


# --- custom context policies, and limits -------------------------------------------------------


class DropPairs(ContextPolicy, frozen=True):
    """Omit every finished turn from the context, without a placeholder."""

    async def project(self, view: ContextView) -> Projection | None:
        gone: list[Part] = [part for part in view.parts if not part.is_goal and not part.unseen]
        last = [part.seq for part in gone if isinstance(part.message, Assistant)][-1:]
        kept = [part for part in gone if part.seq not in last]
        return (
            Projection(tuple([LeftOut(part.seq, part.tokens) for part in kept])) if kept else None
        )


async def test_custom_context_policy_is_used(log: SqliteLog) -> None:
    provider = short()
    session = Session(provider, [read_page], ALL, log, context=DropPairs(share=0.6, target=0.1))
    assert (await session.run("Read all pages.")).outcome == "completed"
    check_requests(provider.requests, 2_800)
    assert of(list(log.read(session.id)), "context.projected")[0].rule == "DropPairs"


@pytest.mark.parametrize(
    "wrong",
    [{"share": 0.0}, {"share": 1.5}, {"share": 0.4, "target": 0.5}, {"window": 0}, {"target": 0}],
)
def test_invalid_limits_of_a_context_policy_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="context"):
        Window(**wrong)


async def test_context_policy_reserves_space_for_the_reply(log: SqliteLog) -> None:
    provider = short()
    config = RuntimeConfig(max_tokens=1_500)
    session = Session(provider, [read_page], ALL, log, context=DropOldToolResults(), config=config)
    assert (await session.run("Read all pages.")).outcome == "completed"
    assert (
        max(estimate_input_tokens(each.messages, each.tools) for each in provider.requests)
        <= 2_500
    )


async def test_goals_are_never_omitted_from_the_context(log: SqliteLog) -> None:
    provider = reader(30, window=4_000)
    session = Session(provider, [read_page], ALL, log, context=Window())
    for number, name in enumerate(("First", "Second", "Third"), 1):
        session.budget = Budget(steps=5 * number)
        await session.run(f"{name} goal.")
    said = [m.text for m in provider.requests[-1].messages if isinstance(m, User)]
    assert said[0] == "First goal."
    assert "Third goal." in said
    check_requests(provider.requests, 4_000)


@pytest.mark.parametrize("make", [Session.resume, Session.fork])
async def test_resumed_or_forked_session_sends_the_same_messages(make: Any, tmp_path: Any) -> None:
    place = tmp_path / "log.db"
    settings = {"context": DropOldToolResults()}
    with SqliteLog(place) as log:
        session = Session(short(), [read_page], ALL, log, budget=Budget(steps=10), **settings)
        await session.run("Read all pages.")
        before: list[Message] = session.messages
    with SqliteLog(place) as log:
        again = await make(short(), [read_page], ALL, log, session.id, **settings)
        assert again.messages == before
        assert any("Left out" in m.text for m in before if isinstance(m, ToolResult))


# --- the work per turn -------------------------------------------------------------------------


class CountedLog(MemoryLog):
    """Count the records that are read from a log and written to it."""

    reads = 0
    appends = 0

    def read(self, session: str, after: int = 0) -> Any:
        for record in super().read(session, after):
            self.reads += 1
            yield record

    async def append(self, *arguments: Any, **facts: Any) -> Any:
        self.appends += 1
        return await super().append(*arguments, **facts)


@pytest.mark.exhaustive
async def test_work_per_turn_does_not_grow_with_the_length_of_a_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In each tenth of a long run, count the records read and written, the calls that rename ids
    in messages, and the token estimates.
    """
    work = {"renamed": 0, "estimated": 0}
    # Wrap private methods to count their calls.
    rename = State._rename  # noqa: SLF001
    estimate = Listed.estimate_input_tokens

    def count_rename(self: State, *arguments: Any) -> Any:
        work["renamed"] += 1
        return rename(self, *arguments)

    def count_estimate(*arguments: Any, **facts: Any) -> Any:
        work["estimated"] += 1
        return estimate(*arguments, **facts)

    monkeypatch.setattr(State, "_rename", count_rename)
    monkeypatch.setattr(Listed, "estimate_input_tokens", count_estimate)

    @tool(side_effect="read")
    async def look(number: int) -> str:
        """Describe a place."""
        return f"{number}: " + "word " * 20

    def answer(request: Request) -> Any:
        number = len(provider.requests)
        provider.requests[:-1] = [None] * (number - 1)  # type: ignore[list-item]
        return propose(call("look", call_id=f"c{number}", number=number))(request)

    provider = Listed(answer, repeat=True, capabilities={"max_context_tokens": 1_500})
    log = CountedLog()
    session = Session(provider, [look], ALL, log, context=[DropOldToolResults(), Window()])
    costs: list[tuple[int, int, int, int]] = []
    await take_turn(session, "Look around.")
    for _ in range(10):
        before = log.reads, log.appends, work["renamed"], work["estimated"]
        for _ in range(TENTH):
            await take_turn(session)
        after = log.reads, log.appends, work["renamed"], work["estimated"]
        costs.append(tuple([new - old for new, old in zip(after, before, strict=True)]))  # type: ignore[arg-type]
    assert session.state.spent.turns == 10 * TENTH + 1
    reads, appends, renamed, estimated = zip(*costs, strict=True)
    assert max(reads) == 0
    assert max(appends) <= min(appends) * 1.1
    assert max(renamed[1:]) <= min(renamed[1:]) * 1.3
    assert max(estimated[1:]) <= min(estimated[1:]) * 1.5
    # In each turn, every message that is sent is handled once, or twice if the context is
    # shortened.
    assert renamed[-1] < TENTH * 120


async def test_group_has_the_context_window_of_its_smallest_candidate() -> None:
    log = MemoryLog()
    first = short()
    second = reader(12, window=200_000, name="second")
    group = Fallback([first, second])
    session = Session(group, [read_page], ALL, log, context=Window(), system="Read.")
    outcome = await session.run("Read all pages.")
    assert outcome.outcome == "completed"
    assert len(second.requests) == 0
    projected = of(list(log.read(session.id)), "context.projected")
    assert {(each.reason, each.window) for each in projected} == {("share", 4_000)}
    long = Session(ScriptedProvider("Yes."), log=log)
    await long.run("word " * 20_000)
    assert (await long.swap(group)).target.startswith("second:")
