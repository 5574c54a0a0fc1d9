"""Test what a resumed session does with a call that ran when the process ended: ``on_resume``."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.log import SqliteLog
from dragoman.messages import ToolResult
from dragoman.permission import Decision, Policy, Rule
from dragoman.replay import read_steps
from dragoman.session import Outcome, Session, answer, find_questions, reduce_records
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
