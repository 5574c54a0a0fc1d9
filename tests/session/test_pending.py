"""Test sessions that wait: for a decision about a call, or for the result of one that runs elsewhere."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.log import EventLog, MemoryLog, SqliteLog
from dragoman.messages import Tool, ToolResult
from dragoman.permission import Decision, Policy, Rule
from dragoman.session import (
    Outcome,
    RemoteApprover,
    Session,
    SessionError,
    answer,
    answer_question,
    find_questions,
    observe,
    reduce_records,
)
from dragoman.tools import Observation, tool

from ..listed import Listed
from .playing import ALL, call, check_evidence, look, note, of, propose, ran, types, until_asked

ASK = Policy([Rule("allow", side_effect=["none", "read"])])
YES = Decision(True, "ann")


@tool(side_effect="write")
async def pay(amount: int) -> str:
    """Pay an amount."""
    ran.append(amount)
    return f"paid {amount}"


@tool(side_effect="network", external=True)
async def ship(parcel: str) -> str:
    """Ship a parcel."""
    raise AssertionError("another service ships it")


TOOLS = [look, note, pay, ship]


def script(*replies: Any) -> Listed:
    return Listed(*replies, "Done.", name="p")


def make(log: EventLog, *replies: Any, **settings: Any) -> Session:
    settings.setdefault("approve", "wait")
    return Session(
        script(*replies), TOOLS, settings.pop("policy", ASK), log, session_id="s1", **settings
    )


async def go_on(log: EventLog, *replies: Any, **settings: Any) -> Outcome:
    """Continue the session from its log, as another process would."""
    settings.setdefault("approve", "wait")
    policy = settings.pop("policy", ASK)
    session = await Session.resume(script(*replies), TOOLS, policy, log, "s1", **settings)
    return await session.run()


def results(log: EventLog) -> list[str]:
    messages = reduce_records(log.read("s1")).messages
    return [each.message.text for each in messages if isinstance(each.message, ToolResult)]


async def test_run_ends_waiting_and_continues_after_an_answer(log: SqliteLog) -> None:
    session = make(log, propose(call("pay", amount=80)))
    outcome = await session.run("Refund.")
    assert outcome.outcome == "waiting"
    [pending] = outcome.pending
    assert pending.kind == "decision"
    assert pending.tool_name == "pay"
    assert pending.input == {"amount": 80}
    assert pending.session == "s1"
    assert pending.question == "May pay run? no rule matches"
    assert pending.schema["properties"]["amount"]["type"] == "integer"
    assert pending.since == next(iter(log.find("permission.requested"))).timestamp
    assert msgspec.json.decode(msgspec.json.encode(pending))["intent_id"] == pending.intent_id
    assert ran == []
    edited = Decision(True, "ann", input={"amount": 50})
    assert await session.answer(pending.intent_id, edited) == edited
    outcome = await session.run()
    assert outcome.outcome == "completed"
    assert outcome.pending == ()
    assert ran == [50]
    records = list(log.read("s1"))
    check_evidence(records)
    assert of(records, "permission.granted")[0].by == "ann"
    assert [each.outcome for each in of(records, "session.finished")] == ["waiting", "completed"]


async def test_any_process_answers_with_the_log_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        outcome = await make(log, propose(call("pay", amount=80))).run("Refund.")
    with SqliteLog(path, readonly=True) as log:
        answer(log, "s1", outcome.pending[0].intent_id, YES)
    with SqliteLog(path) as log:
        assert (await go_on(log)).outcome == "completed"
        assert ran == [80]
        assert log.verify().ok


async def test_first_answer_counts_and_later_ones_get_it(log: SqliteLog) -> None:
    outcome = await make(log, propose(call("pay", amount=80))).run("Refund.")
    intent = outcome.pending[0].intent_id
    people = [Decision(number % 2 == 0, f"person {number}") for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda given: answer(log, "s1", intent, given), people))
    assert got == [got[0]] * 8
    assert got[0] in people
    await go_on(log)
    assert ran == ([80] if got[0].allowed else [])
    late = answer(log, "s1", intent, Decision(not got[0].allowed, "late"))
    assert late.allowed == got[0].allowed
    assert late.by == got[0].by


async def test_session_without_an_answer_still_waits_and_writes_nothing(log: SqliteLog) -> None:
    session = make(log, propose(call("pay", amount=80)))
    first = await session.run("Refund.")
    length = len(list(log.read("s1")))
    assert (await session.run()).pending == first.pending
    assert (await go_on(log)).pending == first.pending
    assert len(list(log.read("s1"))) == length


async def test_waiting_session_rejects_another_goal(log: SqliteLog) -> None:
    session = make(log, propose(call("pay", amount=80)))
    await session.run("Refund.")
    length = len(list(log.read("s1")))
    with pytest.raises(SessionError, match="waits for a decision about pay; answer first"):
        await session.run("Forget it.")
    assert len(list(log.read("s1"))) == length
    await session.close_open_intents("not needed any more")
    assert (await session.run("Forget it.")).outcome == "completed"
    assert ran == []
    assert results(log) == ["Not run: not needed any more"]


async def test_all_questions_of_a_reply_are_asked_and_calls_run_in_order(log: SqliteLog) -> None:
    reply = propose(
        call("pay", call_id="1", amount=1), call("look", call_id="2", word="a"),
        call("pay", call_id="3", amount=2),
    )  # fmt: skip
    outcome = await make(log, reply).run("Go.")
    assert [each.input for each in outcome.pending] == [{"amount": 1}, {"amount": 2}]
    assert ran == []
    answer(log, "s1", outcome.pending[1].intent_id, YES)
    outcome = await go_on(log, reply)
    assert [each.input for each in outcome.pending] == [{"amount": 1}]
    assert ran == []
    answer(log, "s1", outcome.pending[0].intent_id, Decision(False, "bob", reason="no"))
    outcome = await go_on(log)
    assert ran == ["a", 2]
    assert results(log) == ["Not run: permission denied by bob: no", "a: found", "paid 2"]
    check_evidence(list(log.read("s1")))


async def test_reads_of_a_reply_run_although_another_one_waits(log: SqliteLog) -> None:
    policy = Policy([Rule("allow", "look"), Rule("ask", "look", arguments={"word": "b"})])
    reply = propose(call("look", call_id="1", word="b"), call("look", call_id="2", word="a"))
    outcome = await make(log, reply, policy=policy).run("Go.")
    assert ran == ["a"]
    answer(log, "s1", outcome.pending[0].intent_id, YES)
    await go_on(log, policy=policy)
    assert ran == ["a", "b"]
    assert results(log) == ["b: found", "a: found"]


async def test_rule_that_denies_counts_more_than_an_earlier_answer(log: SqliteLog) -> None:
    outcome = await make(log, propose(call("pay", amount=80))).run("Refund.")
    answer(log, "s1", outcome.pending[0].intent_id, YES)
    await go_on(log, policy=Policy([Rule("deny", "pay", reason="frozen")]))
    assert ran == []
    assert results(log) == ["Not run: permission denied by policy: frozen"]


@pytest.mark.parametrize("given", ["tu_nothing", "closed", "machine"])
async def test_answer_that_nobody_waits_for_is_an_error(log: SqliteLog, given: str) -> None:
    session = make(log, propose(call("pay", amount=80)))
    intent = (await session.run("Refund.")).pending[0].intent_id
    if given == "machine":
        with pytest.raises(SessionError, match="is not the name of a person"):
            answer(log, "s1", intent, Decision(True, "policy"))
        return
    await session.close_open_intents("no")
    with pytest.raises(SessionError, match="no open question"):
        answer(log, "s1", intent if given == "closed" else given, YES)


@pytest.mark.parametrize("give", [answer, answer_question])
async def test_answer_to_no_session_in_particular_is_refused(log: SqliteLog, give: Any) -> None:
    """It would be stored where no session reads it, and returned as the one that counts."""
    intent = (await make(log, propose(call("pay", amount=80))).run("Refund.")).pending[0].intent_id
    with pytest.raises(TypeError, match="must be the id of a session, not None"):
        give(log, None, intent, YES)
    await go_on(log)
    assert ran == []


def test_approve_must_be_a_function_or_wait() -> None:
    with pytest.raises(ValueError, match="approve: must be a function, 'wait' or None, not 'ask'"):
        Session(script(), TOOLS, ASK, approve="ask")  # type: ignore[arg-type]


# --- results of calls that run elsewhere -------------------------------------------------------


async def test_external_tool_waits_for_its_result(log: SqliteLog) -> None:
    session = make(log, propose(call("ship", parcel="x")), policy=ALL, approve=None)
    outcome = await session.run("Ship.")
    assert outcome.outcome == "waiting"
    [pending] = outcome.pending
    assert pending.kind == "result"
    assert pending.input == {"parcel": "x"}
    [started] = of(list(log.read("s1")), "tool.started")
    assert started.context == {"side_effect": "network", "external": True}
    first = observe(log, "s1", pending.intent_id, {"tracking": 7})
    assert first == Observation('{"tracking":7}')
    assert await session.observe(pending.intent_id, "lost", is_error=True) == first
    assert (await session.run()).outcome == "completed"
    assert results(log) == ['{"tracking":7}']
    assert observe(log, "s1", pending.intent_id, "late") == first
    check_evidence(list(log.read("s1")))


async def test_external_call_is_asked_about_and_then_handed_out(log: SqliteLog) -> None:
    outcome = await make(log, propose(call("ship", parcel="x"))).run("Ship.")
    intent = outcome.pending[0].intent_id
    assert outcome.pending[0].kind == "decision"
    with pytest.raises(SessionError, match="does not wait for the result"):
        observe(log, "s1", intent, "too early")
    answer(log, "s1", intent, Decision(True, "ann", input={"parcel": "y"}))
    outcome = await go_on(log)
    assert outcome.pending[0].kind == "result"
    assert outcome.pending[0].input == {"parcel": "y"}
    observe(log, "s1", intent, "broken", is_error=True)
    assert (await go_on(log)).outcome == "completed"
    [observed] = of(list(log.read("s1")), "tool.observed")
    assert observed.is_error


async def test_described_tool_can_be_external(log: SqliteLog) -> None:
    described = Tool("weigh", "Weigh a parcel.", external=True)
    session = Session(script(propose(call("weigh"))), [described], ALL, log, session_id="s1")
    outcome = await session.run("Go.")
    await session.observe(outcome.pending[0].intent_id, "3 kg")
    assert (await session.run()).outcome == "completed"
    assert results(log) == ["3 kg"]
    with pytest.raises(ValueError, match=r"tools\[0\]: Tool cannot be run"):
        Session(script(), [Tool("weigh")], ALL)


async def test_external_calls_are_handed_out_together_and_a_later_one_here_waits(
    log: SqliteLog,
) -> None:
    reply = propose(
        call("ship", call_id="1", parcel="x"), call("ship", call_id="2", parcel="y"),
        call("note", call_id="3", text="shipped"),
    )  # fmt: skip
    outcome = await make(log, reply, policy=ALL).run("Go.")
    assert [each.kind for each in outcome.pending] == ["result", "result"]
    observe(log, "s1", outcome.pending[0].intent_id, "one")
    assert len((await go_on(log, policy=ALL)).pending) == 1
    assert ran == []
    observe(log, "s1", outcome.pending[1].intent_id, "two")
    assert (await go_on(log, policy=ALL)).outcome == "completed"
    assert ran == ["shipped"]
    assert results(log) == ["one", "two", "noted"]


async def test_long_result_is_shortened_as_the_tool_says(log: SqliteLog) -> None:
    @tool(external=True, output_limit=300)
    def fetch() -> str:
        return ""

    session = Session(script(propose(call("fetch"))), [fetch], ALL, log, session_id="s1")
    outcome = await session.run("Go.")
    await session.observe(outcome.pending[0].intent_id, "x" * 5000)
    await session.run()
    [observed] = of(list(log.read("s1")), "tool.observed")
    assert observed.truncated
    assert len(observed.content) <= 300


async def test_result_that_is_not_json_is_an_error(log: SqliteLog) -> None:
    session = make(log, propose(call("ship", parcel="x")), policy=ALL)
    intent = (await session.run("Go.")).pending[0].intent_id
    with pytest.raises(ValueError, match="content: it returned object"):
        observe(log, "s1", intent, object())


async def test_cancelled_session_stops_waiting(log: SqliteLog) -> None:
    session = make(log, propose(call("ship", parcel="x")), policy=ALL)
    outcome = await session.run("Go.")
    await session.close_open_intents("the order was cancelled")
    with pytest.raises(SessionError, match="does not wait for the result"):
        observe(log, "s1", outcome.pending[0].intent_id, "late")
    assert results(log)[0].startswith("Interrupted, and what it did is not known")


# --- sessions that are killed ------------------------------------------------------------------


REPLIES = (
    propose(call("look", call_id="1", word="a"), call("pay", call_id="2", amount=1)),
    propose(call("ship", call_id="1", parcel="x"), call("pay", call_id="2", amount=2)),
)


async def run_to_the_end(continued: Callable[[], Any], log: EventLog) -> Outcome:
    """Answer all that the session waits for, each twice, until it has ended."""
    for _ in range(10):
        outcome = await continued()
        if outcome.outcome != "waiting":
            return outcome
        for each in outcome.pending:
            for given in ("first", "second"):
                if each.kind == "decision":
                    answer(log, "s1", each.intent_id, Decision(True, given))
                else:
                    observe(log, "s1", each.intent_id, given)
    raise AssertionError("the session still waits")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the log of a session that asked three times, and waited for a result."""
    path = tmp_path_factory.mktemp("story") / "story.db"
    with SqliteLog(path) as log:
        session = make(log, *REPLIES)
        goals: list[str | None] = ["Go."]
        asyncio.run(run_to_the_end(lambda: session.run(goals.pop() if goals else None), log))
    return path


