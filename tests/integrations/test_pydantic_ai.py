"""Test Pydantic AI agents with Dragoman's models, over real sockets to a scripted server."""

import asyncio
from typing import Any

import pytest
from pydantic_ai import (
    Agent,
    BinaryContent,
    ModelRetry,
    NativeOutput,
    PromptedOutput,
    RunContext,
    ToolOutput,
    UsageLimits,
)
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelHTTPError,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
)
from pydantic_ai.messages import ModelResponse, ThinkingPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel

import dragoman as d
from dragoman.integrations.pydantic_ai import DragomanLossWarning, DragomanModel
from dragoman.sim import Answer, Call, ScriptedProvider, SimServer

from ..listed import Listed, speak
from .obliging import USAGE, WIRES, City

pytestmark = pytest.mark.filterwarnings(
    "default::dragoman.integrations.pydantic_ai.DragomanLossWarning"
)


@pytest.fixture(params=WIRES)
def model(request: pytest.FixtureRequest, server: SimServer) -> DragomanModel:
    wire = request.param
    return DragomanModel(
        "sim-1", base_url=server.base_urls[wire], wire=wire, settings={"max_tokens": 500}
    )


async def test_agent_returns_the_text_of_the_reply(model: Model) -> None:
    result = await Agent(model, instructions="Be brief.").run("Hello?")
    assert result.output.startswith("Hello from the scripted model")
    assert result.usage.output_tokens == 10
    response = result.all_messages()[-1]
    assert isinstance(response, ModelResponse)
    assert response.finish_reason == "stop"


async def test_agent_streams_the_text_of_the_reply(model: Model) -> None:
    agent = Agent(model)
    async with agent.run_stream("Hello?") as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        assert len(pieces) > 1
    assert "".join(pieces) == await result.get_output()
    assert result.usage.output_tokens == 10


async def test_stream_without_content_is_an_error_of_pydantic_ai() -> None:
    agent = Agent(DragomanModel(ScriptedProvider(*[Answer(text="")] * 3)))
    with pytest.raises(UnexpectedModelBehavior):
        async with agent.run_stream("Hello?") as result:
            await result.get_output()


@pytest.mark.parametrize("streamed", [False, True])
async def test_agent_calls_tools(model: Model, streamed: bool) -> None:
    agent = Agent(model, deps_type=int)
    seen: list[Any] = []

    @agent.tool
    def depth(context: RunContext[int], river: str) -> int:
        """Return the depth of a river.

        Args:
            river: the name of the river
        """
        seen.append(river)
        return context.deps

    if streamed:
        async with agent.run_stream("How deep is 'Aare'?", deps=12) as result:
            text = await result.get_output()
    else:
        text = (await agent.run("How deep is 'Aare'?", deps=12)).output
    assert seen == ["Aare"]
    assert text.startswith("Hello from")


@pytest.mark.parametrize("wrap", [ToolOutput, NativeOutput, PromptedOutput])
@pytest.mark.parametrize("streamed", [False, True])
async def test_agent_parses_structured_output(wrap: Any, streamed: bool) -> None:
    """Request structured output in three ways: with a tool, with the wire's own feature, and in
    the prompt.
    """
    json = '{"name": "Basel", "people": 170000}'
    answer: Any = Answer(tool_calls=[Call("final_result", json)]) if wrap is ToolOutput else json
    provider = ScriptedProvider(answer)
    agent = Agent(DragomanModel(provider), output_type=wrap(City))
    if streamed:
        async with agent.run_stream("Which city?") as result:
            city: Any = await result.get_output()
    else:
        city = (await agent.run("Which city?")).output
    assert city == City(name="Basel", people=170000)
    asked = provider.requests[0]
    assert (asked.response_schema is not None) == (wrap is NativeOutput)
    if wrap is ToolOutput:
        assert asked.tool_choice == d.ForceTool("final_result") or asked.tool_choice == "required"


async def test_parallel_tool_calls_and_retry_prompts_work() -> None:
    calls = [
        Call("add", {"a": 1, "b": 2}, id="c1"),
        Call("add", {"a": 3}, id="c2"),
        Call("fail", {}, id="c3"),
    ]
    provider = ScriptedProvider(Answer(tool_calls=calls, usage=USAGE), "Done.")
    agent = Agent(DragomanModel(provider), retries=2)

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        return a + b

    @agent.tool_plain
    def fail() -> str:
        raise ModelRetry("Use another tool.")

    assert (await agent.run("Add.")).output == "Done."
    results = [
        message for message in provider.requests[1].messages if isinstance(message, d.ToolResult)
    ]
    assert {result.tool_call_id: result.is_error for result in results} == {
        "c1": False,
        "c2": True,
        "c3": True,
    }
    assert {result.tool_call_id: result.text for result in results}["c1"] == "3"
    assert "Use another tool." in results[2].text


async def test_invalid_output_is_requested_again() -> None:
    provider = ScriptedProvider('{"name": "Basel", "people": 1}', '{"name": "Bern", "people": 2}')
    agent = Agent(DragomanModel(provider), output_type=NativeOutput(City), retries=2)

    @agent.output_validator
    def check(city: City) -> City:
        if city.name == "Basel":
            raise ModelRetry("Another city, please.")
        return city

    assert (await agent.run("Which city?")).output.name == "Bern"
    last = provider.requests[1].messages[-1]
    assert isinstance(last, d.User)
    assert "Another city, please." in last.text


