"""The exception and the assertions of the conformance kit."""

from __future__ import annotations

import difflib
from typing import Any

import msgspec

_MOST = 40  # maximum number of lines of a difference to show


class Violation(AssertionError):  # noqa: N818 - it is not an error of the kit
    """The contract is broken; the message names the broken part and shows the difference."""


def demand(holds: bool, rule: str) -> None:
    """Raise ``Violation`` unless the rule holds, even where Python runs without assertions."""
    if not holds:
        raise Violation(rule)


def demand_same(found: Any, wanted: Any, what: str) -> None:
    """Raise ``Violation`` with the difference unless both values are equal."""
    if found == wanted:
        return
    lines = difflib.unified_diff(_show(wanted), _show(found), "wanted", "found", lineterm="", n=1)
    shown = list(lines)
    more = [f"... and {len(shown) - _MOST} lines more"] if len(shown) > _MOST else []
    raise Violation("\n".join([what, *shown[:_MOST], *more]))


def _show(value: Any) -> list[str]:
    try:
        if isinstance(value, list):
            return [msgspec.json.encode(item).decode() for item in value]
        return msgspec.json.format(msgspec.json.encode(value), indent=1).decode().splitlines()
    except (TypeError, ValueError):
        return [repr(value)]
