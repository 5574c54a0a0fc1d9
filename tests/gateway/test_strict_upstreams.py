"""Tool loops of clients of every wire are accepted by models that refuse what vendors refuse."""

from __future__ import annotations

from typing import Any

import pytest

import dragoman as d
from dragoman.gateway import create_app
from dragoman.sim import Answer, Call, ScriptedProvider, SimServer
from dragoman.wire import SERVER_CODECS

from .serving import serving

TOOL = d.Tool(
    "look", "Looks.", parameters={"type": "object", "properties": {"at": {"type": "string"}}}
)
LOOK = Answer(thinking="Hm.", text="Let me see.", tool_calls=[Call("look", {"at": "x"})])

# Each entry: the wire, the vendor and the model that a gateway sends the requests to.
UPSTREAMS: list[tuple[str, str | None, str]] = [
    ("responses", "openai", "gpt-6.1-sol"),
    ("anthropic", "anthropic", "claude-opus-5-5"),
    ("anthropic", "anthropic", "claude-sonnet-4-5"),
    ("bedrock", "bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
    ("gemini", "google", "gemini-3.7-flash"),
    ("openai", "deepseek", "deepseek-v4-pro"),
    ("openai", "moonshot", "kimi-k3"),
    ("openai", "xai", "grok-4.6"),
    ("openai", "groq", "openai/gpt-oss-120b"),
]
# Agents such as GitHub Copilot send these settings with every request.
SETTINGS: dict[str, Any] = {"max_tokens": 60000, "temperature": 0.2, "top_p": 0.95}


async def run_loop(client: d.Provider, reasoning: Any, *, stream: bool) -> d.Response[Any]:
    """Run a conversation of four requests, three of which end in a tool call."""
    config = d.RuntimeConfig(**SETTINGS, reasoning=reasoning)
    messages: list[d.Message] = [d.System("Be terse."), d.User("Where?")]
    for _ in range(4):
        if stream:
            async with client.stream(messages, [TOOL], config) as events:
                async for _event in events:
                    pass
            reply = events.response
        else:
            reply = await client.complete(messages, [TOOL], config)
        messages.append(reply.message)
        messages += [d.ToolResult(call.id, "there") for call in reply.tool_calls]
    return reply


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("wire", "vendor", "model"), UPSTREAMS)
async def test_tool_loop_of_each_client_is_accepted(
    wire: str, vendor: str | None, model: str, stream: bool
) -> None:
    for client_wire in sorted(SERVER_CODECS):
        rules = ScriptedProvider(LOOK, LOOK, LOOK, "Done.", strict=True, vendor=vendor)
        # The anthropic wire has a budget for models of unknown families.
        reasoning = 4000 if client_wire == "anthropic" else "high"
        with SimServer(rules) as sim:
            upstream = sim.connect(wire, model, vendor=vendor)
            async with upstream, serving(create_app({"m": upstream})) as url:
                base_url = url + SERVER_CODECS[client_wire].base_path
                async with d.connect("m", base_url=base_url, wire=client_wire) as client:
                    reply = await run_loop(client, reasoning, stream=stream)
        assert reply.text == "Done.", client_wire
