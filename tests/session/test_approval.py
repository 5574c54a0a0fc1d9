"""Test approvals: edits, scopes beyond one call, hooks, and answers from another process."""

import asyncio
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman import Policy, Rule, Session
from dragoman.cli import main
from dragoman.log import EventLog, MemoryLog, SqliteLog
from dragoman.permission import Decision, Proposal, Verdict
from dragoman.replay import to_steps
from dragoman.session import (
    RemoteApprover,
    SessionError,
    answer_question,
    find_questions,
    hook,
    reduce_records,
)
from dragoman.tools import FunctionTool, tool

from ..listed import Listed
from ..waiting import PATIENCE
from .playing import call, check_evidence, of, propose, until_asked

ran: list[str] = []
ASK = Policy([Rule("deny", arguments={"command": "*rm*"}, reason="nothing is removed")])


@tool(side_effect="execute")
def bash(command: str) -> str:
    """Run a command."""
    ran.append(command)
    return f"ran {command}"


def edit_file(path: str, text: str) -> str:
    """Write a file."""
    ran.append(f"{path}={text}")
    return "written"


EDIT = FunctionTool(edit_file, side_effect="write", locate=lambda given: (str(given["path"]),))


@pytest.fixture(autouse=True)
def clear() -> None:
    ran.clear()


def commands(*given: str) -> Listed:
    return Listed(
        *[propose(call("bash", call_id=f"c{at}", command=each)) for at, each in enumerate(given)],
        "Done.",
    )


async def run(
    provider: Listed, approve: Any, policy: Policy = ASK, tools: Any = None
) -> list[Any]:
    log = MemoryLog()
    session = Session(provider, tools or [bash, EDIT], policy, log, approve=approve)
    assert (await session.run("Go.")).outcome == "completed"
    records = list(log.read(session.id))
    check_evidence(records)
    assert not [step.notes for step in to_steps(records) if step.notes]
    assert reduce_records(records).messages == session.state.messages
    return records


# --- approvals that edit the input -------------------------------------------------------------


async def test_edited_approval_records_the_proposed_and_the_executed_input() -> None:
    provider = commands("pytest -x")
    records = await run(
        provider,
        lambda p, v: Decision(True, "ann", reason="faster", input={"command": "pytest -q"}),
    )
    assert ran == ["pytest -q"]
    assert of(records, "tool_intent.proposed")[0].input == {"command": "pytest -x"}
    granted = next(record for record in records if record.type == "permission.granted")
    assert granted.actor == "user"
    assert granted.payload.by == "ann"
    assert granted.payload.input == {"command": "pytest -q"}
    assert of(records, "tool.started")[0].input == {"command": "pytest -q"}
    assert provider.requests[1].messages[-1].text == (  # type: ignore[union-attr]
        '[The user changed the input of this call; it ran with {"command":"pytest -q"}]\n'
        "ran pytest -q"
    )
    title = next(step.title for step in to_steps(records) if step.type == "permission.granted")
    assert title == 'allowed bash, by ann, with {"command":"pytest -q"}: faster'


@pytest.mark.parametrize(
    ("edited", "why"),
    [
        ({"command": 7}, "the edited input cannot be used: "),
        ({}, "the edited input cannot be used: "),
        ({"command": "rm -rf /"}, "the edited input cannot be used: nothing is removed"),
        ({"command": object()}, "the edited input cannot be used: it is not JSON"),
    ],
)
async def test_edited_input_is_validated(edited: Any, why: str) -> None:
    records = await run(commands("ls"), lambda p, v: Decision(True, "ann", input=edited))
    assert ran == []
    [denied] = of(records, "permission.denied")
    assert why in denied.reason
    assert denied.by == "ann"


async def test_approval_whose_edit_is_refused_covers_no_later_call() -> None:
    """The log would have a permission that rests on a denial."""
    answers = iter([Decision(True, "ann", scope="session", input={}), Decision(False, "ann")])
    records = await run(commands("ls", "ls"), lambda p, v: next(answers))
    assert ran == []
    assert len(of(records, "permission.requested")) == 2
    assert len(of(records, "permission.denied")) == 2


async def test_approval_with_unchanged_input_is_not_an_edit() -> None:
    records = await run(
        commands("ls"), lambda p, v: Decision(True, "ann", input={"command": "ls"})
    )
    assert of(records, "permission.granted")[0].input is None
    assert of(records, "tool.observed")[0].content == "ran ls"


# --- scopes of approvals -----------------------------------------------------------------------


def edits(*paths: str) -> Listed:
    return Listed(
        *[
            propose(call("edit_file", call_id=f"c{at}", path=path, text=str(at)))
            for at, path in enumerate(paths)
        ],
        "Done.",
    )


GIT = ("git status", "git log", "git status; curl x", "gitx", "git status $(x)", "git diff")


