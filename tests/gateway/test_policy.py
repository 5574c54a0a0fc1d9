"""Test that every field of every client wire is mapped, reported or rejected for models of every
wire.
"""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from dragoman.errors import ContextOverflowError
from dragoman.events import MessageComplete, TextDelta
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, new_key
from dragoman.gateway.policy import NEVER, rename_settings
from dragoman.gateway.policy.hosted import Hosted, fit_hosted, read_hosted
from dragoman.gateway.policy.translate import merge
from dragoman.gateway.stops import StopCutter
from dragoman.messages import ServerTool, Text
from tests.listed import Listed

from .serving import serving
from .upstream import WIRES, bench, models_for

TOOL = {
    "name": "f",
    "description": "d",
    "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
}
OPENAI_TOOL = {"type": "function", "function": TOOL}
ANTHROPIC_TOOL = {"name": "f", "input_schema": TOOL["parameters"]}
RESPONSES_TOOL = {"type": "function", **TOOL}
GEMINI_TOOL = {"functionDeclarations": [TOOL]}

# Fields with the vendor's default value, which are neither rejected nor reported.
DEFAULTS: list[tuple[str, dict[str, Any]]] = [
    ("openai", {"n": 1}),
    ("openai", {"temperature": 1, "top_p": 1}),
    ("openai", {"frequency_penalty": 0, "presence_penalty": 0}),
    ("openai", {"logprobs": False}),
    ("openai", {"logit_bias": {}}),
    ("openai", {"modalities": ["text"]}),
    ("openai", {"store": False}),
    ("openai", {"service_tier": "auto"}),
    ("openai", {"verbosity": "medium"}),
    ("openai", {"tools": [OPENAI_TOOL], "parallel_tool_calls": True, "tool_choice": "auto"}),
    ("openai", {"response_format": {"type": "text"}}),
    ("openai", {"stop": None, "seed": None, "metadata": None, "user": None}),
    ("openai", {"stream": False, "stream_options": None}),
    (
        "responses",
        {"store": True, "background": False, "truncation": "disabled", "service_tier": "auto"},
    ),
    ("responses", {"parallel_tool_calls": True, "tools": [RESPONSES_TOOL], "tool_choice": "auto"}),
    ("responses", {"text": {"format": {"type": "text"}, "verbosity": "medium"}}),
    (
        "responses",
        {
            "previous_response_id": None,
            "conversation": None,
            "prompt": None,
            "max_tool_calls": None,
        },
    ),
    ("responses", {"include": ["reasoning.encrypted_content"], "store": False}),
    ("responses", {"top_logprobs": 0, "metadata": {}}),
    ("anthropic", {"speed": "standard", "service_tier": "auto"}),
    (
        "anthropic",
        {
            "tools": [ANTHROPIC_TOOL],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
        },
    ),
    ("anthropic", {"stop_sequences": [], "metadata": {}}),
    ("gemini", {"generationConfig": {"candidateCount": 1}}),
    ("gemini", {"generationConfig": {"responseModalities": ["TEXT"]}}),
    (
        "gemini",
        {"generationConfig": {"responseMimeType": "text/plain", "responseLogprobs": False}},
    ),
    ("gemini", {"safetySettings": [], "tools": [], "labels": {}}),
    ("ollama", {"options": {}, "format": "", "tools": []}),
]


LIMITS: dict[str, dict[str, Any]] = {
    "openai": {"max_tokens": 9},
    "responses": {"max_output_tokens": 9},
    "anthropic": {},
    "gemini": {"generationConfig": {"maxOutputTokens": 9}},
    "ollama": {"options": {"num_predict": 9}},
}


