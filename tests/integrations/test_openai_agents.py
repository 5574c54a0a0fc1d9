"""Test agents of the OpenAI Agents SDK with Dragoman's models, as the SDK's own examples use them."""

import base64
import copy
from typing import Any

import pytest
from agents import (
    Agent,
    ModelSettings,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from agents.exceptions import ModelBehaviorError
from agents.retry import ModelRetryAdviceRequest
from openai.types.shared import Reasoning

import dragoman as d
from dragoman.events import Assembler
from dragoman.integrations.loops import open_named
from dragoman.integrations.openai_agents import (
    DragomanLossWarning,
    DragomanModel,
    DragomanModels,
)
from dragoman.messages import Continuity, Issuer
from dragoman.sim import Answer, Call, ScriptedProvider, SimServer

from ..listed import Listed, broken, reply, speak
from .obliging import WIRES, City

set_tracing_disabled(True)
PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


@function_tool
def depth(river: str) -> int:
    """Return the depth of a river.

    Args:
        river: the name of the river
    """
    return 12 if river == "Aare" else 0


def make_agent(model: Any, **settings: Any) -> Agent[Any]:
    return Agent(name="Geographer", instructions="Be brief.", model=model, **settings)


# Thinking of earlier turns without its signature is left out, and reported.
@pytest.mark.filterwarnings("default::dragoman.integrations.openai_agents.DragomanLossWarning")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("streamed", [False, True])
async def test_agent_calls_tools_over_every_wire(
    server: SimServer, wire: str, streamed: bool
) -> None:
    models = DragomanModels("sim-1", base_url=server.base_urls[wire], wire=wire)
    agent = make_agent(None, tools=[depth], model_settings=ModelSettings(max_tokens=500))
    config = RunConfig(model_provider=models)
    kinds: list[str] = []
    if streamed:
        result: Any = Runner.run_streamed(agent, "How deep is 'Aare'?", run_config=config)
        async for event in result.stream_events():
            kinds.append(getattr(event, "name", None) or getattr(event, "data", event).type)
        assert kinds.count("response.completed") == 2
        assert "response.output_text.delta" in kinds
        assert kinds.index("tool_called") < kinds.index("tool_output")
    else:
        result = await Runner.run(agent, "How deep is 'Aare'?", run_config=config)
    assert result.final_output.startswith("Hello from the scripted model")
    outputs = [item for item in result.to_input_list() if "output" in item]
    assert [item["output"] for item in outputs] == ["12"]
    usage = result.context_wrapper.usage
    assert usage.requests == 2
    assert usage.output_tokens == 20


async def test_agent_hands_off_to_another_agent() -> None:
    provider = ScriptedProvider(Answer(tool_calls=[Call("transfer_to_swiss", "{}")]), "Grüezi!")
    swiss = Agent(name="Swiss", model=DragomanModel(provider))
    result = await Runner.run(make_agent(DragomanModel(provider), handoffs=[swiss]), "Hello")
    assert result.last_agent.name == "Swiss"
    assert result.final_output == "Grüezi!"


async def test_agent_parses_structured_output() -> None:
    provider = Listed('{"name": "Basel", "people": 170000}')
    result = await Runner.run(make_agent(DragomanModel(provider), output_type=City), "Which?")
    assert result.final_output == City(name="Basel", people=170000)
    schema = provider.requests[0].response_schema
    assert schema is not None
    assert schema["title"] == "City"
    assert schema["required"] == ["name", "people"]


async def test_settings_images_and_sessions_reach_the_provider() -> None:
    provider = Listed("A river.", "The Aare.")
    settings = ModelSettings(temperature=0.5, tool_choice="required", extra_body={"top_p": 0.25})
    agent = make_agent(DragomanModel(provider), tools=[depth], model_settings=settings)
    parts = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"},
    ]
    session = SQLiteSession("one")
    await Runner.run(agent, [{"role": "user", "content": parts}], session=session)  # type: ignore[list-item]
    await Runner.run(agent, "Which one?", session=session)
    session.close()
    first, second = provider.requests
    assert first.config.temperature == 0.5
    assert first.config.top_p == 0.25
    assert first.tool_choice == "required"
    user = first.messages[1]
    assert isinstance(user.content[1], d.Image)
    assert [type(each).__name__ for each in second.messages] == [
        *("System", "User", "Assistant", "User")
    ]


def think(out: Assembler) -> None:
    out.thinking("Let me see.")
    out.attach(d.Thinking, "s1")


def search(out: Assembler) -> None:
    out.whole(d.Opaque({"type": "searched"}, Continuity(issuer=Issuer("anthropic"))))


def call_depth(out: Assembler) -> None:
    out.tool_start("c1", "c1", "depth")
    out.tool_input("c1", '{"river": "Aare"}')


