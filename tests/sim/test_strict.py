"""The strict simulator refuses what vendors refuse, and Dragoman's own requests pass it."""

from __future__ import annotations

from itertools import product
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

import dragoman as d
from dragoman.sim import ScriptedProvider, ScriptRule
from dragoman.sim.strict import StrictModel
from dragoman.wire import CODECS, SERVER_CODECS, Asked
from dragoman.wire.beliefs import list_known_fields, strict_vendors
from tests.loops import (
    LOOKS,
    SETTINGS,
    TOOL,
    UPSTREAMS,
    Upstream,
    check_returned,
    run_loop,
    serve,
)

AMOUNTS = [None, "high", "max", "off", 4000]
# A turn of a model of another wire, whose thinking only its issuer can read.
FOREIGN: tuple[d.Message, ...] = (
    d.Assistant(
        (
            d.Thinking("Hm.", d.Continuity("sig", issuer=d.Issuer("elsewhere", None, "m"))),
            d.ToolCall("call_1", "look", {}),
        )
    ),
    d.ToolResult("call_1", "there"),
)
HISTORIES: dict[str, tuple[d.Message, ...]] = {
    "a question": (d.User("Hi"),),
    "an open turn": (d.User("Hi"), *FOREIGN),
    "a finished turn": (d.User("Hi"), *FOREIGN, d.Assistant("Done."), d.User("And?")),
    "a prefill": (d.User("Hi"), d.Assistant("{")),
    "a text of a user after results": (d.User("Hi"), *FOREIGN, d.User("And?")),
    "late instructions": (d.User("Hi"), *FOREIGN, d.System("Be brief."), d.User("And?")),
    "instructions at the end": (d.User("Hi"), *FOREIGN, d.System("Be brief.")),
}
CHOICES: list[Any] = [None, "auto", "none", "required", d.ForceTool("look")]
AGENT: dict[str, Any] = {"frequency_penalty": 0, "presence_penalty": 0, **SETTINGS}
SAMPLING: list[dict[str, Any]] = [{}, AGENT, {"stop_sequences": ("END",), "temperature": 1}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("upstream", UPSTREAMS, ids=[each.name for each in UPSTREAMS])
async def test_tool_loop_is_accepted_and_its_thinking_comes_back(
    upstream: Upstream, stream: bool
) -> None:
    for amount in AMOUNTS:
        with serve(upstream, *LOOKS, "Done.") as server:
            connected = server.connect(upstream.wire, upstream.model, vendor=upstream.vendor)
            config = d.RuntimeConfig(**SETTINGS, reasoning=amount)
            async with connected as provider:
                assert await run_loop(provider, config, stream=stream) == "Done."
            assert server.refused == []
            assert len(server.requests) == 4
            if amount in ("high", "max", 4000):
                check_returned(upstream, server.requests)


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("upstream", UPSTREAMS, ids=[each.name for each in UPSTREAMS])
def test_every_request_is_accepted(upstream: Upstream, history: str) -> None:
    codec: Any = CODECS[upstream.wire].connect(
        upstream.model, "http://a.test", None, d.Capabilities(), vendor=upstream.vendor
    )
    rules = StrictModel(upstream.wire, upstream.model, upstream.vendor)
    offers = [*[((TOOL,), choice) for choice in CHOICES], ((), "auto"), ((), "none")]
    cases = product([*AMOUNTS, "minimal"], offers, SAMPLING, (False, True))
    for amount, (tools, choice), settings, stream in cases:
        given = {name: each for name, each in settings.items() if name in codec.setting_paths}
        config = d.RuntimeConfig(**{"max_tokens": 9000, **given, "reasoning": amount})
        request = d.Request(
            HISTORIES[history],
            tools=tools,
            config=config,
            tool_choice=choice,
            stream=stream,
            model="",
        )
        sent = codec.encode(request).http
        asked = SERVER_CODECS[upstream.wire].decode(sent.body, urlsplit(sent.url).path)
        rules.check(asked.client, asked.with_extras())


SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
CACHES: list[Any] = [
    None,
    "auto",
    "off",
    d.PromptCache(key="k", ttl="1h"),
    d.PromptCache(ttl="24h"),
]
# Models of other cache settings, and of a host whose fields are known, besides those of the loops.
HOSTED = [
    Upstream("openai", "openai", "gpt-5.4"),
    Upstream("openai", "openai", "gpt-5.6-sol"),
    Upstream("responses", "azure", "gpt-5.5"),
    Upstream("openai", "cerebras", "gpt-oss-120b"),
    Upstream("openai", "mistral", "mistral-large-3"),
]


@pytest.mark.parametrize(
    "upstream", [*UPSTREAMS, *HOSTED], ids=[each.name for each in [*UPSTREAMS, *HOSTED]]
)
def test_every_schema_and_cache_setting_is_accepted(upstream: Upstream) -> None:
    codec: Any = CODECS[upstream.wire].connect(
        upstream.model, "http://a.test", None, d.Capabilities(), vendor=upstream.vendor
    )
    rules = StrictModel(upstream.wire, upstream.model, upstream.vendor)
    marked = (d.System("Be terse.", cache=True), *[d.User(word, cache=True) for word in "abcdef"])
    histories = ((d.User("Hi"),), marked)
    cases = product(histories, ((), (TOOL,)), (None, SCHEMA), CACHES, (False, True))
    for messages, tools, schema, cache, stream in cases:
        request = d.Request(
            messages,
            tools=tools,
            config=d.RuntimeConfig(max_tokens=9000, cache=cache),
            response_schema=schema,
            stream=stream,
            model="",
            session_id="s",
        )
        sent = codec.encode(request).http
        asked = SERVER_CODECS[upstream.wire].decode(sent.body, urlsplit(sent.url).path)
        rules.check(asked.client, asked.with_extras())


def test_hosts_that_reject_unknown_fields_have_a_list_of_the_known_ones() -> None:
    for vendor in strict_vendors():
        assert {"model", "messages", "tools"} <= set(list_known_fields(vendor))
    assert list_known_fields("openai") == list_known_fields(None) == set()


def _mark(count: int) -> dict[str, Any]:
    part = {"type": "text", "text": "Hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
    return {"messages": [{"role": "user", "content": [part] * count}]}


def _budget(tokens: int) -> dict[str, Any]:
    return {"generationConfig": {"thinkingConfig": {"thinkingBudget": tokens}}}


FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}


def _talk(*roles: str) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": "Hi"} for role in roles]}


# Each entry: the wire, the vendor, the model, what the body has, and a part of the error text.
REFUSED: list[tuple[str, str | None, str, dict[str, Any], str]] = [
    ("anthropic", None, "claude-opus-5-5", {"temperature": 0.5}, "temperature"),
    ("anthropic", None, "claude-opus-5-5", {"tool_choice": {"type": "any"}}, "tool_choice"),
    ("anthropic", None, "claude-opus-4-7", _talk("user", "system"), "role 'system'"),
    ("anthropic", None, "claude-opus-5-5", _talk("system", "user"), "messages.0"),
    ("anthropic", None, "claude-opus-5-5", _talk("user", "system", "user"), "messages.1"),
    ("anthropic", None, "claude-opus-5-5", _talk("user", "system", "system"), "messages.1"),
    (
        "anthropic", None, "claude-opus-5-5",
        _talk("user", "assistant", "system", "user"), "messages.2",
    ),
    ("openai", "mistral", "mistral-large-3", _talk("user", "system"), "role 'system'"),
    ("openai", "vllm", "qwen3.6-35b-a3b", _talk("user", "system"), "role 'system'"),
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
    (
        "openai", "deepseek", "deepseek-v4-pro", {"tools": [], "response_format": FORMAT},
        "response_format type is unavailable",
    ),
    ("openai", "groq", "openai/gpt-oss-120b", {"response_format": FORMAT}, "combined with tool"),
    (
        "openai", "groq", "openai/gpt-oss-120b", {"response_format": {"type": "json_object"}},
        "combined with tool",
    ),
    (
        "openai", "groq", "openai/gpt-oss-120b",
        {"tools": [], "stream": True, "response_format": FORMAT}, "Streaming",
    ),
    ("openai", "openai", "gpt-5.6-sol", {"tools": [], "prompt_cache_retention": "24h"}, "retention is not"),
    ("openai", "openai", "gpt-5.6-sol", {"tools": [], **_mark(5)}, "maximum of 4"),
    ("openai", "openai", "gpt-5.4", {"prompt_cache_options": {"ttl": "30m"}}, "options is not"),
    ("openai", "azure", "gpt-5.4", _mark(1), "breakpoint is not supported"),
    ("responses", "openai", "gpt-6-sol", {"prompt_cache_retention": "24h"}, "retention is not"),
    (
        "responses", "openai", "gpt-5.4",
        {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "input_text",
                            "text": "Hi",
                            "prompt_cache_breakpoint": {"mode": "explicit"},
                        }
                    ],
                }
            ]
        },
        "breakpoint is not supported",
    ),
    ("openai", "groq", "openai/gpt-oss-120b", {"top_k": 4}, "'top_k' is unsupported"),
    ("openai", "groq", "openai/gpt-oss-120b", {"prompt_cache_key": "k"}, "prompt_cache_key"),
    ("openai", "cerebras", "gpt-oss-120b", {"safety_identifier": "u"}, "is unsupported"),
    ("openai", "mistral", "mistral-large-3", {"stream_options": {}}, "is unsupported"),
    ("openai", "mistral", "mistral-large-3", {"seed": 4}, "'seed' is unsupported"),
    ("gemini", "google", "gemini-2.5-pro", _budget(-2), "at least 128"),
]  # fmt: skip


