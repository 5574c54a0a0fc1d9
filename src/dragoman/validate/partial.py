"""Structured output while it arrives: turn the beginning of a JSON text into a value.

``jiter`` (0.19) does not fit: it returns 12 for a number that becomes 123, and does not report
which parts are unfinished; the schema is checked for the others only. ``msgspec`` reads no partial
JSON.
"""

from __future__ import annotations

import re
from typing import Any

from ..errors import InvalidRequestError
from ..events import TextDelta, read_json
from ..messages import Request
from .schema import compile_schema, has_final_error
from .structured import unwrap

# White space, then a punctuation mark, a string (its content without a truncated escape, and its
# closing quote if it has arrived), or a literal: a number, true, false or null.
_TOKEN = re.compile(
    r"""\s*+(?:([{}\[\],:])|"(?:[^"\\]++|\\(?:u[0-9a-fA-F]{4}|[^u]))*+("?)|[^\s{}\[\],:"]++)"""
)
_HALF_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")
_CLOSING = {"{": "}", "[": "]"}
_NOTHING = object()


class PartialJson:
    """The beginning of a JSON text. ``read`` closes open strings, lists and objects to parse it.

    A key without a value, and a number or literal that may be incomplete, are omitted; a string is
    returned as far as it has arrived.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0  # the position up to which the text is parsed
        self._open: list[str] = []  # closing marks of the open objects and lists, outermost first
        self._key_follows = False
        # the last position at which the text can be completed, the quote to append there, and how
        # many parts are open; these are the parts in _open, which change only together with it
        self._end = (0, "", 0)

    @property
    def is_complete(self) -> bool:
        """Whether the outermost object or list is closed."""
        return self._end[0] > 0 and not self._open and not self._end[2]

    def feed(self, fragment: str) -> None:
        """Add the next fragment of the text."""
        self._text += fragment
        while (found := _TOKEN.match(self._text, self._at)) is not None:
            mark, quote = found.groups()
            if quote == "" or (quote is None and mark is None):
                if quote == "" and not self._key_follows:
                    self._cut(found.end(), '"')
                if quote == "" or found.end() == len(self._text):
                    # The last token may continue, so it is parsed again with the next fragment.
                    return
            self._at = found.end()
            if mark is None:
                if not self._key_follows:
                    self._cut(self._at)
            else:
                self._follow(mark)

    def read(self) -> tuple[Any, int]:
        """Return the value so far, and how many nested values at its end are unfinished."""
        end, quote, unfinished = self._end
        if not unfinished and not self.is_complete:
            return _NOTHING, 0
        text = self._text[:end]
        if quote:
            text = _HALF_PAIR.sub("", text)
        try:
            return read_json(text + quote + "".join(reversed(self._open))), unfinished
        except ValueError:
            return _NOTHING, 0

    def _follow(self, mark: str) -> None:
        if mark in _CLOSING:
            self._open.append(_CLOSING[mark])
            self._cut(self._at)
        elif mark in "}]":
            if self._open:
                self._open.pop()
            self._cut(self._at)
        self._key_follows = mark in "{," and self._open[-1:] == ["}"]

    def _cut(self, end: int, quote: str = "") -> None:
        self._end = end, quote, len(self._open) + len(quote)


class PartialValue:
    """The structured value of a reply while its text arrives."""

    def __init__(self, request: Request) -> None:
        if request.response_schema is None:
            raise InvalidRequestError("partial() needs response_schema= in stream()")
        self._schema = compile_schema(request.response_schema, "response_schema")
        self._kind = request.response_type
        self._json = PartialJson()
        self._block = -1
        self._last: Any = _NOTHING

    def feed(self, event: TextDelta) -> list[Any]:
        """Add a fragment; return the value so far if it changed and its finished parts are valid.

        The complete value is not returned here, because the final reply contains it.
        """
        # a model may write a text block before its answer
        if event.content_block_index != self._block:
            self._block = event.content_block_index
            self._json = PartialJson()
        self._json.feed(event.text)
        value, unfinished = self._json.read()
        if self._json.is_complete or not isinstance(value, dict):
            return []
        if has_final_error(self._schema, value, _open_path(value, unfinished - 1)):
            return []
        shown = value if self._kind is None else unwrap(value, self._kind, _NOTHING)
        if shown is _NOTHING or shown == self._last:
            return []
        self._last = shown
        return [shown]


def _open_path(value: Any, length: int) -> list[str | int]:
    """Return a path of at most ``length`` steps.

    Each step leads to the last member of an object or list.
    """
    path: list[str | int] = []
    while len(path) < length and value:
        key = next(reversed(value)) if isinstance(value, dict) else len(value) - 1
        path.append(key)
        value = value[key]
    return path
