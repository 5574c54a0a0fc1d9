"""Requests that a gateway passes on to an API as they are: ``/pass/NAME/...``."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.calls import CallCompleted, CallFailed
from dragoman.gateway import create_app
from dragoman.gateway.access import Bounds
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.gateway.keystore import KeyStore, load_keys
from dragoman.gateway.ledger import Ledger
from dragoman.gateway.pass_usage import KeyMask, UnitReader
from dragoman.gateway.usage_book import UsageBook
from dragoman.log import MemoryLog
from dragoman.registry import Registry, read_file
from tests.server import Connection, Handler, Server, replying, serve
from tests.waiting import arrival

from .serving import serving

VENDOR_KEY = "vendor-canary-0123456789"
ALLOW = "[POST /v1/audio/*, GET /v1/voices/*, POST /v1/jobs/**, DELETE /v1/jobs/*]"
ADMIN = hash_key("admin")


@contextlib.asynccontextmanager
async def passing(
    handler: Handler,
    tmp_path: Path,
    more: str = "",
    key: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Server, str]]:
    """Run an API and a gateway that passes requests on to it; yield the API and the address."""
    async with serve(handler) as upstream:
        config = tmp_path / "models.yaml"
        config.write_text(
            f"pass:\n  up:\n    base_url: {upstream.url}/root\n    api_key: {VENDOR_KEY}\n"
            f"    allow: {ALLOW}\n{more}"
        )
        ring = KeyRing([Key("ann", hash_key("dg-ann"), **(key or {}))])
        async with Registry.load(config) as registry:
            app = create_app(registry, keys=None if key is None else ring, **settings)
            async with serving(app) as url:
                yield upstream, url


BEARER = {"authorization": "Bearer dg-ann"}


async def test_openai_client_speaks_through_the_gateway(tmp_path: Path) -> None:
    sound = bytes(range(256)) * 300
    async with (
        passing(replying(200, sound, "audio/mpeg"), tmp_path, key={}) as (upstream, url),
        openai.AsyncOpenAI(base_url=f"{url}/pass/up/v1", api_key="dg-ann") as client,
    ):
        made = await client.audio.speech.create(model="tts", voice="alloy", input="Hello")
        assert made.content == sound
        assert made.response.headers["content-type"] == "audio/mpeg"
    (seen,) = upstream.requests
    assert seen.path == "/root/v1/audio/speech"
    assert seen.json["input"] == "Hello"
    headers = {name.lower(): value for name, value in seen.headers.items()}
    assert headers["authorization"] == f"Bearer {VENDOR_KEY}"
    framing = {"host", "user-agent", "accept-encoding", "connection", "content-length"}
    assert set(headers) == {"authorization", "accept", "content-type", *framing}
    assert "dg-ann" not in repr(seen)


async def send_raw(url: str, request: str) -> bytes:
    """Send bytes to the gateway, and return what it answers until it closes the connection."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request.encode("latin-1"))
    answer = await arrival(reader.read(), "the end of the answer")
    writer.close()
    return answer


# The path of a request, which must not reach the API.
ATTACKS = [
    "/pass/up/v1/audio/../secrets", "/pass/up/v1/audio/..", "/pass/up/v1/audio/.",
    "/pass/up/v1/audio/%2e%2e/secrets", "/pass/up/v1/audio/%2E%2e", "/pass/up/v1/audio/..%2fsecrets",
    "/pass/up/v1/audio/a%2Fb", "/pass/up/v1/audio/a%5cb", "/pass/up/v1/audio/a\\b", "/pass/up/v1/audio//b",
    "/pass/up//v1/audio/b", "/pass/up/v1/audio/%252e%252e", "/pass/up/v1/audio/%c0%af",
    "/pass/up/v1/audio/%00", "/pass/up/v1/audio/a%0d%0aHost:%20evil", "/pass/up/v1/audio/..;/secrets",
    "/pass/up/v1/jobs/../../secrets", "/pass/up/v1/jobs/a/..%3b/b", "/pass/up/v1/audio/%zz",
    "/pass/up/v1/audio", "/pass/up/v1/audio/", "/pass/up/v1/audio/a/b", "/pass/up/v1/secrets",
    "/pass/up/V1/audio/a", "/pass/up/v%31/audio/a", "/pass/up", "/pass/up/", "/pass/", "/pass/other/v1/audio/a",
    "/pass/../pass/up/v1/audio/a", "/pass/up@evil.test/v1/audio/a", "/pass/http:%2f%2fevil.test/v1/audio/a",
    "/pass/up/http://evil.test/v1/audio/a", "http://evil.test/pass/up/v1/secrets",
    "http://evil.test/v1/audio/a", "/pass/up/v1/voices/a", "/pass/up/v1/audio/a?key=dg-ann",
    "/pass/up/v1/audio/a?x=\x7f",
]  # fmt: skip


