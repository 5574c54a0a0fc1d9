"""``ready()`` reads what a vendor's own model list states about a model, and later calls use it."""

import json
import logging
from typing import Any

import pytest
from msgspec.structs import replace

import dragoman as d
from dragoman.transport import FixtureTransport
from dragoman.wire import CODECS
from dragoman.wire.anthropic.described import describe_model
from dragoman.wire.described import MAX_TOKENS
from dragoman.wire.openai import describe_entry
from dragoman.wire.reasoning import NOT_REASONING, ReasoningStyle

JSON = {"content-type": "application/json"}
# A refusal that the empty probe of ``ready()`` itself explains.
PROBED = (400, JSON, [b'{"error": {"message": "messages: missing"}}'])


def supports(**kinds: bool) -> dict[str, Any]:
    return {name: {"supported": value} for name, value in kinds.items()}


def claude(**changes: Any) -> dict[str, Any]:
    """Return an entry of Anthropic's Models API (anthropic-sdk-python 2.10.0, 2026-11-19)."""
    kinds = supports(adaptive=True, between_tools=True, disabled=False, enabled=False)
    efforts = supports(low=True, medium=False, high=True, max=True, xhigh=False)
    return {
        "id": "claude-new-9", "type": "model", "lifecycle": "active", "retires_at": None,
        "max_input_tokens": 500_000, "max_tokens": 96_000,
        "capabilities": {
            **supports(image_input=False, pdf_input=False, structured_outputs=False),
            "thinking": {"supported": True, "types": kinds},
            "effort": {"supported": True, **efforts},
        },
        **changes,
    }  # fmt: skip


def open_model(wire: str, model: str, *replies: Any, **settings: Any) -> d.Provider:
    encoded = [(200, JSON, [json.dumps(reply).encode()]) for reply in replies]
    transport = FixtureTransport(*encoded, PROBED)
    url = "http://127.0.0.1:9" + ("/api/v1" if wire == "openai" else "")
    return d.connect(model, wire=wire, base_url=url, transport=transport, **settings)


def sent(provider: d.Provider, amount: Any, **more: Any) -> dict[str, Any]:
    request = d.Request([d.User("Hi")], config=d.RuntimeConfig(reasoning=amount), **more)
    body: dict[str, Any] = json.loads(provider.preview(request).http.body)
    return body


async def test_capabilities_of_the_models_api_are_used() -> None:
    provider = open_model("anthropic", "claude-new-9", claude())
    assert sent(provider, "off")["thinking"]["type"] == "adaptive"
    assert sent(provider, None)["max_tokens"] == 64_000
    await provider.ready()
    known = provider.capabilities
    fact = known.max_context_tokens
    assert fact.value == 500_000
    assert fact.source == "observed"
    assert fact.by == "the server's model list"
    assert known.known("supports_images") is False
    assert known.known("supports_thinking") is True
    assert sent(provider, "off")["thinking"] == {"type": "between_tools"}
    assert sent(provider, "medium")["output_config"]["effort"] in ("low", "high")
    assert sent(provider, "max")["output_config"]["effort"] == "max"
    assert sent(provider, None)["max_tokens"] == 96_000
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    assert "format" not in sent(provider, None, response_schema=schema).get("output_config", {})


async def test_model_that_does_not_think_is_not_asked_to() -> None:
    can = {"thinking": {"supported": False}}
    provider = open_model("anthropic", "claude-new-9", claude(capabilities=can))
    await provider.ready()
    body = sent(provider, "high")
    assert body.keys().isdisjoint({"thinking", "output_config"})


async def test_end_that_the_server_states_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    entry = claude(lifecycle="deprecated", retires_at="2020-01-02T00:00:00Z")
    provider = open_model("anthropic", "claude-new-9", entry)
    with caplog.at_level(logging.WARNING, "dragoman"):
        await provider.ready()
    assert "2020-01-02" in caplog.text


async def test_retired_model_is_not_ready() -> None:
    provider = open_model("anthropic", "claude-new-9", claude(lifecycle="retired"))
    with pytest.raises(d.InvalidModelError, match="retired"):
        await provider.ready()


# The page of OpenRouter's SDK on this object, seen on 2026-11-19:
# openrouter.ai/docs/client-sdks/python/components/modelreasoning
MANDATORY = {"mandatory": True, "supported_efforts": ["max", "high", "low"]}
FREE = {"mandatory": False, "supported_efforts": None, "supports_max_tokens": True}


