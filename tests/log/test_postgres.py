# ruff: noqa: SLF001 - PostgreSQL is asked for its settings on the log's own connection
import asyncio
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from dragoman.log import (
    LogCorruptError,
    LogError,
    LogLockedError,
    LogReadOnlyError,
    LogStorageError,
    LogVersionError,
    PermissionRequested,
    PostgresLog,
    TurnStarted,
    name_place,
)
from dragoman.log.record import draft_record
from dragoman.permission import Decision
from dragoman.session import answer_question
from tests.rows import read_table

from ..story import STORY, tell
from ..waiting import PATIENCE
from .samples import WRITABLE


def run_together(*work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(each) for each in work]:
            done.result()


async def test_two_writers_of_one_session_are_serialised(conninfo: str) -> None:
    async with PostgresLog(conninfo) as one, PostgresLog(conninfo) as two:
        await asyncio.gather(
            *[
                log.append(name, TurnStarted(number))
                for number in range(100)
                for name in ("s1", f"own{number % 5}")
                for log in (one, two)
            ]
        )
        assert [record.seq for record in one.read("s1")] == list(range(1, 201))
        report = one.verify()
        assert report.ok
        assert report.records == 400


def test_two_writers_do_not_deadlock(conninfo: str) -> None:
    """Two writers append to the same sessions in opposite order; sorted locks prevent
    a deadlock.
    """
    with PostgresLog(conninfo) as one, PostgresLog(conninfo) as two:
        names = [f"s{number}" for number in range(20)]

        def write(log: PostgresLog, order: list[str]) -> None:
            for _ in range(15):
                futures = [log._offer(draft_record(name, TurnStarted(1)))[1] for name in order]
                for future in futures:
                    future.result(timeout=PATIENCE)

        run_together(lambda: write(one, names), lambda: write(two, names[::-1]))
        report = one.verify()
        assert report.ok
        assert report.sessions == 20
        assert report.records == 600


def test_unique_key_rejects_a_record_written_without_the_lock(
    conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dragoman.log import postgres as module

    with PostgresLog(conninfo) as log:
        log.append_sync("s1", TurnStarted(1))
        # Return outdated ends of the chains, as if another process had appended a record.
        monkeypatch.setattr(module._PostgresView, "heads", lambda *_: {})
        with pytest.raises(LogLockedError, match="Another writer appended"):
            log.append_sync("s1", TurnStarted(2))
        monkeypatch.undo()
        assert log.append_sync("s1", TurnStarted(2)).seq == 2
        assert log.verify().ok


def test_appends_in_flight_fail_if_the_connection_is_lost_and_later_ones_work(
    conninfo: str, server: str
) -> None:
    with PostgresLog(conninfo) as log:
        log.append_sync("s1", TurnStarted(1))
        assert len(list(log.read("s1"))) == 1
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = "
                "'dragoman-log'"
            )
        with pytest.raises(LogStorageError, match="may or may not have been stored"):
            log.append_sync("s1", TurnStarted(2))
        assert len(list(log.read("s1"))) == 1  # an idle connection that was lost is replaced
        assert log.append_sync("s1", TurnStarted(3)).seq == 2
        assert [record.payload for record in log.read("s1")] == [TurnStarted(1), TurnStarted(3)]
        assert log.verify().ok


def test_postgres_commits_are_synchronous(conninfo: str) -> None:
    # the log does not weaken a stricter setting
    for given, used in (("off", "on"), ("remote_apply", "remote_apply")):
        with PostgresLog(
            conninfo.replace("search_path", f"synchronous_commit={given} -c search_path")
        ) as log:
            assert log._connection is not None
            assert log._connection.execute("SHOW synchronous_commit").fetchone() == (used,)


def test_role_without_write_permission_gets_a_read_only_error(conninfo: str) -> None:
    with PostgresLog(conninfo) as log:
        log.append_sync("s1", TurnStarted(1))
    restricted = conninfo.replace("search_path", "default_transaction_read_only=on -c search_path")
    with PostgresLog(restricted) as log, pytest.raises(LogReadOnlyError, match="may only read"):
        log.append_sync("s1", TurnStarted(2))
    with PostgresLog(restricted, readonly=True) as log:
        assert log.verify().records == 1


