"""The prose check reports each banned pattern and accepts plain text."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rows import read_table

ROOT = Path(__file__).parent.parent
PROSE = runpy.run_path(str(ROOT / "scripts" / "prose.py"))
Find = Callable[[str, str], list[str]]


@pytest.fixture
def find(tmp_path: Path) -> Callable[[str, str], list[str]]:
    """Return a function that writes a file and returns its violations."""

    def write(name: str, text: str) -> list[str]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return list(PROSE["find_violations"](path))

    return write


BANNED = dict(read_table("banned_phrases"))


@pytest.mark.parametrize("name", BANNED)
def test_banned_phrases_are_reported(name: str, find: Find) -> None:
    (violation,) = find("src/module.py", BANNED[name] + "\n")
    assert f"[{name.split(' ')[0].rstrip(',')}]" in violation
    assert "write: " in violation


HELPS = {
    "a noun": 'x: Annotated[int, "The longest reply.", option(ge=1)] = 1',
    "a noun after an alias": 'x: Annotated[Json, "Everything as JSON."] = False',
    "no full stop": 'x: Annotated[int, "Print the report"] = 1',
    "a pronoun": 'x: Annotated[int, "Set the wire of the server, if it has one."] = 1',
    "a command": '_COMMANDS = {"ask": "A question to a model."}',
    "a text with values": 'x: Annotated[int, f"One of {NAMES}."] = 1',
    "two lines": 'x: Annotated[\n    int,\n    "Of "\n    "a reply.",\n] = 1',
}


@pytest.mark.parametrize("text", HELPS.values(), ids=HELPS)
def test_help_texts_must_stand_alone(text: str, find: Find) -> None:
    (violation,) = find("src/cli/module.py", text + "\n")
    assert "[help]" in violation
    assert "write" in violation
    good = 'x: Annotated[int, "Limit each reply to this many tokens.", option(ge=1)] = 1\n'
    assert find("src/cli/module.py", good) == []


PLAIN = '''
"""Send requests; see ``nobody`` and "it is no use" in quotations."""

LIMIT = 3
"""The number of attempts."""


def send(body: bytes) -> bool:
    """Return whether the server accepted ``body``.

    There is no retry. If you want one, wrap the provider.
    """
    # The error message says which field was rejected. It is no longer sent, so that
    # the next request passes.
    return True  # type: ignore[return-value]


class Queue:
    """A queue of calls."""

    @property
    def length(self) -> int:
        """The number of calls that wait."""
        return 0


NAME = "nobody"
MARKED = 1  # nobody  # prose: allow (the name of a user account)
'''


def test_plain_text_passes_the_prose_check(find: Find) -> None:
    assert find("src/module.py", PLAIN) == []


def test_pages_are_checked_except_for_code(find: Find) -> None:
    page = "# Title\n\n```python\nnobody = 1\n```\n\nUse `nobody`.\n\nIt is no\nerror.\n"
    assert [each.split(" ")[:2] for each in find("page.md", page)] == [["9:", "[is-no]"]]


def test_docstrings_of_tests_need_no_imperative(find: Find) -> None:
    good = 'def test_a():\n    """The call ends."""\n'
    bad = 'def b():\n    """Nobody waits."""\n'
    found = find("tests/test_module.py", f"{good}\n\n{bad}")
    assert [each.split(" ")[:2] for each in found] == [["6:", "[person]"]]
