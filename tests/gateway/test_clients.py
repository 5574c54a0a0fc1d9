"""Test that unmodified vendor clients work with a gateway on a real socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
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

from .serving import serving, serving_tls
from .vendor_clients import (
    CLIENTS,
    PNG,
    Anthropic,
    Boto3,
    Cohere,
    Ollama,
    OpenaiChat,
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


@pytest.mark.parametrize("each", CLIENTS, **NAMES)
async def test_tool_calls_reach_the_client_and_their_results_the_model(each: VendorClient) -> None:
    calling = speak(two_calls, finish="tool_calls")
    async with opened(each, calling, calling, "Rain.") as (client, model):
        whole = await each.ask(client, "fast", **each.with_tool)
        streamed = await each.assemble(client, "fast")
        assert each.calls(whole) == each.calls(streamed) == [{"city": "Paris"}, {"city": "Rome"}]
        assert each.text(await each.resume(client, "fast", streamed)) == "Rain."
    _, said, *results = model.requests[2].messages
    ids = [call.id for call in said.tool_calls]  # type: ignore[union-attr]
    assert ids == ["call_1", "call_2"]
    assert [result.tool_call_id for result in results] == ids  # type: ignore[union-attr]
    assert all("rain" in str(result.content) for result in results)


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


# boto3 1.44 sends a bearer token over HTTPS alone, even to the same machine (botocore/auth.py, 2026-11-19).


async def test_boto3_needs_a_bearer_token_of_the_gateway(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    each = Boto3()
    name = "us.maker.model-v1:0/a"
    keys = KeyRing([Key("ada", hash_key("sk-ada"))])
    gateway = create_app({name: Listed("Hi")}, keys=keys)
    async with serving_tls(gateway, tmp_path) as (url, authority):
        monkeypatch.setenv("AWS_CA_BUNDLE", authority)
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


async def test_boto3_receives_warnings_that_name_what_is_dropped() -> None:
    each = Boto3()
    async with opened(each, "Hi.") as (client, _):
        made = await each.ask(client, "fast", performanceConfig={"latency": "optimized"})
    assert made["ResponseMetadata"]["HTTPHeaders"]["x-dragoman-warnings"] == (
        "performanceConfig_dropped performanceConfig"
    )


async def test_cohere_client_receives_the_request_id_in_an_error() -> None:
    each = Cohere()
    async with opened(each) as (client, _):
        with pytest.raises(each.error, match="documents: the model 'fast' cannot") as caught:
            await each.ask(client, "fast", documents=["A text."])
    assert caught.value.body["id"] == each.headers(caught.value)["x-request-id"]


@pytest.mark.parametrize("each", [Cohere(), Boto3()], **NAMES)
async def test_usage_of_an_aborted_stream_is_charged(
    each: VendorClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "x")
    ledger = Ledger()
    keys = KeyRing([Key("ada", hash_key("x"), budget_usd=Decimal(9))])
    with SimServer(script()) as upstream:
        model = upstream.connect("openai", "claude-sonnet-4-6")
        model.priced_as = "anthropic:claude-sonnet-4-6"
        gateway = create_app({"fast": model}, keys=keys, ledger=ledger)
        async with serving_tls(gateway, tmp_path) as (url, authority):
            for variable in ("AWS_CA_BUNDLE", "SSL_CERT_FILE"):
                monkeypatch.setenv(variable, authority)
            client = each.open(url)
            await each.abort(client, "fast")
            await until(lambda: ledger.spent("ada") > 0, "the charge of the aborted stream")
            await each.close(client)


# --- the openai client -------------------------------------------------------------------------


async def test_openai_client_retrieves_a_model() -> None:
    async with opened(OpenaiChat()) as (client, _):
        assert (await client.models.retrieve("fast")).id == "fast"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("slow")


# --- the ollama client -------------------------------------------------------------------------


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
