"""A model that continues the turn of another one gets a request that its vendor accepts."""

import itertools

import pytest

import dragoman as d
from dragoman.middleware import Fallback
from dragoman.sim import Answer, Call, ScriptedProvider, SimServer
from dragoman.tools import tool
from tests.gateway.upstream import EXHAUSTIVE

TOOL = d.Tool(
    "look", "Looks.", parameters={"type": "object", "properties": {"at": {"type": "string"}}}
)
LOOK = Answer(thinking="Hm.", text="Let me see.", tool_calls=[Call("look", {"at": "x"})])
DOWN = d.UnavailableError("the server is down", status=503)
CONFIG = d.RuntimeConfig(reasoning="high", max_tokens=60_000)
# Each entry: the wire, the vendor and a model whose rules are strict.
MODELS = (
    ("anthropic", "anthropic", "claude-sonnet-4-5"),
    ("bedrock", "bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
    ("responses", "openai", "gpt-6.1-sol"),
    ("gemini", "google", "gemini-3.7-flash"),
    ("openai", "deepseek", "deepseek-v4-pro"),
    ("ollama", None, "a-model"),
    ("cohere", None, "a-model"),
)
PAIRS = list(itertools.permutations(MODELS, 2))
SAMPLE = PAIRS if EXHAUSTIVE else PAIRS[::5]


def serve(vendor: str | None, *answers: Answer | str | d.ProviderError) -> SimServer:
    return SimServer(ScriptedProvider(*answers, strict=True, vendor=vendor))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("first", "second"), SAMPLE, ids=lambda each: each[0])
async def test_fallback_continues_an_open_turn_and_the_first_model_goes_on(
    first: tuple[str, str | None, str], second: tuple[str, str | None, str]
) -> None:
    wire, vendor, model = first
    other_wire, other_vendor, other_model = second
    with serve(vendor, LOOK, DOWN, LOOK, "Done.") as one, serve(other_vendor, LOOK) as two:
        candidates = [
            one.connect(wire, model, vendor=vendor),
            two.connect(other_wire, other_model, vendor=other_vendor),
        ]
        group = Fallback(candidates)
        messages: list[d.Message] = [d.User("Where?")]
        async with group:
            for _ in range(4):
                reply = await group.complete(messages, [TOOL], CONFIG)
                messages.append(reply.message)
                messages += [d.ToolResult(call.id, "there") for call in reply.tool_calls]
    assert reply.text == "Done."
    assert len(one.requests) == 4
    assert len(two.requests) == 1


@tool(side_effect="read")
def look(at: str) -> str:
    """Look at a place."""
    return "there"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("first", "second"), SAMPLE[::2], ids=lambda each: each[0])
async def test_session_continues_an_open_turn_with_another_model(
    first: tuple[str, str | None, str], second: tuple[str, str | None, str]
) -> None:
    wire, vendor, model = first
    other_wire, other_vendor, other_model = second
    with serve(vendor, LOOK, LOOK, DOWN) as one, serve(other_vendor, LOOK, "Done.") as two:
        provider = one.connect(wire, model, vendor=vendor)
        other = two.connect(other_wire, other_model, vendor=other_vendor)
        async with provider, other:
            session = d.Session(provider, [look], config=CONFIG)
            await session.step("Where?")
            await session.swap(other)
            outcome = await session.run()
    assert outcome.text == "Done."
    assert len(two.requests) == 2
