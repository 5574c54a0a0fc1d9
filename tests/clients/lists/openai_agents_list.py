"""The list of features that are tested with the OpenAI Agents SDK."""
# mypy: ignore-errors
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from listing import RIVER, TEXT, case, expect, main
from openai import AsyncOpenAI
from pydantic import BaseModel

URL, SIDE, MODEL = sys.argv[1:4]
set_tracing_disabled(True)


class River(BaseModel):
    name: str
    km: int


def agent(**more: Any) -> Any:
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="x", max_retries=0)
    kind: Any = OpenAIResponsesModel if SIDE == "responses" else OpenAIChatCompletionsModel
    return Agent(name="Ann", instructions="Be brief.", model=kind(MODEL, client), **more)


@case
async def completes() -> None:
    made = await Runner.run(agent(), "Hi")
    expect([made.final_output, made.raw_responses[0].usage.input_tokens > 0], [TEXT, True])


@case
async def streams() -> None:
    made = Runner.run_streamed(agent(), "Hi")
    async for _ in made.stream_events():
        pass
    expect(made.final_output, TEXT)


async def run_tools(
    word: str, wanted: list[str], *, stream: bool = False, **settings: Any
) -> None:
    places: list[str] = []

    @function_tool
    def weather(city: str) -> str:
        """Return the weather in a city."""
        places.append(city)
        return "rain"

    chosen = agent(tools=[weather], model_settings=ModelSettings(**settings))
    if stream:
        made: Any = Runner.run_streamed(chosen, word)
        async for _ in made.stream_events():
            pass
    else:
        made = await Runner.run(chosen, word)
    expect([made.final_output, sorted(places)], ["It rains.", wanted])


@case
async def tools() -> None:
    await run_tools("CALL", ["Paris"])


@case
async def tools_streamed() -> None:
    await run_tools("CALL", ["Paris"], stream=True)


@case
async def parallel() -> None:
    await run_tools("BOTH", ["Paris", "Rome"], parallel_tool_calls=True)


@case
async def tools_after_thinking() -> None:
    await run_tools("PONDER", ["Paris"])


@case
async def structured() -> None:
    expect((await Runner.run(agent(output_type=River), "RIVER")).final_output.model_dump(), RIVER)


@case
async def handoff() -> None:
    other = Agent(
        name="weather", handoff_description="W", instructions="I am weather.", model=agent().model
    )
    made = await Runner.run(agent(handoffs=[other]), "HANDOFF")
    expect([made.final_output, made.last_agent.name], ["It rains.", "weather"])


@case
async def turns() -> None:
    first = await Runner.run(agent(), "Hi")
    second = await Runner.run(
        agent(), [*first.to_input_list(), {"role": "user", "content": "THINK"}]
    )
    expect(second.final_output, "Yes.")


main()
