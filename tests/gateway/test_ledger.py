"""Test that the usage of a key is counted once across processes, even while the ledger file is
locked or the disk is full.
"""

# ruff: noqa: SLF001 - the ledger's own tables are counted, and its own connection gets a page limit

import asyncio
import gc
import json
import sqlite3
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dragoman import connect
from dragoman import database as database_module
from dragoman.errors import (
    InvalidRequestError,
    OverloadedError,
    ProviderError,
    RateLimitError,
    TimedOutError,
)
from dragoman.events import Usage
from dragoman.gateway import ledger_writer as ledger_module
from dragoman.gateway.access import Bounds
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.gateway.keystore import KeyStore
from dragoman.gateway.ledger import Ledger
from dragoman.gateway.ledger_writer import LedgerWriter
from dragoman.log import PostgresLog
from dragoman.log.payloads import TurnStarted
from dragoman.middleware import LimiterUnavailableError
from tests.listed import Clock, Listed, reply
from tests.server import Connection, serve
from tests.waiting import PATIENCE, arrival, poll, settle, until, virtual_time

from .serving import serving
from .test_app import ANN, BODY, bearer, head, post

LIMITED = Key(
    "ann", hash_key(ANN), budget_usd=Decimal(5), tokens_per_minute=10**6, max_concurrency=4
)
USED = Usage(input_tokens=1000, output_tokens=1000, total_tokens=2000)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let attempts fail soon while the ledger is locked."""
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.1)
    monkeypatch.setattr(ledger_module, "_BUSY_SECONDS", PATIENCE)
    monkeypatch.setattr(ledger_module, "_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(ledger_module, "_CLOSE_SECONDS", PATIENCE)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the ledger as long as a busy machine needs."""
    monkeypatch.setattr(database_module, "BUSY_SECONDS", PATIENCE)
    monkeypatch.setattr(ledger_module, "_BUSY_SECONDS", PATIENCE)


def priced(*answers: Any) -> Listed:
    return Listed(*answers, name="anthropic", model="claude-sonnet-4-5", repeat=True)


def lock(path: Path) -> sqlite3.Connection:
    """Lock the ledger file as a backup program does; return the connection, whose rollback unlocks
    the file.
    """
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    return other


def tables(path: Path) -> tuple[int, int, int]:
    """Return what the ledger file contains: the number of leases, the number of tokens, and the
    cost in billionths of a dollar.
    """
    base = sqlite3.connect(path)
    queries = (
        "select count(*) from dragoman_leases",
        "select sum(tokens) from dragoman_used",
        "select cast(round(sum(usd) * 1e9) as integer) from dragoman_spent where month = ''",
    )
    found = [base.execute(query).fetchone()[0] or 0 for query in queries]
    base.close()
    return found[0], found[1], found[2]


async def until_written(path: Path, expected: tuple[int, int, int]) -> None:
    await until(lambda: tables(path) == expected, f"{expected} in the ledger")


def count_failures(caplog: pytest.LogCaptureFixture) -> int:
    """Return how often writing usage has failed."""
    return caplog.text.count("calls are to be counted")


# Four processes begin together when the pipe closes, and print how many calls were admitted.
ADMITTING = """
import os, sys
from dragoman import database
from dragoman.errors import RateLimitError
from dragoman.gateway.keys import Key
from dragoman.gateway.ledger import Ledger

database.BUSY_SECONDS = float(sys.argv[2])
read, write = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        os.close(write)
        key = Key("k", "h", requests_per_minute=100)
        ledger = Ledger(sys.argv[1], clock=lambda: 600.0)
        admitted = 0
        os.read(read, 1)
        for _ in range(200):
            try:
                ledger.admit(key)
                admitted += 1
            except RateLimitError:
                pass
        os.write(1, b"%d\\n" % admitted)
        os._exit(0)
os.close(write)
for _ in range(4):
    assert os.wait()[1] == 0
"""


def test_limit_of_requests_per_minute_is_exact_across_processes(tmp_path: Path) -> None:
    Ledger(tmp_path / "used.db").close()
    command = [sys.executable, "-c", ADMITTING, str(tmp_path / "used.db"), str(PATIENCE)]
    done = subprocess.run(command, check=True, capture_output=True)
    assert sum(map(int, done.stdout.split())) == 100


