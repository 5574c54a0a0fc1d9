"""Test stopping a session at every point and in every way: everything is recorded, and no intent
stays open.
"""

import asyncio
import threading
from typing import Any

import pytest

from dragoman.log import LogRecord, SqliteLog
from dragoman.messages import ToolResult
from dragoman.permission import Policy, Rule
from dragoman.session import Session
from dragoman.tools import tool
from dragoman.validate import build_request, check_request

from ..listed import Listed
from ..waiting import PATIENCE
from .playing import call, check_evidence, of, propose, types

READS = Policy([Rule("allow", side_effect=["none", "read"])])
ran: list[str] = []


@tool(side_effect="read")
async def look(word: str) -> str:
    """Look up a word."""
    await asyncio.sleep(0)
    ran.append(word)
    return "found"


@tool(side_effect="write")
async def note(text: str) -> str:
    """Write a note."""
    await asyncio.sleep(0)
    ran.append(text)
    return "noted"


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def make(log: SqliteLog, **settings: Any) -> Session:
    provider = Listed(
        propose(
            call("look", call_id="1", word="a"), call("look", call_id="2", word="b"), words="Hm."
        ),
        propose(call("note", call_id="1", text="c"), call("look", call_id="2", word="d")),
        "Done.",
        name="p",
    )

    async def yes(proposal: Any, verdict: Any) -> bool:
        await asyncio.sleep(0)
        return True

    return Session(provider, [look, note], READS, log, session_id="s1", approve=yes, **settings)


TOTAL = 40


async def test_uninterrupted_run_writes_as_many_records_as_the_tests_expect(
    log: SqliteLog,
) -> None:
    await make(log).run("Go.")
    assert len(list(log.read("s1"))) == TOTAL
    assert ran == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("at", "outer"),
    [*[(at, False) for at in range(1, TOTAL + 1)], *[(at, True) for at in range(1, TOTAL + 1, 3)]],
)
async def test_session_can_be_stopped_after_each_of_its_records(
    log: SqliteLog, at: int, outer: bool
) -> None:
    running: list[asyncio.Task[Any]] = []

    def stop(record: LogRecord) -> None:
        if record.seq == at:
            if outer:
                running[0].cancel()
            else:
                running.append(asyncio.ensure_future(session.cancel("enough")))

    session = make(log, on_record=stop)
    running.append(asyncio.ensure_future(session.run("Go.")))
    if outer:
        with pytest.raises(asyncio.CancelledError):
            await running[0]
    else:
        assert (await running[0]).outcome in ("cancelled", "completed")
        await running[1]
    records = list(log.read("s1"))
    steps = check_evidence(records)
    assert types(records)[-1] == "session.finished"
    assert types(records).count("session.finished") == 1
    assert log.verify().ok
    executed = sum("tool.started" in chain for chain in steps.values())
    assert len(ran) <= executed
    # The session can be resumed, and it sends a valid conversation.
    provider = Listed("And so on.", name="p")
    again = await Session.resume(provider, [look, note], READS, log, "s1")
    assert again.state.open_intents == []
    before = list(ran)
    if records[-1].data["outcome"] != "completed":
        assert (await again.run("Go on.")).text == "And so on."
        check_request(
            build_request(provider.requests[0].messages, [], None, None, None, model="m")
        )
    assert ran == before
    check_evidence(list(log.read("s1")))


async def test_partial_reply_is_recorded_and_not_sent_back_to_the_model(log: SqliteLog) -> None:
    gate = asyncio.Event()

    def half(request: Any) -> list[Any]:
        events = propose(call("look", word="a"), words="Let me see.")(request)
        return [*events[:-3], gate]  # the stream stops in the middle of the call's arguments

    session = Session(Listed(half, "Done."), [look], READS, log)
    running = asyncio.ensure_future(session.run("Go."))
    while session.state.call is None or not session.provider.running:  # type: ignore[attr-defined]
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert await session.cancel("enough")
    assert (await running).outcome == "cancelled"
    assert session.provider.running == 0  # type: ignore[attr-defined]
    records = list(log.read(session.id))
    assert types(records)[-3:] == ["message.recorded", "llm.call_failed", "session.finished"]
    assert records[-3].payload.in_context is False
    assert records[-3].payload.finish_reason == "cancelled"
    assert records[-2].payload.error_class == "cancelled"
    assert not of(records, "tool_intent.proposed")  # an incomplete call is not an intent
    assert (await session.run("Again.")).text == "Done."


async def test_cancelling_during_an_approval_closes_the_intent(log: SqliteLog) -> None:
    asked = asyncio.Event()

    async def think(proposal: Any, verdict: Any) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    session = Session(Listed(propose(call("note", text="x"))), [note], READS, log, approve=think)
    running = asyncio.ensure_future(session.run("Go."))
    await asked.wait()
    await session.cancel("no more questions")
    await running
    records = list(log.read(session.id))
    [closed] = of(records, "tool_intent.closed")
    assert closed.reason == "no more questions"
    assert ran == []
    check_evidence(records)


async def test_tool_thread_that_cannot_be_stopped_is_reported_as_still_running(
    log: SqliteLog,
) -> None:
    begun = threading.Event()
    end = threading.Event()

    @tool(side_effect="none")
    def stubborn() -> str:
        begun.set()
        end.wait(PATIENCE)
        return "late"

    session = Session(Listed(propose(call("stubborn"))), [stubborn], READS, log)
    running = asyncio.ensure_future(session.run("Go."))
    await asyncio.to_thread(begun.wait, PATIENCE)
    await session.cancel()
    assert (await running).outcome == "cancelled"
    end.set()
    [failed] = of(list(log.read(session.id)), "tool.failed")
    assert failed.kind == "cancelled"
    assert "may still be running" in failed.message
    results = [message for message in session.messages if isinstance(message, ToolResult)]
    assert results[0].is_error


async def test_cancelling_a_session_twice_or_while_idle_is_harmless(log: SqliteLog) -> None:
    gate = asyncio.Event()
    session = Session(Listed([gate]), (), READS, log)
    assert await session.cancel() is False
    running = asyncio.ensure_future(session.run("Go."))
    while session.state.call is None:
        await asyncio.sleep(0)
    both = await asyncio.gather(session.cancel("one"), session.cancel("two"))
    assert both == [True, False]
    assert (await running).detail == "one"
    assert await session.cancel() is False


async def test_task_that_is_cancelled_twice_records_one_cancellation(log: SqliteLog) -> None:
    session = Session(Listed([asyncio.Event()]), (), READS, log)
    running = asyncio.ensure_future(session.run("Go."))
    while session.state.call is None:
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    records = list(log.read(session.id))
    assert types(records).count("session.finished") == 1
    check_evidence(records)
