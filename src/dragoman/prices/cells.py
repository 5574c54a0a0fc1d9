"""Cells of a bill in CSV, which spreadsheets read."""

from __future__ import annotations


def defuse(text: str) -> str:
    """Return a text that a spreadsheet does not run as a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