@pytest.mark.parametrize("streamed", [False, True])
async def test_state_of_the_provider_is_sent_back_unchanged(streamed: bool) -> None:
    provider = Listed(speak(think, search, call_depth, finish="tool_calls"), "12 metres")
    agent = make_agent(DragomanModel(provider), tools=[depth])
    if streamed:
        result: Any = Runner.run_streamed(agent, "How deep?")
        [event async for event in result.stream_events()]
    else:
        result = await Runner.run(agent, "How deep?")
    assert result.final_output == "12 metres"
    thinking, opaque, call = provider.requests[1].messages[2].content
    assert isinstance(thinking, d.Thinking)
    assert thinking.continuity is not None
    assert thinking.continuity.signature == "s1"
    assert isinstance(opaque, d.Opaque)
    assert isinstance(call, d.ToolCall)


async def test_edited_text_is_sent_with_the_state_of_the_unchanged_thinking() -> None:
    provider = Listed(speak(think, lambda out: out.text("The Rhine.")), "Yes.", "Yes.")
    agent = make_agent(DragomanModel(provider))
    items: Any = (await Runner.run(agent, "Name a river.")).to_input_list()
    asked = {"role": "user", "content": "Sure?"}
    await Runner.run(agent, [*items, asked])
    items[-1]["content"][0]["text"] = "The Aare."
    await Runner.run(agent, [*items, asked])
    first, second = [request.messages[2].content for request in provider.requests[1:]]
    signed = [
        [getattr(block.continuity, "signature", None) for block in each]
        for each in (first, second)
    ]
    assert signed == [["s1", None], ["s1", None]]


async def test_errors_are_dragoman_errors_and_give_retry_advice() -> None:
    limited = d.RateLimitError("slow down", retry_after=3)
    model = DragomanModel(Listed(limited, broken("The Rh", limited)))
    with pytest.raises(d.RateLimitError):
        await Runner.run(make_agent(model), "Hello")
    result = Runner.run_streamed(make_agent(model), "Hello")
    with pytest.raises(d.RateLimitError):
        [event async for event in result.stream_events()]
    advice = model.get_retry_advice(ModelRetryAdviceRequest(limited, 1, stream=False))
    assert advice is not None
    assert advice.suggested is True
    assert advice.retry_after == 3
    assert model.get_retry_advice(ModelRetryAdviceRequest(ValueError(), 1, stream=False)) is None


async def test_truncated_reply_and_invalid_arguments_are_left_to_the_sdk() -> None:
    with pytest.raises(ModelBehaviorError, match="max_output_tokens"):
        await Runner.run(make_agent(DragomanModel(Listed(reply("The Rh", finish="length")))), "Hi")
    wrong = ScriptedProvider(Answer(tool_calls=[Call("depth", '{"river": 5}')]), "Sorry.")
    result = await Runner.run(make_agent(DragomanModel(wrong), tools=[depth]), "How deep?")
    assert result.final_output == "Sorry."
    outputs: Any = [item for item in result.to_input_list() if "output" in item]
    assert "error occurred" in outputs[0]["output"]


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        (ModelSettings(reasoning=Reasoning(effort="low"), verbosity="low"), "verbosity"),
        (ModelSettings(metadata={"a": "b"}), "metadata"),
    ],
)
async def test_settings_that_are_not_sent_are_reported(settings: Any, path: str) -> None:
    provider = Listed("Hello.")
    with pytest.warns(DragomanLossWarning, match=path):
        await Runner.run(make_agent(DragomanModel(provider), model_settings=settings), "Hi")
    assert provider.requests[0].config.reasoning == ("low" if path == "verbosity" else None)


@pytest.mark.parametrize("name", ["extra_headers", "extra_query"])
async def test_settings_of_http_are_refused(name: str) -> None:
    settings = ModelSettings(**{name: {"a": "b"}})  # type: ignore[arg-type]
    agent = make_agent(DragomanModel(Listed()), model_settings=settings)
    with pytest.raises(d.InvalidRequestError, match="extra_headers"):
        await Runner.run(agent, "Hi")


async def test_conversation_that_a_server_keeps_is_refused() -> None:
    agent = make_agent(DragomanModel(Listed()))
    with pytest.raises(d.UnsupportedFeatureError, match="previous_response_id"):
        await Runner.run(agent, "Hi", previous_response_id="resp_1")


def test_models_are_found_by_name() -> None:
    models = DragomanModels(base_url="http://127.0.0.1:9/v1")
    assert models.get_model("llama3") is models.get_model("llama3")
    with pytest.raises(d.InvalidRequestError, match="set a model for the agent"):
        models.get_model(None)


async def test_copies_of_an_opened_model_share_its_connections() -> None:
    with SimServer(ScriptedProvider("Hi.")) as server:
        _, opened = open_named("sim", {"base_url": f"{server.url}/v1", "wire": "openai"})
        model = await opened.get()
        assert await copy.deepcopy([opened])[0].get() is model