def test_read_transaction_cannot_write_and_reads_a_snapshot(conninfo: str) -> None:
    with PostgresLog(conninfo) as log:
        log.append_sync("s1", TurnStarted(1))
        with log._view() as view:
            assert view.length("s1") == 1
            log.append_sync("s1", TurnStarted(2))
            assert view.length("s1") == 1
        with pytest.raises(LogReadOnlyError, match="may only read"), log._view() as view:
            view.connection.execute("DELETE FROM dragoman_log")
        assert log.verify().records == 2


def test_database_without_a_log_is_rejected_for_reading(conninfo: str) -> None:
    with pytest.raises(LogReadOnlyError, match="has no log to read"):
        PostgresLog(conninfo, readonly=True)


@pytest.mark.parametrize("readonly", [False, True])
def test_postgres_log_of_a_newer_version_is_rejected(conninfo: str, readonly: bool) -> None:
    PostgresLog(conninfo).close()
    with psycopg.connect(conninfo) as connection:
        connection.execute("INSERT INTO dragoman_log_version VALUES (99)")
    with pytest.raises(LogVersionError, match="has version 99"):
        PostgresLog(conninfo, readonly=readonly)


def test_missing_tables_are_reported_as_damage(conninfo: str) -> None:
    with PostgresLog(conninfo) as log:
        with psycopg.connect(conninfo) as connection:
            connection.execute("DROP TABLE dragoman_log")
        with pytest.raises(LogCorruptError, match="tables are gone"):
            log.append_sync("s1", TurnStarted(1))


def test_processes_that_start_together_create_the_tables_once(conninfo: str) -> None:
    opened: list[PostgresLog] = []
    run_together(*[lambda: opened.append(PostgresLog(conninfo))] * 6)
    assert len(opened) == 6
    for number, log in enumerate(opened):
        assert log.append_sync("s1", TurnStarted(number)).seq == number + 1
        log.close()


def test_pruning_during_appends_does_not_break_a_chain(conninfo: str) -> None:
    with PostgresLog(conninfo) as one, PostgresLog(conninfo) as two:
        for _ in range(10):
            for payload in WRITABLE[:5]:
                one.append_sync("s1", payload)
                two.append_sync("s2", payload)
            one.retain(timedelta(0))
        assert one.verify().ok


def test_missing_extra_is_reported_with_the_install_command(
    conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(LogError, match=r"pip install 'dragoman\[postgres\]'"):
        PostgresLog(conninfo)


def everything_in(error: BaseException) -> str:
    """Return the text, attributes and stack frames of an error and of its causes."""
    found: list[object] = []
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if each is None:
            continue
        todo += [each.__cause__, each.__context__]
        found += [str(each), each.args, vars(each)]
        found.append(getattr(getattr(each, "pgconn", None), "password", None))
        for frame, _ in traceback.walk_tb(each.__traceback__):
            # Only frames of psycopg are searched: the caller's own frames contain the password
            # anyway.
            if "psycopg" in frame.f_code.co_filename:
                found.append(frame.f_locals)
    return repr(found)


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("conninfo", read_table("errors_do_not_contain_the_password"))
def test_errors_do_not_contain_the_password(conninfo: str, readonly: bool) -> None:
    with pytest.raises(LogStorageError) as caught:
        PostgresLog(conninfo, readonly=readonly)
    assert "hunter2secret" not in everything_in(caught.value)
    assert "hunter2secret" not in name_place(conninfo) or not conninfo.startswith("postgres")


def test_password_echoed_by_a_server_is_hidden(conninfo: str) -> None:
    with PostgresLog(f"{conninfo} password='hunter2 secret'") as log:
        with pytest.raises(LogStorageError) as caught, log._view() as view:
            view.connection.execute("SELECT 'hunter2 secret, hunter2%20secret'::int")
        assert "hunter2" not in everything_in(caught.value)
        assert "invalid input syntax" in str(caught.value)


def test_read_only_log_can_answer_a_permission_request(conninfo: str) -> None:
    asked = next(at for at, each in enumerate(STORY) if isinstance(each, PermissionRequested))
    with PostgresLog(conninfo) as log, PostgresLog(conninfo, readonly=True) as reader:
        tell(log, "fix", STORY[: asked + 1])
        answer_question(reader, "fix", "tu_3", Decision(True, "ann"))
        [record] = log.read("fix.answers")
    assert record.data == {"intent_id": "tu_3", "allowed": True, "by": "ann"}