@pytest.mark.parametrize(
    ("stated", "amount", "fields"),
    [
        (MANDATORY, "off", {"effort": "low"}),
        (MANDATORY, "max", {"effort": "max"}),
        (MANDATORY, "medium", {"effort": "high"}),
        (MANDATORY, 2000, {"effort": "low"}),
        (FREE, "off", {"effort": "none"}),
        (FREE, 2000, {"max_tokens": 2000}),
        ({"mandatory": "?"}, "off", {"effort": "none"}),
    ],
)
async def test_efforts_of_a_router_are_used(stated: Any, amount: Any, fields: Any) -> None:
    entry = {
        "id": "new/model", "context_length": 9000, "reasoning": stated,
        "top_provider": {"max_completion_tokens": 800}, "expiration_date": None,
    }  # fmt: skip
    key = {"data": {}}
    provider = open_model(
        "openai", "new/model", key, {"data": [entry]}, vendor="openrouter",
        quirks={"readiness": "key"},
    )  # fmt: skip
    await provider.ready()
    assert sent(provider, amount)["reasoning"] == fields
    assert provider.capabilities.known("max_context_tokens") == 9000
    assert provider.capabilities.known("max_output_tokens") == 800


@pytest.mark.parametrize("wire", ["openai", "responses"])
async def test_shutdown_date_of_openai_is_read(wire: str) -> None:
    entry = {"id": "m", "object": "model", "owned_by": "openai", "shutdown_date": "2026-12-11"}
    quirks = {"readiness": "models"}
    provider = open_model(wire, "m", {"object": "list", "data": [entry]}, quirks=quirks)
    await provider.ready()
    assert provider.capabilities.known("end_date") == "2026-12-11"


async def test_what_the_user_stated_stays() -> None:
    quirks = {
        "reasoning": {"effort": "reasoning.effort", "efforts": ["high"]},
        "readiness": "models",
    }
    entry = {"id": "m", "reasoning": FREE, "context_length": 9000}
    provider = open_model(
        "openai", "m", {"data": [entry]}, quirks=quirks, capabilities={"max_context_tokens": 5}
    )
    await provider.ready()
    assert sent(provider, "off")["reasoning"] == {"effort": "high"}
    assert provider.capabilities.known("max_context_tokens") == 5


@pytest.mark.parametrize(
    "entry",
    [
        {"context_length": -1, "shutdown_date": "soon"},
        {"context_length": MAX_TOKENS + 1, "shutdown_date": 7},
        {"context_length": True, "reasoning": {"mandatory": True, "supported_efforts": 3}},
        {"context_length": "9", "reasoning": [], "deprecation_replacement_model": 4},
    ],
)
@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_values_outside_their_range_are_ignored(wire: str, entry: dict[str, Any]) -> None:
    codec: Any = CODECS[wire].connect("m", "http://a.test", {}, d.Capabilities())
    describe = describe_entry if wire == "openai" else describe_model
    assert describe(entry, codec.quirks.reasoning).facts == {}


EFFORT = ReasoningStyle(effort="output_config.effort")
DISABLED = {"thinking.type": "disabled"}


@pytest.mark.parametrize(
    ("can", "style", "expected"),
    [
        ({"effort": {"supported": True, **supports(low=True)}}, EFFORT,
         replace(EFFORT, efforts=("low",))),
        ({"effort": {"supported": True}}, EFFORT, EFFORT),
        ({"thinking": {"supported": True, "types": supports(disabled=False)}},
         replace(EFFORT, off=DISABLED), EFFORT),
        ({"thinking": {"supported": True, "types": supports(disabled=True)}}, EFFORT,
         replace(EFFORT, off=DISABLED)),
        ({"thinking": {"supported": True, "types": supports(disabled=True)}},
         replace(EFFORT, off=DISABLED), replace(EFFORT, off=DISABLED)),
        ({"thinking": {"supported": True, "types": supports(enabled=False)}},
         ReasoningStyle(budget="thinking.budget_tokens"),
         ReasoningStyle(budget="thinking.budget_tokens")),
    ],
)  # fmt: skip
def test_style_is_limited_to_what_the_server_states(
    can: dict[str, Any], style: ReasoningStyle, expected: ReasoningStyle
) -> None:
    entry = claude(capabilities={"thinking": {"supported": True}, **can})
    assert describe_model(entry, style).quirks["reasoning"] == expected


def test_router_without_a_default_states_nothing_about_unasked_reasoning() -> None:
    entry = {"id": "m", "reasoning": {"mandatory": True, "supported_efforts": ["none"]}}
    found = describe_entry(entry, ReasoningStyle(effort="reasoning.effort"))
    assert found.quirks == {"reasoning": NOT_REASONING}


@pytest.mark.parametrize(("default", "unasked"), [(True, True), (False, True)])
def test_mandatory_reasoning_is_unasked_reasoning(default: bool, unasked: bool) -> None:
    stated = {"mandatory": True, "default_enabled": default, "supported_efforts": ["low"]}
    found = describe_entry({"id": "m", "reasoning": stated}, ReasoningStyle(effort="e"))
    assert found.quirks["reasons_unasked"] is unasked
