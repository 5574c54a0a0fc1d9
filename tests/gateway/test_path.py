"""A request to the gateway passes through the functions in the order that the design page lists."""

import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import dragoman
from dragoman import connect
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.transport import FixtureTransport
from tests.test_path import PAGE, STREAM, WHOLE

from .serving import serving

PACKAGE = Path(dragoman.__file__).parent / "gateway"
SECRET = "sk-dragoman-" + "a" * 32
ROW = re.compile(r"`([\w/]+\.py)` `([\w.]+)`")


def printed_path() -> list[tuple[str, str]]:
    """Return the files and functions that the page lists."""
    section = PAGE.read_text().split("## The way of a gateway request")[1].split("\n## ")[0]
    return ROW.findall(section)


# A message with a call, as a server of the anthropic wire sends it.
CALL = [
    b'{"content":[{"type":"text","text":"Hi"},{"type":"tool_use","id":"t","name":"f","input":{}}],'
    b'"role":"assistant","stop_reason":"tool_use","usage":{"input_tokens":1,"output_tokens":1}}'
]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


async def walk(reply: list[bytes], wire: str, limits: Any, sent: Any) -> list[tuple[str, str]]:
    """Send a request over a socket; return the gateway's functions in the order of first use."""
    whole: Any = (200, {}, reply)
    model = connect(
        "m", base_url="http://x.test/v1", wire=wire, priced_as="free",
        transport=FixtureTransport(whole, whole),
    )  # fmt: skip
    app = create_app({"m": model}, keys=KeyRing([Key("ann", hash_key(SECRET), **limits)]))
    seen: list[tuple[str, str]] = []

    def note(frame: Any, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            place = (path.relative_to(PACKAGE).as_posix(), frame.f_code.co_qualname)
            if place not in seen:
                seen.append(place)

    async with serving(app) as url, aiohttp.ClientSession() as http:

        async def ask() -> None:
            asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
            async with http.post(
                f"{url}/v1/chat/completions",
                json={**asked, **sent},
                headers={"authorization": f"Bearer {SECRET}"},
            ) as answer:
                assert answer.status == 200
                assert b"Hi" in await answer.read()

        await ask()  # a first request, so that imports and other one-time work are not recorded
        sys.setprofile(note)
        try:
            await ask()
        finally:
            sys.setprofile(None)
    return seen


@pytest.mark.parametrize(
    ("reply", "wire", "limits", "sent"),
    [
        (STREAM, "openai", {"max_concurrency": 1}, {"stream": True}),
        (WHOLE, "openai", {"max_concurrency": 1}, {}),
        (CALL, "anthropic", {"max_concurrency": 1, "budget_usd": Decimal(1)}, {"tools": [TOOL]}),
    ],
    ids=["stream", "body", "another wire, a tool and a budget"],
)
async def test_design_page_lists_the_steps_of_a_gateway_request(
    reply: list[bytes], wire: str, limits: Any, sent: Any
) -> None:
    printed = printed_path()
    seen = await walk(reply, wire, limits, sent)
    assert len(printed) > 15
    if "budget_usd" in limits:  # a part of the last stage comes before the last bytes are sent
        printed.sort()
        seen.sort()
    assert printed == [place for place in seen if place in printed]
    assert list(dict.fromkeys([file for file, _ in printed])) == list(
        dict.fromkeys([file for file, _ in seen])
    )
