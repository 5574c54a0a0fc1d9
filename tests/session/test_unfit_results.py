"""Test that a session continues whatever values its tools return."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from dragoman import Policy, Rule, RuntimeConfig, Session, connect
from dragoman.log import SqliteLog
from dragoman.messages import Document, Image, Inline, Text, Url
from dragoman.tools import Observation, tool
from dragoman.transport import FixtureTransport

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
CALLS = {
    "openai": (
        b'{"id":"x","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant",'
        b'"tool_calls":[{"id":"c","type":"function","function":{"name":"look","arguments":"{}"}}]},'
        b'"finish_reason":"tool_calls"}]}'
    ),
    "anthropic": (
        b'{"id":"x","type":"message","role":"assistant","model":"m","content":[{"type":"tool_use","id":"c",'
        b'"name":"look","input":{}}],"stop_reason":"tool_use"}'
    ),
    "gemini": (
        b'{"candidates":[{"content":{"role":"model","parts":[{"functionCall":{"name":"look","args":{}}}]},'
        b'"finishReason":"STOP"}]}'
    ),
}
DONE = {
    "openai": (
        b'{"id":"x","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant",'
        b'"content":"Done."},"finish_reason":"stop"}]}'
    ),
    "anthropic": (
        b'{"id":"x","type":"message","role":"assistant","model":"m","content":[{"type":"text",'
        b'"text":"Done."}],"stop_reason":"end_turn"}'
    ),
    "gemini": (
        b'{"candidates":[{"content":{"role":"model","parts":[{"text":"Done."}]},"finishReason":"STOP"}]}'
    ),
}


@pytest.mark.parametrize("wire", sorted(CALLS))
@pytest.mark.parametrize("name", RESULTS)
async def test_session_continues_after_any_kind_of_tool_result(
    name: str, wire: str, tmp_path: Path
) -> None:
    @tool(side_effect="read")
    def look() -> Observation:
        """Return the result under test."""
        return Observation(RESULTS[name])

    transport = FixtureTransport(*[(200, {}, [body]) for body in (CALLS[wire], DONE[wire])])
    provider = connect("m", wire=wire, base_url="http://127.0.0.1:9/v1", transport=transport)
    with SqliteLog(tmp_path / "log.db") as log:
        session = Session(
            provider, [look], Policy([Rule("allow")]), log, config=RuntimeConfig(max_tokens=9)
        )
        outcome = await session.run("Go.")
        assert (outcome.outcome, outcome.text) == ("completed", "Done.")
