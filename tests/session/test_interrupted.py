"""Test what a resumed session does with a call that ran when the process ended: ``on_resume``."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.log import SqliteLog
from dragoman.messages import ToolResult
from dragoman.permission import Decision, Policy, Rule
from dragoman.replay import read_steps
from dragoman.session import (
    Outcome,
    Session,
    SessionTool,
    answer,
    find_questions,
    reduce_records,
)
from dragoman.tools import ExecutableTool, Observation, ToolContext, tool

from ..listed import Listed
from .playing import ALL, call, check_evidence, of, propose, types

YES = Decision(True, "ann")
NO = Decision(False, "ann", reason="it was paid by hand")
calls: list[tuple[str, int, int]] = []


def make_pay(**settings: Any) -> ExecutableTool:
    """Return a tool that notes the key, the attempt and the amount of each call."""

    @tool(side_effect="network", **settings)
    async def pay(amount: int, context: ToolContext[None]) -> str:
        """Pay an amount."""
        calls.append((context.intent_id, context.attempt, amount))
        return f"paid {amount}"

    return pay


async def kill(path: Path, pay: ExecutableTool) -> str:
    """Run a session, and leave its log as a kill leaves it while the call runs; return its intent."""
    calls.clear()
    with SqliteLog(path) as log:
        session = Session(
            Listed(propose(call("pay", amount=80)), "Done.", name="p"), [pay], ALL, log,
            session_id="s1",
        )  # fmt: skip
        await session.run("Refund.")
        [started] = [record for record in log.read("s1") if record.type == "tool.started"]
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM records WHERE seq > ?", (started.seq,))
    database.close()
    intent: str = started.data["intent_id"]
    return intent


async def resume(log: SqliteLog, pay: ExecutableTool, **settings: Any) -> Outcome:
    """Continue the session from its log, as another process would."""
    policy = settings.pop("policy", ALL)
    provider = Listed("Done.", name="p")
    session = await Session.resume(provider, [pay], policy, log, "s1", **settings)
    return await session.run()


def result(log: SqliteLog) -> str:
    """Return the result of the call that the model receives."""
    messages = reduce_records(log.read("s1")).messages
    [found] = [each.message.text for each in messages if isinstance(each.message, ToolResult)]
    return found


def check(log: SqliteLog) -> list[str]:
    """Check the log of a session that ended; return the record types of its call."""
    records = list(log.read("s1"))
    assert log.verify().ok
    assert [step.notes for step in read_steps(log, "s1") if step.notes] == []
    [steps] = check_evidence(records).values()
    return steps


BEGUN = ["tool_intent.proposed", "tool_intent.validated", "permission.granted", "tool.started"]
UNKNOWN = "Interrupted, and what it did is not known"


@pytest.mark.parametrize(
    ("settings", "runs"),
    [({}, False), ({"on_resume": "run"}, True), ({"on_resume": lambda _: "run"}, True)],
)
async def test_interrupted_call_runs_again_with_its_key_only_if_the_tool_says_so(
    settings: dict[str, Any], runs: bool, tmp_path: Path
) -> None:
    pay = make_pay(**settings)
    intent = await kill(tmp_path / "log.db", pay)
    with SqliteLog(tmp_path / "log.db") as log:
        outcome = await resume(log, pay)
        assert outcome.outcome == "completed"
        if runs:
            assert calls == [(intent, 1, 80), (intent, 2, 80)]
            assert check(log) == [*BEGUN, "tool.restarted", "tool.observed"]
            assert result(log) == "paid 80"
        else:
            assert calls == [(intent, 1, 80)]
            assert check(log) == [*BEGUN, "tool_intent.closed"]
            assert result(log).startswith(UNKNOWN)


async def test_call_that_is_killed_each_time_counts_its_attempts(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    pay = make_pay(on_resume="run")
    intent = await kill(path, pay)
    for _ in range(2):
        with SqliteLog(path) as log:
            await resume(log, pay)
            last = [each.seq for each in log.read("s1") if each.type == "tool.restarted"][-1]
        with sqlite3.connect(path) as database:
            database.execute("DELETE FROM records WHERE seq > ?", (last,))
        database.close()
    with SqliteLog(path) as log:
        await resume(log, pay)
        assert calls == [(intent, attempt, 80) for attempt in (1, 2, 3, 4)]
        assert [it.attempt for it in of(list(log.read("s1")), "tool.restarted")] == [2, 3, 4]
        check(log)


@pytest.mark.parametrize(("decision", "runs"), [(YES, True), (NO, False)])
async def test_interrupted_call_is_asked_about_and_the_answer_from_elsewhere_counts(
    decision: Decision, runs: bool, tmp_path: Path
) -> None:
    pay = make_pay(on_resume="ask")
    intent = await kill(tmp_path / "log.db", pay)
    with SqliteLog(tmp_path / "log.db") as log:
        for _ in range(2):  # the question is asked once, however often the session is resumed
            outcome = await resume(log, pay, approve="wait")
            assert outcome.outcome == "waiting"
        [pending] = outcome.pending
        assert pending.intent_id == intent
        assert pending.attempt == 2
        assert pending.question == f"May pay run again? {UNKNOWN_QUESTION}"
        [question] = find_questions(log)
        assert question.attempt == 2
        assert len(calls) == 1
        assert answer(log, "s1", intent, decision).allowed is decision.allowed
        outcome = await resume(log, pay, approve="wait")
        assert outcome.outcome == "completed"
        asked = [*BEGUN, "permission.requested"]
        if runs:
            assert calls == [(intent, 1, 80), (intent, 2, 80)]
            assert check(log) == [*asked, "permission.granted", "tool.restarted", "tool.observed"]
        else:
            assert calls == [(intent, 1, 80)]
            assert check(log) == [*asked, "permission.denied"]
            said = "ann did not allow it to run again: it was paid by hand"
            assert result(log) == f"{UNKNOWN}; {said}"


UNKNOWN_QUESTION = "it was interrupted, and what it did is not known"


async def test_answer_to_the_first_question_does_not_answer_the_second(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    calls.clear()
    pay = make_pay(on_resume="ask")
    asking = Policy([Rule("ask", tool="pay")])
    with SqliteLog(path) as log:
        provider = Listed(propose(call("pay", amount=80)), "Done.", name="p")
        session = Session(provider, [pay], asking, log, session_id="s1", approve="wait")
        [pending] = (await session.run("Refund.")).pending
        answer(log, "s1", pending.intent_id, YES)
        await session.run()
        [started] = [record.seq for record in log.read("s1") if record.type == "tool.started"]
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM records WHERE seq > ?", (started,))
    database.close()
    with SqliteLog(path) as log:
        outcome = await resume(log, pay, approve="wait", policy=asking)
        assert outcome.outcome == "waiting"
        assert len(calls) == 1
        answer(log, "s1", pending.intent_id, NO)
        assert (await resume(log, pay, approve="wait", policy=asking)).outcome == "completed"
        assert len(calls) == 1
        assert types(list(log.read("s1"))).count("permission.denied") == 1


async def test_approver_of_the_process_is_asked_about_an_interrupted_call(tmp_path: Path) -> None:
    pay = make_pay(on_resume="ask")
    await kill(tmp_path / "log.db", pay)
    asked: list[int] = []

    def approve(proposal: Any, verdict: Any) -> Decision:
        asked.append(proposal.attempt)
        return Decision(True, "ann", scope="session")

    with SqliteLog(tmp_path / "log.db") as log:
        await resume(log, pay, approve=approve)
        assert asked == [2]
        assert [attempt for _, attempt, _ in calls] == [1, 2]
        check(log)


async def test_other_input_is_refused_for_a_call_that_runs_again(tmp_path: Path) -> None:
    pay = make_pay(on_resume="ask")
    await kill(tmp_path / "log.db", pay)
    with SqliteLog(tmp_path / "log.db") as log:
        await resume(log, pay, approve=lambda *_: Decision(True, "ann", input={"amount": 50}))
        assert [amount for _, _, amount in calls] == [80]
        assert "a call runs again with the same input" in result(log)


def find_payment(intent: Any) -> Observation:
    return Observation(f"paid {intent.input['amount']} before", details={"key": intent.id})


async def find_later(intent: Any) -> str:
    return f"paid {intent.input['amount']} before"


def fail(intent: Any) -> None:
    raise OSError("the bank does not answer")


@pytest.mark.parametrize(
    ("find", "told"),
    [
        (find_payment, "paid 80 before"),
        (find_later, "paid 80 before"),
        (lambda _: None, f"{UNKNOWN}: the session ended while it ran"),
        (
            fail,
            f"{UNKNOWN}: what it did could not be found out: OSError: the bank does not answer",
        ),
        (lambda _: object(), f"{UNKNOWN}: what it did could not be found out: ToolFailure: it"),
    ],
)
async def test_function_finds_out_what_an_interrupted_call_did(
    find: Callable[[Any], Any], told: str, tmp_path: Path
) -> None:
    pay = make_pay(on_resume=find)
    await kill(tmp_path / "log.db", pay)
    with SqliteLog(tmp_path / "log.db") as log:
        assert (await resume(log, pay)).outcome == "completed"
        assert result(log).startswith(told)
        assert len(calls) == 1
        check(log)


async def test_function_may_ask_and_is_not_called_again_after_the_question(tmp_path: Path) -> None:
    looked: list[str] = []

    def find(intent: Any) -> str:
        looked.append(intent.id)
        return "ask"

    pay = make_pay(on_resume=find)
    intent = await kill(tmp_path / "log.db", pay)
    with SqliteLog(tmp_path / "log.db") as log:
        assert (await resume(log, pay, approve="wait")).outcome == "waiting"
        answer(log, "s1", intent, YES)
        assert (await resume(log, pay, approve="wait")).outcome == "completed"
        assert looked == [intent]
        assert [attempt for _, attempt, _ in calls] == [1, 2]


async def test_rule_that_denies_now_keeps_an_interrupted_call_from_running_again(
    tmp_path: Path,
) -> None:
    pay = make_pay(on_resume="run")
    await kill(tmp_path / "log.db", pay)
    with SqliteLog(tmp_path / "log.db") as log:
        await resume(log, pay, policy=Policy([Rule("deny", tool="pay")]))
        assert len(calls) == 1
        assert result(log).startswith(UNKNOWN)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"on_resume": "again"}, "on_resume: must be 'ask', 'run' or a function, not 'again'"),
        ({"on_resume": "run", "external": True}, "on_resume: an external tool does not run here"),
    ],
)
def test_setting_that_cannot_be_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make_pay(**settings)


class Slow:
    """A tool whose first call does not end, and whose other calls do."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.seen: list[tuple[str, int]] = []

        @tool(side_effect="network", on_resume="run")
        async def slow(context: ToolContext[None]) -> str:
            """Take a while."""
            self.seen.append((context.intent_id, context.attempt))
            if len(self.seen) == 1:
                self.begun.set()
                await asyncio.Event().wait()
            return "done"

        self.tool = slow