async def test_no_other_path_is_reached(tmp_path: Path) -> None:
    async with passing(replying(200, b"{}"), tmp_path, key={}) as (upstream, url):
        for path in ATTACKS:
            request = (
                f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer dg-ann\r\n"
                "content-length: 2\r\nconnection: close\r\n\r\n{}"
            )
            answer = await send_raw(url, request)
            assert answer.split()[1] in (b"400", b"404", b"405"), path
        assert upstream.requests == []
        for path in (
            "/pass/up/v1/audio/a",
            "/pass/up/v1/jobs/a/b/",
            "/pass/up/v1/audio/a%20b?x=%2F..&y",
        ):
            request = (
                f"POST {path} HTTP/1.1\r\nhost: evil.test\r\nauthorization: Bearer dg-ann\r\n"
                "content-length: 2\r\nconnection: close\r\n\r\n{}"
            )
            assert (await send_raw(url, request)).split()[1] == b"200"
            assert upstream.requests[-1].path == "/root" + path.removeprefix("/pass/up")
            assert "evil.test" not in repr(upstream.requests[-1])


# The head and the body of a request that proxies may read as two, or as another one.
SMUGGLED = [
    "content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/secrets HTTP/1.1\r\n\r\n",
    "content-length: 2\r\ncontent-length: 40\r\n\r\n{}",
    "transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "content-length: 2\r\nauthorization: Bearer dg-other\r\n\r\n{}",
    "content-length : 2\r\n\r\n{}",
    "content-length: 2\r\ncontent-encoding: gzip\r\n\r\n{}",
]  # fmt: skip


async def test_ambiguous_requests_are_not_passed_on(tmp_path: Path) -> None:
    async with passing(replying(200, b"{}"), tmp_path, key={}) as (upstream, url):
        for rest in SMUGGLED:
            request = (
                "POST /pass/up/v1/audio/a HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer "
                f"dg-ann\r\nconnection: close\r\n{rest}"
            )
            answer = await send_raw(url, request)
            assert answer.split()[1] in (b"400", b"415"), rest
    assert upstream.requests == []


async def test_headers_of_the_connection_and_of_the_client_stay_here(tmp_path: Path) -> None:
    kept = {"x-model-ratelimit-left": "7", "etag": "a", "retry-after": "3"}
    hidden = {
        "set-cookie": "a=b",
        "x-powered-by": "x",
        "location": "http://internal",
        "x-key": VENDOR_KEY,
    }
    more = "    send_headers: [X-Trace]\n    extra_headers: {x-plan: gold}\n"

    async def handle(connection: Connection) -> None:
        connection.head(200, {**kept, **hidden, "connection": "close, x-hop", "x-hop": "1"})
        connection.writer.close()

    sent = {
        **BEARER, "cookie": "a=b", "x-forwarded-for": "1.2.3.4", "x-trace": "t", "te": "trailers",
        "proxy-authorization": "Basic x", "x-api-key": "dg-ann", "x-hop": "1", "keep-alive": "timeout=5",
    }  # fmt: skip
    async with (
        passing(handle, tmp_path, more, key={}) as (upstream, url),
        aiohttp.ClientSession(url) as client,
        client.get("/pass/up/v1/voices/a", headers=sent) as reply,
    ):
        assert reply.status == 200
        given = {name.lower(): value for name, value in reply.headers.items()}
    for name, value in kept.items():
        assert given[name] == value
    assert not set(given) & (set(hidden) | {"x-hop"})
    (seen,) = upstream.requests
    headers = {name.lower(): value for name, value in seen.headers.items()}
    assert headers["x-trace"] == "t"
    assert headers["x-plan"] == "gold"
    forbidden = set(sent) - {"authorization", "x-trace"}
    assert not set(headers) & forbidden


