"""Test that no field of the policy tables is lost: each is sent upstream, reported or rejected by
name.
"""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from dragoman.gateway.app import create_app
from dragoman.gateway.policy import TABLES, Rule
from dragoman.gateway.policy.translate import merge
from dragoman.sim import ScriptedProvider

from .serving import serving
from .test_policy import OPENAI_TOOL, RESPONSES_TOOL, limited
from .upstream import BODIES, PATHS, bench, models_for

# Values for fields that do not accept text, or that need another field.
VALUES: dict[str, Any] = {
    "n": 2,
    "parallel_tool_calls": False,
    "top_k": 77,
    "truncation": "auto",
    "max_tool_calls": 3,
    "service_tier": "priority",
    "prompt_cache_retention": "24h",
    "min_p": 0.7,
    "repetition_penalty": 1.3,
    "repeat_penalty": 1.3,
    "store": True,
    "metadata": {"a": "b"},
    "client_metadata": {"a": "b"},
    "logit_bias": {"7": 1},
    "prediction": {"type": "content", "content": "x"},
    "logprobs": True,
    "top_logprobs": 3,
    "modalities": ["audio"],
    "audio": {"voice": "a"},
    "functions": [{"name": "f"}],
    "reasoning": {"effort": "low"},
    "thinking": {"type": "enabled"},
    "enable_thinking": True,
    "chat_template_kwargs": {"enable_thinking": True},
    "include": ["file_search_call.results"],
    "stream_options": {"include_obfuscation": True},
    "background": True,
    "container": "c",
    "labels": {"a": "b"},
    "safetySettings": [{"category": "A", "threshold": "B"}],
    "generationConfig.topK": 77,
    "generationConfig.candidateCount": 2,
    "generationConfig.responseModalities": ["IMAGE"],
    "generationConfig.responseSchema": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}},
    "generationConfig.thinkingConfig": {"thinkingBudget": 1024},
    "generationConfig.responseLogprobs": True,
    "generationConfig.logprobs": 3,
    "truncate": False,
    "shift": False,
    "raw": True,
    "options.top_k": 77,
    "options.min_p": 0.7,
    "options.repeat_penalty": 1.3,
}
BESIDE: dict[str, dict[str, Any]] = {
    "parallel_tool_calls": {
        "openai": {"tools": [OPENAI_TOOL]},
        "responses": {"tools": [RESPONSES_TOOL]},
    },
    "generationConfig.responseSchema": {
        "gemini": {"generationConfig": {"responseMimeType": "application/json"}}
    },
}
# This field is not reported, because both values of ``store`` have the same effect on a gateway
# without a store.
UNREPORTED = {("responses", "store")}
CASES = [
    (client, field, rule)
    for client, rules in TABLES.items()
    for field, rule in rules.items()
    if rule.effect != "read" and (client, field) not in UNREPORTED
]


def nest(field: str, value: Any) -> dict[str, Any]:
    """Return a body whose only value is at a dotted path such as ``a.b.c``."""
    for name in reversed(field.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def check(
    rule: Rule, field: str, *, is_own: bool, status: int, warned: str, said: Any, is_sent: bool
) -> None:
    """Check that the gateway handled a field as the policy rule for this field requires."""
    name = field.rpartition(".")[2]
    concept = rule.concept or name
    applies = rule.always or not is_own
    if rule.effect == "refused" and applies:
        assert (status, field in str(said)) == (400, True)
        return
    assert status == 200
    if rule.effect == "hint" and applies:
        assert field in warned
    else:
        assert is_sent or field in warned or concept in warned


@pytest.mark.exhaustive
async def test_every_request_field_is_sent_reported_or_rejected() -> None:
    async with bench() as gateway:
        for at, (client, field, rule) in enumerate(CASES):
            beside = limited(client, BESIDE.get(field, {}).get(client, {}))
            fields = merge(beside, nest(field, VALUES.get(field, "some text")))
            for model in models_for(client, at):
                await gateway.ask(client, model, beside)
                plain = list(gateway.seen)
                status, headers, said = await gateway.ask(client, model, fields)
                warned = headers.get("x-dragoman-warnings", "")
                try:
                    check(
                        rule,
                        field,
                        is_own=model == client,
                        status=status,
                        warned=warned,
                        said=said,
                        is_sent=gateway.seen != plain,
                    )
                except AssertionError as error:
                    raise AssertionError(
                        (client, field, model, rule, status, warned, said)
                    ) from error


@pytest.mark.parametrize("client", TABLES)
async def test_a_stream_reports_every_dropped_field_in_its_header(client: str) -> None:
    dropped = [field for wire, field, rule in CASES if wire == client and rule.effect == "hint"]
    body: dict[str, Any] = {**limited(client, BODIES[client]), "an_unknown_field": "x"}
    for field in dropped:
        body = merge(body, nest(field, VALUES.get(field, "some text")))
    body |= {} if client == "gemini" else {"model": "m"}
    shown = []
    async with (
        serving(create_app({"m": ScriptedProvider("Hello")})) as url,
        aiohttp.ClientSession(url) as http,
    ):
        for stream in (False, True):
            path = (
                PATHS[client]
                .format(model="m")
                .replace("generate", "streamGenerate" if stream else "generate")
            )
            asked = body if client == "gemini" else {**body, "stream": stream}
            async with http.post(path, json=asked) as reply:
                assert reply.status == 200, await reply.text()
                shown.append(reply.headers["x-dragoman-warnings"])
    assert shown[0] == shown[1]
    assert [field for field in dropped if f" {field};" not in f"{shown[0]};"] == []
    assert "field_dropped " in shown[0]


async def test_warnings_that_do_not_fit_the_header_are_counted() -> None:
    fields = {f"unknown_{at:03}": at for at in range(200)}
    async with bench() as gateway:
        _, headers, _ = await gateway.ask("openai", "ollama", fields)
    *shown, rest = headers["x-dragoman-warnings"].split("; ")
    assert shown == [f"field_dropped unknown_{at:03}" for at in range(len(shown))]
    assert rest == f"{200 - len(shown)} more"
    assert len(shown) > 100
