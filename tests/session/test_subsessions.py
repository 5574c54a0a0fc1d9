"""Test tools that run sessions: budget, permission, waiting, cancellation, resumption, hand-off."""

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from dragoman.log import CalledBy, EventLog, MemoryLog, SqliteLog
from dragoman.messages import ToolResult
from dragoman.permission import Decision, Policy, Proposal, Rule, Verdict
from dragoman.replay import ReplayProvider, recorded_tools
from dragoman.session import (
    Budget,
    Outcome,
    Session,
    SessionTool,
    find_questions,
    reduce_records,
)
from dragoman.session.execution import MAX_AT_ONCE
from dragoman.session.parent import MAX_DEPTH, MAX_SUBSESSIONS
from dragoman.tools import ExecutableTool, tool

from ..listed import Listed
from ..waiting import PATIENCE
from .playing import ALL, call, check_evidence, look, note, of, propose, ran

ASK = Policy([Rule("allow", side_effect=["none", "read"])])
YES = Decision(True, "ann")


def make_expert(*replies: Any, **settings: Any) -> SessionTool:
    """Return a tool that runs a session of another model, which notes what it is asked."""
    script = replies or (propose(call("note", call_id="n", text="b")), "The answer is b.")
    settings.setdefault("policy", ALL)
    return SessionTool(
        "ask_expert", "Ask.", Listed(*script, name="q", model="large"), [look, note], **settings
    )


def parent_script() -> Listed:
    return Listed(propose(call("ask_expert", task="What is it?")), "It is b.", name="p")


def make(log: EventLog, expert: ExecutableTool, **settings: Any) -> Session:
    policy = settings.pop("policy", ALL)
    return Session(parent_script(), [expert], policy, log, session_id="s1", **settings)


def child_of(log: EventLog) -> str:
    [delegated] = of(list(log.read("s1")), "session.delegated")
    name: str = delegated.session
    return name


def results(log: EventLog, session: str = "s1") -> list[str]:
    messages = reduce_records(log.read(session)).messages
    return [each.message.text for each in messages if isinstance(each.message, ToolResult)]


async def test_result_of_the_call_is_the_answer_and_both_logs_name_the_other() -> None:
    log = MemoryLog()
    outcome = await make(log, make_expert()).run("Go.")
    assert outcome.text == "It is b."
    assert results(log) == ["The answer is b."]
    assert ran == ["b"]
    child = child_of(log)
    [started] = of(list(log.read(child)), "session.started")
    [intent] = reduce_records(log.read("s1")).intents
    assert started.called_by == CalledBy("s1", intent)
    assert child == f"session_{intent.removeprefix('tu_')}"
    assert started.goal == "What is it?"
    for name in ("s1", child):
        check_evidence(list(log.read(name)))


async def test_spending_of_parent_and_child_agrees_with_the_logs() -> None:
    log = MemoryLog()
    outcome = await make(log, make_expert()).run("Go.")
    sums = [reduce_records(log.read(name)).spent for name in ("s1", child_of(log))]
    assert [each.turns for each in sums] == [2, 2]
    assert [each.tool_calls for each in sums] == [1, 1]
    for name in ("turns", "tokens", "cost_usd", "tool_calls"):
        assert getattr(outcome.spent, name) == sum(getattr(each, name) for each in sums), name
    calls = list(log.find("llm.call_completed"))
    used = sum(it.data.get("input_tokens", 0) + it.data.get("output_tokens", 0) for it in calls)
    assert outcome.spent.tokens == used
    again = await Session.resume(parent_script(), [make_expert()], ALL, log, "s1")
    assert (await again.run("More.")).spent.turns == 8


@pytest.mark.parametrize("budget", [Budget(steps=3), Budget(tokens=40), Budget(steps=3).share()])
async def test_budget_of_the_parent_ends_the_child_too(budget: Any) -> None:
    log = MemoryLog()
    looping = make_expert(*[propose(call("look", call_id=str(n), word="a")) for n in range(9)])
    outcome = await make(log, looping, budget=budget).run("Go.")
    assert outcome.outcome == "exhausted"
    assert outcome.spent.turns == 3
    assert reduce_records(log.read(child_of(log))).finished.outcome == "exhausted"  # type: ignore[union-attr]
    assert results(log)[0].startswith("The session exhausted: the budget of")


