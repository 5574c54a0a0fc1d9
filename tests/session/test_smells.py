"""Test that an adapter keeps, logs and shortens nothing: these are tasks of a session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dragoman
from dragoman import Assistant, Tool, ToolCall, ToolResult, User
from dragoman.log import SqliteLog
from dragoman.permission import Policy, Rule
from dragoman.session import Session
from dragoman.tools import tool
from dragoman.transport import FixtureTransport
from dragoman.wire import CODECS

CALL = (
    b"data: "
    b'{"model":"m-2026","system_fingerprint":"fp_canary","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","function":{"name":"look","arguments":"{\\"word\\":\\"ox\\"}"}}]},"finish_reason":"tool_calls"}]}\n\ndata:'
    b" [DONE]\n\n"
)
ANSWER = (
    b'data: {"choices":[{"index":0,"delta":{"content":"Done."},"finish_reason":"stop"}]}\n\ndata: '
    b"[DONE]\n\n"
)
STREAM = {"content-type": "text/event-stream"}


@tool(side_effect="read")
def look(word: str) -> str:
    """Look up a word."""
    return f"{word}: found"


async def run_over_a_wire(log: SqliteLog) -> tuple[Session, FixtureTransport]:
    transport = FixtureTransport((200, STREAM, [CALL]), (200, STREAM, [ANSWER]))
    model = dragoman.connect(
        "m", base_url="http://127.0.0.1:9/v1", transport=transport, api_key="k"
    )
    session = Session(model, [look], Policy([Rule("allow")]), log)
    assert (await session.run("Go.")).text == "Done."
    return session, transport


async def test_an_adapter_keeps_no_messages_between_calls(log: SqliteLog) -> None:
    """This test checks the provider's attributes; ``test_keeps_provider_request_scoped`` searches
    every object that a provider references.
    """
    session, transport = await run_over_a_wire(log)
    assert not [value for value in vars(session.provider).values() if isinstance(value, list)]
    # The provider kept none of these messages; the session sent them all.
    assert len(json.loads(transport.requests[1].body)["messages"]) == 3


async def test_raw_chunks_of_a_stream_are_not_logged(log: SqliteLog, tmp_path: Path) -> None:
    await run_over_a_wire(log)
    log.export(tmp_path / "all.jsonl")
    text = (tmp_path / "all.jsonl").read_text()
    for word in ("fp_canary", "choices", "delta", "data:"):
        assert word not in text


@pytest.mark.parametrize("wire", sorted(CODECS))
async def test_an_adapter_does_not_truncate_a_tool_result(wire: str) -> None:
    whole = "line of output\n" * 20_000
    messages = [
        User("Go."),
        Assistant(tool_calls=[ToolCall("call_1", "look", {})]),
        ToolResult("call_1", whole),
    ]
    transport = FixtureTransport((500, {}, [b"{}"]))
    url = "http://127.0.0.1:9/v1"
    model = dragoman.connect("m", wire=wire, base_url=url, transport=transport, api_key="k")
    with pytest.raises(dragoman.ProviderError):
        await model.complete(messages, [Tool("look")], {"max_tokens": 9})
    assert json.dumps(whole)[1:-1].encode() in transport.requests[0].body
