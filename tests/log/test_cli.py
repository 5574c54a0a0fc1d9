"""Test the ``dragoman log`` commands on real files and a real server."""

import csv
import json
import os
import sqlite3
import sys
from decimal import Decimal
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dragoman.calls import CallCompleted, Inbound
from dragoman.cli import main
from dragoman.cli.bills import show_bills, write_csv
from dragoman.cli.errors import EXIT_CODES
from dragoman.log import (
    MessageRecorded,
    SessionStarted,
    SqliteLog,
    ToolObserved,
    find_place,
    name_place,
    open_log,
)
from dragoman.log.record import Draft
from dragoman.messages import User
from dragoman.prices import PriceTable

from ..cli.terminal import Terminal
from ..listed import Clock
from ..server import answering
from ..story import GOAL, LEFT_OPEN, STORY, tell
from ..test_sync import Background


def run(command: str, place: Path | str | None = None, *words: str, **variables: str) -> Result:
    """Run ``dragoman log COMMAND WORDS --log PLACE``."""
    where = [] if place is None else ["--log", str(place)]
    variables = {"DRAGOMAN_LOG": "", **variables}
    return CliRunner().invoke(main, ["log", command, *words, *where], env=variables)


def read(command: str, place: Path | str, *words: str) -> Any:
    """Return what a command prints with ``--json``."""
    return json.loads(run(command, place, *words, "--json").stdout)