def limited(client: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the request fields with the token limit that the client's wire requires."""
    return merge(LIMITS[client], fields)


@pytest.mark.exhaustive
async def test_field_with_its_default_value_is_neither_rejected_nor_reported() -> None:
    async with bench() as gateway:
        for at, (client, fields) in enumerate(DEFAULTS):
            for model in models_for(client, at):
                status, headers, said = await gateway.ask(client, model, limited(client, fields))
                assert (status, headers.get("x-dragoman-warnings")) == (200, None), (
                    client,
                    fields,
                    model,
                    said,
                )


# Requests with settings that several wires have: the client's wire, the fields that the client
# sends, and the fields that each upstream receives. A string in place of the fields of an upstream
# is part of the warning that the client must get.
JSON_WORDS = "JSON object"
MAPPED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "openai",
        {"response_format": {"type": "json_object"}},
        {
            "openai": {"response_format": {"type": "json_object"}},
            "responses": {"text": {"format": {"type": "json_object"}}},
            "anthropic": {"system": JSON_WORDS},
            "gemini": {"generationConfig": {"responseMimeType": "application/json"}},
            "ollama": {"format": "json"},
        },
    ),
    (
        "gemini",
        {"generationConfig": {"responseMimeType": "application/json"}},
        {
            "openai": {"response_format": {"type": "json_object"}},
            "responses": {"text": {"format": {"type": "json_object"}}},
            "anthropic": {"system": JSON_WORDS},
            "gemini": {"generationConfig": {"responseMimeType": "application/json"}},
            "ollama": {"format": "json"},
        },
    ),
    (
        "ollama",
        {"format": "json"},
        {"openai": {"response_format": {"type": "json_object"}}, "ollama": {"format": "json"}},
    ),
    (
        "responses",
        {"text": {"format": {"type": "json_object"}, "verbosity": "low"}},
        {
            "openai": {"response_format": {"type": "json_object"}, "verbosity": "low"},
            "responses": {"text": {"format": {"type": "json_object"}, "verbosity": "low"}},
            "anthropic": "verbosity_dropped verbosity",
        },
    ),
    (
        "openai",
        {"tools": [OPENAI_TOOL], "parallel_tool_calls": False},
        {
            "openai": {"parallel_tool_calls": False},
            "responses": {"parallel_tool_calls": False},
            "anthropic": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            "gemini": "parallel_tool_calls_dropped parallel_tool_calls",
            "ollama": "parallel_tool_calls_dropped parallel_tool_calls",
        },
    ),
    (
        "anthropic",
        {
            "tools": [ANTHROPIC_TOOL],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        },
        {
            "openai": {"parallel_tool_calls": False, "tool_choice": "required"},
            "responses": {"parallel_tool_calls": False, "tool_choice": "required"},
            "anthropic": {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        },
    ),
    (
        "anthropic",
        {"top_k": 7},
        {
            "openai": "top_k_dropped top_k",
            "responses": "top_k_dropped top_k",
            "anthropic": {"top_k": 7},
            "gemini": {"generationConfig": {"topK": 7}},
            "ollama": {"options": {"top_k": 7}},
        },
    ),
    (
        "gemini",
        {"generationConfig": {"topK": 7}},
        {
            "openai": "top_k_dropped generationConfig.topK",
            "anthropic": {"top_k": 7},
            "ollama": {"options": {"top_k": 7}},
        },
    ),
    (
        "ollama",
        {"options": {"top_k": 7, "num_ctx": 99}},
        {"ollama": {"options": {"top_k": 7, "num_ctx": 99}}},
    ),
    ("ollama", {"options": {"num_ctx": 99}}, {"openai": "field_dropped options.num_ctx"}),
    (
        "openai",
        {"user": "u"},
        {"anthropic": {"metadata": {"user_id": "u"}}, "gemini": "user_dropped user"},
    ),
    (
        "anthropic",
        {"metadata": {"user_id": "u"}},
        {"openai": {"user": "u"}, "anthropic": {"metadata": {"user_id": "u"}}},
    ),
    (
        "openai",
        {"seed": 4, "frequency_penalty": 0.5},
        {
            "openai": {"seed": 4, "frequency_penalty": 0.5},
            "responses": "frequency_penalty_dropped frequency_penalty; seed_dropped seed",
            "anthropic": "frequency_penalty_dropped frequency_penalty; seed_dropped seed",
            "gemini": {"generationConfig": {"seed": 4, "frequencyPenalty": 0.5}},
            "ollama": {"options": {"seed": 4, "frequency_penalty": 0.5}},
        },
    ),
    (
        "openai",
        {
            "tools": [OPENAI_TOOL, {"type": "function", "function": {**TOOL, "name": "g"}}],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "g"}}],
                },
            },
        },
        {
            "anthropic": {"tool_choice": {"type": "any"}},
            "openai": {"tool_choice": {"type": "allowed_tools"}},
        },
    ),
    (
        "gemini",
        {
            "tools": [GEMINI_TOOL],
            "toolConfig": {"functionCallingConfig": {"mode": "VALIDATED"}},
        },
        {
            "openai": {"tool_choice": "auto"},
            "gemini": {"toolConfig": {"functionCallingConfig": {"mode": "VALIDATED"}}},
        },
    ),
    ("openai", {"n": 2}, dict.fromkeys(WIRES, "n_dropped n")),
    (
        "gemini",
        {"generationConfig": {"candidateCount": 2}},
        dict.fromkeys(WIRES, "candidateCount_dropped"),
    ),
    (
        "gemini",
        {"safetySettings": [{"category": "A", "threshold": "B"}]},
        {"openai": "safetySettings_dropped safetySettings"},
    ),
    ("gemini", {"labels": {"a": "b"}}, {"gemini": {"labels": {"a": "b"}}}),
    ("gemini", {"cachedContent": "c"}, {"gemini": {"cachedContent": "c"}}),
    ("gemini", {"tools": [{"googleSearch": {}}]}, {"gemini": {"tools": [{"googleSearch": {}}]}}),
    ("openai", {"made_up": 1}, {"openai": {"made_up": 1}, "gemini": "field_dropped made_up"}),
    (
        "responses",
        {"made_up": 1, "client_metadata": {"a": "b"}},
        {"responses": {"made_up": 1, "client_metadata": {"a": "b"}}},
    ),
    (
        "responses",
        {"client_metadata": {"a": "b"}},
        {"openai": "client_metadata_dropped client_metadata"},
    ),
    (
        "anthropic",
        {"made_up": 1, "container": "c"},
        {"anthropic": {"made_up": 1, "container": "c"}},
    ),
    (
        "gemini",
        {"madeUp": 1, "generationConfig": {"own": 2}},
        {"gemini": {"madeUp": 1, "generationConfig": {"own": 2}}},
    ),
]


