"""Display results as HTML and Markdown in notebooks.

A class that notebooks display derives from ``Displayed`` and returns a ``Display``, which holds
plain text only: everything is escaped when it is written, because texts of a model or a server may
contain markup. No URL is loaded: an image is shown only if its bytes are part of the result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = [
    "Display", "Displayed", "Passage", "Table", "escape_markdown", "shorten", "write_html",
    "write_markdown",
]  # fmt: skip


class Table(NamedTuple):
    """A table: one heading per column, and rows of cells."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class Passage(NamedTuple):
    """A titled text that is shown literally. A ``folded`` text is collapsed at first."""

    title: str
    text: str
    folded: bool = False


class Display(NamedTuple):
    """The contents of a displayed result.

    It has a title, a line of short statements (``facts``), texts, tables, and images as pairs of
    media type and base64 data.
    """

    title: str
    facts: Sequence[str]
    passages: Sequence[Passage] = ()
    tables: Sequence[Table] = ()
    images: Sequence[tuple[str, str]] = ()


class Displayed:
    """Add the methods by which notebooks display a value; a subclass implements ``_display``."""

    __slots__ = ()

    def _display(self) -> Display:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return write_html(self._display())

    def _repr_markdown_(self) -> str:
        return write_markdown(self._display())


def shorten(text: str, most: int = 200) -> str:
    """Return a text in one line, truncated to ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


# --- writing HTML ------------------------------------------------------------------------------

_PRE = "white-space:pre-wrap;overflow-wrap:anywhere;margin:.4em 0"


def write_html(display: Display) -> str:
    """Return an HTML fragment without scripts and links; its styles affect only the fragment."""
    parts = [f"<strong>{_escape(display.title)}</strong>"]
    if display.facts:
        parts.append(f"<div><small>{_escape(' · '.join(display.facts))}</small></div>")
    parts += [_write_passage(passage) for passage in display.passages]
    parts += [
        '<img alt="image" style="max-width:100%" '
        f'src="data:{_escape(media_type)};base64,{_escape(data)}">'
        for media_type, data in display.images
    ]
    parts += [_write_table(table) for table in display.tables if table.rows]
    return f"<div>{''.join(parts)}</div>"


def _write_passage(passage: Passage) -> str:
    text = f'<div style="{_PRE}">{_escape(passage.text)}</div>'
    if passage.folded:
        return f"<details><summary>{_escape(passage.title)}</summary>{text}</details>"
    return f"<div>{_escape(passage.title)}</div>{text}" if passage.title else text


def _write_table(table: Table) -> str:
    heads = "".join([f"<th>{_escape(head)}</th>" for head in table.heads])
    rows = [
        "".join([f'<td style="text-align:left">{_escape(cell)}</td>' for cell in row])
        for row in table.rows
    ]
    return f"<table><thead><tr>{heads}</tr></thead><tbody><tr>{'</tr><tr>'.join(rows)}</tr></tbody></table>"


def _escape(text: str) -> str:
    import html  # lazy import: it takes two milliseconds, and only notebooks need it

    return html.escape(text)


# --- writing Markdown --------------------------------------------------------------------------

_MARKUP = r"([\\`*_{}\[\]()#+\-.!|<>~$&])"
_TICKS = r"`+"


def write_markdown(display: Display) -> str:
    """Return Markdown that shows every text literally: in code blocks, or escaped."""
    parts = [f"**{escape_markdown(display.title)}**"]
    parts += [escape_markdown(" · ".join(display.facts))] if display.facts else []
    for passage in display.passages:
        parts += [escape_markdown(passage.title)] if passage.title else []
        parts.append(_fence(passage.text))
    if display.images:
        parts.append("1 image" if len(display.images) == 1 else f"{len(display.images)} images")
    for table in display.tables:
        if table.rows:
            lines = [table.heads, ("---",) * len(table.heads)]
            lines += [
                tuple([escape_markdown(shorten(cell, 2000)) for cell in row]) for row in table.rows
            ]
            parts.append("\n".join([f"| {' | '.join(line)} |" for line in lines]))
    return "\n\n".join(parts) + "\n"


def escape_markdown(text: str) -> str:
    """Return a text in one line, escaped so that Markdown shows it literally."""
    return re.sub(_MARKUP, r"\\\1", " ".join(text.split()))


def _fence(text: str) -> str:
    """Return a code block whose fence is longer than every run of backticks in the text."""
    ticks = "`" * max(3, 1 + max([len(run) for run in re.findall(_TICKS, text)], default=0))
    return f"{ticks}text\n{text}\n{ticks}"
