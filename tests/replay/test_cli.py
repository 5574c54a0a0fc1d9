"""Test the ``dragoman replay`` command."""

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from dragoman.cli import main
from dragoman.cli.errors import EXIT_CODES
from dragoman.log import PermissionGranted, SqliteLog, ToolObserved, ToolStarted

from ..story import LEFT_OPEN, STORY, tell


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["replay", *words])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        tell(log, "fix")
        tell(log, "look", LEFT_OPEN)
    return path


def test_replay_command_prints_each_step(path: Path) -> None:
    result = run("fix", "--log", str(path))
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    assert len(lines) == len(STORY) + 1
    assert "proposed bash rm -rf /" in result.stdout
    assert "allowed edit_file, by user: looks right" in result.stdout
    assert (
        lines[-1]
        == "4 turns, 4 calls answered, 1 failed, 5600 tokens in, 205 out, $0.008295 and 1 call of"
        " unknown cost; 3 proposed, 2 allowed, 1 denied, 2 ran. The hash chain is intact."
    )
    assert "\x1b" not in result.output


def test_replay_command_can_print_json(path: Path) -> None:
    steps = [
        json.loads(line) for line in run("fix", "--log", str(path), "--json").stdout.splitlines()
    ]
    assert [step["seq"] for step in steps] == list(range(1, len(STORY) + 1))
    assert steps[5]["data"]["message"]["role"] == "assistant"
    assert '"command": "make test"' in run("fix", "--log", str(path), "--full").stdout


def test_replay_marks_steps_that_lack_a_decision(path: Path) -> None:
    with SqliteLog(path) as log:
        tell(
            log,
            "odd",
            [payload for payload in STORY if not isinstance(payload, PermissionGranted)],
        )
    shown = run("odd", "--log", str(path)).stdout
    assert shown.count("! it ran without a decision") == 2


def test_replay_shows_a_broken_chain_up_to_the_break(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE records SET payload = '{}' WHERE session = 'fix' AND seq = 8")
    connection.commit()
    connection.close()
    result = run("fix", "--log", str(path))
    assert result.exit_code == EXIT_CODES["log_broken"]
    assert "BROKEN: session fix, record 8" in result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines() if line.strip()] == [
        str(n) for n in range(1, 8)
    ]
    assert "whole" not in result.output
    assert len(run("fix", "--log", str(path), "--json").stdout.splitlines()) == 7


def test_replay_command_compares_two_runs(path: Path, tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "other.db") as log:
        tell(log, "fix")
        tell(
            log,
            "changed",
            [replace(it, content="?") if type(it) is ToolObserved else it for it in STORY],
        )
        tell(log, "shorter", [it for it in STORY if type(it) is not ToolStarted])
    other = ["--log", str(path), "--diff-log", str(tmp_path / "other.db")]
    same = run("fix", "--diff", "fix", *other)
    assert same.stdout == "the runs are the same\n"
    assert same.exit_code == 0
    changed = run("fix", "--diff", "changed", *other)
    assert changed.exit_code == EXIT_CODES["runs_differ"]
    assert 'content: "1 replacement" and "?"' in changed.stdout
    shorter = [
        json.loads(line)
        for line in run("fix", "--diff", "shorter", *other, "--json").stdout.splitlines()
    ]
    assert [(change["kind"], change["a"]["type"]) for change in shorter] == [
        ("only_a", "tool.started")
    ] * 2


def test_control_characters_in_a_run_are_not_printed(path: Path) -> None:
    with SqliteLog(path) as log:
        log.append_sync(
            "evil", ToolObserved(intent_id="tu", tool_name="bash", content="\x1b[2J\x9b31m\u202e")
        )
    shown = run("evil", "--log", str(path), "--full").stdout
    assert all(letter.isprintable() or letter == "\n" for letter in shown)


def test_error_names_an_unknown_run(path: Path) -> None:
    assert run("no", "--log", str(path)).exit_code == 2
    assert run("fix", "--diff", "no", "--log", str(path)).exit_code == 2
    assert run("fix", "--log", str(path) + ".none").exit_code == EXIT_CODES["log_unusable"]
