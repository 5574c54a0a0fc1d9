"""Test the admin page: it is off by default, has its own key and no scripts, and shows the usage
of all processes.
"""

from __future__ import annotations

import asyncio
import base64
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from dragoman import Fallback, connect
from dragoman.cli import main
from dragoman.errors import AuthenticationError
from dragoman.events import Usage
from dragoman.gateway.admin import draw_chart
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key, new_key
from dragoman.gateway.usage import UsageBook

from ..listed import Listed, reply
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
