"""The loop: what it asks, what it writes, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.log import SqliteLog
from dragoman.permission import Policy, Rule
from dragoman.session import Session
from dragoman.tools import tool

from ..listed import Listed
from .playing import call, of, propose, types

ALL = Policy([Rule("allow")])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    with SqliteLog(tmp_path / "log.db") as opened:
        yield opened


ran: list[Any] = []


@tool(side_effect="read")
def look(word: str) -> str:
    """Look a word up."""
    ran.append(word)
    return f"{word}: found"


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


async def test_one_call_and_an_answer(log: SqliteLog) -> None:
    provider = Listed(propose(call("look", word="ox"), words="Let me look."), "An ox is an animal.")
    session = Session(provider, [look], ALL, log, system="Be terse.")
    outcome = await session.run("What is an ox?")
    assert (outcome.outcome, outcome.text, outcome.spent.turns) == ("completed", "An ox is an animal.", 2)
    records = list(log.read(session.id))
    assert types(records) == [
        "session.started",
        "message.recorded",
        "message.recorded",
        "turn.started",
        "llm.call_started",
        "tool_intent.proposed",
        "message.recorded",
        "llm.call_completed",
        "tool_intent.validated",
        "permission.granted",
        "tool.started",
        "tool.observed",
        "message.recorded",
        "turn.started",
        "llm.call_started",
        "message.recorded",
        "llm.call_completed",
        "session.finished",
    ]
    assert log.verify().ok
    assert ran == ["ox"]
    assert of(records, "tool.observed")[0].content == "ox: found"
