"""Collect the reasoning details of a reply: signed and encrypted reasoning, and its text."""

from __future__ import annotations

from typing import Any

from ...events import Assembler
from ...messages import Thinking
from ..json import dig, entries_of, string_of
from .chunks import ChunkPart


class ReasoningDetails:
    """The field ``reasoning_details`` of a reply, which is attached to its thinking."""

    __slots__ = ("_answering", "_has_field", "_items", "_text")

    def __init__(self) -> None:
        self._items: list[Any] = []  # those that are not attached to a block yet
        self._text = ""  # the thinking that arrived in this field alone
        self._answering = False  # whether the last part was something other than thinking
        self._has_field = False  # whether thinking has arrived in another field

    def read_text(self, details: Any) -> str:
        """Return the thinking in reasoning details, for servers that send it nowhere else.

        A gateway may send the details of a thought after its text, in a part of their own (case:
        openai/reasoning-details-after-their-text).
        MiniMax documents that each fragment repeats the text so far, and was seen to send only the
        new text (MiniMax-AI/MiniMax-M2#95). A fragment that repeats the text is cut to what is new
        (cases: openai/thinking-in-details, openai/thinking-in-details-repeated).
        """
        pieces: list[str] = []
        if self._has_field:
            return ""
        for detail in entries_of(details):
            field = _GROWING.get(string_of(detail.get("type")), "")
            if isinstance(piece := detail.get(field), str):
                if self._text.strip() and piece.startswith(self._text):
                    detail[field] = piece = piece[len(self._text) :]
                self._text += piece
                pieces.append(piece)
        return "".join(pieces)

    def note(self, part: ChunkPart, thought: Any, out: Assembler, *, whole: bool) -> None:
        """Collect the details of a part; attach them to the thinking when the answer begins."""
        if thought:
            self._answering = False
            self._has_field = self._has_field or not self._text
        if isinstance(part.reasoning_details, list):
            self._items += part.reasoning_details
        if part.content or part.refusal or part.tool_calls or part.function_call:
            # Reasoning details of Gemini models (through OpenRouter) arrive after the text or call
            # that they sign. They are attached at the end of the message (case:
            # openai/reasoning-details-after-the-text).
            if not self._answering:
                self.attach(out, whole=whole)
            self._answering = True

    def attach(self, out: Assembler, *, whole: bool) -> None:
        """Attach the collected details to the thinking of the message."""
        if self._items:
            out.attach(Thinking, opaque=self._items if whole else _join_details(self._items))
            self._items = []


def _join_details(fragments: list[Any]) -> list[Any]:
    """Join streamed reasoning details: fragments with the same type and index form one detail.

    Case: ``openai/reasoning-details-beside-reasoning``.
    """
    joined: list[Any] = []
    grown: dict[str, tuple[str, dict[str, Any], list[str]]] = {}
    for fragment in fragments:
        kind = dig(fragment, "type")
        field = _GROWING.get(string_of(kind))
        if field is None:  # encrypted details arrive complete, not in fragments
            joined.append(fragment)
            continue
        key = f"{kind} {fragment.get('index')}"
        if key not in grown:
            grown[key] = (field, {}, [])
            joined.append(grown[key][1])
        _, entry, pieces = grown[key]
        if isinstance(piece := fragment.get(field), str):
            pieces.append(piece)
        # The signature is empty in the first fragments and arrives with the last one.
        entry.update(
            {name: value for name, value in fragment.items() if value or name not in entry}
        )
    for field, entry, pieces in grown.values():
        if pieces:
            entry[field] = "".join(pieces)
    return joined


_GROWING = {"reasoning.text": "text", "reasoning.summary": "summary"}
