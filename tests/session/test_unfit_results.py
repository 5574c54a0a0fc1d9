"""Test that a session continues whatever its tools return and its model proposes."""

import base64
from pathlib import Path
from typing import Any

import pytest

from dragoman import Policy, Rule, RuntimeConfig, Session
from dragoman.log import MemoryLog, SqliteLog
from dragoman.messages import Assistant, Document, Image, Inline, Opaque, Text, Url
from dragoman.tools import Observation, tool

from ..listed import Listed, reply, speak
from .playing import call, propose, served

PNG = base64.b64encode(b"\x89PNG picture").decode()
IMAGE = Image(Inline(PNG), "image/png")
RESULTS: dict[str, Any] = {
    "a sound picture": (IMAGE,),
    "not base64": (Image(Inline("not base64!!"), "image/png"),),
    "another media type": (Image(Inline(PNG), "text/html"),),
    "a media type with line ends": (Image(Inline(PNG), "image/png\r\nx: y"),),
    "an empty picture": (Image(Inline(""), "image/png"),),
    "a script": (Image(Url("javascript:alert(1)"), "image/png"),),
    "an empty text": (Text(""),),
    "nothing": (),
    "a spreadsheet": (Document(Inline(PNG), "application/vnd.ms-excel", "a.xls"),),
}


@pytest.mark.parametrize("wire", ["anthropic", "gemini", "openai"])
@pytest.mark.parametrize("name", RESULTS)
async def test_session_continues_after_any_kind_of_tool_result(
    name: str, wire: str, tmp_path: Path
) -> None:
    @tool(side_effect="read")
    def look() -> Observation:
        """Return the result under test."""
        return Observation(RESULTS[name])

    provider = served(wire, propose(call("look")), reply("Done."))
    with SqliteLog(tmp_path / "log.db") as log:
        session = Session(
            provider, [look], Policy([Rule("allow")]), log, config=RuntimeConfig(max_tokens=9)
        )
        outcome = await session.run("Go.")
        assert outcome.outcome == "completed"
        assert outcome.text == "Done."


def nest(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize("wire", ["anthropic", "gemini", "openai"])
async def test_session_continues_and_resumes_after_a_deeply_nested_call(wire: str) -> None:
    @tool(side_effect="read")
    def look(places: list[Any]) -> str:
        """Look at places."""
        return f"{len(places)} places"

    provider = served(
        wire, propose(call("look", places=nest(130))), reply("Done."), reply("Again.")
    )
    given: Any = [look], Policy([Rule("allow")]), MemoryLog()
    session = Session(provider, *given, config=RuntimeConfig(max_tokens=9))
    assert (await session.run("Go.")).text == "Done."
    resumed = await Session.resume(
        provider, *given, session.id, config=RuntimeConfig(max_tokens=9)
    )
    assert (await resumed.run("Go on.")).text == "Again."
    sent = resumed.messages[1]
    assert isinstance(sent, Assistant)
    assert sent.tool_calls[0].arguments == {
        "note": "[left out: the value is nested more than 128 levels deep]"
    }


async def test_session_continues_after_a_deeply_nested_block_of_the_provider() -> None:
    provider = Listed(speak(lambda out: out.whole(Opaque({"found": nest(130)}))), "Done.")
    session = Session(provider, [], Policy([]), MemoryLog())
    await session.run("Go.")
    assert (await session.run("Go on.")).text == "Done."
    sent = session.messages[1]
    assert isinstance(sent, Assistant)
    assert [type(block) for block in sent.content] == [Text]
