"""Test the pages in a real browser, on a desktop and a phone, in light and dark."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import random
import shlex
import tempfile
import time
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from dragoman import connect
from dragoman.capabilities import Capabilities
from dragoman.events import Usage
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing
from dragoman.gateway.keystore import KeyStore, load_keys
from dragoman.gateway.usage_book import UsageBook, UsageRow
from dragoman.log import SqliteLog
from dragoman.registry import Registry
from dragoman.transport.serving import serving

from ..browsers import FLAGS
from ..cli.terminal import Terminal
from ..gateway.upstream import EXHAUSTIVE
from ..listed import Listed, reply, speak
from ..programs import require
from ..server import Connection, serve, stream_of
from ..waiting import PATIENCE, until
from .test_site import ADMIN, DIGEST, TOOL, priced

SLOW = "starts a browser once more; make test-exhaustive"
WHOLE = (pytest.mark.exhaustive, pytest.mark.skipif(not EXHAUSTIVE, reason=SLOW))
ANSWER = "The **Rhine** flows through:\n\n- Basel\n- Cologne\n- Rotterdam"
USED = Usage(input_tokens=1000, output_tokens=500, total_tokens=1500)
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d494844520000000100000001080600000 01f15c489".replace(" ", "")
)


@contextlib.asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    expect.set_options(timeout=PATIENCE * 1000)
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=require("chromium"), args=FLAGS)
        yield browser
        await browser.close()


@contextlib.asynccontextmanager
async def open_page(
    browser: Browser, url: str, width: int = 1280, height: int = 850, scheme: Any = "light"
) -> AsyncIterator[Page]:
    """Open a page; at the end, it must have reported no error and asked no other server."""
    page = await browser.new_page(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    page.set_default_timeout(PATIENCE * 1000)
    problems: list[str] = []
    page.on(
        "console",
        lambda message: message.type in ("error", "warning") and problems.append(message.text),
    )
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda asked: (
            asked.url.startswith((url.partition("/#")[0], "data:", "blob:"))
            or problems.append(asked.url)
        ),
    )
    await page.goto(url)
    yield page
    assert problems == []
    await page.close()


async def check_page(page: Page, is_deep: bool) -> None:
    """Check that the page is not wider than its window, and if ``is_deep`` with axe."""
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if not is_deep:
        return
    package = importlib.util.find_spec("axe_playwright_python")
    assert package is not None
    assert package.origin is not None
    if not await page.evaluate("Boolean(globalThis.axe)"):
        await page.evaluate(Path(package.origin).with_name("axe.min.js").read_text("utf-8"))
    found = await page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    other = (
        "dark"
        if await page.evaluate("matchMedia('(prefers-color-scheme: light)').matches")
        else "light"
    )
    await page.emulate_media(color_scheme=other)  # type: ignore[arg-type]
    rules = "axe.run(document, { resultTypes: ['violations'], runOnly: ['color-contrast'] })"
    again = await page.evaluate(rules)
    await page.emulate_media(color_scheme="light" if other == "dark" else "dark")
    for result in (found, again):
        assert [
            (each["id"], [node["target"] for node in each["nodes"]])
            for each in result["violations"]
        ] == []
    assert len(found["passes"]) > 10


# --- the playground ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_deep", [False, pytest.param(True, marks=WHOLE)])
async def test_playground_streams_compares_stops_and_shows_requests(
    tmp_path: Path, is_deep: bool
) -> None:
    gate = asyncio.Event()
    think = speak(
        lambda out: out.thinking("Let me see."), lambda out: out.text(ANSWER), usage=USED
    )
    propose = speak(
        lambda out: out.tool_start(0, "c1", "weather"),
        lambda out: out.tool_input(0, '{"place": "Bonn"}'),
        finish="tool_calls",
    )
    fast = priced(think, propose, reply("It rains."))
    slow = Listed(lambda request: [*reply("Wait")(request)[:2], gate], repeat=True, name="own")

    async def answer(connection: Connection) -> None:
        connection.reply(200, stream_of("Seen"), "text/event-stream")

    with SqliteLog(tmp_path / "log.db") as log:
        async with serve(answer) as upstream:
            models = {"fast": fast, "slow": slow, "up": connect("m", base_url=upstream.base_url)}
            ring = KeyRing([Key("you", DIGEST)])
            app = create_app(
                models,
                keys=ring,
                admin=DIGEST,
                log=log,
                log_content=True,
                ui="dragoman.gateway.web",
            )
            async with (
                app.router.lifespan_context(app),
                serving(app) as url,
                open_browser() as browser,
            ):
                async with open_page(browser, f"{url}/#key={ADMIN}") as page:
                    await talk(page, slow)
                    await use_a_tool(page, fast, is_deep)
                    await look_at_what_is_sent(page, upstream.requests, is_deep)
                async with open_page(browser, f"{url}/#key={ADMIN}", 390, 844, "dark") as page:
                    await expect(page.locator("#prompt")).to_be_focused()
                    await page.keyboard.type("Name a river.")
                    await page.keyboard.press("Enter")
                    await expect(page.locator(".facts a")).to_be_visible()
                    await check_page(page, is_deep)


async def talk(page: Page, slow: Listed) -> None:
    """Ask two models, stop one of them, and open the trace; with the keyboard alone."""
    assert await page.evaluate("location.hash") == "#playground"  # the key is not in the address
    await page.locator("#model-1").focus()
    await page.keyboard.type("slow")
    await page.locator("#prompt").focus()
    await page.keyboard.type("Name a river.")
    await page.keyboard.press("Enter")
    first = page.locator(".pane").nth(0)
    second = page.locator(".pane").nth(1)
    await expect(first.locator("li")).to_have_text(["Basel", "Cologne", "Rotterdam"])
    await expect(first.locator(".facts")).to_contain_text("1,000 tokens in, 500 out")
    await expect(first.locator(".cost")).to_have_text("$0.0105")
    await expect(page.locator("main")).not_to_contain_text("null")
    await expect(first.locator("details pre")).to_be_hidden()
    await first.get_by_text("Thinking").press("Enter")
    await expect(first.locator("details pre")).to_have_text("Let me see.")
    await expect(second.locator(".said").last).to_have_text("Wa")
    await second.get_by_role("button", name="Stop").press("Enter")
    await expect(second.locator(".note")).to_have_text("Stopped.")
    await until(lambda: not slow.running, "the end of the stopped call")
    await check_page(page, is_deep=True)
    await page.locator("#model-1").select_option("")


async def use_a_tool(page: Page, fast: Listed, is_deep: bool) -> None:
    """Offer a tool, look at the proposal, and type its result."""
    await page.get_by_text("System prompt, settings").click()
    await page.get_by_label("Tools (JSON list)").fill("[{")
    await page.locator("#prompt").fill("What is the weather?")
    await page.keyboard.press("Enter")
    await expect(page.locator("#trouble")).to_contain_text("Tools:")
    await page.get_by_label("Tools (JSON list)").fill(json.dumps([TOOL]))
    await check_page(page, is_deep)
    await page.get_by_text("System prompt, settings").click()
    await page.locator("input[type=file]").set_input_files(
        {"name": "dot.png", "mimeType": "image/png", "buffer": PIXEL}
    )
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(page.locator(".log .user img")).to_have_count(1)
    await expect(page.locator(".log .proposal .chip")).to_have_text("proposed, not executed")
    await page.get_by_label("Result of weather").fill("rain")
    await page.get_by_role("button", name="Send the result").press("Enter")
    await expect(page.locator(".reply").last).to_contain_text("It rains.")
    sent = fast.requests[-1].messages
    assert [type(each).__name__ for each in sent[-3:]] == ["User", "Assistant", "ToolResult"]
    assert sent[-1].content == "rain"
    assert sent[-3].content[1].media_type == "image/png"


async def look_at_what_is_sent(page: Page, seen: list[Any], is_deep: bool) -> None:
    """Compare what the page shows and copies with what a recorded server gets."""
    await page.locator("#model-0").select_option("up")
    await page.locator("#prompt").fill("And now?")
    await page.get_by_role("button", name="What is sent").click()
    wire = page.locator(".wire").nth(1)
    await expect(wire.locator("h2")).to_contain_text("up")
    await expect(wire.locator(".notes .lost").first).to_contain_text("messages[1].content[0]")
    await expect(page.locator(".tree .lost").first).to_be_visible()
    await check_page(page, is_deep)
    shown = json.loads(await wire.locator("pre").inner_text())
    await page.get_by_role("button", name="Copy as code").click()
    await expect(page.get_by_label("Command line")).to_contain_text("dragoman ask -m up")
    curl = await page.get_by_label("curl").locator("pre").inner_text()
    code = await page.get_by_label("Python").locator("pre").inner_text()
    await page.get_by_role("button", name="Plan").click()
    await page.get_by_label("Change to").select_option("up")
    await expect(page.get_by_role("region", name="Plan")).to_contain_text("dropped")
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(page.locator(".reply").last).to_contain_text("Seen")
    *_, body = shlex.split(curl.replace("\\\n", ""))
    assert body.encode() == seen[-1].body
    assert shown == seen[-1].json
    given: dict[str, Any] = {}
    tree = compile(code.replace("asyncio.run(main())", ""), "copied", "exec")
    scope: dict[str, Any] = {}
    exec(tree, scope)

    class Model:
        async def __aenter__(self) -> Any:
            return self

        async def __aexit__(self, *_: object) -> None:
            return

        async def complete(self, messages: Any, **settings: Any) -> Any:
            given.update(messages=messages, **settings)
            return reply

    scope["connect"] = lambda name: Model()
    reply.text = ""  # type: ignore[attr-defined]
    await scope["main"]()
    assert given["messages"][-1]["content"] == "And now?"
    assert given["tools"] == [TOOL]


async def test_markdown_is_drawn_while_it_streams() -> None:
    gate = asyncio.Event()
    model = Listed(lambda request: [*reply(ANSWER)(request)[:-2], gate], repeat=True, name="own")
    app = create_app({"slow": model}, keys=KeyRing([Key("you", DIGEST)]), admin=DIGEST,
                     ui="dragoman.gateway.web")  # fmt: skip
    async with (
        app.router.lifespan_context(app),
        serving(app) as url,
        open_browser() as browser,
        open_page(browser, f"{url}/#key={ADMIN}") as page,
    ):
        await page.locator("#prompt").fill("Name a river.")
        await page.keyboard.press("Enter")
        await expect(page.locator(".said strong")).to_have_text("Rhine")
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        await page.get_by_role("button", name="Stop").press("Enter")
        await expect(page.locator(".reply .note")).to_have_text("Stopped.")
        await expect(page.locator(".said strong")).to_have_text("Rhine")
    await until(lambda: not model.running, "the end of the stopped call")


async def test_key_of_a_vendor_is_stored_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    monkeypatch.setenv("DRAGOMAN_KEYS", str(tmp_path / "keys.json"))
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    app = create_app({"local": Listed(reply("Hi"))}, keys=KeyRing([Key("you", DIGEST)]),
                     admin=DIGEST, ui="dragoman.gateway.web")  # fmt: skip
    app.state.service.registry = Registry.load(None)
    async with app.router.lifespan_context(app), serving(app) as url, open_browser() as browser:
        async with open_page(browser, f"{url}/#key={ADMIN}") as page:
            form = page.locator(".vendors")
            await expect(form).to_contain_text("Only the embedded model is here. Add a vendor")
            await page.locator("select[name=vendor]").select_option("anthropic")
            await expect(form).to_contain_text("dragoman keys set anthropic")
            await check_page(page, is_deep=True)
            await page.get_by_label("API key").fill("sk-of-the-vendor")
            await page.get_by_role("button", name="Store the key").click()
            await expect(page.locator("#done")).to_contain_text("ANTHROPIC_API_KEY is stored in a")
            assert "sk-of-the-vendor" not in await page.content()
            offered = await page.locator("#model-0 option").all_text_contents()
        page = await browser.new_page()  # its console reports the status 400
        await page.goto(f"{url}/#key={ADMIN}")
        await page.get_by_text("Add a vendor").click()
        await page.get_by_label("API key").fill("sk with a space")
        await page.get_by_role("button", name="Store the key").click()
        await expect(page.locator(".vendors .note")).to_contain_text("without spaces")
        await page.close()
        async with open_page(browser, f"{url}/#key={ADMIN}", 390, 844, "dark") as page:
            await page.get_by_text("Add a vendor").click()
            await expect(page.locator(".vendors")).to_contain_text("Anthropic (has a key)")
            await check_page(page, is_deep=True)
    assert "anthropic:claude-sonnet-4-6" in offered
    assert "sk-of-the-vendor" in (tmp_path / "keys.json").read_text()


# --- the pages of an operator --------------------------------------------------------------------


@contextlib.asynccontextmanager
async def open_gateway(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Serve a gateway with keys and a day of traffic; yield its address and a key."""
    store = KeyStore(folder / "keys.db", actor="root@gateway1")
    key = store.create("playground")
    store.create("ann", team="rivers", budget_usd=Decimal(20))
    store.create("reports", models=("fast",), requests_per_minute=60)
    store.set_team("rivers", Decimal(300))
    store.close()
    book = UsageBook(None)
    chance = random.Random(1)
    now = time.time()
    for at in range(600):
        is_bad = chance.random() < 0.04
        model = chance.choice(("fast", "fast", "fast", "own"))
        usd = Decimal(0) if model == "own" else Decimal("0.0123")
        error = chance.choice(("rate_limited", "provider_unavailable")) if is_bad else ""
        latency = int(chance.expovariate(1 / 900)) + 200
        book.count(UsageRow(int((now - chance.random() * 86_000) * 1000), f"r{at}", chance.choice(("ann", "reports")), model,
                       503 if is_bad else 200, error, 1200, 240, usd, int(model == "own"), latency, ""))  # fmt: skip
    ring = load_keys(folder / "keys.db")
    fast = priced(reply(ANSWER, usage=USED))
    fast.capabilities = Capabilities.of({"supports_tools": True, "max_context_tokens": 200_000})
    models = {
        "fast": fast,
        "own": Listed(reply("The Vistula, in Poland.", usage=USED), name="own", repeat=True),
    }
    with SqliteLog(folder / "log.db") as log:
        settings: Any = {"log": log, "log_content": True, "ui": "dragoman.gateway.web"}
        app = create_app(models, keys=ring, admin=DIGEST, usage=book, **settings)
        async with app.router.lifespan_context(app), serving(app) as url:
            yield url, key
    book.close()
    ring.close()