def holds(sent: Any, wanted: Any) -> bool:
    """Return whether the body that the model's server received contains all expected values; a
    string may also contain more text than expected.
    """
    if isinstance(wanted, dict):
        return isinstance(sent, dict) and all(
            holds(sent.get(name), value) for name, value in wanted.items()
        )
    if isinstance(wanted, str) and isinstance(sent, str):
        return wanted in sent
    return bool(sent == wanted)


async def test_settings_are_translated_for_the_upstream_or_reported_as_lost() -> None:
    async with bench() as gateway:
        for client, fields, wanted in MAPPED:
            for model, expected in wanted.items():
                status, headers, said = await gateway.ask(client, model, limited(client, fields))
                where = (
                    client,
                    fields,
                    model,
                    said,
                    gateway.seen,
                    headers.get("x-dragoman-warnings"),
                )
                assert status == 200, where
                if isinstance(expected, str):
                    assert expected in headers.get("x-dragoman-warnings", ""), where
                else:
                    assert holds(gateway.seen[0], expected), where


# Requests with tools that the provider runs: the client's wire, the fields that the client sends,
# and the fields that each upstream receives. A string in place of the fields of an upstream
# means that the gateway rejects the request with an error that contains the string.
BERLIN = {"type": "approximate", "city": "Berlin"}
SEARCHING = {"type": "web_search_20250305", "name": "web_search"}
INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}
HOSTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "responses",
        {"tools": [{"type": "web_search", "user_location": BERLIN,
                    "filters": {"allowed_domains": ["a.test"]}}]},
        {
            "anthropic": [{**SEARCHING, "allowed_domains": ["a.test"], "user_location": BERLIN}],
            "gemini": "tools[0]",
            "openai": "tools[0]",
            "ollama": "tools[0]",
        },
    ),
    (
        "responses",
        {"tools": [INTERPRETER, RESPONSES_TOOL]},
        {"anthropic": [{"type": "code_execution_20250825", "name": "code_execution"}],
         "gemini": [], "openai": []},
    ),
    ("responses", {"tools": [{**INTERPRETER, "container": "cntr_1"}]}, {"anthropic": "tools[0]"}),
    (
        "anthropic",
        {"tools": [{**SEARCHING, "type": "web_search_20260209", "allowed_domains": ["a.test"]}]},
        {"responses": [{"type": "web_search", "filters": {"allowed_domains": ["a.test"]}}],
         "gemini": "tools[0]"},
    ),
    ("anthropic", {"tools": [SEARCHING]}, {"gemini": [{"googleSearch": {}}],
                                           "openai": "tools[0]"}),
    (
        "anthropic",
        {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]},
        {"gemini": [{"urlContext": {}}], "responses": "tools[0]"},
    ),
    (
        "gemini",
        {"tools": [{"googleSearch": {}}, {"codeExecution": {}}]},
        {
            "anthropic": [SEARCHING, {"type": "code_execution_20250825",
                                      "name": "code_execution"}],
            "responses": [{"type": "web_search"}, INTERPRETER],
            "ollama": "tools[0].googleSearch",
        },
    ),
    (
        "gemini",
        {"tools": [{"googleSearch": {"excludeDomains": ["a"]}}]},
        {"anthropic": [{**SEARCHING, "blocked_domains": ["a"]}]},
    ),
    (
        "openai",
        {"web_search_options": {"user_location": {"type": "approximate",
                                                  "approximate": {"city": "Berlin"}}}},
        {
            "anthropic": [{**SEARCHING, "user_location": BERLIN}],
            "responses": [{"type": "web_search", "user_location": BERLIN}],
            "gemini": [{"googleSearch": {}}],
            "ollama": "web_search_options",
        },
    ),
]  # fmt: skip


