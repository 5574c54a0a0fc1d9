"""Opaque state of a reply survives every client whose wire has a place for it."""

from typing import Any

import pytest

import dragoman as d
from dragoman.wire.gemini.names import to_standard_base64
from dragoman.wire.seal import has_state

from .survival import REPLIES, answer, return_from
from .vendor_turns import SAY

each_kind = pytest.mark.parametrize(("wire", "name"), REPLIES)
each_client = pytest.mark.parametrize("client", SAY)
each_form = pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])


def states_of(message: Any, client: str) -> list[Any]:
    """Return the blocks with state; an issuer on the client's wire is known by its wire alone."""
    found = []
    for block in message.content:
        is_hidden = isinstance(block, d.RedactedThinking | d.Opaque)
        if not is_hidden and not has_state(block.continuity):
            continue
        state = block.continuity
        if isinstance(block, d.Thinking) and is_plain(state.opaque):
            continue
        issuer = (state.issuer.wire, state.issuer.vendor, state.issuer.model)
        issuer = issuer[:1] if issuer[0] == client else issuer
        # Google's SDK reads signatures as bytes, and writes URL-safe base64.
        signature = to_standard_base64(state.signature or "")
        found.append((type(block), *named(block), signature, state.opaque, issuer))
        assert state.replayable
    return found


def is_plain(item: Any) -> bool:
    """Return whether a reasoning item of the responses wire has no encrypted content."""
    return isinstance(item, dict) and "summary" in item and not item.get("encrypted_content")


def named(block: Any) -> tuple[Any, ...]:
    if isinstance(block, d.ToolCall):
        return block.id, block.arguments
    return (block.data,) if hasattr(block, "data") else (block.text,)


@each_form
@each_client
@each_kind
def test_state_arrives_unchanged_at_its_issuer(
    wire: str, name: str, client: str, stream: bool
) -> None:
    events = answer(wire, name)
    ending = events[-1]
    assert isinstance(ending, d.MessageComplete)
    _, message, *_ = return_from(events, client, stream=stream)
    given = d.Assistant(ending.final_content)
    assert states_of(message, client) == states_of(given, client)
    assert [call.id for call in message.tool_calls] == [call.id for call in given.tool_calls]
    assert message.text == given.text
