"""Sessions with tools and thinking are accepted by models that refuse what vendors refuse.

A context policy shortens the conversation in the middle of a tool loop. The models that bind
thinking to its prefix drop what follows the change, and all others get the thinking of each turn
that is still sent.
"""

from __future__ import annotations

from typing import Any

import pytest

import dragoman as d
from dragoman.log import MemoryLog
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule, SimServer
from dragoman.tools import tool
from tests.loops import SETTINGS, UPSTREAMS, Upstream, find_returned

from .playing import ALL, of

TURNS = 6
WINDOW = 2_500
POLICIES: dict[str, Any] = {
    "results": d.DropOldToolResults(window=WINDOW),
    "window": d.Window(window=WINDOW),
    "summary": d.Summarise(window=WINDOW),
    "native": d.NativeCompaction(window=WINDOW),
}


@tool(side_effect="read")
def look(at: str) -> str:
    """Look at a place."""
    return f"{at}: " + "the quick brown fox jumps over the lazy dog " * 60


def play(upstream: Upstream) -> ScriptedProvider:
    """Return a model that thinks and looks in each of its turns, and then answers."""
    asked = 0

    def answer(request: d.Request) -> Answer:
        nonlocal asked
        if not request.tools:
            return Answer("A summary.")
        asked += 1
        if asked > TURNS:
            return Answer("Done.", thinking="Last.")
        return Answer(
            thinking=f"Thought {asked}.",
            text="Let me see.",
            tool_calls=[Call("look", {"at": f"place {asked}"})],
        )

    return ScriptedProvider(ScriptRule(answer), strict=True, vendor=upstream.vendor)


def count_turns(upstream: Upstream, request: d.Request) -> int:
    """Return the number of turns with thinking that a request sends back."""
    turns = [each for each in request.messages if isinstance(each, d.Assistant)]
    return len([turn for turn in turns if turn.tool_calls or upstream.returns != "call"])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("upstream", UPSTREAMS, ids=[each.name for each in UPSTREAMS])
async def test_session_is_accepted_and_its_thinking_comes_back(
    upstream: Upstream, policy: str
) -> None:
    log = MemoryLog()
    with SimServer(play(upstream)) as sim:
        model = sim.connect(upstream.wire, upstream.model, vendor=upstream.vendor)
        config = d.RuntimeConfig(**SETTINGS, reasoning="high")
        async with model:
            session = d.Session(model, [look], ALL, log, context=POLICIES[policy], config=config)
            outcome = await session.run("Look everywhere.")
            again = await session.run("And now?")
            shortens = policy != "native" or model.compaction(WINDOW) is None
    assert outcome.text == "Done."
    assert again.text == "Done."
    assert sim.refused == []
    assert bool(of([*log.read(session.id)], "context.projected")) is shortens
    for request in sim.requests:
        if upstream.returns is not None and request.tools:
            assert len(find_returned(upstream, request)) == count_turns(upstream, request)
