"""Test with the conformance kit that models and streams of other libraries work as providers."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import BaseModel
from pydantic_ai import Agent, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ModelMessage,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

import dragoman as d
from dragoman.conformance import suite
from dragoman.integrations.bridge import (
    BridgeProvider,
    CallPiece,
    Finish,
    Piece,
    from_langchain,
    from_pydantic_ai,
    read_error,
)
from dragoman.integrations.langchain import ChatDragoman
from dragoman.integrations.pydantic_ai import DragomanModel
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule

CAN = {"supports_images": True}
PICTURE = d.Image(d.Inline("iVBORw0KGgo="), "image/png")


class HttpFailure(Exception):
    """An HTTP error of the kind that vendor SDKs raise."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__("refused: hello")
        self.response = httpx.Response(
            status, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        self.status_code = status


def answer(request: d.Request) -> Answer | str:
    if request.response_schema is not None:
        return '{"city": "Bern", "population": 137000}'
    if request.tools and request.tool_choice not in (None, "none"):
        return Answer(tool_calls=[Call("get_weather", {"city": "Bern"})])
    return "Hello there, all of you."


# --- providers made from the stream of an SDK --------------------------------------------------


async def read_sdk(request: d.Request) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of a reply as the stream of a vendor SDK does."""
    await asyncio.sleep(0)
    said = answer(request)
    if isinstance(said, str):
        for word in said.split(" "):
            yield word + " "
    else:
        yield CallPiece(0, '{"city": ', "c1", "get_weather")
        yield CallPiece(0, '"Bern"}')
    yield d.Usage(12, 4)


async def refuse(request: d.Request) -> AsyncGenerator[Piece, None]:
    if request:
        raise HttpFailure(429, retry_after="7")
    yield ""


async def break_off(request: d.Request) -> AsyncGenerator[Piece, None]:
    yield "Hello "
    raise RuntimeError("lost")


def bridge(read: Any, **settings: Any) -> BridgeProvider:
    return BridgeProvider("vendor", "vendor-1", read, **settings)


@pytest.mark.parametrize(
    "case",
    suite(
        lambda: bridge(read_sdk, capabilities=CAN),
        capabilities=CAN,
        failing={d.RateLimitError: lambda: bridge(refuse)},
        breaking=lambda: bridge(break_off),
    ),
    ids=str,
)
async def test_provider_made_from_an_sdk_passes_the_provider_test_suite(case: Any) -> None:
    await case.run()


async def test_every_piece_that_the_sdk_yields_becomes_part_of_the_reply() -> None:
    async def read(request: d.Request) -> AsyncGenerator[Piece, None]:
        yield d.LossWarning("x_dropped", "config.x", "no place for it")
        yield d.Thinking("Let me see.")
        yield "It rains."
        yield d.ToolCall("c1", "look", {"at": "Bern"})
        yield CallPiece("k", "{}", None, "look")
        yield d.Usage(3, 4)
        yield Finish("stop", "END")

    reply = await bridge(read).complete("Hi.", tools=[d.Tool("look")])
    assert [type(block) for block in reply.message.content] == [
        d.Thinking,
        d.Text,
        d.ToolCall,
        d.ToolCall,
    ]
    assert [call.arguments for call in reply.tool_calls] == [{"at": "Bern"}, {}]
    assert reply.finish_reason == "tool_calls"
    assert reply.finish_raw == "END"
    assert reply.usage.output_tokens == 4
    assert [warning.code for warning in reply.warnings] == ["x_dropped"]


async def test_an_empty_stream_becomes_an_empty_reply() -> None:
    async def read(request: d.Request) -> AsyncGenerator[Piece, None]:
        nothing: list[Piece] = []
        for piece in nothing:
            yield piece

    reply = await bridge(read).complete("Hi.")
    assert reply.text == ""
    assert reply.finish_reason == "stop"


async def test_bridge_works_with_retries_and_closes_the_sdk_client() -> None:
    closed: list[int] = []
    calls: list[int] = []

    async def read(request: d.Request) -> AsyncGenerator[Piece, None]:
        calls.append(1)
        if len(calls) == 1:
            raise HttpFailure(503)
        yield "Done."

    async def close() -> None:
        closed.append(1)

    async with d.Retry(bridge(read, close=close), backoff=lambda _: 0.0) as model:
        assert (await model.complete("Hi.")).text == "Done."
    assert len(calls) == 2
    assert closed == [1]


async def test_cancelling_a_stream_closes_the_generator_of_the_sdk() -> None:
    ended: list[str] = []

    async def read(request: d.Request) -> AsyncGenerator[Piece, None]:
        try:
            yield "one "
            yield "two "
        finally:
            ended.append("closed")

    async with bridge(read).stream("Hi.") as stream:
        await anext(stream)
        await stream.cancel()
    assert ended == ["closed"]


class ReadTimeout(Exception):
    pass


def caused(cause: Exception) -> Exception:
    error = RuntimeError("wrapped")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (HttpFailure(401), d.AuthenticationError),
        (HttpFailure(429), d.RateLimitError),
        (TimeoutError(), d.TimedOutError),
        (ReadTimeout(), d.TimedOutError),
        (ConnectionResetError(), d.NetworkError),
        (httpx.ConnectError("no"), d.NetworkError),
        (caused(d.RateLimitError("slow")), d.RateLimitError),
        (caused(HttpFailure(401)), d.AuthenticationError),
        (ValueError("odd"), None),
    ],
    ids=str,
)
def test_sdk_exceptions_become_provider_errors(
    raised: Exception, kind: type[d.ProviderError] | None
) -> None:
    assert (type(read_error(raised)) if kind else read_error(raised)) == kind


async def test_unknown_sdk_exceptions_keep_their_cause_unless_translated() -> None:
    async def read(request: d.Request) -> AsyncGenerator[Piece, None]:
        if request:
            raise KeyError("odd")
        yield ""

    with pytest.raises(d.InvalidResponseError, match="KeyError") as caught:
        await bridge(read).complete("Hi.")
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.provider == "vendor"
    assert caught.value.model == "vendor-1"
    with pytest.raises(d.NetworkError):
        await bridge(read, read_error=lambda error: d.NetworkError("gone")).complete("Hi.")
    with pytest.raises(d.StreamInterruptedError) as broken:
        await bridge(break_off).complete("Hi.")
    assert broken.value.response.text == "Hello "
    with pytest.raises(d.RateLimitError) as limited:
        await bridge(refuse).complete("Hi.")
    assert limited.value.retry_after == 7


async def test_errors_show_neither_keys_nor_prompts() -> None:
    async def read(request: d.Request) -> AsyncGenerator[Piece, None]:
        if request:
            raise ValueError("cannot send 'Name the secret river.' with sk-abcdefghijklmnop")
        yield ""

    for prompt in ("Name the secret river.", [d.User([d.Text("Name the secret river.")])]):
        with pytest.raises(d.InvalidResponseError) as caught:
            await bridge(read).complete(prompt)
        assert "river" not in str(caught.value)
        assert "sk-abc" not in str(caught.value.provider_message)


# --- providers made from LangChain models ------------------------------------------------------


def chat(*rules: Any) -> ChatDragoman:
    return ChatDragoman(
        provider=ScriptedProvider(*(rules or (ScriptRule(answer),)), model="chat-1")
    )


class Foreign(BaseChatModel):
    """Act as a LangChain chat model that replies with given messages or chunks, or raises an
    error.
    """

    said: list[Any]
    seen: list[Any] = []
    given: dict[str, Any] = {}

    @property
    def _llm_type(self) -> str:
        return "foreign"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self.seen.append(messages)
        self.given.update(kwargs, stop=stop)
        [message] = self.said
        if isinstance(message, Exception):
            raise message
        return ChatResult(generations=[ChatGeneration(message=message)])


class Streaming(Foreign):
    def _stream(self, *arguments: Any, **kwargs: Any) -> Any:
        for message in self.said:
            if isinstance(message, Exception):
                raise message
            yield ChatGenerationChunk(message=message)


@pytest.mark.parametrize(
    "case",
    suite(
        lambda: from_langchain(chat(), capabilities=CAN),
        capabilities=CAN,
        failing={d.RateLimitError: lambda: from_langchain(Foreign(said=[HttpFailure(429)]))},
        breaking=lambda: from_langchain(
            Streaming(said=[AIMessageChunk(content="Hello "), RuntimeError("lost")])
        ),
    ),
    ids=str,
)
async def test_provider_made_from_a_langchain_model_passes_the_provider_test_suite(
    case: Any,
) -> None:
    await case.run()


async def test_langchain_chunks_are_joined() -> None:
    usage: Any = {"input_tokens": 9, "output_tokens": 0, "total_tokens": 9}
    usage["input_token_details"] = {"cache_read": 4}
    more: Any = {"input_tokens": 0, "output_tokens": 3, "total_tokens": 3}
    more["output_token_details"] = {"reasoning": 2}
    pieces = [
        tool_call_chunk(name="look", args='{"at"', id="c1", index=0),
        tool_call_chunk(args=': "Bern"}', index=0),
        tool_call_chunk(name="look", args="{}", id="c2"),
    ]
    model = Streaming(
        said=[
            AIMessageChunk(
                content=[{"type": "reasoning", "reasoning": "Hm."}], usage_metadata=usage
            ),
            AIMessageChunk(content=[{"type": "text", "text": "Look: "}]),
            *[AIMessageChunk(content="", tool_call_chunks=[piece]) for piece in pieces],
            AIMessageChunk(
                content="", usage_metadata=more, response_metadata={"stop_reason": "tool_use"}
            ),
        ]
    )
    stream = from_langchain(model).stream("Hi.", tools=[d.Tool("look")], tool_choice="none")
    assert [event async for event in stream]
    reply = stream.response
    assert reply.thinking == "Hm."
    assert reply.text == "Look: "
    assert [(call.id, call.arguments) for call in reply.tool_calls] == [
        ("c1", {"at": "Bern"}),
        ("c2", {}),
    ]
    assert reply.usage.input_tokens == 9
    assert reply.usage.output_tokens == 3
    assert reply.usage.cached_input_tokens == 4
    assert reply.usage.reasoning_tokens == 2
    assert reply.finish_reason == "tool_calls"
    assert reply.finish_raw == "tool_use"


async def test_messages_and_settings_reach_langchain() -> None:
    model = Foreign(said=[AIMessage("Fine.", response_metadata={"finish_reason": "MAX_TOKENS"})])
    conversation: list[Any] = [
        d.User([d.Text("Look."), PICTURE, d.Document(d.Inline("JVBERi0="))]),
        d.Assistant([d.Thinking("Hm."), d.Text("So."), d.ToolCall("c1", "look", {"at": "Bern"})]),
        d.ToolResult("c1", "no", is_error=True),
    ]
    reply = await from_langchain(model).complete(
        conversation,
        [d.Tool("look")],
        tool_choice="none",
        temperature=0.5,
        stop_sequences=["x"],
        reasoning="low",
    )
    assert reply.finish_reason == "length"
    assert [warning.code for warning in reply.warnings] == ["block_dropped", "reasoning_dropped"]
    human, said, result = model.seen[-1]
    assert [block["type"] for block in human.content_blocks] == ["text", "image", "file"]
    assert said.tool_calls == [tool_call(name="look", args={"at": "Bern"}, id="c1")]
    assert result.status == "error"
    assert result.tool_call_id == "c1"
    assert model.given["temperature"] == 0.5
    assert model.given["stop"] == ["x"]


async def test_features_that_a_langchain_model_lacks_are_rejected() -> None:
    model = from_langchain(Foreign(said=[AIMessage("Hi.")]))
    schema = {"type": "object", "properties": {}}
    with pytest.raises(d.UnsupportedFeatureError, match="takes no tools"):
        await model.complete("Hi.", [d.Tool("look")])
    with pytest.raises(d.UnsupportedFeatureError, match="structured output"):
        await model.complete("Hi.", response_schema=schema)
    with pytest.raises(d.UnsupportedFeatureError, match="either tools or structured output"):
        await model.complete("Hi.", [d.Tool("look")], response_schema=schema)


@pytest.mark.parametrize("choice", ["auto", "required", d.ForceTool("look")], ids=str)
@pytest.mark.parametrize("framework", ["langchain", "pydantic_ai"])
async def test_tool_choices_are_translated_to_a_framework_and_back(
    framework: str, choice: Any
) -> None:
    inner = ScriptedProvider(Answer(tool_calls=[Call("look", {})]))
    if framework == "langchain":
        model = from_langchain(ChatDragoman(provider=inner))
    else:
        model = from_pydantic_ai(DragomanModel(inner))
    await model.complete("Hi.", [d.Tool("look"), d.Tool("wait")], tool_choice=choice)
    [request] = inner.requests
    found = request.tool_choice or "auto"
    assert found == choice or (
        isinstance(choice, d.ForceTool) and [tool.name for tool in request.tools] == ["look"]
    )


class City(BaseModel):
    name: str


@pytest.mark.parametrize("output", [City, ToolOutput(City, name="give"), [City, str]], ids=str)
async def test_output_tools_reach_a_model_of_pydantic_ai_as_output_tools(output: Any) -> None:
    """A function model that answers by its output tool works with and without the bridge."""
    seen: list[AgentInfo] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(info)
        return ModelResponse([ToolCallPart(info.output_tools[0].name, {"name": "Bern"})])

    direct = FunctionModel(answer)
    for model in (direct, DragomanModel(from_pydantic_ai(direct))):
        agent = Agent(model, output_type=output)

        @agent.tool_plain
        def look(place: str) -> str:
            """Look at a place."""
            return place

        assert (await agent.run("Where?")).output == City(name="Bern")
    first, second = seen
    assert [tool.name for tool in second.function_tools] == ["look"]
    assert second.output_tools[0].kind == "output"
    for name in ("name", "description", "parameters_json_schema"):
        for mine, theirs in zip(first.output_tools, second.output_tools, strict=True):
            assert getattr(mine, name) == getattr(theirs, name)
    assert first.allow_text_output == second.allow_text_output


async def test_invalid_tool_calls_of_langchain_raise_an_error() -> None:
    broken = AIMessage(
        "", invalid_tool_calls=[invalid_tool_call(name="look", args="{oops", id="c1")]
    )
    with pytest.raises(d.MalformedToolCallError):
        await from_langchain(Foreign(said=[broken])).complete(
            "Hi.", [d.Tool("look")], tool_choice="none"
        )


async def test_structured_output_from_a_forced_tool_call_is_returned_as_text() -> None:
    class ByCall(Foreign):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self.bind()

    model = ByCall(
        said=[AIMessage("", tool_calls=[tool_call(name="output", args={"name": "Aare"}, id="c1")])]
    )
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    reply = await from_langchain(model).complete("Name a river.", response_schema=schema)
    assert reply.parsed == {"name": "Aare"}
    assert reply.tool_calls == ()


# --- providers made from Pydantic AI models ----------------------------------------------------


def limited(messages: Any, info: AgentInfo) -> ModelResponse:
    raise ModelHTTPError(429, "m", {"error": {"message": "slow down"}})


async def limited_stream(messages: Any, info: AgentInfo) -> AsyncIterator[str]:
    if messages:
        raise ModelHTTPError(429, "m")
    yield ""


async def broken_stream(messages: Any, info: AgentInfo) -> AsyncIterator[str]:
    yield "Hello "
    raise RuntimeError("lost")


@pytest.mark.parametrize(
    "case",
    suite(
        lambda: from_pydantic_ai(
            DragomanModel(ScriptedProvider(ScriptRule(answer))), capabilities=CAN
        ),
        capabilities=CAN,
        failing={
            d.RateLimitError: lambda: from_pydantic_ai(
                FunctionModel(limited, stream_function=limited_stream)
            )
        },
        breaking=lambda: from_pydantic_ai(FunctionModel(stream_function=broken_stream)),
    ),
    ids=str,
)
async def test_provider_made_from_a_pydantic_ai_model_passes_the_test_suite(case: Any) -> None:
    await case.run()


async def test_requests_and_replies_of_pydantic_ai_are_translated() -> None:
    seen: list[Any] = []

    def reply_with(messages: Any, info: AgentInfo) -> ModelResponse:
        seen.append((messages, info))
        parts: list[Any] = [
            ThinkingPart("Hm."),
            TextPart("Look: "),
            ToolCallPart("look", {"at": "Bern"}, "c9"),
            FilePart(BinaryContent(b"x", media_type="image/png")),
        ]
        usage = RequestUsage(input_tokens=9, output_tokens=3, cache_read_tokens=4)
        return ModelResponse(parts, usage=usage, finish_reason="tool_call")

    conversation: list[Any] = [
        d.System("Be terse."),
        d.User([d.Text("Look."), PICTURE, d.Document("https://example.com/a.pdf")]),
        d.Assistant([d.Thinking("Hm."), d.Text("So."), d.ToolCall("c1", "look", {"at": "Bern"})]),
        d.ToolResult("c1", "no", is_error=True),
    ]
    found = await from_pydantic_ai(FunctionModel(reply_with)).complete(
        conversation,
        [d.Tool("look")],
        temperature=0.5,
        stop_sequences=["x"],
        reasoning="low",
        extras={"k": 1},
    )
    assert found.thinking == "Hm."
    assert found.text == "Look: "
    assert found.finish_reason == "tool_calls"
    assert [(call.id, call.arguments) for call in found.tool_calls] == [("c9", {"at": "Bern"})]
    used = found.usage
    assert used.input_tokens == 9
    assert used.output_tokens == 3
    assert used.cached_input_tokens == 4
    assert [warning.code for warning in found.warnings] == ["block_dropped", "part_dropped"]
    [(messages, info)] = seen
    kinds = [[part.part_kind for part in message.parts] for message in messages]
    assert kinds == [["system-prompt", "user-prompt"], ["text", "tool-call"], ["tool-return"]]
    assert messages[2].parts[0].outcome == "failed"
    assert messages[2].parts[0].tool_name == "look"
    assert [tool.name for tool in info.function_tools] == ["look"]
    given = info.model_settings
    assert given["temperature"] == 0.5
    assert given["stop_sequences"] == ["x"]
    assert given["extra_body"] == {"k": 1}


async def test_reasoning_budget_is_rejected_for_pydantic_ai_models() -> None:
    with pytest.raises(d.UnsupportedFeatureError, match="budget"):
        await from_pydantic_ai(FunctionModel(limited)).complete("Hi.", reasoning=2000)
