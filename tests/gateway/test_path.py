"""A request to the gateway passes through the functions in the order that the design page lists."""

from __future__ import annotations

import re
import sys
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
ROW = re.compile(r"^\| (?:\w+ )?\| `([\w/]+\.py)` \| `([\w.]+)` \|", re.MULTILINE)


def printed_path() -> list[tuple[str, str]]:
    """Return the files and functions that the page lists."""
    section = PAGE.read_text().split("## The way of a gateway request")[1].split("\n## ")[0]
    return ROW.findall(section)


async def walk(stream: bool) -> list[tuple[str, str]]:
    """Send a request over a socket; return the gateway's functions in the order of first use."""
    reply: Any = (200, {}, STREAM if stream else WHOLE)
    model = connect("m", base_url="http://x.test/v1", transport=FixtureTransport(reply, reply))
    app = create_app({"m": model}, keys=KeyRing([Key("ann", hash_key(SECRET), max_concurrency=1)]))
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
                json={**asked, "stream": stream},
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


@pytest.mark.parametrize("stream", [True, False])
async def test_design_page_tells_the_way_of_a_gateway_request(stream: bool) -> None:
    printed, seen = printed_path(), await walk(stream)
    assert len(printed) > 15
    assert printed == [place for place in seen if place in printed]
    assert list(dict.fromkeys([file for file, _ in printed])) == list(
        dict.fromkeys([file for file, _ in seen])
    )