async def test_redirect_is_an_error_and_is_not_followed(tmp_path: Path) -> None:
    async with serve(replying(200, b"{}")) as other:
        for status in (301, 302, 303, 307, 308):

            async def handle(connection: Connection, status: int = status) -> None:
                connection.reply(status, b"secret", location=f"{other.url}/v1/audio/a")

            async with (
                passing(handle, tmp_path, key={}) as (_, url),
                aiohttp.ClientSession(url, headers=BEARER) as client,
                client.post("/pass/up/v1/audio/a", json={}) as reply,
            ):
                text = await reply.text()
                assert reply.status == 502
                assert "redirects" in text
                assert other.url not in text
                assert "location" not in reply.headers
        assert other.requests == []


@given(st.data())
def test_key_of_the_api_is_masked_wherever_the_reply_is_cut(data: st.DataObject) -> None:
    secret = data.draw(st.sampled_from(["aab", "aaab", VENDOR_KEY]))
    parts = st.sampled_from([secret, secret[:-1], secret[1:], "a", "ab", "x"])
    whole = "".join(data.draw(st.lists(parts, max_size=8))).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    mask = KeyMask([secret])
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    shown = b"".join([*map(mask.feed, pieces), mask.end()])
    assert shown == whole.replace(secret.encode(), b"*" * len(secret))


async def test_api_that_repeats_its_key_does_not_give_it_away(tmp_path: Path) -> None:
    body = json.dumps({"error": f"the key {VENDOR_KEY} is wrong"}).encode()
    async with (
        passing(replying(401, body), tmp_path, key={}) as (_, url),
        aiohttp.ClientSession(url, headers=BEARER) as client,
        client.post("/pass/up/v1/audio/a", json={}) as reply,
    ):
        assert reply.status == 401
        text = await reply.text()
        assert text == body.decode().replace(VENDOR_KEY, "*" * len(VENDOR_KEY))


async def test_stream_arrives_as_it_is_written_and_ends_with_its_client(tmp_path: Path) -> None:
    more = asyncio.Event()

    async def handle(connection: Connection) -> None:
        connection.begin_stream()
        connection.chunk(b"data: one\n\n")
        await more.wait()
        connection.chunk(b"data: two\n\n")
        await asyncio.Event().wait()

    async with (
        passing(handle, tmp_path, key={}) as (upstream, url),
        aiohttp.ClientSession(url, headers=BEARER) as client,
    ):
        async with client.post("/pass/up/v1/audio/a", json={}) as reply:
            first = await arrival(reply.content.readuntil(b"\n\n"), "the first event")
            assert first == b"data: one\n\n"
            more.set()
            assert await arrival(reply.content.readuntil(b"\n\n"), "another") == b"data: two\n\n"
        await arrival(upstream.closed.wait(), "the end of the request at the API")


async def test_reply_that_the_api_cuts_off_is_cut_off(tmp_path: Path) -> None:
    async def handle(connection: Connection) -> None:
        connection.begin_stream()
        connection.chunk(b"data: one\n\n")
        connection.writer.close()

    async with (
        passing(handle, tmp_path, key={}) as (_, url),
        aiohttp.ClientSession(url, headers=BEARER) as client,
        client.post("/pass/up/v1/audio/a", json={}) as reply,
    ):
        with pytest.raises(aiohttp.ClientPayloadError):
            await reply.read()


PRICED = "    usd_per_request: 0.01\n    usage_path: usage.units\n    usd_per_unit: '0.5'\n"
SSE = b'data: {"usage": {"units": 1}}\n\ndata: {"usage": {"units": 4}}\n\ndata: [DONE]\n\n'
# The settings, the status, the body and the media type of a reply, its cost, and whether that is
# not all.
COSTS: list[tuple[str, int, bytes, str, Decimal, int]] = [
    ("", 200, b"{}", "application/json", Decimal(0), 1),
    ("    usd_per_request: 0.25\n", 200, b"{}", "audio/mpeg", Decimal("0.25"), 0),
    (PRICED, 200, b'{"usage": {"units": 3}}', "application/json", Decimal("1.51"), 0),
    (PRICED, 200, SSE, "text/event-stream; charset=utf-8", Decimal("2.01"), 0),
    (PRICED, 200, b'{"usage": {"units": -3}}', "application/json", Decimal("0.01"), 1),
    (PRICED, 200, b'{"usage": {"units": true}}', "application/json", Decimal("0.01"), 1),
    (PRICED, 200, b"{}", "application/json", Decimal("0.01"), 1),
    (PRICED, 500, b'{"usage": {"units": 3}}', "application/json", Decimal(0), 0),
    (PRICED, 429, b"slow down", "text/plain", Decimal(0), 0),
]  # fmt: skip


