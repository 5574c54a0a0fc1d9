"""Test the running example of the docs from start to end, with real files and the exact sequence
of records.
"""

import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.log import SqliteLog
from dragoman.permission import Decision, Policy, Proposal, Rule, Verdict
from dragoman.provider import Provider
from dragoman.replay import to_steps
from dragoman.session import Session
from dragoman.sim import Answer, Call, ScriptedProvider
from dragoman.tools import workspace_tools

from .playing import check_evidence, of, types

GOAL = "Help me figure out why this project's tests are failing and fix it."
TESTS = f"{sys.executable} -m unittest -q test_add"
OLD = "return a + b + 1"
NEW = "return a + b"

# Each reply: its text, then its tool calls as (tool, arguments).
SCRIPT: list[tuple[str, list[tuple[str, dict[str, Any]]]]] = [
    ("I will run the tests first to see the current failure.", [("bash", {"command": TESTS})]),
    ("", [("read_file", {"path": "test_add.py"}), ("read_file", {"path": "add.py"})]),
    ("add() is off by one.", [("edit_file", {"path": "add.py", "old": OLD, "new": NEW})]),
    ("", [("bash", {"command": TESTS})]),
    ("The tests pass: add() had been off by one.", []),
]


def simulated() -> Provider:
    answers = [
        Answer(words, tool_calls=[Call(name, arguments) for name, arguments in calls])
        for words, calls in SCRIPT
    ]
    return ScriptedProvider(*answers)


ASKED = ["turn.started", "llm.call_started"]
SAID = ["message.recorded", "llm.call_completed"]
RAN = ["tool_intent.validated", "permission.granted", "tool.started", "tool.observed"]
CHAIN = [
    "session.started", "message.recorded",
    *ASKED, "tool_intent.proposed", *SAID, *RAN, "message.recorded",
    *ASKED, "tool_intent.proposed", "tool_intent.proposed", *SAID,
    # The two reads run concurrently, so the order of their eight records is not fixed.
    *["|"] * 8, "message.recorded", "message.recorded",
    *ASKED, "tool_intent.proposed", *SAID,
    "tool_intent.validated", "permission.requested", "permission.granted", "tool.started",
    "tool.observed",
    "message.recorded",
    *ASKED, "tool_intent.proposed", *SAID, *RAN, "message.recorded",
    *ASKED, *SAID, "session.finished",
]  # fmt: skip


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "add.py").write_text(f"def add(a, b):\n    {OLD}\n")
    (folder / "test_add.py").write_text(
        "import unittest\nfrom add import add\n\n\nclass Add(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 2), 4)\n"
    )
    return folder


async def test_agent_fixes_a_failing_test(log: SqliteLog, workspace: Path) -> None:
    policy = Policy(
        [
            Rule("allow", side_effect=["none", "read"], name="reading"),
            Rule("allow", tool="bash", arguments={"command": f"{sys.executable} -m unittest*"},
                 name="tests"),
        ]
    )  # fmt: skip
    asked: list[Proposal] = []

    async def approve(proposal: Proposal, verdict: Verdict) -> Decision:
        asked.append(proposal)
        # the file is unchanged until the edit is approved
        assert (workspace / "add.py").read_text().count(OLD) == 1
        return Decision(True, "ann", reason="looks right")

    session = Session(simulated(), workspace_tools(workspace), policy, log, approve=approve)
    outcome = await session.run(GOAL)
    assert outcome.outcome == "completed"
    assert outcome.text == SCRIPT[-1][0]
    assert (workspace / "add.py").read_text() == f"def add(a, b):\n    {NEW}\n"

    records = list(log.read(session.id))
    begin = CHAIN.index("|")
    assert sorted(types(records)[begin : begin + 8]) == sorted(RAN * 2)
    assert types(records)[:begin] == CHAIN[:begin]
    assert types(records)[begin + 8 :] == CHAIN[begin + 8 :]
    steps = check_evidence(records)
    assert [chain[-1] for chain in steps.values()] == ["tool.observed"] * 5
    assert not [step.notes for step in to_steps(records) if step.notes]
    assert log.verify().ok

    first, *reads, edit, last = of(records, "tool.observed")
    assert first.is_error is True
    assert first.exit_code == 1
    assert "5 != 4" in first.content
    assert any(OLD in read.content for read in reads)
    assert f"-    {OLD}\n+    {NEW}" in edit.content
    assert last.is_error is False
    assert last.exit_code == 0
    grants = of(records, "permission.granted")
    assert [(grant.by, grant.rule) for grant in grants if grant.tool_name == "bash"] == [
        ("policy", "tests")
    ] * 2
    [by_ann] = [grant for grant in grants if grant.by == "ann"]
    assert by_ann.tool_name == "edit_file"
    assert by_ann.reason == "looks right"
    assert [(each.tool_name, each.paths, each.side_effect) for each in asked] == [
        ("edit_file", ("add.py",), "write")
    ]
    started = of(records, "tool.started")[0]
    assert started.context["cwd"] == str(workspace)
    assert started.context["sandbox"].startswith(("bubblewrap", "none ("))
