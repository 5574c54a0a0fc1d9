"""Test that mypy --strict and pyright find every seeded mistake, and accept every correct program."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MISTAKES = HERE / "mistakes.py"
CORRECT = HERE / "correct.py"
# The number of a mistake is in a comment; the mistake is on a line below it, before the next
# comment or blank line.
NUMBERED = re.compile(r"^ *# (\d+):")


def mypy(*paths: Path) -> list[tuple[str, int, str]]:
    # Use the project's own configuration: mypy then reuses the cache that `make lint` filled.
    words = [sys.executable, "-m", "mypy", "--strict", "--output=json"]
    done = subprocess.run(
        [*words, *map(str, paths)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [
        (Path(each["file"]).name, each["line"], each["message"])
        for each in found
        if each["severity"] == "error"
    ]


def pyright(*paths: Path) -> list[tuple[str, int, str]]:
    words = [
        sys.executable,
        "-m",
        "basedpyright",
        "--outputjson",
        "--level",
        "error",
        "--pythonpath",
        sys.executable,
    ]
    done = subprocess.run(
        [*words, *map(str, paths)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"])
        for each in found
        if each["severity"] == "error"
    ]


def numbered_lines() -> dict[int, int]:
    """Map the line of each seeded mistake to the number of the mistake."""
    lines = MISTAKES.read_text().splitlines()
    return {
        at + 2: int(found[1]) for at, line in enumerate(lines) if (found := NUMBERED.match(line))
    }


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_type_checkers_find_exactly_the_seeded_mistakes(checker: object) -> None:
    assert callable(checker)
    found = checker(MISTAKES, CORRECT)
    wrong = numbered_lines()
    assert len(wrong) >= 13
    by_line = {line: message for name, line, message in found if name == MISTAKES.name}
    assert {number for line, number in wrong.items() if line not in by_line} == set(), (
        "mistakes that were not found"
    )
    assert {line: by_line[line] for line in by_line if line not in wrong} == {}
    assert [each for each in found if each[0] == CORRECT.name] == []
