"""The state of a message whose wire has no blocks is sealed, and put back into its place."""

import pytest
from msgspec.structs import replace

import dragoman as d
from dragoman.wire.sealed_message import restore_message, returns_state, seal_message

CLAUDE = d.Issuer("anthropic", "a-vendor", "m")


def signed(signature: str) -> d.Continuity:
    return d.Continuity(signature, issuer=CLAUDE)


MESSAGES = {
    "a thought, a text and two calls": (
        d.Thinking("Hm.", signed("1")),
        d.Text("I ask."),
        d.ToolCall("c1", "f", {}, signed("2")),
        d.ToolCall("c2", "f", {}),
    ),
    "a thought between calls": (
        d.ToolCall("c1", "f", {}),
        d.Thinking("Again.", signed("1")),
        d.ToolCall("c2", "f", {}),
    ),
    "hidden thinking": (
        d.RedactedThinking("x", d.Continuity(issuer=CLAUDE)),
        d.ToolCall("c1", "f", {}),
    ),
    "a thought without state": (d.Thinking("Hm."), d.Text("Yes."), d.ToolCall("c1", "f", {})),
    "nothing to seal": (d.Text("Yes."), d.ToolCall("c1", "f", {})),
}


@pytest.mark.parametrize("content", MESSAGES.values(), ids=MESSAGES)
def test_message_is_restored_from_what_a_client_sends_back(
    content: tuple[d.Thinking | d.RedactedThinking | d.Text | d.ToolCall, ...],
) -> None:
    tokens = seal_message(content)
    bare = [
        replace(each, continuity=None) for each in content if isinstance(each, d.Text | d.ToolCall)
    ]
    message = d.Assistant(tuple(bare))
    assert not returns_state(message)
    restored = restore_message(message, tokens)
    assert [type(each) for each in restored.content] == [type(each) for each in content]
    for got, given in zip(restored.content, content, strict=True):
        state = getattr(given, "continuity", None)
        if state is not None:
            assert got.continuity is not None
            assert got.continuity.signature == state.signature
            assert got.continuity.issuer == CLAUDE
        else:
            # Empty state would be reported as a loss by the codec of each other wire.
            assert got.continuity is None
    assert returns_state(restored) == any(each.continuity for each in content)


def test_state_of_a_call_is_bound_to_the_id_that_the_client_repeats() -> None:
    tokens = seal_message((d.ToolCall("made", "f", {}, signed("1")),))
    restored = restore_message(d.Assistant((d.ToolCall("repeated", "f", {}),)), tokens)
    [call] = restored.content
    assert isinstance(call, d.ToolCall)
    assert call.id == "repeated"
    assert call.continuity is not None
    assert call.continuity.replayable


def test_state_of_a_call_that_the_client_left_out_is_dropped() -> None:
    call = d.ToolCall("c1", "f", {}, signed("1"))
    tokens = seal_message((d.Text("I ask."), call))
    restored = restore_message(d.Assistant("I ask."), tokens)
    assert restored.tool_calls == ()


def test_thinking_that_the_client_sent_itself_is_replaced() -> None:
    tokens = seal_message((d.Thinking("Hm.", signed("1")), d.Text("Yes.")))
    given = d.Assistant((d.Thinking("A part"), d.Text("Yes.")))
    restored = restore_message(given, [*tokens, "not sealed"])
    assert [getattr(each, "text", "") for each in restored.content] == ["Hm.", "Yes."]
