# ruff: noqa: SLF001 - LiteLLM documents `_hidden_params`
"""``dragoman.compat.litellm``: programs for LiteLLM work after changing one import.

The examples have the form of those in LiteLLM's README and documentation, on the pages that
docs/howto/moving.md lists.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import pydantic
import pytest

from dragoman import errors
from dragoman.compat import litellm
from dragoman.compat.litellm.exceptions import converted_errors
from dragoman.integrations import DragomanLossWarning
from dragoman.sim import Answer, Call, Fault, RequestMatch, ScriptedProvider, ScriptRule, SimServer
from tests.server import Connection
from tests.test_sync import Background

HELLO = [{"role": "user", "content": "Hello!"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALLS = Answer(
    tool_calls=[Call("get_weather", {"city": "Paris"}), Call("get_weather", {"city": "Rome"})]
)
FAULTS = {
    "E400": (Fault(status=400), "BadRequestError"),
    "E401": (Fault(status=401), "AuthenticationError"),
    "E403": (Fault(status=403), "PermissionDeniedError"),
    "E404": (Fault(error="InvalidModelError"), "NotFoundError"),
    "E429": (Fault(status=429), "RateLimitError"),
    "E500": (Fault(status=500), "InternalServerError"),
    "long": (Fault(error="ContextOverflowError"), "ContextWindowExceededError"),
}
RULES = (
    *[
        ScriptRule(Answer(""), RequestMatch(text=word), fault=fault)
        for word, (fault, _) in FAULTS.items()
    ],
    ScriptRule(CALLS, RequestMatch(text="CALL", turn=1)),
    ScriptRule(Answer(tool_calls=CALLS.tool_calls[:1]), RequestMatch(text="FUNCTION")),
    ScriptRule(Answer('{"city": "Bern"}'), RequestMatch(schema=True)),
)


@pytest.fixture(scope="module")
def server() -> Iterator[SimServer]:
    with SimServer(ScriptedProvider(*RULES, "Hi there.")) as made:
        variables = {
            "OPENAI_API_BASE": f"{made.url}/v1", "OPENAI_API_KEY": "k",
            "ANTHROPIC_API_BASE": made.url, "ANTHROPIC_API_KEY": "k",
            "DRAGOMAN_CONFIG": os.devnull,
        }  # fmt: skip
        with mock.patch.dict(os.environ, variables):
            yield made


def ask(text: str = "Hello!", model: str = "openai/gpt-4o", **given: Any) -> Any:
    return litellm.completion(model, [{"role": "user", "content": text}], **given)


@pytest.mark.parametrize(
    "model", ["gpt-4o", "openai/gpt-4o", "anthropic/claude-sonnet-4-20250514"]
)
def test_a_reply_has_the_form_of_litellm(model: str, server: SimServer) -> None:
    reply = litellm.completion(model=model, messages=HELLO)
    assert isinstance(reply, litellm.ModelResponse)
    assert reply.choices[0].message.content == "Hi there."
    assert reply["choices"][0]["message"]["content"] == "Hi there."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.object == "chat.completion"
    assert reply.choices[0].message.tool_calls is None
    assert reply.model == server.requests[-1].model == model.rpartition("/")[2]
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.model_dump()["choices"][0]["message"]["role"] == "assistant"
    assert json.loads(reply.model_dump_json()) == reply.model_dump()
    assert "function_call" not in reply.model_dump(exclude_none=True)["choices"][0]["message"]
    assert reply._hidden_params["response_cost"] == litellm.completion_cost(reply) > 0
    with pytest.raises(AttributeError, match="it has"):
        _ = reply.nothing


def test_a_stream_has_chunks_that_can_be_joined(server: SimServer) -> None:
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert {type(each) for each in chunks} == {litellm.ModelResponseStream}
    choices = [choice for each in chunks for choice in each.choices]
    assert "".join([each["delta"]["content"] or "" for each in choices]) == "Hi there."
    assert choices[-1].finish_reason == "stop"
    assert chunks[-1].usage.total_tokens > 0
    assert chunks[-1]._hidden_params["response_cost"] > 0
    joined = litellm.stream_chunk_builder(chunks)
    assert joined.choices[0].message.content == "Hi there."
    assert joined.usage == chunks[-1].usage
    assert joined.object == "chat.completion"


def test_asynchronous_calls_work_in_several_event_loops(server: SimServer) -> None:
    async def call() -> tuple[Any, list[Any]]:
        stream = await litellm.acompletion(model="gpt-4o", messages=HELLO, stream=True)
        chunks = [chunk async for chunk in stream]
        return await litellm.acompletion(model="gpt-4o", messages=HELLO), chunks

    for _ in range(2):
        reply, chunks = asyncio.run(call())
        assert reply.choices[0].message.content == "Hi there."
        assert litellm.stream_chunk_builder(chunks).choices[0].message.content == "Hi there."


@pytest.mark.parametrize("model", ["gpt-4o", "anthropic/claude-sonnet-4-20250514"])
@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_called_and_answered(model: str, stream: bool, server: SimServer) -> None:
    messages: list[Any] = [{"role": "user", "content": "CALL"}]
    given: dict[str, Any] = {"model": model, "tools": TOOLS, "tool_choice": "auto"}
    reply = litellm.completion(messages=messages, stream=stream, **given)
    message = (litellm.stream_chunk_builder(reply) if stream else reply).choices[0].message
    messages.append(message)
    for call in message.tool_calls:
        city = json.loads(call.function.arguments)["city"]
        result = {"tool_call_id": call.id, "role": "tool", "name": call.function.name}
        messages.append({**result, "content": f"rain in {city}"})
    second = litellm.completion(messages=messages, **given)
    assert second.choices[0].message.content == "Hi there."
    results = [each.content for each in server.requests[-1].messages[-2:]]
    expected = ["rain in Paris", "rain in Rome"]
    assert [text if isinstance(text, str) else text[0].text for text in results] == expected


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_of_functions_has_the_older_form_alone(stream: bool, server: SimServer) -> None:
    reply = ask("FUNCTION", functions=[TOOLS[0]["function"]], stream=stream)
    message = (litellm.stream_chunk_builder(reply) if stream else reply).choices[0].message
    assert message.tool_calls is None
    assert message.function_call.name == "get_weather"
    assert json.loads(message.function_call.arguments) == {"city": "Paris"}


def test_a_reply_can_follow_a_pydantic_class(server: SimServer) -> None:
    class Place(pydantic.BaseModel):
        city: str

    reply = ask(response_format=Place)
    assert Place.model_validate_json(reply.choices[0].message.content) == Place(city="Bern")
    sent = server.requests[-1].response_schema
    assert sent is not None
    assert sent["properties"]["city"]["type"] == "string"


def test_texts_are_embedded(server: SimServer) -> None:
    made = litellm.embedding(model="text-embedding-3-small", input=["one", "two"])
    vector = made.data[1]["embedding"]
    assert len(made.data) == 2
    assert made.object == "list"
    assert made.usage.prompt_tokens > 0
    assert made._hidden_params["response_cost"] > 0
    alone = asyncio.run(litellm.aembedding("openai/text-embedding-3-small", "two"))
    assert alone.data[0].embedding == vector


def test_mock_responses_need_no_server() -> None:
    reply = litellm.completion("gpt-4o", HELLO, mock_response="It is simple.")
    assert reply["choices"][0]["message"]["content"] == "It is simple."
    stream = litellm.completion("gpt-4o", HELLO, mock_response="It is simple.", stream=True)
    joined = litellm.stream_chunk_builder(stream)
    assert joined.choices[0].message.content == "It is simple."
    assert litellm.completion("gpt-4o", HELLO, mock_response=reply) is reply
    with pytest.raises(litellm.RateLimitError) as caught:
        litellm.completion("gpt-4o", HELLO, mock_response="litellm.RateLimitError")
    assert caught.value.status_code == 429
    assert caught.value.llm_provider == "openai"
    with pytest.raises(ZeroDivisionError):
        litellm.completion("gpt-4o", HELLO, mock_response=ZeroDivisionError())


def test_costs_and_properties_of_models_are_returned() -> None:
    assert litellm.cost_per_token("gpt-4o", 1_000, 100) == (0.0025, 0.001)
    strings = litellm.completion_cost(model="gpt-4o", prompt="Hey!", completion="How are you?")
    assert 0 < strings < 0.001
    with pytest.raises(litellm.NotFoundError):
        litellm.completion_cost(model="openai/no-such-model", prompt="Hey!")
    info = litellm.get_model_info("anthropic/claude-sonnet-4-20250514")
    assert info["litellm_provider"] == "anthropic"
    assert info["max_input_tokens"] == 200_000
    assert litellm.get_max_tokens("gpt-4o") == 16384
    assert litellm.supports_vision("gpt-4o")
    assert litellm.supports_function_calling(model="gpt-4o")
    assert not litellm.supports_function_calling(model="ollama/llama2")
    assert litellm.token_counter("gpt-4o", text="Hey, how's it going") in range(5, 9)
    assert litellm.token_counter("some/model", messages=HELLO) > 1


@pytest.mark.parametrize("word", FAULTS)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_litellm_exceptions(word: str, stream: bool, server: SimServer) -> None:
    kind = getattr(litellm, FAULTS[word][1])
    with pytest.raises(kind) as caught:
        ask(word, stream=stream)
    error = caught.value
    assert type(error).__name__ == kind.__name__
    assert error.status_code == kind.status_code
    assert error.llm_provider == "openai"
    assert error.model == "gpt-4o"
    assert error.message == str(error)
    assert str(error).startswith(f"litellm.{kind.__name__}: ")


@pytest.mark.parametrize(
    ("ours", "name", "other"),
    [
        (errors.TimedOutError("slow"), "Timeout", "APITimeoutError"),
        (errors.OverloadedError("busy"), "ServiceUnavailableError", "APIStatusError"),
        (errors.NetworkError("gone"), "APIConnectionError", "APIConnectionError"),
        (errors.ContextOverflowError("long"), "ContextWindowExceededError", "BadRequestError"),
        (errors.InvalidRequestError("rude", provider_code="content_policy_violation"),
         "ContentPolicyViolationError", "BadRequestError"),
        (errors.StructuredOutputError("wrong"), "JSONSchemaValidationError",
         "APIResponseValidationError"),
        (errors.InvalidRequestError("gone", status=404), "NotFoundError", None),
        (errors.UnavailableError("down", status=503), "ServiceUnavailableError", "APIStatusError"),
        (ValueError("odd"), "BadRequestError", None),
    ],
)  # fmt: skip
def test_errors_inherit_from_the_openai_package_if_it_is_imported(
    ours: Exception, name: str, other: str | None
) -> None:
    for openai in (None, vendor_errors()):
        with mock.patch.dict(sys.modules):
            sys.modules.pop("openai", None)
            sys.modules |= {} if openai is None else {"openai": openai}
            with pytest.raises(getattr(litellm, name)) as caught, converted_errors("openai", "m"):
                raise ours
        assert caught.value.__cause__ is ours
        assert caught.value.model == "m"
        if openai is not None and other is not None:
            assert isinstance(caught.value, getattr(openai, other))


def vendor_errors() -> Any:
    """Return a module with exceptions like those of openai, which takes long to import."""

    class OpenAIError(Exception):
        def __init__(self, message: str, *, request: object) -> None:
            raise NotImplementedError

    module = ModuleType("openai")
    for name in (
        "APITimeoutError", "APIStatusError", "APIConnectionError", "BadRequestError",
        "APIResponseValidationError", "NotFoundError",
    ):  # fmt: skip
        setattr(module, name, type(name, (OpenAIError,), {}))
    return module


def test_fallbacks_answer_in_turn(server: SimServer) -> None:
    reply = litellm.completion(
        "groq/none",
        HELLO,
        fallbacks=[{"model": "openai/a", "api_base": "http://127.0.0.1:9/v1"}, "openai/b"],
    )
    assert reply.model == "b"
    assert reply._hidden_params["custom_llm_provider"] == "openai"


def test_parameters_are_sent_refused_or_dropped(server: SimServer) -> None:
    claude = "anthropic/claude-sonnet-4-20250514"
    ask(temperature=0.5, max_tokens=9, stop="x")
    config = server.requests[-1].config
    assert config.temperature == 0.5
    assert config.max_tokens == 9
    ask(reasoning_effort="low", model="openai/o4-mini")
    assert server.requests[-1].config.reasoning == "low"
    with pytest.warns(DragomanLossWarning, match="temperature"):
        ask(temperature=0.5, model="openai/o4-mini")
    ask(thinking={"type": "enabled", "budget_tokens": 2048}, max_tokens=4096, model=claude)
    assert server.requests[-1].config.reasoning == 2048
    with pytest.raises(litellm.UnsupportedParamsError, match=r"seed.*drop_params=True"):
        ask(seed=1, model=claude)
    with pytest.raises(litellm.UnsupportedParamsError, match="frobnicate"):
        ask(frobnicate=1, model=claude)
    with pytest.warns(DragomanLossWarning, match="seed"):
        reply = ask(seed=1, drop_params=True, model=claude)
    assert [each for each in reply._hidden_params["warnings"] if "seed" in each]
    with pytest.warns(DragomanLossWarning, match="caching"):
        ask(caching=True)
    ask(seed=1, additional_drop_params=["seed"], model=claude)
    with mock.patch.object(litellm, "drop_params", True), pytest.warns(DragomanLossWarning):
        ask(seed=1, model=claude)


def test_wrong_names_and_settings_get_a_clear_error(server: SimServer) -> None:
    with pytest.raises(litellm.BadRequestError, match="no provider is known for 'nope/x'"):
        litellm.completion("nope/x", HELLO)
    with pytest.raises(litellm.BadRequestError, match="litellm_proxy needs api_base"):
        litellm.completion("litellm_proxy/x", HELLO)
    with pytest.raises(litellm.AuthenticationError, match="GROQ_API_KEY"):
        litellm.completion("groq/llama", HELLO)
    with pytest.raises(litellm.BadRequestError, match="must be"):
        ask(temperature="hot")
    with pytest.raises(AttributeError, match="callbacks: setting it has no effect"):
        litellm.callbacks = ["langfuse"]
    with pytest.raises(AttributeError, match="has no 'create_skill'"):
        _ = litellm.create_skill


def test_key_and_fields_of_a_vendor_are_not_sent_to_another_address() -> None:
    seen: list[Any] = []

    async def answer(connection: Connection) -> None:
        fields = json.loads(connection.seen.body)
        seen.append((connection.seen.headers.get("authorization"), fields.get("max_tokens")))
        connection.reply(401, b"{}")

    with Background(answer) as other, mock.patch.dict(os.environ, {"OPENAI_API_KEY": "secret"}):
        for model, key in (("openai/m", None), ("openai/m", "own"), ("deepinfra/m", "own")):
            with pytest.raises(litellm.AuthenticationError):
                ask(model=model, api_base=f"{other.url}/v1", api_key=key, max_tokens=9)
    assert seen == [(None, None), ("Bearer own", None), ("Bearer own", 9)]
