"""Chat clients send state back in ``reasoning_details`` and ``extra_content``."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import dragoman as d
from dragoman.events import Assembler
from dragoman.messages import AssistantBlock, Continuity, Issuer
from dragoman.wire import SERVER_CODECS, Asked
from dragoman.wire.openai.state import write_details, write_extra

from .cases import decode, find_cases
from .pairs import WIRES, serve
from .survival import send_on
from .vendor_turns import read_openai

GEMINI = Issuer("gemini", "a-vendor", "a-model")
CLAUDE = Issuer("anthropic", "a-vendor", "a-model")
CHAT = Issuer("openai")
SERVER = SERVER_CODECS["openai"]
NATIVE = [
    {"type": "reasoning.text", "text": "Hm.", "signature": "s", "format": "x-v1", "index": 0},
    {"type": "reasoning.encrypted", "data": "e", "id": "c1", "format": "x-v1", "index": 1},
]
EXTRA = {"google": {"thought_signature": "s"}}


def read_back(message: dict[str, Any]) -> Asked:
    """Return the request of a client that sends an assistant message back."""
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", **message}]
    return SERVER.decode(json.dumps({"model": "m", "messages": messages}).encode())


def blocks_of(message: dict[str, Any]) -> tuple[AssistantBlock, ...]:
    asked = read_back(message)
    assert asked.warnings == ()
    assert asked.left == ()
    found = asked.request.messages[1]
    assert isinstance(found, d.Assistant)
    return found.content


def call_of(block: d.ToolCall) -> dict[str, Any]:
    function = {"name": block.name, "arguments": json.dumps(block.arguments)}
    return {"id": block.id, "type": "function", "function": function}


# --- a stream has what a body has ----------------------------------------------------------------


def folded(message: Any) -> dict[str, Any]:
    """Return the fields of a message that are not empty, as the vendor's SDK has them."""
    fields = message.model_dump(exclude={"audio", "parsed"})
    for call in fields.get("tool_calls") or ():
        call.pop("index", None)
        call["function"].pop("parsed_arguments", None)
    return {name: value for name, value in fields.items() if value not in (None, "", [])}


@pytest.mark.parametrize("wire", sorted(WIRES))
def test_stream_has_the_fields_of_the_body(wire: str) -> None:
    for case in find_cases(wire, "events.jsonl"):
        heard = decode(case.codec(), case.request, [case.reply or b""])
        ending = heard.events[-1] if heard.events else None
        if heard.error is not None or not isinstance(ending, d.MessageComplete):
            continue
        if ending.finish_reason not in ("stop", "tool_calls"):
            continue
        replies = []
        for stream in (True, False):
            request = d.Request([d.User("Hi")], model="m", stream=stream)
            written = b"".join(serve("openai", request, heard.events, None))
            replies.append(folded(read_openai(written, stream)))
        assert replies[0] == replies[1], case


def test_state_is_sent_before_the_text_or_call_that_it_leads() -> None:
    out = Assembler(model="m", issuer=CLAUDE)
    out.start()
    out.thinking("Hm.")
    out.attach(d.Thinking, "s")
    out.block_end()
    out.whole(d.RedactedThinking("hidden"))
    out.tool_start(0, "c1", "f")
    out.tool_input(0, "{}")
    out.block_end(0)
    out.finish("tool_calls")
    events = out.take()
    written = send_on(events, "openai", stream=True).decode()
    deltas = [
        json.loads(line[6:])["choices"][0]["delta"]
        for line in written.split("\n\n")
        if line.startswith("data: {")
    ]
    fields = [name for delta in deltas for name in delta]
    assert fields.index("reasoning_content") < fields.index("reasoning_details")
    assert fields.index("reasoning_details") < fields.index("tool_calls")
    assert fields.count("reasoning_details") == 1


def test_reply_without_state_has_no_fields_of_state() -> None:
    out = Assembler(model="m", issuer=GEMINI)
    out.start()
    out.thinking("Hm.")
    out.text("I ask.")
    out.tool_start(0, "c1", "f")
    out.tool_input(0, "{}")
    out.finish("tool_calls")
    events = out.take()
    for stream in (True, False):
        written = send_on(events, "openai", stream=stream)
        assert b"reasoning_content" in written
        assert b"reasoning_details" not in written
        assert b"extra_content" not in written


# --- what a client sends back --------------------------------------------------------------------

_STATE = Continuity("s", {"x": 1}, CLAUDE)
_LETTERS = st.text("abc \U0001f600", min_size=1, max_size=4)
_THOUGHTS = st.one_of(
    st.builds(d.Thinking, st.text("xyz", max_size=3), st.just(_STATE)),
    st.builds(d.RedactedThinking, _LETTERS, st.just(Continuity(issuer=CLAUDE))),
)
_TEXTS = st.builds(d.Text, _LETTERS, st.just(Continuity("t", issuer=GEMINI)))
_CALLS = st.sampled_from([None, Continuity("c", issuer=GEMINI)])


