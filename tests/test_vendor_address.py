"""A vendor's model at another address, such as a company's proxy."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dragoman as d
from dragoman import connect, connect_embedder, connect_reranker, cost
from dragoman.cli import main
from dragoman.registry import Registry, load_vendor, store_key

from .server import Connection, replying, serve
from .test_sync import Background

OPENAI = {"choices": [{"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
          "usage": {"prompt_tokens": 1000, "completion_tokens": 1000}}  # fmt: skip
CLAUDE = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Hi"}],
          "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}  # fmt: skip
GEMINI = {"candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}]}
KEY = "a-key-of-the-vendor"
KEYS = (
    "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "AZURE_API_KEY", "COHERE_API_KEY",
    "VOYAGE_API_KEY", "JINA_API_KEY",
)  # fmt: skip


@pytest.fixture(autouse=True)
def vendors_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
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


async def test_responses_of_volcengine_are_at_its_address_of_chat() -> None:
    async with connect(
        "volcengine:doubao-seed-2-1-pro-260628", wire="responses", api_key="k"
    ) as model:
        sent = model.preview(d.Request([d.User("Hi")]))
    assert sent.http.url == "https://ark.cn-beijing.volces.com/api/v3/responses"


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


# --- embedders and rerankers -------------------------------------------------------------------

VECTORS = {"data": [{"index": 0, "embedding": [1.0, 2.0]}], "embeddings": [[1.0, 2.0]],
           "usage": {"prompt_tokens": 1000, "total_tokens": 1000}}  # fmt: skip
RANKS = {"results": [{"index": 0, "relevance_score": 1.0}],
         "data": [{"index": 0, "relevance_score": 1.0}]}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "path", "settings", "target"),
    [
        ("openai:text-embedding-3-small", "", {}, "/v1/embeddings"),
        ("openai:text-embedding-3-small", "/proxy/v1", {}, "/proxy/v1/embeddings"),
        ("openai/text-embedding-3-small", "", {}, "/v1/embeddings"),
        ("voyage:voyage-3.5", "", {}, "/v1/embeddings"),
        ("cohere:embed-v4.0", "", {"api_key": "own"}, "/v2/embed"),
        ("ollama:nomic-embed-text", "", {}, "/api/embed"),
        ("anthropic:own-embedder", "", {"wire": "openai"}, "/v1/embeddings"),
    ],
)
async def test_vendors_embedder_at_an_address_has_the_vendors_wire(
    name: str, path: str, settings: dict[str, Any], target: str
) -> None:
    async def answer(connection: Connection) -> None:
        body: Any = VECTORS
        if name.startswith("cohere"):
            body = {"embeddings": {"float": [[1.0, 2.0]]}}
        connection.reply(200, json.dumps(body).encode())

    async with (
        serve(answer) as server,
        connect_embedder(name, base_url=server.url + path, **settings) as model,
    ):
        found = await model.embed(["a"])
    [request] = server.requests
    assert found.vectors.tolist() == [[1.0, 2.0]]
    assert request.path == target
    assert request.json["model"] == name.replace("/", ":").partition(":")[2]
    assert KEY not in str(request.headers)
    assert ("own" in str(request.headers)) == ("api_key" in settings)


@pytest.mark.parametrize(
    ("name", "target"),
    [("cohere:rerank-v3.5", "/v2/rerank"), ("voyage:rerank-2.5", "/v1/rerank"),
     ("jina:jina-reranker-v3", "/v1/rerank")],
)  # fmt: skip
async def test_vendors_reranker_at_an_address_has_the_vendors_wire(name: str, target: str) -> None:
    async def answer(connection: Connection) -> None:
        connection.reply(200, json.dumps(RANKS).encode())

    async with serve(answer) as server, connect_reranker(name, base_url=server.url) as model:
        await model.rerank("q", ["a"])
    [request] = server.requests
    assert request.path == target
    assert request.json["model"] == name.partition(":")[2]
    assert KEY not in str(request.headers)


async def test_embedder_of_a_vendor_at_an_address_has_its_price() -> None:
    async def answer(connection: Connection) -> None:
        connection.reply(200, json.dumps(VECTORS).encode())

    async with serve(answer) as server:
        name = "openai:text-embedding-3-small"
        async with connect_embedder(name, base_url=server.url) as model:
            found = await model.embed(["a"])
    assert cost(found)
    assert model.name == "openai"


@pytest.mark.parametrize("name", ["nomic-embed-text:latest", "BAAI/bge-m3", "mistral:7b"])
async def test_embedder_that_a_server_has_itself_is_sent_unchanged(name: str) -> None:
    async def answer(connection: Connection) -> None:
        connection.reply(200, json.dumps(VECTORS).encode())

    async with serve(answer) as server, connect_embedder(name, base_url=server.url) as model:
        await model.embed(["a"])
    assert server.requests[0].json["model"] == name


async def test_refusal_of_an_embedder_says_that_the_vendors_key_was_not_sent() -> None:
    async def refuse(connection: Connection) -> None:
        connection.reply(401, b'{"error": {"message": "no key"}}')

    name = "openai:text-embedding-3-small"
    async with serve(refuse) as server, connect_embedder(name, base_url=server.url) as model:
        with pytest.raises(d.AuthenticationError) as caught:
            await model.embed(["a"])
    assert "The key in OPENAI_API_KEY is not for this address" in str(caught.value)


# --- stored keys -------------------------------------------------------------------------------

STORED = "a-stored-key-of-the-vendor"


@pytest.fixture
def stored_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    monkeypatch.setenv("DRAGOMAN_KEYS", str(tmp_path / "keys.json"))
    monkeypatch.delenv("OPENAI_API_KEY")
    store_key("OPENAI_API_KEY", STORED)


async def test_stored_key_is_not_sent_to_another_address(stored_key: None) -> None:
    _, request, _ = await ask("openai:gpt-4o", OPENAI)
    assert STORED not in str(request)
    assert "authorization" not in request.headers
    assert STORED in str(vars(connect("openai:gpt-4o"))["_key"].reveal())


async def test_stored_key_is_not_sent_to_the_address_in_a_variable(
    stored_key: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://llm.example.com/v1")
    for open_model in (lambda: connect("openai:gpt-4o"), lambda: connect_embedder("openai:e")):
        with pytest.raises(d.AuthenticationError) as caught:
            open_model()
        assert (
            "the stored key OPENAI_API_KEY is not for the address https://llm.example.com/v1, which"
            " OPENAI_BASE_URL names" in str(caught.value)
        )


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


@pytest.mark.parametrize("status", [401, 404])
async def test_refusal_names_the_variable_that_the_address_comes_from(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(connection: Connection) -> None:
        connection.reply(status, b'{"error": {"message": "no"}}')

    async with serve(refuse) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        async with connect("openai:gpt-4o") as model:
            with pytest.raises(d.ProviderError) as caught:
                await model.complete("Hi")
        async with connect_embedder("openai:e") as embedder:
            with pytest.raises(d.ProviderError) as embedding:
                await embedder.embed(["Hi"])
        async with connect("gpt-4o", base_url=server.base_url) as model:
            with pytest.raises(d.ProviderError) as given:
                await model.complete("Hi")
    sentence = "The address comes from the environment variable OPENAI_BASE_URL."
    assert sentence in str(caught.value)
    assert sentence in str(embedding.value)
    assert sentence not in str(given.value)


def test_unreachable_local_server_has_its_own_advice_and_names_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    shown = CliRunner().invoke(main, ["ready", "ollama:llama3"])
    assert shown.exit_code == 14
    assert "ollama serve" in shown.stderr
    assert "The address comes from the environment variable OLLAMA_HOST." in shown.stderr


async def test_ready_says_where_the_address_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(connection: Connection) -> None:
        connection.reply(200, b'{"id": "gpt-4o", "data": [{"id": "gpt-4o"}]}')

    async with serve(answer) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        shown = await asyncio.to_thread(CliRunner().invoke, main, ["ready", "openai:gpt-4o"])
        words = ["ready", "openai:gpt-4o", "--json"]
        as_json = await asyncio.to_thread(CliRunner().invoke, main, words)
    host = server.url.removeprefix("http://")
    assert shown.stdout == f"gpt-4o is ready at {host}, the address in OPENAI_BASE_URL\n"
    assert json.loads(as_json.stdout)["address_env"] == "OPENAI_BASE_URL"


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


@pytest.mark.parametrize(
    ("set_variables", "sent"),
    [
        ({"XIAOMI_API_KEY": "second"}, "second"),
        ({"MIMO_API_KEY": "third"}, "third"),
        ({"XIAOMI_MIMO_API_KEY": "first", "XIAOMI_API_KEY": "second"}, "first"),
        ({"XIAOMI_MIMO_API_KEY": "", "XIAOMI_API_KEY": "second"}, "second"),
    ],
)
def test_key_is_found_in_the_variables_of_other_libraries(
    set_variables: dict[str, str], sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in load_vendor("xiaomi").key_variables:
        monkeypatch.delenv(variable, raising=False)
    for variable, key in set_variables.items():
        monkeypatch.setenv(variable, key)
    assert Registry().adapter("xiaomi").key() == sent


# --- mistakes with addresses and names ---------------------------------------------------------


@pytest.mark.parametrize("open_model", [connect, connect_embedder])
def test_address_in_a_variable_that_is_no_url_names_the_variable(
    open_model: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "127.0.0.1:8080/v1")
    with pytest.raises(d.InvalidRequestError) as caught:
        open_model("openai:m")
    assert "OPENAI_BASE_URL must be an http or https URL, not '127.0.0.1:8080/v1'" in str(
        caught.value
    )


def test_missing_key_for_an_address_in_a_variable_is_not_to_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(d.AuthenticationError, match="dragoman keys set OPENAI_API_KEY"):
        connect("openai:gpt-4o")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://llm.example.com/v1")
    with pytest.raises(d.AuthenticationError) as caught:
        connect("openai:gpt-4o")
    assert str(caught.value).endswith(
        "set the environment variable OPENAI_API_KEY. It is the key for "
        "https://llm.example.com/v1, the address in OPENAI_BASE_URL."
    )


def test_command_names_the_option_for_the_key_of_another_address() -> None:
    with Background(replying(401, {"error": {"message": "no"}})) as server:
        done = CliRunner().invoke(
            main, ["ask", "openai:gpt-4o", "Hi", "--base-url", server.base_url]
        )
    assert "name the variable of its key with --api-key-env" in done.stderr
    assert "api_key=" not in done.stderr


def test_vendor_without_a_model_is_named_as_such() -> None:
    with pytest.raises(d.InvalidModelError, match="openai is a vendor: write openai:MODEL"):
        connect("openai")


@pytest.mark.parametrize(
    ("vendor", "variable", "path"),
    [
        ("fireworks", "FIREWORKS_BASE_URL", "/inference/v1"),
        ("perplexity", "PERPLEXITY_BASE_URL", ""),
        ("zai", "ZAI_BASE_URL", ""),
        ("deepinfra", "DEEPINFRA_BASE_URL", "/v1/openai"),
        ("nvidia", "NVIDIA_BASE_URL", ""),
        ("sambanova", "SAMBA_NOVA_BASE_URL", ""),
        ("cohere", "CO_API_URL", ""),
        ("together", "TOGETHER_BASE_URL", ""),
        ("cerebras", "CEREBRAS_BASE_URL", ""),
        ("bedrock", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME", ""),
    ],
)
def test_variables_of_the_vendors_clients_set_the_address(
    vendor: str, variable: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "https://llm.example.com")
    assert load_vendor(vendor).address() == f"https://llm.example.com{path}"
    monkeypatch.setenv(variable, "https://llm.example.com/own/v9")
    assert load_vendor(vendor).address() == "https://llm.example.com/own/v9"