ACCEPTED: list[tuple[str, str | None, str, dict[str, Any]]] = [
    ("openai", "groq", "openai/gpt-oss-120b", {"tools": [], "response_format": FORMAT}),
    (
        "openai", "groq", "openai/gpt-oss-120b",
        {"tools": [], "stream": True, "response_format": {"type": "json_object"}},
    ),
    ("openai", "openai", "gpt-4.1", {"stream": True, "response_format": FORMAT}),
    ("openai", "openai", "gpt-5.4", {"prompt_cache_retention": "24h"}),
    ("openai", "openai", "gpt-5.6-sol", {"tools": [], **_mark(4), "prompt_cache_options": {"ttl": "30m"}}),
    ("openai", "vllm", "gpt-oss-120b", {**_mark(5), "prompt_cache_retention": "24h", "top_k": 4}),
    ("openai", "mistral", "mistral-large-3", {"random_seed": 4}),
    *[("gemini", "google", model, _budget(-1)) for model in ("gemini-2.5-pro", "gemini-3.7-flash")],
]  # fmt: skip


@pytest.mark.parametrize(("wire", "vendor", "model", "fields"), ACCEPTED)
def test_strict_model_accepts_what_its_vendor_accepts(
    wire: str, vendor: str | None, model: str, fields: dict[str, Any]
) -> None:
    asked = _decode(wire, _body(wire, model) | fields)
    StrictModel(wire, model, vendor).check(asked.client, asked.with_extras())


