"""Terminal output shows a proposed tool call completely, and contains no control sequences from
models, servers or files.
"""

import json
import re
import sys
from pathlib import Path

import msgspec
import pytest

from dragoman.cli import console
from dragoman.cli.approval import _show_proposal
from dragoman.cli.check import command as check_command
from dragoman.cli.console import echo_json, legible, show_json, show_pages, show_table
from dragoman.conformance.report import CheckOutcome, RecordedExchange, Report
from dragoman.permission import Proposal

from ..patterns import grows

HOSTILE = "A\x1b]0;t\x07B\x9b31mC\u202eD\u2066E\x08F\rG\u200fH"


def test_control_and_bidi_characters_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = legible(HOSTILE)
    assert not set(shown) & set("\x1b\x07\x9b\u202e\u2066\x08\r\u200f")
    assert "\\x9b31mC\\u202eD\\u2066E" in shown
    assert legible("an émigré\n\t日本 👩‍💻") == "an émigré\n\t日本 👩‍💻"


def is_safe(text: str) -> bool:
    """Return whether a text contains no terminal control sequence except colours."""
    return not set(re.sub(r"\x1b\[[0-9;]*m", "", text)) & set(
        "\x1b\x07\x9b\u202e\u2066\x08\r\u200f"
    )


def test_json_printed_at_a_terminal_is_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show_json({"x": HOSTILE})
    assert HOSTILE[-3:] in capsys.readouterr().out  # output to a pipe is not escaped
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show_json({"x": HOSTILE})
    echo_json(msgspec.json.encode({"x": HOSTILE}))
    shown = capsys.readouterr().out
    assert is_safe(shown)
    first, rest = json.JSONDecoder().raw_decode(shown)
    assert first == json.loads(shown[rest:]) == {"x": HOSTILE}


def test_tables_and_lists_printed_at_a_terminal_are_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for terminal in ("xterm", "dumb"):  # a dumb terminal shows plain lines
        monkeypatch.setenv("TERM", terminal)
        show_table(["MODEL"], [[HOSTILE]])
        show_pages([HOSTILE], use_pager=False)
    shown = capsys.readouterr().out
    assert shown.count("x9b31m") == 4
    assert is_safe(shown)


@pytest.mark.parametrize("as_json", [False, True])
def test_report_of_the_check_command_is_escaped(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    outcome = CheckOutcome(
        name="text",
        title="Text",
        status="pass",
        detail=HOSTILE,
        evidence=(RecordedExchange("POST", "/x", "a", 200, HOSTILE),),
    )

    async def check(*_: object, **__: object) -> Report:
        return Report(
            url="http://x", wire="openai", model=HOSTILE, by="me", at="now", outcomes=(outcome,)
        )

    monkeypatch.setattr("dragoman.cli.check.check_server", check)
    check_command.main(["http://x", *["--json"] * as_json], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "9b31m" in shown
    assert is_safe(shown)


def test_no_command_prints_json_unescaped() -> None:
    """JSON encoding does not escape C1 and bidi characters, so commands must print JSON with
    ``echo_json``.
    """
    raw = re.compile(
        r"click\.echo\((?!.*make_printable).*(?:ensure_ascii=False|json\.encode|encode_event|\.line\b)"
    )
    found = [
        path.name
        for path in Path(console.__file__).parent.glob("*.py")
        if raw.search(path.read_text())
    ]
    assert found == []


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
def test_approval_question_shows_every_argument_and_path(
    given: dict[str, str], paths: tuple[str, ...]
) -> None:
    shown = _show_proposal(
        Proposal(tool_name="patch", input=given, side_effect="write", paths=paths)
    )
    assert "HIDDEN" in shown
    for path in paths:
        assert f"path: {path}\n" in shown


def test_approval_question_shows_an_edit_line_by_line() -> None:
    shown = _show_proposal(
        Proposal(
            tool_name="edit",
            input={"old": "one\ntwo\nthree", "new": "one\n2\nthree"},
            side_effect="write",
        )
    )
    assert shown == "  one\n- two\n+ 2\n  three"
    long = _show_proposal(
        Proposal(
            tool_name="edit", input={"old": "a\n" * 2000, "new": "b\n" * 2000}, side_effect="write"
        )
    )
    assert long.count("- a") == 2000
    assert long.count("+ b") == 2000


def test_approval_question_for_an_edit_is_built_in_bounded_time() -> None:
    def run(lines: int) -> None:
        old = "\n".join([f"    value_{at} = old_name.compute(i, {at})" for at in range(lines)])
        _show_proposal(
            Proposal(
                tool_name="edit",
                input={"old": old, "new": old.replace("old_name", "new_name")},
                side_effect="write",
            )
        )

    # ``difflib.ndiff`` would take seconds for 100 lines and minutes for 500.
    assert grows(run, lambda size: size // 4, (100, 400, 1_600, 6_400)) is None
