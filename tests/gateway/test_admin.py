"""Test the admin page: it is off by default, has its own key and no scripts, and shows the usage
of all processes.
"""

import asyncio
import base64
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from playwright.async_api import async_playwright

from dragoman import Fallback, connect
from dragoman.cli import main
from dragoman.errors import AuthenticationError
from dragoman.events import Usage
from dragoman.gateway.admin import draw_chart
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key, new_key
from dragoman.gateway.usage import UsageBook
from dragoman.registry import Registry

from ..listed import Listed, reply
from ..programs import require
from ..server import Connection, completion, serve
from ..trace.conftest import FLAGS
from ..waiting import until
from .serving import serving
from .test_app import ANN, BODY, bearer, post

ADMIN, DIGEST = new_key()
EVIL = "<script>alert(1)</script>"
KEYS = KeyRing([Key(EVIL, hash_key(ANN))])
USED = Usage(input_tokens=1000, output_tokens=500, total_tokens=1500)


def priced(*answers: Any) -> Listed:
    return Listed(*answers, name="anthropic", model="claude-sonnet-4-5", repeat=True)


def basic(password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}


async def get(
    url: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> tuple[int, Any, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, headers=headers) as answer,
    ):
        return answer.status, answer.headers, await answer.text()


async def test_admin_page_is_off_by_default() -> None:
    async with serving(create_app({"fast": priced(reply("Hello"))}, keys=KEYS)) as url:
        assert (await get(f"{url}/admin", basic(ADMIN)))[0] == 404


REFUSED: list[tuple[dict[str, str], int]] = [
    ({}, 401),
    (basic("dg-wrong"), 401),
    (basic(DIGEST), 401),
    ({"authorization": "Basic !"}, 401),
    ({"authorization": "Bearer "}, 401),
    (bearer(ANN), 401),
    ({**basic(ADMIN), "sec-fetch-site": "cross-site"}, 403),
    ({**basic(ADMIN), "sec-fetch-site": "same-site"}, 403),
]


async def test_only_the_admin_key_opens_the_admin_page() -> None:
    async with serving(
        create_app({"fast": priced(reply("Hello"))}, keys=KEYS, admin=DIGEST)
    ) as url:
        for headers, expected in REFUSED:
            status, found, text = await get(f"{url}/admin", headers)
            assert (status, "<table" in text) == (expected, False), headers
            assert expected != 401 or found["www-authenticate"].startswith("Basic")
        for method in ("POST", "PUT", "DELETE"):
            assert (await get(f"{url}/admin", basic(ADMIN), method))[0] == 405
        assert (await get(f"{url}/admin", basic(ADMIN)))[0] == 200
        assert (await get(f"{url}/admin", bearer(ADMIN)))[0] == 200
        status, _, _ = await post(f"{url}/v1/chat/completions", BODY, bearer(ADMIN))
        assert status == 401  # an admin key does not authorise model calls


async def test_admin_page_shows_usage_and_running_requests() -> None:
    gate = asyncio.Event()
    model = priced(reply("Hello", usage=USED), lambda request: [gate, *reply("Hello")(request)])
    async with serving(create_app({"fast": model}, keys=KEYS, admin=DIGEST)) as url:
        await post(f"{url}/v1/chat/completions", BODY, bearer(ANN))
        call = asyncio.ensure_future(post(f"{url}/v1/chat/completions", BODY, bearer(ANN)))
        await until(lambda: model.running, "the second call")
        status, headers, page = await get(f"{url}/admin?range=7d", basic(ADMIN))
        gate.set()
        await call
    assert status == 200
    assert "Requests under way (1)" in page
    assert "<td>fast</td>" in page
    cells = ["&lt;script&gt;alert(1)&lt;/script&gt;", "1", "0", "1000", "500", "0.0105"]
    assert re.search(r".{0,20}".join(re.escape(f">{cell}<") for cell in cells), page)
    assert "anthropic:claude-sonnet-4-5" in page
    assert page.count("<svg") == 2
    assert "<script" not in page
    assert ANN not in page
    assert ADMIN not in page
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "frame-ancestors 'none'" in policy
    assert (headers["cache-control"], headers["x-frame-options"]) == ("no-store", "DENY")
    assert "access-control-allow-origin" not in headers


