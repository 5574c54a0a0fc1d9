"""The strict simulator refuses what vendors refuse, and Dragoman's own requests pass it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import dragoman as d
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule, SimServer
from dragoman.sim.strict import StrictModel
from dragoman.wire import SERVER_CODECS

TOOL = d.Tool(
    "look", "Looks.", parameters={"type": "object", "properties": {"at": {"type": "string"}}}
)
LOOK = Answer(thinking="Hm.", text="Let me see.", tool_calls=[Call("look", {"at": "x"})])

# Each entry: the wire, the vendor, and the model.
MODELS: list[tuple[str, str | None, str]] = [
    ("responses", "openai", "gpt-6.1-sol"),
    ("responses", "openai", "gpt-6-astra"),
    ("openai", "openai", "gpt-4.1"),
    ("anthropic", "anthropic", "claude-opus-5-5"),
    ("anthropic", "anthropic", "claude-sonnet-4-5"),
    ("bedrock", "bedrock", "us.anthropic.claude-sonnet-5-5-v1:0"),
    ("bedrock", "bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
    ("gemini", "google", "gemini-3.7-flash"),
    ("openai", "deepseek", "deepseek-v4-pro"),
    ("openai", "moonshot", "kimi-k3"),
    ("openai", "zai", "glm-5.3"),
    ("openai", "minimax", "minimax-m3"),
    ("openai", "alibaba", "qwen3.6-plus"),
    ("openai", "xai", "grok-4.6"),
    ("openai", "openrouter", "deepseek/deepseek-v4-pro"),
    ("openai", "openrouter", "anthropic/claude-sonnet-5.5"),
    ("openai", "openrouter", "google/gemini-3.7-flash"),
    ("openai", "groq", "openai/gpt-oss-120b"),
    ("openai", "mistral", "mistral-medium-latest"),
    ("openai", "vllm", "qwen3.6-35b-a3b"),
    ("openai", "llamacpp", "qwen3.6-35b-a3b"),
    ("ollama", "ollama", "qwen3.6"),
]


def serve(vendor: str | None, *rules: Any, model: str = "sim") -> SimServer:
    return SimServer(ScriptedProvider(*rules, strict=True, vendor=vendor, model=model))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reasoning", [None, "high", "off"])
@pytest.mark.parametrize(("wire", "vendor", "model"), MODELS)
async def test_tool_loop_is_accepted_and_its_thinking_comes_back(
    wire: str, vendor: str | None, model: str, reasoning: Any, stream: bool
) -> None:
    with serve(vendor, LOOK, LOOK, LOOK, "Done.") as server:
        async with server.connect(wire, model, vendor=vendor) as provider:
            messages: list[d.Message] = [d.System("Be terse."), d.User("Where?")]
            for _ in range(4):
                config = d.RuntimeConfig(
                    max_tokens=60000, reasoning=reasoning, temperature=0.5, top_p=0.9
                )
                if stream:
                    async with provider.stream(messages, [TOOL], config) as events:
                        async for _event in events:
                            pass
                    reply = events.response
                else:
                    reply = await provider.complete(messages, [TOOL], config)
                messages.append(reply.message)
                results = [d.ToolResult(call.id, "there") for call in reply.tool_calls]
                messages += results
            assert reply.text == "Done."
    assert len(server.requests) == 4


# Each entry: the wire, the vendor, the model, what the body has, and a part of the error text.
REFUSED: list[tuple[str, str | None, str, dict[str, Any], str]] = [
    ("anthropic", None, "claude-opus-5-5", {"temperature": 0.5}, "temperature"),
    ("anthropic", None, "claude-opus-5-5", {"tool_choice": {"type": "any"}}, "tool_choice"),
    (
        "anthropic", None, "claude-opus-5-5",
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "{"}]},
        "prefill",
    ),
    (
        "anthropic", None, "claude-opus-5-5",
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                        {"type": "text", "text": "Hello."},
                    ],
                },
                {"role": "user", "content": "And?"},
            ]
        },
        "signature",
    ),
    ("openai", "xai", "grok-4.6", {"presence_penalty": 0}, "presence_penalty"),
    ("openai", "deepseek", "deepseek-v4-pro", {"reasoning_effort": "medium"}, "medium"),
    ("openai", "deepseek", "deepseek-v4-pro", {"tool_choice": "required"}, "tool_choice"),
    (
        "openai", "deepseek", "deepseek-v4-pro",
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello."},
                {"role": "user", "content": "And?"},
            ]
        },
        "must be passed back",
    ),
    (
        "openai", "groq", "openai/gpt-oss-120b",
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello.", "reasoning_content": "Hm."},
                {"role": "user", "content": "And?"},
            ]
        },
        "unsupported",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "vendor", "model", "fields", "says"), REFUSED)
def test_strict_model_refuses_what_its_vendor_refuses(
    wire: str, vendor: str | None, model: str, fields: dict[str, Any], says: str
) -> None:
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
    if wire == "anthropic":
        body["max_tokens"] = 100
    tool = {"name": "look", "input_schema": {"type": "object"}}
    if wire == "openai":
        tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    body["tools"] = [tool]
    rules = StrictModel(wire, model, vendor)
    decode = SERVER_CODECS[wire].decode
    plain = decode(msgspec.json.encode(body))
    rules.check(plain.client, plain.with_extras())
    asked = decode(msgspec.json.encode({**body, **fields}))
    with pytest.raises(d.InvalidRequestError, match=says):
        rules.check(asked.client, asked.with_extras())


async def test_thinking_that_was_changed_is_refused() -> None:
    with serve("anthropic", LOOK, "Done.") as server:
        async with server.connect("anthropic", "claude-sonnet-4-5") as provider:
            first = await provider.complete("Where?", [TOOL], max_tokens=9000, reasoning="low")
            changed = [
                msgspec.structs.replace(block, text="Other.")
                if isinstance(block, d.Thinking)
                else block
                for block in first.message.content
            ]
            messages = [
                d.User("Where?"), d.Assistant(changed), d.ToolResult(first.tool_calls[0].id, "x")
            ]  # fmt: skip
            reply = await provider.complete(messages, [TOOL], max_tokens=9000, reasoning="low")
    assert "state" in str(reply.warnings) or "thinking" in str(reply.warnings)


def test_script_names_the_vendor_whose_rules_apply(tmp_path: Any) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(
        "strict: true\nvendor: deepseek\nmodel: deepseek-v4-pro\nrules:\n  - reply: Hi\n"
    )
    provider = ScriptedProvider.from_file(path)
    assert (provider.strict, provider.vendor) == (True, "deepseek")
    assert ScriptRule("x").name == ""
