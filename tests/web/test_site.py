"""Test the pages' data and who may read it: the admin key alone, and no other web site."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from msgspec.structs import astuple, replace

import dragoman.gateway.web
from dragoman import Fallback, connect
from dragoman.capabilities import Capabilities
from dragoman.cli import main
from dragoman.errors import AuthenticationError
from dragoman.events import Usage
from dragoman.gateway.app import create_app
from dragoman.gateway.clients import read_clients
from dragoman.gateway.keys import Key, KeyRing, hash_key, new_key
from dragoman.gateway.keystore import KeyStore, load_keys
from dragoman.gateway.sums import DAY
from dragoman.gateway.totals import Percentiles, Span, select_figures
from dragoman.gateway.usage_book import UsageBook, UsageRow
from dragoman.log import SqliteLog
from dragoman.registry import Registry
from dragoman.transport.serving import serving
from dragoman.wire import CODECS

from ..databases import own_postgres as own_postgres
from ..databases import postgres_url as postgres_url
from ..databases import server as server
from ..listed import Listed, reply
from ..server import Connection, serve
from ..waiting import arrival, until

ADMIN, DIGEST = new_key()
CALLER = "dg-caller"
KEYS = KeyRing([Key("ann", hash_key(CALLER))])
USED = Usage(input_tokens=1000, output_tokens=500, total_tokens=1500)
ASKED = [{"role": "user", "content": "Name a river."}]
QUESTION = {"model": "fast", "messages": ASKED}
SIGNED = {"authorization": f"Bearer {ADMIN}"}
PAYING = {**SIGNED, "x-call-key": CALLER}


def priced(*answers: Any) -> Listed:
    return Listed(*answers, name="anthropic", model="claude-sonnet-4-5", repeat=True)


@contextlib.asynccontextmanager
async def open_site(models: Any, **settings: Any) -> AsyncIterator[str]:
    """Serve a gateway with the pages."""
    app = create_app(models, ui="dragoman.gateway.web", **settings)
    async with app.router.lifespan_context(app), serving(app) as url:
        yield url


async def get(
    url: str, headers: dict[str, str] | None = None, method: str = "GET", **facts: Any
) -> tuple[int, Any, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, headers=headers, **facts) as answer,
    ):
        return answer.status, answer.headers, await answer.text()


async def read(url: str, path: str, body: Any = None, headers: Any = None) -> Any:
    """Return the data at a path of the pages, with the admin key unless other headers are given."""
    method = "GET" if body is None else "POST"
    headers = SIGNED if headers is None else headers
    status, _, text = await get(f"{url}/ui/api/{path}", headers, method, json=body)
    assert status == 200, text
    return json.loads(text) if text.count("\n") == 0 else [*map(json.loads, text.splitlines())]


# --- who may read --------------------------------------------------------------------------------

BASIC = "Basic " + base64.b64encode(f"me:{ADMIN}".encode()).decode()
REFUSED: list[tuple[str, str, dict[str, str], int]] = [
    ("GET", "overview", {}, 401),
    ("GET", "overview", {"authorization": "Bearer dg-wrong"}, 401),
    ("GET", "overview", {"authorization": f"Bearer {DIGEST}"}, 401),
    ("GET", "overview", {"authorization": f"Bearer {CALLER}"}, 401),
    ("GET", "overview", {"authorization": BASIC}, 401),  # a browser repeats it by itself
    ("GET", "overview", {"cookie": f"key={ADMIN}; session=chosen"}, 401),
    ("GET", "overview", {**SIGNED, "sec-fetch-site": "cross-site"}, 403),
    ("GET", "overview", {**SIGNED, "sec-fetch-site": "same-site"}, 403),
    ("GET", "overview", {**SIGNED, "origin": "https://evil.example"}, 403),
    ("GET", "overview?range=9d", SIGNED, 400),
    ("GET", "state", {"authorization": "Bearer dg-wrong"}, 401),
    ("GET", "clients", {}, 401),
    ("GET", "nothing", SIGNED, 404),
    ("POST", "keys", {}, 401),
    ("POST", "keys", {**SIGNED, "origin": "https://evil.example"}, 403),
    ("POST", "keys", {**SIGNED, "content-type": "text/plain"}, 415),
    ("POST", "chat", {**SIGNED, "content-type": "application/json"}, 401),  # no key pays
    ("POST", "chat", {"content-type": "application/json", "x-call-key": CALLER}, 401),
    ("POST", "preview", {}, 401),
    ("DELETE", "keys", SIGNED, 405),
    ("GET", "../traces/api/sessions", {}, 401),
    ("GET", "../traces/api/sessions", {**SIGNED, "sec-fetch-site": "cross-site"}, 403),
]  # fmt: skip


async def test_only_the_admin_key_reads_data_and_only_from_the_pages_themselves(
    tmp_path: Path,
) -> None:
    KeyStore(tmp_path / "keys.db").add(KEYS.keys)
    ring = load_keys(tmp_path / "keys.db")
    with SqliteLog(tmp_path / "log.db") as log:
        settings = {"keys": ring, "admin": DIGEST, "log": log, "cors": ["https://evil.example"]}
        async with open_site({"fast": priced(reply("Hello"))}, **settings) as url:
            for method, path, headers, expected in REFUSED:
                status, found, text = await get(
                    f"{url}/ui/api/{path}", headers, method, data=b"{}"
                )
                assert status == expected, (method, path, headers, text)
                assert "set-cookie" not in found
                assert "frame-ancestors 'none'" in found["content-security-policy"]
                assert found["cross-origin-resource-policy"] == "same-origin"
            # without a key, nothing but that one is needed
            assert await read(url, "state", headers={}) == {"sign_in": True}
            for path in ("/", "/ui/site.js", "/ui/traces/", "/ui/traces/trace.js"):
                status, found, text = await get(f"{url}{path}")
                assert status == 200
                assert found["x-frame-options"] == "DENY"
                assert "script-src 'self'" in found["content-security-policy"]
                assert "ann" not in text.split()
            assert (await get(f"{url}/ui/../../site.py"))[0] == 404
            assert (await get(f"{url}/ui/traces/api/sessions", SIGNED))[0] == 200
            same = {**SIGNED, "origin": url, "sec-fetch-site": "same-origin"}
            assert (await get(f"{url}/ui/api/overview", same))[0] == 200
    ring.close()


async def test_pages_are_built_when_they_are_requested_and_only_where_they_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    class Counted(dragoman.gateway.web.Site):
        def __init__(self, service: Any) -> None:
            made.append(service)
            super().__init__(service)

    monkeypatch.setattr(dragoman.gateway.web, "Site", Counted)
    model = priced(reply("Hello"))
    for settings, expected in [
        ({"ui": "dragoman.gateway.web", "keys": KEYS}, 404),
        ({"keys": KEYS, "admin": DIGEST}, 404),
        ({"ui": "dragoman.gateway.web"}, 200),
    ]:  # fmt: skip
        app = create_app({"fast": model}, **settings)  # type: ignore[arg-type]
        async with serving(app) as url:
            assert (await get(f"{url}/health"))[0] == 200
            assert made == []
            assert (await get(f"{url}/"))[0] == expected
    assert len(made) == 1


async def test_gateway_without_keys_shows_playground_and_models_only_locally() -> None:
    async with open_site({"fast": priced(reply("Hello"))}) as url:
        state = await read(url, "state", headers={})
        assert state["pages"] == ["playground", "models", "clients"]
        assert (await read(url, "chat", QUESTION, headers={}))[-1]["served_by"].endswith("4-5")
        for path in ("/ui/api/overview", "/ui/traces/", "/ui/api/keys"):
            assert (await get(f"{url}{path}"))[0] == 404
        for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            assert (await get(f"{url}/ui/api/state", headers))[0] == 403


def test_admin_key_file_must_contain_a_hash_rather_than_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dragoman.gateway.supervisor.run", lambda *args, **kwargs: pytest.fail("it listens")
    )
    file = tmp_path / "admin"
    file.write_text(ADMIN)
    done = CliRunner().invoke(main, ["serve", "--admin", str(file)])
    assert done.exit_code == 2
    assert "--admin:" in done.stderr
    assert ADMIN not in done.output


# --- keys of vendors -----------------------------------------------------------------------------


@pytest.fixture
def keys_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    monkeypatch.setenv("DRAGOMAN_KEYS", str(tmp_path / "keys.json"))
    for variable in ("OPENAI_API_KEY", "GROQ_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "keys.json"


@contextlib.asynccontextmanager
async def open_with_vendors(**settings: Any) -> AsyncIterator[str]:
    """Serve the pages as ``dragoman ui`` does."""
    app = create_app({"local": priced(reply("Hi"))}, ui="dragoman.gateway.web", **settings)
    app.state.service.registry = Registry.load(None)
    async with app.router.lifespan_context(app), serving(app) as url:
        yield url


async def test_stored_key_of_a_vendor_adds_its_models(
    keys_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_with_vendors(keys=KEYS, admin=DIGEST) as url:
        assert (await read(url, "state"))["stores_keys"]
        known = await read(url, "vendors")
        stored = await read(url, "vendors", {"vendor": "openai", "key": " sk-stored\n"})
        models = (await read(url, "state"))["models"]
        again = {each["id"]: each for each in (await read(url, "vendors"))["vendors"]}
        monkeypatch.setenv("GROQ_API_KEY", "set")
        other = await read(url, "vendors", {"vendor": "groq", "key": "gsk-stored"})
    assert known["place"] == "file"
    openai = {"id": "openai", "name": "OpenAI", "variable": "OPENAI_API_KEY", "source": None}
    assert openai in known["vendors"]
    assert "ollama" not in [each["id"] for each in known["vendors"]]
    assert stored["variable"] == "OPENAI_API_KEY"
    assert stored["place"] == "file"
    assert not stored["overridden"]
    assert "sk-stored" not in str(stored)
    assert {"openai:gpt-6-sol", "local"} <= set(models)
    assert set(stored["models"]) <= set(models)
    assert again["openai"]["source"] == "file"
    assert other["overridden"]
    assert json.loads(keys_file.read_text())["OPENAI_API_KEY"]["key"] == "sk-stored"


@pytest.mark.parametrize(
    ("body", "headers", "status", "why"),
    [
        ({"vendor": "openai", "key": "sk-x"}, {}, 401, "admin key is missing or wrong"),
        ({"vendor": "openai", "key": "sk-x"}, {**SIGNED, "origin": "https://evil.example"}, 403,
         "not for other sites"),
        ({"vendor": "openai", "key": "sk-x"}, {**SIGNED, "sec-fetch-site": "cross-site"}, 403,
         "not for other sites"),
        ({"vendor": "opnai", "key": "sk-x"}, SIGNED, 400, "no vendor has this name"),
        ({"vendor": "ollama", "key": "sk-x"}, SIGNED, 400, "needs no key"),
        ({"vendor": "openai", "key": "sk x"}, SIGNED, 400, "without spaces"),
        ({"vendor": "openai", "key": ""}, SIGNED, 400, "one line of printable"),
        ({"vendor": "openai"}, SIGNED, 400, "must have a vendor and a key"),
    ],
)  # fmt: skip
async def test_key_of_a_vendor_is_refused(
    body: Any, headers: Any, status: int, why: str, keys_file: Path
) -> None:
    async with open_with_vendors(keys=KEYS, admin=DIGEST) as url:
        sent = {"content-type": "application/json", **headers}
        got = await get(f"{url}/ui/api/vendors", sent, "POST", data=json.dumps(body))
    assert got[0] == status
    assert why in got[2]
    assert "sk-x" not in got[2]
    assert not keys_file.exists()


async def test_key_of_a_vendor_is_stored_from_this_machine_only(
    keys_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.gateway.web.vendors.is_loopback", lambda host: False)
    async with open_with_vendors(keys=KEYS, admin=DIGEST) as url:
        sent = {"content-type": "application/json", **SIGNED}
        body = json.dumps({"vendor": "openai", "key": "sk-x"})
        got = await get(f"{url}/ui/api/vendors", sent, "POST", data=body)
    assert got[0] == 400
    assert "from this machine only" in got[2]
    assert not keys_file.exists()


async def test_gateway_stores_no_keys_of_vendors() -> None:
    async with open_site({"fast": priced(reply("Hello"))}, keys=KEYS, admin=DIGEST) as url:
        assert not (await read(url, "state"))["stores_keys"]
        assert (await get(f"{url}/ui/api/vendors", SIGNED))[0] == 404


# --- the overview --------------------------------------------------------------------------------


async def test_overview_counts_running_and_aborted_requests() -> None:
    gate = asyncio.Event()
    model = priced(lambda request: [gate, *reply("Hello")(request)])
    async with open_site({"fast": model}, keys=KEYS, admin=DIGEST) as url:
        call = asyncio.ensure_future(read(url, "chat", QUESTION, PAYING))
        await until(lambda: model.running, "the call")
        (live,) = (await read(url, "overview"))["live"]
        assert live["key"] == "ann"
        assert live["model"] == "fast"
        call.cancel()
        await until(lambda: not model.running, "the end of the call")
        (aborted,) = await arrival(find_calls(url), "the record of the call")
        assert aborted["status"] == 499
        assert aborted["error"] == "cancelled"


async def find_calls(url: str) -> list[Any]:
    while not (calls := (await read(url, "calls"))["calls"]):
        pass
    return list(calls)


def make_row(**facts: Any) -> UsageRow:
    row = UsageRow(
        int(time.time() * 1000), "r", "ann", "fast", 200, "", 1, 1, Decimal("0.1"), 0, 5, ""
    )
    return replace(row, **facts)


def find_today() -> Span:
    """Return the time since yesterday."""
    now = make_row().at
    return Span(since=(now // DAY - 1) * DAY, now=now, step=DAY)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_usage_of_all_processes_is_summed(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = (
        request.getfixturevalue("postgres_url") if store == "postgres" else tmp_path / "used.db"
    )
    books = [UsageBook(place) for _ in range(2)]
    for book in books:
        for status in (200, 200, 500):
            book.count(make_row(status=status, model="<script>"))
        book.count(make_row(at=0))  # too old, so that it is deleted
        await book.flush(())
    figures = await books[0].read(select_figures, find_today(), 9)
    [row] = figures.models.rows
    assert astuple(row) == ("<script>", 0, 6, 2, 6, 6, Decimal("0.6"), 0)
    assert len(await books[1].list_requests(0, {"failed": "1", "model": "<script>"}, 9)) == 2
    assert figures.latency_of == {"<script>": Percentiles(5, 5)}
    for book in books:
        book.close()


async def test_usage_is_written_once_the_database_is_available_again(own_postgres: Any) -> None:
    book = UsageBook(own_postgres.url)
    own_postgres.stop()
    for _ in range(3):
        book.count(make_row())
    await book.flush(())
    own_postgres.start()
    await book.flush(())
    row = (await book.read(select_figures, find_today(), 9)).total
    assert row.requests == 3
    assert row.usd == Decimal("0.3")
    book.close()


# --- models --------------------------------------------------------------------------------------


async def test_models_show_state_price_group_and_where_facts_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.gateway.models._READY_FOR", -1.0)  # ask the upstreams each time

    def fail(request: Any) -> Any:
        raise AuthenticationError("no", status=401)

    two = [Listed(fail, name="one", model="a"), Listed(reply("x"), name="two", model="b")]
    models = {
        "group": Fallback(two),
        "up": connect("m", base_url="http://127.0.0.1:1/v1?key=secret", name="up",
                      capabilities={"supports_tools": True}),
        "fast": priced(reply("Hello")),
    }  # fmt: skip
    async with open_site(models) as url:
        await read(url, "chat", {**QUESTION, "model": "group"}, {})
        fast, group, up = (await read(url, "models?check=1", headers={}))["models"]
        assert "secret" not in json.dumps(up)
        unchecked = (await read(url, "models", headers={}))["models"]
    assert fast["state"] == "ready"
    assert fast["price"]["input"] == "3"
    assert [each["state"] for each in group["candidates"]] == ["circuit open: auth_error", "ready"]
    assert group["strategy"] == "fallback"
    assert up["state"] == "provider_unavailable"
    assert up["price"] is None
    assert "no known seller" in up["price_unknown"]
    assert up["capabilities"]["supports_tools"] == {"value": True, "source": "declared"}
    assert {each["state"] for each in unchecked} == {"not checked"}
    path = tmp_path / "models.yaml"
    path.write_text(
        "adapters:\n  up: {type: openai, base_url: 'http://127.0.0.1:1/v1'}\n"
        "models:\n  up:m: {aliases: [quick]}\n"
        "groups:\n  both: {strategy: fallback, candidates: [up:m, quick]}\n"
    )
    app = create_app(Registry.load(path))
    found = {each["name"]: each for each in app.state.service.models.describe(None)}
    assert found["quick"]["served_by"] == "up:m"
    assert found["quick"]["state"] == "not used yet"
    assert next(each["served_by"] for each in found["both"]["candidates"]) == "up:m"


# --- keys ----------------------------------------------------------------------------------------


async def test_clients_have_settings_for_the_address_and_the_sizes_of_a_model() -> None:
    model = priced(reply("Hello"))
    model.capabilities = Capabilities.of(
        {"max_context_tokens": 400_000, "max_output_tokens": 100_000}
    )
    async with open_site({"fast": model}) as url:
        for query, window, name in [
            ("", 200_000, "clever"),
            ("?url=https://gw.test&model=fast", 400_000, "fast"),
            ("?url=https://gw.test&model=other", 200_000, "other"),
        ]:
            found = (await read(url, f"clients{query}", headers={}))["clients"]
            assert [each["name"] for each in found] == [*read_clients()]
            shown = {each["name"]: each for each in found}
            (file, command) = shown["opencode"]["steps"]
            assert file["file"] == "opencode.json"
            assert f'"context": {window}' in file["text"]
            assert f'"model": "dragoman/{name}"' in file["text"]
            assert ("https://gw.test/v1" in file["text"]) == bool(query)
            assert command["run"] == "opencode\n"
            assert shown["zed"]["trial"].startswith("Not run")


async def test_each_change_of_a_key_on_the_page_is_recorded(tmp_path: Path) -> None:
    KeyStore(tmp_path / "keys.db", actor="root").add(KEYS.keys)
    ring = load_keys(tmp_path / "keys.db")
    model = priced(reply("Hello"))
    async with open_site({"fast": model}, keys=ring, admin=DIGEST) as url:

        async def works(key: str) -> bool:
            status, _, _ = await get(
                f"{url}/ui/api/chat", {**SIGNED, "x-call-key": key}, "POST", json=QUESTION
            )
            return status == 200

        limits = {"budget_usd_month": "20", "models": ["fast"], "requests_per_minute": 9}
        made = await read(url, "keys", {"action": "new", "name": "bob", **limits})
        assert await works(made["key"])
        await read(url, "keys", {"action": "change", "name": "bob", "requests_per_minute": None})
        rotated = await read(url, "keys", {"action": "rotate", "name": "bob", "overlap_hours": 1})
        assert [await works(made["key"]), await works(rotated["key"])] == [True, True]
        await read(url, "keys", {"action": "block", "name": "bob"})
        assert not await works(rotated["key"])
        await read(url, "keys", {"action": "change", "name": "bob", "expires": None})
        assert await works(rotated["key"])
        team = {"action": "team", "name": "rivers"}
        for budget in ("30", None, "0.5"):
            await read(url, "keys", {**team, "budget_usd_month": budget})
        await read(url, "keys", {"action": "change", "name": "bob", "team": "rivers"})
        assert ring.find(rotated["key"]).team_budget_usd_month == Decimal("0.5")  # type: ignore[union-attr]
        await read(url, "keys", {"action": "revoke", "name": "bob"})
        assert not await works(rotated["key"])
        listed = await read(url, "keys")
        wrong = [
            {"action": "new", "name": "ann"},
            {"action": "new", "name": "x", "budget_usd": "-1"},
            {"action": "new", "name": "x", "budget_usd": "1e9999999"},
            {"action": "new", "name": "x", "tokens_per_minute": 10**30},
            {"action": "change", "name": "nobody", "team": "x"},
            {"action": "team", "name": "team:x"},
            {"action": "team", "name": "x", "budget_usd_month": "much"},
            {"action": "change", "name": "ann", "requests_per_minute": 0},
            {"action": "change", "name": "ann", "hash": DIGEST},
        ]
        for body in wrong:
            status, _, text = await get(f"{url}/ui/api/keys", SIGNED, "POST", json=body)
            assert status == 400, (body, text)
    ring.close()
    assert [key["id"] for key in listed["keys"]] == ["ann"]
    assert "sha256" not in json.dumps(listed)
    changes = [(each["actor"], each["action"]) for each in listed["audit"]]
    assert changes == [
        *[("admin", each) for each in
          ("revoke", "change", "team", "team", "team", "change", "change", "rotate", "change",
           "create")],
        ("root", "create"),
    ]  # fmt: skip


# --- the playground ------------------------------------------------------------------------------

PICTURE = {"type": "image", "source": {"type": "inline", "base64_data": "iVBORw0KGgo="},
           "media_type": "image/png"}  # fmt: skip
TOOL = {"name": "weather", "description": "The weather.", "parameters": {"type": "object"}}
FULL: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, PICTURE]},
        {"role": "assistant", "content": [{"type": "thinking", "text": "Hm."}, {"type": "tool_call", "id": "c1", "name": "weather",
                                           "arguments": {"place": "Bonn"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ],
    "tools": [TOOL],
    "config": {"max_tokens": 50, "top_p": 0.5},
}  # fmt: skip


async def test_what_is_shown_is_what_is_sent_on_every_wire() -> None:
    async def handler(connection: Connection) -> None:
        connection.reply(400, b'{"error": {"message": "recorded"}}')

    async with serve(handler) as upstream:
        models = {wire: connect("m", base_url=upstream.url, wire=wire) for wire in CODECS}
        async with open_site(models) as url:
            query = "&".join([f"model={wire}" for wire in CODECS])
            sent = (await read(url, f"preview?{query}", FULL, {}))["sent"]
            for each in sent:
                await get(f"{url}/ui/api/chat", {}, "POST", json={**FULL, "model": each["model"]})
                seen = upstream.requests.pop()
                assert seen.body.decode() == each["body"], each["wire"]
                assert each["url"] == upstream.url + seen.path.partition("?")[0]
            seeded = {**FULL, "config": {"seed": 7, "max_tokens": 9}}
            sent = (await read(url, f"preview?{query}", seeded, {}))["sent"]
            refused = [each["model"] for each in sent if "seed" in (each["refused"] or "")]
            for name in refused:
                await get(f"{url}/ui/api/chat", {}, "POST", json={**seeded, "model": name})
            assert refused
            assert upstream.requests == []
    assert {each["wire"] for each in sent} == set(CODECS)
    lost = {
        each["wire"]: {note["path"] for note in each["notes"] if note["loss"]} for each in sent
    }
    assert "messages[2].content[0]" in lost["openai"], "the thinking of another model"
    assert all(each["plan"]["fits"] is None for each in sent)


async def test_all_wires_are_shown_and_a_wrong_request_is_explained() -> None:
    model = connect("m", base_url="http://127.0.0.1:1/v1", name="up", api_key="sk-secret")
    bad = {"messages": ASKED, "tools": [{"nam": "x"}]}
    async with open_site({"fast": model}) as url:
        sent = (await read(url, "preview?model=fast", FULL, {}))["sent"]
        for each in (await read(url, "preview?model=fast", bad, {}))["sent"]:
            assert "tools[0]" in each["refused"]
    assert sent[0]["model"] == "fast"
    assert {each["wire"] for each in sent} == set(CODECS)
    assert sent[0]["headers"]["authorization"] == "Bearer $API_KEY"
    assert "sk-secret" not in json.dumps(sent)


async def test_conversation_of_the_playground_is_one_session_of_the_log(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        settings = {"keys": KEYS, "admin": DIGEST, "log": log, "log_content": True}
        model = priced(reply("Rhine", usage=USED), reply("Seine", usage=USED))
        own = Listed(reply("x"), name="own")
        async with open_site({"fast": model, "own": own}, **settings) as url:
            *_, end = await read(url, "chat", {**QUESTION, "model": "own"}, PAYING)
            (call,) = (await read(url, "calls?unpriced=1"))["calls"]
            assert end["cost_usd"] is None
            assert call["model"] == "own"
            *_, complete, end = await read(url, "chat", QUESTION, PAYING)
            assert complete["final_content"] == [{"type": "text", "text": "Rhine"}]
            assert Decimal(end["cost_usd"]) == Decimal("0.0105")
            assert end["usage"]["input_tokens"] == 1000
            said = {"role": "assistant", "content": complete["final_content"]}
            more = {**QUESTION, "messages": [*ASKED, said, *ASKED]}
            session = end["conversation"]
            *_, end = await read(url, "chat", {**more, "conversation": session}, PAYING)
            assert end["conversation"] == session
            *_, end = await read(url, "chat", {**QUESTION, "conversation": "chat_other"}, PAYING)
            assert end["conversation"] not in (session, "chat_other")
            (call, *_), _ = (await read(url, "calls")).values()
            assert call["session"] == end["conversation"]
        found = [
            (record.type, record.data.get("message", {}).get("role"))
            for record in log.read(session)
        ]
    message = "message.recorded"
    ended = ("llm.call_completed", None)
    turn = [(message, "user"), (message, "assistant"), ended]
    assert found == [("session.started", None), *turn, *turn, ("session.finished", None)]
