"""What every wire must know of a conversation: whose opaque state it is, and which result answers which call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..messages import Assistant, Continuity, Issuer, Message, Text, ToolCall, ToolResult, User
from .codec import Notes
from .projection import IdMap, IdRule

# Dates in every writing, stages and counted editions: all of them end the same model's name.
_EDITION = re.compile(
    r"(?:[-@:](?:\d{6,8}|\d{4}-\d\d-\d\d|\d\d-\d\d(?:\d\d)?|\d{3}|latest|preview|exp|default))+$",
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


def note_state(message: User | ToolResult, path: str, notes: Notes) -> None:
    """Opaque state belongs to what the model says; on what a user or a tool says no wire has a place for it."""
    for at, block in enumerate(() if isinstance(message.content, str) else message.content):
        if type(block) is Text and block.continuity is not None:
            why = "the wire has no place for state of such text"
            notes.drop(f"{path}.content[{at}].continuity", "continuity_dropped", why)


class Call(NamedTuple):
    """The place of a call in the conversation."""

    message: int
    block: int


class Pairs:
    """Which result answers which call, and under which id both are sent.

    Only calls with readable arguments count. An id that was used again means the latest call: an earlier
    one was never answered. Some servers count from zero in every reply; a wire that wants ids used once
    gets each its own.
    """

    def __init__(self, messages: Sequence[Message], first: int, rule: IdRule | None) -> None:
        self.answers: dict[int, Call] = {}  # by the index of the result's message
        self.results: dict[Call, int] = {}  # the other way round
        self.ids: dict[Call, str] = {}  # of the calls that are answered
        names: dict[Call, str] = {}
        waiting: dict[str, list[Call]] = {}
        for at, message in enumerate(messages, first):
            if type(message) is Assistant:
                for index, block in enumerate(message.content):
                    if type(block) is ToolCall and isinstance(block.arguments, dict):
                        names[Call(at, index)] = block.id
                        waiting.setdefault(block.id, []).append(Call(at, index))
            elif type(message) is ToolResult and waiting.get(message.tool_call_id):
                call = waiting[message.tool_call_id].pop()
                self.answers[at], self.results[call] = call, at
        self._name({call: name for call, name in names.items() if call in self.results}, rule, IdMap(rule, messages))

    def _name(self, names: dict[Call, str], rule: IdRule | None, projected: IdMap) -> None:
        taken = {projected[name] for name in names.values()}
        used: set[str] = set()
        for call, name in names.items():
            sent, salt = projected[name], 0
            while sent in used or (salt and sent in taken):
                salt += 1
                sent = (rule or IdRule(64)).fold(name, salt)
            used.add(sent)
            self.ids[call] = sent
