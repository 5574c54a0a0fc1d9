"""Bedrock's InvokeModel with Anthropic's bodies: boto3, and Anthropic's own client of it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import boto3
import botocore.config
import botocore.exceptions
import pytest

from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.provider import Provider, connect
from dragoman.sim import Answer, Fault, ScriptedProvider, ScriptRule
from dragoman.wire.bedrock.invoke import InvokeServer
from tests.clients.scripted import script

from .serving import serving
from .strict import StrictServer

MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
BODY = {
    "anthropic_version": "bedrock-2023-05-31",
    "max_tokens": 2000,
    "messages": [{"role": "user", "content": "Hi"}],
}


def open_boto(url: str) -> Any:
    return boto3.client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="AKID",
        aws_secret_access_key="secret",
        config=botocore.config.Config(retries={"total_max_attempts": 1}),
    )


@contextlib.asynccontextmanager
async def opened(
    *script: Answer | str | ScriptRule, wire: str
) -> AsyncIterator[tuple[Any, StrictServer]]:
    """Yield a client of a gateway whose model gives these answers, and the model's server."""
    with StrictServer(ScriptedProvider(*script)) as upstream:
        model: Provider = connect("m", wire=wire, base_url=upstream.base_urls[wire])
        async with serving(create_app({MODEL: model})) as url:
            with contextlib.closing(open_boto(url)) as client:
                yield client, upstream


async def invoke(client: Any, name: str = MODEL, **fields: Any) -> dict[str, Any]:
    body = json.dumps({**BODY, **fields})
    made = await asyncio.to_thread(client.invoke_model, modelId=name, body=body)
    found: dict[str, Any] = json.loads(made["body"].read())
    return found


async def hear(client: Any, **fields: Any) -> list[dict[str, Any]]:
    """Return the events of a streamed reply; raise the error that ends it."""

    def read() -> list[dict[str, Any]]:
        body = json.dumps({**BODY, **fields})
        made = client.invoke_model_with_response_stream(modelId=MODEL, body=body)
        with contextlib.closing(made["body"]) as events:
            return [json.loads(event["chunk"]["bytes"]) for event in events]

    return await asyncio.to_thread(read)


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_boto3_invokes_a_model_of_any_wire(wire: str) -> None:
    async with opened("Bonjour", wire=wire) as (client, _):
        made = await invoke(client)
        events = await hear(client)
    assert made["model"] == MODEL
    assert made["content"] == [{"type": "text", "text": "Bonjour"}]
    texts = [each["delta"]["text"] for each in events if each["type"] == "content_block_delta"]
    assert "".join(texts) == "Bonjour"
    assert events[0]["type"] == "message_start"
    assert events[-1]["type"] == "message_stop"
    # langchain-aws reads the usage of a stream here
    measured = events[-1]["amazon-bedrock-invocationMetrics"]
    assert measured["inputTokenCount"] == made["usage"]["input_tokens"]
    assert measured["outputTokenCount"] == made["usage"]["output_tokens"]
    assert measured["invocationLatency"] >= measured["firstByteLatency"] >= 0


async def test_stream_has_the_blocks_of_the_body() -> None:
    answer = Answer(thinking="Hm.", text="Yes.")
    async with opened(answer, wire="anthropic") as (client, _):
        thinking = {"type": "enabled", "budget_tokens": 1024}
        made = await invoke(client, thinking=thinking)
        events = await hear(client, thinking=thinking)
    kinds = [
        each["content_block"]["type"] for each in events if each["type"] == "content_block_start"
    ]
    assert kinds == [block["type"] for block in made["content"]] == ["thinking", "text"]


@pytest.mark.parametrize(
    ("status", "name"),
    [(429, "ThrottlingException"), (400, "ValidationException"), (500, "InternalServerException")],
)
async def test_errors_have_the_names_of_aws(status: int, name: str) -> None:
    failing = ScriptRule("x", fault=Fault(status=status, message="oh no"))
    async with opened(failing, wire="openai") as (client, _):
        for call in (invoke, hear):
            with pytest.raises(botocore.exceptions.ClientError, match="oh no") as caught:
                await call(client)
            assert caught.value.response["Error"]["Code"] == name
        with pytest.raises(
            botocore.exceptions.ClientError, match="no model of this name"
        ) as caught:
            await invoke(client, "other")
        assert caught.value.response["Error"]["Code"] == "ResourceNotFoundException"


async def test_error_inside_a_stream_is_an_exception_of_the_event_stream() -> None:
    broken = ScriptRule(
        "one two three", fault=Fault(error="OverloadedError", after=1, message="too busy")
    )
    async with opened(broken, wire="openai") as (client, _):
        with pytest.raises(botocore.exceptions.EventStreamError):
            await hear(client)


@pytest.mark.parametrize("fields", [{"inputText": "Hi"}, {"prompt": "Hi", "max_gen_len": 9}])
async def test_bodies_of_other_models_are_refused_with_advice(fields: dict[str, Any]) -> None:
    async with opened("x", wire="openai") as (client, upstream):
        with pytest.raises(
            botocore.exceptions.ClientError, match="only /model/MODEL/converse"
        ) as caught:
            await asyncio.to_thread(client.invoke_model, modelId=MODEL, body=json.dumps(fields))
        assert upstream.requests == []
    assert caught.value.response["Error"]["Code"] == "ValidationException"


async def test_betas_of_the_body_are_sent_to_a_model_of_the_messages_wire() -> None:
    beta = "context-management-2025-06-27"
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    async with opened("Bonjour", wire="anthropic") as (client, upstream):
        await invoke(
            client, anthropic_beta=[beta, "files-api-2025-04-14"], context_management=edits
        )
    assert upstream.betas == [frozenset([beta])]
    assert upstream.problems == []
    assert upstream.bodies[0]["context_management"] == edits
    assert {"anthropic_version", "anthropic_beta"}.isdisjoint(upstream.bodies[0])


async def test_key_of_the_gateway_is_a_bearer_token() -> None:
    app = create_app({"m": script()}, keys=KeyRing([Key("ada", hash_key("sk-ada"))]))
    async with serving(app) as url, aiohttp.ClientSession() as http:
        for key, status in (("sk-ada", 200), ("other", 401)):
            named = {"authorization": f"Bearer {key}"}
            async with http.post(f"{url}/model/m/invoke", json=BODY, headers=named) as answer:
                said = await answer.json()
                assert answer.status == status
    assert "AWS_BEARER_TOKEN_BEDROCK" in said["message"]
    assert answer.headers["x-amzn-errortype"] == "AccessDeniedException"


async def test_a_web_page_cannot_send_a_body_without_its_type() -> None:
    """Clients such as boto3 send none, and a browser lets any page send a body without one."""
    async with serving(create_app({"m": script()})) as url, aiohttp.ClientSession() as http:
        for headers, wanted in (({}, 200), ({"sec-fetch-site": "cross-site"}, 415)):
            async with http.post(
                f"{url}/model/m/invoke",
                data=json.dumps(BODY).encode(),
                headers=headers,
                skip_auto_headers=["content-type"],
            ) as answer:
                await answer.read()
                assert answer.status == wanted


def test_model_and_mode_are_those_of_the_path() -> None:
    server = InvokeServer()
    profile = "arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile/us.anthropic.claude-x"
    read = server.unwrap(
        {**BODY, "model": "other"}, f"/model/{profile}/invoke-with-response-stream"
    )
    assert read["model"] == "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-x"
    assert read["stream"] is True
    assert server.unwrap(BODY, "/model/m/invoke")["stream"] is False
