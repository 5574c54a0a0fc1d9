"""Provider state is sent back to its issuer only, through any client."""

import base64
import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.events import Assembler, MessageComplete
from dragoman.messages import (
    Assistant,
    Continuity,
    Issuer,
    Opaque,
    Request,
    Text,
    Thinking,
    ToolCall,
    User,
)
from dragoman.wire import SERVER_CODECS, Asked
from dragoman.wire.seal import (
    deliver,
    holds_sealed,
    is_foreign,
    read_thought,
    seal_call,
    seal_text,
    sign_thought,
    unseal,
)
from tests import strategies as some

from .vendor_turns import read_bedrock

GEMINI = Issuer("gemini", "a-vendor", "a-model")


@given(
    st.text(),
    st.text(min_size=1),
    some.json_objects,
    st.sampled_from([GEMINI, Issuer("anthropic"), Issuer("responses", None, "m"), None]),
)
@settings(max_examples=30, deadline=None)
def test_sealed_state_is_unsealed_unchanged(
    text: str, signature: str, opaque: dict[str, Any], issuer: Issuer | None
) -> None:
    state = Continuity(signature, opaque, issuer)
    signed = sign_thought(text, state, "anthropic")
    if issuer is None or issuer.wire == "anthropic":
        assert signed == signature
        return
    assert signed is not None
    assert read_thought(text, signed, "anthropic") == Thinking(text, state)
    urlsafe = signed.replace("+", "-").replace("/", "_")
    assert read_thought(text, urlsafe, "gemini") == Thinking(text, state)
    changed = read_thought(text + ".", signed, "anthropic")
    assert changed == Thinking(text + ".", replace(state, replayable=False))


DEEP = base64.b64encode(b"dragoman:" + b"[" * 5000 + b"]" * 5000).decode()


@pytest.mark.parametrize(
    "text", ["abc", "ZHJhZ29tYW46", "ZHJhZ29tYW46e30=", "ZHJhZ29tYW46!", DEEP]
)
def test_value_that_is_not_sealed_belongs_to_the_current_wire(text: str) -> None:
    assert unseal(text) is None
    own = Continuity(text, issuer=Issuer("anthropic"))
    assert read_thought("Hm", text, "anthropic") == Thinking("Hm", own)


def test_signature_that_version_0_2_sealed_is_unsealed() -> None:
    payload = json.dumps(["gemini", "a-vendor", "a-model", "signed"]).encode()
    old = base64.b64encode(b"dragoman:" + payload).decode()
    assert read_thought("any", old, "anthropic") == Thinking(
        "any", Continuity("signed", None, GEMINI)
    )


def test_state_of_a_call_that_the_client_left_out_is_left_out() -> None:
    token = seal_call("c1", Continuity("s", issuer=GEMINI), "anthropic")
    carried = read_thought("", token, "anthropic")
    assert deliver([carried, Text("Hi")]) == [Text("Hi")]
    call = ToolCall("c1", "f", {})
    assert deliver([call, carried]) == [replace(call, continuity=Continuity("s", issuer=GEMINI))]


def test_state_of_a_text_that_the_client_left_out_has_no_letters() -> None:
    state = Continuity("s", issuer=GEMINI)
    carried = read_thought("", seal_text(state, "anthropic", alone=False), "anthropic")
    assert deliver([carried]) == [Text("", state)]


@pytest.mark.parametrize(
    "state",
    [
        None,
        Continuity("s", issuer=GEMINI, replayable=False),
        Continuity(issuer=GEMINI),
        Continuity(opaque={"citations": [1]}, issuer=GEMINI),
        Continuity(opaque={}, issuer=GEMINI),
    ],
)
def test_state_that_need_not_go_back_is_not_sealed(state: Continuity | None) -> None:
    assert sign_thought("Hm", state, "anthropic") is None
    assert seal_call("c", state, "anthropic") is None
    assert seal_text(state, "anthropic", alone=False) is None


def answer(wire: str, stream: bool, issuer: Issuer) -> bytes:
    out = Assembler(model="m", issuer=issuer)
    out.start()
    out.thinking("Hm.")
    out.attach(Thinking, "signed")
    out.text("Yes.")
    out.whole(Opaque({"type": "theirs"}))
    out.finish("stop")
    asked = Asked(request=Request([User("Hi")], model="m", stream=stream))
    encoder = SERVER_CODECS[wire].encoder(asked)
    return b"".join([encoder.feed(event) for event in out.take()]) + encoder.end()


def said_again(wire: str, body: bytes) -> Any:
    """Return the assistant message that the server side decodes when a client sends a reply back
    in its next request.
    """
    hello = {"role": "user", "content": "Hi"}
    said = json.loads(body)
    sent: dict[str, Any]
    if wire == "anthropic":
        turns = [hello, {"role": "assistant", "content": said["content"]}, hello]
        sent = {"model": "m", "max_tokens": 9, "messages": turns}
    else:
        sent = {"model": "m", "input": [hello, *said["output"], hello]}
    return SERVER_CODECS[wire].decode(msgspec.json.encode(sent)).request.messages[1]


@pytest.mark.parametrize("wire", ["anthropic", "responses"])
def test_block_from_another_wire_keeps_its_issuer_through_the_client(wire: str) -> None:
    message = said_again(wire, answer(wire, False, GEMINI))
    (block,) = [block for block in message.content if isinstance(block, Opaque)]
    assert block.data == {"type": "theirs"}
    assert block.continuity is not None
    assert block.continuity.issuer == GEMINI


