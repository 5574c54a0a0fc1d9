"""Terminal output shows a proposal completely, and contains no control sequences from other parties."""

from __future__ import annotations

import sys

import pytest

from dragoman.cli.approval import _show_proposal
from dragoman.cli.console import legible
from dragoman.permission import Proposal

from .patterns import grows

HOSTILE = "A\x1b]0;t\x07B\x9b31mC\u202eD\u2066E\x08F\rG\u200fH"


def test_control_and_bidi_characters_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = legible(HOSTILE)
    assert not set(shown) & set("\x1b\x07\x9b\u202e\u2066\x08\r\u200f")
    assert "\\x9b31mC\\u202eD\\u2066E" in shown
    assert legible("an émigré\n\t日本 👩‍💻") == "an émigré\n\t日本 👩‍💻"


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        ({"path": "docs/" + "./" * 180 + "HIDDEN", "old": "a", "new": "b"}, ("docs/HIDDEN",)),
        ({"old": "a" * 400, "new": "b", "command": "rm -rf HIDDEN"}, ()),
        ({"path": "x", "old": "a", "new": "b", "run": "HIDDEN"}, ("x",)),
        ({"path": "x", "old": "same", "new": "same", "then": "HIDDEN"}, ("x",)),
        ({"command": "ls" + " " * 500 + "; rm HIDDEN"}, ()),
    ],
)
def test_every_argument_and_path_is_shown(given: dict[str, str], paths: tuple[str, ...]) -> None:
    shown = _show_proposal(Proposal("patch", given, "write", paths))
    assert "HIDDEN" in shown
    for path in paths:
        assert f"path: {path}\n" in shown


def test_edit_is_shown_line_by_line() -> None:
    shown = _show_proposal(Proposal("edit", {"old": "one\ntwo\nthree", "new": "one\n2\nthree"}, "write"))
    assert shown == "  one\n- two\n+ 2\n  three"
    long = _show_proposal(Proposal("edit", {"old": "a\n" * 2000, "new": "b\n" * 2000}, "write"))
    assert (long.count("- a"), long.count("+ b")) == (2000, 2000)


def test_edit_is_shown_in_bounded_time() -> None:
    def run(lines: int) -> None:
        old = "\n".join([f"    value_{at} = old_name.compute(i, {at})" for at in range(lines)])
        _show_proposal(Proposal("edit", {"old": old, "new": old.replace("old_name", "new_name")}, "write"))

    assert grows(run, lambda size: size // 4) is None
