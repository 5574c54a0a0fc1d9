"""The text of a reply that a guard holds back until it is judged."""

from __future__ import annotations

import re
from collections import deque
from typing import Literal, TypeAlias

Window: TypeAlias = int | Literal["sentence"]
# The end of a line, or of a sentence with its closing quotes and the white space behind it.
_END = re.compile(r"[.!?…]+[\"'”’)\]»]*\s|[。！？]|\n")
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
        self._pieces: deque[str] = deque()  # what has arrived and is not released
        self.arrived = 0
        self.released = 0
        self.cleared = 0  # up to where the text may be released
        self._judged = 0

    def add(self, piece: str) -> int:
        """Add a piece, and return the position of its end."""
        self._pieces.append(piece)
        self.arrived += len(piece)
        return self.arrived

    def release(self) -> None:
        """Forget the oldest piece, which has been released."""
        self.released += len(self._pieces.popleft())

    def forget(self) -> None:
        """Forget all that is held back, which was replaced."""
        self._pieces.clear()
        self.arrived = self.released
        self.cleared = self.released
        self._judged = self.released

    def read(self, upto: int) -> str:
        """Return the text that is not released, up to a position."""
        return "".join(self._pieces)[: upto - self.released]

    def find_due(self, *, at_end: bool) -> int | None:
        """Return up to where the text must be judged now; ``None`` if nothing is due yet."""
        new = self.arrived - self._judged
        if not new:
            return None
        if at_end:
            return self.arrived
        if self._window is None:
            return None
        if isinstance(self._window, int):
            return self.arrived if new > self._window else None
        if new >= LONGEST_SENTENCE:
            return self.arrived
        ends = [found.end() for found in _END.finditer(self.read(self.arrived))]
        end = self.released + ends[-1] if ends else 0
        return end if end > self._judged else None

    def clear(self, upto: int, *, at_end: bool) -> None:
        """Note that the text was judged and allowed up to a position."""
        kept_back = self._window if isinstance(self._window, int) and not at_end else 0
        self._judged = upto
        self.cleared = max(self.cleared, upto - kept_back)
