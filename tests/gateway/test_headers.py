"""Test that the gateway treats the headers of each wire's SDKs as the table of headers lists them."""

import asyncio
from typing import Any

import aiohttp
import anthropic
import google.genai
import openai
import pytest

from dragoman.gateway.app import create_app
from dragoman.provider import connect
from dragoman.wire import SERVER_CODECS
from dragoman.wire.headers import ALL_WIRES
from dragoman.wire.rules import matches_any
from tests.server import Server, replying, serve

from .serving import serving
from .upstream import BODIES, PATHS, WIRES, write_reply

# Values of headers that the gateway would reject if they were arbitrary.
VALUES = {
    "content-type": "application/json",
    "content-encoding": "identity",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "a=b",
    "anthropic-beta": "effort-2025-11-24",
}
# Headers of HTTP, which every client sends.
FRAMING = {"host", "accept", "accept-encoding", "connection", "content-length"}


def read_headers(upstream: Server) -> list[dict[str, str]]:
    """Return the headers of each request that a server received, by lower-case name."""
    found = [seen.headers for seen in upstream.requests]
    return [{name.lower(): value for name, value in each.items()} for each in found]


@pytest.mark.parametrize("wire", WIRES)
async def test_model_of_the_same_wire_gets_the_headers_of_the_table_and_no_others(
    wire: str,
) -> None:
    rules = {**ALL_WIRES, **SERVER_CODECS[wire].headers}
    given = {
        name.replace("*", "os"): VALUES.get(name, f"from-{at}") for at, name in enumerate(rules)
    }
    async with (
        serve(replying(200, write_reply(wire, "Hello"))) as upstream,
        serving(create_app({"m": connect("m", wire=wire, base_url=upstream.url)})) as url,
        aiohttp.ClientSession() as http,
    ):
        body = {**BODIES[wire], **({} if wire in ("gemini", "bedrock") else {"model": "m"})}
        path = PATHS[wire].format(model="m")
        async with http.post(url + path, json=body, headers=given) as reply:
            assert reply.status == 200, await reply.text()
    (seen,) = read_headers(upstream)
    sent = {name for name in given if given[name] in seen.values()}
    passed = {name for name, rule in rules.items() if rule.effect == "sent"}
    # these two have the same value as any request; the trace has a new span id
    assert sent - {"content-type", "content-encoding", "tracestate"} == passed
    assert "tracestate" in seen
    assert seen["traceparent"][:36] == VALUES["traceparent"][:36]


async def record(wire: str, base_url: str) -> None:
    """Call a model with the SDK of a wire."""
    hello: Any = [{"role": "user", "content": "Hi"}]
    if wire == "openai":
        async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="x") as client:
            await client.chat.completions.create(model="m", messages=hello)
    elif wire == "anthropic":
        async with anthropic.AsyncAnthropic(base_url=base_url, api_key="x") as sdk:
            await sdk.messages.create(model="m", messages=hello, max_tokens=9)
    else:
        options = google.genai.types.HttpOptions(base_url=base_url)
        genai = google.genai.Client(api_key="x", http_options=options)
        await asyncio.to_thread(genai.models.generate_content, model="m", contents="Hi")


@pytest.mark.parametrize("wire", ["openai", "anthropic", "gemini"])
async def test_table_lists_every_header_that_the_sdk_of_the_vendor_sends(wire: str) -> None:
    async with serve(replying(200, write_reply(wire, "Hello"))) as upstream:
        await record(wire, upstream.url)
    (seen,) = read_headers(upstream)
    listed = {**ALL_WIRES, **SERVER_CODECS[wire].headers}
    assert [name for name in seen if not matches_any([name], [*listed, *FRAMING])] == []
