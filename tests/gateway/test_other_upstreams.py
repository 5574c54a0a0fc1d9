"""Test upstreams on wires for which no client library is tested: clients of other wires can use
these upstreams.
"""

from __future__ import annotations

import json

import aiohttp
import pytest

from dragoman.gateway.app import create_app
from dragoman.provider import connect
from dragoman.sim import Answer, Call, Fault, RequestMatch, ScriptedProvider, ScriptRule, SimServer

from .serving import serving

TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}


@pytest.mark.parametrize("wire", ["bedrock", "cohere"])
async def test_openai_chat_works_with_bedrock_and_cohere_upstreams(wire: str) -> None:
    script = ScriptedProvider(
        ScriptRule(Answer(tool_calls=[Call("look", {"city": "Oslo"})]), RequestMatch(text="call")),
        ScriptRule(match=RequestMatch(text="slow"), fault=Fault(429, "slow down")),
        ScriptRule("Hello there"),
        model="sim",
    )
    with SimServer(script, models=("sim",)) as upstream:
        model = connect("sim", wire=wire, base_url=upstream.base_urls[wire], api_key="k" * 12)
        async with serving(create_app({"m": model})) as url, aiohttp.ClientSession(url) as client:
            body = {
                "model": "m",
                "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": 99,
            }

            async def ask(text: str, **fields: object) -> tuple[int, bytes]:
                said = {**body, "messages": [{"role": "user", "content": text}], **fields}
                async with client.post("/v1/chat/completions", json=said) as reply:
                    return reply.status, await reply.read()

            status, data = await ask("Hi")
            assert (status, json.loads(data)["choices"][0]["message"]["content"]) == (
                200,
                "Hello there",
            )
            status, data = await ask("Hi", stream=True)
            chunks = [
                json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")
            ]
            text = "".join(
                [
                    each["choices"][0]["delta"].get("content") or ""
                    for each in chunks
                    if each["choices"]
                ]
            )
            assert (status, text) == (200, "Hello there")
            status, data = await ask("call", tools=[TOOL])
            (call,) = json.loads(data)["choices"][0]["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
            status, _ = await ask("slow")
            assert status == 429