@given(
    st.lists(st.one_of(_THOUGHTS, _TEXTS), max_size=5),
    st.lists(st.one_of(_THOUGHTS, _CALLS), max_size=5),
)
@settings(max_examples=200, deadline=None)
def test_blocks_come_back_in_their_order(first: list[Any], later: list[Any]) -> None:
    blocks = [
        block
        if block is not None and not isinstance(block, Continuity)
        else d.ToolCall(f"c{at}", "f", {}, block)
        for at, block in enumerate(later)
    ]
    blocks = [*first, *blocks]
    calls = [block for block in blocks if isinstance(block, d.ToolCall)]
    content = "".join([block.text for block in blocks if isinstance(block, d.Text)])
    message = {
        "content": content,
        "reasoning_details": write_details(blocks),
        "tool_calls": [call_of(block) for block in calls],
    }
    assert list(blocks_of(message)) == blocks
    # A client may know ``extra_content`` only.
    for call, record in zip(calls, message["tool_calls"], strict=True):
        record.update(write_extra(call.id, call.continuity))
    del message["reasoning_details"]
    found = blocks_of(message)
    assert [block for block in found if isinstance(block, d.ToolCall)] == calls


def test_opaque_block_comes_back_in_its_place() -> None:
    opaque = d.Opaque({"type": "theirs"}, Continuity(issuer=CLAUDE))
    blocks = [d.Text("I "), opaque, d.Text("ask."), d.Thinking("Hm.", _STATE)]
    message = {"content": "I ask.", "reasoning_details": write_details(blocks)}
    assert list(blocks_of(message)) == blocks


def test_thought_without_state_is_read_from_the_text() -> None:
    thoughts = [d.Thinking("One."), d.Thinking("Two.", _STATE)]
    details = write_details(thoughts)
    for text, found in (
        ("One.Two.", thoughts),
        ("Two.", thoughts[1:]),
        (None, thoughts[1:]),
        ("Something else.", thoughts[1:]),
    ):
        message = {"content": "", "reasoning_content": text, "reasoning_details": details}
        assert list(blocks_of(message)) == found


def test_client_may_shorten_the_text() -> None:
    text = d.Text("I ask.  ", Continuity("t", issuer=GEMINI))
    blocks = [text, d.Thinking("Hm.", _STATE), d.ToolCall("c1", "f", {})]
    details = write_details(blocks)
    calls = [call_of(d.ToolCall("c1", "f", {}))]
    message = {"content": "I ask.", "reasoning_details": details, "tool_calls": calls}
    assert list(blocks_of(message)) == [replace(text, text="I ask."), *blocks[1:]]


def test_details_of_another_server_stay_as_they_are() -> None:
    state = Continuity(opaque=NATIVE, issuer=CHAT)
    text = {"content": "Yes.", "reasoning_details": NATIVE}
    assert blocks_of(text) == (d.Thinking("Hm.", state), d.Text("Yes."))
    assert blocks_of({**text, "reasoning_content": "Hm!"}) == (
        d.Thinking("Hm!", state),
        d.Text("Yes."),
    )
    assert write_details([d.Thinking("Hm.", state), d.Text("Yes.")]) == NATIVE


def test_details_that_clients_would_join_are_sealed() -> None:
    """OpenRouter numbers the signature of a text, which arrives after it, from zero again."""
    late = [{"type": "reasoning.encrypted", "data": "e", "index": 0}]
    blocks = [
        d.Thinking("Hm.", Continuity(opaque=NATIVE, issuer=CHAT)),
        d.Text("Yes."),
        d.Thinking("", Continuity(opaque=late, issuer=Issuer("openai", "a-vendor", "m"))),
        d.Thinking("", Continuity(opaque=["x"], issuer=CHAT)),
    ]
    details = write_details(blocks)
    assert details[:2] == NATIVE
    assert [detail["index"] for detail in details] == [0, 1, 2, 3]
    message = {"content": "Yes.", "reasoning_content": "Hm.", "reasoning_details": details}
    assert list(blocks_of(message)) == blocks


def test_extra_content_of_another_server_stays_as_it_is() -> None:
    state = Continuity(opaque={"extra_content": EXTRA}, issuer=CHAT)
    call = d.ToolCall("c1", "f", {})
    plain = call_of(d.ToolCall("c2", "f", {}))
    record = {"tool_calls": [{**call_of(call), "extra_content": EXTRA}, plain]}
    found = blocks_of({"content": None, **record})
    assert [block.continuity for block in found] == [state, None]
    assert write_extra("c1", state) == {"extra_content": EXTRA}
    assert write_details(found) == []


def test_record_of_a_tool_that_the_server_ran_is_not_state() -> None:
    assert write_details([d.Opaque({"type": "ran"}, Continuity(issuer=CHAT))]) == []


def test_state_of_a_call_arrives_although_another_call_has_none() -> None:
    calls = [d.ToolCall("c1", "f", {}), d.ToolCall("c2", "f", {}, Continuity("c", issuer=GEMINI))]
    written = [{**call_of(call), **write_extra(call.id, call.continuity)} for call in calls]
    assert list(blocks_of({"content": None, "tool_calls": written})) == calls


@pytest.mark.parametrize("details", ["Hm.", ["Hm."], {"type": "reasoning.text"}])
def test_details_that_are_not_a_list_of_objects_are_reported(details: Any) -> None:
    asked = read_back({"content": "Yes.", "reasoning_details": details})
    assert [each.path for each in asked.left] == ["messages[1].reasoning_details"]


def test_extra_content_that_is_not_an_object_is_reported() -> None:
    call = {**call_of(d.ToolCall("c1", "f", {})), "extra_content": "s"}
    asked = read_back({"content": None, "tool_calls": [call]})
    assert [each.path for each in asked.left] == ["messages[1].tool_calls[0].extra_content"]