async def test_hosted_tools_that_both_providers_have_are_mapped_and_others_rejected() -> None:
    async with bench() as gateway:
        for client, fields, wanted in HOSTED:
            for model, expected in wanted.items():
                status, headers, said = await gateway.ask(client, model, limited(client, fields))
                where = (
                    client,
                    fields,
                    model,
                    said,
                    gateway.seen,
                    headers.get("x-dragoman-warnings"),
                )
                if isinstance(expected, str):
                    assert (status, gateway.seen, expected in str(said)) == (400, [], True), where
                    continue
                assert status == 200, where
                sent = [tool for tool in gateway.seen[0]["tools"] if not is_function(tool)]
                assert sent == expected, where


def is_function(tool: dict[str, Any]) -> bool:
    return (
        tool.get("type") == "function" or "functionDeclarations" in tool or "input_schema" in tool
    )


async def test_hosted_tool_options_that_a_provider_lacks_are_reported() -> None:
    async with bench() as gateway:
        asked = {
            "tools": [
                {"type": "web_search", "search_context_size": "low"},
                {"type": "web_search_preview"},
            ]
        }
        _, headers, _ = await gateway.ask("responses", "anthropic", limited("responses", asked))
        assert headers["x-dragoman-warnings"].count("tool_option_dropped") == 1
        # The tool is sent once, although the client names it twice.
        assert gateway.seen[0]["tools"] == [SEARCHING]


def test_hosted_tool_with_options_is_not_mapped_for_a_group_of_two_wires() -> None:
    asked = Hosted("web_search", {"allowed_domains": ["a"]})
    assert fit_hosted(asked, {"anthropic", "responses"}, beside_functions=False) is None
    plain = fit_hosted(
        Hosted("web_search", {}), {"anthropic", "responses"}, beside_functions=False
    )
    assert plain == (ServerTool("web_search"), ())
    assert fit_hosted(asked, {""}, beside_functions=False) is None
    assert read_hosted("gemini", "googleSearch", 5) is None