@pytest.mark.parametrize(("more", "status", "body", "kind", "usd", "unpriced"), COSTS)
async def test_cost_is_billed_counted_and_recorded(
    more: str, status: int, body: bytes, kind: str, usd: Decimal, unpriced: int, tmp_path: Path
) -> None:
    ledger = Ledger()
    book = UsageBook(None)
    log = MemoryLog()
    settings: dict[str, Any] = {"ledger": ledger, "usage": book, "admin": ADMIN, "log": log}
    key = {"budget_usd": Decimal(9)} if more else {"requests_per_minute": 9}
    async with (
        passing(replying(status, body, kind), tmp_path, more, key=key, **settings) as (_, url),
        aiohttp.ClientSession(url, headers=BEARER) as client,
        client.post("/pass/up/v1/jobs/a/b?secret=1", json={}) as reply,
    ):
        assert reply.status == status
        assert await reply.read() == body
        assert ledger.spent("ann") == (usd if more else 0)
    (row,) = await book.list_requests(0, {}, 10)
    assert row.model == "pass/up"
    assert row.status == status
    assert row.usd == usd
    assert row.unpriced == unpriced
    (session,) = log.sessions()
    payloads = [each.payload for each in log.read(session.session)]
    (record,) = [each for each in payloads if isinstance(each, CallCompleted | CallFailed)]
    assert record.operation == "pass"
    assert record.settings == {"method": "POST", "path": "/v1/jobs/a/b"}
    assert record.cost_usd == (usd or None)
    assert VENDOR_KEY not in repr(record)


async def test_limits_and_rights_of_a_key_hold(tmp_path: Path) -> None:
    for key, status, words in (
        ({"requests_per_minute": 1}, 429, "requests"),
        ({"models": ("anthropic:*",)}, 404, "nothing is passed on"),
        ({"models": ("pass/other",)}, 404, "nothing is passed on"),
        ({"budget_usd": Decimal(1)}, 402, "no price is stated"),
    ):
        async with (
            passing(replying(200, b"{}"), tmp_path, key=key) as (upstream, url),
            aiohttp.ClientSession(url, headers=BEARER) as client,
        ):
            await client.post("/pass/up/v1/audio/a", json={})
            async with client.post("/pass/up/v1/audio/a", json={}) as reply:
                assert reply.status == status
                assert words in await reply.text()
            assert len(upstream.requests) == ("requests_per_minute" in key)


async def test_exhausted_budget_ends_what_is_passed_on(tmp_path: Path) -> None:
    more = "    usd_per_request: 0.5\n"
    async with (
        passing(replying(200, b"{}"), tmp_path, more, key={"budget_usd": Decimal(1)}) as (up, url),
        aiohttp.ClientSession(url, headers=BEARER) as client,
    ):
        statuses = []
        for _ in range(3):
            async with client.post("/pass/up/v1/audio/a", json={}) as reply:
                await reply.read()
                statuses.append(reply.status)
    assert statuses == [200, 200, 429]
    assert len(up.requests) == 2


async def test_budget_of_a_user_holds(tmp_path: Path) -> None:
    place = tmp_path / "keys.db"
    store = KeyStore(place)
    store.add([Key("ann", hash_key("dg-ann"), user="ann@example.org")])
    store.set_budget("user:ann@example.org", "day", Decimal("0.5"))
    store.close()
    async with serve(replying(200, b"{}")) as upstream:
        config = tmp_path / "models.yaml"
        config.write_text(
            f"pass:\n  up: {{base_url: {upstream.url}, allow: [GET /a], usd_per_request: 0.5}}\n"
        )
        async with (
            Registry.load(config) as registry,
            serving(create_app(registry, keys=load_keys(place))) as url,
            aiohttp.ClientSession(url, headers=BEARER) as client,
        ):
            statuses = []
            for _ in range(2):
                async with client.get("/pass/up/a") as reply:
                    await reply.read()
                    statuses.append(reply.status)
    assert statuses == [200, 429]
    assert len(upstream.requests) == 1


async def test_client_sends_its_key_in_the_header_of_the_api(tmp_path: Path) -> None:
    more = "    key_header: xi-api-key\n"
    async with (
        passing(replying(200, b"{}"), tmp_path, more, key={}) as (upstream, url),
        aiohttp.ClientSession(url) as client,
    ):
        for key, status in (("dg-ann", 200), ("dg-other", 401)):
            headers = {"xi-api-key": key}
            async with client.get("/pass/up/v1/voices/a", headers=headers) as reply:
                assert reply.status == status
    (seen,) = upstream.requests
    headers = {name.lower(): value for name, value in seen.headers.items()}
    assert headers["xi-api-key"] == VENDOR_KEY
    assert "authorization" not in headers


