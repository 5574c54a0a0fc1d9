"""``dragoman guard try`` shows what a guard would have blocked of recorded calls."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman.cli import main
from dragoman.log import SqliteLog
from dragoman.session import Session
from dragoman.sim import Answer, Call, ScriptedProvider
from dragoman.tools import tool

RULES = """
rules:
  - {code: tests, tools: ["*"], action: flag}
  - {code: fixed, pattern: "(?i)pass", on: [text, reply]}
"""
FILE = """
guards:
  commands:
    on: [intent]
    rules: [{code: edits, tools: ["edit*", "write*"]}]
  nothing:
    models: ["elsewhere:*"]
    rules: [{code: any, pattern: "."}]
"""


@tool(side_effect="none")
def edit_file(path: str) -> str:
    """Edit a file."""
    return "done"


@pytest.fixture
async def recorded(tmp_path: Path) -> str:
    place = tmp_path / "log.db"
    model = ScriptedProvider(
        Answer("I edit it.", tool_calls=[Call("edit_file", {"path": "a.py"})]), "The tests pass."
    )
    with SqliteLog(place) as log:
        await Session(model, [edit_file], log=log, session_id="fix").run("Fix the tests.")
    return str(place)


def run(*words: str) -> Any:
    return CliRunner().invoke(main, ["guard", "try", *words])


def test_rules_are_tried_on_the_calls_of_a_log(recorded: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    shown = run(recorded, "--rules", str(rules))
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["JUDGE", "STAGE", "VERDICT", "CODE", "TIMES"],
        ["rules", "intent", "flag", "tests", "1"],
        ["rules", "text", "block", "fixed", "1"],
    ]
    assert lines[-1] == "2 calls judged: 1 blocked (50.0 %), 1 flagged"
    found = json.loads(run(recorded, "--rules", str(rules), "--json").stdout)
    judged = [verdict for trial in found["trials"] for verdict in trial["verdicts"]]
    assert {verdict["judge"] for verdict in judged} == {"rules"}
    assert [trial["blocked"] is not None for trial in found["trials"]] == [False, True]


def test_guard_of_the_file_is_tried_by_its_name(recorded: str, tmp_path: Path) -> None:
    config = tmp_path / "models.yaml"
    config.write_text(FILE)
    shown = run(recorded, "--guard", "commands", "--config", str(config))
    assert shown.exit_code == 0, shown.output
    assert "(sim:sim), its intent [edits]" in shown.output
    assert shown.stdout.splitlines()[-1] == "2 calls judged: 1 blocked (50.0 %), 0 flagged"
    none = run(recorded, "--guard", "nothing", "--config", str(config))
    assert none.stdout.splitlines()[-1] == "0 calls judged: 0 blocked, 0 flagged"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--guard", "none"], "one of commands, nothing"),
        ([], "name a guard with --guard: one of commands, nothing"),
        (["--guard", "commands", "--rules", "FILE"], "give --guard or --rules"),
    ],
)
def test_guard_that_is_not_clear_is_a_usage_error(
    recorded: str, tmp_path: Path, options: list[str], problem: str
) -> None:
    config = tmp_path / "models.yaml"
    config.write_text(FILE)
    given = [str(config) if each == "FILE" else each for each in options]
    shown = run(recorded, *given, "--config", str(config))
    assert shown.exit_code == 2
    assert problem in shown.output