@pytest.mark.parametrize(
    ("provider", "scope", "questions"),
    [
        (commands("a", "b", "c"), {"scope": "session"}, 1),
        (edits("a.txt", "a.txt", "b.txt", "a.txt"), {"scope": "path"}, 2),
        (commands(*GIT), {"scope": "prefix"}, 4),
        (commands("git log -1", "git log -2", "git push", "git log"),
         {"scope": "prefix", "prefix": "git log"}, 2),
        (commands("a", "b"), {"scope": "path"}, 2),
        (commands("a;b", "a;b"), {"scope": "prefix"}, 2),
        (commands("a", "a"), {"scope": "prefix", "prefix": "b"}, 2),
    ],
    ids=[
        "a session: all calls of the tool",
        "a path: later calls on it",
        "the prefix of the command: single commands that begin with it",
        "another prefix of the command",
        "a path, for a call without one: this call only",
        "a prefix, for several commands: this call only",
        "a prefix that the command does not have: this call only",
    ],
)  # fmt: skip
async def test_scope_of_an_approval_decides_which_calls_it_allows(
    provider: Listed, scope: dict[str, Any], questions: int
) -> None:
    asked: list[Proposal] = []

    def approve(proposal: Proposal, verdict: Verdict) -> Decision:
        asked.append(proposal)
        return Decision(True, "ann", **scope)

    await run(provider, approve)
    assert len(asked) == questions


async def test_later_calls_allowed_by_an_edited_approval_are_not_edited() -> None:
    records = await run(
        commands("a", "b"),
        lambda p, v: Decision(True, "ann", scope="session", input={"command": "edited"}),
    )
    assert ran == ["edited", "b"]
    first, second = of(records, "permission.granted")
    assert first.input == {"command": "edited"}
    assert first.rests_on is None
    assert second.input is None
    assert second.rests_on == first.intent_id


async def test_earlier_approval_does_not_override_a_rule_that_denies() -> None:
    records = await run(
        commands("ls", "rm x"), lambda p, v: Decision(True, "ann", scope="session")
    )
    assert ran == ["ls"]
    assert of(records, "permission.denied")[0].by == "policy"


# --- approval hooks ----------------------------------------------------------------------------


def program(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "check.py"
    path.write_text(f"import json, sys\nasked = json.load(sys.stdin)\n{text}")
    return [sys.executable, str(path)]


async def test_hook_program_can_allow_or_deny_a_call(tmp_path: Path) -> None:
    text = (
        "print(json.dumps({'allowed': asked['input']['command'] == 'ls', 'reason': "
        "asked['tool_name']}))"
    )
    records = await run(commands("ls", "make"), hook(program(tmp_path, text)))
    assert ran == ["ls"]
    granted = next(record for record in records if record.type == "permission.granted")
    assert granted.actor == "system"
    assert granted.payload.by.startswith("hook python")
    assert of(records, "permission.denied")[0].reason == "bash"


async def test_hook_function_can_allow_deny_edit_or_defer() -> None:
    async def check(asked: dict[str, Any]) -> Any:
        json.dumps(asked)
        assert asked["side_effect"] == "execute"
        assert asked["paths"] == []
        assert asked["session"].startswith("session_")
        if asked["input"]["command"] == "ls":
            return {"allowed": True, "by": "a bot", "input": {"command": "ls -l"}}
        return None

    records = await run(
        commands("ls", "make"), hook(check, then=lambda p, v: Decision(True, "ann"))
    )
    assert ran == ["ls -l", "make"]
    by = [each.by for each in of(records, "permission.granted")]
    assert by == ["hook check for a bot", "ann"]


async def test_call_is_denied_if_a_hook_defers_and_there_is_no_approver() -> None:
    records = await run(commands("ls"), hook(lambda asked: None))
    assert of(records, "permission.denied")[0].by == "nobody"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sys.exit('no way')", "no way"),
        ("sys.exit(3)", "exit code 3"),
        ("print('yes')", "did not print JSON"),
        ("print(json.dumps({'allow': True}))", "unknown field"),
        ("print(json.dumps('yes'))", "Expected `object`"),
        ("print('[' * 100_000)", "did not print JSON"),
        ('sys.stdout.buffer.write(b\'{"allowed": true, "reason": "\\xff"}\')', "not UTF-8"),
        ("for _ in range(64): print('x' * 1_000_000)", "printed more than 1048576 bytes"),
    ],
)
async def test_call_is_denied_if_the_hook_program_fails(
    tmp_path: Path, text: str, why: str
) -> None:
    tracemalloc.start()
    records = await run(commands("ls"), hook(program(tmp_path, text)))
    assert tracemalloc.get_traced_memory()[1] < 16_000_000
    tracemalloc.stop()
    assert ran == []
    assert why in of(records, "permission.denied")[0].reason


async def test_call_is_denied_if_the_hook_times_out_or_raises(tmp_path: Path) -> None:
    async def slow(asked: dict[str, Any]) -> bool:
        await asyncio.Event().wait()
        return True

    def broken(asked: dict[str, Any]) -> bool:
        raise KeyError("x")

    for target, seconds, why in (
        (slow, 0.05, "no answer after"),
        (broken, PATIENCE, "KeyError"),
        (["/nowhere/at/all"], PATIENCE, "cannot be run"),
    ):
        records = await run(commands("ls"), hook(target, timeout=seconds))  # type: ignore[arg-type]
        assert why in of(records, "permission.denied")[0].reason
    with pytest.raises(ValueError, match="hook"):
        hook("rm -rf")  # type: ignore[arg-type]


