"""Cancel a stream after each event, over a socket: it ends without an error or a leak."""

import asyncio
import os
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import dragoman as d
from dragoman.provider import HttpProvider
from dragoman.transport import FixtureTransport
from dragoman.wire import CODECS

from .server import Connection, serve
from .waiting import arrival, settle
from .wire.cases import Case, find_cases, open_decoder

WHOLE = bool(os.environ.get("DRAGOMAN_EXHAUSTIVE"))
STREAMS = [
    case
    for wire in CODECS
    for case in find_cases(wire, "reply.sse", "reply.ndjson", "reply.frames")[:: 1 if WHOLE else 4]
]


def test_every_wire_has_streams_to_cancel() -> None:
    assert {case.wire for case in STREAMS} == set(CODECS)


def events_of(case: Case) -> int:
    """Return the number of events of a stream, not counting the last one."""
    decoder = open_decoder(case.codec(), msgspec.structs.replace(case.request, stream=True))
    events = decoder.feed(case.reply or b"")
    return sum(not isinstance(event, d.MessageComplete) for event in events)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", STREAMS, ids=str)
async def test_stream_can_be_cancelled_after_every_event(
    case: Case, count: Callable[[str, int], None]
) -> None:
    """Cancel before the first byte and after each event; the server never ends the stream.

    ``make test`` takes every fourth stream and four moments of it.
    """
    silent = asyncio.Event()

    async def handler(connection: Connection) -> None:
        connection.begin_stream()
        if not silent.is_set():
            connection.chunk(case.reply or b"")
        await connection.writer.drain()
        await asyncio.Event().wait()

    async with serve(handler) as server:
        options = case.options
        settings: dict[str, Any] = {"quirks": options.quirks, "capabilities": options.capabilities}
        async with d.connect("m", wire=case.wire, base_url=server.url, **settings) as model:
            request = msgspec.structs.replace(case.request, stream=True)
            tasks = asyncio.all_tasks()
            total = events_of(case)
            for at in range(1 + total) if WHOLE else sorted({0, min(1, total), total // 2, total}):
                silent.set() if at == 0 else silent.clear()
                server.closed.clear()
                cancelling = _cancel_at(model, request, at)
                events = await arrival(cancelling, "the end of a cancelled stream")
                _check(events, at)
                await arrival(server.closed.wait(), "the connection to close")
                assert server.open == 0
                count("streams cancelled over a socket", 1)
            # Ignore the tasks of the test server, which runs in the same event loop.
            assert [
                task for task in asyncio.all_tasks() - tasks if "/tests/" not in repr(task)
            ] == []


async def _cancel_at(model: d.Provider, request: d.Request, at: int) -> list[Any]:
    """Cancel after ``at`` events and read the rest; with 0, while waiting for the first event."""
    asked = msgspec.structs.replace(request, request_id=f"r{at}")
    stream = d.EventStream(model.open(asked), asked)
    events: list[Any] = []
    async with asyncio.TaskGroup() as group:
        if at == 0:
            group.create_task(_cancel_soon(stream))
        async for event in stream:
            events.append(event)
            if len(events) == at:
                assert await stream.cancel(), "it had not ended"
                assert not await stream.cancel(), "once is enough"
    return events


async def _cancel_soon(stream: d.EventStream) -> None:
    await settle()
    assert await stream.cancel()
    assert not await stream.cancel(), "it is being cancelled"


def _check(events: list[Any], at: int) -> None:
    d.check_events(events)
    assert [type(event) for event in events].count(d.MessageComplete) == 1
    assert events[-1].finish_reason == "cancelled"
    starts = sum(isinstance(event, d.ToolUseStart) for event in events)
    ends = [event for event in events if isinstance(event, d.ToolUseEnd)]
    assert len(ends) == starts
    assert len(events) <= at + starts + 2, (
        "nothing is said after the cancel but what closes the message"
    )
    states = [
        block.continuity for block in events[-1].final_content if block.continuity is not None
    ]
    assert all(state.issuer is not None and not state.replayable for state in states)


def lines(*frames: dict[str, Any]) -> bytes:
    return b"".join([b"data: " + msgspec.json.encode(frame) + b"\n\n" for frame in frames])


def parts(*said: dict[str, Any], **more: Any) -> bytes:
    return lines({"candidates": [{"content": {"role": "model", "parts": list(said)}}], **more})


CITY = d.Tool("city", "", parameters={"type": "object"})
SIGNED = [
    parts({"text": "Hm.", "thought": True, "thoughtSignature": "THOUGHT"}, modelVersion="m-1"),
    parts({"text": "Well", "thoughtSignature": "TEXT"}, usageMetadata={"promptTokenCount": 7}),
    parts({"functionCall": {"id": "c1", "name": "city", "args": {}}, "thoughtSignature": "CALL"}),
    parts({"executableCode": {"code": "1 + 1", "language": "PYTHON"}}),
    parts({"text": "so"}, {"text": " on"}),
    parts({"text": "unheard"}),
]
FORTH: list[d.Message] = [
    d.User("Where?"), d.Assistant([d.Thinking("hm"), d.Text("Well.")]), d.User("Go on."),
]  # fmt: skip


async def hear_until(model: d.Provider, text: str) -> d.Response:
    """Read a stream until ``text`` has arrived, cancel it, and return its response."""
    stream = model.stream(FORTH, [CITY])
    events = []
    async for event in stream:
        events.append(event)
        if isinstance(event, d.TextDelta) and event.text == text:
            assert await stream.cancel()
    d.check_events(events)
    assert stream.response == d.fold(
        events, stream.response.latency_ms if stream.response else None
    )
    return stream.response


def signed() -> d.Provider:
    return d.connect(
        "m-1", wire="gemini", base_url="http://x.test",
        transport=FixtureTransport((200, {}, SIGNED)),
    )  # fmt: skip


async def test_cancelled_reply_has_the_same_fields_as_a_complete_reply() -> None:
    response = await hear_until(signed(), "so")
    never = d.Continuity(issuer=d.Issuer("gemini", None, "m-1"), replayable=False)
    assert response.message.content == (
        d.Thinking("Hm.", replace(never, signature="THOUGHT")),
        d.Text("Well", replace(never, signature="TEXT")),
        d.ToolCall("c1", "city", {}, replace(never, signature="CALL")),
        d.Opaque({"executableCode": {"code": "1 + 1", "language": "PYTHON"}}, never),
        d.Text("so"),
    )
    expected = ("cancelled", 7, "m-1")
    assert (response.finish_reason, response.usage.input_tokens, response.model) == expected
    assert [warning.code for warning in response.warnings] == ["thinking_dropped"]
    assert "THOUGHT" in str(response.raw)


@pytest.mark.parametrize("wire", CODECS)
@pytest.mark.parametrize("around", [lambda model: model, d.Retry, d.Observe])
async def test_cancelled_provider_state_is_not_sent(wire: str, around: Callable[..., Any]) -> None:
    """The state is sent neither to its issuer nor to another wire, even through a wrapper."""
    response = await hear_until(around(signed()), "so")
    target = d.connect("m-1", wire=wire, base_url="http://x.test")
    assert isinstance(target, HttpProvider)
    conversation = [d.User("Where?"), response.message, d.ToolResult("c1", "here")]
    sent = target.codec.encode(
        d.Request(conversation, tools=[CITY], config=d.RuntimeConfig(max_tokens=5))
    )
    assert not re.search(rb"THOUGHT|TEXT|CALL|executableCode", sent.http.body)
    assert b"Well" in sent.http.body
    thoughts = [warning for warning in sent.warnings if warning.code == "thinking_dropped"]
    assert [warning.path for warning in thoughts] == ["messages[1].content[0]"]
    dropped = [block for block in response.message.content if isinstance(block, d.Opaque)]
    assert [warning.code for warning in sent.warnings].count("opaque_dropped") == len(dropped)


@pytest.mark.parametrize(
    "block", [d.RedactedThinking("SECRET"), d.Opaque({"type": "SECRET"}), d.Thinking("SECRET")]
)
@pytest.mark.parametrize("wire", CODECS)
def test_native_blocks_of_an_interrupted_reply_cause_a_warning(wire: str, block: Any) -> None:
    target = d.connect("m-1", wire=wire, base_url="http://x.test")
    assert isinstance(target, HttpProvider)
    opaque = {"type": "reasoning", "encrypted_content": "SECRET", "summary": []}
    state = d.Continuity("SECRET", opaque, d.Issuer(wire, None, "m-1"), replayable=False)
    said = d.Assistant([replace(block, continuity=state), d.Text("well")])
    sent = target.codec.encode(
        d.Request([d.User("Where?"), said, d.User("Go on.")], config=d.RuntimeConfig(max_tokens=5))
    )
    assert b"SECRET" not in sent.http.body
    assert "messages[1].content[0]" in [warning.path for warning in sent.warnings]
