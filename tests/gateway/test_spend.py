"""The bill: who pays for a call, the sums by hour and day, and what they are asked for."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import astuple, replace

from dragoman.database import open_database
from dragoman.errors import InvalidRequestError
from dragoman.events import Usage
from dragoman.gateway import sums
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key, new_key
from dragoman.gateway.sums import DAY, HOUR, read_period, select_bill
from dragoman.gateway.usage_book import UsageBook, UsageRow
from tests.databases import postgres_url as postgres_url
from tests.databases import server as server
from tests.listed import Listed, reply

from .serving import serving

ADMIN, DIGEST = new_key()
NOON = int(datetime(2030, 1, 15, 12, tzinfo=UTC).timestamp() * 1000)
ROW = UsageRow(
    at=NOON, id="r", key="ann", model="fast", status=200, error="", input=7, output=3,
    usd=Decimal("0.000123456789"), unpriced=0, latency=12, session="s", user="ann@x", team="core",
    tag="nightly", vendor="acme",
)  # fmt: skip
LINES = range(100)
JANUARY = read_period("2030-01-01", "2030-01-31")
KEYS = KeyRing([
    Key("ann", hash_key("dg-ann"), team="core", user="ann@example.org"),
    Key("app", hash_key("dg-app"), team="web", names_user=True),
])  # fmt: skip


@pytest.fixture(params=["memory", "file", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return the place of a database: in memory, a SQLite file, and PostgreSQL."""
    places: dict[str, Callable[[], Any]] = {
        "memory": lambda: None,
        "file": lambda: tmp_path / "state.db",
        "server": lambda: request.getfixturevalue("postgres_url"),
    }
    return places[request.param]()


async def read_lines(book: UsageBook, *by: str, **only: str) -> list[tuple[Any, ...]]:
    """Return the lines of January's bill: the labels, the requests and the cost."""
    rows = await book.read(select_bill, JANUARY, by, only, LINES)
    return [(*row.labels.values(), row.requests, row.usd) for row in rows]


async def test_sums_of_a_bill_are_those_of_its_rows(place: Any) -> None:
    book = UsageBook(place)
    changes: list[dict[str, Any]] = [
        {},
        {"at": NOON + HOUR},
        {"at": NOON + DAY, "tag": ""},
        {"key": "bob", "user": "bob@x", "status": 429, "error": "rate_limit", "usd": Decimal(0)},
        {"team": "web", "model": "own", "unpriced": 1, "usd": Decimal("9000000.000000000001")},
        {"at": NOON + 40 * DAY},
    ]
    for change in changes:
        book.count(replace(ROW, **change))
        await book.flush(())
    usd = ROW.usd
    large = Decimal("9000000.000000000001")
    assert await read_lines(book) == [(5, 3 * usd + large)]
    assert await read_lines(book, "team") == [("core", 4, 3 * usd), ("web", 1, large)]
    assert await read_lines(book, "key") == [("ann", 4, 3 * usd + large), ("bob", 1, 0)]
    assert await read_lines(book, "user", team="core") == [("ann@x", 3, 3 * usd), ("bob@x", 1, 0)]
    assert await read_lines(book, "day", model="fast") == [
        ("2030-01-15", 3, 2 * usd), ("2030-01-16", 1, usd)
    ]  # fmt: skip
    assert await read_lines(book, "status", "tag") == [
        ("200", "", 1, usd), ("200", "nightly", 3, 2 * usd + large), ("429", "nightly", 1, 0)
    ]  # fmt: skip
    hours = read_period("2030-01-15T13:00", "2030-01-15T14:00Z")
    [line] = await book.read(select_bill, hours, ("hour", "vendor"), {}, LINES)
    assert line.labels == {"hour": "2030-01-15T13:00Z", "vendor": "acme"}
    assert line.requests == 1
    assert line.input_tokens == 7
    assert line.output_tokens == 3
    [other] = await book.read(select_bill, JANUARY, (), {"model": "own"}, LINES)
    assert other.failed == 0
    assert other.unpriced == 1
    [second] = await book.read(select_bill, JANUARY, ("key",), {}, range(1, 2))
    assert second.labels == {"key": "bob"}
    assert second.failed == 1
    book.close()


@pytest.mark.parametrize("place", ["file", "server"], indirect=True)
async def test_sums_of_two_processes_are_added(place: Any) -> None:
    books = [UsageBook(place) for _ in range(2)]
    for book in [*books, *books]:
        book.count(ROW)
        await book.flush(())
    assert await read_lines(books[0], "key") == [("ann", 4, 4 * ROW.usd)]
    for book in books:
        book.close()