async def photograph(browser: Browser, url: str, key: str, scheme: str, folder: Path) -> None:
    """Take the pictures of the documentation."""
    async with open_page(browser, f"{url}/#key={ADMIN}", 1120, 760, scheme) as page:
        await page.get_by_label("Gateway key that pays").fill(key)
        await page.locator("#model-1").select_option("own")
        await page.locator("#prompt").fill("Name a river, and towns on it.")
        await page.keyboard.press("Enter")
        await expect(page.locator(".pane .facts a")).to_have_count(2)
        await page.screenshot(path=folder / f"playground-{scheme}.png")
        await page.locator("nav.pages").get_by_text("Overview").click()
        await expect(page.locator("main.overview #totals dt")).to_have_count(6)
        await page.screenshot(path=folder / f"overview-{scheme}.png")


@pytest.mark.parametrize("is_deep", [False, pytest.param(True, marks=WHOLE)])
async def test_operator_signs_in_reads_the_overview_and_changes_keys(
    tmp_path: Path, is_deep: bool
) -> None:
    async with open_gateway(tmp_path) as (url, key), open_browser() as browser:
        await photograph(browser, url, key, "light", tmp_path)
        async with open_page(browser, url) as page:
            await page.get_by_label("Admin key").fill(ADMIN)
            await check_page(page, is_deep)
            await page.keyboard.press("Enter")
            await expect(page.locator("#totals dt")).to_have_text(
                ["Requests", "Spend", "Tokens in", "Tokens out", "Latency p50 / p95", "Failed"]
            )
            await expect(page.locator("#totals")).to_contain_text("% unknown")
            assert await page.locator(".bar-slot").count() == 48
            await check_page(page, is_deep=True)
            await page.locator("#totals a").first.press("Enter")
            await expect(page.locator("main.calls tbody tr")).to_have_count(200)
            await expect(page.locator("main.calls tbody tr").first).to_contain_text("Trace")
            await check_page(page, is_deep)
            await page.keyboard.press("3")
            await page.locator("summary").first.press("Enter")
            await expect(page.locator("main.models .parts").first).to_contain_text("declared")
            await check_page(page, is_deep)
            await change_keys(page, is_deep)
            await read_settings(page, url, is_deep)
            await page.keyboard.press("5")
            await expect(page.locator("#chain")).to_contain_text("Chain verified")
            await check_page(page, is_deep)
            async with page.expect_download() as saved:
                await page.locator("#save").click()
            assert "Name a river" in Path(await (await saved.value).path()).read_text("utf-8")
        async with open_page(browser, f"{url}/#key={ADMIN}", 390, 844, "dark") as page:
            for name in ("Overview", "Models", "Keys", "Clients", "Traces"):
                await page.locator("nav.pages").get_by_text(name).click()
                await expect(
                    page.locator(f"main.{name.lower()} .sheet, #chain.good")
                ).to_be_visible()
                await check_page(page, is_deep)


