"""``ask`` and ``chat`` write to the log, which never blocks a reply."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dragoman import log as logs
from dragoman.cli import main
from dragoman.cli.errors import EXIT_CODES
from dragoman.log import LogRecord, SqliteLog
from dragoman.messages import Assistant, System, User

from ..server import Connection, answering
from ..test_sync import Background
from ..waiting import PATIENCE
from .test_chat import TOOL, hang, heard, propose, talk_to

KEY = "sk-secret-0123456789abcdef"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("DRAGOMAN_API_KEY", KEY)
    monkeypatch.delenv("DRAGOMAN_LOG", raising=False)
    return tmp_path / "dragoman" / "log.db"


def run(*words: str, given: str = "") -> Result:
    return CliRunner().invoke(main, list(words), input=given)


def read(place: Path) -> dict[str, list[LogRecord]]:
    with SqliteLog(place, readonly=True) as log:
        assert log.verify().ok
        return {entry.session: list(log.read(entry.session)) for entry in log.sessions()}


def only(place: Path) -> list[LogRecord]:
    (records,) = read(place).values()
    return records


def types(records: list[LogRecord]) -> list[str]:
    return [record.type for record in records]


def messages(records: list[LogRecord]) -> list[Any]:
    return [
        record.payload.message
        for record in records
        if isinstance(record.payload, logs.MessageRecorded)
    ]


CALL = [
    "turn.started", "message.recorded", "llm.call_started", "message.recorded",
    "llm.call_completed",
]  # fmt: skip


@pytest.mark.parametrize("mode", ["--stream", "--no-stream"])
def test_ask_command_is_recorded_in_the_log(place: Path, mode: str) -> None:
    with Background(answering("Paris")) as server:
        words = ["ask", "m", "Capital?", "--base-url", server.base_url, mode]
        more = ["--system", "Be brief", "-o", "secret_field", KEY]
        assert run(*words, *more).exit_code == 0
    records = only(place)
    assert types(records) == ["session.started", "message.recorded", *CALL, "session.finished"]
    assert messages(records) == [System("Be brief"), User("Capital?"), Assistant("Paris")]
    started = records[0].payload
    assert started.kind == "ask"
    assert started.goal == "Capital?"
    assert started.model == "m"
    ended = records[-2].payload
    assert ended.input_tokens == 3
    assert ended.output_tokens == 2
    assert KEY.encode() not in place.read_bytes()
    for command in ("log show", "replay", "log verify", "log cost", "log export"):
        assert run(*command.split(), "last").exit_code == 0
    assert "!" not in run("replay", "last").stdout  # replay marks no record as inconsistent


def test_chat_is_recorded_as_one_session_and_its_text_is_searchable(place: Path) -> None:
    with Background(answering("Hello")) as server:
        talk_to(server, given="one giraffe\ntwo\n/reset\nthree\n")
    sessions = list(read(place).values())
    assert [types(records) for records in sessions] == [
        ["session.started", *CALL, *CALL, "session.finished"],
        ["session.started", *CALL, "session.finished"],
    ]
    (found,) = json.loads(run("log", "search", "GIRAFFE", "--json").stdout)
    assert found["kind"] == "chat"
    assert found["goal"] == "one giraffe"
    listed = run("log", "list", "--kind", "chat").stdout
    assert "one giraffe" in listed
    assert "unknown" in listed  # the price of this model is unknown
    assert run("log", "list", "--kind", "agent").stdout == ""


def test_empty_chat_records_no_session(place: Path) -> None:
    with Background(answering("Hello")) as server:
        talk_to(server, given="/help\n/reset\n")
    assert not place.exists()


def test_continued_chat_keeps_its_model_and_messages(place: Path) -> None:
    with Background(answering("Hello")) as server:
        talk_to(server, "--system", "S", given="one\n")
        run("ask", "m", "other", "--base-url", server.base_url)
        for words in (["-c"], ["--continue", max(read(place))[:12]]):
            again = run("chat", *words, given="two\n")
            assert again.exit_code == 0, again.stderr
        assert "continuing chat_" in again.stderr
        run("chat", "-c", "--prompt", "three")
    assert heard(server)[-1] == ["S", "one", "Hello", "two", "Hello", "two", "Hello", "three"]
    records = next(records for name, records in read(place).items() if name.startswith("chat_"))
    assert types(records).count("session.resumed") == 3
    assert types(records).count("session.started") == 1
    assert "!" not in run("replay", records[0].session).stdout


def test_unanswered_question_is_recorded_and_not_sent_again(place: Path) -> None:
    async def handler(connection: Connection) -> None:
        if connection.seen.json["messages"][-1]["content"] == "two":
            connection.reply(400, b'{"error": {"message": "no ' + KEY.encode() + b'"}}')
        else:
            await answering("Hello")(connection)

    with Background(handler) as server:
        talk_to(server, given="one\ntwo\n")
        run("chat", "-c", given="three\n")
    assert heard(server)[-1] == ["one", "Hello", "three"]
    records = only(place)
    assert [record.type for record in records if isinstance(record.payload, logs.CallFailed)] == [
        "llm.call_failed"
    ]
    assert User("two") in messages(records)
    assert KEY.encode() not in place.read_bytes()


def test_continue_option_reports_a_missing_chat_or_an_unknown_id(place: Path) -> None:
    with Background(answering("Hello")) as server:
        run("ask", "m", "one", "--base-url", server.base_url)
    for words, problem in (
        (["-c"], "the log has no chat yet"),
        (["-c", "nope"], "no session 'nope'"),
    ):
        found = run("chat", *words, given="")
        assert problem in found.stderr
        assert found.exit_code == 2


def test_model_swap_is_recorded_and_continuing_uses_the_new_model(place: Path) -> None:
    with Background(answering("A")) as one, Background(answering("B")) as two:
        talk_to(one, given=f"one\n/model other {two.base_url}\ntwo\n")
        run("chat", "-c", given="three\n")
        assert len(two.requests) == 2
    assert "model.swapped" in types(only(place))


def test_tool_calls_in_a_chat_are_recorded_as_not_executed(place: Path, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(TOOL))
    with Background(propose) as server:
        given = f"/tools {tmp_path / 'tools.json'}\nlook\n/result a boat\n"
        talk_to(server, given=given)
    found = types(only(place))
    assert found.count("tool_intent.proposed") == 1
    assert found.count("tool_intent.closed") == 1
    assert "tool.started" not in found
    assert "!" not in run("replay", "last").stdout


@contextlib.contextmanager
def started(*words: str) -> Iterator[Any]:
    """Start a command as a process, which does not outlive the test."""
    with subprocess.Popen(
        [sys.executable, "-m", "dragoman", *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_interrupted_reply_is_recorded_partially(place: Path, command: str) -> None:
    words = ["m", "Hi"] if command == "ask" else ["m", "--prompt", "Hi"]
    with (
        Background(hang) as server,
        started(command, *words, "--base-url", server.base_url) as process,
    ):
        process.stdin.close()
        assert process.stdout.read(5) == b"First"
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
    records = only(place)
    assert types(records)[-2:] == ["llm.call_failed", "session.finished"]
    failed = records[-2].payload
    assert isinstance(failed, logs.CallFailed)
    assert process.returncode == (EXIT_CODES["cancelled"] if command == "ask" else 0)
    assert failed.error_class == "cancelled"
    assert messages(records)[-1] == Assistant("First half")


@pytest.mark.parametrize("mode", ["--stream", "--no-stream"])
def test_ask_interrupted_before_its_reply_is_recorded(place: Path, mode: str) -> None:
    asked = threading.Event()

    async def handler(connection: Connection) -> None:
        asked.set()
        await asyncio.Event().wait()

    with (
        Background(handler) as server,
        started("ask", "m", "Hi", mode, "--base-url", server.base_url) as process,
    ):
        process.stdin.close()
        assert asked.wait(PATIENCE), "waited for the request"
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
        said = process.stderr.read()
    assert b"Traceback" not in said
    assert process.returncode == EXIT_CODES["cancelled"]
    records = only(place)
    assert types(records)[-2:] == ["llm.call_failed", "session.finished"]
    assert records[-1].data["outcome"] == "cancelled"


def test_failed_ask_command_is_recorded(place: Path) -> None:
    found = run("ask", "m", "Hi", "--base-url", "http://127.0.0.1:9/v1", "--retries", "1")
    assert found.exit_code == EXIT_CODES["provider_unavailable"]
    records = only(place)
    failures = [
        record.payload for record in records if isinstance(record.payload, logs.CallFailed)
    ]
    assert [failure.attempt for failure in failures] == [0, 1]
    assert types(records)[-1] == "session.finished"
    assert records[-1].data["outcome"] == "failed"


def test_unusable_log_causes_one_note_and_does_not_stop_the_reply(place: Path) -> None:
    place.parent.mkdir(parents=True)
    with Background(answering("Paris")) as server:
        with SqliteLog(place):
            held = run("ask", "m", "Capital?", "--base-url", server.base_url)
        place.write_bytes(b"this is not a database" * 100)
        broken = talk_to(server, given="one\ntwo\n")
    for found in (held, broken):
        assert found.exit_code == 0
        assert "Paris" in found.stdout
        assert found.stderr.count("note: the log is not complete") == 1


def test_chat_records_are_written_later_if_the_log_was_locked(place: Path) -> None:
    place.parent.mkdir(parents=True)
    with (
        Background(answering("Hello")) as server,
        SqliteLog(place) as other,
        started("chat", "m", "--base-url", server.base_url) as process,
    ):
        for line in (b"one\n", b"two\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.read(6) == b"Hello\n"
        other.close()
        _, said = process.communicate(timeout=PATIENCE)
    assert b"not complete" not in said
    expected = [User("one"), Assistant("Hello"), User("two"), Assistant("Hello")]
    assert messages(only(place)) == expected


def test_recording_can_be_turned_off(place: Path) -> None:
    with Background(answering("Hello")) as server:
        where = ["--base-url", server.base_url]
        run("ask", "m", "one", *where, "--no-log")
        run("chat", "m", "--no-log", *where, given="one\n")
        assert run("log", "off").exit_code == 0
        expected = {"logging": False, "place": str(place)}
        assert json.loads(run("log", "status", "--json").stdout) == expected
        run("ask", "m", "two", *where)
        assert not place.exists()
        run("log", "on")
        assert "are logged" in run("log", "status").stdout
        run("ask", "m", "three", *where)
    assert messages(only(place))[0] == User("three")


def test_path_of_the_log_is_read_from_an_environment_variable(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_LOG", str(tmp_path / "mine.db"))
    with Background(answering("Hello")) as server:
        run("ask", "m", "one", "--base-url", server.base_url)
    assert not place.exists()
    assert messages(only(tmp_path / "mine.db"))[0] == User("one")
    assert (tmp_path / "mine.db").stat().st_mode & 0o777 == 0o600