LENGTH = 48


def cut(story: Path, length: int, path: Path) -> SqliteLog:
    """Return a copy of a log in which the session stops after a record; its answers are kept."""
    for suffix in ("", ".answers"):
        source = sqlite3.connect(f"{story}{suffix}")
        target = sqlite3.connect(f"{path}{suffix}")
        source.backup(target)
        if not suffix:
            target.execute("DELETE FROM records WHERE seq > ?", (length,))
            target.commit()
        target.close()
        source.close()
    return SqliteLog(path)


def test_story_has_as_many_records_as_the_tests_expect(story: Path) -> None:
    with SqliteLog(story, readonly=True) as log:
        assert len(list(log.read("s1"))) == LENGTH


@pytest.mark.parametrize("length", range(1, LENGTH))
async def test_each_answer_is_used_once_after_a_kill(
    length: int, tmp_path: Path, story: Path
) -> None:
    ran.clear()
    with cut(story, length, tmp_path / "cut.db") as log:
        before = reduce_records(log.read("s1"))
        # A call that only reads and had not ended runs again.
        started = {
            kept.intent.id
            for kept in before.intents.values()
            if kept.started and not (kept.is_open and kept.side_effect == "read")
        }
        asked = [kept for kept in before.intents.values() if kept.asked and not kept.started]
        await run_to_the_end(lambda: go_on(log), log)
        records = list(log.read("s1"))
        steps = check_evidence(records)
        assert all(chain.count("tool.started") <= 1 for chain in steps.values())
        after = reduce_records(records)
        for kept in asked:
            final = after.intents[kept.intent.id]
            assert final.started, "a call that was asked about runs after the kill"
        here = [
            kept.input
            for kept in after.intents.values()
            if kept.started and not kept.external and kept.intent.id not in started
        ]
        assert sorted(map(str, ran)) == sorted(str(next(iter(each.values()))) for each in here)
        granted = of(records, "permission.granted")
        assert {each.by for each in granted} <= {"policy", "first"}
        assert log.verify().ok


