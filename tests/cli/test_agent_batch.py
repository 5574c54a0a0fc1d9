"""``dragoman agent --batch`` against a simulated server: a session and a folder for each row."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dragoman.cli import main
from dragoman.log import SqliteLog
from dragoman.messages import Request, ToolResult, User
from dragoman.permission import Decision
from dragoman.session import answer, find_questions
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule, SimServer

from ..waiting import block_until

ROWS = 6


def act(request: Request) -> Answer:
    """Write the goal to a file, copy the file, read it, and answer with the goal."""
    goal = next(each.text for each in request.messages if isinstance(each, User))
    results = [each.text for each in request.messages if isinstance(each, ToolResult)]
    if len(results) == 0:
        return Answer(tool_calls=[Call("edit_file", {"path": "note.txt", "old": "", "new": goal})])
    if len(results) == 1:
        return Answer(tool_calls=[Call("bash", {"command": "cat note.txt >> ran.txt"})])
    if len(results) == 2:
        return Answer(tool_calls=[Call("read_file", {"path": "note.txt"})])
    return Answer(f"Done: {goal}.")


@pytest.fixture
def server() -> Iterator[SimServer]:
    model = ScriptedProvider(ScriptRule(act), model="m")
    with SimServer(model, models=("m",)) as running:
        yield running


def write_goals(folder: Path, *rows: Any) -> Path:
    path = folder / "goals.jsonl"
    given = rows or [{"id": f"r{number}", "goal": f"goal {number}"} for number in range(ROWS)]
    lines = [each if isinstance(each, str) else json.dumps(each) for each in given]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def words(server: SimServer, folder: Path, *more: str) -> list[str]:
    return [
        "agent", "--batch", str(folder / "goals.jsonl"), str(folder / "out.jsonl"),
        "--model", "m", "--base-url", server.base_urls["openai"],
        "--log", str(folder / "log.db"), *more,
    ]  # fmt: skip


def run(server: SimServer, folder: Path, *more: str) -> Result:
    return CliRunner().invoke(main, words(server, folder, *more))


def read_out(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def count_started(folder: Path) -> int:
    with SqliteLog(folder / "log.db", readonly=True) as log:
        started = [each.data["intent_id"] for each in log.find("tool.started")]
        assert len(set(started)) == len(started)
        assert log.verify().ok
        return len(started)


def test_each_row_has_a_session_and_a_folder_of_its_own(server: SimServer, tmp_path: Path) -> None:
    write_goals(tmp_path)
    result = run(server, tmp_path, "--yes", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["rows"] == ROWS
    assert report["failed"] == report["waiting"] == 0
    rows = read_out(tmp_path)
    assert [row["text"] for row in rows] == [f"Done: goal {number}." for number in range(ROWS)]
    assert [row["id"] for row in rows] == [f"r{number}" for number in range(ROWS)]
    assert len({row["session"] for row in rows}) == ROWS
    for number, row in enumerate(rows):
        assert Path(row["workspace"], "note.txt").read_text() == f"goal {number}"
        assert row["spent"]["turns"] == 4
        assert row["spent"]["tool_calls"] == 3
    assert report["tokens"] == sum(row["spent"]["tokens"] for row in rows)


def test_second_run_sends_nothing(server: SimServer, tmp_path: Path) -> None:
    write_goals(tmp_path)
    assert run(server, tmp_path, "--yes").exit_code == 0
    before = len(server.provider.requests)
    again = run(server, tmp_path, "--yes")
    assert again.exit_code == 0, again.output
    assert "6 were there before" in again.stdout
    assert len(server.provider.requests) == before
    assert run(server, tmp_path, "--yes", "--fresh").exit_code == 0
    assert len(server.provider.requests) == 2 * before


def test_rows_work_in_copies_of_the_given_folder(server: SimServer, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / "here.txt").write_text("x")
    own = tmp_path / "own"
    own.mkdir()
    write_goals(tmp_path, {"goal": "a"}, {"goal": "b", "workspace": str(own)})
    result = run(server, tmp_path, "--yes", "--workspace", str(given))
    assert result.exit_code == 0, result.output
    copy, named = [Path(row["workspace"]) for row in read_out(tmp_path)]
    assert {path.name for path in copy.iterdir()} == {"here.txt", "note.txt", "ran.txt"}
    assert named == own
    assert {path.name for path in given.iterdir()} == {"here.txt"}


def test_errors_of_rows_are_in_the_output(server: SimServer, tmp_path: Path) -> None:
    write_goals(
        tmp_path, {"goal": "a"}, "{", {"goal": " "}, {"goal": "b", "workspace": "/nowhere"},
        {"goal": "c", "gaol": 1}, {"id": "x", "goal": "d"}, {"id": "x", "goal": "e"},
    )  # fmt: skip
    result = run(server, tmp_path, "--yes")
    assert result.exit_code == 0, result.output
    problems = {
        row["line"]: row["error"]["message"] for row in read_out(tmp_path) if "error" in row
    }
    assert problems.keys() == {2, 3, 4, 5, 7}
    assert "goal must be a text that is not empty" in problems[3]
    assert "there is no folder '/nowhere'" in problems[4]
    assert "'gaol' is not a field of a row; the fields are id, goal, workspace" in problems[5]
    assert "id 'x' is already used in line 6" in problems[7]


def test_session_that_ends_at_its_turns_is_a_failed_row(server: SimServer, tmp_path: Path) -> None:
    write_goals(tmp_path, {"goal": "a"})
    result = run(server, tmp_path, "--yes", "--budget", "steps=2")
    assert result.exit_code == 0, result.output
    [row] = read_out(tmp_path)
    assert row["outcome"] == "exhausted"
    assert row["error"]["category"] == "session_exhausted"
    more = run(server, tmp_path, "--yes", "--retry-failed")
    assert more.exit_code == 0, more.output
    [row] = read_out(tmp_path)
    assert row["text"] == "Done: a."
    assert count_started(tmp_path) == 3


@pytest.mark.parametrize("limit", ["calls=7", "tokens=1500"])
def test_all_sessions_share_the_budget(server: SimServer, tmp_path: Path, limit: str) -> None:
    write_goals(tmp_path)
    stopped = run(server, tmp_path, "--yes", "--budget", limit, "--json")
    assert stopped.exit_code == 23, stopped.output
    assert json.loads(stopped.stdout)["stopped"] == "budget"
    done = len(read_out(tmp_path))
    assert done < ROWS
    assert count_started(tmp_path) <= 7 or limit.startswith("tokens")
    again = run(server, tmp_path, "--yes", "--budget", limit, "--json")
    assert again.exit_code == 23  # what earlier runs spent counts
    assert len(read_out(tmp_path)) == done
    assert run(server, tmp_path, "--yes").exit_code == 0
    rows = read_out(tmp_path)
    assert [row["outcome"] for row in rows] == ["completed"] * ROWS
    assert count_started(tmp_path) <= 3 * ROWS


def test_sessions_that_wait_continue_in_the_next_run(server: SimServer, tmp_path: Path) -> None:
    write_goals(tmp_path, {"goal": "a"}, {"goal": "b"})
    for kind in ("edit_file", "bash"):
        result = run(server, tmp_path, "--await-approval", "--json")
        assert json.loads(result.stdout)["waiting"] == 2, (kind, result.output)
        assert read_out(tmp_path) == []
        with SqliteLog(tmp_path / "log.db") as log:
            for question in find_questions(log):
                assert question.tool_name == kind
                answer(log, question.session, question.intent_id, Decision(True, by="ann"))
    assert run(server, tmp_path, "--await-approval").exit_code == 0
    assert [row["text"] for row in read_out(tmp_path)] == ["Done: a.", "Done: b."]


def test_set_that_was_killed_runs_no_call_twice(server: SimServer, tmp_path: Path) -> None:
    write_goals(tmp_path)
    command = [sys.executable, "-m", "dragoman", *words(server, tmp_path, "--yes")]
    command += ["--concurrency", "2"]
    for requests in (5, 11, 17):
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as killed:
            block_until(
                lambda: len(server.provider.requests) >= requests,  # noqa: B023
                "requests of the agents",
            )
            os.kill(killed.pid, signal.SIGKILL)
    result = run(server, tmp_path, "--yes", "--json")
    assert result.exit_code == 0, result.output
    rows = read_out(tmp_path)
    assert [row["line"] for row in rows] == list(range(1, ROWS + 1))
    with SqliteLog(tmp_path / "log.db", readonly=True) as log:
        started = [each.data["intent_id"] for each in log.find("tool.started")]
        ended = [row for row in log.sessions() if row.session.startswith("batch_")]
    assert len(set(started)) == len(started)
    assert len(ended) == ROWS


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["Do it."], "leave out GOAL"),
        (["--resume", "last"], "leave out GOAL, --resume"),
        (["--acp"], "--acp"),
    ],
)
def test_options_of_one_session_are_refused(
    server: SimServer, tmp_path: Path, more: list[str], problem: str
) -> None:
    write_goals(tmp_path)
    result = run(server, tmp_path, *more)
    assert result.exit_code == 2
    assert problem in result.output


def test_options_of_a_batch_need_one() -> None:
    result = CliRunner().invoke(main, ["agent", "Do it.", "--fresh"])
    assert result.exit_code == 2
    assert "belong to --batch IN OUT" in result.output
