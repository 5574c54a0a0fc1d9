"""Test long sessions: resumed at a record, forked, moved to another log, given more goals, paused."""

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman import Assistant, RuntimeConfig, Session, ToolResult, User
from dragoman.events import Usage
from dragoman.log import EventLog, ExportedLog, MemoryLog, SqliteLog, read_uses
from dragoman.messages import Message
from dragoman.replay import ReplayProvider, describe, to_steps
from dragoman.session import SessionError, reduce_records
from dragoman.validate import build_request, check_request

from ..listed import Listed, reply
from .playing import (
    ALL,
    anthropic_reply,
    call,
    check_evidence,
    note,
    of,
    over_wire,
    propose,
    ran,
    types,
)  # fmt: skip


def script() -> Listed:
    return Listed(
        propose(call("note", call_id="1", text="a"), words="First."),
        propose(call("note", call_id="1", text="b"), call("note", call_id="2", text="c")),
        "Done.",
        name="p",
    )


async def record(log: EventLog, **settings: Any) -> list[Any]:
    await Session(script(), [note], ALL, log, session_id="s1", system="Be brief.", **settings).run(
        "Go."
    )
    return list(log.read("s1"))


def check_sendable(messages: list[Message]) -> None:
    check_request(build_request([*messages, User("x")], [], None, None, None, model="m"))


# --- resuming a session at a record ------------------------------------------------------------


async def test_session_can_be_resumed_at_each_of_its_records() -> None:
    length = len(await record(MemoryLog()))
    for at in range(1, length + 1):
        log = MemoryLog()
        before = await record(log)
        done = list(ran)
        session = await Session.resume(Listed("Other.", name="p"), [note], ALL, log, "s1", at=at)
        outcome = await session.run("Do something else.")
        assert outcome.outcome == "completed"
        assert outcome.text == "Other."
        records = list(log.read("s1"))
        assert records[:length] == before  # the earlier records are unchanged
        assert ran == done  # no tool runs a second time
        resumed = of(records, "session.resumed")[0]
        assert resumed.at == at
        check_evidence(records)
        assert not [step.notes for step in to_steps(records) if step.notes]
        [sent] = session.provider.requests  # type: ignore[attr-defined]
        check_sendable(list(sent.messages))
        kept = reduce_records(before[:at]).messages
        assert [each.message for each in session.state.messages[: len(kept)]] == [
            each.message for each in kept
        ]
        assert reduce_records(records).messages == session.state.messages
        ran.clear()


async def test_call_that_ran_after_the_resumed_record_keeps_its_result() -> None:
    log = MemoryLog()
    records = await record(log)
    said = [each for each in records if each.type == "message.recorded"]
    at = next(each.seq for each in said if "First" in str(each.data))
    session = await Session.resume(Listed("Other.", name="p"), [note], ALL, log, "s1", at=at)
    await session.run()
    result = session.provider.requests[0].messages[-1]  # type: ignore[attr-defined]
    assert isinstance(result, ToolResult)
    assert result.content == "noted"
    resumed = next(each for each in log.read("s1") if each.type == "session.resumed")
    assert f"going back to record {at}" in describe(resumed)


async def test_resuming_or_forking_at_an_unknown_record_is_rejected() -> None:
    log = MemoryLog()
    length = len(await record(log))
    for at in (0, length + 1):
        with pytest.raises(SessionError, match=f"has no record {at}"):
            await Session.resume(Listed(), [note], ALL, log, "s1", at=at)
    with pytest.raises(SessionError, match="has no record"):
        await Session.fork(Listed(), [note], ALL, log, "s1", at=length + 1)
    with pytest.raises(SessionError, match="already"):
        await Session.fork(Listed(), [note], ALL, log, "s1", new_id="s1")


async def test_session_can_be_resumed_twice_at_the_same_record() -> None:
    log = MemoryLog()
    await record(log)
    for at, goal in ((3, "Second."), (3, "Third."), (len(list(log.read("s1"))), "Fourth.")):
        session = await Session.resume(Listed(f"{goal}!", name="p"), [note], ALL, log, "s1", at=at)
        await session.run(goal)
    said = [each.message.text for each in session.state.messages if isinstance(each.message, User)]
    assert said == ["Go.", "Fourth."]
    assert reduce_records(log.read("s1")).messages == session.state.messages


# --- forks of a session ------------------------------------------------------------------------


async def test_session_can_be_forked_after_each_of_its_records() -> None:
    log = MemoryLog()
    before = await record(log)
    done = list(ran)
    for at in range(1, len(before) + 1):
        session = await Session.fork(
            Listed("Other.", name="p"), [note], ALL, log, "s1", at=at, new_id=f"f{at}"
        )
        outcome = await session.run("Do something else.")
        assert outcome.outcome == "completed"
        assert outcome.text == "Other."
        assert outcome.spent.turns == 1
        records = list(log.read(f"f{at}"))
        place = of(records, "session.started")[0].forked_from
        assert place.session == "s1"
        assert place.seq == at
        assert place.hash == before[at - 1].hash
        assert f"forked from s1 after record {at}" in describe(records[0])
        check_evidence(records)
        [sent] = session.provider.requests  # type: ignore[attr-defined]
        check_sendable(list(sent.messages))
        kept = [each.message for each in reduce_records(before[:at]).messages]
        assert [each.message for each in session.state.messages[: len(kept)]] == kept
        # The calls of the parent session are not counted again.
        assert len(list(read_uses(log, f"f{at}"))) == 1
    assert list(log.read("s1")) == before
    assert ran == done
    assert log.verify().ok


