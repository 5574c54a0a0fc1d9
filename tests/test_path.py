"""A call passes through the files in the order that the design page lists."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman import connect
from dragoman.transport import FixtureTransport

PACKAGE = Path(dragoman.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "design.md"
WHOLE = [b'{"choices":[{"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}']
STREAM = [
    b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n',
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
]


STREAM_ONLY = ("wire/sse.py",)
BODY_ONLY = ("provider/awaited.py",)


def printed_path() -> list[str]:
    section = PAGE.read_text().split("## The flow of one call")[1].split("\n## ")[0]
    steps = re.findall(r"^- (?:.|\n  )*", section, re.MULTILINE)
    return re.findall(r"`([\w/]+\.py)`", "".join(steps))


async def walk(stream: bool) -> list[str]:
    """Make a call and return the files whose functions it calls, in the order of first use."""
    reply: Any = (200, {}, STREAM if stream else WHOLE)
    model = connect("m", base_url="http://x.test/v1", transport=FixtureTransport(reply, reply))

    async def call() -> str:
        if not stream:
            return (await model.complete("Hi")).text
        async with model.stream("Hi") as events:
            return "".join([event.text async for event in events if event.type == "text.delta"])

    seen: list[str] = []

    def note(frame: Any, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            name = path.relative_to(PACKAGE).as_posix()
            # The fixture transport takes the place of the HTTP client.
            if name.startswith("transport/"):
                name = "transport/http.py"
            if name not in seen:
                seen.append(name)

    await call()  # a first call, so that imports and other one-time work are not recorded
    sys.setprofile(note)
    try:
        assert await call() == "Hi"
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.parametrize("stream", [True, False])
async def test_design_page_lists_the_modules_that_a_call_passes_through(stream: bool) -> None:
    expected = printed_path()
    assert len(expected) > 10
    others = BODY_ONLY if stream else STREAM_ONLY
    assert await walk(stream) == [name for name in expected if name not in others]
