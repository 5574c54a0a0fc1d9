"""Agents of Pydantic AI whose model is sent through the bridge once behave as without it.

Pydantic AI's own tests of tools are in no package, so these agents use the same parts: docstrings,
prepared and deferred tools, retries, toolsets, kinds of output, and streams.
"""

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    ExternalToolset,
    FunctionToolset,
    ModelRetry,
    NativeOutput,
    PromptedOutput,
    RunContext,
    Tool,
    ToolDenied,
    ToolOutput,
)
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition

from dragoman.integrations.bridge import from_pydantic_ai
from dragoman.integrations.pydantic_ai import DragomanModel

Seen = list[tuple[list[ModelMessage], AgentInfo]]
Reply = str | list[Any] | Callable[[AgentInfo], list[Any]]


class City(BaseModel):
    name: str
    size: int | None = None


class River(BaseModel):
    length: float


class Play:
    """A function model that answers by a script, and the requests that it gets."""

    def __init__(self, *script: Reply) -> None:
        self._script = [*script]
        self.seen: Seen = []

    def model(self) -> FunctionModel:
        return FunctionModel(self._answer, stream_function=self._stream)

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.seen.append((list(messages), info))
        reply = self._script.pop(0)
        parts = reply(info) if callable(reply) else reply
        return ModelResponse([TextPart(parts)] if isinstance(parts, str) else parts)

    async def _stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        for at, part in enumerate(self._answer(messages, info).parts):
            if isinstance(part, ToolCallPart):
                json = part.args_as_json_str()
                yield {at: DeltaToolCall(part.tool_name, json[:3], tool_call_id=part.tool_call_id)}
                yield {at: DeltaToolCall(json_args=json[3:])}
            elif isinstance(part, TextPart):
                yield part.content[:2]
                yield part.content[2:]


def call(name: str, id_: str = "c1", /, **arguments: Any) -> list[Any]:
    return [ToolCallPart(name, arguments, tool_call_id=id_)]


def give(**arguments: Any) -> Callable[[AgentInfo], list[Any]]:
    """Call the output tool."""
    return lambda info: call(info.output_tools[0].name, **arguments)


def double(x: int) -> int:
    """Double a number.

    Args:
        x: The number.
    """
    if x == 9:
        raise ModelRetry("use 2")
    return 2 * x


def describe(city: City, kind: Literal["short", "long"] = "short", *, rivers: list[River]) -> str:
    return f"{city.name} {kind} {len(rivers)}"


async def _hide(_: RunContext[Any], __: ToolDefinition) -> None:
    return None


async def _rename(_: RunContext[Any], definition: ToolDefinition) -> ToolDefinition:
    return dataclasses.replace(definition, name="twice", description="Again.")


def _outside() -> ExternalToolset[Any]:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    return ExternalToolset([ToolDefinition(name="far", parameters_json_schema=schema)])


def plain(*script: Reply, **settings: Any) -> tuple[tuple[Reply, ...], dict[str, Any]]:
    return script, {"tools": [double, describe], **settings}


PREPARED = [Tool(double, name="gone", prepare=_hide), Tool(double, prepare=_rename)]
PREFIXED = [FunctionToolset([double]).prefixed("p")]
DEFERRED = [str, DeferredToolRequests]
AGENTS: dict[str, tuple[tuple[Reply, ...], dict[str, Any]]] = {
    "text": plain("Hello.", instructions="Be brief.", system_prompt="You are kind."),
    "a tool": plain(call("double", x=2), "Four."),
    "nested arguments": plain(call("describe", city={"name": "Bern"}, rivers=[]), "It is."),
    "two calls": plain([TextPart("I look."), *call("double", x=1), *call("double", "c2", x=2)], "."),
    "a retry": plain(call("double", x=9), call("double", x=2), "Four."),
    "wrong arguments": plain(call("double", x="no"), call("double", x=2), "Four."),
    "an unknown tool": plain(call("triple", x=1), call("double", x=2), "Four."),
    "too many retries": plain(*[call("double", x="no")] * 3),
    "prepared tools": (((call("twice", x=2)), "Four."), {"tools": PREPARED}),
    "a prefix": ((call("p_double", x=2), "Four."), {"toolsets": PREFIXED}),
    "a class": plain(give(name="Bern"), output_type=City),
    "two classes": plain(give(name="Bern"), output_type=[City, River]),
    "a class or text": plain("Bern.", output_type=[City, str]),
    "a named output": plain(give(name="Bern"), output_type=ToolOutput(City, name="give")),
    "a number": plain(give(response=3), output_type=int),
    "a list": plain(give(response=[{"name": "Bern"}]), output_type=list[City]),
    "an output function": plain(give(x=3), output_type=double),
    "a native output": plain('{"name": "Bern"}', output_type=NativeOutput(City)),
    "a prompted output": plain('{"name": "Bern"}', output_type=PromptedOutput(City)),
    "a wrong output": plain(give(nam="Bern"), give(name="Bern"), output_type=City),
    "text in place of an output": plain("Bern.", give(name="Bern"), output_type=City),
    "a tool and an output": plain(
        lambda info: [*call("double", x=1), *call(info.output_tools[0].name, "c2", name="Bern")],
        output_type=City,
    ),
    "a call that runs elsewhere": (
        (call("far", x=1), "It is 5."),
        {"toolsets": [_outside()], "output_type": DEFERRED},
    ),
    "an approval": (
        (call("double", x=1), "Two."),
        {"tools": [Tool(double, requires_approval=True)], "output_type": DEFERRED},
    ),
    "settings": plain("Hello.", model_settings={"temperature": 0.5, "max_tokens": 9, "seed": 3}),
    "a choice": plain("Four.", model_settings={"tool_choice": "none"}),
}  # fmt: skip
# How the model sees the result of a call that failed; the bridge has one form for all failures.
_FAILURES = {"retried": "failed", "denied": "failed"}