async def test_forked_session_reports_which_calls_had_run() -> None:
    log = MemoryLog()
    records = await record(log)
    seqs = {
        kind: [each.seq for each in records if each.type == kind] for kind in set(types(records))
    }
    texts: list[str] = []
    for at in (seqs["llm.call_completed"][0], seqs["tool.started"][0], seqs["tool.observed"][0]):
        session = await Session.fork(Listed("Other.", name="p"), [note], ALL, log, "s1", at=at)
        texts.append(session.messages[-1].content)  # type: ignore[arg-type]
    assert texts[0].startswith("Not run: the session was forked")
    assert texts[1].startswith("Interrupted, and what it did is not known")
    assert texts[2] == "noted"


async def test_exported_session_can_be_imported_and_resumed_in_another_log(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "one.db") as log:
        await record(log)
        await (
            await Session.fork(Listed("Hm.", name="p"), [note], ALL, log, "s1", at=9, new_id="f")
        ).run("Else.")
        assert log.export(tmp_path / "f.jsonl", "f") == len(list(log.read("f")))
    with SqliteLog(tmp_path / "two.db") as other:
        other.restore(ExportedLog(tmp_path / "f.jsonl"), "f")
        assert other.verify().ok
        session = await Session.resume(Listed("Again.", name="p"), [note], ALL, other, "f")
        assert (await session.run("And now?")).text == "Again."
        check_evidence(list(other.read("f")))


# --- follow-up goals ---------------------------------------------------------------------------


async def test_follow_up_goal_is_handled_in_the_same_run() -> None:
    log = MemoryLog()
    session = Session(Listed("One.", "Two.", "Three."), [note], ALL, log)
    session.follow_up("Second.")
    session.follow_up(User("Third."))
    outcome = await session.run("First.")
    assert outcome.text == "Three."
    assert outcome.spent.turns == 3
    records = list(log.read(session.id))
    assert types(records).count("session.finished") == 1
    said = [each for each in records if each.type == "message.recorded" and each.actor == "user"]
    goals = [each.data["message"]["content"] for each in said]
    assert goals == ["First.", "Second.", "Third."]
    check_evidence(records)


async def test_follow_up_to_an_idle_session_becomes_its_next_goal() -> None:
    session = Session(Listed("One.", "Two."), [note], ALL, MemoryLog())
    await session.run("First.")
    session.follow_up("Second.")
    assert (await session.run()).text == "Two."


async def test_goal_added_during_a_run_is_sent_after_the_answer() -> None:
    log = MemoryLog()
    provider = Listed(propose(call("note", text="a")), "One.", "Two.")
    session = Session(
        provider, [note], ALL, log, on_record=lambda each: each.type == "tool.observed" and add()
    )

    def add() -> None:
        session.follow_up("Second.")

    assert (await session.run("First.")).text == "Two."
    said = [type(each) for each in provider.requests[-1].messages]
    assert said == [User, Assistant, ToolResult, Assistant, User]


# --- turns that the server paused --------------------------------------------------------------

PAUSED = (200, dict[str, str](), anthropic_reply("Searching.", "pause_turn"))
DONE = (200, dict[str, str](), anthropic_reply("Found."))
CONFIG = RuntimeConfig(max_tokens=9)


async def test_paused_turn_is_continued_with_the_unchanged_reply() -> None:
    provider = over_wire(PAUSED, PAUSED, DONE)
    log = MemoryLog()
    session = Session(provider, [note], ALL, log, config=CONFIG, session_id="s1")
    outcome = await session.run("Search.")
    assert outcome.outcome == "completed"
    assert outcome.text == "Found."
    assert outcome.spent.turns == 3
    transport: Any = provider._transport  # noqa: SLF001 - it has the bytes that were sent
    sent = json.loads(transport.requests[1].body)["messages"]
    assert [each["role"] for each in sent] == ["user", "assistant"]
    replies = [
        each
        for each in of(list(log.read("s1")), "message.recorded")
        if isinstance(each.message, Assistant)
    ]
    assert [each.paused for each in replies] == [True, True, False]
    again = Session(ReplayProvider(log, "s1"), [note], ALL, log, config=CONFIG)
    assert (await again.run("Search.")).text == "Found."


async def test_another_model_can_continue_a_paused_turn() -> None:
    log = MemoryLog()
    session = Session(over_wire(PAUSED), [note], ALL, log, config=CONFIG, session_id="s1")
    step = await session.step("Search.")
    assert step.outcome is None
    other = Listed(reply("Found.", usage=Usage(1, 1)), name="other")
    again = await Session.resume(other, [note], ALL, log, "s1")
    assert (await again.run()).text == "Found."
    assert other.requests[0].messages[-1].text == "Continue."  # type: ignore[union-attr]
    check_evidence(list(log.read("s1")))