# Fields that change the meaning of the answer; the error names them as the client sent them.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("openai", {"logprobs": True}, "logprobs"),
    ("openai", {"modalities": ["text", "audio"]}, "modalities"),
    ("openai", {"functions": [TOOL]}, "functions"),
    ("responses", {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}, "tools[0]"),
    ("responses", {"top_logprobs": 3}, "top_logprobs"),
    ("anthropic", {"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
    ("anthropic", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
    ("gemini", {"tools": [{"googleMaps": {}}]}, "tools[0].googleMaps"),
    ("gemini", {"cachedContent": "c"}, "cachedContent"),
    (
        "gemini",
        {"generationConfig": {"responseModalities": ["IMAGE"]}},
        "generationConfig.responseModalities",
    ),
    ("ollama", {"logprobs": True}, "logprobs"),
]


@pytest.mark.exhaustive
async def test_settings_that_change_the_meaning_of_a_request_are_rejected_on_other_wires() -> None:
    async with bench() as gateway:
        for at, (client, fields, name) in enumerate(REFUSED):
            for model in models_for(client, at):
                status, _, said = await gateway.ask(client, model, limited(client, fields))
                if model == client:
                    assert status == 200, (client, fields, said)
                    continue
                assert (status, gateway.seen) == (400, []), (client, fields, model)
                message = str(said["error"]["message"] if client != "ollama" else said["error"])
                assert (name in message, repr(model) in message) == (True, True), message


async def test_on_loss_reject_turns_every_lost_field_into_an_error() -> None:
    async with bench(on_loss="reject") as gateway:
        for client, fields in (
            ("openai", {"user": "u"}),
            ("anthropic", {"top_k": 3}),
            ("gemini", {"labels": {"a": "b"}}),
        ):
            status, _, said = await gateway.ask(
                client, "ollama" if client != "anthropic" else "openai", fields
            )
            assert status == 400, said
            assert "on_loss" in str(said)
        status, _, _ = await gateway.ask("openai", "openai", {"user": "u", "made_up": 1})
        assert status == 200


async def test_lost_fields_are_rejected_if_the_key_is_configured_so() -> None:
    secret, digest = new_key()
    lenient, other = new_key()
    ring = KeyRing([Key("strict", digest, on_loss="reject"), Key("lenient", other)])
    async with bench(keys=ring) as gateway:
        body = {"model": "ollama", "messages": [{"role": "user", "content": "Hi"}], "user": "u"}
        for key, wanted in ((secret, 400), (lenient, 200)):
            status, _, said = await gateway.post(
                "/v1/chat/completions", body, authorization=f"Bearer {key}"
            )
            assert status == wanted, said
        forced = {
            "model": "ollama",
            "messages": body["messages"],
            "tools": [OPENAI_TOOL],
            "tool_choice": "required",
        }
        status, _, said = await gateway.post(
            "/v1/chat/completions", forced, authorization=f"Bearer {secret}"
        )
        assert (status, "tool_choice" in str(said)) == (400, True)


async def test_request_cannot_choose_the_upstream_address_on_any_wire() -> None:
    async with bench() as gateway:
        for client in WIRES:
            for name in NEVER if client == "openai" else NEVER[:1]:
                status, _, said = await gateway.ask(client, client, {name: "http://elsewhere"})
                assert (status, gateway.seen) == (400, []), (client, name)
                assert name in str(said)


async def test_metrics_count_loss_warnings_by_code() -> None:
    async with bench() as gateway, aiohttp.ClientSession() as http:
        await gateway.ask("openai", "gemini", {"made_up": 1, "user": "u"})
        async with http.get(f"{gateway.url}/metrics") as reply:
            text = await reply.text()
    assert 'dragoman_warnings_total{wire="openai",code="field_dropped"} 1' in text
    assert 'dragoman_warnings_total{wire="openai",code="user_dropped"} 1' in text
    assert "made_up" not in text


# Requests with reasoning settings for models that are not in the catalogue: the client's wire, the
# fields that the client sends, and the fields that each upstream receives.
THINKING: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "anthropic",
        {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 4000},
        {
            "openai": {"reasoning_effort": "low"},
            "responses": {"reasoning": {"effort": "low"}},
            "anthropic": {
                "thinking": {"type": "enabled", "budget_tokens": 2000},
                "max_tokens": 4000,
            },
            "gemini": {"generationConfig": {"thinkingConfig": {"thinkingBudget": 2000}}},
        },
    ),
    (
        "openai",
        {"reasoning_effort": "medium", "max_tokens": 100},
        {
            "openai": {"reasoning_effort": "medium"},
            "anthropic": {
                "thinking": {"type": "enabled", "budget_tokens": 8192},
                "max_tokens": 8292,
            },
            "gemini": {"generationConfig": {"thinkingConfig": {"thinkingLevel": "medium"}}},
        },
    ),
    (
        "anthropic",
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}, "max_tokens": 100},
        {
            "openai": {"reasoning_effort": "xhigh"},
            "anthropic": {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
        },
    ),
    (
        "anthropic",
        {"thinking": {"type": "disabled"}},
        {"openai": {"reasoning_effort": "none"}, "ollama": {"think": False}},
    ),
    ("anthropic", {"thinking": {"type": "adaptive"}}, {"openai": "thinking_adaptive thinking"}),
    (
        "gemini",
        {
            "generationConfig": {
                "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "HIGH"}
            }
        },
        {
            "openai": {"reasoning_effort": "high"},
            "gemini": {
                "generationConfig": {
                    "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "HIGH"}
                }
            },
        },
    ),
    (
        "openai",
        {"reasoning": {"max_tokens": 9000}},
        {"openai": {"reasoning": {"max_tokens": 9000}}},
    ),
    ("openai", {"enable_thinking": False}, {"openai": {"enable_thinking": False}, "gemini": {}}),
    ("ollama", {"think": True}, {"openai": {"reasoning_effort": "medium"}}),
]


