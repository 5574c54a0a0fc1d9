"""The job that tries newest releases: what it tries exists, and what it prints is read right."""

import re
import tomllib
from pathlib import Path

import pytest
from scripts import newest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_each_partner_has_tests_and_is_locked() -> None:
    locked = re.findall(
        r"^([a-z0-9-]+)(?:\[.*\])?==", (ROOT / "requirements/dev.lock").read_text(), re.MULTILINE
    )
    assert set(newest.PARTNERS) - {"click"} <= {*locked}
    for words in newest.PARTNERS.values():
        files = [word for word in words if word.startswith("tests/")]
        assert files
        for file in files:
            assert (ROOT / file).exists(), file


def test_every_python_of_the_classifiers_is_tried() -> None:
    classifiers = PROJECT["project"]["classifiers"]
    stated = {found[1] for each in classifiers if (found := re.search(r":: (3\.\d+)$", each))}
    assert set(newest.PYTHONS) == stated


OUTPUT = """
FAILED tests/a.py::test_one[x] - AssertionError: no
ERROR tests/b.py - ImportError
===== 1 failed, 2 passed, 1 error in 3.2s =====
"""


@pytest.mark.parametrize(
    ("status", "printed", "line"),
    [
        (0, "..\n2 passed in 1.0s\n", "2 passed in 1.0s"),
        (
            1,
            OUTPUT,
            "BROKEN, 1 failed, 2 passed, 1 error in 3.2s: tests/a.py::test_one[x], tests/b.py",
        ),
        (2, "", "BROKEN, it printed nothing: "),
    ],
)
def test_run_is_summed_up_in_a_line(status: int, printed: str, line: str) -> None:
    assert newest.summarise(status, printed) == line


def test_bounds_and_versions_are_read() -> None:
    bounds = newest.read_bounds()
    assert bounds["agent-client-protocol"] == ("1", "acp")
    assert bounds["msgspec"] == ("1", "")
    assert newest.rank("1.106.2") > newest.rank("1.83.0")


def test_warnings_of_others_do_not_fail_the_collection() -> None:
    """The category is another one since Python 3.12, and the text since 3.14."""
    ignored = PROJECT["tool"]["pytest"]["ini_options"]["filterwarnings"]
    for category in ("DeprecationWarning", "SyntaxWarning"):
        assert f"ignore:invalid escape sequence:{category}" in ignored
    assert "ignore:.*is an invalid escape sequence:SyntaxWarning" in ignored
