"""Decide whether opaque state (signatures, encrypted reasoning) may be sent back to a provider."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..citations import FOR_READERS
from ..messages import (
    Assistant,
    Continuity,
    Image,
    Issuer,
    Message,
    Opaque,
    Text,
    ToolResult,
    User,
)
from .codec import Note, Notes

# Suffixes that ``model_line`` removes: dates, stages such as "preview", and numbered editions.
_EDITION = re.compile(
    r"(?:[-@:](?:\d{6,8}|\d{4}-\d\d-\d\d|\d\d-\d\d(?:\d\d)?|\d{3}|latest|preview|exp|default)){1,8}$"
)


def model_line(model: str) -> str:
    """Return a model's name without date, edition and stage.

    ``gemini-2.5-flash-preview-09-2025`` becomes ``gemini-2.5-flash``.
    """
    return _EDITION.sub("", model.lower().removeprefix("models/"))


def is_ours(state: Continuity | None, home: Issuer) -> bool:
    """Return whether opaque state is complete and was issued by ``home``.

    The wire, the vendor and the model's name without its date must be the same. An unknown vendor
    or model matches any.
    """
    if (
        state is None
        or state.issuer is None
        or not state.replayable
        or state.issuer.wire != home.wire
    ):
        return False
    vendor, model = state.issuer.vendor, state.issuer.model
    if vendor and home.vendor and vendor != home.vendor:
        return False
    return not model or not home.model or model_line(model) == model_line(home.model)


def is_welcome(state: Continuity | None, home: Issuer) -> bool:
    """Return whether opaque state may be sent to ``home``.

    The state must be complete, and its issuer must be ``home`` or unknown.
    """
    return is_ours(state, home) or (
        state is not None and state.issuer is None and state.replayable
    )


def is_compaction(block: object) -> bool:
    """Return whether a block is a provider's compaction, which replaces the messages before it."""
    data = block.data if isinstance(block, Opaque) else None
    if not isinstance(data, dict) or data.get("type") != "compaction":
        return False
    return bool(data.get("content") or data.get("encrypted_content"))


def find_compaction(messages: Sequence[Message], home: Issuer) -> int | None:
    """Return the index of the last message with a compaction that ``home`` issued, if any."""
    for at, message in reversed([*enumerate(messages)]):
        for block in message.content if type(message) is Assistant else ():
            if is_compaction(block) and is_ours(block.continuity, home):
                return at
    return None


def drop_state(state: Continuity, wire: str, path: str, notes: Notes, why: str) -> None:
    """Report that opaque state of a text or a call is not sent.

    Citations that came from the same wire are not counted as a loss.
    """
    opaque, issuer = state.opaque, state.issuer
    is_citation = isinstance(opaque, dict) and bool(opaque) and opaque.keys() <= FOR_READERS
    is_own = issuer is not None and issuer.wire == wire
    if is_citation and is_own and state.signature is None:
        note = "citations are for the reader; the provider does not take them back"
        notes.items.append(
            Note("dropped", "citations_dropped", f"{path}.continuity", note, loss=False)
        )
    else:
        notes.drop(f"{path}.continuity", "continuity_dropped", why)


def note_state(message: User | ToolResult, path: str, notes: Notes) -> None:
    """Report opaque state of a user message or tool result. No wire has a field for such state."""
    for at, block in enumerate(() if isinstance(message.content, str) else message.content):
        if (type(block) is Text or type(block) is Image) and block.continuity is not None:
            why = "the wire has no place for state of what a user or a tool sends"
            notes.drop(f"{path}.content[{at}].continuity", "continuity_dropped", why)
