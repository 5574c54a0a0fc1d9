"""Test that a session continues whatever values its tools return."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from dragoman import Policy, Rule, RuntimeConfig, Session
from dragoman.log import SqliteLog
from dragoman.messages import Document, Image, Inline, Text, Url
from dragoman.tools import Observation, tool

from ..listed import reply
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
        assert (outcome.outcome, outcome.text) == ("completed", "Done.")
