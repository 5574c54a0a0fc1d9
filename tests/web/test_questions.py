"""The page with the queue of questions: what it shows to whom, answers, and other sites."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from playwright.async_api import expect

from tests.gateway.serving import serving
from tests.service.serving import PAY, Client, make_agent, make_app
from tests.session.playing import ran

from .test_pages import check_page, open_browser

ANN = {"authorization": "Bearer ann-key-0001"}


@contextlib.asynccontextmanager
async def asking() -> AsyncIterator[tuple[str, Client, dict[str, Any]]]:
    """Serve an agent, one of whose sessions waits; yield the address, a client and the session."""
    ran.clear()
    app = make_app({"main": make_agent(PAY)}, ui="dragoman.gateway.web")
    async with serving(app) as url, aiohttp.ClientSession(url) as http:
        client = Client(http, "one")
        row = await client.start("Pay it.")
        yield url, client, await client.reach(row["id"], "waiting")


async def send(url: str, headers: dict[str, str], body: Any = None) -> tuple[int, Any]:
    """Read the queue, or answer a question with a body; return the status and the reply."""
    async with aiohttp.ClientSession() as http:
        method = "GET" if body is None else "POST"
        async with http.request(
            method, f"{url}/ui/api/questions", json=body, headers=headers
        ) as reply:
            return reply.status, json.loads(await reply.text())


# The headers of a request, the status of reading the queue, and the status of an answer.
REQUESTS = [
    (ANN, 200, 200),
    ({**ANN, "sec-fetch-site": "same-origin"}, 200, 200),
    ({**ANN, "sec-fetch-site": "cross-site"}, 403, 403),
    ({**ANN, "sec-fetch-site": "same-site"}, 403, 403),
    ({**ANN, "origin": "https://evil.example"}, 403, 403),
    ({"authorization": "Bearer bob-key-0001"}, 200, 403),
    ({"authorization": "Bearer carla-key-0001"}, 200, 403),
    ({"authorization": "Bearer one-key-0001"}, 401, 401),
    ({}, 401, 401),
]


@pytest.mark.parametrize(("headers", "read", "answered"), REQUESTS)
async def test_queue_is_for_people_with_the_role_and_for_this_site(
    headers: dict[str, str], read: int, answered: int
) -> None:
    async with asking() as (url, client, waiting):
        status, found = await send(url, headers)
        assert status == read
        if read == 200:
            (question,) = found["open"]
            assert question["pending"]["tool_name"] == "pay"
            assert ("amount" in str(question)) is (answered == 200)
        (pending,) = waiting["pending"]
        body = {"session": waiting["id"], "intent": pending["intent_id"], "allowed": True}
        status, _ = await send(url, headers, body)
        assert status == answered
        if answered == 200:
            await client.reach(waiting["id"], "completed")
    assert ran == ([7] if answered == 200 else [])


# What is changed in a right answer, and what the error says.
WRONG = [
    ({"session": "agent_none"}, "no session"),
    ({"intent": "none"}, "no open question"),
    ({"allowed": "yes"}, "allowed"),
    ({"allowed": False, "input": {"amount": 1}}, "denial"),
    ({"by": "somebody"}, "by"),
]


@pytest.mark.parametrize(("change", "about"), WRONG)
async def test_wrong_answer_gets_a_clear_error(change: dict[str, Any], about: str) -> None:
    async with asking() as (url, _, waiting):
        (pending,) = waiting["pending"]
        body = {"session": waiting["id"], "intent": pending["intent_id"], "allowed": True}
        status, error = await send(url, ANN, body | change)
        assert status == 400
        assert about in error["error"]
    assert ran == []


@pytest.mark.parametrize(
    ("width", "scheme", "press"), [(1280, "light", "Allow"), (390, "dark", "Deny")]
)
async def test_question_is_answered_on_the_page(width: int, scheme: Any, press: str) -> None:
    async with asking() as (url, client, waiting), open_browser() as browser:
        page = await browser.new_page(
            viewport={"width": width, "height": 850}, color_scheme=scheme, reduced_motion="reduce"
        )
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        await page.goto(f"{url}/#key=ann-key-0001")
        await page.get_by_role("link", name="Questions").click()
        card = page.get_by_role("region", name="May pay run?")
        await expect(card).to_contain_text('"amount": 7')
        await expect(card).to_contain_text("started by uma")
        await check_page(page, is_deep=True)
        await card.get_by_label("Reason about pay").fill("checked the invoice")
        await card.get_by_role("button", name=press).click()
        await expect(page.locator("[role=status]")).to_contain_text("by ann")
        await expect(page.locator("main")).to_contain_text("No session waits.")
        answered = page.get_by_role("region", name="Answered questions")
        await expect(answered).to_contain_text("ann")
        await expect(answered).to_contain_text("checked the invoice")
        await client.reach(waiting["id"], "completed")
        await check_page(page, is_deep=True)
        assert problems == []
    assert ran == ([7] if press == "Allow" else [])
