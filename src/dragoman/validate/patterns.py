"""Bounds on the regular expressions of a JSON Schema: what they cost to compile, and to match.

The linear-time engine takes ``length * weight`` steps, where the weight of ``[ab]{900}`` is 900.
It has neither lookaround nor backreferences; patterns with these go to an engine that backtracks,
and its steps grow with the square of the length. Expensive patterns are therefore metered: a
validation that would take more than ``MAX_STEPS`` ends with an error instead of blocking the event
loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from threading import local
from typing import Any, NamedTuple

from ..errors import cut

MAX_PATTERNS = 1000
"""How many patterns a schema may have."""
MAX_STEPS = 50_000_000
"""How many steps the metered patterns of a schema may take in one validation; about 100 ms."""
_LIGHT = 16  # patterns up to this weight are not metered: a megabyte of text takes milliseconds
# limit for all compiled patterns, in bytes; compiling this much takes about 100 ms
_PROGRAM = 8 * 1024 * 1024
_BACKTRACKS = 100_000  # how many times one match may backtrack
_NAMES = 2_000  # most characters of all property names that a backtracking pattern may check
_REPEAT = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")


class Patterns(NamedTuple):
    """The regular expressions of a schema, compiled within limits.

    ``keywords`` replaces the keyword ``pattern`` if matching must be metered, and ``names`` is how
    much each character of a property name counts against the limit on steps.
    """

    options: Any
    keywords: dict[str, Any]
    names: int


def find_patterns(schema: dict[str, Any]) -> Patterns:
    """Find the patterns of a schema.

    Raise ``ValueError`` if there are too many, or if an expensive pattern is invalid.
    """
    from jsonschema_rs import FancyRegexOptions, RegexOptions

    values, names = _collect(schema)
    count = len(values) + len(names)
    if count > MAX_PATTERNS:
        raise ValueError(f"it has more than {MAX_PATTERNS} patterns")
    size = _PROGRAM // max(count, 1)
    is_metered = any(weigh(each) > _LIGHT or _backtracks(each) for each in values)
    keywords = (
        {"pattern": _make_keyword({each: _Matcher(each, size) for each in values})}
        if is_metered
        else {}
    )
    heaviest = max([weigh(each) for each in names], default=0)
    if any(_backtracks(each) for each in names):
        backtracking = FancyRegexOptions(backtrack_limit=_BACKTRACKS, size_limit=size)
        return Patterns(backtracking, keywords, max(heaviest, MAX_STEPS // _NAMES))
    return Patterns(RegexOptions(size_limit=size), keywords, heaviest if heaviest > _LIGHT else 0)


def weigh(pattern: str) -> int:
    """Return the weight of a pattern: the product of its repetition counts.

    The compiled pattern has at most this many states for each of its characters.
    """
    weight = 1
    for least, most in _REPEAT.findall(pattern):
        weight = min(weight * max(int(least), int(most or 0), 1), MAX_STEPS)
    return weight


def start_meter() -> None:
    """Reset the number of steps that the next validation in this thread may take."""
    _meter.left = MAX_STEPS


class _Meter(local):
    left = MAX_STEPS


_meter = _Meter()


def _backtracks(pattern: str) -> bool:
    """Return whether a pattern has lookaround, atomic groups or backreferences.

    Matching such a pattern needs an engine that backtracks.
    """
    return re.search(r"\(\?(?:[=!>]|<[=!])|\\[1-9k]", pattern) is not None


class _Matcher:
    """A compiled pattern, which counts the steps that it takes to match a string."""

    def __init__(self, pattern: str, size: int) -> None:
        from jsonschema_rs import FancyRegexOptions, RegexOptions, validator_for

        self._pattern = pattern
        self._weight = weigh(pattern)
        self._backtracks = _backtracks(pattern)
        backtracking = FancyRegexOptions(backtrack_limit=_BACKTRACKS, size_limit=size)
        options = backtracking if self._backtracks else RegexOptions(size_limit=size)
        try:
            self._validator = validator_for({"pattern": pattern}, pattern_options=options)
        except ValueError:
            raise ValueError(
                f"the pattern {pattern!r} is not a regular expression, or too large"
            ) from None

    def match(self, text: str) -> None:
        """Raise ``ValueError`` if the text does not match, or matching takes too many steps."""
        weight = max(self._weight, len(text)) if self._backtracks else self._weight
        _meter.left -= len(text) * weight
        if _meter.left < 0:
            raise ValueError(
                f"a string of {len(text)} characters is too long for the pattern {self._pattern!r}"
            )
        if not self._validator.is_valid(text):
            raise ValueError(f"{cut(text, 100)!r} does not match {self._pattern!r}")


def _make_keyword(matchers: dict[str, _Matcher]) -> type:
    class Pattern:
        """The schema keyword ``pattern``, with a limit on the steps that a match may take."""

        def __init__(self, parent: Any, value: str, path: Any) -> None:
            self._matcher = matchers[value]

        def validate(self, instance: Any) -> None:
            if isinstance(instance, str):
                self._matcher.match(instance)

    return Pattern


def _collect(schema: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the patterns of a schema: those for values, and those for property names."""
    values: list[str] = []
    names: list[str] = []
    for each in find_objects(schema):
        if isinstance(pattern := each.get("pattern"), str):
            values.append(pattern)
        if isinstance(properties := each.get("patternProperties"), dict):
            names += properties
    return values, names


def find_objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a JSON value."""
    level = [value]
    while level:
        each = level.pop()
        if isinstance(each, dict):
            yield each
            level += each.values()
        elif isinstance(each, list):
            level += each
