"""Test that unmodified vendor clients work with a gateway on a real socket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anthropic
import ollama
import openai
import pydantic
import pytest

import dragoman
from dragoman.capabilities import Capabilities
from dragoman.errors import (
    ContextOverflowError,
    InvalidRequestError,
    OverloadedError,
    ProviderError,
    QuotaExceededError,
    RateLimitError,
    StreamInterruptedError,
    UnavailableError,
)
from dragoman.events import Assembler, Usage
from dragoman.gateway.app import create_app
from dragoman.messages import Image, Inline, System, Text, Thinking, ToolResult, User
from dragoman.provider import Provider
from dragoman.sim import Answer, Call, RequestMatch, ScriptedProvider, ScriptRule
from tests.listed import Listed, broken, reply, speak

from .serving import serving

USAGE = Usage(input_tokens=10, output_tokens=5, cached_input_tokens=4, total_tokens=15)


@contextlib.asynccontextmanager
async def openai_client(
    *answers: Any, retries: int = 0
) -> AsyncIterator[tuple[openai.AsyncOpenAI, Listed]]:
    model = Listed(*answers)
    async with (
        serving(create_app({"fast": model})) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=retries) as client,
    ):
        yield client, model


@contextlib.asynccontextmanager
async def anthropic_client(
    *answers: Any, retries: int = 0
) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, Listed]]:
    model = Listed(*answers)
    async with (
        serving(create_app({"fast": model})) as url,
        anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=retries) as client,
    ):
        yield client, model


HELLO: Any = [{"role": "user", "content": "Hello"}]
CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def call(out: Assembler) -> None:
    out.text("Let me see.")
    out.tool_start(0, "call_1", "weather")
    for piece in ('{"ci', 'ty": "Paris"}'):
        out.tool_input(0, piece)


def two_calls(out: Assembler) -> None:
    call(out)
    out.tool_start(1, "call_2", "weather")
    out.tool_input(1, '{"city": "Rome"}')


def think(out: Assembler) -> None:
    out.thinking("Hm.")
    out.attach(Thinking, "signed")
    out.text("Yes.")


# --- the openai client, Chat Completions API ---------------------------------------------------


async def test_openai_client_receives_a_complete_reply() -> None:
    async with openai_client(reply("Bonjour", usage=USAGE)) as (client, model):
        made = await client.chat.completions.create(
            model="fast",
            messages=[{"role": "system", "content": "Be terse."}, *HELLO],
            max_tokens=7,
            seed=3,
        )
    assert made.choices[0].message.content == "Bonjour"
    assert made.choices[0].finish_reason == "stop"
    assert made.usage is not None
    assert made.usage.prompt_tokens_details is not None
    assert (made.usage.total_tokens, made.usage.prompt_tokens_details.cached_tokens) == (15, 4)
    assert model.requests[0].messages == (System("Be terse."), User("Hello"))
    assert (model.requests[0].config.max_tokens, model.requests[0].config.seed) == (7, 3)
    assert model.requests[0].model == "m"


async def test_openai_client_receives_a_streamed_reply() -> None:
    async with openai_client(reply("Bonjour", usage=USAGE)) as (client, _):
        stream = await client.chat.completions.create(
            model="fast", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert (
        "".join([chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices])
        == "Bonjour"
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


async def test_openai_client_streams_tool_calls_and_sends_their_results() -> None:
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
    async with openai_client(speak(two_calls, finish="tool_calls"), "Rain.") as (client, model):
        async with client.chat.completions.stream(
            model="fast", messages=HELLO, tools=tools
        ) as stream:
            done = (await stream.get_final_completion()).choices[0]
        assert done.finish_reason == "tool_calls"
        assert [(each.id, each.function.arguments) for each in done.message.tool_calls or ()] == [
            ("call_1", '{"city": "Paris"}'),
            ("call_2", '{"city": "Rome"}'),
        ]
        said: Any = done.message.model_dump(exclude_none=True, exclude={"parsed"})
        for each in said["tool_calls"]:
            each["function"].pop("parsed_arguments", None)
            each.pop("index", None)
        results: Any = [
            {"role": "tool", "tool_call_id": name, "content": "rain"}
            for name in ("call_1", "call_2")
        ]
        made = await client.chat.completions.create(
            model="fast", messages=[*HELLO, said, *results], tools=tools
        )
    assert made.choices[0].message.content == "Rain."
    assert model.requests[1].messages[-1] == ToolResult("call_2", "rain")


class River(pydantic.BaseModel):
    name: str
    km: int


async def test_openai_client_parses_structured_output() -> None:
    async with openai_client('{"name": "Rhine", "km": 1233}') as (client, model):
        made = await client.chat.completions.parse(
            model="fast", messages=HELLO, response_format=River
        )
    assert made.choices[0].message.parsed == River(name="Rhine", km=1233)
    assert model.requests[0].response_schema is not None
    assert model.requests[0].response_schema["title"] == "River"


async def test_openai_client_sends_images() -> None:
    content: Any = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"}},
    ]
    async with openai_client("A hat.") as (client, model):
        await client.chat.completions.create(
            model="fast", messages=[{"role": "user", "content": content}]
        )
    assert model.requests[0].messages == (
        User([Text("What is it?"), Image(Inline("aGk="), "image/png", "low")]),
    )


OPENAI_ERRORS: list[tuple[ProviderError, type[openai.APIStatusError]]] = [
    (InvalidRequestError("no"), openai.BadRequestError),
    (ContextOverflowError("too long"), openai.BadRequestError),
    (RateLimitError("slow", retry_after=7), openai.RateLimitError),
    (OverloadedError("busy"), openai.InternalServerError),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "expected"), OPENAI_ERRORS)
async def test_errors_are_raised_as_the_classes_of_the_openai_client(
    error: ProviderError, expected: type[openai.APIStatusError], stream: bool
) -> None:
    async with openai_client(error) as (client, _):
        with pytest.raises(expected) as caught:
            await client.chat.completions.create(model="fast", messages=HELLO, stream=stream)
    assert error.message in str(caught.value)
    if error.retry_after:
        assert caught.value.response.headers["retry-after"] == "7"


async def test_openai_client_retries_transient_errors_only() -> None:
    async with openai_client(
        RateLimitError("slow", retry_after=0.01),
        OverloadedError("busy", retry_after=0.01),
        "Yes",
        retries=2,
    ) as (client, model):
        made = await client.chat.completions.create(model="fast", messages=HELLO)
        assert made.choices[0].message.content == "Yes"
        assert len(model.requests) == 3
        model.answers = [QuotaExceededError("no credit")]
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="fast", messages=HELLO)
        assert len(model.requests) == 4


async def test_openai_client_raises_an_error_if_the_stream_breaks_off() -> None:
    async with openai_client(broken("Bonj", StreamInterruptedError("cut"))) as (client, _):
        stream = await client.chat.completions.create(model="fast", messages=HELLO, stream=True)
        heard = []
        caught: Exception | None = None
        try:
            async for chunk in stream:
                heard.append(chunk.choices[0].delta.content)
        except openai.APIError as error:
            caught = error
    assert "Bonj" in heard
    assert "cut" in str(caught)


async def test_openai_client_lists_models() -> None:
    async with openai_client() as (client, _):
        assert [model.id async for model in client.models.list()] == ["fast"]
        assert (await client.models.retrieve("fast")).id == "fast"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("slow")
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="slow", messages=HELLO)


# --- the openai client, Responses API ----------------------------------------------------------


async def test_responses_client_receives_a_complete_reply() -> None:
    async with openai_client(speak(think, usage=USAGE)) as (client, model):
        made = await client.responses.create(
            model="fast", instructions="Be terse.", input="Hello", max_output_tokens=7, store=False
        )
    assert made.output_text == "Yes."
    assert made.status == "completed"
    assert made.usage is not None
    assert (made.usage.total_tokens, made.usage.input_tokens_details.cached_tokens) == (15, 4)
    assert model.requests[0].messages == (System("Be terse."), User("Hello"))


async def test_responses_client_streams_tool_calls_and_sends_their_results() -> None:
    tools: Any = [{"type": "function", "name": "weather", "parameters": CITY, "strict": False}]
    async with openai_client(speak(two_calls, finish="tool_calls"), "Rain.") as (client, model):
        async with client.responses.stream(model="fast", input="Hello", tools=tools) as stream:
            kinds = [event.type async for event in stream]
            made = await stream.get_final_response()
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] == "response.completed"
        calls = [item for item in made.output if item.type == "function_call"]
        assert [call.arguments for call in calls] == ['{"city": "Paris"}', '{"city": "Rome"}']
        said: Any = [{"type": "message", "role": "user", "content": "Hello"}]
        said += [
            item.model_dump(exclude_none=True, exclude={"parsed_arguments"})
            for item in made.output
        ]
        for item in said[1:]:
            for part in item.get("content", ()):
                part.pop("parsed", None)
        said += [
            {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
            for call in calls
        ]
        again = await client.responses.create(model="fast", input=said, tools=tools)
    assert again.output_text == "Rain."
    assert model.requests[1].messages[-1] == ToolResult("call_2", "rain")
    assert [call.id for call in model.requests[1].messages[1].tool_calls] == ["call_1", "call_2"]  # type: ignore[union-attr]


async def test_responses_client_parses_structured_output_and_sends_images() -> None:
    content: Any = [
        {"type": "input_text", "text": "Which?"},
        {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"},
    ]
    async with openai_client('{"name": "Rhine", "km": 1233}') as (client, model):
        made = await client.responses.parse(
            model="fast", input=[{"role": "user", "content": content}], text_format=River
        )
    assert made.output_parsed == River(name="Rhine", km=1233)
    assert model.requests[0].messages == (
        User([Text("Which?"), Image(Inline("aGk="), "image/png", "auto")]),
    )


async def test_errors_are_raised_as_the_classes_of_the_responses_client() -> None:
    cut = broken("Bonj", StreamInterruptedError("cut"))
    async with openai_client(RateLimitError("slow", retry_after=7), cut) as (client, _):
        with pytest.raises(openai.RateLimitError):
            await client.responses.create(model="fast", input="Hello")
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            await client.responses.create(
                model="fast", input="Hello", previous_response_id="resp_1"
            )
        stream = await client.responses.create(model="fast", input="Hello", stream=True)
        kinds = []
        caught: Exception | None = None
        try:
            async for event in stream:
                kinds.append(event.type)
        except openai.APIError as error:
            caught = error
    assert "cut" in str(caught)
    assert kinds[-1] == "response.failed"


# --- the anthropic client ----------------------------------------------------------------------


async def test_anthropic_client_receives_a_complete_reply() -> None:
    async with anthropic_client(speak(think, usage=USAGE)) as (client, model):
        made = await client.messages.create(
            model="fast", max_tokens=7, system="Be terse.", messages=HELLO
        )
    assert [block.type for block in made.content] == ["thinking", "text"]
    assert made.content[0].signature == "signed"  # type: ignore[union-attr]
    assert made.stop_reason == "end_turn"
    assert (
        made.usage.input_tokens,
        made.usage.cache_read_input_tokens,
        made.usage.output_tokens,
    ) == (6, 4, 5)
    assert model.requests[0].messages == (System("Be terse."), User("Hello"))


async def test_anthropic_client_receives_a_streamed_reply() -> None:
    answer = speak(think, usage=USAGE, stop_sequence="END")
    async with (
        anthropic_client(answer) as (client, _),
        client.messages.stream(model="fast", max_tokens=7, messages=HELLO) as stream,
    ):
        texts = [text async for text in stream.text_stream]
        made = await stream.get_final_message()
    assert texts == ["Yes."]
    assert [block.type for block in made.content] == ["thinking", "text"]
    assert made.content[0].signature == "signed"  # type: ignore[union-attr]
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", "END")
    assert (made.usage.input_tokens, made.usage.output_tokens) == (6, 5)


async def test_anthropic_client_streams_tool_calls_and_sends_their_results() -> None:
    tools: Any = [{"name": "weather", "input_schema": CITY}]
    async with anthropic_client(speak(call, finish="tool_calls"), "Rain.") as (client, model):
        async with client.messages.stream(
            model="fast", max_tokens=7, messages=HELLO, tools=tools
        ) as stream:
            made = await stream.get_final_message()
        assert made.stop_reason == "tool_use"
        used = made.content[1]
        assert used.type == "tool_use"
        assert used.input == {"city": "Paris"}
        result: Any = {
            "type": "tool_result",
            "tool_use_id": used.id,
            "content": "rain",
            "is_error": True,
        }
        turns: Any = [
            *HELLO,
            {"role": "assistant", "content": made.content},
            {"role": "user", "content": [result]},
        ]
        await client.messages.create(model="fast", max_tokens=7, messages=turns, tools=tools)
    assert model.requests[1].messages[-1] == ToolResult("call_1", "rain", is_error=True)


async def test_anthropic_client_parses_structured_output() -> None:
    schema: Any = {"type": "json_schema", "schema": {**CITY, "additionalProperties": False}}
    async with anthropic_client('{"city": "Paris"}') as (client, model):
        made = await client.messages.create(
            model="fast", max_tokens=7, messages=HELLO, output_config={"format": schema}
        )
    assert made.content[0].text == '{"city": "Paris"}'  # type: ignore[union-attr]
    assert model.requests[0].response_schema == schema["schema"]


async def test_anthropic_client_sends_images() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    content: Any = [{"type": "image", "source": source}, {"type": "text", "text": "?"}]
    async with anthropic_client("A hat.") as (client, model):
        await client.messages.create(
            model="fast", max_tokens=7, messages=[{"role": "user", "content": content}]
        )
    assert model.requests[0].messages == (User([Image(Inline("aGk="), "image/png"), Text("?")]),)


ANTHROPIC_ERRORS: list[tuple[ProviderError, type[anthropic.APIStatusError]]] = [
    (InvalidRequestError("no"), anthropic.BadRequestError),
    (ContextOverflowError("too long"), anthropic.BadRequestError),
    (RateLimitError("slow", retry_after=7), anthropic.RateLimitError),
    (OverloadedError("busy"), anthropic.InternalServerError),
    (UnavailableError("down"), anthropic.InternalServerError),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "expected"), ANTHROPIC_ERRORS)
async def test_errors_are_raised_as_the_classes_of_the_anthropic_client(
    error: ProviderError, expected: type[anthropic.APIStatusError], stream: bool
) -> None:
    async with anthropic_client(error) as (client, _):
        with pytest.raises(expected) as caught:
            await client.messages.create(model="fast", max_tokens=7, messages=HELLO, stream=stream)
    assert error.message in str(caught.value)


async def test_anthropic_client_retries_transient_errors_only() -> None:
    slow = OverloadedError("busy", retry_after=0.01)
    async with anthropic_client(slow, slow, "Yes", retries=2) as (client, model):
        made = await client.messages.create(model="fast", max_tokens=7, messages=HELLO)
        assert made.content[0].text == "Yes"  # type: ignore[union-attr]
        assert len(model.requests) == 3
        model.answers = [QuotaExceededError("no credit")]
        with pytest.raises(anthropic.APIStatusError):
            await client.messages.create(model="fast", max_tokens=7, messages=HELLO)
        assert len(model.requests) == 4


async def test_anthropic_client_raises_an_error_if_the_stream_breaks_off() -> None:
    async with anthropic_client(broken("Bonj", StreamInterruptedError("cut"))) as (client, _):
        heard = []
        caught: Exception | None = None
        try:
            async with client.messages.stream(
                model="fast", max_tokens=7, messages=HELLO
            ) as stream:
                async for text in stream.text_stream:
                    heard.append(text)
        except anthropic.APIStatusError as error:
            caught = error
    assert heard == ["Bonj"]
    assert "cut" in str(caught)


async def test_anthropic_client_counts_tokens_and_lists_models() -> None:
    async with anthropic_client() as (client, model):
        counted = await client.messages.count_tokens(model="fast", messages=HELLO)
        assert counted.input_tokens == model.estimate_input_tokens("Hello")
        assert [each.id async for each in client.models.list()] == ["fast"]


# --- clients connected to the simulator --------------------------------------------------------


async def test_openai_and_anthropic_clients_work_with_the_simulator() -> None:
    model = ScriptedProvider(
        ScriptRule(
            Answer(
                thinking="Look it up.", tool_calls=[Call("weather", {"city": "Bern"}, id="call_1")]
            ),
            RequestMatch(turn=1),
        ),
        ScriptRule("It rains.", RequestMatch(tool_result="rain")),
    )
    tools: Any = [{"name": "weather", "input_schema": CITY}]
    functions: Any = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
    async with (
        serving(create_app({"sim": model})) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as one,
        anthropic.AsyncAnthropic(base_url=url, api_key="x") as other,
    ):
        made = await other.messages.create(model="sim", max_tokens=50, messages=HELLO, tools=tools)
        assert made.stop_reason == "tool_use"
        result: Any = {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"}
        turns: Any = [
            *HELLO,
            {"role": "assistant", "content": made.content},
            {"role": "user", "content": [result]},
        ]
        async with other.messages.stream(
            model="sim", max_tokens=50, messages=turns, tools=tools
        ) as stream:
            assert await stream.get_final_text() == "It rains."
        done = (
            await one.chat.completions.create(model="sim", messages=HELLO, tools=functions)
        ).choices[0]
        assert done.message.tool_calls is not None
        assert done.message.tool_calls[0].id == "call_1"


# --- one client that calls several models ------------------------------------------------------


async def test_one_client_can_call_every_model_by_its_name() -> None:
    models: dict[str, Provider] = {"one": Listed("First."), "two": Listed("Second.")}
    async with (
        serving(create_app(models)) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as client,
    ):
        for name, answer in (("one", "First."), ("two", "Second.")):
            made = await client.chat.completions.create(model=name, messages=HELLO)
            assert made.choices[0].message.content == answer


# --- the ollama client -------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def ollama_client(*answers: Any) -> AsyncIterator[tuple[ollama.AsyncClient, Listed]]:
    model = Listed(*answers)
    async with serving(create_app({"fast": model})) as url:
        client = ollama.AsyncClient(host=url)
        try:
            yield client, model
        finally:
            await client._client.aclose()  # noqa: SLF001 - the client has no close() of its own


async def test_ollama_client_receives_a_complete_reply() -> None:
    async with ollama_client(speak(think, usage=USAGE)) as (client, model):
        made = await client.chat(
            "fast", HELLO, think=True, options={"num_predict": 7, "seed": 3}, keep_alive="5m"
        )
    assert (made.message.content, made.message.thinking) == ("Yes.", "Hm.")
    assert (made.model, made.done, made.done_reason) == ("m", True, "stop")
    assert (made.prompt_eval_count, made.eval_count) == (10, 5)
    assert made.created_at is not None
    assert made.created_at > "2026"
    config = model.requests[0].config
    assert (config.max_tokens, config.seed, config.reasoning) == (7, 3, "medium")


async def test_ollama_client_receives_a_streamed_reply() -> None:
    async with ollama_client(reply("Bonjour", usage=USAGE)) as (client, model):
        parts = [part async for part in await client.chat("fast", HELLO, stream=True)]
    assert "".join([part.message.content or "" for part in parts]) == "Bonjour"
    assert [part.done for part in parts] == [*[False] * (len(parts) - 1), True]
    assert parts[-1].eval_count == 5
    assert model.requests[0].stream


async def test_ollama_client_receives_tool_calls_and_sends_their_results() -> None:
    tools: Any = [
        {
            "type": "function",
            "function": {"name": "weather", "description": "W", "parameters": CITY},
        }
    ]
    for stream in (False, True):
        async with ollama_client(speak(two_calls, finish="tool_calls"), "Rain.") as (
            client,
            model,
        ):
            if stream:
                parts = [
                    part
                    async for part in await client.chat("fast", HELLO, tools=tools, stream=True)
                ]
                calls = [call for part in parts for call in part.message.tool_calls or ()]
            else:
                calls = list(
                    (await client.chat("fast", HELLO, tools=tools)).message.tool_calls or ()
                )
            assert [(each.function.name, each.function.arguments) for each in calls] == [
                ("weather", {"city": "Paris"}),
                ("weather", {"city": "Rome"}),
            ]
            turn = ollama.Message(role="assistant", content="", tool_calls=calls)
            results: Any = [{"role": "tool", "content": "rain", "tool_name": "weather"}] * 2
            made = await client.chat("fast", [*HELLO, turn, *results], tools=tools)
        assert made.message.content == "Rain."
        assert [message.tool_call_id for message in model.requests[1].messages[-2:]] == [
            "call_1",
            "call_2",
        ]  # type: ignore[union-attr]


async def test_ollama_client_parses_structured_output() -> None:
    async with ollama_client('{"name": "Seine", "km": 777}') as (client, model):
        made = await client.chat("fast", HELLO, format=River.model_json_schema())
    assert River.model_validate_json(made.message.content or "").name == "Seine"
    assert model.requests[0].response_schema == River.model_json_schema()


async def test_ollama_client_lists_and_shows_models() -> None:
    async with ollama_client("x") as (client, model):
        model.capabilities = Capabilities.of(
            {"supports_images": False, "max_context_tokens": 4096}
        )
        assert [each.model for each in (await client.list()).models] == ["fast"]
        shown = await client.show("fast")
        with pytest.raises(ollama.ResponseError, match="no model of this name") as caught:
            await client.show("slow")
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert shown.modelinfo == {"general.architecture": "dragoman", "dragoman.context_length": 4096}
    assert caught.value.status_code == 404


async def test_ollama_version_route_is_served() -> None:
    async with (
        serving(create_app({"fast": Listed("x")})) as url,
        aiohttp.ClientSession() as session,
    ):
        async with session.get(f"{url}/api/version") as response:
            assert await response.json() == {"version": dragoman.__version__}
        async with session.get(
            f"{url}/api/version", headers={"host": "elsewhere.test"}
        ) as response:
            assert response.status == 403
            assert isinstance((await response.json())["error"], str)


async def collect(client: ollama.AsyncClient, parts: list[str], *, stream: bool) -> None:
    if not stream:
        parts.append((await client.chat("fast", HELLO)).message.content or "")
        return
    async for part in await client.chat("fast", HELLO, stream=True):
        parts.append(part.message.content or "")


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_raised_as_the_classes_of_the_ollama_client(stream: bool) -> None:
    async with ollama_client(RateLimitError("slow down", retry_after=2)) as (client, _):
        with pytest.raises(ollama.ResponseError, match="slow down") as caught:
            await collect(client, [], stream=stream)
    assert caught.value.status_code == 429


async def test_ollama_client_raises_an_error_if_the_stream_is_truncated() -> None:
    async with ollama_client(broken("Bon", StreamInterruptedError("cut"))) as (client, _):
        parts: list[str] = []
        with pytest.raises(ollama.ResponseError, match="cut"):
            await collect(client, parts, stream=True)
    assert "".join(parts) == "Bon"