async def open_slow(log: SqliteLog, slow: Slow, *replies: Any) -> Session:
    return await Session.open(Listed(*replies, name="p"), [slow.tool], ALL, log, "s1")


@pytest.mark.parametrize("how", ["the same object", "another process"])
@pytest.mark.parametrize("method", ["run", "step"])
async def test_goal_of_a_key_continues_after_its_task_was_cancelled(
    log: SqliteLog, how: str, method: str
) -> None:
    slow = Slow()
    session = await open_slow(log, slow, propose(call("slow")), "Done.")

    async def job() -> Outcome | None:
        if method == "run":
            return await session.run("Go.", key="k")
        outcome = None
        while outcome is None:
            outcome = (await session.step("Go.", key="k")).outcome
        return outcome

    running = asyncio.create_task(job())
    await slow.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    left = list(log.read("s1"))
    assert types(left)[-1] == "tool.started"  # as after a kill
    if how == "another process":
        session = await open_slow(log, slow, "Done.")
    outcome = await job()
    assert outcome is not None
    assert outcome.outcome == "completed"
    assert len({intent for intent, _ in slow.seen}) == 1
    assert [attempt for _, attempt in slow.seen] == [1, 2]
    assert result(log) == "done"
    check(log)


async def test_only_cancel_ends_the_goal_of_a_key(log: SqliteLog) -> None:
    slow = Slow()
    session = await open_slow(log, slow, propose(call("slow")), "Done.")
    running = asyncio.create_task(session.run("Go.", key="k"))
    await slow.begun.wait()
    await session.cancel("enough")
    assert (await running).outcome == "cancelled"
    again = await open_slow(log, slow, "Done.")
    outcome = await again.run("Go.", key="k")
    assert outcome.outcome == "cancelled"
    assert outcome.detail == "enough"
    assert len(slow.seen) == 1