async def test_share_of_the_budget_ends_the_child_alone() -> None:
    log = MemoryLog()
    looping = make_expert(
        *[propose(call("look", call_id=str(n), word="a")) for n in range(9)],
        budget=Budget(steps=2),
    )
    outcome = await make(log, looping, budget=Budget(steps=9)).run("Go.")
    assert outcome.outcome == "completed"
    assert outcome.spent.turns == 4


@pytest.mark.parametrize(
    ("outer", "result"),
    [
        (Policy([Rule("allow"), Rule("deny", "note", reason="no notes")]), "no notes"),
        (Policy([Rule("allow", "ask_expert")], default="deny"), "no rule matches"),
    ],
)
async def test_child_may_not_do_more_than_its_parent(outer: Policy, result: str) -> None:
    log = MemoryLog()
    await make(log, make_expert(), policy=outer).run("Go.")
    assert ran == []
    assert results(log, child_of(log)) == [f"Not run: permission denied by policy: {result}"]


async def test_approver_of_the_parent_is_asked_about_calls_of_the_child() -> None:
    asked: list[tuple[str, str]] = []

    async def approve(proposal: Proposal, verdict: Verdict) -> bool:
        asked.append((proposal.session, proposal.tool_name))
        return True

    log = MemoryLog()
    await make(log, make_expert(policy=None), policy=ASK, approve=approve).run("Go.")
    assert asked == [("s1", "ask_expert"), (child_of(log), "note")]
    assert ran == ["b"]


async def test_parent_waits_while_its_child_waits() -> None:
    log = MemoryLog()
    allow = Policy([*ASK.rules, Rule("allow", "ask_expert")])
    expert = make_expert(policy=None)
    session = make(log, expert, policy=allow, approve="wait")
    outcome = await session.run("Go.")
    assert outcome.outcome == "waiting"
    [pending] = outcome.pending
    assert pending.kind == "decision"
    assert pending.tool_name == "note"
    assert pending.session == child_of(log)
    assert pending.schema["properties"]["text"]["type"] == "string"
    length = len(list(log.read("s1")))
    assert (await session.run()).pending == (pending,)
    assert len(list(log.read("s1"))) == length
    [question] = find_questions(log)
    assert question.intent_id == pending.intent_id
    await session.answer(pending.intent_id, YES)
    # another process goes on, whose models have already replied to what came before
    expert = make_expert("The answer is b.", policy=None)
    again = await Session.resume(
        Listed("It is b.", name="p"), [expert], allow, log, "s1", approve="wait"
    )
    outcome = await again.run()
    assert outcome.outcome == "completed"
    assert outcome.text == "It is b."
    assert ran == ["b"]
    assert results(log) == ["The answer is b."]
    check_evidence(list(log.read("s1")))


async def test_cancelled_parent_cancels_its_child() -> None:
    log = MemoryLog()
    reached = asyncio.Event()

    @tool(side_effect="none")
    async def hang() -> str:
        """Wait."""
        reached.set()
        await asyncio.Event().wait()
        return ""

    expert = SessionTool("ask_expert", "Ask.", Listed(propose(call("hang")), name="q"), [hang])
    session = make(log, expert)
    running = asyncio.create_task(session.run("Go."))
    await reached.wait()
    await session.cancel("enough")
    assert (await running).outcome == "cancelled"
    assert reduce_records(log.read(child_of(log))).finished.outcome == "cancelled"  # type: ignore[union-attr]
    for name in ("s1", child_of(log)):
        check_evidence(list(log.read(name)))


async def test_handed_off_answer_is_the_answer_of_the_parent_also_in_a_replay() -> None:
    log = MemoryLog()
    session = make(log, make_expert(hands_off=True))
    outcome = await session.run("Go.")
    assert outcome.outcome == "completed"
    assert outcome.text == "The answer is b."
    assert outcome.spent.turns == 3  # one of the parent, two of the child
    again = Session(ReplayProvider(log, "s1"), recorded_tools(log, "s1"), ALL)
    assert (await again.run("Go.")).text == "The answer is b."
    assert ran == ["b"]
    assert (await session.run("And then?")).text == "It is b."


async def test_session_that_a_function_runs_is_a_subsession_too() -> None:
    log = MemoryLog()

    @tool(side_effect="none")
    async def ask_expert(task: str) -> str:
        """Ask."""
        child = Session(Listed(propose(call("note", text="b")), "b", name="q"), [note], ALL)
        return (await child.run(task)).text

    outer = Policy([Rule("allow"), Rule("deny", "note")])
    outcome = await make(log, ask_expert, policy=outer).run("Go.")
    assert outcome.spent.turns == 4
    assert ran == []
    assert results(log) == ["b"]
    assert reduce_records(log.read(child_of(log))).spent.turns == 2


