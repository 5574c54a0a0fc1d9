"""The text of a reply that a guard holds back until it is judged."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

Window: TypeAlias = int | Literal["sentence"]
# The end of a line, or of a sentence with its closing quotes and the white space behind it.
_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]»]*+\s|[。！？]|\n")
LONGEST_SENTENCE = 2_000
"""The number of characters after which text is judged although its sentence has not ended."""


class Passage:
    """The text or the thinking of a reply, of which only the part that was judged is released.

    With a window of N characters, the last N characters that were judged stay back until they have
    been judged again, together with what follows them. So a judge sees every string of up to N
    characters as a whole before any part of it is released, wherever it is cut. With the window
    ``sentence``, whole sentences are judged and released. Without a window, the text is judged at
    its end.
    """

    def __init__(self, window: Window | None) -> None:
        self._window = window
        self._kept: list[str] = []  # what has arrived and is not cleared
        self.arrived = 0
        self.cleared = 0  # up to where the text may be released
        self._judged = 0
        self._is_closed = False

    def add(self, piece: str) -> int:
        """Add a piece, and return the position of its end."""
        self._is_closed = False
        self._kept.append(piece)
        self.arrived += len(piece)
        return self.arrived

    def forget(self) -> None:
        """Forget the whole text, which was replaced before any part of it was released."""
        self._kept.clear()
        self.arrived = 0
        self.cleared = 0
        self._judged = 0

    def read(self, upto: int) -> str:
        """Return the text that is not cleared, up to a position.

        What is cleared is not judged again, even if it has to wait for other content before it:
        the cost of a long text would be quadratic.
        """
        return "".join(self._kept)[: upto - self.cleared]

    def close(self) -> None:
        """Note that other content follows, so that no more of the text is waited for."""
        self._is_closed = True
        if self._judged == self.arrived:
            self.clear(self.arrived, at_end=True)

    def find_due(self, *, at_end: bool) -> int | None:
        """Return up to where the text must be judged now; ``None`` if nothing is due yet."""
        new = self.arrived - self._judged
        if not new:
            return None
        if at_end:
            return self.arrived
        if self._window is None:
            return None
        if self._is_closed:
            return self.arrived
        if isinstance(self._window, int):
            return self.arrived if new > self._window else None
        if new >= LONGEST_SENTENCE:
            return self.arrived
        ends = [found.end() for found in _END.finditer(self.read(self.arrived))]
        end = self.cleared + ends[-1] if ends else 0
        return end if end > self._judged else None

    def clear(self, upto: int, *, at_end: bool) -> None:
        """Note that the text was judged and allowed up to a position."""
        is_over = at_end or self._is_closed
        kept_back = self._window if isinstance(self._window, int) and not is_over else 0
        self._judged = upto
        cleared = max(self.cleared, upto - kept_back)
        self._kept = ["".join(self._kept)[cleared - self.cleared :]]
        self.cleared = cleared
