"""Test replaying real sessions: no tool runs again, and a repeated run equals the first."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from dragoman.cli import main
from dragoman.events import Raw
from dragoman.log import SqliteLog
from dragoman.permission import Policy, Rule
from dragoman.provider import Provider, connect
from dragoman.replay import ReplayProvider, compare_runs, count_totals, read_steps
from dragoman.session import Session
from dragoman.tools import Toolbox, tool
from dragoman.trace import Reader

from ..listed import Listed, reply
from ..server import answering
from ..session.playing import call, propose
from ..test_sync import Background

POLICY = Policy([Rule("deny", tool="erase"), Rule("allow")])
armed = False
ran: list[str] = []


def touch(word: str) -> None:
    assert not armed, "a tool ran while its run was only being replayed"
    ran.append(word)


@tool(side_effect="read")
def look(word: str) -> str:
    """Look up a word."""
    touch(word)
    return f"{word}: found"


@tool(side_effect="write")
def write(word: str) -> str:
    """Add a word to the notes."""
    touch(word)
    return "written"


@tool(side_effect="execute")
def erase(word: str) -> str:
    """Delete a word from the notes."""
    touch(word)
    return "gone"


TOOLS = [look, write, erase]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    global armed
    armed = False
    ran.clear()
    yield
    armed = False


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    with SqliteLog(tmp_path / "log.db") as log:
        yield log


def answers() -> list[Any]:
    """Return the replies of a run with concurrent reads, a denied call, an invalid call that is
    corrected, and a repeated call id.
    """
    return [
        propose(
            call("look", word="ox", call_id="a"),
            call("look", word="yak", call_id="b"),
            words="Looking.",
        ),
        propose(call("erase", word="all", call_id="a")),
        propose(call("write", wrong=1, call_id="c")),
        propose(call("write", word="ox", call_id="c")),
        "Done.",
    ]


async def run(provider: Provider, log: SqliteLog, name: str, **settings: Any) -> Any:
    return await Session(
        provider, TOOLS, POLICY, log, session_id=name, system="Be terse.", **settings
    ).run("Go")


async def test_rerun_from_a_log_equals_the_recorded_run(log: SqliteLog) -> None:
    first = await run(Listed(*answers()), log, "first")
    assert first.outcome == "completed"
    assert first.text == "Done."
    done = list(ran)
    assert sorted(done) == ["ox", "ox", "yak"]
    provider = ReplayProvider(log, "first")
    second = await run(provider, log, "second")
    assert second.outcome == "completed"
    assert second.text == "Done."
    assert provider.remaining == 0
    changes = compare_runs(read_steps(log, "first"), read_steps(log, "second"))
    assert changes == ()
    assert [step.notes for step in read_steps(log, "second") if step.notes] == []
    assert log.verify().ok


async def test_replay_runs_no_tool(log: SqliteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tool, and every function that could start a tool, is replaced by a function that fails
    the test.
    """
    await run(Listed(*answers()), log, "first")
    await run(ReplayProvider(log, "first"), log, "second")
    before = list(ran)

    def bomb(*_: Any, **__: Any) -> Any:
        raise AssertionError("replaying set off a bomb")

    global armed
    armed = True
    monkeypatch.setattr(Toolbox, "execute", bomb)
    monkeypatch.setattr(subprocess, "Popen", bomb)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", bomb)
    assert list(read_steps(log, "first"))
    assert compare_runs(read_steps(log, "first"), read_steps(log, "second")) == ()
    assert count_totals(log, "first").ran == 3
    reader = Reader(log)
    assert reader.read_page("first")["steps"]
    assert reader.check_chain("first")["ok"]
    for words in (
        ["replay", "first"],
        ["replay", "first", "--diff", "second"],
        ["log", "show", "first"],
    ):
        result = CliRunner().invoke(main, [*words, "--log", str(log.path)])
        assert result.exit_code == 0, result.output
    provider = ReplayProvider(log, "first")
    messages = [
        record.payload.message for record in log.read("first") if record.type == "message.recorded"
    ]  # type: ignore[union-attr]
    await provider.complete(messages[:2], [each.description for each in TOOLS])
    assert ran == before


def test_importing_the_replay_does_not_import_tools() -> None:
    program = (
        "import sys, dragoman.replay, dragoman.trace\nprint([name for name in sys.modules if "
        "name.startswith(('dragoman.tools', 'dragoman.session'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


async def test_raw_reply_is_recorded_if_requested(log: SqliteLog) -> None:
    with Background(answering("Hello")) as server:
        for keep in (False, True):
            provider = connect("m", base_url=server.base_url)
            outcome = await run(provider, log, f"keep {keep}", keep_raw=keep)
            await provider.close()
            assert outcome.text == "Hello"
    assert list(log.find("llm.exchange_kept", session="keep False")) == []
    [kept] = log.find("llm.exchange_kept", session="keep True")
    assert len(kept.data["reply"]["chunks"]) == 7
    shown = Reader(log).read_exchange("keep True", kept.data["request_id"])
    assert shown is not None
    assert '"finish_reason": "stop"' in shown["text"]
    assert '"chunks"' in shown["text"]
    assert compare_runs(read_steps(log, "keep False"), read_steps(log, "keep True")) == ()


async def test_record_explains_why_a_raw_reply_could_not_be_kept(log: SqliteLog) -> None:
    def odd(request: Any) -> list[Any]:
        *events, last = reply("Hello")(request)
        return [*events, replace(last, kept=Raw([b'{"text": "\\ud800"}'], json.loads))]

    outcome = await run(Listed(odd), log, "odd", keep_raw=True)
    assert outcome.text == "Hello"
    [kept] = log.find("llm.exchange_kept")
    assert "reply" not in kept.data
    assert "not valid Unicode" in kept.data["problem"]