async def test_depth_and_number_of_subsessions_are_bounded() -> None:
    log = MemoryLog()
    deepest: list[int] = []

    def nest(depth: int) -> ExecutableTool:
        @tool(side_effect="none")
        async def ask_expert(task: str) -> str:
            """Ask."""
            script = Listed(propose(call("ask_expert", task="x")), "b", name="q")
            deepest.append(depth)
            return (await Session(script, [nest(depth + 1)], ALL).run(task)).text

        return ask_expert

    await make(log, nest(1)).run("Go.")
    assert max(deepest) == MAX_DEPTH + 1
    errors = [it for it in log.find("tool.observed") if it.data.get("is_error")]
    assert [it.data["content"] for it in errors] == [
        f"SessionError: sessions are nested more than {MAX_DEPTH} deep"
    ]

    many = [call("ask_expert", call_id=str(n), task="x") for n in range(MAX_SUBSESSIONS + 2)]
    log = MemoryLog()
    session = Session(
        Listed(propose(*many), "Done.", name="p"),
        [SessionTool("ask_expert", "Ask.", Listed("b", name="q", repeat=True))], ALL, log,
        session_id="s1",
    )  # fmt: skip
    await session.run("Go.")
    assert results(log).count("b") == MAX_SUBSESSIONS
    assert len(of(list(log.read("s1")), "session.delegated")) == MAX_SUBSESSIONS


async def resume(log: EventLog) -> Outcome:
    """Continue after a kill, with models that go on after what the log has of their replies."""
    children = {record.data["session"] for record in log.find("session.delegated")}
    said = {
        name: sum(r.type == "message.recorded" and "model" in r.data for r in log.read(name))
        for name in ("s1", *children)
    }
    parent = parent_script()
    parent.answers = parent.answers[said["s1"] :]
    script = [propose(call("note", call_id="n", text="b")), "The answer is b."]
    expert = make_expert(*script[sum(said[name] for name in children) :] or ["unused"])
    session = await Session.open(parent, [expert], ALL, log, "s1", approve="wait")
    return await session.run("Go.", key="go")


async def test_parent_that_was_killed_resumes_its_child_at_each_record(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "story.db") as log:
        await resume(log)
        length = log.verify().records
    for at in range(1, length):
        ran.clear()
        path = tmp_path / f"{at}.db"
        source = sqlite3.connect(tmp_path / "story.db")
        target = sqlite3.connect(path)
        source.backup(target)
        [(number,)] = target.execute(
            "SELECT id FROM records ORDER BY rowid LIMIT 1 OFFSET ?", (at,)
        ).fetchall()
        target.execute(
            "DELETE FROM records WHERE rowid >= (SELECT rowid FROM records WHERE id = ?)",
            (number,),
        )
        target.commit()
        target.close()
        source.close()
        with SqliteLog(path) as log:
            noted = any(r.data["tool_name"] == "note" for r in log.find("tool.started"))
            outcome = await resume(log)
            assert outcome.outcome == "completed", at
            assert ran == ([] if noted else ["b"]), at
            names = {entry.session for entry in log.sessions()}
            for name in names:
                chains = check_evidence(list(log.read(name)))
                assert all(chain.count("tool.started") <= 1 for chain in chains.values())
            sums = [reduce_records(log.read(name)).spent for name in names]
            assert outcome.spent.turns == sum(each.turns for each in sums), at
            assert outcome.spent.tokens == sum(each.tokens for each in sums), at
            assert log.verify().ok


async def test_reads_of_a_reply_run_at_once_up_to_a_number() -> None:
    running = 0
    most = 0
    lock = threading.Lock()
    several = threading.Barrier(MAX_AT_ONCE)

    @tool(side_effect="read")
    def fetch(n: int) -> str:
        """Fetch."""
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        several.wait(PATIENCE)  # passes only if as many calls as are allowed run at once
        with lock:
            running -= 1
        return "ok"

    calls = [call("fetch", call_id=str(n), n=n) for n in range(4 * MAX_AT_ONCE)]
    outcome = await Session(Listed(propose(*calls), "Done."), [fetch]).run("Go.")
    assert outcome.outcome == "completed"
    assert most == MAX_AT_ONCE
