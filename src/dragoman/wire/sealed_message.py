"""Seal the state of a message whose wire has no blocks, and put it back into such a message.

Chat Completions, Ollama and Cohere have one text and a list of calls in a message, so each piece
of sealed state also has its place between them. A client may send the sealed state back, or a
server keeps it for the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from .. import messages as m
from .seal import Carried, Sealed, deliver, has_state, open_sealed, seal, seal_block, unseal


def returns_state(message: m.Message) -> bool:
    """Return whether a client sent the state of a message back, or a part of it."""
    content = message.content if isinstance(message, m.Assistant) else ()
    return any(
        isinstance(block, m.RedactedThinking) or has_state(block.continuity) for block in content
    )


def seal_message(blocks: Sequence[m.AssistantBlock]) -> list[str]:
    """Return sealed texts with the thinking and the state of a message.

    Thinking without state is included, since some models read it in the following requests.
    """
    tokens: list[str] = []
    characters = 0
    calls = 0
    for block in blocks:
        characters += len(block.text) if isinstance(block, m.Text) else 0
        place = (characters, calls)
        token = seal_block(block, place)
        if token is None and isinstance(block, m.Thinking) and block.text:
            token = seal("thinking", m.Continuity(), text=block.text, place=place)
        if token is not None:
            tokens.append(token)
        calls += isinstance(block, m.ToolCall)
    return tokens


def restore_message(message: m.Assistant, tokens: Sequence[str]) -> m.Assistant:
    """Return a message with the thinking and the state that ``seal_message`` sealed.

    Its own thinking is replaced: the client may have sent some of it back, without state.
    """
    opened = [unseal(token) for token in tokens]
    sealed = [_rebind(each, message.tool_calls) for each in opened if each is not None]
    sealed.sort(key=lambda each: each.place)
    rest: list[m.AssistantBlock] = [
        block for block in message.content if not isinstance(block, m.Thinking)
    ]
    return replace(message, content=put_sealed(sealed, rest))


def _rebind(sealed: Sealed, calls: Sequence[m.ToolCall]) -> Sealed:
    """Return the sealed state of a call with the id that the call has now, if its wire has none."""
    number = sealed.place[1]
    if sealed.kind != "call" or number >= len(calls):
        return sealed
    return replace(sealed, bound=calls[number].id)


def put_sealed(sealed: Sequence[Sealed], blocks: list[m.AssistantBlock]) -> list[m.AssistantBlock]:
    """Put the sealed blocks of a message in their places between its texts and calls."""
    made: list[m.AssistantBlock | Carried] = []
    if blocks and isinstance(blocks[0], m.Thinking):
        thought = replace(blocks[0], text=_other_thoughts(blocks[0].text, sealed))
        made += [thought] if thought.text or thought.continuity is not None else []
        blocks = blocks[1:]
    pending = list(sealed)
    characters = calls = 0
    for block in _split(blocks, sealed):
        while pending and _is_before(pending[0], block, characters, calls):
            made.append(open_sealed(pending.pop(0)))
        made.append(block)
        characters += len(block.text) if isinstance(block, m.Text) else 0
        calls += isinstance(block, m.ToolCall)
    return deliver([*made, *map(open_sealed, pending)])


def _is_before(sealed: Sealed, block: m.AssistantBlock, characters: int, calls: int) -> bool:
    """Return whether a sealed block comes before a text or a call, which starts at this place.

    Texts come before calls in a message of this wire.
    """
    if isinstance(block, m.ToolCall):
        return sealed.place[1] <= calls
    return not sealed.place[1] and sealed.place[0] <= characters


def _split(blocks: Sequence[m.AssistantBlock], sealed: Sequence[Sealed]) -> list[m.AssistantBlock]:
    """Split the texts of a message, which this wire joins, at the places of sealed blocks."""
    ends = [each.place[0] for each in sealed]
    starts = [each.place[0] - int(each.bound) for each in sealed if each.bound.isdecimal()]
    made: list[m.AssistantBlock] = []
    characters = 0
    for block in blocks:
        if type(block) is not m.Text:
            made.append(block)
            continue
        stop = len(block.text)
        inside = {cut - characters for cut in (*starts, *ends)}
        cuts = [0, *sorted([cut for cut in inside if 0 < cut < stop]), stop]
        made += [replace(block, text=block.text[cut:end]) for cut, end in pairwise(cuts)]
        characters += stop
    return made


def _other_thoughts(text: str, sealed: Sequence[Sealed]) -> str:
    """Return the thinking of a message without the sealed thoughts.

    A thought without state is in ``reasoning_content`` only. If a client changed that text, it is
    ignored, because the sealed thoughts cannot be found in it.
    """
    for each in sealed:
        before, found, after = text.partition(each.text) if each.text else ("", "", text)
        if each.text and not found:
            return ""
        text = before + after
    return text
