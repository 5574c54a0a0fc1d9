"""Patterns of rules: for names and arguments, and for paths of the workspace."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeAlias

EMPTY = "is empty; leave it out to match everything"
# Characters with which a shell starts another command or a redirection.
SEPARATORS = ";&|<>$`\\(){}\r\n"


class Wildcards:
    """A pattern with wildcards, matched in one pass over the text.

    A regular expression with two stars takes quadratic time, and the text comes from the model.
    This class is a bit-parallel matcher instead: the set of reachable positions in the pattern is
    one integer, with one bit per position.
    """

    def __init__(self, tokens: list[str], excluded: str) -> None:
        self._excluded = frozenset(excluded)  # characters that ``*`` and ``?`` do not match
        self._last = 1 << len(tokens)
        self._literals: dict[str, int] = {}
        self._some = self._loops_any = self._loops_some = self._skips = self._skips_two = 0
        for at, sign in enumerate(tokens):
            bit = 1 << at
            if sign == "*":
                self._loops_some |= bit
                self._skips |= bit
            elif sign == "**":
                self._loops_any |= bit
                self._skips |= bit
            elif sign == "?":
                self._some |= bit
            elif sign == _OPTIONAL:  # the next two tokens are optional: both match, or neither
                self._skips |= bit
                self._skips_two |= bit
            else:
                self._literals[sign] = self._literals.get(sign, 0) | bit

    def fullmatch(self, text: str) -> bool:
        """Return whether the pattern matches the complete text."""
        places = self._close(1)
        for character in text:
            moved = places & self._literals.get(character, 0)
            stayed = places & self._loops_any
            if character not in self._excluded:
                moved |= places & self._some
                stayed |= places & self._loops_some
            places = self._close(moved << 1 | stayed)
            if not places:
                return False
        return bool(places & self._last)

    def _close(self, places: int) -> int:
        """Return ``places`` and all positions reachable from there without another character."""
        while True:
            further = places | (places & self._skips) << 1 | (places & self._skips_two) << 3
            if further == places:
                return places
            places = further


_OPTIONAL = "(?"
Pattern: TypeAlias = "re.Pattern[str] | Wildcards"


def check_text(name: str, pattern: object, *, wary: bool) -> None:
    """Raise ``ValueError`` if a pattern for a name or an argument is invalid."""
    # a list or a mapping is not hashable, so it cannot be looked up in the cache
    if not isinstance(pattern, str):
        raise ValueError(f"{name}: must be text, not {type(pattern).__name__}")
    compile_text(name, pattern, wary=wary)


@lru_cache(maxsize=1024)
def compile_text(name: str, pattern: str, *, wary: bool) -> Pattern:
    """Return the matcher of a pattern; a ``wary`` one does not match the separators of a shell."""
    if pattern in ("", "re:"):
        raise ValueError(f"{name}: {EMPTY}")
    if pattern.startswith("re:"):
        try:
            return re.compile(pattern[3:], re.DOTALL)
        except re.error as error:
            raise ValueError(f"{name}: {pattern!r} is not a regular expression: {error}") from None
    # "pytest *" matches the program with or without further words, but not "pytest-other".
    tokens = [*pattern[:-2], _OPTIONAL, " ", "*"] if pattern.endswith(" *") else list(pattern)
    return Wildcards(tokens, SEPARATORS if wary else "")


@lru_cache(maxsize=1024)
def compile_path(pattern: str) -> Wildcards:
    """Return the matcher of a pattern for paths of the workspace."""
    if (
        not isinstance(pattern, str)
        or not pattern
        or pattern.startswith("/")
        or ".." in pattern.split("/")
    ):
        raise ValueError(
            f"path: must be a pattern below the workspace, without '..', not {pattern!r}"
        )
    tokens: list[str] = []
    for part in re.split(r"(\*\*/|\*\*)", pattern):
        if part == "**/":
            tokens += [_OPTIONAL, "**", "/"]
        else:
            tokens += ["**"] if part == "**" else list(part)
    return Wildcards(tokens, "/")
