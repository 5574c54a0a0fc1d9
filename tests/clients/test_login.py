"""People log in to the pages at oidc-provider, a certified OpenID provider from npm, in Chromium."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from playwright.async_api import BrowserContext, Page, async_playwright, expect

from dragoman.gateway.app import create_app
from dragoman.gateway.keys import new_key
from dragoman.gateway.keystore import KeyStore, load_keys
from dragoman.gateway.ledger import Ledger
from dragoman.gateway.tokens import load_tokens
from tests.browsers import FLAGS
from tests.gateway.serving import serving
from tests.listed import Listed, reply
from tests.ports import find_free_port
from tests.programs import require
from tests.waiting import PATIENCE, arrival

from .running import INSTALLED, find_program, in_full_run, start_program

pytestmark = [pytest.mark.exhaustive, in_full_run]
PROGRAM = Path(__file__).parent / "oidc_provider.mjs"
ADMIN, DIGEST = new_key()
PEOPLE = {
    "ann": {"email": "ann@example.com", "email_verified": True, "groups": ["operators", "staff"]},
    "bob": {"email": "bob@example.com", "email_verified": True, "groups": ["staff"]},
    "eve": {"email": "ann@example.com", "email_verified": False, "groups": ["staff"]},
    "zoe": {"email": "zoe@elsewhere.org", "email_verified": True, "groups": []},
}
FILE = """
issuers:
  - issuer: {issuer}
    user: email
    login:
      url: {url}
      client_id: dragoman
      client_secret_file: {folder}/client
      session_secret_file: {folder}/session
      scopes: [openid, email, groups]
      label: Example
    rules:
      - {{claims: {{groups: operators}}, role: admin}}
      - {{claims: {{email: "*@example.com"}}, team: web, models: [fast], budget_usd_month: "20"}}
"""


@contextlib.asynccontextmanager
async def provided(folder: Path, url: str) -> AsyncIterator[str]:
    """Run an identity provider that knows the gateway at an address; yield its issuer."""
    find_program("node", "node_modules", "oidc-provider")
    client = {
        "client_id": "dragoman",
        "client_secret": "a-client-secret",
        "redirect_uris": [f"{url}/ui/login/callback"],
    }
    settings = json.dumps({"clients": [client], "people": PEOPLE})
    command = [require("node"), str(PROGRAM), str(INSTALLED / "node"), settings]
    where = folder / "provider"
    where.mkdir()
    async with start_program(command, where, {}) as process:
        assert process.stdout is not None
        line = ""
        while not line.startswith("http://"):  # warnings come first
            read = await arrival(process.stdout.readline(), "the address of the provider")
            assert read, "the provider has ended"
            line = read.decode().strip()
        rest = asyncio.create_task(process.stdout.read())
        yield line
        rest.cancel()


@contextlib.asynccontextmanager
async def opened(folder: Path, **settings: Any) -> AsyncIterator[tuple[str, str]]:
    """Serve a gateway whose people log in at a provider; yield their addresses."""
    port = find_free_port()
    url = f"http://127.0.0.1:{port}"
    async with provided(folder, url) as issuer:
        (folder / "client").write_text("a-client-secret\n")
        (folder / "session").write_text("0123456789abcdef" * 4)
        (folder / "jwt.yaml").write_text(FILE.format(issuer=issuer, url=url, folder=folder))
        app = create_app(
            {"fast": Listed(reply("Hello"), repeat=True, name="anthropic", model="claude-sonnet-4-5"), "slow": Listed(reply("Hi"), repeat=True)},
            tokens=load_tokens(folder / "jwt.yaml"), admin=DIGEST, ui="dragoman.gateway.web", **settings,
        )  # fmt: skip
        async with serving(app, port=port):
            yield url, issuer


@contextlib.asynccontextmanager
async def browsing() -> AsyncIterator[BrowserContext]:
    expect.set_options(timeout=PATIENCE * 1000)
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=require("chromium"), args=FLAGS)
        context = await browser.new_context()
        context.set_default_timeout(PATIENCE * 1000)
        yield context
        await browser.close()


async def open_provider(page: Page, url: str) -> None:
    await page.goto(url)
    await page.get_by_role("link", name="Log in with Example").click()


async def agree(page: Page, name: str) -> None:
    """Fill in the provider's pages."""
    await page.get_by_placeholder("Enter any login").fill(name)
    await page.get_by_placeholder("and password").fill("any")
    await page.get_by_role("button", name="Sign-in").click()
    await page.get_by_role("button", name="Continue").click()


async def log_in(page: Page, url: str, name: str) -> list[str]:
    """Log in as a person on the provider's pages; return the addresses that the browser visited."""
    visited: list[str] = []
    page.on("framenavigated", lambda frame: visited.append(frame.url))
    await open_provider(page, url)
    await agree(page, name)
    return visited


