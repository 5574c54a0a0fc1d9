"""Opaque state of a reply survives every client whose wire has a place for it."""

import json
import re
from typing import Any

import pytest

import dragoman as d
from dragoman.wire import SERVER_CODECS
from dragoman.wire.gemini.names import to_standard_base64
from dragoman.wire.json import dig
from dragoman.wire.seal import unseal

from .cases import decode, find_cases, plain_request
from .pairs import WIRES, hear, serve
from .survival import (
    PAGE,
    REPLIES,
    answer,
    needs_return,
    return_from,
    send_on,
    with_table,
)
from .vendor_turns import SAY

each_kind = pytest.mark.parametrize(("wire", "name"), REPLIES)
each_client = pytest.mark.parametrize("client", SAY)
each_form = pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])


def states_of(message: Any, client: str) -> list[Any]:
    """Return the blocks with state; an issuer on the client's wire is known by its wire alone."""
    found = []
    for block in message.content:
        if not needs_return(block):
            continue
        state = block.continuity
        issuer = (state.issuer.wire, state.issuer.vendor, state.issuer.model)
        issuer = issuer[:1] if issuer[0] == client else issuer
        # Google's SDK reads signatures as bytes, and writes URL-safe base64.
        signature = to_standard_base64(state.signature or "")
        found.append((type(block), *named(block), signature, state.opaque, issuer))
        assert state.replayable
    return found


def named(block: Any) -> tuple[Any, ...]:
    if isinstance(block, d.ToolCall):
        return block.id, block.arguments
    if isinstance(block, d.Image | d.Audio):
        return (block.source, block.media_type)
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
    _, message, *_ = return_from(wire, name, client, stream)
    given = d.Assistant(ending.final_content)
    assert states_of(message, client) == states_of(given, client)
    assert [call.id for call in message.tool_calls] == [call.id for call in given.tool_calls]
    assert message.text == given.text


@each_form
def test_anthropic_client_that_omits_empty_and_unsigned_thoughts_returns_all(
    stream: bool,
) -> None:
    """pi omits thoughts without text, and makes texts of those without a signature."""
    events = answer("gemini", "signed call")
    sent = SAY["anthropic"](send_on(events, "anthropic", stream=stream), stream)
    body = json.loads(sent.body)
    body["messages"][1]["content"] = [
        block
        for block in body["messages"][1]["content"]
        if block["type"] != "thinking" or (block["thinking"].strip() and block["signature"])
    ]
    message = (
        SERVER_CODECS["anthropic"].decode(json.dumps(body).encode(), sent.path).request.messages[1]
    )
    ending = events[-1]
    assert isinstance(message, d.Assistant)
    assert isinstance(ending, d.MessageComplete)
    given = states_of(d.Assistant(ending.final_content), "anthropic")
    assert len(given) == 1
    assert states_of(message, "anthropic") == given
    [thought] = [block for block in message.content if isinstance(block, d.Thinking)]
    assert thought.text == "Hm."
    assert thought.continuity is None


def test_the_page_has_the_table_of_this_run() -> None:
    assert PAGE.read_text() == with_table(PAGE.read_text()), "run: python -m tests.wire.survival"


# --- a stream has what a body has ----------------------------------------------------------------


def folded(reply: d.Response, client: str) -> list[Any]:
    """Return what a client decoded from a reply, without what its wire cannot express.

    In a stream, blocks without deltas come last, so items may have other numbers in their ids.
    Chat Completions, Ollama and Cohere have fields for texts and calls, so a body has no order of
    them. Google's wire has no blocks, only parts.
    """
    found: list[Any] = []
    for block in reply.message.content:
        state = block.continuity
        kept = (state.signature, plain_id(state.opaque)) if state is not None else (None, None)
        found.append((type(block).__name__, named(block), kept))
    found.sort(key=is_late)
    if client == "gemini":
        return joined_parts(found)
    if client in ("openai", "ollama", "cohere"):
        order = ["Thinking", "Text", "ToolCall", "Opaque", "Image", "Audio"]
        found.sort(key=lambda each: order.index(each[0]))
        texts = ["".join([each[1][0] for each in found if each[0] == kind]) for kind in order[:2]]
        found = [texts, *[each for each in found if each[0] not in order[:2]]]
    return found


def plain_id(opaque: Any) -> Any:
    """Return a reasoning item without the number in the id that the gateway made."""
    if dig(opaque, "type") != "reasoning":
        return opaque
    return {**opaque, "id": re.sub(r"^rs_\d+_", "rs_", str(opaque["id"]))}


def joined_parts(found: list[Any]) -> list[Any]:
    """Join adjacent parts of one kind up to the signed one."""
    made: list[Any] = []
    for kind, shown, state in found:
        last = made[-1] if made and made[-1][0] == kind in ("Text", "Thinking") else None
        sealed = unseal(last[2][0]) if last is not None else None
        is_open = last is not None and (last[2] == (None, None) or not shown[0])
        if last is not None and is_open and (sealed is None or sealed.kind == "text"):
            made[-1] = (kind, (last[1][0] + shown[0],), state)
        else:
            made.append((kind, shown, state))
    return made


def is_late(found: Any) -> bool:
    """Return whether a stream has a block at its end, because the block has no deltas."""
    kind, shown, (signature, opaque) = found
    content = dig(opaque, "encrypted_content")
    tokens = (shown[0], signature, content)
    sealed = [unseal(each) for each in tokens if isinstance(each, str)]
    is_opaque = any(each is not None and each.kind == "opaque" for each in sealed)
    return is_opaque or kind in ("Opaque", "Image", "Audio")


# A stream has sent the call when these signatures arrive, and has them in a thought at the end.
SIGNED_LATE = ("arguments-with-a-late-signature", "call-with-extra-content")


@pytest.mark.parametrize("client", sorted(WIRES))
@pytest.mark.parametrize("wire", sorted(WIRES))
def test_stream_has_the_content_of_the_body(wire: str, client: str) -> None:
    for case in find_cases(wire, "events.jsonl"):
        heard = decode(case.codec(), case.request, [case.reply or b""])
        ending = heard.events[-1] if heard.events else None
        if heard.error is not None or not isinstance(ending, d.MessageComplete):
            continue
        if ending.finish_reason not in ("stop", "tool_calls") or case.name in SIGNED_LATE:
            continue
        replies = []
        for stream in (True, False):
            request = plain_request(stream=stream)
            pieces = serve(client, request, heard.events, None)
            reply = hear(client, request, pieces, judged=False).response
            assert reply is not None
            replies.append((folded(reply, client), reply.finish_reason, reply.usage))
        assert replies[0] == replies[1], case
