"""Test that only one process runs a session: appends with an expected position, and leases."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from dragoman import log as logs

Open = Callable[..., logs.EventLog]
ROUNDS = 200 if os.environ.get("DRAGOMAN_EXHAUSTIVE") else 20
LOST = {type(None), logs.LogConflictError, logs.LogLockedError}


async def check_free(log: logs.EventLog) -> None:
    async with log.hold("s1"):
        pass


async def check_held(log: logs.EventLog) -> None:
    with pytest.raises(logs.LogLockedError, match="'s1' is still running"):
        await check_free(log)


async def test_append_is_rejected_unless_it_follows_the_expected_record(
    store: logs.EventLog,
) -> None:
    assert (await store.append("s1", logs.SessionStarted(goal="Go."), expected=0)).seq == 1
    assert (await store.append("s1", logs.TurnStarted(1), expected=1)).seq == 2
    assert store.append_sync("s1", logs.TurnStarted(2), expected=2).seq == 3
    for wrong in (0, 1, 2, 4, -1):
        with pytest.raises(
            logs.LogConflictError,
            match=f"was to follow record {wrong}, but the session ends at record 3",
        ):
            await store.append("s1", logs.TurnStarted(9), expected=wrong)
        with pytest.raises(logs.LogConflictError):
            store.append_sync("s1", logs.TurnStarted(9), expected=wrong)
    with pytest.raises(logs.LogConflictError, match="ends at record 0"):
        await store.append("s2", logs.TurnStarted(9), expected=1)
    # Without an expected sequence number nothing is checked.
    assert (await store.append("s1", logs.TurnStarted(3))).seq == 4
    assert store.verify().ok


async def test_conflict_does_not_affect_other_appends_of_its_group_commit(
    store: logs.EventLog,
) -> None:
    await store.append("s1", logs.TurnStarted(0))
    # All these appends wait while the first one is written, and share one transaction.
    expectations = [None, 9, 2, 2, 3]
    results = await asyncio.gather(
        *[
            store.append("s1", logs.TurnStarted(n), expected=it)
            for n, it in enumerate(expectations)
        ],
        return_exceptions=True,
    )
    assert [it.seq if isinstance(it, logs.LogRecord) else type(it) for it in results] == [
        2, logs.LogConflictError, 3, logs.LogConflictError, 4,
    ]  # fmt: skip
    assert [record.payload.number for record in store.read("s1")] == [0, 0, 2, 4]  # type: ignore[union-attr]
    assert store.verify().ok


@pytest.mark.exhaustive
def test_one_of_several_concurrent_appends_at_one_position_succeeds(open_store: Open) -> None:
    def append(seq: int) -> logs.LogRecord:
        with open_store() as log:
            return log.append_sync("s1", logs.TurnStarted(seq), expected=seq)

    open_store().close()
    with ThreadPoolExecutor(4) as writers:
        for seq in range(ROUNDS):
            tried = [writers.submit(append, seq) for _ in range(4)]
            errors = [each.exception() for each in tried]
            assert errors.count(None) == 1
            assert {type(each) for each in errors} <= LOST
    assert open_store().verify().records == ROUNDS


async def test_session_in_use_cannot_be_opened_again_until_it_is_released(
    store: logs.EventLog,
) -> None:
    async with store.hold("s1"):
        await check_held(store)
        async with store.hold("s2"):
            pass
    await check_free(store)


async def test_lease_that_was_taken_over_outlasts_the_first_holder(store: logs.EventLog) -> None:
    async with store.hold("s1"):
        later = store.hold("s1", takeover=True)
        await later.__aenter__()
    await check_held(store)  # releasing the first lease did not release the second
    await later.__aexit__(None, None, None)
    await check_free(store)


async def test_closing_a_log_ends_its_leases(open_store: Open) -> None:
    log = open_store()
    async with log.hold("s1"):
        log.close()
    again = open_store()
    await check_free(again)
    if isinstance(log, logs.PostgresLog):
        with pytest.raises(logs.LogClosedError):
            await check_free(log)


async def test_session_lease_excludes_other_processes(conninfo: str) -> None:
    async with logs.PostgresLog(conninfo) as one, logs.PostgresLog(conninfo) as two:
        first = one.hold("s1")
        await first.__aenter__()
        await check_held(two)
        async with two.hold("s1", takeover=True):
            await first.__aexit__(None, None, None)
            # The second log writes and holds the lease from now on.
            await two.append("s1", logs.TurnStarted(1))
            await check_held(one)
        await check_free(one)


async def test_leases_of_logs_in_one_database_are_separate(conninfo: str, server: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS apart")
    with (
        logs.PostgresLog(conninfo) as one,
        logs.PostgresLog(f"{server} options='-c search_path=apart'") as two,
    ):
        async with one.hold("s1"), two.hold("s1"):
            pass


async def test_lost_connection_ends_the_lease_and_the_next_append_renews_it(
    conninfo: str, server: str
) -> None:
    async with logs.PostgresLog(conninfo) as one, logs.PostgresLog(conninfo) as two:
        async with one.hold("s1"):
            own: Any = one._connection  # noqa: SLF001 - PostgreSQL ends the log's own connection
            with psycopg.connect(server, autocommit=True) as admin:
                admin.execute("SELECT pg_terminate_backend(%s, 5000)", (own.info.backend_pid,))
            await check_free(two)
            for _ in range(2):  # the first append fails because the connection was lost
                await asyncio.gather(one.append("s1", logs.TurnStarted(1)), return_exceptions=True)
            await check_held(two)
        await check_free(two)