async def test_person_logs_in_at_a_real_provider_and_out_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as (url, issuer), browsing() as context:
        page = await context.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        visited = await log_in(page, url, "ann")
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        assert page.url.startswith(f"{url}/")
        assert "code=" not in page.url
        assert any(each.startswith(f"{issuer}/interaction/") for each in visited)
        assert await page.evaluate("document.cookie") == ""
        [session] = [each for each in await context.cookies() if "dragoman" in each["name"]]
        assert session["name"] == "dragoman-session"
        assert session["httpOnly"]
        assert session["sameSite"] == "Strict"
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_role("link", name="Log in with Example")).to_be_visible()
        assert [each for each in await context.cookies(url) if "dragoman" in each["name"]] == []
        # the admin key stays one way among others
        await page.get_by_label("Admin key").fill(ADMIN)
        await page.get_by_role("button", name="Sign in", exact=True).click()
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        assert problems == []


async def test_person_makes_a_key_and_calls_a_model_with_it(tmp_path: Path) -> None:
    keys = tmp_path / "keys.db"
    KeyStore(keys).close()
    ring = load_keys(keys)
    async with opened(tmp_path, keys=ring, ledger=Ledger()) as (url, _), browsing() as context:
        page = await context.new_page()
        await log_in(page, url, "bob")
        await expect(page.get_by_role("heading", name="My access")).to_be_visible()
        names = (
            await page.get_by_role("navigation", name="Pages")
            .get_by_role("link")
            .all_text_contents()
        )
        assert names == ["My access", "Playground", "Models", "Clients"]
        await page.get_by_role("button", name="Create my key").click()
        key = await page.locator(".waiting pre").inner_text()
        body = {"model": "fast", "messages": [{"role": "user", "content": "Hi"}]}
        headers = {"authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(url, headers=headers) as http:
            async with http.post("/v1/chat/completions", json=body) as answer:
                assert answer.status == 200
            async with http.get("/v1/models") as answer:
                assert [each["id"] for each in (await answer.json())["data"]] == ["fast"]
        # the playground needs no key of a person who logged in
        await page.get_by_role("link", name="Playground").click()
        await page.locator("#prompt").fill("Hi")
        await page.keyboard.press("Enter")
        await expect(page.locator(".reply")).to_contain_text("Hello")
        await expect(page.locator("main")).not_to_contain_text("null")
    with contextlib.closing(KeyStore(keys)) as store:
        records = [(each.actor, each.action, each.subject) for each in store.audit()]
    ring.close()
    assert records == [("jwt:bob@example.com", "create", "jwt:bob@example.com")]


@pytest.mark.parametrize("name", ["eve", "zoe"])
async def test_person_whom_no_rule_lets_in_reads_why(tmp_path: Path, name: str) -> None:
    async with opened(tmp_path) as (url, _), browsing() as context:
        page = await context.new_page()
        await log_in(page, url, name)
        await expect(page.get_by_role("heading", name="You are not logged in")).to_be_visible()
        why = {"eve": "refused this log-in", "zoe": "no rule of this gateway lets you in"}[name]
        await expect(page.get_by_role("alert")).to_contain_text(why)
        assert [each for each in await context.cookies(url) if "dragoman" in each["name"]] == []
        await page.get_by_role("link", name="To the pages").click()
        await expect(page.get_by_role("link", name="Log in with Example")).to_be_visible()


async def test_answer_is_taken_once_and_in_its_own_browser(tmp_path: Path) -> None:
    async with opened(tmp_path) as (url, _), browsing() as context:
        page = await context.new_page()
        answers: list[str] = []
        page.on("request", lambda asked: "code=" in asked.url and answers.append(asked.url))
        await open_provider(page, url)
        [begun] = [each for each in await context.cookies(url) if each["name"] == "dragoman-begun"]
        await agree(page, "ann")
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        [answer] = answers
        assert urlsplit(answer).path == "/ui/login/callback"
        other = await context.browser.new_context()  # type: ignore[union-attr]
        thief = await other.new_page()
        await thief.goto(answer)
        await expect(thief.get_by_role("alert")).to_contain_text("in another browser")
        # even with the cookie of the log-in, the provider takes no code twice
        await other.add_cookies([begun])  # type: ignore[list-item]
        await thief.goto(answer)
        await expect(thief.get_by_role("alert")).to_contain_text("takes this answer no longer")
        assert [each for each in await other.cookies(url) if "session" in each["name"]] == []


async def test_page_of_another_site_reads_and_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as (url, issuer), browsing() as context:
        page = await context.new_page()
        await log_in(page, url, "ann")
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        # the same address under another name is another site, whose pages get no cookie
        elsewhere = await context.new_page()
        await elsewhere.goto(
            issuer.replace("127.0.0.1", "localhost") + "/.well-known/openid-configuration"
        )
        ask = f"""async () => {{
          const answers = [];
          for (const method of ["GET", "POST"])
            answers.push(await fetch("{url}/ui/api/logout", {{ method, mode: "no-cors", credentials: "include" }}).then(() => "read", () => "blocked"));
          return answers;
        }}"""
        assert await elsewhere.evaluate(ask) == ["blocked", "blocked"]
        frame = f"""async () => new Promise((done) => {{
          const frame = document.createElement("iframe");
          frame.src = "{url}/";
          frame.onload = () => {{
            let found = null;
            try {{ found = frame.contentDocument; }} catch {{ found = null; }}
            done(found === null ? "nothing" : found.title);
          }};
          document.body.append(frame);
        }})"""
        assert await elsewhere.evaluate(frame) == "nothing"
        await page.reload()
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
