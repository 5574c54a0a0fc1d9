"""Test that unmodified vendor clients work with a gateway on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import aiohttp
import ollama
import openai
import pytest

import dragoman as d
from dragoman.events import Assembler
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.gateway.ledger import Ledger
from dragoman.sim import SimServer
from tests.listed import Listed, broken, speak
from tests.waiting import until

from .serving import serving
from .vendor_clients import (
    CITY,
    CLIENTS,
    FUNCTION,
    PNG,
    Anthropic,
    Boto3,
    Cohere,
    Ollama,
    OpenaiChat,
    OpenaiResponses,
    VendorClient,
    script,
    user,
)

HELLO = user("Hello")
NAMES = {"ids": lambda each: each.name}

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")


@contextlib.asynccontextmanager
async def opened(
    each: VendorClient, *answers: Any, retries: int = 0
) -> AsyncIterator[tuple[Any, Listed]]:
    """Serve a model that gives these answers; yield a client of the gateway, and the model."""
    model = Listed(*answers)
    async with serving(create_app({"fast": model})) as url:
        client = each.open(url, retries)
        try:
            yield client, model
        finally:
            await each.close(client)


def call(out: Assembler) -> None:
    out.text("Let me see.")
    out.tool_start(0, "call_1", "weather")
    for piece in ('{"ci', 'ty": "Paris"}'):
        out.tool_input(0, piece)


def two_calls(out: Assembler) -> None:
    call(out)
    out.tool_start(1, "call_2", "weather")
    out.tool_input(1, '{"city": "Rome"}')


# --- what every client sends and receives ------------------------------------------------------


@pytest.mark.parametrize("each", CLIENTS, **NAMES)
async def test_image_of_a_client_reaches_the_model(each: VendorClient) -> None:
    async with opened(each, "A hat.") as (client, model):
        await each.ask(client, "fast", each.picture)
    content = model.requests[0].messages[0].content
    assert [type(block) for block in content] == [d.Text, d.Image]
    assert content[1] == d.Image(d.Inline(PNG), "image/png")


@pytest.mark.parametrize("each", CLIENTS, **NAMES)
async def test_schema_of_a_client_reaches_the_model(each: VendorClient) -> None:
    async with opened(each, '{"name": "Rhine", "km": 1233}') as (client, model):
        assert (await each.parse(client, "fast")).km == 1233
    assert model.requests[0].response_schema is not None
    assert set(model.requests[0].response_schema["properties"]) == {"name", "km"}


# Errors, and the statuses that vendors use for them.
ERRORS: list[tuple[d.ProviderError, set[int]]] = [
    (d.InvalidRequestError("no"), {400}),
    (d.ContextOverflowError("too long"), {400}),
    (d.RateLimitError("slow", retry_after=7), {429}),
    (d.OverloadedError("busy"), {503, 529}),
    (d.UnavailableError("down"), {500, 503}),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("each", CLIENTS, **NAMES)
async def test_errors_are_raised_as_the_class_of_the_client(
    each: VendorClient, stream: bool
) -> None:
    async with opened(each, *[error for error, _ in ERRORS]) as (client, _):
        for error, statuses in ERRORS:
            asking = each.hear(client, "fast", "Hi", []) if stream else each.ask(client, "fast")
            with pytest.raises(each.error) as caught:
                await asking
            assert error.message in str(caught.value)
            assert each.status(caught.value) in statuses
            if error.retry_after and (headers := each.headers(caught.value)):
                assert headers["retry-after"] == "7"


@pytest.mark.parametrize("each", CLIENTS, **NAMES)
async def test_client_raises_an_error_if_the_stream_breaks_off(each: VendorClient) -> None:
    heard: list[str] = []
    async with opened(each, broken("Bonj", d.StreamInterruptedError("cut"))) as (client, _):
        with pytest.raises((each.error, openai.APIError, ValueError), match="cut"):
            await each.hear(client, "fast", "Hello", heard)
    assert "".join(heard) == "Bonj"


@pytest.mark.parametrize("each", [OpenaiChat(), Anthropic()], **NAMES)
async def test_client_retries_transient_errors_only(each: VendorClient) -> None:
    errors = [
        d.RateLimitError("slow", retry_after=0.01),
        d.OverloadedError("busy", retry_after=0.01),
    ]
    async with opened(each, *errors, "Yes", retries=2) as (client, model):
        assert each.text(await each.ask(client, "fast")) == "Yes"
        assert len(model.requests) == 3
        model.answers = [d.QuotaExceededError("no credit")]
        with pytest.raises(each.error):
            await each.ask(client, "fast")
        assert len(model.requests) == 4


@pytest.mark.parametrize("each", CLIENTS, **NAMES)
async def test_client_can_call_every_model_by_its_name(each: VendorClient) -> None:
    models: dict[str, d.Provider] = {"one": Listed("First."), "two": Listed("Second.")}
    async with serving(create_app(models)) as url:
        client = each.open(url)
        if each.lists is not None:
            assert sorted(await each.names(client)) == ["one", "two"]
        for name, answer in (("one", "First."), ("two", "Second.")):
            assert each.text(await each.ask(client, name)) == answer
        with pytest.raises(each.error) as caught:
            await each.ask(client, "three")
        assert each.status(caught.value) == 404
        await each.close(client)


# --- boto3 and the cohere client ---------------------------------------------------------------


async def test_boto3_needs_a_bearer_token_of_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    each, name = Boto3(), "us.maker.model-v1:0/a"
    keys = KeyRing([Key("ada", hash_key("sk-ada"))])
    async with serving(create_app({name: Listed("Hi")}, keys=keys)) as url:
        with contextlib.closing(each.open(url)) as client:
            with pytest.raises(each.error, match="set AWS_BEARER_TOKEN_BEDROCK to a") as caught:
                await each.ask(client, name)
            assert caught.value.response["Error"]["Code"] == "AccessDeniedException"
        monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "sk-ada")
        with contextlib.closing(each.open(url)) as client:
            made = await each.ask(client, name)
            with pytest.raises(each.error, match="no model of this name") as caught:
                await each.ask(client, "other")
            with pytest.raises(each.error, match="only /model/MODEL/converse"):
                await asyncio.to_thread(client.invoke_model, modelId=name, body=b"{}")
    facts = made["ResponseMetadata"]
    assert facts["RequestId"] == facts["HTTPHeaders"]["x-request-id"]
    assert caught.value.response["Error"]["Code"] == "ResourceNotFoundException"


async def test_boto3_sends_the_result_of_a_tool_and_warnings_name_what_is_dropped() -> None:
    each, schema = Boto3(), {"json": CITY}
    tools = {"tools": [{"toolSpec": {"name": "weather", "inputSchema": schema}}]}
    more = {"toolConfig": tools, "performanceConfig": {"latency": "optimized"}}
    async with opened(each, speak(two_calls, finish="tool_calls"), "Sunny.") as (client, model):
        made = await each.ask(client, "fast", **more)
        said = made["output"]["message"]
        results = [
            {"toolResult": {"toolUseId": call["toolUse"]["toolUseId"], "content": [{"text": "9"}]}}
            for call in said["content"][1:]
        ]
        talk = [*user([{"text": "Hi"}]), said, {"role": "user", "content": results}]
        last = await asyncio.to_thread(client.converse, modelId="fast", messages=talk, **more)
    assert (made["stopReason"], each.text(last)) == ("tool_use", "Sunny.")
    assert last["ResponseMetadata"]["HTTPHeaders"]["x-dragoman-warnings"] == (
        "performanceConfig_dropped performanceConfig"
    )
    sent = model.requests[1].messages
    assert [type(each) for each in sent] == [d.User, d.Assistant, d.ToolResult, d.ToolResult]
    assert [each.tool_call_id for each in sent[2:]] == ["call_1", "call_2"]


async def test_cohere_client_sends_the_result_of_a_tool() -> None:
    each = Cohere()
    async with opened(each, speak(two_calls, finish="tool_calls"), "Sunny.") as (client, model):
        made = await each.ask(client, "fast", **each.with_tool)
        said = {"role": "assistant", "tool_calls": made.message.tool_calls}
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": "9"}
            for call in made.message.tool_calls
        ]
        talk = [*user("Hi"), said, *results]
        last = await client[0].chat(model="fast", messages=talk, **each.with_tool)
        with pytest.raises(each.error, match="documents: the model 'fast' cannot") as caught:
            await each.ask(client, "fast", documents=["A text."])
    assert (made.finish_reason, each.text(last)) == ("TOOL_CALL", "Sunny.")
    assert [type(each) for each in model.requests[1].messages[2:]] == [d.ToolResult] * 2
    assert caught.value.body["id"] == each.headers(caught.value)["x-request-id"]


@pytest.mark.parametrize("each", [Cohere(), Boto3()], **NAMES)
async def test_usage_of_an_aborted_stream_is_charged(
    each: VendorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "x")
    ledger, keys = Ledger(), KeyRing([Key("ada", hash_key("x"), budget_usd=Decimal(9))])
    with SimServer(script()) as upstream:
        model = upstream.connect("openai", "claude-sonnet-4-6")
        model.priced_as = "anthropic:claude-sonnet-4-6"
        async with serving(create_app({"fast": model}, keys=keys, ledger=ledger)) as url:
            client = each.open(url)
            await each.abort(client, "fast")
            await until(lambda: ledger.spent("ada") > 0, "the charge of the aborted stream")
            await each.close(client)


# --- the openai client -------------------------------------------------------------------------


async def test_openai_client_streams_tool_calls_and_sends_their_results() -> None:
    tools: Any = [FUNCTION]
    async with opened(OpenaiChat(), speak(two_calls, finish="tool_calls"), "Rain.") as (
        client,
        model,
    ):
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
    assert model.requests[1].messages[-1] == d.ToolResult("call_2", "rain")


async def test_openai_client_retrieves_a_model() -> None:
    async with opened(OpenaiChat()) as (client, _):
        assert (await client.models.retrieve("fast")).id == "fast"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("slow")


async def test_responses_client_streams_tool_calls_and_sends_their_results() -> None:
    tools: Any = [{"type": "function", "name": "weather", "parameters": CITY, "strict": False}]
    async with opened(OpenaiResponses(), speak(two_calls, finish="tool_calls"), "Rain.") as (
        client,
        model,
    ):
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
    assert model.requests[1].messages[-1] == d.ToolResult("call_2", "rain")
    assert [call.id for call in model.requests[1].messages[1].tool_calls] == ["call_1", "call_2"]  # type: ignore[union-attr]


# --- the anthropic client ----------------------------------------------------------------------


async def test_anthropic_client_streams_tool_calls_and_sends_their_results() -> None:
    tools: Any = [{"name": "weather", "input_schema": CITY}]
    async with opened(Anthropic(), speak(call, finish="tool_calls"), "Rain.") as (client, model):
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
    assert model.requests[1].messages[-1] == d.ToolResult("call_1", "rain", is_error=True)


# --- the ollama client -------------------------------------------------------------------------


async def test_ollama_client_receives_tool_calls_and_sends_their_results() -> None:
    tools: Any = [
        {
            "type": "function",
            "function": {"name": "weather", "description": "W", "parameters": CITY},
        }
    ]
    for stream in (False, True):
        async with opened(Ollama(), speak(two_calls, finish="tool_calls"), "Rain.") as (
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


async def test_ollama_client_lists_and_shows_models() -> None:
    async with opened(Ollama(), "x") as (client, model):
        model.capabilities = d.Capabilities.of(
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
            assert await response.json() == {"version": d.__version__}
        async with session.get(
            f"{url}/api/version", headers={"host": "elsewhere.test"}
        ) as response:
            assert response.status == 403
            assert isinstance((await response.json())["error"], str)
