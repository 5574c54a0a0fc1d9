"""Provider state is sent back to its issuer only, through any client."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.events import Assembler
from dragoman.messages import Issuer, Opaque, Request, Thinking, User
from dragoman.wire import SERVER_CODECS, Asked
from dragoman.wire.seal import holds_sealed, seal, unseal

GEMINI = Issuer("gemini", "a-vendor", "a-model")


@given(
    st.text(min_size=1),
    st.sampled_from([GEMINI, Issuer("anthropic"), Issuer("responses", None, "m")]),
)
@settings(max_examples=30, deadline=None)
def test_sealed_signature_is_unsealed_unchanged(signature: str, issuer: Issuer) -> None:
    sealed = seal(signature, issuer, "anthropic")
    if issuer.wire == "anthropic":
        assert sealed == signature
    else:
        assert unseal(sealed, "anthropic") == (signature, issuer)


@pytest.mark.parametrize("text", ["abc", "ZHJhZ29tYW46", "ZHJhZ29tYW46e30=", "ZHJhZ29tYW46!"])
def test_value_that_is_not_sealed_belongs_to_the_current_wire(text: str) -> None:
    assert unseal(text, "anthropic") == (text, Issuer("anthropic"))


def answer(wire: str, stream: bool, issuer: Issuer) -> bytes:
    out = Assembler(model="m", issuer=issuer)
    out.start()
    out.thinking("Hm.")
    out.attach(Thinking, "signed")
    out.text("Yes.")
    out.whole(Opaque({"type": "theirs"}))
    out.finish("stop")
    asked = Asked(Request([User("Hi")], model="m", stream=stream), issuer=issuer)
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
    assert (thought.continuity.signature, thought.continuity.issuer) == ("signed", GEMINI)
    own = said_again("anthropic", answer("anthropic", False, Issuer("anthropic"))).content[0]
    assert own.continuity.signature == "signed"
    assert b'"signed"' not in answer("anthropic", True, GEMINI)
    assert b'"signed"' in answer("anthropic", True, Issuer("anthropic"))
    assert b'"signed"' not in answer("gemini", True, Issuer("anthropic"))
    assert b'"signed"' in answer("gemini", True, GEMINI)


def test_sealed_provider_state_is_detected_in_request_bytes() -> None:
    assert holds_sealed(answer("anthropic", False, GEMINI))
    assert holds_sealed(json.dumps({"signature": seal("signed", GEMINI, "anthropic")}).encode())
    assert holds_sealed(b'{"type":"opaque"}')
    assert not holds_sealed(json.dumps({"signature": seal("signed", GEMINI, "gemini")}).encode())
