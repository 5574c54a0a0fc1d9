"""Assemble tool-call arguments that arrive as ``partialArgs``: values, each with a JSON path."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from ...errors import MalformedToolCallError, quote
from ..json import dig

# One step of a path such as ``$.a.b[0]['a key']``: a name, an index, or a quoted name with
# escapes.
_STEP = re.compile(
    r"""\.([^.\[\]]+)|\[(\d{1,9})\]|\[(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\]"""
)
_VALUES = ("stringValue", "numberValue", "boolValue", "nullValue")


class StreamedArguments:
    """The arguments object of a tool call that is still arriving.

    ``value`` contains the arguments that have arrived so far.
    """

    def __init__(self, begun: dict[str, Any]) -> None:
        self._value = dict(begun)
        # the path of the incomplete string, or None if no string is incomplete
        self._growing: str | None = None
        self._place: tuple[Any, str | int] = (self._value, "")
        # The fragments of the incomplete string. They are joined once, because joining them as
        # they arrive would copy a long string many times.
        self._pieces: list[str] = []

    @property
    def value(self) -> dict[str, Any]:
        """The arguments received so far, including the fragments of an incomplete string."""
        self._settle()
        return self._value

    def add(self, piece: Any) -> None:
        """Add an entry of ``partialArgs``.

        Raise ``MalformedToolCallError`` if the path of the entry is invalid.
        """
        path = dig(piece, "jsonPath")
        if not isinstance(path, str):
            raise MalformedToolCallError("a piece of a tool call's arguments has no path")
        name = next((name for name in _VALUES if name in piece), None)
        value = piece[name] if name not in (None, "nullValue") else None
        if self._growing != path or not isinstance(value, str):
            self._settle()
            self._growing = None
            if name is None:  # an entry without a value only ends the string before it
                return
            self._place = self._reach(_read_path(path))
            self._put(value)
            self._pieces = []
        if isinstance(value, str):
            self._pieces.append(value)
            self._growing = path
            if piece.get("willContinue") is not True:
                self._settle()
                self._growing = None

    def _settle(self) -> None:
        if self._growing is not None:
            self._put("".join(self._pieces))

    def _put(self, value: Any) -> None:
        holder, last = self._place
        if isinstance(last, int) and last == len(holder):
            holder.append(value)
        else:
            holder[last] = value

    def _reach(self, steps: list[str | int]) -> tuple[Any, str | int]:
        """Return the object or list that contains the value at a path, and its key or index in it.

        Missing objects and lists on the path are created.
        """
        node: Any = self._value
        for step, following in pairwise(steps):
            _check_step(node, step)
            fresh: Any = [] if isinstance(following, int) else {}
            if isinstance(step, str):
                node = node.setdefault(step, fresh)
            else:
                if step == len(node):
                    node.append(fresh)
                node = node[step]
        _check_step(node, steps[-1])
        return node, steps[-1]


def _check_step(node: Any, step: str | int) -> None:
    """Reject an index beyond the end of a list: filling the gap could take unlimited memory."""
    fits = (
        isinstance(node, dict)
        if isinstance(step, str)
        else isinstance(node, list) and step <= len(node)
    )
    if not fits:
        raise MalformedToolCallError(
            f"a piece of a tool call's arguments has no place at {quote(step)}"
        )


def _read_path(path: str) -> list[str | int]:
    steps: list[str | int] = []
    at = 1
    while path.startswith("$") and (match := _STEP.match(path, at)):
        name, index, single, double = match.groups()
        quoted = single if single is not None else double
        text = name if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        steps.append(int(index) if index is not None else text)
        at = match.end()
    if at != len(path) or not steps:
        raise MalformedToolCallError(
            "a piece of a tool call's arguments has a path that cannot be read"
        )
    return steps