async def read_settings(page: Page, url: str, is_deep: bool) -> None:
    """Read the settings of a coding agent, for two models of the gateway."""
    await page.keyboard.press("6")
    codex = page.locator("details.proposal", has_text="codex")
    await codex.locator("summary").press("Enter")
    for name in await page.get_by_label("Model", exact=True).locator("option").all_inner_texts():
        await page.get_by_label("Model", exact=True).select_option(name)
        await expect(codex.locator("pre").first).to_contain_text(f'model = "{name}"')
    await expect(codex.locator("pre").first).to_contain_text(f'base_url = "{url}/v1"')
    await expect(codex.locator("pre").last).to_be_visible()
    await check_page(page, is_deep)


async def change_keys(page: Page, is_deep: bool) -> None:
    await page.keyboard.press("4")
    new = page.locator(".new").first
    team = page.locator(".new").last
    await new.locator("summary").press("Enter")
    form = new.locator("form")
    await form.get_by_label("Name").fill("carl")
    await form.get_by_label("Budget a month, USD").fill("much")
    await form.get_by_role("button", name="Create").press("Enter")
    await expect(form.locator("input:invalid")).to_have_count(1)
    await form.get_by_label("Budget a month, USD").fill("20")
    await form.get_by_label("Fields that a model's wire lacks").select_option("reject")
    await check_page(page, is_deep)
    await form.get_by_role("button", name="Create").press("Enter")
    await expect(page.locator("[role=status] pre")).to_contain_text("dg-")
    carl = page.locator("details.proposal", has_text="carl")
    for action, chip in (
        ("Rotate", "two keys valid"),
        ("Block", "blocked"),
        ("Unblock", "two keys valid"),
    ):
        await carl.locator("summary").press("Enter")
        await carl.get_by_role("button", name=action, exact=True).press("Enter")
        await expect(carl.locator("summary .chip")).to_have_text(chip)
    await carl.locator("summary").press("Enter")
    await carl.get_by_role("button", name="Revoke").press("Enter")
    await carl.get_by_role("button", name="Revoke for good?").press("Enter")
    await expect(carl).to_have_count(0)
    actions = await page.locator("table").last.locator("td:nth-child(3)").all_inner_texts()
    assert actions[:5] == ["revoke", "change", "change", "rotate", "create"]
    created = page.get_by_label("Changes").locator("tr", has_text="create").first
    await expect(created).to_contain_text('"on_loss":"reject"')
    await team.locator("summary").press("Enter")
    await team.get_by_label("Team").fill("rivers")
    await team.get_by_label("Budget a month").fill("40")
    await check_page(page, is_deep)
    await team.get_by_role("button", name="Save team").press("Enter")
    await expect(page.get_by_label("Teams").locator("td")).to_have_text(["rivers", "$40.00"])
    budget = page.locator(".new").nth(1)
    await budget.locator("summary").press("Enter")
    await budget.get_by_label("Account").fill("tag:nightly")
    await budget.get_by_label("Period").select_option("week")
    await budget.get_by_label("Amount, USD").fill("3")
    await check_page(page, is_deep)
    await budget.get_by_role("button", name="Save budget").press("Enter")
    row = page.get_by_label("Budgets").locator("tr", has_text="tag:nightly")
    await expect(row).to_contain_text("a week$3.00$3.00")
    await row.get_by_role("button", name="Reset the budget of tag:nightly, a week").press("Enter")
    await expect(page.get_by_label("Changes").locator("tr").nth(1)).to_contain_text("reset")


async def take_pictures(folder: Path) -> None:
    """Take the pictures of the documentation, in light and dark, for ``tests/pictures.py``."""
    with tempfile.TemporaryDirectory() as name:
        async with open_gateway(Path(name)) as (url, key), open_browser() as browser:
            for scheme in ("light", "dark"):
                await photograph(browser, url, key, scheme, folder)


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.skipif(not EXHAUSTIVE, reason=SLOW)
async def test_ui_command_talks_with_the_embedded_model(tmp_path: Path) -> None:
    place = tmp_path / "log.db"
    with Terminal("ui", "local", "--no-browser", "--json", "--log", str(place)) as terminal:
        url = json.loads(await asyncio.to_thread(terminal.see, "}"))["url"]
        async with open_browser() as browser, open_page(browser, url) as page:
            await page.locator("#prompt").fill("Say hello.")
            await page.keyboard.press("Enter")
            await expect(page.locator(".cost")).to_have_text("free")
            await page.get_by_text("Open the trace").click()
            await expect(page.locator("h1")).to_have_text("Say hello.")
        # another program can write to the log in the meantime
        with SqliteLog(place) as log:
            assert [entry.session[:5] for entry in log.sessions()] == ["chat_"]
        terminal.type("\x03")
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.raw
