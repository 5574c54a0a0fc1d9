"""The page of a person who logged in: what it shows and changes, and what of others it never does."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import aiohttp
import pytest
from playwright.async_api import expect

from dragoman.gateway.app import create_app
from dragoman.gateway.clients import read_clients
from dragoman.gateway.keys import Key, hash_key, new_key
from dragoman.gateway.keystore import KeyStore, load_keys
from dragoman.gateway.ledger import Ledger
from dragoman.transport.serving import serving
from tests.listed import reply
from tests.ports import find_free_port
from tests.server import Connection, serve

from .test_login import DIGEST, SECRET, Browser, LoginProvider, load_login, provided
from .test_pages import check_page, open_browser
from .test_site import priced

ANN = "jwt:ann@example.com"
SAME = {"sec-fetch-site": "same-origin"}
ASKED = {"model": "fast", "messages": [{"role": "user", "content": "Name a river."}]}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KeyStore]:
    """Return a key store with keys of two people."""
    store = KeyStore(tmp_path / "keys.db", actor="root")
    store.add(
        [
            Key("anns-job", hash_key("dg-ann"), user="ann@example.com", requests_per_minute=5),
            Key("bobs", hash_key("dg-bob"), user="bob@example.com"),
            Key("shared", hash_key("dg-shared"), team="web"),
        ]
    )
    store.set_team("web", Decimal(100))
    yield store
    store.close()


@contextlib.asynccontextmanager
async def opened(folder: Path, keys: Any) -> AsyncIterator[tuple[LoginProvider, Browser]]:
    """Serve a gateway with the pages, a log-in and keys."""
    async with provided(folder, "http://127.0.0.1:9") as (provider, login, _):
        tokens = login._tokens  # noqa: SLF001 - the same clock
        models = {"fast": priced(reply("The Rhine.")), "slow": priced(reply("Hi"))}
        app = create_app(
            models, keys=keys, tokens=tokens, ledger=Ledger(), admin=DIGEST, ui="dragoman.gateway.web"
        )  # fmt: skip
        jar = aiohttp.CookieJar(unsafe=True)  # cookies of an address, not of a name
        async with (
            app.router.lifespan_context(app),
            serving(app) as url,
            aiohttp.ClientSession(cookie_jar=jar) as http,
        ):
            yield provider, Browser(http, url)


async def read_me(browser: Browser) -> Any:
    status, _, text = await browser("/ui/api/me")
    assert status == 200, text
    return json.loads(text)


async def change(browser: Browser, **body: Any) -> tuple[int, Any]:
    status, _, text = await browser("/ui/api/me", "POST", json=body, headers=SAME)
    return status, json.loads(text)


async def call(browser: Browser, key: str, model: str = "fast") -> int:
    headers = {"authorization": f"Bearer {key}"}
    body = {**ASKED, "model": model}
    return (await browser("/v1/chat/completions", "POST", json=body, headers=headers))[0]


async def test_person_creates_uses_rotates_and_deletes_a_key(
    store: KeyStore, tmp_path: Path
) -> None:
    ring = load_keys(store.place)
    today = date.today()
    async with opened(tmp_path, ring) as (provider, browser):
        await browser.log_in(provider)
        status, made = await change(browser, action="new")
        assert status == 200
        assert made["name"] == ANN
        assert await call(browser, made["key"]) == 200
        assert await call(browser, made["key"], "slow") == 404  # the rule allows one model
        seen = await read_me(browser)
        _, rotated = await change(browser, action="rotate", name=ANN, overlap_hours=0)
        assert await call(browser, made["key"]) == 401
        assert await call(browser, rotated["key"]) == 200
        again, why = await change(browser, action="new")
        assert again == 400
        assert "already" in why["error"]
        assert (await change(browser, action="revoke", name=ANN))[0] == 200
        assert await call(browser, rotated["key"]) == 401
        spent = await read_me(browser)
    ring.close()
    assert made["key"] not in json.dumps(seen)
    assert [each["id"] for each in seen["keys"]] == ["anns-job", ANN]
    [own] = [each for each in seen["keys"] if each["id"] == ANN]
    assert own["team"] == "web"
    assert own["models"] == ["fast"]
    days = date.fromisoformat(own["expires"]) - today
    assert days.days in (90, 91)  # the test may run at midnight
    assert Decimal(own["budget_usd_month"]) == 20
    budgets = {each["account"]: each for each in seen["budgets"]}
    assert Decimal(budgets[ANN]["limit"]) == 20
    assert Decimal(budgets["team:web"]["limit"]) == 100
    cost = Decimal("0.000105")
    assert Decimal(budgets[ANN]["left"]) == 20 - cost
    # the budget goes on when the key was deleted
    [left] = [each for each in spent["budgets"] if each["account"] == ANN]
    assert Decimal(left["left"]) == 20 - 2 * cost
    assert spent["spend"]["total"]["requests"] == 2
    assert Decimal(spent["spend"]["total"]["usd"]) == 2 * cost
    records = [(each.actor, each.action, each.subject) for each in store.audit(limit=4)]
    assert records == [
        (ANN, "revoke", ANN), (ANN, "rotate", ANN), (ANN, "create", ANN), ("root", "team", "team:web"),
    ]  # fmt: skip


async def test_rotated_key_gets_the_rights_of_the_rules_of_today(
    store: KeyStore, tmp_path: Path
) -> None:
    ring = load_keys(store.place)
    async with opened(tmp_path, ring) as (provider, browser):
        await browser.log_in(provider)
        await change(browser, action="new")
        await browser.log_in(provider, groups=["leads"])
        _, rotated = await change(browser, action="rotate", name=ANN)
        assert await call(browser, rotated["key"], "slow") == 200
        [own] = [each for each in (await read_me(browser))["keys"] if each["id"] == ANN]
    ring.close()
    assert own["team"] == "research"
    assert own["models"] == ["*"]
    assert own["budget_usd_month"] is None
    assert datetime.fromisoformat(rotated["old_until"]) > datetime.now(UTC)


async def test_person_rotates_and_deletes_own_keys_of_an_operator_with_their_rights(
    store: KeyStore, tmp_path: Path
) -> None:
    ring = load_keys(store.place)
    async with opened(tmp_path, ring) as (provider, browser):
        await browser.log_in(provider)
        status, rotated = await change(browser, action="rotate", name="anns-job", overlap_hours=0)
        assert status == 200
        assert await call(browser, rotated["key"], "slow") == 200
        [job] = [each for each in (await read_me(browser))["keys"] if each["id"] == "anns-job"]
        assert job["requests_per_minute"] == 5
        assert (await change(browser, action="revoke", name="anns-job"))[0] == 200
    ring.close()


async def test_nothing_of_others_is_seen_or_changed(store: KeyStore, tmp_path: Path) -> None:
    ring = load_keys(store.place)
    async with opened(tmp_path, ring) as (provider, browser):
        assert await call(browser, "dg-bob") == 200
        await browser.log_in(provider)
        seen = json.dumps(await read_me(browser))
        for body in (
            {"action": "rotate", "name": "bobs"},
            {"action": "revoke", "name": "bobs"},
            {"action": "revoke", "name": "shared"},
            {"action": "revoke", "name": "nobody"},
            {"action": "revoke"},
            {"action": "new", "team": "research"},
            {"action": "new", "models": ["*"]},
            {"action": "change", "name": "anns-job", "requests_per_minute": None},
            {"action": "rotate", "name": "anns-job", "overlap_hours": -1},
            {"action": "rotate", "name": "anns-job", "overlap_hours": 10**9},
            {"action": "team", "name": "web"},
        ):
            status, _ = await change(browser, **body)
            assert status == 400, body
        assert await call(browser, "dg-bob") == 200
        for path, method in (
            ("keys", "GET"), ("keys", "POST"), ("overview", "GET"), ("calls", "GET"), ("names", "GET"),
        ):  # fmt: skip
            status, _, _ = await browser(f"/ui/api/{path}", method, json={}, headers=SAME)
            assert status == 403, path
        _, _, text = await browser("/ui/api/state")
        state = json.loads(text)
        _, _, text = await browser("/ui/api/models")
        preview = await browser("/ui/api/preview?model=slow", "POST", json=ASKED, headers=SAME)
    ring.close()
    assert "bob" not in seen
    assert "shared" not in seen
    assert state["pages"] == ["me", "playground", "models", "clients"]
    assert state["models"] == ["fast"]
    assert [each["name"] for each in json.loads(text)["models"]] == ["fast"]
    assert preview[0] == 400
    assert len(store.audit()) == 4  # nothing was changed


async def test_other_sites_and_operators_with_a_key_cannot_change_keys_of_people(
    store: KeyStore, tmp_path: Path
) -> None:
    ring = load_keys(store.place)
    key, digest = new_key()
    async with provided(tmp_path) as (_, login, _clock):
        tokens = login._tokens  # noqa: SLF001 - the same clock
        app = create_app({"fast": priced(reply("Hi"))}, keys=ring, tokens=tokens, admin=digest,
                         ui="dragoman.gateway.web")  # fmt: skip
        async with (
            app.router.lifespan_context(app),
            serving(app) as url,
            aiohttp.ClientSession() as http,
        ):
            signed = {"authorization": f"Bearer {key}"}
            async with http.get(f"{url}/ui/api/me", headers=signed) as answer:
                assert answer.status == 400
                assert "people who logged in" in await answer.text()
            async with http.get(f"{url}/ui/api/state", headers=signed) as answer:
                assert "me" not in (await answer.json())["pages"]
    async with opened(tmp_path, ring) as (provider, browser):
        await browser.log_in(provider)
        body = {"action": "new"}
        for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}):
            status, _, _ = await browser("/ui/api/me", "POST", json=body, headers=headers)
            assert status == 403
        status, _, _ = await browser("/ui/api/me", "POST", data=b'{"action": "new"}', headers=SAME)
        assert status == 415
    ring.close()
    assert len(store.audit()) == 4


async def test_playground_counts_calls_for_the_person(store: KeyStore, tmp_path: Path) -> None:
    ring = load_keys(store.place)
    async with opened(tmp_path, ring) as (provider, browser):
        await browser.log_in(provider)
        _, _, text = await browser("/ui/api/state")
        assert not json.loads(text)["needs_key"]
        answers = []
        for model, headers in (
            ("fast", SAME),
            ("slow", SAME),
            ("slow", {**SAME, "x-call-key": "dg-bob"}),
        ):
            body = {**ASKED, "model": model}
            status, _, _ = await browser("/ui/api/chat", "POST", json=body, headers=headers)
            answers.append(status)
        refused = await browser(
            "/ui/api/chat", "POST", json=ASKED, headers={"origin": "https://evil.example"}
        )
        seen = await read_me(browser)
    ring.close()
    assert answers == [200, 404, 200]  # the rule allows one model, the key of bob all
    assert refused[0] == 403
    assert seen["spend"]["total"]["requests"] == 1
    [left] = [each for each in seen["budgets"] if each["account"] == ANN]
    assert Decimal(left["left"]) == 20 - Decimal("0.000105")


async def test_lead_sees_keys_and_budgets_of_the_team(store: KeyStore, tmp_path: Path) -> None:
    store.add(
        [
            Key("lab", hash_key("dg-lab"), team="research", budget_usd=Decimal(7)),
            Key("hills", hash_key("dg-hills"), team="web", budget_usd=Decimal(9)),
        ]
    )
    store.set_team("research", Decimal(50))
    ring = load_keys(store.place)
    async with opened(tmp_path, ring) as (provider, browser):
        await browser.log_in(provider, groups=["leads"])
        _, _, text = await browser("/ui/api/state")
        pages = json.loads(text)["pages"]
        _, _, text = await browser("/ui/api/keys")
        seen = json.loads(text)
        body = {"action": "change", "name": "lab", "requests_per_minute": 9}
        assert (await browser("/ui/api/keys", "POST", json=body, headers=SAME))[0] == 200
        body["name"] = "hills"
        assert (await browser("/ui/api/keys", "POST", json=body, headers=SAME))[0] == 400
    ring.close()
    assert {"keys", "me"} <= {*pages}
    assert [each["id"] for each in seen["keys"]] == ["lab"]
    limits = {each["account"]: Decimal(each["limit"]) for each in seen["budgets"]}
    assert limits == {"lab": 7, "team:research": 50}
    assert store.audit(limit=1)[0].actor == ANN


async def test_session_of_a_user_without_access_is_refused(
    store: KeyStore, tmp_path: Path
) -> None:
    ring = load_keys(store.place)
    async with opened(tmp_path, ring) as (provider, browser):
        await browser.log_in(provider)
        _, made = await change(browser, action="new")
        assert await call(browser, made["key"]) == 200
        store.withdraw("ann@example.com")
        ring.poll()
        assert await call(browser, made["key"]) == 401
        for path in ("me", "state", "models"):
            status, _, text = await browser(f"/ui/api/{path}")
            assert status == 403
            assert "was withdrawn" in text
        assert (await change(browser, action="new"))[0] == 403
        await browser.log_in(provider)  # the provider still knows the account
        assert (await browser("/ui/api/state"))[0] == 403
        store.admit("ann@example.com")
        ring.poll()
        assert (await browser("/ui/api/state"))[0] == 200
        assert [each["id"] for each in (await read_me(browser))["keys"]] == []
    ring.close()


async def test_without_a_database_of_keys_the_page_shows_and_changes_none(tmp_path: Path) -> None:
    async with opened(tmp_path, None) as (provider, browser):
        await browser.log_in(provider)
        seen = await read_me(browser)
        status, why = await change(browser, action="new")
    assert seen["keys"] == []
    assert not seen["creates"]
    assert Decimal(seen["rights"]["budget_usd_month"]) == 20
    assert seen["spend"]["total"]["requests"] == 0
    assert status == 400
    assert "ask its operator" in why["error"]


# --- in a browser --------------------------------------------------------------------------------


class ShortProvider(LoginProvider):
    """A provider that asks no questions."""

    async def handle(self, connection: Connection) -> None:
        path, _, query = connection.seen.path.partition("?")
        if path == "/auth":
            asked = dict(parse_qsl(query))
            self.claims["nonce"] = asked["nonce"]
            answer = urlencode({"code": "c1", "state": asked["state"], "iss": self.url})
            connection.reply(303, b"", location=f"{asked['redirect_uri']}?{answer}")
        else:
            await super().handle(connection)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
async def test_page_of_a_person_in_a_browser(
    store: KeyStore, tmp_path: Path, width: int, scheme: Any
) -> None:
    ring = load_keys(store.place)
    provider = ShortProvider()
    port = find_free_port()
    async with serve(provider.handle) as server:
        provider.url = server.url
        login, _ = load_login(tmp_path, server.url, f"http://127.0.0.1:{port}")
        tokens = login._tokens  # noqa: SLF001 - the same clock
        app = create_app(
            {"fast": priced(reply("The Rhine."))}, keys=ring, tokens=tokens, ledger=Ledger(),
            admin=DIGEST, ui="dragoman.gateway.web",
        )  # fmt: skip
        async with (
            app.router.lifespan_context(app),
            serving(app, port=port) as url,
            open_browser() as browser,
        ):
            context = await browser.new_context(
                viewport={"width": width, "height": 850},
                color_scheme=scheme,
                reduced_motion="reduce",
            )
            page = await context.new_page()
            problems: list[str] = []
            page.on("pageerror", lambda error: problems.append(str(error)))
            await page.goto(url)
            await expect(page.get_by_role("link", name="Log in with Example")).to_be_visible()
            await check_page(page, is_deep=True)
            await page.get_by_role("link", name="Log in with Example").press("Enter")
            await expect(page.get_by_role("heading", name="My access")).to_be_visible()
            await page.get_by_role("button", name="Create my key").click()
            shown = page.locator(".waiting pre")
            await expect(shown).to_contain_text("dg-")
            key = await shown.inner_text()
            async with aiohttp.ClientSession() as http:
                assert await call(Browser(http, url), key) == 200
            await check_page(page, is_deep=True)
            await page.reload()
            await expect(page.get_by_role("heading", name="This month: $0.000105")).to_be_visible()
            await expect(page.locator("main")).not_to_contain_text(key)
            mine = page.get_by_role("region", name=ANN)
            await mine.get_by_role("button", name="Rotate").click()
            await expect(page.locator(".waiting")).to_contain_text("The old key is valid until")
            await mine.get_by_role("button", name="Delete").click()
            await mine.get_by_role("button", name="Delete for good?").click()
            await expect(page.locator("[role=status]")).to_contain_text("is deleted")
            await expect(page.get_by_role("button", name="Create my key")).to_be_visible()
            names = await page.locator("details.proposal strong").all_text_contents()
            assert names == [*read_clients()]
            await page.get_by_role("button", name="Log out").click()
            await expect(page.get_by_role("link", name="Log in with Example")).to_be_visible()
            assert problems == []
        await tokens.close()
    ring.close()
    assert SECRET not in str(store.audit())