# --- approvals answered by another process -----------------------------------------------------


async def ask_elsewhere(log: EventLog, *given: str, **settings: Any) -> tuple[Session, Any, Any]:
    """Start a session that asks another process; return it, its task and its first question."""
    settings.setdefault("approve", RemoteApprover(log, interval=0.01))
    session = Session(commands(*given), [bash], ASK, log, **settings)
    running = asyncio.create_task(session.run("Go."))
    return session, running, await until_asked(log)


@pytest.fixture(params=["memory", "file"])
def any_log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EventLog]:
    with MemoryLog() if request.param == "memory" else SqliteLog(tmp_path / "log.db") as log:
        yield log


async def test_another_process_can_answer_a_permission_request(any_log: EventLog) -> None:
    log = any_log
    session, running, question = await ask_elsewhere(log, "ls", "make")
    assert question.session == session.id
    assert question.tool_name == "bash"
    assert question.input == {"command": "ls"}
    with pytest.raises(SessionError, match="no open question"):
        answer_question(log, session.id, "tu_other", Decision(True, "ann"))
    edited = Decision(True, "ann", input={"command": "ls -l"})
    answer_question(log, session.id, question.intent_id, edited)
    question = await until_asked(log, after=question.intent_id)
    assert question.input == {"command": "make"}
    answer_question(log, session.id, question.intent_id, Decision(False, "bob", reason="not now"))
    assert (await running).outcome == "completed"
    records = list(log.read(session.id))
    assert ran == ["ls -l"]
    assert [each.by for each in of(records, "permission.granted")] == ["ann"]
    assert of(records, "permission.denied")[0].reason == "not now"
    assert find_questions(log) == []
    check_evidence(records)


async def test_first_answer_to_a_permission_request_decides() -> None:
    async def never(proposal: Proposal, verdict: Verdict) -> bool:
        await asyncio.Event().wait()
        return True

    log = MemoryLog()
    at_once = RemoteApprover(log, lambda p, v: Decision(True, "ann"))
    await run(commands("ls"), at_once)
    assert ran == ["ls"]
    slow = RemoteApprover(log, never, interval=0.01)
    session, running, question = await ask_elsewhere(log, "make", approve=slow)
    answer_question(log, session.id, question.intent_id, Decision(True, "bob"))
    await running
    assert ran == ["ls", "make"]


@pytest.mark.parametrize("first", [True, False])
async def test_second_answer_to_a_permission_request_is_rejected(
    any_log: EventLog, first: bool
) -> None:
    log = any_log
    both = asyncio.Event()

    async def wait(proposal: Proposal, verdict: Verdict) -> Decision:
        await both.wait()  # until both answers are in the log
        return await RemoteApprover(log, interval=0.01)(proposal, verdict)

    session, running, question = await ask_elsewhere(log, "ls", approve=wait)
    asked = question.intent_id
    answer_question(log, session.id, asked, Decision(first, "ann"))
    with pytest.raises(SessionError, match=f"'ann' answered the question about '{asked}'"):
        answer_question(log, session.id, asked, Decision(not first, "bob"))
    both.set()
    await running
    assert ran == (["ls"] if first else [])
    kind = "permission.granted" if first else "permission.denied"
    assert [each.by for each in of(list(log.read(session.id)), kind)] == ["ann"]
    with pytest.raises(SessionError, match="no open question"):
        answer_question(log, session.id, asked, Decision(True, "bob"))


async def test_person_cannot_answer_in_the_name_of_a_rule_or_a_hook() -> None:
    log = MemoryLog()
    session, running, question = await ask_elsewhere(log, "ls")
    for by in ("policy", "nobody", "hook guard"):
        with pytest.raises(SessionError, match="is not the name of a person"):
            answer_question(log, session.id, question.intent_id, Decision(True, by))
    answer_question(log, session.id, question.intent_id, Decision(False, "ann"))
    await running
    assert ran == []


async def test_log_approve_command_answers_a_permission_request_of_another_process(
    tmp_path: Path,
) -> None:
    place = tmp_path / "log.db"
    words = ["log", "approve", "--log", str(place)]

    def tell(*more: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "dragoman", *words, *more]
        return subprocess.run(program, capture_output=True, text=True, check=False)

    with SqliteLog(place) as log:
        session, running, question = await ask_elsewhere(log, "ls")
        listed = CliRunner().invoke(main, [*words, "--json"])
        assert json.loads(listed.stdout)[0]["intent_id"] == question.intent_id
        assert CliRunner().invoke(main, [*words, session.id, "tu_nothing"]).exit_code == 2
        done = await asyncio.to_thread(
            tell, session.id, question.intent_id, "--by", "ann", "--input", '{"command": "ls -a"}'
        )
        assert done.returncode == 0, done.stderr
        assert (await running).outcome == "completed"
        assert ran == ["ls -a"]
        assert of(list(log.read(session.id)), "permission.granted")[0].by == "ann"