async def test_admin_page_shows_unavailable_upstreams() -> None:
    def fail(request: Any) -> Any:
        raise AuthenticationError("no", status=401)

    group = Fallback(
        [
            Listed(fail, name="one", model="a", repeat=True),
            Listed(reply("Hello"), name="two", model="b"),
        ]
    )
    async with serving(create_app({"fast": group}, admin=DIGEST)) as url:
        await post(f"{url}/v1/chat/completions", BODY)
        found = group.availability.trigger("one", "a")
        assert found == "auth_error"
        _, _, page = await get(f"{url}/admin", basic(ADMIN))
    assert "<td>fast</td>" in page
    assert "unavailable: auth_error" in page


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_usage_of_all_processes_is_summed(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = (
        request.getfixturevalue("postgres_url") if store == "postgres" else tmp_path / "used.db"
    )
    books = [UsageBook(place) for _ in range(2)]
    for book in books:
        for _ in range(3):
            book.count("ann", "fast", 200, USED, Decimal("0.1"))
        book.count("ann", "fast", 500, Usage(), Decimal(0))
        await book.flush(())
    await books[0].flush(())
    rows, live = await books[0].read(24)
    assert live == []
    (row,) = rows
    assert row[1:] == ("ann", "fast", 8, 2, 6000, 3000, Decimal("0.6"))
    for book in books:
        book.close()


async def test_usage_is_written_once_the_database_is_available_again(own_postgres: Any) -> None:
    book = UsageBook(own_postgres.url)
    own_postgres.stop()
    for status in (200, 200, 500):
        book.count("ann", "fast", status, USED, Decimal("0.1"))
    await book.flush(())
    own_postgres.start()
    await book.flush(())
    (row,) = (await book.read(24))[0]
    assert row[1:] == ("ann", "fast", 3, 1, 3000, 1500, Decimal("0.3"))
    book.close()


async def test_admin_page_shows_budgets_and_what_is_left() -> None:
    keys = KeyRing(
        [
            Key("ann", hash_key(ANN), budget_usd=Decimal(2), team="rivers",
                team_budget_usd_month=Decimal(30)),
        ]
    )  # fmt: skip
    app = create_app({"fast": priced(reply("Hello", usage=USED))}, keys=keys, admin=DIGEST)
    async with serving(app) as url:
        await post(f"{url}/v1/chat/completions", BODY, bearer(ANN))
        _, _, page = await get(f"{url}/admin", basic(ADMIN))
    assert (
        read_table(page, "Budgets")
        == [
            ["team:rivers", "month", "30.00", "29.9895"],
            ["ann", "total", "2.00", "1.9895"],
        ][::-1]
    )


def read_table(page: str, title: str) -> list[list[str]]:
    """Return the rows of the table below a heading that begins with this title."""
    _, _, rest = page.partition(f"<h2>{title}")
    body = re.findall(r"<tbody>(.*?)</tbody>", rest)[0]
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", body)]


async def test_unknown_price_is_not_shown_as_zero() -> None:
    used = reply("Hello", usage=USED)
    models = {
        "fast": priced(used),
        "own": Listed(used, name="own", model="m", repeat=True),
        "idle": Listed(reply("Hello", usage=Usage(0, 0)), name="own", model="i", repeat=True),
    }
    async with serving(create_app(models, admin=DIGEST)) as url:
        for name in models:
            await post(f"{url}/v1/chat/completions", {**BODY, "model": name})
        _, _, page = await get(f"{url}/admin", basic(ADMIN))
    costs = {row[0]: row[-1] for row in read_table(page, "Usage by model")}
    assert costs == {"fast": "0.0105", "own": "unknown", "idle": "0.0000"}
    assert read_table(page, "Usage by key")[0][-1] == "0.0105 + unknown"
    assert "3 requests, 0.0105 + unknown US dollars" in page


async def test_admin_page_lists_models_before_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.gateway.models._READY_FOR", -1.0)  # ask the upstreams each time
    (tmp_path / "models.yaml").write_text(
        "adapters:\n  up: {type: openai, base_url: 'http://127.0.0.1:1/v1'}\n"
        "models:\n  up:m: {aliases: [fast]}\n  up:n: {}\n"
    )
    app = create_app(Registry.load(tmp_path / "models.yaml"), admin=DIGEST)
    async with serving(app) as url:
        _, _, page = await get(f"{url}/admin", basic(ADMIN))
        rows = [row for row in read_table(page, "Upstreams") if row[1].startswith("up:")]
        assert rows == [
            ["fast", "up:m", "not used yet"],
            ["up:m", "up:m", "not used yet"],
            ["up:n", "up:n", "not used yet"],
        ]
        await post(f"{url}/v1/chat/completions", BODY)
        _, _, page = await get(f"{url}/admin", basic(ADMIN))
        rows = [row for row in read_table(page, "Upstreams") if row[1].startswith("up:")]
    assert rows[0] == ["fast", "up:m", "provider_unavailable"]
    assert rows[2] == ["up:n", "up:n", "not used yet"]


async def test_model_that_answers_is_ready_although_its_server_does_not_list_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.gateway.models._READY_FOR", -1.0)  # ask the upstreams each time

    async def handler(connection: Connection) -> None:
        if connection.seen.method == "GET":
            connection.reply(200, b'{"data": [{"id": "another"}]}')
        elif connection.seen.json["messages"]:
            connection.reply(200, completion())
        else:
            connection.reply(400, b'{"error": {"message": "no messages"}}')

    async with serve(handler) as upstream:
        model = connect("m", base_url=f"{upstream.url}/v1", name="up")
        app = create_app({"fast": model}, admin=DIGEST)
        states = []
        async with serving(app) as url:
            for _ in range(2):
                _, _, page = await get(f"{url}/admin", basic(ADMIN))
                states.append(read_table(page, "Upstreams"))
                await post(f"{url}/v1/chat/completions", BODY)
            assert (await get(f"{url}/ready"))[0] == 200
    assert states == [[["fast", "up:m", "provider_invalid_model"]], [["fast", "up:m", "ready"]]]


@pytest.mark.parametrize("width", [420, 1280])
async def test_admin_page_fits_its_window_with_readable_labels(width: int) -> None:
    """Look at the page in a real browser, with long names and large numbers."""
    long = "anthropic:claude-sonnet-4-5-20250929-with-a-long-name"
    keys = KeyRing([Key("a-key-with-a-long-name", hash_key(ANN), budget_usd=Decimal(12345))])
    used = Usage(input_tokens=12_345_678, output_tokens=9_876_543)
    app = create_app({long: priced(reply("Hello", usage=used))}, keys=keys, admin=DIGEST)
    async with serving(app) as url, async_playwright() as driver:
        await post(f"{url}/v1/chat/completions", {**BODY, "model": long}, bearer(ANN))
        browser = await driver.chromium.launch(executable_path=require("chromium"), args=FLAGS)
        page = await browser.new_page(
            viewport={"width": width, "height": 900},
            http_credentials={"username": "me", "password": ADMIN},
        )
        messages: list[str] = []
        page.on("console", lambda message: messages.append(message.text))
        await page.goto(f"{url}/admin")
        edges = await page.evaluate(
            "[...document.querySelectorAll('table, svg, .axis span')]"
            ".map(each => each.getBoundingClientRect().right)"
        )
        sizes = await page.evaluate(
            "[...document.querySelectorAll('.axis span, figcaption, td, th')]"
            ".map(each => parseFloat(getComputedStyle(each).fontSize))"
        )
        labels = (
            await page.locator(".axis")
            .first.locator("span")
            .evaluate_all(
                "all => all.map(each => [each.getBoundingClientRect().left,"
                " each.getBoundingClientRect().right])"
            )
        )
        await browser.close()
    assert messages == []
    assert len(edges) > 8
    assert max(edges) <= width
    assert min(sizes) >= 13
    ends = [edge for label in labels for edge in label]
    assert ends == sorted(ends)  # no label covers the next one


def test_charts_are_drawn_as_svg_with_escaped_labels() -> None:
    drawn = draw_chart([("<a>", 1.0), ("b", 0.0)], "dollars")
    assert "&lt;a&gt; UTC: 1 dollars" in drawn
    assert drawn.count("<rect") == 2
    assert "<rect" not in draw_chart([], "dollars")


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


async def test_admin_page_names_models_without_their_addresses() -> None:
    model = connect("m", base_url="http://127.0.0.1:1/v1?key=secret", name="up")
    app = create_app({"fast": model}, admin=DIGEST)
    assert app.state.service.models.describe_upstreams({"fast": "timeout"}) == [
        ["fast", "up:m", "timeout"]
    ]
    await model.close()
