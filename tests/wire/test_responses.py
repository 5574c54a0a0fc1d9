"""The responses wire: cases, encoding, decoding, rejections, and arbitrary replies."""

import json
from typing import Any

import msgspec
import pytest

import dragoman as d
import dragoman.errors
from dragoman.wire.responses import Quirks, ResponsesCodec
from tests.rows import read_table

from .cases import (
    BASE_URL,
    MODEL,
    Case,
    decode,
    find_cases,
    with_between,
)

HELLO = d.User("Hello")


HERE = d.Issuer("responses", None, MODEL)

CASE_LIST = find_cases("responses")
REPLIED = [case for case in CASE_LIST if case.reply is not None and case.options.status < 300]
STREAMED = [case for case in REPLIED if case.is_stream]


def make_codec(**quirks: Any) -> ResponsesCodec:
    return ResponsesCodec(MODEL, BASE_URL, Quirks(**quirks))


def make_request(*messages: Any, **fields: Any) -> d.Request:
    return d.Request(messages or (HELLO,), model=MODEL, request_id="R", **fields)


def event_of(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def events_in(data: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects of a stream, parsed without our decoder."""
    lines = data.decode().replace("\r\n", "\n").split("\n")
    found = [
        json.loads(line[5:])
        for line in lines
        if line.startswith("data:") and line[5:].strip().startswith("{")
    ]
    return [event for event in found if isinstance(event.get("type"), str)]


# --- conformance cases -------------------------------------------------------------------------


# Streams whose last event does not repeat the streamed content, with the reason. All other streams
# must give the reply that their last event contains.
UNLIKE = dict(read_table("unlike_responses"))


def test_streamed_replies_equal_the_response_in_their_last_event() -> None:
    for case in [case for case in STREAMED if case.name not in UNLIKE]:
        codec = case.codec(ResponsesCodec)
        streamed = decode(codec, case.request, [case.reply or b""])
        ends = [
            event
            for event in events_in(case.reply or b"")
            if event["type"] in ("response.completed", "response.incomplete")
        ]
        if not ends or isinstance(streamed.error, d.StreamInterruptedError):
            assert streamed.error is not None, case
            continue
        body = decode(codec, case.request, [json.dumps(ends[0]["response"]).encode()])
        assert body.facts == streamed.facts, case


# --- encoding requests -------------------------------------------------------------------------


def test_request_never_lets_the_server_store_the_response() -> None:
    for case in find_cases("responses", "wire.json"):
        assert case.json("wire.json")["store"] is False
        assert "previous_response_id" not in case.json("wire.json")


def own(opaque: Any = None, **changes: Any) -> d.Continuity:
    return msgspec.structs.replace(d.Continuity(None, opaque, HERE), **changes)


REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA=="}
THOUGHT = d.Thinking("", own(REASONING))
FOREIGN = d.Continuity("sig", None, d.Issuer("gemini"))
CALL = d.ToolCall("c", "any", {})
SAID = "messages[1].content[0]"
NEXT = "messages[1].content[1]"
SHELL = d.Opaque({"type": "shell_call", "call_id": "s"}, own())
SHELL_OUTPUT = d.Opaque({"type": "shell_call_output", "call_id": "s"})
Noted = tuple[str, str, str, bool]


def dropped(code: str, path: str = SAID, *, loss: bool = True) -> Noted:
    return ("dropped", f"{code}_dropped", path, loss)


NOTHING_LEFT = dropped("message", "messages[1]")

# The blocks of a reply that is sent back, and the expected notes.
LOSSES: dict[str, tuple[list[Any], list[Noted]]] = {
    "plain thinking": ([d.Thinking("hm"), d.Text("x")], [dropped("thinking")]),
    "redacted": ([d.RedactedThinking("d"), d.Text("x")], [dropped("redacted_thinking")]),
    "own thinking": ([THOUGHT, d.Text("x")], []),
    "thinking that leads to nothing": (
        [d.Text("x"), THOUGHT, THOUGHT],
        [dropped("thinking", "messages[1].content[2]"), dropped("thinking", NEXT)],
    ),
    "nothing but thinking": ([THOUGHT], [dropped("thinking"), NOTHING_LEFT]),
    "signed text": ([d.Text("x", FOREIGN)], [dropped("continuity", f"{SAID}.continuity")]),
    "text cut off, without state": ([d.Text("x", d.Continuity(None, None, HERE, False))], []),
    "blank text": ([d.Text(""), d.Text("x")], [dropped("blank_text", loss=False)]),
    "foreign item": ([d.Opaque({"type": "x"}), d.Text("x")], [dropped("opaque")]),
    "own item": ([d.Opaque({"type": "x"}, own()), d.Text("x")], []),
    "own call without output": ([SHELL, d.Text("x")], [dropped("dangling_call")]),
    "own call with an output that stays": (
        [SHELL, SHELL_OUTPUT],
        [dropped("dangling_call"), dropped("opaque", NEXT), NOTHING_LEFT],
    ),
    "dangling call": ([CALL], [dropped("dangling_call"), NOTHING_LEFT]),
    "unreadable call": ([d.ToolCall("c", "any", None), d.Text("x")], [dropped("dangling_call")]),
}


@pytest.mark.parametrize(("blocks", "notes"), LOSSES.values(), ids=LOSSES)
def test_every_loss_is_reported(blocks: list[Any], notes: list[Any]) -> None:
    encoded = make_codec().encode(make_request(HELLO, d.Assistant(blocks), HELLO))
    assert [(note.outcome, note.code, note.path, note.loss) for note in encoded.notes] == notes
    assert [warning.path for warning in encoded.warnings] == [
        path for _, _, path, loss in notes if loss
    ]


def test_losses_of_tool_and_user_messages_are_reported() -> None:
    state = d.Continuity("s")
    said = [
        d.User([d.Text("a", state), d.Document(d.Url("https://h/a.pdf"), name="a.pdf")]),
        d.Assistant([d.ToolCall("x" * 70, "any", {})]),
        d.ToolResult("x" * 70, [d.Text("b", state)], is_error=True),
        d.Assistant([d.ToolCall("d", "any", None)]),
        d.ToolResult("d", "late"),
    ]
    encoded = make_codec().encode(make_request(*said))
    assert [(note.code, note.path, note.loss) for note in encoded.notes] == [
        ("continuity_dropped", "messages[0].content[0].continuity", True),
        ("name_dropped", "messages[0].content[1].name", True),
        ("id_projected", "messages[1].content[0]", False),
        ("id_projected", "messages[2].tool_call_id", False),
        ("is_error_dropped", "messages[2].is_error", True),
        ("continuity_dropped", "messages[2].content[0].continuity", True),
        ("dangling_call_dropped", "messages[3].content[0]", True),
        ("message_dropped", "messages[3]", True),
        ("orphan_result_dropped", "messages[4]", True),
    ]


def test_system_message_after_the_first_turn_is_rejected() -> None:
    with pytest.raises(d.InvalidRequestError, match=r"messages\[1\]"):
        make_codec().encode(make_request(HELLO, d.System("late")))


# --- decoding streams --------------------------------------------------------------------------

# Events without content; inserting one into a complete stream must not change the reply.
IDLE: list[dict[str, Any]] = read_table("idle_responses")


@pytest.mark.parametrize("idle", IDLE, ids=lambda event: event["type"])
def test_events_without_content_are_ignored(idle: dict[str, Any]) -> None:
    case = Case("responses", "text-stream")
    whole = decode(make_codec(), case.request, [case.reply or b""])
    heard = decode(make_codec(), case.request, [with_between(case.reply or b"", event_of(idle))])
    assert heard.facts == whole.facts


def test_late_end_of_one_part_does_not_end_another_part() -> None:
    spot = {"output_index": 0, "item_id": "msg_1"}
    delta, done = "response.output_text.delta", "response.content_part.done"
    part = {"type": "output_text", "text": "One. "}
    events = [
        {"type": delta, **spot, "content_index": 0, "delta": "One. "},
        {"type": delta, **spot, "content_index": 1, "delta": "Tw"},
        {"type": done, **spot, "content_index": 0, "part": part},
        {"type": delta, **spot, "content_index": 1, "delta": "o."},
        {"type": "response.completed", "response": {}},
    ]
    reply = decode(
        make_codec(), make_request(stream=True), [b"".join(map(event_of, events))]
    ).response
    assert reply is not None
    assert reply.message.content == (d.Text("One. "), d.Text("Two."))