async def test_usage_limits_of_pydantic_ai_are_enforced() -> None:
    provider = ScriptedProvider(Answer(text="Hi.", usage=d.Usage(100, 50)))
    with pytest.raises(UsageLimitExceeded):
        await Agent(DragomanModel(provider)).run(
            "Hello?", usage_limits=UsageLimits(output_tokens_limit=10)
        )
    assert len(provider.requests) == 1
    limits = UsageLimits(input_tokens_limit=5, count_tokens_before_request=True)
    with pytest.raises(UsageLimitExceeded):
        await Agent(DragomanModel(provider)).run("word " * 50, usage_limits=limits)
    assert len(provider.requests) == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_opaque_provider_state_is_sent_back_in_the_next_request(streamed: bool) -> None:
    call = speak(
        lambda out: out.thinking("Let me look."),
        lambda out: out.attach(d.Thinking, "sig"),
        lambda out: (out.tool_start(0, "c1", "depth"), out.tool_input(0, '{"river": "Rhine"}')),
        finish="tool_calls",
        usage=d.Usage(
            9, 3, cached_input_tokens=4, cache_creation_input_tokens=1, reasoning_tokens=2
        ),
    )
    provider = Listed(call, "It is 25 m deep.")
    agent = Agent(DragomanModel(provider))

    @agent.tool_plain
    def depth(river: str) -> int:
        return 25

    if streamed:
        async with agent.run_stream("How deep is the Rhine?") as streaming:
            await streaming.get_output()
            messages = streaming.all_messages()
            usage = streaming.usage
    else:
        result = await agent.run("How deep is the Rhine?")
        messages = result.all_messages()
        usage = result.usage
    assert usage.cache_read_tokens == 4
    assert usage.cache_write_tokens == 1
    sent = provider.requests[1].messages[1].content
    assert sent[0].text == "Let me look."
    assert sent[0].continuity.signature == "sig"
    assert sent[1].id == provider.requests[1].messages[2].tool_call_id
    parts = [type(part) for part in messages[1].parts]
    assert parts == [ThinkingPart, ToolCallPart]


async def test_settings_and_instructions_of_the_agent_are_sent() -> None:
    provider = ScriptedProvider("Hi.")
    agent = Agent(
        DragomanModel(provider), instructions="Be brief.", system_prompt="You are a guide."
    )
    settings: Any = {
        "temperature": 0.5, "max_tokens": 9, "seed": 3, "stop_sequences": ["x"], "thinking": "low",
    }  # fmt: skip
    await agent.run(
        ["What is this?", BinaryContent(b"\x89PNG", media_type="image/png")],
        model_settings=settings,
    )
    [request] = provider.requests
    system = [message for message in request.messages if isinstance(message, d.System)]
    assert system[0] == d.System("You are a guide.")
    assert d.System("Be brief.") in system
    content: Any = request.messages[-1].content
    assert content[0] == d.Text("What is this?")
    assert type(content[1]) is d.Image
    config = request.config
    assert config.temperature == 0.5
    assert config.max_tokens == 9
    assert config.seed == 3
    assert config.reasoning == "low"
    assert config.stop_sequences == ("x",)


async def test_provider_errors_are_raised_as_pydantic_ai_errors() -> None:
    busy = d.OverloadedError("no", status=503)
    with pytest.raises(ModelHTTPError) as caught:
        await Agent(DragomanModel(Listed(busy))).run("Hi.")
    assert caught.value.status_code == 503
    with pytest.raises(ModelAPIError):
        await Agent(DragomanModel(Listed(d.AuthenticationError("no key")))).run("Hi.")
    second = FallbackModel(DragomanModel(Listed(busy)), DragomanModel(ScriptedProvider("Hello.")))
    assert (await Agent(second).run("Hi.")).output == "Hello."


async def test_cancelling_a_stream_closes_its_provider_call(server: SimServer) -> None:
    agent = Agent(DragomanModel("sim-1", base_url=server.base_urls["openai"]))
    async with agent.iter("Hello?") as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    async for _ in stream:
                        await stream.cancel()
                        break
                break
    assert stream.response.state == "interrupted"


def test_one_model_works_in_several_event_loops(server: SimServer) -> None:
    agent = Agent(DragomanModel("sim-1", base_url=server.base_urls["openai"]))
    texts = [asyncio.run(agent.run("Hello?")).output for _ in range(3)]
    assert texts == [texts[0]] * 3
    with asyncio.Runner() as runner:  # run_sync() would create an event loop and leave it open
        asyncio.set_event_loop(runner.get_loop())
        assert agent.run_sync("Hello?").output == texts[0]


async def test_settings_that_cannot_be_sent_are_reported_as_warnings(server: SimServer) -> None:
    model = DragomanModel("sim-1", base_url=server.base_urls["ollama"], wire="ollama")
    agent = Agent(model, output_type=ToolOutput(City))
    with pytest.warns(DragomanLossWarning, match="cannot force a call"):
        result = await agent.run("Which city has 170000 people?")
    responses = [
        message for message in result.all_messages() if isinstance(message, ModelResponse)
    ]
    assert "tool_choice_dropped" in responses[0].provider_details["warnings"][0]  # type: ignore[index]