@pytest.mark.parametrize("is_cancelled_by_name", [True, False])
async def test_sub_session_follows_its_parent_when_that_is_stopped(
    log: SqliteLog, is_cancelled_by_name: bool
) -> None:
    slow = Slow()
    child = SessionTool(
        "ask", "Ask.", Listed(propose(call("slow")), "Well.", name="c"), [slow.tool], ALL
    )
    session = await Session.open(
        Listed(propose(call("ask", task="x")), "Done.", name="p"), [child], ALL, log, "s1"
    )
    running = asyncio.create_task(session.run("Go.", key="k"))
    await slow.begun.wait()
    if is_cancelled_by_name:
        await session.cancel()
        assert (await running).outcome == "cancelled"
    else:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    [below] = [each.session for each in of(list(log.read("s1")), "session.delegated")]
    ends = of(list(log.read(below)), "session.finished")
    assert [end.outcome for end in ends] == (["cancelled"] if is_cancelled_by_name else [])
    if not is_cancelled_by_name:
        assert (await session.run("Go.", key="k")).text == "Done."
        assert [attempt for _, attempt in slow.seen] == [1, 2]
        assert result(log) == "Well."


async def test_sub_session_ends_with_the_time_of_its_call(log: SqliteLog) -> None:
    slow = Slow()
    child = SessionTool(
        "ask", "Ask.", Listed(propose(call("slow")), name="c"), [slow.tool], ALL, timeout=0.2
    )
    session = await Session.open(
        Listed(propose(call("ask", task="x")), "Done.", name="p"), [child], ALL, log, "s1"
    )
    assert (await session.run("Go.", key="k")).text == "Done."
    [below] = [each.session for each in of(list(log.read("s1")), "session.delegated")]
    [end] = of(list(log.read(below)), "session.finished")
    assert end.outcome == "cancelled"
