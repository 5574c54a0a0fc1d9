"""The finish reasons of a wire, in a table that both of its sides use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from ..events import FinishReason, StopDetails


class FinishWords(NamedTuple):
    """The meaning of each term that the client side reads, and that the server side writes."""

    read: Mapping[str, FinishReason]
    written: Mapping[str, FinishReason]

    @classmethod
    def of(
        cls, rows: Mapping[FinishReason, str], read_only: Mapping[FinishReason, str] | None = None
    ) -> Self:
        """Return both tables, given the terms of a wire for each reason of Dragoman.

        The server side writes the first term of a reason, unless the model's own wire is the same
        and used another. Terms in ``read_only`` are never written.
        """
        written = _list_words(rows)
        return cls(written | _list_words(read_only or {}), written)

    def choose(self, reason: FinishReason, raw: str | None, *, is_own: bool) -> str:
        """Return the term of this wire for a reason; ``raw`` is the term of the model's wire.

        Some wires have no term for a failed reply. If the model is of the same wire, as ``is_own``
        states, its own term is returned, which may be new; otherwise the term for a truncated
        reply, since clients reject terms that their wire does not have.
        """
        if raw is not None and self.written.get(raw) == reason:
            return raw
        meanings = (reason,) if is_own or raw in self.read else (reason, "length")
        for wanted in meanings:
            for word, meaning in self.written.items():
                if meaning == wanted:
                    return word
        return raw or "error"


NO_WORDS = FinishWords({}, {})


def _list_words(rows: Mapping[FinishReason, str]) -> dict[str, FinishReason]:
    return {word: reason for reason, words in rows.items() for word in words.split()}


def make_stop_details(category: Any, explanation: Any) -> StopDetails | None:
    """Return the details of a stop; ``None`` if neither value is a text."""
    word = category if isinstance(category, str) and category else None
    text = explanation if isinstance(explanation, str) and explanation else None
    return None if word is text is None else StopDetails(word, text)