def change(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        tell(log, "fix")
        tell(log, "look", LEFT_OPEN)
    return path


def test_list_command_shows_the_sessions(path: Path) -> None:
    shown = run("list", path).stdout.splitlines()
    heads = ["last", "record", "kind", "model", "cost", "outcome", "session", "begins", "with"]
    assert shown[0].split() == heads
    assert shown[2].split()[2:7] == [
        "agent", "anthropic:claude-sonnet-4-6", "$0.008295+", "completed", "fix",
    ]  # fmt: skip
    assert shown[2].endswith(f" {GOAL}")
    listed = json.loads(run("list", None, "--json", DRAGOMAN_LOG=str(path)).stdout)
    assert [(entry["session"], entry["goal"], entry["outcome"]) for entry in listed] == [
        ("look", "Only look", None),
        ("fix", GOAL, "completed"),
    ]
    short = run("list", path, "--limit", "1")
    assert len(short.stdout.splitlines()) == 2
    assert "and 1 more" in short.stderr


@pytest.mark.parametrize("amount", ["1e30", "1e315", "1e400", "1e9999999", "1e-9999999"])
def test_cost_of_any_size_does_not_hide_the_log(path: Path, amount: str) -> None:
    if amount == "1e315":  # an earlier version wrote all digits of such a cost
        amount = f"{Decimal(amount):f}.25"
    call = '{"cost_usd":%s,"model":"m","provider":"p","stop_reason":"end_turn","latency_ms":1.0}'
    append_forged(path, "llm.call_completed", (call % amount).encode())
    assert run("verify", path).exit_code == 0
    listed = run("list", path)
    assert len(listed.stdout.splitlines()) == 3
    assert listed.exit_code == 0
    for command in ("show", "cost", "export"):
        shown = run(command, path, "fix")
        assert shown.exit_code == 0, (command, shown.output[-300:])
    with SqliteLog(path) as log:
        *_, last = log.read("fix")
        assert last.payload.cost_usd == Decimal(amount)  # type: ignore[union-attr]
        assert last.data["model"] == "m"


def test_unreadable_record_does_not_hide_the_log_and_is_told_apart_from_a_changed_one(
    path: Path,
) -> None:
    append_forged(path, "turn.started", b'{"number":1' + b"0" * 5000 + b"}")
    with SqliteLog(path) as log:
        log.append_sync("fix", SessionStarted(goal="later"))
    verified = run("verify", path)
    assert verified.exit_code == EXIT_CODES["log_unreadable"]
    assert "whole, and 1 cannot be read although the hash is correct" in verified.stdout
    assert f"session fix, record {len(STORY) + 1}, " in verified.stdout
    assert read("verify", path)["records"] == len(STORY) + 8 + 2
    for command in ("list", "cost"):
        assert run(command, path).exit_code == 0
    shown = run("show", path, "fix")
    assert shown.exit_code == 0
    assert "unreadable" in shown.stdout
    assert shown.stdout.rstrip().endswith("later")
    change(path, f"UPDATE records SET payload = '{{}}' WHERE seq = {len(STORY)}")
    assert run("verify", path).exit_code == EXIT_CODES["log_broken"]


def append_forged(path: Path, kind: str, payload: bytes) -> None:
    """Append a record with a correct hash and any payload, as another writer can."""
    with SqliteLog(path) as log:
        log._write([Draft("fix", None, None, kind, "system", "private", payload)])  # noqa: SLF001


def test_show_command_prints_the_records(path: Path) -> None:
    shown = run("show", path, "fix").stdout.splitlines()
    assert len(shown) == len(STORY)
    denied = next(line for line in shown if "permission.denied" in line)
    assert denied.endswith("denied bash, by rule: bash: rm *: removes files")
    stored = run("show", path, "fix", "--json").stdout.splitlines()
    with SqliteLog(path, readonly=True) as log:
        assert [line.encode() for line in stored] == [record.line for record in log.read("fix")]
    some = run("show", path, "fix", "--type", "tool.started", "--after", "10", "--json").stdout
    assert [json.loads(line)["payload"]["tool_name"] for line in some.splitlines()] == [
        "edit_file"
    ]


def test_control_characters_in_a_record_are_not_printed(path: Path) -> None:
    with SqliteLog(path) as log:
        log.append_sync(
            "evil",
            SessionStarted(goal="\x1b[2J\x1b]0;owned\x07 \u202egnp.exe\r\n" + "x" * 1_000_000),
        )
        log.append_sync(
            "evil", ToolObserved(intent_id="tu", tool_name="bash", content="\x9b31m\x00" * 100_000)
        )
    for words in (["show", "evil"], ["list"]):
        shown = run(words[0], path, *words[1:]).stdout
        assert all(letter.isprintable() or letter == "\n" for letter in shown)
        assert all(len(line) < 300 for line in shown.splitlines())


@pytest.mark.parametrize(
    "words", [["show", "no"], ["verify", "no"], ["export", "no"], ["cost", "no"]]
)
def test_unknown_session_is_reported(path: Path, words: list[str]) -> None:
    result = run(words[0], path, *words[1:])
    assert "the log has no session 'no'" in result.stderr
    assert result.exit_code == 2


@pytest.mark.parametrize("words", [["show"], ["verify"], ["export"], ["cost"]])
def test_session_is_found_by_a_prefix_or_by_the_name_last(path: Path, words: list[str]) -> None:
    exact = run(words[0], path, *words[1:], "look")
    assert exact.exit_code == 0
    for name in ("lo", "last"):
        assert run(words[0], path, *words[1:], name).stdout == exact.stdout


def test_session_is_found_by_part_of_its_id_and_ambiguity_is_reported(path: Path) -> None:
    with SqliteLog(path) as log:
        for name in ("chat_01AB", "ask_01AC"):
            log.append_sync(name, SessionStarted(goal=f"question of {name}", kind="chat"))
    assert "question of chat_01AB" in run("show", path, "01ab").stdout
    found = run("show", path, "01")
    assert found.stdout == ""
    assert found.exit_code == 2
    for words in ("2 sessions", "chat_01AB", "ask_01AC", "question of ask_01AC"):
        assert words in found.stderr
    replayed = CliRunner().invoke(main, ["replay", "last", "--log", str(path)])
    assert "question of ask_01AC" in replayed.stdout


def test_shortened_session_ids_can_be_used_as_arguments(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    names = [
        "chat_01M7GF3N03RFWHZMXNHT3N77NK",
        "chat_01M7GF3N03RFWHZMXNHT3N88NK",
        "ask_01M7GF3N03RFWHZMXNHT3N77NK",
    ]
    with SqliteLog(path) as log:
        for name in names:
            log.append_sync(name, SessionStarted(goal="A question"))
    with Terminal("log", "list", "--log", str(path), columns=120) as terminal:
        assert terminal.wait() == 0
    shown = {word for word in terminal.raw.split() if word.startswith(("chat_", "ask_"))}
    assert shown == {
        "chat_01M7GF3N03RFWHZMXNHT3N7", "chat_01M7GF3N03RFWHZMXNHT3N8", "ask_01M7GF3N03RF",
    }  # fmt: skip
    for word in shown:
        assert run("show", path, word).exit_code == 0


def test_prune_command_waits_for_another_writer_that_ends_soon(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SqliteLog(path)
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.now += seconds
        if clock.now >= 1000.3:
            log.close()

    monkeypatch.setattr(
        "dragoman.cli.log_place.time", SimpleNamespace(monotonic=clock, sleep=sleep)
    )
    done = run("prune", path, "--older-than", "2099-01-01", "--yes")
    assert done.stdout.split() == ["fix", "look"]
    assert done.exit_code == 0
    assert clock.now >= 1000.3


def test_asking_for_the_last_session_of_an_empty_log_is_an_error(tmp_path: Path) -> None:
    SqliteLog(tmp_path / "log.db").close()
    found = run("show", tmp_path / "log.db", "last")
    assert "the log has no session yet" in found.stderr
    assert found.exit_code == 2


@pytest.mark.parametrize(
    ("text", "sessions"),
    [
        ("RM -rf", ["fix"]),  # this text occurs in the command of a tool call
        ("only look", ["look"]),
        ("claude-sonnet", ["look", "fix"]),
        ("private", []),  # the name of a database column does not match
        ("tool_name", []),  # the name of a JSON field does not match
        ("assistant", []),  # the role of a message does not match
    ],
)
def test_search_command_finds_records(path: Path, text: str, sessions: list[str]) -> None:
    found = read("search", path, text)
    assert [each["session"] for each in found] == sessions
    for each in found:
        assert all(text.casefold() in match["excerpt"].casefold() for match in each["matches"])
    shown = run("search", path, text)
    assert all(name in shown.stdout for name in sessions)
    assert ("no session contains" in shown.stderr) is not bool(sessions)


def test_empty_search_is_a_usage_error(path: Path) -> None:
    assert run("search", path, " ").exit_code == 2


# --- dragoman log verify -----------------------------------------------------------------------


def test_verify_command_accepts_an_intact_log(path: Path) -> None:
    result = run("verify", path)
    assert result.exit_code == 0
    assert result.stdout == f"{len(STORY) + 8} records in 2 sessions: whole\n"
    report = {
        "ok": True,
        "sessions": 1,
        "records": len(STORY),
        "breaks": [],
        "unreadable": [],
        "erased": 0,
    }
    assert read("verify", path, "fix") == report


def test_verify_command_names_the_first_broken_link(path: Path) -> None:
    change(
        path,
        "UPDATE records SET payload = replace(payload, 'denied', 'granted') WHERE session = 'fix'",
        "UPDATE records SET actor = 'user' WHERE session = 'fix' AND seq = 7",
    )
    result = run("verify", path)
    assert result.exit_code == EXIT_CODES["log_broken"]
    assert "BROKEN" in result.stdout
    assert "session fix, record 7" in result.stdout
    assert result.stdout.count("hash mismatch") == 1
    broken = run("verify", path, "--json")
    assert broken.exit_code == EXIT_CODES["log_broken"]
    report = json.loads(broken.stdout)
    assert report["ok"] is False
    assert [(found["session"], found["seq"]) for found in report["breaks"]] == [("fix", 7)]
    assert run("verify", path, "look").exit_code == 0


def test_verify_command_detects_a_truncated_chain_with_saved_hashes(
    path: Path, tmp_path: Path
) -> None:
    heads = tmp_path / "heads.json"
    heads.write_text(run("list", path, "--json").stdout)
    assert run("verify", path, "--known", str(heads)).exit_code == 0
    change(path, f"DELETE FROM records WHERE session = 'fix' AND seq = {len(STORY)}")
    # The chain alone cannot show that its last record was deleted.
    assert run("verify", path).exit_code == 0
    for words in ([], ["fix"]):
        result = run("verify", path, *words, "--known", str(heads))
        assert "cut short" in result.stdout
        assert result.exit_code == EXIT_CODES["log_broken"]
    heads.write_text('[{"session": 1}]')
    assert run("verify", path, "--known", str(heads)).exit_code == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no log exists here"),
        (b"not a log " * 500, "not a database"),
        (b"SQLite format 3\0", "cut off"),
    ],
)
def test_error_names_a_log_that_cannot_be_opened(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "log.db"
    if content is not None:
        path.write_bytes(content)
    for command in ("list", "verify", "export", "cost"):
        result = run(command, path)
        assert result.exit_code == EXIT_CODES["log_unusable"], result.output
        assert words in result.stderr
        assert str(path) in result.stderr


# --- dragoman log export and dragoman log prune ------------------------------------------------


def test_export_command_writes_the_records(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    result = run("export", path, "-o", str(out))
    assert result.stderr == f"{out}: {len(STORY) + 8} records\n"
    assert result.exit_code == 0
    assert run("export", path).stdout_bytes == out.read_bytes()
    assert len(run("export", path, "look").stdout.splitlines()) == 8
    assert run("export", path, "-o", str(tmp_path / "no" / "out")).exit_code == 2


def test_progress_bars_are_shown_at_terminals_only(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dragoman.cli.console._DELAY", -1)
    monkeypatch.setenv("TERM", "dumb")
    with monkeypatch.context() as terminal:
        terminal.setattr(sys.stderr, "isatty", lambda: True)
        main(["log", "verify", "--log", str(path)], standalone_mode=False)
    seen = capsys.readouterr()
    assert "verifying: 100 %" in seen.err
    assert seen.out.endswith("whole\n")
    assert run("verify", path).stderr == ""


def test_prune_command_removes_old_sessions(path: Path) -> None:
    would = run("prune", path, "--older-than", "2099-01-01", "--dry-run")
    assert would.stdout.split() == ["fix", "look"]
    assert would.stderr == "2 sessions would be removed\n"
    young = run("prune", path, "--older-than", "1h", "--yes")
    assert young.stderr == "0 sessions removed\n"
    unasked = run("prune", path, "--older-than", "2099-01-01")
    assert "--yes" in unasked.stderr
    assert unasked.exit_code == 2
    assert len(run("export", path).stdout.splitlines()) == len(STORY) + 8
    done = run("prune", path, "--older-than", "2099-01-01", "--yes", "--json")
    assert json.loads(done.stdout)["removed"] == ["fix", "look"]
    assert [entry["session"] for entry in read("list", path)] == ["dragoman.log"]
    elsewhere = path.with_name("none.db")
    missing = run("prune", elsewhere, "--older-than", "1d", "--yes")
    assert missing.exit_code == EXIT_CODES["log_unusable"]
    assert not elsewhere.exists()
    for age in ("soon", "-3d", "90", "9" * 9 + "d"):
        assert run("prune", path, "--older-than", age, "--yes").exit_code == 2


def test_log_that_is_being_written_can_be_verified_and_is_not_pruned(path: Path) -> None:
    with SqliteLog(path):
        assert run("verify", path).exit_code == 0
        result = run("prune", path, "--older-than", "2099-01-01", "--yes")
    assert result.exit_code == EXIT_CODES["log_unusable"]
    assert f"is being written by process {os.getpid()}" in result.stderr


# --- dragoman log cost -------------------------------------------------------------------------


def test_cost_command_uses_recorded_and_bundled_prices(path: Path) -> None:
    billed = read("cost", path, "fix")
    [row] = billed["models"]
    assert row["model"] == "anthropic:claude-sonnet-4-6"
    assert row["calls"] == 4
    assert row["input_tokens"] == 5600
    assert row["output_tokens"] == 205
    assert Decimal(row["recorded_usd"]) == Decimal("0.008295")  # 0.004275 + 0.00183 + 0.00219
    assert row["without_recorded_cost"] == 1
    shown = run("cost", path, "fix").stdout
    assert "0.008295+" in shown


def test_cost_command_can_use_another_price_table(path: Path, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text(
        "rows:\n  - {provider: anthropic, match: {equals: [claude-sonnet-4-6]}, input: '1', "
        "output: '10', cache_read: '0.1'}\n"
    )
    billed = read("cost", path, "fix", "--prices", str(prices))
    [row] = billed["models"]
    # 5600 input tokens, of which 3900 are cached, and 205 output tokens: (1700 * 1 + 3900 * 0.1 +
    # 205 * 10) / 1e6
    assert row["repriced_usd"] == "0.00414"
    assert row["unpriced"] == {}
    assert "+" in billed["pricing_version"]
    # The fourth call has no recorded cost, so it is excluded from the difference.
    known = Decimal("0.00414") - Decimal("0.00045")
    assert Decimal(row["difference_usd"]) == known - Decimal("0.008295")
    prices.write_text("rows:\n  - {provider: other, match: {equals: [m]}, free: true}\n")
    alone = read("cost", path, "--prices", str(prices), "--only")
    assert sum(alone["models"][0]["unpriced"].values()) == 5
    assert alone["models"][0]["repriced_usd"] == "0"
    words = run("cost", path, "--prices", str(prices), "--only").stdout
    assert "unknown" in words
    assert "no price for anthropic:claude-sonnet-4-6" in words
    prices.write_text("rows: [{provider: x}]")
    assert run("cost", path, "--prices", str(prices)).exit_code == 2
    assert run("cost", path, "--only").exit_code == 2


@pytest.mark.parametrize("by", ["model", "day", "provider", "session", "key", "project"])
def test_cost_total_does_not_depend_on_the_grouping(by: str, path: Path) -> None:
    rows = read("cost", path, "--by", by)[f"{by}s"]
    whole = read("cost", path)["models"]
    for name in ("recorded_usd", "repriced_usd", "calls", "cached_input_tokens"):
        sums = [sum([Decimal(row[name]) for row in each]) for each in (rows, whole)]
        assert sums[0] == sums[1] > 0
    table = run("cost", path, "--by", by).stdout
    lines = list(csv.DictReader(run("cost", path, "--by", by, "--csv").stdout.splitlines()))
    assert [line[by] for line in lines] == [row[by] for row in rows]
    assert [line["recorded_usd"] for line in lines] == [row["recorded_usd"] for row in rows]
    assert all(row[by][:10] in table for row in rows)
    assert "%)" in table  # the table shows the cached share of the input


def test_bars_of_the_cost_command_are_proportional_to_costs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    counts = {
        "calls": 1, "input_tokens": 1, "cached_input_tokens": 0, "output_tokens": 1,
        "cached_share": 0.0,
    }  # fmt: skip
    rest = {"without_recorded_cost": 0, "repriced_usd": "0", "unpriced": {}, "difference_usd": "0"}
    costs = {"2026-01-01": "1", "2026-01-02": "0.5", "2026-01-03": "0"}
    rows = [{"day": day, **counts, "recorded_usd": cost, **rest} for day, cost in costs.items()]
    show_bills(rows, PriceTable.default(), "day", chart=True)
    shown = capsys.readouterr().out
    bars = [line.count("█") for line in shown.splitlines() if line.startswith("2026")]
    assert bars == [24, 12, 0]


# --- paths and URLs of the log -----------------------------------------------------------------


def test_log_path_comes_from_the_option_or_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRAGOMAN_LOG", str(tmp_path / "mine.db"))
    assert find_place() == tmp_path / "mine.db"
    assert find_place("other.db") == Path("other.db")
    assert find_place("postgresql://h/d") == "postgresql://h/d"
    monkeypatch.delenv("DRAGOMAN_LOG")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert find_place() == tmp_path / "dragoman" / "log.db"


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ann:hunter2secret@db:5433/logs?sslmode=require",
        "postgresql://db:5433/logs?password=hunter2secret",
        "postgres://hunter2secret:5433abc@[/logs", "postgresql://ann:12/hunter2secret@db/logs",
        "postgresql://ann:a?hunter2secret@db/logs", "postgresql://ann:a@hunter2secret@db/logs",
        "postgresql://db/logs?password=a@hunter2secret",
    ],
)  # fmt: skip
def test_log_url_is_shown_without_its_password(address: str) -> None:
    assert "hunter2secret" not in name_place(address)
    assert name_place("log.db") == "log.db"
    assert (
        name_place("postgresql://ann:secret@db:5433,[::1]/logs?sslmode=require")
        == "postgresql://db:5433,[::1]/logs"
    )


def test_costs_in_postgres_and_in_a_file_are_equal(address: str, path: Path) -> None:
    with open_log(address) as log:
        tell(log, "fix")
        tell(log, "look", LEFT_OPEN)
    for by in ("model", "day", "provider", "session", "key", "project"):
        on_file, on_server = (
            read("cost", place, "--by", by)[f"{by}s"] for place in (str(path), address)
        )
        assert on_server == on_file != []


def test_log_commands_work_with_postgres(address: str) -> None:
    with open_log(address) as log:
        tell(log)
    assert run("verify", address).stdout == f"{len(STORY)} records in 1 session: whole\n"
    assert "fix" in run("list", address).stdout
    assert len(run("show", address, "fi", "--type", "tool.started").stdout.splitlines()) == 2
    (found,) = read("search", address, "RM -RF")
    assert found["session"] == "fix"
    with Background(answering("Paris")) as server:
        words = ["m", "Capital?", "--base-url", server.base_url]
        asked = CliRunner().invoke(main, ["ask", *words], env={"DRAGOMAN_LOG": address})
    assert asked.stdout == "Paris\n"
    assert asked.exit_code == 0
    (found,) = read("search", address, "paris")
    assert found["kind"] == "ask"
    assert found["outcome"] == "completed"


# --- erasing -----------------------------------------------------------------------------------


def test_erase_removes_what_the_users_of_a_key_sent(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        log.append_sync("g", SessionStarted(kind="gateway"), turn="r1")
        for key, turn in (("ada", "r1"), ("bob", "r2")):
            log.append_sync("g", MessageRecorded(message=User(f"I am {key}.")), turn=turn)
            end = CallCompleted(
                model="m", provider="p", request_id=turn, stop_reason="end_turn", latency_ms=1,
                inbound=Inbound(wire="openai", key=key),
            )  # fmt: skip
            log.append_sync("g", end, turn=turn)
    planned = read("erase", path, "--key", "ada", "--dry-run")
    assert planned == {"erased": False, "records": {"g": [2]}}
    assert run("erase", path, "--key", "ada").exit_code == 2  # without a terminal, --yes is needed
    assert run("erase", path, "--yes").exit_code == 2  # neither a session nor a key
    assert read("erase", path, "--key", "ada", "--yes") == {"erased": True, "records": {"g": [2]}}
    with SqliteLog(path, readonly=True) as log:
        assert not list(log.search("ada."))
        assert list(log.search("bob."))
        assert log.verify().ok


@pytest.mark.parametrize("name", ["=cmd()", "+1", "-1", "@x", "\tx"])
def test_group_that_a_spreadsheet_would_run_is_defused_in_csv(name: str) -> None:
    columns = next(csv.reader(write_csv([], "model").splitlines()))
    row: dict[str, Any] = {**dict.fromkeys(columns, 0), "model": name, "unpriced": {}}
    shown = list(csv.DictReader(StringIO(write_csv([row], "model"), newline="")))
    assert shown[0]["model"] == f"'{name}"
