"""Test the overview against an hour of traffic that goes through a gateway to a simulator.

The clock of the gateway moves only by this script, so that every number of the page is known.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, NamedTuple

import aiohttp
import pytest
from playwright.async_api import Page, expect

from dragoman import connect
from dragoman.errors import BillingError, OverloadedError, RateLimitError
from dragoman.events import Usage
from dragoman.gateway import request_account, usage_book
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.gateway.web import overview
from dragoman.messages import Request
from dragoman.sim import Answer, ScriptedProvider, ScriptRule, SimServer
from dragoman.transport.serving import serving

from ..listed import Clock
from .test_pages import open_browser, open_page
from .test_site import ADMIN, DIGEST, read

# seconds of a bar, and bars of an hour
STEP = 300
BARS = 12
ERRORS = {429: RateLimitError("too many", status=429), 529: OverloadedError("busy", status=529)}
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")


class Sent(NamedTuple):
    """One request of the script: when, by whom, to which model, and what comes of it."""

    second: int
    key: str
    model: str
    path: str
    input: int
    output: int
    seconds: float
    status: int = 200

    @property
    def usd(self) -> Decimal:
        """What the request costs, at 3 and 15 dollars per million tokens."""
        is_free = self.model == "own" or self.status >= 400
        return Decimal(0) if is_free else Decimal(3 * self.input + 15 * self.output) / 10**6


def write_script() -> list[Sent]:
    """Return 150 requests in an hour: one in five without a price, one in ten failed upstream.

    The gateway refuses a model without a price to a key with a budget.
    """
    chance = random.Random(7)
    sent = []
    for at in range(150):
        model = "fast"
        key = chance.choice(("ann", "bob", "carl"))
        status = chance.choice((429, 529)) if at % 10 == 3 else 200
        if at % 5 == 0:
            model, key, status = ("own", "bob", 402) if at % 50 == 0 else ("own", "dora", status)
        tokens = (0, 0) if status >= 400 else (chance.randint(50, 3000), chance.randint(5, 900))
        seconds = 0 if status == 402 else chance.randint(1, 14_000) / 1000
        sent.append(Sent(at * 24, key, model, PATHS[at % 3], *tokens, seconds, status))
    return sent


async def drive(url: str, script: Sequence[Sent], clock: Clock) -> None:
    """Send the requests, each at its time."""
    start = clock.now
    async with aiohttp.ClientSession() as session:
        for each in script:
            clock.now = max(clock.now, start + each.second)
            said = [{"role": "user", "content": json.dumps(each._asdict())}]
            body = {"model": each.model, "max_tokens": 1000, "stream": each.second % 48 == 0}
            named = {"input" if each.path.endswith("responses") else "messages": said}
            headers = {"authorization": f"Bearer dg-{each.key}"}
            async with session.post(
                url + each.path, json={**body, **named}, headers=headers
            ) as answer:
                text = await answer.text()
                assert (answer.status < 400) is (each.status < 400), text
    clock.now = start + 3600 - 1


def find_share(script: Sequence[Sent], share: int) -> str:
    """Return a percentile of the latency of the requests that were answered, as the page shows it."""
    found = sorted([round(each.seconds * 1000) for each in script if each.status < 400])
    exact = found[(len(found) - 1) * share // 100]
    ms = round(1.04 ** round(math.log(exact) / math.log(1.04)))  # the histogram's next value
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.{2 if ms < 10_000 else 1}f} s"


def describe(script: Sequence[Sent]) -> dict[str, str]:
    """Return the figures that the page must show for some requests."""
    unknown = sum(each.model == "own" and each.status < 400 for each in script)
    usd = sum([each.usd for each in script], Decimal(0))
    known = f"${usd:.2f}" if usd >= 1 else f"${usd:.4f}"
    part = f"{known} + {round(100 * unknown / len(script))} % unknown" if usd else "unknown"
    return {
        "Requests": f"{len(script):,}",
        "Failed": str(sum(each.status >= 400 for each in script)),
        "Tokens in": f"{sum(each.input for each in script):,}",
        "Tokens out": f"{sum(each.output for each in script):,}",
        "Spend": part if unknown else known,
        "Latency p50 / p95": f"{find_share(script, 50)} / {find_share(script, 95)}",
    }


async def check_links(page: Page, script: Sequence[Sent]) -> None:
    """Follow the link of each figure: the calls behind it are listed, the largest first."""
    answered = [each for each in script if each.status < 400]
    unpriced = [each for each in answered if each.model == "own"]
    most: dict[str, tuple[Sequence[Sent], Callable[[Sent], Any]]] = {
        "Requests": (script, lambda each: each.second),
        "Failed": ([each for each in script if each.status >= 400], lambda each: each.second),
        "Tokens in": (script, lambda each: each.input),
        "Tokens out": (script, lambda each: each.output),
        "Spend": (script, lambda each: each.usd),
        "Latency": (answered, lambda each: each.seconds),
        "without a known price": (unpriced, lambda each: each.second),
    }
    for name, (behind, rank) in most.items():
        figure = page.locator("#totals > div", has_text=name)
        link = figure.get_by_text(name) if name.startswith("without") else figure.locator("a")
        await link.first.press("Enter")
        rows = page.locator("main.calls tbody tr")
        await expect(rows).to_have_count(len(behind))
        first = max(behind, key=lambda each: (rank(each), each.second))
        await expect(rows.first).to_contain_text(f"{first.input:,} → {first.output:,}")
        await page.get_by_text("← Overview").click()


async def check_tables(page: Page, script: Sequence[Sent]) -> None:
    """Compare the rows by model, by key and by error with the script; each number is a link."""
    for field in ("model", "key"):
        for value in sorted({getattr(each, field) for each in script}):
            mine = [each for each in script if getattr(each, field) == value]
            told = describe(mine)
            cells = [value, *[told[name] for name in ("Requests", "Failed", "Tokens in", "Tokens out", "Spend")]]  # fmt: skip
            cells += [told["Latency p50 / p95"]] if field == "model" else []
            row = page.get_by_label(f"By {field}").locator("tr", has_text=value)
            await expect(row.locator("td")).to_have_text(cells)
            # there are no calls behind a zero
            assert await row.locator("a").count() == len(cells) - 1 - cells.count("0")
            await row.locator("td:nth-child(4) a").press("Enter")
            await expect(page.locator("main.calls tbody tr")).to_have_count(len(mine))
            largest = max(each.input for each in mine)
            await expect(page.locator("tbody tr").first).to_contain_text(f"{largest:,} →")
            await page.get_by_text("← Overview").click()
    categories = {402: BillingError.category, **{each: ERRORS[each].category for each in ERRORS}}
    for status, category in categories.items():
        count = sum(each.status == status for each in script)
        row = page.get_by_label("Errors").locator("tr", has_text=category)
        await expect(row.locator("td")).to_have_text([category, str(count)])


async def test_overview_shows_an_hour_of_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(time.time() // 3600 * 3600 - 3600)
    script = write_script()
    moved = SimpleNamespace(time=clock, perf_counter=clock)
    for module in (request_account, overview):
        monkeypatch.setattr(module, "time", moved)
    monkeypatch.setattr(usage_book, "time", SimpleNamespace(time=time.time, perf_counter=clock))

    def answer(request: Request) -> Answer:
        given = Sent(**json.loads(request.messages[0].text))
        clock.now += given.seconds
        if given.status in ERRORS:
            raise ERRORS[given.status]
        return Answer("Hello.", usage=Usage(given.input, given.output))

    keys = KeyRing([
        Key("ann", hash_key("dg-ann"), team="rivers", team_budget_usd_month=Decimal(30)),
        Key("bob", hash_key("dg-bob"), budget_usd=Decimal(2)),
        Key("carl", hash_key("dg-carl"), team="rivers", team_budget_usd_month=Decimal(30)),
        Key("dora", hash_key("dg-dora")),
    ])  # fmt: skip
    with SimServer(ScriptedProvider(ScriptRule(answer)), models=("sim",)) as upstream:
        urls = upstream.base_urls
        models = {
            "fast": connect("sim", base_url=urls["anthropic"], wire="anthropic", api_key="k" * 12,
                            retries=0, priced_as="anthropic:claude-sonnet-4-5"),
            "own": connect("sim", base_url=urls["openai"], retries=0),
        }  # fmt: skip
        app = create_app(models, keys=keys, admin=DIGEST, ui="dragoman.gateway.web")
        async with app.router.lifespan_context(app), serving(app) as url:
            await drive(url, script, clock)
            data = await read(url, "overview?range=1h")
            check_budgets(data, script, clock.now * 1000)
            async with open_browser() as browser:
                place = f"{url}/#key={ADMIN}"
                async with open_page(browser, place) as page:
                    await page.goto(f"{url}/#overview?range=1h")
                    for name, shown in describe(script).items():
                        figure = page.locator("#totals > div", has_text=name).locator("dd")
                        await expect(figure).to_contain_text(shown)
                    bars = page.locator("figure", has_text="Requests").locator(".bar-slot")
                    counts = [sum(each.second // STEP == at for each in script) for at in range(BARS)]  # fmt: skip
                    labels = [await bars.nth(at).get_attribute("title") for at in range(BARS)]
                    assert [int(str(each).rpartition(" ")[2]) for each in labels] == counts
                    await check_tables(page, script)
                    await check_links(page, script)
                    left = page.get_by_label("Budgets").locator("tr", has_text="rivers")
                    await left.locator("a").press("Enter")
                    team = [each for each in script if each.key in ("ann", "carl")]
                    await expect(page.locator("main.calls tbody tr")).to_have_count(len(team))


def check_budgets(data: dict[str, Any], script: Sequence[Sent], now: float) -> None:
    """Compare what is left of the budgets, and when they are exhausted, with the script."""
    bob, team = sorted(data["budgets"], key=lambda each: str(each["account"]))
    for found, limit, names in ((bob, 2, ("bob",)), (team, 30, ("ann", "carl"))):
        spent = sum([each.usd for each in script if each.key in names], Decimal(0))
        assert Decimal(found["left"]) == limit - spent
        assert Decimal(found["spent"]) == spent
        rest = (limit - spent) * int(now - data["since"]) / spent
        assert found["empty_at"] is None or abs(found["empty_at"] - now - float(rest)) < 2
    assert bob["empty_at"] is not None
    assert team["empty_at"] is None or team["period"] == "month"
