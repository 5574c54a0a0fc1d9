"""Test reading a log from its export in JSON lines."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman import log as logs
from dragoman.cli import main
from dragoman.cli.errors import EXIT_CODES
from dragoman.replay import count_totals, read_steps

from ..story import LEFT_OPEN, STORY, tell


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with logs.SqliteLog(tmp_path / "log.db") as log:
        tell(log, "fix")
        tell(log, "löok", LEFT_OPEN)
        log.export(tmp_path / "log.jsonl")
    return tmp_path / "log.jsonl"


def test_exported_file_can_be_read_like_the_log(path: Path) -> None:
    with (
        logs.open_log(path, readonly=True) as export,
        logs.SqliteLog(path.with_name("log.db"), readonly=True) as log,
    ):
        assert isinstance(export, logs.ExportedLog)
        assert export.sessions() == log.sessions()
        assert export.verify() == log.verify()
        assert export.verify("fix", known={"fix": "0" * 64}) == log.verify(
            "fix", known={"fix": "0" * 64}
        )
        for session in ("fix", "löok", "nobody"):
            assert list(export.read(session)) == list(log.read(session))
            assert list(export.read(session, 5)) == list(log.read(session, 5))
            assert list(read_steps(export, session)) == list(read_steps(log, session))
            assert count_totals(export, session) == count_totals(log, session)
        assert list(logs.read_uses(export)) == list(logs.read_uses(log))
        again = path.with_name("again.jsonl")
        export.export(again)
        assert again.read_bytes() == path.read_bytes()


def test_exported_log_is_read_only(path: Path) -> None:
    with pytest.raises(logs.LogReadOnlyError, match="is read-only"):
        logs.open_log(path)
    with logs.ExportedLog(path) as log, pytest.raises(logs.LogReadOnlyError):
        log.append_sync("fix", logs.TurnStarted(1))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("make test", "make tea!", "hash mismatch"),
        ('"actor":"agent"', '"actor":"user"', "hash mismatch"),
        ('"seq":4,', '"seq":40,', "gap"),
        ('"sensitivity":"private",', "", "unreadable"),
        ('"type":"turn.started"', '"type":"turn.started","more":1', "unreadable"),
        ('Z","turn"', '","turn"', "unreadable"),
    ],
)
def test_changed_line_of_an_export_is_detected(
    path: Path, old: str, new: str, problem: str
) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with logs.ExportedLog(path) as log:
        found = log.verify().first
        assert found is not None
        assert found.session == "fix"
        assert found.problem == problem


@pytest.mark.parametrize("member", ["hash", "previous"])
def test_hash_in_capital_letters_is_not_that_of_the_record(path: Path, member: str) -> None:
    first, second, *rest = path.read_text().splitlines(keepends=True)
    digest = json.loads(second)[member]
    assert digest != digest.upper()
    path.write_text("".join([first, second.replace(digest, digest.upper()), *rest]))
    with logs.ExportedLog(path) as log:
        found = log.verify().first
    assert found is not None
    assert found.problem == "unreadable"


def test_removed_duplicated_and_moved_lines_of_an_export_are_detected(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)

    def verify(*changed: bytes) -> logs.ChainReport:
        path.write_bytes(b"".join(changed))
        with logs.ExportedLog(path) as log:
            return log.verify()

    [found] = verify(*lines[:5], *lines[6:]).breaks
    assert found.seq == 6
    assert found.problem == "gap"
    assert not verify(*lines[:5], lines[4], *lines[5:]).ok
    # The order of the lines does not matter: records are linked by their hashes.
    assert verify(*reversed(lines)).ok


@pytest.mark.parametrize(
    "content", [b"{}\n", b"no\n", b'{"session": "s", "seq": "x"}\n', b"\xff\n", b"[1]\n"]
)
def test_error_names_the_line_of_an_invalid_export(path: Path, content: bytes) -> None:
    path.write_bytes(path.read_bytes() + content)
    with pytest.raises(
        logs.LogCorruptError, match=rf"log\.jsonl, line {len(STORY) + 9}: is not a record"
    ):
        logs.ExportedLog(path)


def test_truncated_file_is_detected(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-40])
    with pytest.raises(logs.LogCorruptError, match="the file was cut off"):
        logs.ExportedLog(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bits_are_detected(path: Path, data: st.DataObject) -> None:
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    bit = data.draw(st.integers(0, 7))
    damaged = path.with_name("damaged.jsonl")
    damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
    sound = logs.ExportedLog(path)
    heads = {entry.session: entry.head for entry in sound.sessions()}
    try:
        with logs.ExportedLog(damaged) as log:
            report = log.verify(known=heads)
            if report.ok:  # the flipped bit only changed how a character is escaped
                assert [list(log.read(name)) for name in heads] == [
                    list(sound.read(name)) for name in heads
                ]
    except logs.LogCorruptError:
        pass


def test_log_commands_accept_an_exported_file(path: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, [*words, "--log", str(path)])
        return result.exit_code, result.output

    assert run("log", "verify") == (0, f"{len(STORY) + 8} records in 2 sessions: whole\n")
    assert run("replay", "fix")[0] == 0
    assert json.loads(run("log", "cost", "fix", "--json")[1])["models"][0]["calls"] == 4
    pruned, _ = run("log", "prune", "--older-than", "2099-01-01", "--yes")
    assert pruned == EXIT_CODES["log_unusable"]
    path.unlink()
    assert run("log", "list")[0] == EXIT_CODES["log_unusable"]


def test_an_exported_file_can_be_imported(path: Path, tmp_path: Path) -> None:
    def take(*words: str) -> Result:
        return CliRunner().invoke(
            main, ["log", "import", *words, "--log", str(tmp_path / "new.db")]
        )

    assert take(str(path), "--session", "fix", "--json").stdout == '{\n  "records": 34\n}\n'
    assert take(str(path)).stderr == "imported 8 records\n"
    assert take(str(path)).stderr == "imported 0 records\n"
    with logs.SqliteLog(tmp_path / "new.db", readonly=True) as log:
        log.export(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()
    assert take(str(path), "--session", "nobody").exit_code == 2
    path.write_bytes(path.read_bytes().replace(b"make test", b"make tea!"))
    broken = take(str(path))
    assert "cannot be imported" in broken.stderr
    assert broken.exit_code == 20
