"""Checks of tool calls by families of schemas: how often the arguments fit the schema."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
from msgspec import Struct

from .. import errors
from .. import messages as m
from ..validate.quality import FAULTS, SOUND, judge_calls, rate_calls
from .server import Server


class Family(Struct, frozen=True):
    """A kind of schema: a tool that has it, and questions that lead to a call of the tool."""

    name: str
    title: str
    tool: m.Tool
    questions: tuple[str, ...]


FAMILIES = msgspec.json.decode(
    Path(__file__).with_suffix(".json").read_bytes(), type=tuple[Family, ...]
)
"""The families of schemas that ``dragoman check`` tries."""


async def judge_family(family: Family, server: Server) -> dict[str, int]:
    """Ask the questions of a family; return how many calls were sound, and how many had faults."""
    request = m.Request((), tools=(family.tool,))
    found: Counter[str] = Counter()
    for question in family.questions:
        error = None
        try:
            reply = await server.ask(
                f"{question} Use the tool.", tools=[family.tool], tool_choice="required",
                config={"max_tokens": server.max_tokens * 4}, check_calls=False,
            )  # fmt: skip
        except errors.MalformedToolCallError as unreadable:
            reply = unreadable.response
            error = unreadable
        found.update(judge_calls(request, reply, error))
    server.judged[family.name] = dict(found)
    return dict(found)


def describe_calls(outcomes: dict[str, int]) -> str:
    """Return a line with the number of sound calls, and the faults of the other calls."""
    total = sum(outcomes.values())
    faults = [f"{outcomes[name]} {name}" for name in FAULTS if outcomes.get(name)]
    return ", ".join([f"{outcomes.get(SOUND, 0)} of {total} calls sound", *faults])


def describe_rate(judged: dict[str, dict[str, int]]) -> str | None:
    """Return the rate of faulty calls over all families; ``None`` if no calls came."""
    total: Counter[str] = Counter()
    for outcomes in judged.values():
        total.update(outcomes)
    rate = rate_calls(total)["faulty"]
    return f"{rate.count} of {rate.total}, {rate}" if total else None
