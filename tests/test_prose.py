"""The prose check reports each banned pattern and accepts plain text."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    specification = importlib.util.spec_from_file_location(
        "dragoman_prose", ROOT / "scripts" / "prose.py"
    )
    assert specification
    assert specification.loader
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


BANNED = {
    "person": "x = 1  # nobody reads it",
    "whatever": "# Whatever is left is dropped.",
    "is-no": "# This is no error.",
    "is-no of several": "# Those are none.",
    "archaism": "# The loop starts anew.",
    "archaism in a message": "raise ValueError('it stands beside the other one')",
    "also-when": "# Close it also when the call failed.",
    "meanwhile": "# It may have closed meanwhile.",
    "so-many": '"""Wait so many seconds."""',
    "speech": "# The server says that it is done.",
    "speech over two lines": "# All that the server\n# said is kept.",
    "tell": "# The id tells which call it is.",
    "hear": "# Nothing was heard of the server.",
    "word": "# Keep the server's word.",
    "silence": "# The rest is dropped in silence.",
    "want": "# The wire wants an id.",
    "leave": "# Ask the limiter for leave.",
    "whole": "# The reply is whole.",
    "ours": "# A method of ours.",
    "riddle": "# inside",
    "question of a comment": "done = False  # is the reply complete?",
    "question of a docstring": 'def f():\n    """Is it complete? If so, stop."""\n',
    "imperative, noun": 'def f():\n    """The group as a list."""\n',
    "imperative, third person": 'def f():\n    """Returns the group."""\n',
    "imperative, gerund": 'async def f():\n    """Waiting for the group."""\n',
}


@pytest.mark.parametrize("name", BANNED)
def test_banned_phrases_are_reported(name: str, prose: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    path = folder / "module.py"
    path.write_text(BANNED[name] + "\n", encoding="utf-8")
    (violation,) = prose.find_violations(path)
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
def test_help_texts_that_do_not_stand_alone_are_reported(
    text: str, prose: ModuleType, tmp_path: Path
) -> None:
    folder = tmp_path / "src" / "cli"
    folder.mkdir(parents=True)
    path = folder / "module.py"
    path.write_text(text + "\n", encoding="utf-8")
    (violation,) = prose.find_violations(path)
    assert "[help]" in violation
    assert "write" in violation
    good = 'x: Annotated[int, "Limit each reply to this many tokens.", option(ge=1)] = 1\n'
    path.write_text(good, encoding="utf-8")
    assert list(prose.find_violations(path)) == []


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


def test_plain_text_passes_the_prose_check(prose: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    path = folder / "module.py"
    path.write_text(PLAIN, encoding="utf-8")
    assert list(prose.find_violations(path)) == []


def test_pages_are_checked_except_for_code(prose: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "# Title\n\n```python\nnobody = 1\n```\n\nUse `nobody`.\n\nIt is no\nerror.\n",
        encoding="utf-8",
    )
    assert [each.split(" ")[:2] for each in prose.find_violations(path)] == [["9:", "[is-no]"]]


def test_docstrings_of_tests_need_plain_words_but_no_imperative(
    prose: ModuleType, tmp_path: Path
) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    path = folder / "test_module.py"
    path.write_text(
        'def test_a():\n    """The call ends."""\n\n\ndef test_b():\n    """Nobody waits."""\n',
        encoding="utf-8",
    )
    assert [each.split(" ")[:2] for each in prose.find_violations(path)] == [["6:", "[person]"]]