def test_signature_from_another_wire_keeps_its_issuer_through_the_client() -> None:
    thought = said_again("anthropic", answer("anthropic", False, GEMINI)).content[0]
    assert isinstance(thought, Thinking)
    assert thought.continuity is not None
    assert thought.continuity.signature == "signed"
    assert thought.continuity.issuer == GEMINI
    own = said_again("anthropic", answer("anthropic", False, Issuer("anthropic"))).content[0]
    assert own.continuity.signature == "signed"
    assert b'"signed"' not in answer("anthropic", True, GEMINI)
    assert b'"signed"' in answer("anthropic", True, Issuer("anthropic"))
    assert b'"signed"' not in answer("gemini", True, Issuer("anthropic"))
    assert b'"signed"' in answer("gemini", True, GEMINI)


@pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
def test_opaque_blocks_come_back_in_their_places_from_a_bedrock_client(stream: bool) -> None:
    out = Assembler(model="m", issuer=Issuer("anthropic"))
    out.start()
    out.thinking("Hm.")
    out.attach(Thinking, "signed")
    out.whole(Opaque({"type": "server_tool_use", "id": "s1"}))
    out.whole(Opaque({"type": "web_search_tool_result", "tool_use_id": "s1"}))
    out.text("Found.")
    out.whole(Opaque({"type": "server_tool_use", "id": "s2"}))
    out.tool_start(0, "c", "f")
    out.tool_input(0, "{}")
    out.whole(Opaque({"type": "compaction"}))
    out.finish("tool_calls")
    asked = Asked(request=Request([User("Hi")], model="m", stream=stream))
    encoder = SERVER_CODECS["bedrock"].encoder(asked)
    events = out.take()
    reply = b"".join([encoder.feed(event) for event in events]) + encoder.end()
    content = read_bedrock(reply, stream)["content"]
    body = {"messages": [{"role": "assistant", "content": content}]}
    read = SERVER_CODECS["bedrock"].decode(msgspec.json.encode(body), "/model/m/converse")
    ending = events[-1]
    assert isinstance(ending, MessageComplete)
    sent = [(type(each), getattr(each, "data", None)) for each in ending.final_content]
    assert len(sent) == 7
    back = read.request.messages[0].content
    assert [(type(each), getattr(each, "data", None)) for each in back] == sent


def test_sealed_provider_state_is_detected_in_request_bytes() -> None:
    assert holds_sealed(answer("anthropic", False, GEMINI))
    state = Continuity("signed", issuer=GEMINI)
    sealed = sign_thought("Hm", state, "anthropic")
    own = sign_thought("Hm", state, "gemini")
    assert holds_sealed(json.dumps({"signature": sealed}).encode())
    assert holds_sealed(b'{"type":"opaque"}')
    assert not holds_sealed(json.dumps({"signature": own}).encode())


@pytest.mark.parametrize("client", ["anthropic", "bedrock", "gemini", "responses"])
def test_state_that_is_known_only_at_the_end_of_a_stream_is_sent_then(client: str) -> None:
    out = Assembler(model="m")
    out.start()
    out.text("Hello")
    out.block_end()
    out.tool_start(0, "c1", "f")
    out.tool_input(0, "{}")
    out.block_end(0)
    out.finish("tool_calls")
    *events, ending = out.take()
    state = Continuity("signed", None, GEMINI if client != "gemini" else Issuer("anthropic"))
    assert isinstance(ending, MessageComplete)
    final = tuple(replace(block, continuity=state) for block in ending.final_content)  # type: ignore[type-var]
    encoder = SERVER_CODECS[client].encoder(
        Asked(request=Request([User("Hi")], model="m", stream=True))
    )
    for event in events:
        encoder.feed(event)
    written = encoder.feed(replace(ending, final_content=final)) + encoder.end()
    tokens = {each.decode() for each in re.findall(rb"ZHJhZ29tYW[\w+/=-]*", written)}
    kinds = {found.kind for each in tokens if (found := unseal(each)) is not None}
    assert kinds == {"text", "call"}


def test_sealed_thought_is_not_joined_with_a_signed_one_before_it() -> None:
    token = sign_thought("AB", Continuity("s", None, Issuer("anthropic")), "gemini")
    parts = [
        {"text": "A", "thought": True, "thoughtSignature": "b3du"},
        {"text": "B", "thought": True, "thoughtSignature": token},
    ]
    contents = [{"role": "user", "parts": [{"text": "Hi"}]}, {"role": "model", "parts": parts}]
    path = "/v1beta/models/m:generateContent"
    asked = SERVER_CODECS["gemini"].decode({"contents": contents}, path)
    turn = asked.request.messages[1]
    assert isinstance(turn, Assistant)
    states = [(block.text, block.continuity.replayable) for block in turn.content]  # type: ignore[union-attr]
    assert states == [("A", True), ("B", False)]


def test_state_that_a_gateway_behind_this_one_has_sealed_is_foreign() -> None:
    token = sign_thought("Hm.", Continuity("s", None, Issuer("anthropic")), "responses")
    assert token is not None
    own = Issuer("responses")
    assert is_foreign(Continuity(None, {"encrypted_content": token}, own), "responses")
    assert not is_foreign(Continuity(None, {"encrypted_content": "plain"}, own), "responses")


def test_signature_that_a_gateway_behind_this_one_has_sealed_is_foreign() -> None:
    token = sign_thought("Hm.", Continuity("s", None, Issuer("responses")), "anthropic")
    own = Issuer("anthropic")
    assert is_foreign(Continuity(token, None, own), "anthropic")
    assert not is_foreign(Continuity("plain", None, own), "anthropic")