@pytest.mark.parametrize("place", ["file", "server"], indirect=True)
async def test_rows_of_an_earlier_version_are_summed_once(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.gateway.usage_book._MOVED", 3)
    monkeypatch.setattr("dragoman.gateway.usage_book._MOVES", 2)
    monkeypatch.setattr("dragoman.gateway.usage_book._MOVE_SECONDS", 0)
    book = UsageBook(place)
    other = UsageBook(place)
    earlier = open_database(place, [])
    values = list(astuple(replace(ROW, usd=Decimal(0))))[:12]
    values[8] = 123456789
    now = int(datetime.now(UTC).timestamp() * 1000)
    for at in range(8):
        values[0] = now - at
        earlier.run(f"insert into dragoman_requests values ({', '.join('?' * 12)})", values)
    await book.move_earlier()
    assert earlier.run("select count(*) from dragoman_requests")[0][0] == 2
    await other.move_earlier()
    await book.move_earlier()
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    period = read_period(f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}", today)
    [line] = await book.read(select_bill, period, ("key", "user"), {}, LINES)
    assert line.labels == {"key": "ann", "user": ""}
    assert line.requests == 8
    assert line.usd == 8 * ROW.usd
    assert len(await other.list_requests(0, {}, 99)) == 8
    assert earlier.run("select count(*) from dragoman_requests")[0][0] == 0
    for each in (book, other, earlier):
        each.close()


async def test_tags_and_users_of_a_day_are_bounded(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sums._MOST_NAMES, "tag", 3)  # noqa: SLF001 - a small limit
    monkeypatch.setitem(sums._MOST_NAMES, "user", 2)  # noqa: SLF001
    book = UsageBook(place)
    for number in range(6):
        book.count(replace(ROW, tag=f"t{number}", user=f"u{number}"))
        await book.flush(())
    again = book if place is None else UsageBook(place)  # another process knows the names too
    again.count(replace(ROW, tag="t1", user="u5"))
    again.count(replace(ROW, tag="t9", user="", at=NOON + DAY))
    await again.flush(())
    assert [line[:2] for line in await read_lines(book, "tag")] == [
        ("other", 3), ("t0", 1), ("t1", 2), ("t2", 1), ("t9", 1)
    ]  # fmt: skip
    assert [line[:2] for line in await read_lines(book, "user")] == [
        ("", 1), ("other", 5), ("u0", 1), ("u1", 1)
    ]  # fmt: skip
    for each in {book, again}:
        each.close()


PERIODS = [
    ("2030-02-01", "2030-02-28", 28 * DAY, DAY),
    ("2030-02-01", "2030-02-01", DAY, DAY),
    ("2030-02-01T05:00", "2030-02-01T06:00", HOUR, HOUR),
    ("2030-02-01T05:00+01:00", "2030-02-01", 20 * HOUR, HOUR),
    ("2030-02-01T00:00Z", "2030-02-02T00:00Z", DAY, DAY),
    (None, None, 3 * DAY, DAY),
]


@pytest.mark.parametrize(("start", "end", "length", "step"), PERIODS)
def test_period_of_a_bill(start: str | None, end: str | None, length: int, step: int) -> None:
    now = datetime(2030, 2, 3, 12, tzinfo=UTC).timestamp()
    period = read_period(start, end, now)
    assert period.until - period.since == length
    assert period.step == step


@pytest.mark.parametrize(
    ("start", "end", "why"),
    [
        ("x", None, "from: must be a date"),
        (None, "2030-02-30", "to: must be a date"),
        ("2030-02-02", "2030-02-01", "before the end"),
        ("2030-02-01T00:30", "2030-02-01", "from: must be a full hour"),
        ("9999-12-31T23:00-12:00", None, "from"),
    ],
)
def test_period_that_is_wrong_is_refused(start: str | None, end: str | None, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        read_period(start, end, 1_900_000_000)


@contextlib.asynccontextmanager
async def open_gateway(**settings: Any) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """Serve a priced model to two keys; yield the address and a client."""
    answer = reply("Hello.", usage=Usage(1000, 500, total_tokens=1500))
    model = Listed(answer, name="anthropic", model="claude-sonnet-4-5", repeat=True)
    app = create_app({"fast": model}, keys=KEYS, **settings)
    async with (
        app.router.lifespan_context(app),
        serving(app) as url,
        aiohttp.ClientSession() as http,
    ):
        yield url, http


async def ask(
    url: str, http: aiohttp.ClientSession, key: str, path: str = "chat/completions", **more: Any
) -> tuple[int, str]:
    """Send a request with a key; fields that begin with ``x-`` are headers."""
    headers = {name: text for name, text in more.items() if name.startswith("x-")}
    fields = {name: value for name, value in more.items() if name not in headers}
    body = {
        "model": "fast", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], **fields
    }  # fmt: skip
    headers["authorization"] = f"Bearer {key}"
    async with http.post(f"{url}/v1/{path}", json=body, headers=headers) as answer:
        return answer.status, await answer.text()


async def read(
    url: str, http: aiohttp.ClientSession, key: str, query: str = ""
) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {key}"}
    async with http.get(f"{url}/v1/spend?{query}", headers=headers) as answer:
        return answer.status, await answer.json()


COST = Decimal("0.0105")  # 1,000 tokens in at 3 dollars a million, and 500 out at 15


async def test_each_call_is_billed_to_its_user_team_and_tag() -> None:
    async with open_gateway(admin=DIGEST) as (url, http):
        calls: list[tuple[str, dict[str, Any]]] = [
            ("dg-ann", {"x-dragoman-tag": "nightly"}),
            ("dg-ann", {"metadata": {"dragoman_tag": "ci/build-7"}}),
            ("dg-ann", {"user": "eve"}),  # this key does not let its clients name a user
            ("dg-app", {"user": "dora"}),
            ("dg-app", {"path": "messages", "metadata": {"user_id": "carl", "dragoman_tag": "a"}}),
            ("dg-app", {}),
        ]
        for key, facts in calls:
            status, text = await ask(url, http, key, **facts)
            assert status == 200, text
            assert "dragoman_tag" not in text
        status, bill = await read(url, http, ADMIN, "by=team,user,tag,model,day")
        assert status == 200, bill
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        lines = [
            ("core", "ann@example.org", ""), ("core", "ann@example.org", "ci/build-7"),
            ("core", "ann@example.org", "nightly"), ("web", "", ""), ("web", "carl", "a"),
            ("web", "dora", ""),
        ]  # fmt: skip
        found = [tuple([row[name] for name in ("team", "user", "tag")]) for row in bill["rows"]]
        assert found == lines
        assert {(row["model"], row["day"], row["usd"]) for row in bill["rows"]} == {
            ("fast", day, f"{COST}")
        }
        assert bill["total"] == {
            "requests": 6, "failed": 0, "input_tokens": 6000, "output_tokens": 3000,
            "usd": f"{(6 * COST).normalize():f}", "unpriced": 0,
        }  # fmt: skip
        assert bill["next_page"] is None


async def test_key_reads_its_own_part_of_the_bill() -> None:
    async with open_gateway(admin=DIGEST) as (url, http):
        for key in ("dg-ann", "dg-app", "dg-app"):
            await ask(url, http, key)
        for query in ("by=key", "by=key&key=ann", "by=key&team=web"):
            _, bill = await read(url, http, "dg-app", query)
            assert [(row["key"], row["requests"]) for row in bill["rows"]] == [("app", 2)], query
            assert bill["total"]["requests"] == 2
        assert (await read(url, http, "dg-eve"))[0] == 401
        _, page = await read(url, http, ADMIN, "by=key&limit=1")
        assert [row["key"] for row in page["rows"]] == ["ann"]
        assert page["next_page"] == 2
        _, page = await read(url, http, ADMIN, "by=key&limit=1&page=2")
        assert [row["key"] for row in page["rows"]] == ["app"]
        assert page["next_page"] is None


async def test_bill_as_csv() -> None:
    async with open_gateway(admin=DIGEST) as (url, http):
        await ask(url, http, "dg-app", user="=1+1")
        headers = {"authorization": f"Bearer {ADMIN}"}
        async with http.get(f"{url}/v1/spend?by=user&format=csv", headers=headers) as answer:
            assert answer.content_type == "text/csv"
            rows = list(csv.reader(io.StringIO(await answer.text())))
    assert rows[0] == [
        "user", "requests", "failed", "input_tokens", "output_tokens", "usd", "unpriced"
    ]  # fmt: skip
    assert rows[1:] == [["'=1+1", "1", "0", "1000", "500", f"{COST}", "0"]]


WRONG_QUERIES = [
    ("by=color", "by: 'color' is not one of"),
    ("by=day,hour", "either day or hour"),
    ("by=key,key", "each group once"),
    ("colour=red", "'colour' is not one of"),
    ("limit=0", "limit: must be a number from 1"),
    ("page=x", "page: must be a number from 1"),
    ("format=xml", "format: must be json or csv"),
    ("from=2001-01-01&by=hour", "kept for 32 days"),
    ("from=yesterday", "from: must be a date"),
]


async def test_wrong_query_of_a_bill_names_the_parameter() -> None:
    async with open_gateway(admin=DIGEST) as (url, http):
        for query, why in WRONG_QUERIES:
            status, body = await read(url, http, ADMIN, query)
            assert status == 400, query
            assert why in str(body), query
    async with open_gateway() as (url, http):
        status, body = await read(url, http, "dg-ann")
        assert status == 404
        assert "--admin" in str(body)


@pytest.mark.parametrize("tag", ["", "a" * 65, "-x", "two words", "ä", 7, None, ["a"]])
async def test_tag_that_is_too_long_or_has_other_letters_is_refused(tag: Any) -> None:
    async with open_gateway(admin=DIGEST) as (url, http):
        status, text = await ask(url, http, "dg-ann", metadata={"dragoman_tag": tag})
        assert status == 400, text
        assert "metadata.dragoman_tag: must be 1 to 64 letters" in text
        if isinstance(tag, str) and tag.isascii():
            status, text = await ask(url, http, "dg-ann", **{"x-dragoman-tag": tag})
            assert status == 400, text
        for user in ("a" * 201, 7, "a\nb"):
            status, text = await ask(url, http, "dg-app", user=user)
            assert status == 400, text