def _decode(wire: str, body: dict[str, Any]) -> Asked:
    path = f"/v1beta/models/{body['model']}:generateContent"
    return SERVER_CODECS[wire].decode(msgspec.json.encode(body), path)


def _body(wire: str, model: str) -> dict[str, Any]:
    """Return a body with a question and a tool."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
    schema = {"type": "object"}
    tool: dict[str, Any] = {"name": "look", "input_schema": schema}
    if wire == "anthropic":
        body["max_tokens"] = 100
    elif wire == "gemini":
        return {"model": model, "contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
    elif wire == "responses":
        body = {"model": model, "input": "Hi"}
        tool = {"type": "function", "name": "look", "parameters": schema}
    else:
        tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
    return {**body, "tools": [tool]}


@pytest.mark.parametrize(("wire", "vendor", "model", "fields", "says"), REFUSED)
def test_strict_model_refuses_what_its_vendor_refuses(
    wire: str, vendor: str | None, model: str, fields: dict[str, Any], says: str
) -> None:
    body = _body(wire, model)
    rules = StrictModel(wire, model, vendor)
    without = body | {name: value for name, value in fields.items() if name == "tools"}
    plain = _decode(wire, without)
    rules.check(plain.client, plain.with_extras())
    asked = _decode(wire, {**body, **fields})
    with pytest.raises(d.InvalidRequestError, match=says):
        rules.check(asked.client, asked.with_extras())


@pytest.mark.parametrize("name", ["mismatch_behavior", "prefix_mismatch_behavior"])
def test_each_wire_has_its_name_for_dropping_unbound_thinking(name: str) -> None:
    """AWS renamed Anthropic's field (vercel/ai#20728)."""
    thinking = {"type": "adaptive", "block_binding": {name: "drop_block"}}
    body = {
        "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
        "additionalModelRequestFields": {"thinking": thinking},
    }
    path = "/model/us.anthropic.claude-opus-5-5-v1:0/converse"
    asked = SERVER_CODECS["bedrock"].decode(msgspec.json.encode(body), path)
    rules = StrictModel("bedrock", "us.anthropic.claude-opus-5-5-v1:0", "bedrock")
    if name == SERVER_CODECS["bedrock"].binding_field:
        rules.check(asked.client, asked.with_extras())
        return
    with pytest.raises(d.InvalidRequestError, match="Extra inputs"):
        rules.check(asked.client, asked.with_extras())


async def test_thinking_that_was_changed_is_refused() -> None:
    with serve(Upstream("anthropic", "anthropic", "m"), LOOKS[0], "Done.") as server:
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
    assert provider.strict is True
    assert provider.vendor == "deepseek"
    assert ScriptRule("x").name == ""
