"""The LangChain page lists exactly those of LangChain's standard tests that are skipped."""

import os
import re
import subprocess
import sys

import pytest

from tests.pages import ROOT

SUITES = [
    "tests/integrations/test_langchain.py",
    "tests/integrations/test_langchain_embeddings.py",
]
WIRES = ("Openai", "Anthropic", "Responses", "Gemini", "Ollama")


def read_page() -> set[tuple[str, str]]:
    """Return the pairs of test and wire that the page lists, except those for the embedded model."""
    page = (ROOT / "docs" / "howto" / "frameworks.md").read_text()
    table = page.partition("| test | where | reason |\n")[2].partition("\n\n")[0]
    found: set[tuple[str, str]] = set()
    for line in table.splitlines()[1:]:
        tests, where, _ = [cell.strip() for cell in line.split("|")[1:-1]]
        if where == "embedded model":
            continue
        wires = ("all",) if where == "all" else tuple(where.split(", "))
        # Text after a semicolon names a test that runs, but skips some of its parts.
        names = re.findall(r"`(test_\w+)`", tests.partition(";")[0])
        found |= {(name, wire) for name in names for wire in wires}
    return found


@pytest.mark.exhaustive
@pytest.mark.skipif(
    os.environ.get("DRAGOMAN_EXHAUSTIVE") != "1", reason="runs the suites of LangChain again"
)
def test_page_lists_the_skipped_tests_of_langchain() -> None:
    command = [sys.executable, "-m", "pytest", "-v", "-n", "0", "-p", "no:cacheprovider", *SUITES]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:]
    lines = re.findall(r"^\S+::Test(\w+)::(test_\w+)\S* (?:SKIPPED|XFAIL)", done.stdout, re.M)
    skipped = {(name, suite) for suite, name in lines}
    everywhere = {name for name, _ in skipped if {(name, wire) for wire in WIRES} <= skipped}
    assert {
        (name, "all" if suite == "Unit" or name in everywhere else suite)
        for name, suite in skipped
    } == read_page()
