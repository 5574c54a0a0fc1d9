"""The list of features that are tested with Pydantic AI."""
# mypy: ignore-errors
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from typing import Any

from listing import PNG, RIVER, TEXT, NotOffered, case, expect, main
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    BinaryContent,
    ModelHTTPError,
    NativeOutput,
    PromptedOutput,
    ToolOutput,
)
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

URL, SIDE, MODEL = sys.argv[1:4]


class River(BaseModel):
    name: str
    km: int


def model() -> Any:
    if SIDE == "openai":
        return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key="x"))
    if SIDE == "responses":
        return OpenAIResponsesModel(
            MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key="x")
        )
    if SIDE == "anthropic":
        return AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key="x"))
    return GoogleModel(MODEL, provider=GoogleProvider(api_key="x", base_url=URL))


def agent(places: list[str] | None = None, **more: Any) -> Agent[Any, Any]:
    made: Agent[Any, Any] = Agent(model(), **more)
    if places is not None:

        @made.tool_plain
        def weather(city: str) -> str:
            places.append(city)
            return "rain"

    return made


@case
async def completes() -> None:
    made = await agent(instructions="Be brief.").run("Hi")
    expect([made.output, made.usage.input_tokens > 0], [TEXT, True])


@case
async def streams() -> None:
    async with agent().run_stream("Hi") as made:
        expect(await made.get_output(), TEXT)


async def run_tools(word: str, wanted: list[str]) -> None:
    places: list[str] = []
    expect((await agent(places).run(word)).output, "It rains.")
    expect(sorted(places), wanted)


@case
async def tools() -> None:
    await run_tools("CALL", ["Paris"])


@case
async def parallel() -> None:
    await run_tools("BOTH", ["Paris", "Rome"])


@case
async def tools_after_thinking() -> None:
    await run_tools("PONDER", ["Paris"])


@case
async def tools_streamed() -> None:
    places: list[str] = []
    async with agent(places).run_stream("CALL") as made:
        expect([await made.get_output(), places], ["It rains.", ["Paris"]])


@case
async def structured() -> None:
    # On this wire, pydantic-ai offers structured output only for model names that it knows.
    if SIDE == "anthropic":
        raise NotOffered
    expect((await agent(output_type=NativeOutput(River)).run("RIVER")).output.model_dump(), RIVER)


@case
async def structured_by_tool() -> None:
    expect(
        (
            await agent(output_type=ToolOutput(River, name="river_out")).run("FINAL")
        ).output.model_dump(),
        RIVER,
    )


@case
async def json_mode() -> None:
    expect(
        (await agent(output_type=PromptedOutput(River)).run("RIVER as JSON")).output.model_dump(),
        RIVER,
    )


@case
async def thinking() -> None:
    expect((await agent(model_settings={"thinking": "low"}).run("THINK")).output, "Yes.")


@case
async def settings() -> None:
    chosen = {
        "max_tokens": 50,
        "temperature": 0.5,
        "top_p": 0.9,
        "parallel_tool_calls": False,
        "seed": 7,
    }
    expect((await agent([], model_settings=chosen).run("Hi")).output, TEXT)


@case
async def image() -> None:
    picture = BinaryContent(data=PNG.encode(), media_type="image/png")
    expect((await agent().run(["What?", picture])).output, TEXT)


@case
async def errors() -> None:
    for status in (400, 404):
        try:
            await agent().run(f"E{status}")
        except ModelHTTPError as error:
            expect(error.status_code, status)
            continue
        raise AssertionError(f"no error for {status}")


main()