async def test_reasoning_effort_is_translated_between_all_wires() -> None:
    async with bench() as gateway:
        for client, fields, wanted in THINKING:
            for model, expected in wanted.items():
                status, headers, said = await gateway.ask(client, model, fields)
                where = (
                    client,
                    fields,
                    model,
                    said,
                    gateway.seen,
                    headers.get("x-dragoman-warnings"),
                )
                assert status == 200, where
                if isinstance(expected, str):
                    assert expected in headers.get("x-dragoman-warnings", ""), where
                else:
                    assert holds(gateway.seen[0], expected), where


async def test_stop_sequences_are_emulated_where_the_wire_has_none() -> None:
    async with bench("one two STOP three") as gateway:
        _, _, said = await gateway.ask("openai", "responses", {"stop": ["STOP", "never"]})
        assert (said["choices"][0]["message"]["content"], said["choices"][0]["finish_reason"]) == (
            "one two ",
            "stop",
        )
        assert "stop" not in str(sorted(gateway.seen[0]))
        _, _, said = await gateway.ask("anthropic", "responses", {"stop_sequences": ["two"]})
        assert (said["content"][0]["text"], said["stop_reason"], said["stop_sequence"]) == (
            "one ",
            "stop_sequence",
            "two",
        )
        _, _, said = await gateway.ask("openai", "responses", {"stop": "absent"})
        assert said["choices"][0]["message"]["content"] == "one two STOP three"


def pieces_of(text: str, size: int) -> list[Any]:
    return [TextDelta("m", "r", 0, text[at : at + size]) for at in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_stop_sequence_is_found_across_chunk_boundaries(size: int) -> None:
    cutter = StopCutter(["STOP", "ST!"])
    passed = cutter.feed(pieces_of("a STEP, a STSTOP, more", size))
    assert (
        "".join([event.text for event in passed if isinstance(event, TextDelta)]) == "a STEP, a ST"
    )
    complete = MessageComplete("m", "r", "cancelled", (Text("a STEP, a STSTOP, more"),))
    closed = cutter.close(complete)
    assert (closed.final_content, closed.stop_sequence, closed.finish_reason) == (
        (Text("a STEP, a ST"),),
        "STOP",
        "stop",
    )
    kept = StopCutter(["STOP"])
    events = [*pieces_of("ends with ST", size), complete]
    assert (
        "".join([event.text for event in kept.feed(events) if isinstance(event, TextDelta)])
        == "ends with ST"
    )


async def test_errors_name_fields_as_the_client_sent_them() -> None:
    async with bench() as gateway:
        for client, fields, name in (
            (
                "gemini",
                {"generationConfig": {"maxOutputTokens": 1.5}},
                "generationConfig.maxOutputTokens",
            ),
            ("openai", {"temperature": 10**400}, "temperature"),
            ("ollama", {"options": {"temperature": 10**400}}, "temperature"),
        ):
            status, _, said = await gateway.ask(client, "openai", fields)
            assert (status, name in str(said), "config." in str(said)) == (400, True, False), said
    assert rename_settings("gemini", "config.seed: no") == "generationConfig.seed: no"


async def test_context_overflow_is_reported_in_the_vendors_format() -> None:
    model = Listed(ContextOverflowError("too long"))
    async with serving(create_app({"m": model})) as url, aiohttp.ClientSession() as http:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
            said = (await answer.json())["error"]
    assert said["message"].startswith("This model's maximum context length is")
    assert said["code"] == "context_length_exceeded"
