"""Tests of the agent without a model: `pytest examples/test_agent.py` (with pytest-asyncio)."""

from collections.abc import Callable

import pytest
from examples.agent import run

from dragoman import RateLimitError, Retry, ToolResult, connect
from dragoman.sim import Answer, Call, ScriptedProvider, SimServer


@pytest.mark.asyncio
async def test_the_agent_calls_its_tool() -> None:
    model = ScriptedProvider(
        Answer(tool_calls=[Call("days_until", {"day": "2030-01-01"})]), "Some years."
    )
    assert await run(model, "How many days is it until 2030?") == "Some years."
    result = model.requests[-1].messages[-1]
    assert isinstance(result, ToolResult)
    assert result.text.lstrip("-").isdigit()


@pytest.mark.asyncio
async def test_a_limit_is_waited_for() -> None:
    model = Retry(ScriptedProvider(RateLimitError("slow down", retry_after=0.01), "Hello."))
    assert (await model.complete("Hi")).text == "Hello."


@pytest.mark.asyncio
async def test_over_http(
    dragoman_sim: Callable[..., SimServer], dragoman_no_network: None
) -> None:
    sim = dragoman_sim("Hello.")
    async with connect(
        "m", base_url=sim.base_urls["anthropic"], wire="anthropic", api_key="k"
    ) as model:
        assert (await model.complete("Hi", max_tokens=10)).text == "Hello."
    assert len(sim.requests) == 1
