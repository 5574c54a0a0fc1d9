"""Prompt templates such as ``"Translate into French: {text}"``, filled with values by name."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["Template"]


class Template:
    """A string with ``{column}`` placeholders; ``{{`` and ``}}`` stand for literal braces.

    Only names of columns are allowed: no attributes, indices, conversions or formats, so a
    template cannot reach anything but the row.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            parts = [
                part for part in string.Formatter().parse(text) if part[0] or part[1] is not None
            ]
        except ValueError as error:
            raise ValueError(f"template: {error}; write {{{{ and }}}} for braces") from None
        self._parts: list[tuple[str, str | None]] = []
        for literal, name, form, conversion in parts:
            if form or conversion:
                raise ValueError(f"template: {{{name}}} may not have a format or a conversion")
            if name == "":
                raise ValueError("template: {} names no column; write {{}} for braces")
            self._parts.append((literal, name))

    @property
    def names(self) -> list[str]:
        """The names in braces, in the order of their first use."""
        return list(dict.fromkeys(name for _, name in self._parts if name is not None))

    def fill(self, row: Mapping[str, Any]) -> str:
        """Return the prompt for a row; raise ``ValueError`` if the row lacks a column."""
        pieces: list[str] = []
        for literal, name in self._parts:
            pieces.append(literal)
            if name is not None:
                if name not in row:
                    raise ValueError(
                        f"the template needs a column {name!r}, which this row does not have"
                    )
                pieces.append(_show(row[name]))
        return "".join(pieces)


def _show(value: Any) -> str:
    """Return a value as text for a prompt: a string as it is, ``None`` as "", others as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()