@pytest.mark.parametrize("answered", [True, False])
async def test_recorded_answer_survives_the_process_that_asked(
    tmp_path: Path, answered: bool
) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        session = make(log, propose(call("pay", amount=80)), approve=RemoteApprover(log))
        running = asyncio.create_task(session.run("Refund."))
        question = await until_asked(log)
        sqlite3.connect(path).backup(sqlite3.connect(tmp_path / "killed.db"))
        running.cancel()
        await asyncio.wait([running])
    with SqliteLog(tmp_path / "killed.db") as log:
        if answered:
            answer(log, "s1", question.intent_id, YES)
        resumed = asyncio.create_task(go_on(log, approve=RemoteApprover(log, interval=0.01)))
        if not answered:
            while list(log.read("s1"))[-1].type != "session.resumed":
                await asyncio.sleep(0)
            [still] = find_questions(log)
            assert still.intent_id == question.intent_id
            answer(log, "s1", question.intent_id, YES)
        assert (await resumed).outcome == "completed"
        assert ran == [80]
        records = list(log.read("s1"))
        check_evidence(records)
        assert types(records).count("permission.requested") == 1
        assert types(records).count("permission.granted") == 1


async def test_answer_in_memory_is_found_too() -> None:
    log = MemoryLog()
    session = make(log, propose(call("pay", amount=80)))
    outcome = await session.run("Refund.")
    await session.answer(outcome.pending[0].intent_id, YES)
    assert (await session.run()).outcome == "completed"
    assert ran == [80]
