"""Test reading a recorded run: a summary of each step, and notes about contradictions between
records.
"""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dragoman import log as logs
from dragoman.log.record import draft_record, link_record
from dragoman.replay import Totals, count_totals, describe, read_steps, shorten, to_steps

from ..log.samples import SAMPLES
from ..story import GOAL, STORY, intent, tell


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with logs.SqliteLog(tmp_path / "log.db") as log:
        yield log


def record(payload: Any) -> logs.LogRecord:
    if isinstance(payload, logs.RecordErased):
        with logs.MemoryLog() as log:
            log.append_sync("s", logs.TurnStarted(1))
            log.erase("s", [1])
            return next(log.read("s"))
    is_of_log = isinstance(payload, logs.LogPruned | logs.LogErased)
    return link_record(draft_record("dragoman.log" if is_of_log else "s", payload), None)


def test_steps_are_in_order_and_grouped_by_tool_proposal(log: logs.EventLog) -> None:
    tell(log)
    steps = list(read_steps(log, "fix"))
    assert [step.seq for step in steps] == list(range(1, len(STORY) + 1))
    assert [step.type for step in steps if step.intent == "tu_3"] == [
        "tool_intent.proposed",
        "permission.requested",
        "permission.granted",
        "tool.started",
        "tool.observed",
    ]
    assert [step.type for step in steps if step.intent == "tu_2"] == [
        "tool_intent.proposed",
        "permission.denied",
    ]
    assert [step.notes for step in steps if step.notes] == []
    assert steps[0].title == f"session anthropic:claude-sonnet-4-6 with bash, edit_file: {GOAL}"
    assert steps[-1].title == "finished completed after 4 turns"
    assert [step.seq for step in read_steps(log, "fix", after=30)] == list(
        range(31, len(STORY) + 1)
    )


def test_totals_of_a_session_are_summed(log: logs.EventLog) -> None:
    tell(log)
    assert count_totals(log, "fix") == Totals(
        goal=GOAL, outcome="completed", turns=4, calls=4, failed_calls=1, input_tokens=5600,
        output_tokens=205,
        cached_input_tokens=3900, cost_usd=Decimal("0.008295"), unpriced=1, proposed=3, allowed=2,
        denied=1, ran=2,
    )  # fmt: skip
    assert count_totals(log, "nobody") == Totals()


@pytest.mark.parametrize(("kind", "payload"), [(kind, payload) for kind, payload, *_ in SAMPLES])
def test_every_record_type_has_a_readable_summary(kind: str, payload: Any) -> None:
    words = describe(record(payload))
    assert 3 < len(words) <= 160
    assert words.isprintable()
    assert not words.startswith("{"), "this is the payload and no words"


def test_summaries_are_tested_for_every_record_type() -> None:
    assert {kind for kind, *_ in SAMPLES} == set(logs.CATALOGUE)


RUN = {"command": "ls"}
PROPOSED = intent(1, "bash", RUN)
GRANTED = logs.PermissionGranted(intent_id="tu_1", tool_name="bash", by="policy")
STARTED = logs.ToolStarted("tu_1", "bash", RUN)
OBSERVED = logs.ToolObserved(intent_id="tu_1", tool_name="bash", content="a\nb")
ODD: list[tuple[list[Any], list[str]]] = [
    ([PROPOSED, GRANTED, STARTED, OBSERVED], []),
    ([PROPOSED, STARTED, OBSERVED], ["it ran without a decision"]),
    (
        [
            PROPOSED,
            logs.PermissionDenied(intent_id="tu_1", tool_name="bash", by="policy"),
            STARTED,
        ],
        ["it ran although it was denied"],
    ),
    ([PROPOSED, GRANTED, STARTED, OBSERVED, STARTED], ["it ran before"]),
    (
        [PROPOSED, GRANTED, logs.ToolStarted("tu_1", "bash", {"command": "rm"})],
        ["the input is not the one proposed"],
    ),
    ([PROPOSED, GRANTED, OBSERVED], ["there is no record that it began to run"]),
    (
        [
            PROPOSED,
            GRANTED,
            logs.ToolFailed(intent_id="tu_1", tool_name="bash", kind="crash", message=""),
        ],
        ["there is no record that it began to run"],
    ),
    ([GRANTED], ["no such intent was proposed"]),
    ([PROPOSED, PROPOSED], ["the same intent was proposed before"]),
    ([PROPOSED, STARTED, GRANTED], ["it ran without a decision", "decided after it had run"]),
    ([PROPOSED, logs.SessionFinished("completed")], ["left open: bash (tu_1)"]),
    ([PROPOSED, GRANTED, STARTED, OBSERVED, logs.SessionFinished("completed")], []),
]


@pytest.mark.parametrize(("payloads", "notes"), ODD)
def test_steps_that_lack_a_proposal_or_a_decision_have_a_note(
    payloads: list[Any], notes: list[str]
) -> None:
    steps = to_steps([record(payload) for payload in payloads])
    assert [note for step in steps for note in step.notes] == notes


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("one\n two\t 3", "one two 3"),
        ("\x1b[31mred", "\ufffd[31mred"),
        ("x" * 10, "x" * 10),
        ("x" * 11, "x" * 9 + "…"),
        ("x" + " " * 1000, "x…"),
        ("", ""),
    ],
)
def test_summary_of_a_record_is_one_line(text: str, short: str) -> None:
    assert shorten(text, 10) == short


def test_step_that_ends_twice_has_a_note(log: logs.EventLog) -> None:
    for payload in (
        logs.SessionStarted(goal="Go."),
        intent(1, "pay", {}),
        logs.PermissionGranted(intent_id="tu_1", tool_name="pay", by="policy"),
        logs.ToolStarted("tu_1", "pay", {}),
        logs.ToolIntentClosed("tu_1", "the session ended before this came to an end"),
        logs.ToolObserved(intent_id="tu_1", tool_name="pay", content="paid"),
        logs.SessionFinished("completed"),
        logs.SessionFinished("completed"),
        logs.SessionResumed(after=8, epoch=2),
        logs.SessionFinished("completed"),
    ):
        log.append_sync("s", payload)
    notes = {
        step.seq: step.notes
        for step in read_steps(log, "s")
        if step.notes and step.type != "tool.started"
    }
    assert notes == {6: ("it had come to an end before",), 8: ("the session had ended before",)}