async def test_web_page_reaches_nothing_at_a_gateway_without_keys(tmp_path: Path) -> None:
    async with (
        passing(replying(200, b"{}"), tmp_path) as (upstream, url),
        aiohttp.ClientSession(url) as client,
    ):
        for headers, status in (
            ({"sec-fetch-site": "cross-site"}, 403),
            ({"origin": "https://evil.test"}, 403),
            ({"host": "evil.test"}, 403),
            ({}, 200),
        ):
            async with client.get("/pass/up/v1/voices/a", headers=headers) as reply:
                assert reply.status == status
        assert len(upstream.requests) == 1


async def test_body_is_bounded_and_of_any_type(tmp_path: Path) -> None:
    bounds = Bounds(body_bytes=100)
    async with (
        passing(replying(200, b"{}"), tmp_path, key={}, bounds=bounds) as (upstream, url),
        aiohttp.ClientSession(url, headers=BEARER) as client,
    ):
        for size, status in ((100, 200), (101, 413)):
            form = {"content-type": "multipart/form-data; boundary=x"}
            data = b"x" * size
            async with client.post("/pass/up/v1/audio/a", data=data, headers=form) as reply:
                assert reply.status == status
    (seen,) = upstream.requests
    assert len(seen.body) == 100
    assert "boundary=x" in repr(seen.headers)


async def test_api_without_its_key_is_not_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UP_KEY", raising=False)
    async with serve(replying(200, b"{}")) as upstream:
        config = tmp_path / "models.yaml"
        config.write_text(
            f"pass:\n  up: {{base_url: {upstream.url}, api_key_env: UP_KEY, allow: [GET /a]}}\n"
        )
        async with (
            Registry.load(config) as registry,
            serving(create_app(registry)) as url,
            aiohttp.ClientSession(url) as client,
        ):
            async with client.get("/pass/up/a") as reply:
                assert reply.status == 404
                assert "is not configured here" in await reply.text()
            assert upstream.requests == []
            monkeypatch.setenv("UP_KEY", VENDOR_KEY)
            async with client.get("/pass/up/a") as reply:
                assert reply.status == 200


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("base_url: 'ftp://x', allow: [GET /a]", "up.base_url: must be an http:// or https:// URL"),
        ("base_url: 'https://u:p@x', allow: [GET /a]", "up.base_url: must be"),
        ("base_url: 'https://x/?a=b', allow: [GET /a]", "up.base_url: must be"),
        ("base_url: 'https://x'", "up.allow: must list what is passed on"),
        ("base_url: 'https://x', allow: [HEAD /a]", "up.allow: 'HEAD /a' must be a method"),
        ("base_url: 'https://x', allow: [GET /a/../b]", "up.allow: 'GET /a/../b' must be"),
        ("base_url: 'https://x', allow: ['GET /**/b']", "up.allow: 'GET /**/b' must be"),
        ("base_url: 'https://x', allow: ['GET a']", "up.allow: 'GET a' must be"),
        ("base_url: 'https://x', allow: [GET /a], send_headers: [cookie]", "up.send_headers: 'cookie'"),
        ("base_url: 'https://x', allow: [GET /a], extra_headers: {Host: x}", "up.extra_headers: 'host'"),
        ("base_url: 'https://x', allow: [GET /a], usd_per_request: -1", "up.usd_per_request: must be"),
        ("base_url: 'https://x', allow: [GET /a], usage_path: a", "up.usage_path: usage_path and"),
        ("base_url: 'https://x', allow: [GET /a], key: a", "up.key: unknown key"),
    ],
)  # fmt: skip
def test_mistake_in_the_file_is_reported(settings: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(f"pass:\n  up: {{{settings}}}\n")
    (found,) = read_file(path).problems
    assert found.problem.startswith(f"pass.{problem}")
    assert found.line == 2


def test_units_of_a_large_reply_are_unknown() -> None:
    for kind in ("application/json", "text/event-stream"):
        reader = UnitReader("a", kind)
        reader.feed(b'data: {"a": 1}\n\n' if "stream" in kind else b" ")
        reader.feed(b" " * 2**20 + b'{"a": 2}')
        reader.end()
        assert reader.units == (1 if "stream" in kind else None)
