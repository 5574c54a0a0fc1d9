"""One reasoning setting is translated for every model family that supports reasoning."""

import json
from typing import Any

import pytest

import dragoman as d
from dragoman.wire import CODECS, SERVER_CODECS
from dragoman.wire.reasoning import (
    ReasoningStyle,
    merge_fields,
    translate_reasoning,
)
from dragoman.wire.server import ServerCodec
from tests.rows import read_table

BASE = "https://api.example.com"
APPROXIMATE = "reasoning_approximated"


def fields_sent(
    wire: str,
    model: str,
    wanted: Any,
    *,
    vendor: str | None = None,
    max_tokens: int = 60000,
    **options: Any,
) -> tuple[dict[str, Any], bool]:
    """Return the fields for an amount of reasoning, and whether they only approximate it."""
    capabilities = d.Capabilities.of(options.pop("capabilities", {}))
    codec = CODECS[wire].connect(model, BASE, options or None, capabilities, vendor=vendor)
    bodies = []
    for amount in (None, wanted):
        config = d.RuntimeConfig(max_tokens=max_tokens, reasoning=amount)
        encoded = codec.encode(d.Request([d.User("Hi")], config=config, model=model))
        bodies.append(json.loads(encoded.http.body))
    plain, body = bodies
    if wire == "gemini":
        plain = plain["generationConfig"]
        body = body["generationConfig"]
    changed = {name: value for name, value in body.items() if plain.get(name) != value}
    codes = [warning.code for warning in encoded.warnings]
    assert codes in ([], [APPROXIMATE])
    return changed, bool(codes)


def thinking(**fields: Any) -> dict[str, Any]:
    return {"thinkingConfig": fields}


def claude(budget: int) -> dict[str, Any]:
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def adaptive(effort: str) -> dict[str, Any]:
    return {"thinking": {"type": "adaptive"}, "output_config": {"effort": effort}}


# Each entry: wire, vendor, model, amount of reasoning, the fields sent, and whether they only
# approximate the amount.
TRANSLATIONS: list[tuple[str, str | None, str, Any, dict[str, Any], bool]] = read_table(
    "reasoning"
)


@pytest.mark.parametrize(
    ("wire", "vendor", "model", "amount", "fields", "approximate"), TRANSLATIONS
)
def test_reasoning_amount_is_translated_for_the_model_family(
    wire: str,
    vendor: str | None,
    model: str,
    amount: Any,
    fields: dict[str, Any],
    approximate: bool,
) -> None:
    assert fields_sent(wire, model, amount, vendor=vendor) == (fields, approximate)


@pytest.mark.parametrize("max_tokens", [1024, 1100])
def test_reasoning_budget_larger_than_max_tokens_is_not_sent(max_tokens: int) -> None:
    found = fields_sent("anthropic", "claude-sonnet-4-5", "high", max_tokens=max_tokens)
    assert found == ({} if max_tokens == 1024 else claude(1024), True)


def test_reasoning_budget_leaves_tokens_for_the_answer() -> None:
    expected = (claude(4000), True)
    assert fields_sent("anthropic", "claude-sonnet-4-5", "high", max_tokens=8000) == expected
    expected = (claude(4000), True)
    assert fields_sent("anthropic", "claude-sonnet-4-5", 9000, max_tokens=8000) == expected
    expected = (claude(7999), False)
    assert fields_sent("anthropic", "claude-sonnet-4-5", 7999, max_tokens=8000) == expected


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_model_without_reasoning_is_sent_no_reasoning_setting(wire: str) -> None:
    known = {"supports_thinking": False}
    assert fields_sent(wire, "unheard-of", "high", capabilities=known) == ({}, True)
    assert fields_sent(wire, "unheard-of", "off", capabilities=known) == ({}, False)


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_endpoint_can_define_its_own_reasoning_fields(wire: str) -> None:
    style = {"budget": "own.tokens", "with_budget": {"own.on": True}, "off": {"own.on": False}}
    expected = ({"own": {"on": True, "tokens": 700}}, False)
    assert fields_sent(wire, "m", 700, reasoning=style) == expected
    assert fields_sent(wire, "m", "off", reasoning=style) == ({"own": {"on": False}}, False)


@pytest.mark.parametrize("amount", [True, "most"])
def test_invalid_reasoning_amount_is_rejected(amount: Any) -> None:
    with pytest.raises(d.UnsupportedFeatureError, match=r"config\.reasoning"):
        translate_reasoning(amount, ReasoningStyle(effort="effort"))
    with pytest.raises(d.InvalidRequestError, match="negative"):
        translate_reasoning(-5, ReasoningStyle(effort="effort"))


def test_token_budget_is_translated_to_the_only_supported_effort() -> None:
    style = ReasoningStyle(effort="effort", efforts=("xhigh",), words={"xhigh": "max"})
    assert translate_reasoning(100, style)[0] == {"effort": "max"}


def test_extra_fields_are_merged_with_reasoning_fields() -> None:
    codec = CODECS["openai"].connect("m", BASE, None, d.Capabilities(), vendor="llamacpp")
    extras = {"chat_template_kwargs": {"tools_in_user_message": False}}
    config = d.RuntimeConfig(reasoning="off", extras=extras)
    body = json.loads(codec.encode(d.Request([d.User("Hi")], config=config)).http.body)
    expected = {"enable_thinking": False, "tools_in_user_message": False}
    assert body["chat_template_kwargs"] == expected
    contradiction = d.RuntimeConfig(
        reasoning="off", extras={"chat_template_kwargs": {"enable_thinking": True}}
    )
    with pytest.raises(d.InvalidRequestError, match="enable_thinking"):
        codec.encode(d.Request([d.User("Hi")], config=contradiction))


def test_reasoning_fields_are_merged_into_the_body() -> None:
    body: dict[str, Any] = {"a": {"x": 1}, "b": 2}
    merge_fields(body, {"a": {"y": 2}, "b": {"z": 3}})
    assert body == {"a": {"x": 1, "y": 2}, "b": {"z": 3}}


@pytest.mark.parametrize(
    ("asked", "amount", "left"),
    [
        ({"reasoning_effort": "low"}, "low", {}),
        ({"reasoning": {"effort": "high"}}, "high", {}),
        ({"reasoning": {"max_tokens": 2000}}, 2000, {}),
        ({"reasoning": {"enabled": False}}, "none", {}),
        ({"reasoning": {"enabled": True}}, None, {"reasoning": {"enabled": True}}),
        (
            {"reasoning": {"effort": "high", "exclude": True}},
            None,
            {"reasoning": {"effort": "high", "exclude": True}},
        ),
        ({"reasoning_effort": "low", "reasoning": {"x": 1}}, "low", {"reasoning": {"x": 1}}),
    ],
)
def test_gateway_accepts_routers_reasoning(asked: Any, amount: Any, left: dict[str, Any]) -> None:
    server: ServerCodec = SERVER_CODECS["openai"]
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **asked}
    config = server.decode(json.dumps(body).encode()).with_extras().config
    assert config.reasoning == amount
    assert config.extras == left
