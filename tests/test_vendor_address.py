"""A vendor's model at another address, such as a company's proxy."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

import dragoman as d
from dragoman import connect, cost
from dragoman.cli import main

from .server import Connection, serve

OPENAI = {"choices": [{"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
          "usage": {"prompt_tokens": 1000, "completion_tokens": 1000}}  # fmt: skip
CLAUDE = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Hi"}],
          "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}  # fmt: skip
GEMINI = {"candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}]}
KEY = "a-key-of-the-vendor"


@pytest.fixture(autouse=True)
def vendors_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "AZURE_API_KEY"):
        monkeypatch.setenv(name, KEY)


async def ask(name: str, reply: dict[str, Any], **settings: Any) -> tuple[d.Response, Any, Any]:
    async def answer(connection: Connection) -> None:
        connection.reply(200, json.dumps(reply).encode())

    async with serve(answer) as server:
        url = settings.pop("path", "")
        async with connect(name, base_url=server.url + url, **settings) as model:
            response = await model.complete("Hi")
        [request] = server.requests
        return response, request, model


@pytest.mark.parametrize(
    ("name", "path", "reply", "target", "model"),
    [
        ("openai:gpt-4o", "", OPENAI, "/v1/chat/completions", "gpt-4o"),
        ("openai:gpt-4o", "/proxy/v1", OPENAI, "/proxy/v1/chat/completions", "gpt-4o"),
        ("openai/gpt-4o", "/v1", OPENAI, "/v1/chat/completions", "gpt-4o"),
        ("kimi:kimi-k3", "", OPENAI, "/v1/chat/completions", "kimi-k3"),
        ("azure:gpt-4o", "", OPENAI, "/openai/v1/chat/completions", "gpt-4o"),
        ("anthropic:claude-sonnet-4-6", "", CLAUDE, "/v1/messages", "claude-sonnet-4-6"),
        ("anthropic/claude-sonnet-4-6", "/a", CLAUDE, "/a/v1/messages", "claude-sonnet-4-6"),
        ("google:gemini-2.5-flash", "", GEMINI,
         "/v1beta/models/gemini-2.5-flash:generateContent", None),
    ],
)  # fmt: skip
async def test_vendors_model_at_an_address_has_the_vendors_wire(
    name: str, path: str, reply: dict[str, Any], target: str, model: str | None
) -> None:
    response, request, _ = await ask(name, reply, path=path)
    assert response.text == "Hi"
    assert request.path == target
    assert json.loads(request.body).get("model") == model
    assert KEY not in str(request.headers)
    assert "authorization" not in request.headers


async def test_vendors_model_at_an_address_has_its_price_limits_and_capabilities() -> None:
    response, request, model = await ask("openai:gpt-4o", OPENAI, api_key="own")
    assert request.headers["authorization"] == "Bearer own"
    assert model.capabilities.known("max_context_tokens") == 128_000
    at_home = connect("openai:gpt-4o")
    assert at_home.capabilities.known("max_output_tokens") == model.capabilities.known(
        "max_output_tokens"
    )
    assert cost(response)
    assert model.name == "openai"


@pytest.mark.parametrize(
    "name",
    [
        "mistral:7b", "mistral:latest", "mistral:7b-instruct-q4_0", "llama3:8b", "gpt-4o",
        "openai/gpt-oss-20b", "mistralai/Mistral-7B", "org/model:free",
    ],
)  # fmt: skip
async def test_name_that_a_server_has_itself_is_sent_unchanged(name: str) -> None:
    _, request, _ = await ask(name, OPENAI)
    assert json.loads(request.body)["model"] == name


async def test_router_keeps_its_names_with_a_slash() -> None:
    model = connect("openai/gpt-4o", base_url="https://openrouter.ai/api/v1")
    encoded = model.preview(d.Request([d.User("Hi")]))
    assert encoded is not None
    body = json.loads(encoded.http.body)
    assert body["model"] == "openai/gpt-4o"


@pytest.mark.parametrize("settings", [{"wire": "openai"}, {"retries": 1}])
async def test_settings_override_those_of_the_vendor(settings: dict[str, Any]) -> None:
    _, request, model = await ask("openai:gpt-4o", OPENAI, **settings)
    assert request.path == "/v1/chat/completions"
    assert isinstance(model, d.Retry) == ("retries" in settings)


async def test_refusal_without_a_key_says_that_the_vendors_key_was_not_sent() -> None:
    async def refuse(connection: Connection) -> None:
        connection.reply(401, b'{"error": {"message": "no key"}}')

    async with serve(refuse) as server:
        async with connect("openai:gpt-4o", base_url=server.url) as model:
            with pytest.raises(d.AuthenticationError) as caught:
                await model.complete("Hi")
        assert "The key in OPENAI_API_KEY is not for this address" in str(caught.value)
        async with connect("openai:gpt-4o", base_url=server.url, api_key="own") as model:
            with pytest.raises(d.AuthenticationError) as caught:
                await model.complete("Hi")
        assert "OPENAI_API_KEY" not in str(caught.value)


# --- addresses in the environment --------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "name", "reply", "target"),
    [
        ("OPENAI_BASE_URL", "openai:gpt-4o", OPENAI, "/v1/chat/completions"),
        ("ANTHROPIC_BASE_URL", "anthropic:claude-sonnet-4-6", CLAUDE, "/v1/messages"),
        ("GOOGLE_GEMINI_BASE_URL", "google:gemini-2.5-flash", GEMINI,
         "/v1beta/models/gemini-2.5-flash:generateContent"),
        ("AZURE_OPENAI_ENDPOINT", "azure:gpt-4o", OPENAI, "/openai/v1/chat/completions"),
    ],
)  # fmt: skip
async def test_address_in_the_variable_of_the_vendors_clients_is_used_with_its_key(
    variable: str, name: str, reply: dict[str, Any], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(connection: Connection) -> None:
        connection.reply(200, json.dumps(reply).encode())

    async with serve(answer) as server:
        monkeypatch.setenv(variable, server.url)
        async with connect(name) as model:
            await model.complete("Hi")
    [request] = server.requests
    assert request.path == target
    assert KEY in str(request.headers)
    async with connect(name) as model:
        with pytest.raises(d.NetworkError) as caught:
            await model.complete("Hi")
    assert f"The address comes from the environment variable {variable}" in str(caught.value)


def test_models_command_shows_where_an_address_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://llm.example.com/v1")
    shown = CliRunner().invoke(main, ["models", "openai:gpt-4o"])
    assert "address: https://llm.example.com/v1 (from OPENAI_BASE_URL)" in shown.output
    found = json.loads(CliRunner().invoke(main, ["models", "openai:gpt-4o", "--json"]).output)
    facts = found[0] if isinstance(found, list) else found
    assert facts["address"] == "https://llm.example.com/v1"
    assert facts["address_env"] == "OPENAI_BASE_URL"


def test_gateway_rejects_a_model_at_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8123/v1")
    options = ["serve", "--port", "8123", "--model", "fast=openai:gpt-4o"]
    refused = CliRunner().invoke(main, options)
    assert refused.exit_code == 2
    assert "OPENAI_BASE_URL names this gateway" in refused.output
