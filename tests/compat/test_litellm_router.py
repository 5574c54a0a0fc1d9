# ruff: noqa: SLF001 - LiteLLM documents `_hidden_params`
"""The parts of LiteLLM beyond a single call: routers, batches, other forms, facts and callbacks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from unittest import mock

import pytest
import tiktoken

from dragoman.compat import litellm
from dragoman.integrations import DragomanLossWarning
from dragoman.sim import Fault, RequestMatch, ScriptedProvider, ScriptRule, SimServer

HELLO = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def server() -> Iterator[SimServer]:
    rules = [
        ScriptRule("", RequestMatch(text="E422"), fault=Fault(status=422)),
        ScriptRule("", RequestMatch(text="E500"), fault=Fault(status=500)),
        ScriptRule("From the first.", RequestMatch(model="first")),
        ScriptRule("From the second.", RequestMatch(model="second")),
        ScriptRule("", RequestMatch(model="broken"), fault=Fault(status=500)),
    ]
    with SimServer(ScriptedProvider(*rules, "Hi there.")) as made:
        variables = {
            "OPENAI_API_BASE": f"{made.url}/v1", "OPENAI_API_KEY": "k",
            "COHERE_API_BASE": made.url, "COHERE_API_KEY": "k",
            "DRAGOMAN_CONFIG": os.devnull,
        }  # fmt: skip
        with mock.patch.dict(os.environ, variables):
            yield made


def deploy(name: str, model: str, **params: Any) -> dict[str, Any]:
    return {"model_name": name, "litellm_params": {"model": f"openai/{model}", **params}}


def ask(router: litellm.Router, name: str, **given: Any) -> str:
    text: str = router.completion(name, HELLO, **given).choices[0].message.content
    return text


@pytest.mark.usefixtures("server")
def test_router_shares_the_calls_of_a_name_between_its_deployments() -> None:
    router = litellm.Router(
        [deploy("one", "first", weight=1), deploy("one", "second", rpm=3), deploy("two", "first")],
        model_group_alias={"short": "two"},
        num_retries=0,
    )
    assert router.get_model_names() == ["one", "two", "short"]
    assert {ask(router, "one") for _ in range(30)} == {"From the first.", "From the second."}
    assert ask(router, "short") == "From the first."
    text = "".join([each.choices[0].delta.content or "" for each in
                    router.completion("two", HELLO, stream=True) if each.choices])  # fmt: skip
    assert text == "From the first."
    with pytest.raises(litellm.BadRequestError, match="known are one, two, short"):
        ask(router, "three")


@pytest.mark.usefixtures("server")
def test_router_calls_another_deployment_and_then_the_fallbacks() -> None:
    deployments = [
        deploy("ordered", "second", order=2), deploy("ordered", "broken", order=1),
        deploy("down", "broken"), deploy("up", "first"),
    ]  # fmt: skip
    router = litellm.Router(
        deployments, fallbacks=[{"down": ["up"]}], default_fallbacks=[], num_retries=0
    )
    assert ask(router, "ordered") == "From the second."
    assert ask(router, "down") == "From the first."
    alone = litellm.Router(deployments, num_retries=0)
    with pytest.raises(litellm.InternalServerError):
        ask(alone, "down")
    assert ask(litellm.Router(deployments, default_fallbacks=["up"]), "down") == "From the first."


@pytest.mark.usefixtures("server")
async def test_router_works_in_a_running_event_loop_and_sends_the_settings_of_a_deployment(
    server: SimServer,
) -> None:
    router = litellm.Router([deploy("one", "first", temperature=0.25)])
    reply = await router.acompletion("one", HELLO, max_tokens=7)
    assert reply.choices[0].message.content == "From the first."
    config = server.requests[-1].config
    assert config.temperature == 0.25
    assert config.max_tokens == 7


def test_setting_of_a_router_that_has_no_equal_is_reported() -> None:
    with pytest.raises(ValueError, match="routing_strategy must be one of"):
        litellm.Router([], routing_strategy="by mood")
    with pytest.warns(DragomanLossWarning, match="redis_host"):
        litellm.Router([], redis_host="h")
    with pytest.raises(ValueError, match="set different parameters"):
        ask(litellm.Router([deploy("a", "first", seed=1), deploy("a", "second")]), "a")


@pytest.mark.usefixtures("server")
def test_batch_has_the_error_of_a_call_in_place_of_its_reply() -> None:
    talks = [HELLO, [{"role": "user", "content": "E422"}], HELLO]
    first, failed, last = litellm.batch_completion("openai/m", talks, num_retries=0)
    assert first.choices[0].message.content == last.choices[0].message.content == "Hi there."
    assert isinstance(failed, litellm.UnprocessableEntityError)
    assert failed.status_code == 422


@pytest.mark.usefixtures("server")
def test_prompts_without_roles_have_texts() -> None:
    reply = litellm.text_completion("openai/gpt-4o", ["Hello!", "Hello again!"])
    assert [choice.text for choice in reply.choices] == ["Hi there."] * 2
    assert reply.object == "text_completion"
    assert reply["choices"][1]["index"] == 1
    assert reply.usage.total_tokens > 0
    assert reply._hidden_params["response_cost"] > 0


@pytest.mark.usefixtures("server")
def test_prompts_without_roles_are_streamed() -> None:
    stream = litellm.text_completion("openai/gpt-4o", ["Hello!", "Again!"], stream=True)
    chunks = list(stream)
    texts = ["", ""]
    ends: list[tuple[int, str]] = []
    for chunk in chunks:
        assert type(chunk) is litellm.TextCompletionResponse
        assert chunk.object == "text_completion"
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason is not None:
                ends.append((choice.index, choice.finish_reason))
    assert texts == ["Hi there."] * 2
    assert ends == [(0, "stop"), (1, "stop")]
    assert chunks[-1]._hidden_params["response_cost"] > 0
    with pytest.raises(litellm.InternalServerError):
        litellm.text_completion("openai/gpt-4o", "E500", stream=True, num_retries=0)


@pytest.mark.usefixtures("server")
def test_call_in_the_form_of_the_responses_api() -> None:
    reply = litellm.responses("Hello!", "openai/gpt-4o", max_output_tokens=64)
    assert reply.output[0].content[0].text == "Hi there."
    assert reply.object == "response"
    assert reply.status == "completed"
    events = list(litellm.responses("Hello!", "openai/gpt-4o", stream=True))
    assert events[0].type == "response.created"
    assert events[-1].response.output[0].content[0].text == "Hi there."
    with pytest.raises(litellm.InternalServerError):
        litellm.responses("E500", "openai/gpt-4o", num_retries=0)


@pytest.mark.usefixtures("server")
def test_documents_are_ranked() -> None:
    texts = ["about rivers", "about the sea"]
    reply = litellm.rerank("cohere/rerank-v3.5", "sea", texts, top_n=1)
    assert len(reply.results) == 1
    assert reply.results[0]["index"] in (0, 1)
    assert isinstance(reply.results[0]["relevance_score"], float)


def test_facts_about_models() -> None:
    assert litellm.model_cost["gpt-4o"]["max_input_tokens"] == 128_000
    assert "gpt-4o" in litellm.model_cost
    assert "no-such-model" not in litellm.model_cost
    assert {"gpt-4o", *litellm.model_cost} == {*litellm.model_cost}
    assert len(litellm.model_cost) > 50
    assert litellm.get_llm_provider("anthropic/claude-x")[:2] == ("claude-x", "anthropic")
    assert litellm.get_llm_provider("gpt-4o", api_key="k")[1:3] == ("openai", "k")
    with pytest.raises(litellm.BadRequestError, match="no provider is known"):
        litellm.get_llm_provider("no-such-model")


@pytest.mark.parametrize(
    ("model", "accepted", "refused"),
    [
        ("gpt-4o", {"tools", "seed", "response_format", "logit_bias", "max_tokens"}, {"n"}),
        ("anthropic/claude-sonnet-4-6", {"tools", "stop"}, {"seed", "logit_bias"}),
    ],
)
def test_supported_parameters_are_those_that_a_call_takes(
    model: str, accepted: set[str], refused: set[str]
) -> None:
    found = set(litellm.get_supported_openai_params(model))
    assert accepted <= found
    assert not refused & found
    assert litellm.get_supported_openai_params("no-such-model") == []


def test_missing_key_of_a_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    missing = {"keys_in_environment": False, "missing_keys": ["OPENAI_API_KEY"]}
    assert litellm.validate_environment("gpt-4o") == missing
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert litellm.validate_environment("gpt-4o")["keys_in_environment"] is True


def test_text_is_encoded_and_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real vocabularies are downloaded, so the test has one of single bytes."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    bytewise = tiktoken.Encoding("bytes", pat_str=".", mergeable_ranks=ranks, special_tokens={})
    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda name: bytewise)
    tokens = litellm.encode(model="openai/gpt-4o", text="Grüße <|endoftext|>")
    assert tokens == [*"Grüße <|endoftext|>".encode()]
    assert litellm.decode(model="openai/gpt-4o", tokens=tokens) == "Grüße <|endoftext|>"


@pytest.mark.usefixtures("server")
def test_callbacks_are_called_with_the_reply_or_the_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, Any, Any]] = []

    def succeed(facts: dict[str, Any], reply: Any, start: datetime, end: datetime) -> None:
        assert start <= end
        seen.append((facts["model"], facts["response_cost"], reply.choices[0].message.content))

    async def fail(facts: dict[str, Any], reply: Any, start: datetime, end: datetime) -> None:
        seen.append((facts["model"], type(facts["exception"]).__name__, reply))

    def break_down(*_: Any) -> None:
        raise RuntimeError("a defect of the callback")

    monkeypatch.setattr(litellm, "success_callback", [break_down, succeed])
    monkeypatch.setattr(litellm, "failure_callback", [fail])
    litellm.completion("openai/gpt-4o", HELLO)
    assert len(list(litellm.completion("openai/gpt-4o", HELLO, stream=True))) > 1
    with pytest.raises(litellm.InternalServerError):
        litellm.completion("openai/m", [{"role": "user", "content": "E500"}], num_retries=0)
    costs = [cost for _, cost, _ in seen[:2]]
    assert costs[0] > 0
    assert costs[0] == costs[1]
    assert [text for _, _, text in seen] == ["Hi there.", "Hi there.", None]
    assert [model for model, _, _ in seen] == ["gpt-4o", "gpt-4o", "m"]
    assert seen[2][1] == "InternalServerError"
    assert "a defect of the callback" in caplog.text
    with pytest.raises(AttributeError, match="must be a list of functions"):
        litellm.success_callback = ["langfuse"]  # type: ignore[list-item]


def test_every_exception_of_litellm_exists() -> None:
    names = (
        "RateLimitError", "ContextWindowExceededError", "AuthenticationError", "BadRequestError",
        "Timeout", "APIConnectionError", "APIError", "InternalServerError",
        "ServiceUnavailableError", "NotFoundError", "ContentPolicyViolationError",
        "UnprocessableEntityError", "PermissionDeniedError", "BudgetExceededError",
        "JSONSchemaValidationError", "UnsupportedParamsError", "InvalidRequestError",
        "APIResponseValidationError", "MockException",
    )  # fmt: skip
    for name in names:
        kind = getattr(litellm, name)
        assert issubclass(kind, Exception)
        assert isinstance(kind("text").status_code, int)