@pytest.mark.usefixtures("quick")
async def test_calls_get_status_503_while_the_ledger_is_locked(
    tmp_path: Path,
) -> None:
    path = tmp_path / "used.db"
    model = priced(reply("Hello", usage=USED))
    app = create_app({"fast": model}, keys=KeyRing([LIMITED]), ledger=Ledger(path))
    async with serving(app) as url:
        other = lock(path)
        found = await asyncio.gather(
            *[post(f"{url}/v1/chat/completions", BODY, bearer(ANN)) for _ in range(6)]
        )
        assert {status for status, _, _ in found} == {503}
        assert found[0][1]["retry-after"] == "2"
        other.rollback()
        await poll(
            lambda: post(f"{url}/v1/chat/completions", BODY, bearer(ANN)),
            lambda answer: answer[0] == 200,
            "an answer after the ledger is unlocked",
        )
    assert len(model.requests) == 1
    assert tables(path) == (0, 2000, 18_000_000)
    assert "Traceback" not in found[0][2].decode()


class Locked(Ledger):
    """A ledger whose file is locked for longer than a call waits."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.clock = Clock()
        self.go = threading.Event()
        self.attempts = 0

    def admit(
        self, key: Key, seconds: float = 0.0, *, rates: bool = True, usd: Decimal = Decimal(0)
    ) -> str | None:
        self.attempts += 1
        assert self.go.wait(PATIENCE), "the test does not continue"
        self.clock.now += 2 * PATIENCE
        raise sqlite3.OperationalError("database is locked")


@pytest.mark.usefixtures("patient")
async def test_calls_wait_for_a_locked_ledger_together_and_do_not_block_the_event_loop(
    tmp_path: Path,
) -> None:
    ledger = Locked(tmp_path / "used.db")
    writer = LedgerWriter(ledger, clock=ledger.clock)
    calls = [asyncio.ensure_future(writer.admit(LIMITED, 60)) for _ in range(20)]
    await until(lambda: ledger.attempts, "the first attempt")
    assert not any(call.done() for call in calls)
    ledger.go.set()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(each) for each in found} == {OverloadedError}
    assert ledger.attempts == 1
    await writer.close()
    ledger.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("way", ["cancelled", "too late"])
async def test_error_for_a_call_that_no_longer_waits_for_the_ledger_is_not_logged(
    tmp_path: Path, way: str
) -> None:
    missed: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: missed.append(context["message"]))
    ledger = Locked(tmp_path / "used.db")
    writer = LedgerWriter(ledger, clock=ledger.clock)
    call = asyncio.ensure_future(writer.admit(LIMITED, 60))
    await until(lambda: ledger.attempts, "the first attempt")
    if way == "cancelled":
        call.cancel()
    else:
        with virtual_time():
            await asyncio.sleep(2 * PATIENCE)
    with pytest.raises((OverloadedError, asyncio.CancelledError)):
        await call
    ledger.go.set()
    await writer.close()
    await settle()
    del call  # its error holds the frames, and they hold the future
    gc.collect()
    assert missed == []
    ledger.close()


@pytest.mark.usefixtures("quick")
async def test_usage_is_counted_later_if_the_ledger_is_locked_when_a_call_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "used.db"
    gate = asyncio.Event()
    model = priced(lambda request: [gate, *reply("Hello", usage=USED)(request)])
    app = create_app({"fast": model}, keys=KeyRing([LIMITED]), ledger=Ledger(path))
    async with serving(app) as url:
        calls = [
            asyncio.ensure_future(post(f"{url}/v1/chat/completions", BODY, bearer(ANN)))
            for _ in range(3)
        ]
        await until(lambda: model.running == 3, "three calls")
        other = lock(path)
        gate.set()
        assert [status for status, _, _ in await asyncio.gather(*calls)] == [200] * 3
        await until(lambda: count_failures(caplog) >= 3, "three attempts to write the usage")
        assert tables(path) == (3, 0, 0)
        other.rollback()
        await until_written(path, (0, 6000, 54_000_000))


@pytest.mark.usefixtures("quick")
async def test_pending_usage_is_written_at_shutdown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "used.db"
    writer = LedgerWriter(Ledger(path))
    lease = await writer.admit(LIMITED, 60)
    other = lock(path)
    writer.settle(lease, LIMITED, 100, Decimal("0.5"))
    closing = asyncio.ensure_future(writer.close())
    await until(lambda: count_failures(caplog) >= 2, "two attempts to write the usage")
    assert not closing.done()
    other.rollback()
    await closing
    assert tables(path) == (0, 100, 500_000_000)


ABSURD: list[tuple[int, str]] = [
    (2**63, "0"), (10**30, "0"), (10**400, "0"), (-(10**400), "0"),
    (0, "1e9999999"), (0, "NaN"), (0, "Infinity"), (0, "1e30"),
]  # fmt: skip


@pytest.mark.parametrize("store", ["memory", "file", "server"])
async def test_usage_that_can_never_be_counted_holds_up_no_other(
    store: str,
    patient: None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    missed: list[int] = []
    place = {
        "memory": lambda: None,
        "file": lambda: tmp_path / "used.db",
        "server": lambda: request.getfixturevalue("postgres_url"),
    }[store]()
    ledger = Ledger(place)
    writer = LedgerWriter(ledger)
    writer.on_miss = lambda: missed.append(1)
    other = Key("bob", "h", requests_per_minute=9, tokens_per_minute=10**6)
    for tokens, money in ABSURD:
        lease = await writer.admit(LIMITED, 60)
        writer.settle(lease, LIMITED, 3, Decimal("0.25"))
        writer.settle(None, LIMITED, tokens, Decimal(money))
        assert await writer.admit(other, 60) is None
        await writer.settle_and_wait(None, other, 2, Decimal("0.5"))
    await writer.admit(LIMITED, 60)
    assert len(missed) == len(ABSURD)
    assert caplog.text.count("of the key ann can never be counted and is left out") == len(ABSURD)
    await writer.close()
    assert ledger.spent("ann") == Decimal("0.25") * len(ABSURD)
    assert ledger.spent("bob") == Decimal("0.5") * len(ABSURD)
    ledger.close()


@pytest.mark.parametrize("jump", [7200, 40 * 86_400, 20 * 365 * 86_400])
def test_clock_that_jumps_and_returns_gives_no_request_again(jump: int) -> None:
    clock = Clock(1_800_000_000.0)
    ledger = Ledger(clock=clock)
    key = Key("ann", "h", requests_per_minute=5)
    for _ in range(5):
        ledger.admit(key)
    for shift in (jump, -jump):
        clock.now += shift
        if shift > 0:
            ledger.admit(key)
    with pytest.raises(RateLimitError):
        ledger.admit(key)
    for _ in range(100):
        clock.now += 300
        ledger.admit(key)
    assert ledger._base.run("select count(*) from dragoman_used")[0][0] <= 62
    ledger.close()


def test_deleted_ledger_file_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(tmp_path / "used.db")
    ledger.settle(None, LIMITED, 1)
    assert "deleted" not in caplog.text
    (tmp_path / "used.db").unlink()
    for _ in range(2):
        ledger.settle(None, LIMITED, 1)
    assert caplog.text.count(f"{tmp_path / 'used.db'} was moved or deleted") == 1
    ledger.close()


async def test_full_counter_holds_up_no_other(
    patient: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(tmp_path / "used.db")
    writer = LedgerWriter(ledger)
    kept = ledger.settle
    broken = OverflowError("Python int too large to convert to SQLite INTEGER")

    def fail(lease: str | None, key: Key, tokens: int = 0, *rest: Any) -> None:
        if tokens % 2:
            raise broken
        kept(lease, key, tokens, *rest)

    ledger.settle = fail  # type: ignore[assignment]
    for tokens in (2, 5, 4):
        writer.settle(None, LIMITED, tokens, Decimal(1))
    await writer.settle_and_wait(None, LIMITED, 6, Decimal(1))
    await writer.admit(LIMITED, 60)
    assert "Python int too large" in caplog.text
    assert ledger.spent("ann") == 3
    await writer.close()


async def test_dead_thread_of_the_ledger_is_reported_and_replaced(
    patient: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = LedgerWriter(Ledger(tmp_path / "used.db"))
    await writer.admit(LIMITED, 60)
    thread = writer._thread
    assert thread is not None
    writer._jobs.put(None)  # the thread ends as if by an error that nothing catches
    await asyncio.to_thread(thread.join)
    assert await writer.admit(LIMITED, 60) is not None
    assert "the ledger's thread has ended" in caplog.text
    await writer.close()


async def test_number_of_calls_that_could_not_be_counted_is_reported(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ledger_module, "_CLOSE_SECONDS", 0.2)
    writer = LedgerWriter(Ledger(tmp_path / "used.db"))
    other = lock(tmp_path / "used.db")
    writer.settle(None, LIMITED, 100)
    await writer.close()
    assert "1 calls were not counted" in caplog.text
    other.rollback()


@pytest.mark.usefixtures("quick")
async def test_full_disk_rejects_new_calls_and_loses_no_usage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "used.db"
    ledger = Ledger(path)
    pages = ledger._base.run("pragma page_count")[0][0]
    writer = LedgerWriter(ledger)
    lease = await writer.admit(LIMITED, 60)
    # if a database reaches its page limit, SQLite reports the same error as on a full disk
    ledger._base.run(f"pragma max_page_count = {pages}")
    wide = Key("w" * 50_000, "h", requests_per_minute=5)
    with pytest.raises(OverloadedError, match="cannot count"):
        await writer.admit(wide, 60)
    writer.settle(None, wide, 7, Decimal(1))
    writer.settle(lease, LIMITED, 100, Decimal(1))
    await until(lambda: count_failures(caplog) >= 2, "two attempts to write the usage")
    assert tables(path)[1:] == (0, 0)
    # Calls are rejected while a charge is not written.
    with pytest.raises(OverloadedError, match="cannot count"):
        await writer.admit(LIMITED, 60)
    ledger._base.run("pragma max_page_count = 100000")
    await until_written(path, (0, 107, 2 * 10**9))
    await writer.close()


@pytest.mark.usefixtures("patient")
async def test_lease_is_released_if_the_call_is_cancelled_during_admission(
    tmp_path: Path,
) -> None:
    path = tmp_path / "used.db"
    writer = LedgerWriter(Ledger(path))
    other = lock(path)
    admission = asyncio.ensure_future(writer.admit(LIMITED, 60))
    await settle()
    admission.cancel()
    other.rollback()
    with pytest.raises(asyncio.CancelledError):
        await admission
    # The ledger's thread handles jobs in order. The first of these calls ends after the cancelled
    # one was admitted, and the second after its lease was released.
    for _ in range(2):
        await writer.admit(Key("bob", "h"), 60)
    await writer.close()
    assert tables(path)[0] == 0


# --- charges for failed and abandoned calls ----------------------------------------------------


ENDS: list[tuple[str, dict[str, Any], bytes]] = [
    ("/v1/chat/completions", {}, b"}"),
    ("/v1/chat/completions", {"stream": True}, b'"finish_reason":"stop"'),
    ("/v1/messages", {"max_tokens": 5}, b"}"),
    ("/v1/messages", {"max_tokens": 5, "stream": True}, b"message_stop"),
    ("/v1/responses", {"stream": True}, b"response.completed"),
]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("path", "fields", "end"), ENDS)
async def test_cost_is_in_the_ledger_before_the_end_of_the_reply_is_sent(
    tmp_path: Path, path: str, fields: dict[str, Any], end: bytes
) -> None:
    ledger = Ledger(tmp_path / "used.db")
    model = priced(reply("x", usage=USED))
    inner = create_app({"fast": model}, keys=KeyRing([LIMITED]), ledger=ledger)
    # Each part of the reply, and the cost in the file when this part was sent.
    written: list[tuple[bytes, int]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def look(message: Any) -> None:
            if message["type"] == "http.response.body":
                written.append((message["body"], tables(tmp_path / "used.db")[2]))
            await send(message)

        await inner(scope, receive, look)

    body = {**BODY, "input": "Hi"} if "responses" in path else BODY
    kept = {name: body[name] for name in body if "responses" not in path or name != "messages"}
    async with serving(app) as url:
        status, _, _ = await post(f"{url}{path}", {**kept, **fields}, bearer(ANN))
    cost = [usd for data, usd in written if end in data]
    assert status == 200
    assert cost[:1] == [18_000_000]
    await until_written(
        tmp_path / "used.db", (0, 2000, 18_000_000)
    )  # the cost is recorded only once
    ledger.close()


async def test_reply_is_sent_while_its_cost_cannot_be_written(tmp_path: Path, quick: None) -> None:
    path = tmp_path / "used.db"
    ledger = LedgerWriter(Ledger(path))
    other = lock(path)
    await arrival(
        ledger.settle_and_wait(None, LIMITED, 0, Decimal("0.5")), "the end of the attempt"
    )
    assert tables(path)[2] == 0
    other.rollback()
    await until_written(path, (0, 0, 500_000_000))
    await ledger.close()
    ledger.ledger.close()


async def spend(
    model: Listed, *, hang_up: bool = False, stream: bool = False, **bounds: Any
) -> Decimal:
    """Make one call with a long prompt; return the cost that the ledger records for the key."""
    ledger = Ledger()
    app = create_app(
        {"fast": model}, keys=KeyRing([LIMITED]), ledger=ledger, bounds=Bounds(**bounds)
    )
    body = {**BODY, "stream": stream, "messages": [{"role": "user", "content": "word " * 5000}]}
    async with serving(app) as url:
        if not hang_up:
            await post(f"{url}/v1/chat/completions", body, bearer(ANN))
            return ledger.spent("ann")
        data = json.dumps(body).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        lines = ("host: x", "content-type: application/json", f"authorization: Bearer {ANN}")
        writer.write(head(*lines, length=len(data)) + data)
        await until(lambda: model.running, "the call")
        writer.close()
        await until(lambda: ledger.spent("ann"), "the charge")
    assert ledger._base.run("select count(*) from dragoman_leases") == [(0,)]
    return ledger.spent("ann")


@pytest.mark.parametrize("stream", [False, True])
async def test_call_abandoned_before_its_first_event_is_charged_by_estimate(stream: bool) -> None:
    model = priced(lambda request: [asyncio.Event()])
    spent = await spend(model, hang_up=True, stream=stream)
    assert Decimal("0.01") < spent < Decimal("0.03")  # about 5,000 tokens at 3 dollars per million
    assert len(model.requests) == 1


async def test_call_that_exceeds_the_deadline_is_charged() -> None:
    with virtual_time():
        spent = await spend(priced(lambda request: [asyncio.Event()]), reply_seconds=60)
    assert spent > Decimal("0.01")
    assert await spend(priced(TimedOutError("late", which="first_event"))) > Decimal("0.01")


NOT_BILLED: list[ProviderError] = [
    InvalidRequestError("no", status=400),
    OverloadedError("no", status=503),
    TimedOutError("no", which="connect"),
]


@pytest.mark.parametrize("error", NOT_BILLED, ids=[type(error).__name__ for error in NOT_BILLED])
async def test_call_that_the_provider_rejects_is_not_charged(error: ProviderError) -> None:
    assert await spend(priced(error)) == 0


# --- upstream failures -------------------------------------------------------------------------


async def test_unavailable_rate_limiter_gives_status_503() -> None:
    def fail(request: Any) -> Any:
        raise LimiterUnavailableError("Redis is unavailable")

    async with serving(create_app({"fast": Listed(fail, repeat=True)})) as url:
        status, headers, body = await post(f"{url}/v1/chat/completions", BODY)
    assert status == 503
    assert headers["retry-after"] == "2"
    assert b"Redis" not in body


async def test_redirect_from_the_upstream_gives_status_502() -> None:
    async def handler(connection: Connection) -> None:
        connection.head(302, {"location": "http://127.0.0.1:1/", "content-length": "0"})

    async with serve(handler) as upstream:
        model = connect("m", base_url=f"{upstream.url}/v1")
        async with serving(create_app({"fast": model})) as url:
            for body in (BODY, {**BODY, "stream": True}):
                found, headers, said = await post(f"{url}/v1/chat/completions", body)
                assert found == 502
                assert headers["x-should-retry"] == "false"
                assert b"127.0.0.1" not in said


def test_database_with_the_encoding_sql_ascii_can_be_used(server: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            "create database ascii encoding 'SQL_ASCII' locale 'C' template template0"
        )
    folder = dict(part.split("=") for part in server.split())["host"]
    url = f"postgresql://postgres@/ascii?host={folder}"
    store = KeyStore(url)
    ledger = Ledger(url)
    store.create("änn", budget_usd=Decimal(1))
    (key,) = store.read_keys()
    ledger.settle(None, key, money=Decimal("0.4"))
    ledger.admit(key)
    assert key.id == "änn"
    assert ledger.spent("änn") == Decimal("0.4")
    store.close()
    ledger.close()
    with PostgresLog(url) as log:
        written = log.append_sync("änn", TurnStarted(1))
        assert [record.id for record in log.read("änn")] == [written.id]