def show_tool(tool: ToolDefinition) -> tuple[Any, ...]:
    return tool.name, tool.description, tool.parameters_json_schema, tool.kind == "output"


def show(seen: Seen) -> list[Any]:
    """Return what the model was asked: its tools, its settings and each part of each message."""
    shown: list[Any] = []
    for messages, info in seen:
        tools = [show_tool(tool) for tool in (*info.function_tools, *info.output_tools)]
        parts = []
        every = [part for message in messages for part in message.parts]
        systems = [part.content for part in every if isinstance(part, SystemPromptPart)]
        # to a model of another library, instructions are system messages
        systems += [info.instructions] if info.instructions else []
        for part in [part for part in every if not isinstance(part, SystemPromptPart)]:
            outcome = getattr(part, "outcome", None)
            texts = part.content if outcome is None and hasattr(part, "content") else ""
            name = getattr(part, "tool_name", None)
            id_ = getattr(part, "tool_call_id", None)
            arguments = part.args_as_dict() if isinstance(part, ToolCallPart) else None
            parts.append(
                (part.part_kind, texts, name, id_, arguments, _FAILURES.get(str(outcome), outcome))
            )
        settings = dict(info.model_settings or {})
        # the bridge states the choice that follows from the kind of output
        settings.pop("tool_choice", None)
        standing = [text.strip() for text in systems]
        shown.append((tools, info.allow_text_output, settings, standing, parts))
    return shown


async def run(agent: Agent[None, Any], *, stream: bool) -> Any:
    """Return the outcome of a run, and of the run that continues it with results from elsewhere."""
    try:
        if stream:
            async with agent.run_stream("Go.") as running:
                output = await running.get_output()
            history = running.all_messages()
        else:
            result = await agent.run("Go.")
            output = result.output
            history = result.all_messages()
    except UnexpectedModelBehavior as error:
        return str(error)
    if not isinstance(output, DeferredToolRequests):
        return output
    results = DeferredToolResults()
    results.calls = {each.tool_call_id: "5" for each in output.calls}
    results.approvals = {each.tool_call_id: ToolDenied("No.") for each in output.approvals}
    later = await agent.run(message_history=history, deferred_tool_results=results)
    return [output.calls, output.approvals, later.output]


async def run_twice(
    name: str, once: Callable[[Agent[None, Any]], Awaitable[Any]]
) -> list[tuple[Any, list[Any]]]:
    """Run an agent with its model, and with its model behind the bridge."""
    script, settings = AGENTS[name]
    found = []
    for through_bridge in (False, True):
        play = Play(*script)
        model: Model = play.model()
        if through_bridge:
            model = DragomanModel(from_pydantic_ai(model))
        outcome = await once(Agent(model, **{"retries": 1, **settings}))
        found.append((outcome, show(play.seen)))
    return found


@pytest.mark.parametrize("name", AGENTS)
async def test_agent_whose_model_is_behind_the_bridge_does_the_same(name: str) -> None:
    direct, bridged = await run_twice(name, lambda agent: run(agent, stream=False))
    assert bridged[0] == direct[0]
    assert bridged[1] == direct[1]


@pytest.mark.parametrize(
    "name",
    ["text", "a tool", "two calls", "a class", "a list", "a wrong output", "a retry"],
)
async def test_agent_that_streams_does_the_same(name: str) -> None:
    direct, bridged = await run_twice(name, lambda agent: run(agent, stream=True))
    assert bridged == direct


@pytest.mark.parametrize("output", [str, City], ids=str)
async def test_test_model_calls_the_same_tools(output: Any) -> None:
    outcomes = []
    for model in (TestModel(), DragomanModel(from_pydantic_ai(TestModel()))):
        agent = Agent[None, Any](model, output_type=output, tools=[describe])
        outcomes.append((await agent.run("Go.")).output)
    assert outcomes[0] == outcomes[1]
