"""The page shows the recorded outcome of every library and program."""

import json
from pathlib import Path

from tests.gateway.upstream import WIRES

from .results import PAGE, TITLE, read_results, record_outcomes, write_section
from .test_agents import AGENTS
from .test_claude_code import CLIENT as CLAUDE_CODE
from .test_libraries import ROUTES


def test_page_shows_the_recorded_results() -> None:
    _, title, section = PAGE.read_text().partition(TITLE)
    assert title + section == write_section(read_results())


def test_results_exist_only_for_existing_tests() -> None:
    known = {f"{name}, {side}" for name, side in ROUTES}
    known |= {*AGENTS, CLAUDE_CODE}
    results = read_results()
    assert results
    assert set(results) <= known
    assert {
        wire for features in results.values() for each in features.values() for wire in each
    } <= {*WIRES}


def test_outcomes_of_a_later_run_replace_earlier_outcomes(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    record_outcomes("a", "openai", {"lists": "yes", "old": "yes"}, file)
    record_outcomes("a", "gemini", {"lists": "no: ValueError: not that"}, file)
    record_outcomes("a", "openai", {"lists": "no"}, file)
    results = json.loads(file.read_text())
    assert results == {"a": {"lists": {"openai": "no", "gemini": "no"}}}
    results["a"]["abort"] = {"openai": "yes", "gemini": "–"}
    results["b, chat"] = results["b, native"] = {
        "lists": {"openai": "yes"},
        "aJoke": {"openai": "–"},
    }
    section = write_section(results)
    shown = "lists (not with gemini, openai), abort (not with gemini)"
    assert f"- a (openai, gemini): {shown}\n" in section
    assert "- b: chat, native (openai): lists; cannot be requested: a joke\n" in section
