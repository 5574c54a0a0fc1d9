"""Edits of a conversation that thinking is bound to: the run goes on, and the loss is reported.

Newer Claude models bind thinking to the system prompt, the tools and the messages before it. Each
test makes one edit that Dragoman or its caller makes, against a simulator that checks this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import Struct

import dragoman as d
from dragoman.log import MemoryLog
from dragoman.sim import Answer, Call, ScriptedProvider, SimServer
from dragoman.tools import tool
from tests.loops import TOOL

from .playing import ALL, of

MODELS = [
    ("anthropic", "anthropic", "claude-opus-5-5"),
    ("anthropic", "anthropic", "claude-sonnet-5-5"),
    ("bedrock", "bedrock", "us.anthropic.claude-opus-5-5-v1:0"),
    ("bedrock", "bedrock", "us.anthropic.claude-haiku-5-5-v1:0"),
]
OTHERS = {"anthropic": "claude-haiku-5-5", "bedrock": "us.anthropic.claude-sonnet-5-5-v1:0"}
EACH = pytest.mark.parametrize(("wire", "vendor", "model"), MODELS)
CONFIG = d.RuntimeConfig(max_tokens=60000, reasoning="high")
LOOK = Answer(thinking="I look.", text="Let me see.", tool_calls=[Call("look", {"at": "x"})])
DONE = Answer("Done.", thinking="That is all.")
BAD = Answer('{"at": 5}', thinking="A number.")
GOOD = Answer('{"at": "x"}', thinking="A text.")


@tool(side_effect="read")
def look(at: str) -> str:
    """Look at a place."""
    return f"{at}: there"


@tool(side_effect="read", deferred=True)
def refund(order: str) -> str:
    """Refund an order."""
    return f"{order}: refunded"


class Place(Struct):
    at: str


def serve(vendor: str, *answers: Any) -> SimServer:
    return SimServer(ScriptedProvider(*answers, strict=True, vendor=vendor))


def check_losses(
    sim: SimServer, warnings: Iterable[Iterable[d.LossWarning]], dropped: list[int]
) -> None:
    """Check what each request lost, that none was refused, and that each loss is reported."""
    assert sim.refused == []
    assert sim.dropped == dropped
    warned = ["thinking_unbound" in {each.code for each in reply} for reply in warnings]
    assert warned == [lost > 0 for lost in dropped]


def read_warnings(session: d.Session[Any]) -> list[tuple[d.LossWarning, ...]]:
    """Return the warnings of each reply that the log of a session has."""
    messages = of([*session.log.read(session.id)], "message.recorded")
    return [each.warnings for each in messages if isinstance(each.message, d.Assistant)]


@EACH
async def test_tool_that_a_search_finds(wire: str, vendor: str, model: str) -> None:
    search = Answer(thinking="I search.", tool_calls=[Call("search_tools", {"query": "refund"})])
    use = Answer(thinking="I refund.", tool_calls=[Call("refund", {"order": "7"})])
    quirks = {"tool_search": False} if wire == "anthropic" else {}
    with serve(vendor, LOOK, search, use, DONE) as sim:
        async with sim.connect(wire, model, vendor=vendor, quirks=quirks) as provider:
            session = d.Session(provider, [look, refund], ALL, MemoryLog(), config=CONFIG)
            assert (await session.run("Refund 7.")).text == "Done."
    assert [len(each.tools) for each in sim.requests] == [2, 2, 3, 3]
    check_losses(sim, read_warnings(session), [0, 0, 2, 2])


@EACH
async def test_swap_and_back(wire: str, vendor: str, model: str) -> None:
    with serve(vendor, LOOK, DONE, LOOK, DONE, LOOK, DONE) as sim:
        first = sim.connect(wire, model, vendor=vendor)
        second = sim.connect(wire, OTHERS[wire], vendor=vendor)
        async with first, second:
            session = d.Session(first, [look], ALL, MemoryLog(), config=CONFIG)
            await session.run("Where?")
            plan = await session.swap(second)
            assert (await session.run("And now?")).text == "Done."
            back = await session.swap(first)
            assert (await session.run("And then?")).text == "Done."
    assert sim.refused == []
    assert "thinking_dropped" in {each.rule for each in plan.losses}
    assert "thinking_dropped" in {each.rule for each in back.losses}
    swapped = of([*session.log.read(session.id)], "model.swapped")
    losses = [[each.code for each in record.losses] for record in swapped]
    assert [each.count("thinking_dropped") for each in losses] == [2, 2]


@EACH
async def test_corrected_answer(wire: str, vendor: str, model: str) -> None:
    with serve(vendor, LOOK, DONE, BAD, GOOD) as sim:
        async with sim.connect(wire, model, vendor=vendor) as provider:
            session = d.Session(provider, [look], ALL, MemoryLog(), config=CONFIG, output=Place)
            assert (await session.run("Where?")).output == Place("x")
    # The correction follows the conversation, and the schema is a field of the request. But the
    # session forbids calls in its last answer, and Converse can do so only without the tools.
    lost = 2 if wire == "bedrock" else 0
    check_losses(sim, read_warnings(session), [0, 0, lost, lost])


@EACH
async def test_schema_in_the_prompt(wire: str, vendor: str, model: str) -> None:
    with serve(vendor, LOOK, DONE, BAD, GOOD, DONE) as sim:
        quirks = {"structured": "prompt"}
        async with sim.connect(wire, model, vendor=vendor, quirks=quirks) as provider:
            session = d.Session(provider, [look], ALL, MemoryLog(), config=CONFIG, output=Place)
            assert (await session.run("Where?")).output == Place("x")
    assert len({str(each.messages[0]) for each in sim.requests}) > 1
    check_losses(sim, read_warnings(session), [0, 0, 2, 2])


@EACH
@pytest.mark.parametrize("stream", [False, True])
async def test_changed_system_prompt_and_tools(
    wire: str, vendor: str, model: str, stream: bool
) -> None:
    other = d.Tool("other", "Another tool.", parameters=TOOL.parameters)
    offers = [("Be terse.", [TOOL]), ("Be verbose.", [TOOL]), ("Be verbose.", [TOOL, other])]
    replies: list[d.Response] = []
    messages: list[d.Message] = [d.User("Where?")]
    with serve(vendor, LOOK, LOOK, DONE) as sim:
        async with sim.connect(wire, model, vendor=vendor) as provider:
            for system, tools in offers:
                asked = [d.System(system), *messages]
                if stream:
                    async with provider.stream(asked, tools, config=CONFIG) as events:
                        async for _event in events:
                            pass
                    reply = events.response
                else:
                    reply = await provider.complete(asked, tools, config=CONFIG)
                replies.append(reply)
                messages.append(reply.message)
                messages += [d.ToolResult(call.id, "there") for call in reply.tool_calls]
    assert replies[-1].text == "Done."
    check_losses(sim, [each.warnings for each in replies], [0, 1, 2])
