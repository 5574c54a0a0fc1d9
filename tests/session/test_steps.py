"""Test sessions that advance by single steps, each of which another process may take."""

import sqlite3
from pathlib import Path

from dragoman.log import EventLog, MemoryLog, SqliteLog
from dragoman.messages import ToolResult
from dragoman.permission import Decision, Policy, Rule
from dragoman.session import Budget, Session, Step, answer, observe, reduce_records
from dragoman.tools import ExecutableTool, tool

from ..listed import Listed
from .playing import ALL, call, check_evidence, look, note, propose, ran

ASK = Policy([Rule("allow", side_effect=["none", "read"])])
YES = Decision(True, "ann")


@tool(side_effect="network", external=True)
async def ship(parcel: str) -> str:
    """Ship a parcel."""
    raise AssertionError("another service ships it")


TOOLS: list[ExecutableTool] = [look, note, ship]


def script() -> Listed:
    return Listed(
        propose(call("look", call_id="1", word="a"), call("note", call_id="2", text="b")),
        propose(call("ship", call_id="3", parcel="c"), call("fly", call_id="4")),
        "Done.",
        name="p",
    )


async def take_step(log: EventLog, policy: Policy = ALL) -> Step:
    """Take one step of the session as a process of its own would, which knows only the log."""
    made = sum(record.type == "llm.call_completed" for record in log.read("s1"))
    provider = script()
    provider.answers = provider.answers[made:]
    session = await Session.open(provider, TOOLS, policy, log, "s1", approve="wait")
    return await session.step("Go.", key="go")


async def finish(log: EventLog, policy: Policy = ALL) -> list[Step]:
    """Take steps until the session has answered; give the decisions and results that it awaits."""
    steps: list[Step] = []
    while not steps or steps[-1].outcome is None or steps[-1].outcome.outcome == "waiting":
        steps.append(await take_step(log, policy))
        assert len(steps) < 60
        for pending in steps[-1].outcome.pending if steps[-1].outcome is not None else ():
            if pending.kind == "decision":
                answer(log, "s1", pending.intent_id, YES)
            else:
                observe(log, "s1", pending.intent_id, "shipped")
    return steps


def results(log: EventLog) -> list[str]:
    messages = reduce_records(log.read("s1")).messages
    return [each.message.text for each in messages if isinstance(each.message, ToolResult)]


RESULTS = ["a: found", "noted", "shipped", "Not run: there is no tool named 'fly'"]


async def test_each_step_is_one_decision_and_names_it() -> None:
    log = MemoryLog()
    steps = await finish(log)
    names = {
        it.intent.id: it.intent.tool_name for it in reduce_records(log.read("s1")).intents.values()
    }
    assert [(step.kind, *[names[intent.id] for intent in step.intents]) for step in steps] == [
        ("call", "look", "note"),
        ("permission", "look"), ("permission", "note"),
        ("execution", "look"), ("execution", "note"),
        ("call", "ship", "fly"),
        ("permission", "ship"), ("permission", "fly"), ("execution", "ship"), ("waiting",),
        ("observation", "ship"),
        ("answer",),
    ]  # fmt: skip
    assert [step.number for step in steps] == [1] * 5 + [2] * 6 + [3]
    assert ran == ["a", "b"]
    assert results(log) == RESULTS
    check_evidence(list(log.read("s1")))


async def test_step_after_the_end_returns_the_recorded_outcome() -> None:
    log = MemoryLog()
    last = (await finish(log))[-1].outcome
    length = len(list(log.read("s1")))
    step = await take_step(log)
    assert step.kind == "end"
    assert step.outcome == last
    assert len(list(log.read("s1"))) == length


async def test_steps_that_wait_ask_each_question_in_a_step_of_its_own() -> None:
    log = MemoryLog()
    steps = await finish(log, ASK)
    assert [step.kind for step in steps] == [
        "call", "permission", "permission", "execution", "waiting", "permission", "execution",
        "call", "permission", "permission", "waiting", "permission", "execution", "waiting",
        "observation", "answer",
    ]  # fmt: skip
    assert ran == ["a", "b"]
    assert results(log) == RESULTS


async def test_steps_in_one_process_stop_at_the_budget() -> None:
    session = Session(script(), TOOLS, ALL, budget=Budget(steps=1))
    steps = [await session.step("Go.")]
    while steps[-1].outcome is None:
        steps.append(await session.step())
    kinds = ["call", "permission", "execution", "permission", "execution", "end"]
    assert [step.kind for step in steps] == kinds
    assert steps[-1].outcome is not None
    assert steps[-1].outcome.outcome == "exhausted"


def cut(story: Path, length: int, path: Path) -> None:
    """Copy a log as a kill after one of its records leaves it; answers that were given are kept."""
    for suffix in ("", ".answers"):
        source = sqlite3.connect(f"{story}{suffix}")
        target = sqlite3.connect(f"{path}{suffix}")
        source.backup(target)
        if not suffix:
            target.execute("DELETE FROM records WHERE seq > ?", (length,))
            target.commit()
        target.close()
        source.close()


async def test_steps_continue_after_a_kill_at_each_record(tmp_path: Path) -> None:
    story = tmp_path / "story.db"
    with SqliteLog(story) as log:
        await finish(log, ASK)
        records = list(log.read("s1"))
    for at in range(1, len(records) + 1):
        ran.clear()
        path = tmp_path / f"{at}.db"
        cut(story, at, path)
        with SqliteLog(path) as log:
            steps = await finish(log, ASK)
            assert log.verify().ok
            chains = check_evidence(list(log.read("s1")))
            state = reduce_records(log.read("s1"))
            assert results(log)[-2:] == RESULTS[-2:], at
        assert steps[-1].outcome is not None
        assert steps[-1].outcome.outcome == "completed"
        assert state.spent.turns >= 3
        began = records[:at]
        # what began before the kill is not run again, except the tool that only reads
        noted = any(it.type == "tool.started" and it.data["tool_name"] == "note" for it in began)
        assert ran.count("b") == (0 if noted else 1), at
        assert all(chain.count("tool.started") <= 1 for chain in chains.values())
