"""Tool loops with thinking against a simulator that enforces the rules of a vendor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

import dragoman as d
from dragoman.sim import Answer, Call, ScriptedProvider, SimServer

TOOL = d.Tool(
    "look", "Looks.", parameters={"type": "object", "properties": {"at": {"type": "string"}}}
)
THOUGHTS = ("First thought.", "Second thought.", "Third thought.")
LOOKS = [
    Answer(thinking=thought, text="Let me see.", tool_calls=[Call("look", {"at": "x"})])
    for thought in THOUGHTS
]
# Agents such as GitHub Copilot send these settings with every request.
SETTINGS: dict[str, Any] = {"max_tokens": 60000, "temperature": 0.2, "top_p": 0.95}


class Upstream(Struct, frozen=True):
    """A model that reasons: its wire, its vendor and its name.

    ``returns`` is how its thinking must come back: as ``text``, as ``state`` that only some
    clients return, in the signature of each ``call``, or not at all, because the server does not
    take it.
    """

    wire: str
    vendor: str
    model: str
    returns: Literal["text", "state", "call"] | None = "text"

    @property
    def name(self) -> str:
        return f"{self.vendor}-{self.wire}-{self.model}"


UPSTREAMS = [
    Upstream("responses", "openai", "gpt-6-sol", "state"),
    Upstream("responses", "openai", "gpt-6.1-sol", "state"),
    Upstream("responses", "azure", "gpt-6-astra", "state"),
    Upstream("anthropic", "anthropic", "claude-opus-5-5", "state"),
    Upstream("anthropic", "anthropic", "claude-sonnet-5-5", "state"),
    Upstream("anthropic", "anthropic", "claude-sonnet-4-5", "state"),
    Upstream("bedrock", "bedrock", "us.anthropic.claude-haiku-5-5-v1:0", "state"),
    Upstream("bedrock", "bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "state"),
    Upstream("gemini", "google", "gemini-3.7-flash", "call"),
    Upstream("openai", "deepseek", "deepseek-v4-pro"),
    Upstream("openai", "moonshot", "kimi-k3"),
    Upstream("openai", "zai", "glm-5.3"),
    Upstream("openai", "minimax", "minimax-m3"),
    Upstream("openai", "alibaba", "qwen3.6-plus"),
    # xAI discards the thinking between turns over Chat Completions (docs.x.ai, "Best practices").
    Upstream("openai", "xai", "grok-4.6", None),
    Upstream("responses", "xai", "grok-4.6", "state"),
    Upstream("openai", "openrouter", "deepseek/deepseek-v4-pro"),
    Upstream("openai", "openrouter", "anthropic/claude-sonnet-5.5", "state"),
    Upstream("openai", "openrouter", "google/gemini-3.7-flash", "state"),
    Upstream("openai", "groq", "openai/gpt-oss-120b", None),
    Upstream("openai", "mistral", "mistral-medium-latest"),
    Upstream("openai", "vllm", "qwen3.6-35b-a3b"),
    Upstream("openai", "llamacpp", "qwen3.6-35b-a3b"),
    Upstream("ollama", "ollama", "qwen3.6"),
]


def serve(upstream: Upstream, *rules: Any) -> SimServer:
    """Return a server that enforces the rules of the vendor of a model."""
    return SimServer(ScriptedProvider(*rules, strict=True, vendor=upstream.vendor))


async def run_loop(provider: d.Provider, config: d.RuntimeConfig, *, stream: bool) -> str:
    """Run a conversation of four requests, three of which end in a call; return the last text."""
    messages: list[d.Message] = [d.System("Be terse."), d.User("Where?")]
    for _ in range(4):
        if stream:
            async with provider.stream(messages, [TOOL], config=config) as events:
                async for _event in events:
                    pass
            reply = events.response
        else:
            reply = await provider.complete(messages, [TOOL], config=config)
        messages.append(reply.message)
        messages += [d.ToolResult(call.id, "there") for call in reply.tool_calls]
    return reply.text


def find_returned(upstream: Upstream, request: d.Request) -> list[str]:
    """Return the thinking that a request sends back to the model of an upstream."""
    turns = [each for each in request.messages if isinstance(each, d.Assistant)]
    blocks = [block for turn in turns for block in turn.content]
    if upstream.returns == "call":
        # A placeholder stands for a signature that is lost.
        return [
            block.continuity.signature
            for block in blocks
            if isinstance(block, d.ToolCall)
            and block.continuity is not None
            and block.continuity.signature
            and block.continuity.signature != "skip_thought_signature_validator"
        ]
    return [block.text for block in blocks if isinstance(block, d.Thinking)]


def check_returned(
    upstream: Upstream, requests: Sequence[d.Request], *, keeps_state: bool = True
) -> None:
    """Check that each request of a loop has all thinking before it, where the server takes it.

    ``keeps_state`` is whether the client returns state.
    """
    returns = (
        None if upstream.returns in ("state", "call") and not keeps_state else upstream.returns
    )
    for at, request in enumerate(requests):
        found = find_returned(upstream, request)
        if returns == "call":
            assert len(found) == at
        else:
            assert found == [*THOUGHTS[:at]] * (returns is not None)
