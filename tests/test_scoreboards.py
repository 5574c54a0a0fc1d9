"""The page of scoreboards: what passed, what failed and why."""

import random

import pytest
from scoreboards.__main__ import PAGE, renew
from scoreboards.bfcl import (
    CONTROLS,
    WIRES,
    Case,
    Trip,
    convert,
    read_calls,
    try_case,
    try_controls,
)
from scoreboards.bfcl_gateway import CONTROLS as GATEWAY_CONTROLS
from scoreboards.bfcl_gateway import send_all
from scoreboards.board import Board, judge
from scoreboards.event_streams import WPT, read_events
from scoreboards.mcp import find_scenarios, read_outcome

import dragoman as d


def test_section_lists_failures_with_their_reasons() -> None:
    board = Board("b", "Title", "About.", {"suite": "1.2"}, expected={("b", "*"): "no login yet"})
    board.cells = {("a", "x"): "", ("b", "x"): "login failed", ("c", "x"): "a login of b fails"}
    shown = board.show()
    assert "**1 of 3 passed.**" in shown
    assert "Run with suite 1.2." in shown
    assert "- x: a\n" in shown
    assert "| b | x | no login yet |" in shown
    assert "| c | x | not expected: a login of b fails |" in shown
    assert board.surprises == ["c, x: a login of b fails"]


def test_reason_that_explains_no_failure_and_control_that_misses_are_reported() -> None:
    board = Board("b", "Title", "About.", expected={("a", "x"): "no login yet"})
    board.cells = {("a", "x"): ""}
    board.controls = {"noticed": (3, 3), "missed": (2, 3), "never tried": (0, 0)}
    assert board.surprises == [
        "a, x: no failure has this reason any longer",
        "control 'missed': noticed 2 of 3 times",
        "control 'never tried': noticed 0 of 0 times",
    ]


@pytest.mark.parametrize(
    ("losses", "outcome"),
    [
        ([], "tools[1].parameters: sent 'a', arrived 'b'"),
        (["tools[1].parameters.items"], "reported"),
        (["tools[1]"], "reported"),
        (["tools[10].parameters", "config.seed", "tools[1].description"],
         "tools[1].parameters: sent 'a', arrived 'b'"),
    ],
)  # fmt: skip
def test_reported_loss_excuses_only_a_change_at_its_place(losses: list[str], outcome: str) -> None:
    parts = {"tools[0].parameters": ("c", "c"), "tools[1].parameters": ("a", "b")}
    assert judge(parts, losses) == outcome
    assert judge({"tools[0]": ("c", "c")}, losses) == "equal"


def test_suite_that_cannot_be_run_is_reported() -> None:
    board = Board("b", "Title", "About.", missing="npm is not installed")
    assert board.surprises == ["npm is not installed"]
    assert "Not run: npm is not installed" in board.show()


def test_outcomes_of_the_mcp_suite_are_read() -> None:
    listing = "Client scenarios (test against a client):\n  - a/b [2025-06-18,extension]\n\nOther:"
    assert find_scenarios(listing) == [("a/b", "2025-06-18"), ("a/b", "extension")]
    assert read_outcome("s", "Passed: 2/2, 0 failed\n\x1b[32mOVERALL: PASSED\x1b[0m") == ""
    skipped = (
        "[token  ] SUCCESS x\n[schema-$id ] \x1b[33mSKIPPED\x1b[0m y\nPassed: 1/1, 0 failed\n"
    )
    assert read_outcome("s", f"{skipped}OVERALL: PASSED") == "s: skipped schema-$id"
    assert read_outcome("s", "Passed: 0/0, 0 failed\nOVERALL: PASSED") == "s: no check was made"
    failed = "[token  ] FAILURE x\nPassed: 1/2, 1 failed\nOVERALL: FAILED"
    assert read_outcome("s", failed) == "s: token"
    assert read_outcome("s", "crash") == "s: no result: crash"


def test_cases_of_bfcl_are_read_and_sent() -> None:
    types = {"dict": "object", "float": "number"}
    given = {"type": "dict", "properties": {"type": {"type": "float", "default": 1.5}}}
    schema = {"type": "object", "properties": {"type": {"type": "number", "default": 1.5}}}
    assert convert(given, types) == schema
    calls = read_calls([{"math.sum": {"type": [2.5, 3], "unused": ["", 1]}}])
    assert [(call.name, call.arguments) for call in calls] == [("math.sum", {"type": 2.5})]
    case = Case("1", "Add.", [d.Tool("math.sum", "", parameters=schema)], calls)
    for wire in ("openai", "cohere", "bedrock"):
        assert {outcome for _, outcome in try_case(Trip(wire), case)} == {"equal"}


@pytest.mark.parametrize("name", CONTROLS)
def test_damage_to_each_compared_part_of_an_exchange_is_noticed(name: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "number", "default": 1.5}}}
    calls = [d.ToolCall("call_0", "sum", {"a": 2.5}), d.ToolCall("call_1", "sum", {"a": 3.5})]
    case = Case("1", "Add.", [d.Tool("sum", "Add.", parameters=schema)], calls)
    assert try_controls([case])[name] == (1, 1)


async def test_cases_of_bfcl_go_through_the_gateway() -> None:
    schema = {"type": "object", "properties": {"type": {"type": "number", "default": 1.5}}}
    call = d.ToolCall("c", "math.sum", {"type": 2.5})
    case = Case("1", "Add.", [d.Tool("math.sum", "Add.", parameters=schema)], [call])
    counts, wrong = await send_all([case] * 49)
    assert set(wrong.values()) == {""}
    for damage in GATEWAY_CONTROLS.values():
        damaged, _ = await send_all([case] * 7, damage)
        assert {outcome for _, _, outcome in damaged} == {"changed"}
    assert {(wire, outcome) for wire, _, outcome in counts} == {(wire, "equal") for wire in WIRES}
    assert counts.total() == 49


@pytest.mark.parametrize("name", WPT)
def test_format_tests_of_event_streams_pass(name: str) -> None:
    text, wanted = WPT[name]
    for seed in (None, 1, 2, 3):
        rng = None if seed is None else random.Random(seed)
        assert [data for _, data in read_events(text.encode(), rng)] == wanted


def test_run_of_one_suite_leaves_the_sections_of_the_others() -> None:
    page = PAGE.read_text("utf-8")
    assert renew(page, []) == page
    made = renew(page, [Board("mcp", "MCP conformance", "About.", {"suite": "1.2"})])
    assert [line for line in made.split("\n") if line.startswith("## ")] == [
        line for line in page.split("\n") if line.startswith("## ")
    ]
    assert "with suite 1.2." in made
    assert "tools_call" not in made
