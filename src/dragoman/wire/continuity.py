"""Opaque state of a model: who made it, and whether it may go back."""

from __future__ import annotations

import re

from ..citations import SOURCES
from ..messages import Continuity, Image, Issuer, Text, ToolResult, User
from .codec import Note, Notes

# Dates in every writing, stages and counted editions: all of them end the same model's name.
_EDITION = re.compile(
    r"(?:[-@:](?:\d{6,8}|\d{4}-\d\d-\d\d|\d\d-\d\d(?:\d\d)?|\d{3}|latest|preview|exp|default)){1,8}$",
)


def model_line(model: str) -> str:
    """A model's name without date, edition and stage: ``gemini-2.5-flash-preview-09-2025`` is ``gemini-2.5-flash``."""
    return _EDITION.sub("", model.lower().removeprefix("models/"))


def is_ours(state: Continuity | None, home: Issuer) -> bool:
    """Was this state made, whole, by the wire, the vendor and the model line it would go to?"""
    if state is None or state.issuer is None or not state.replayable or state.issuer.wire != home.wire:
        return False
    vendor, model = state.issuer.vendor, state.issuer.model
    if vendor and home.vendor and vendor != home.vendor:
        return False
    return not model or not home.model or model_line(model) == model_line(home.model)


def is_welcome(state: Continuity | None, home: Issuer) -> bool:
    """As ``is_ours``; state without an issuer belongs to the one wire that has a place for its kind."""
    return is_ours(state, home) or (state is not None and state.issuer is None and state.replayable)


def drop_state(state: Continuity, wire: str, path: str, notes: Notes, why: str) -> None:
    """Report state of a text or a call that is not sent. Sources of the same wire are for the reader alone: no loss."""
    sources = isinstance(state.opaque, dict) and bool(state.opaque) and state.opaque.keys() <= SOURCES
    if sources and state.signature is None and state.issuer is not None and state.issuer.wire == wire:
        note = "citations are for the reader; the provider does not take them back"
        notes.items.append(Note("dropped", "citations_dropped", f"{path}.continuity", note, loss=False))
    else:
        notes.drop(f"{path}.continuity", "continuity_dropped", why)


def note_state(message: User | ToolResult, path: str, notes: Notes) -> None:
    """Opaque state belongs to what the model says; on what a user or a tool says no wire has a place for it."""
    for at, block in enumerate(() if isinstance(message.content, str) else message.content):
        if (type(block) is Text or type(block) is Image) and block.continuity is not None:
            why = "the wire has no place for state of what a user or a tool sends"
            notes.drop(f"{path}.content[{at}].continuity", "continuity_dropped", why)
