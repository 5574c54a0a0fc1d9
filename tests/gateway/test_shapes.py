"""Test conversations in vendor formats: they are sent unchanged on the same wire and converted for
other wires.
"""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from dragoman.gateway.app import create_app
from dragoman.gateway.policy import prepare
from dragoman.sim import Answer, Call, ScriptedProvider

from .serving import serving
from .upstream import bench, models_for

USER = {"role": "user", "content": "Hi"}
SAID = {"role": "assistant", "content": "Hello"}
PNG = "iVBORw0KGgo="
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOLS: dict[str, Any] = {
    "openai": [
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
        }
    ],
    "anthropic": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}],
}

# Each entry: the client's wire, the field with the conversation, its value, and the warning that
# is reported for a model of another wire.
SHAPES: list[tuple[str, str, Any, str]] = [
    (
        "openai",
        "messages",
        [USER, SAID, {"role": "system", "content": "Be brief."}, USER],
        "system_moved",
    ),
    (
        "openai",
        "messages",
        [USER, SAID, {"role": "developer", "content": "Be brief."}, USER],
        "system_moved",
    ),
    ("openai", "messages", [SAID, USER], "opening_added"),
    ("openai", "messages", [{"role": "system", "content": "Say hi."}], "system_sent_as_user"),
    ("openai", "messages", [USER, SAID], "prefill_rewritten"),
    ("openai", "messages", [{"role": "user", "content": ""}], "empty_text_filled"),
    ("openai", "messages", [{**USER, "name": "ann"}], "name_dropped messages[0].name"),
    ("openai", "messages", [USER, {**SAID, "thinking_blocks": [{"a": 1}]}, USER], "field_dropped"),
    (
        "openai",
        "messages",
        [{**USER, "cache_control": {"type": "ephemeral"}}],
        "cache_control_dropped",
    ),
    (
        "openai",
        "messages",
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
                ],
            }
        ],
        "cache_control_dropped messages[0].content[0].cache_control",
    ),
    (
        "openai",
        "messages",
        [
            USER,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{**CALL, "provider_specific_fields": {"x": 1}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "r", "name": "f"},
        ],
        "name_dropped messages[2].name",
    ),
    (
        "openai",
        "messages",
        [
            USER,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{b"}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "r"},
        ],
        "arguments_rewritten",
    ),
    (
        "anthropic",
        "messages",
        [USER, SAID, {"role": "system", "content": "Be brief."}, USER],
        "system_moved",
    ),
    ("anthropic", "messages", [USER, {"role": "assistant", "content": "{"}], "prefill_rewritten"),
    (
        "anthropic",
        "messages",
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
                ],
            }
        ],
        "cache_control_dropped",
    ),
    (
        "anthropic",
        "messages",
        [
            {
                "role": "user",
                "content": [
                    {
                        "type": "search_result",
                        "source": "s",
                        "title": "t",
                        "content": [{"type": "text", "text": "x"}],
                    }
                ],
            }
        ],
        "search_result_rewritten",
    ),
    (
        "anthropic",
        "system",
        [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
        "cache_control",
    ),
    (
        "responses",
        "input",
        [USER, SAID, {"role": "developer", "content": "Be brief."}, USER],
        "system_moved",
    ),
    ("responses", "input", [SAID, USER], "opening_added"),
    ("responses", "input", [{"role": "system", "content": "Say hi."}], "system_sent_as_user"),
    (
        "responses",
        "input",
        [
            USER,
            {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done"},
        ],
        "custom_call_rewritten",
    ),
    (
        "responses",
        "input",
        [
            USER,
            {
                "type": "function_call",
                "call_id": "c1",
                "namespace": "mcp__docs",
                "name": "search",
                "arguments": "{}",
            },
            {"type": "function_call_output", "call_id": "c1", "output": "Done"},
        ],
        "namespace_joined input[1]",
    ),
    (
        "gemini",
        "contents",
        [{"role": "model", "parts": [{"text": "Hello"}]}, {"parts": [{"text": "Hi"}]}],
        "opening_added",
    ),
    (
        "gemini",
        "contents",
        [{"parts": [{"text": "Hi"}]}, {"role": "model", "parts": [{"text": "He"}]}],
        "prefill_rewritten",
    ),
    (
        "ollama",
        "messages",
        [USER, SAID, {"role": "system", "content": "Be brief."}, USER],
        "system_moved",
    ),
    ("ollama", "messages", [USER, SAID], "prefill_rewritten"),
]


@pytest.mark.exhaustive
async def test_vendor_specific_fields_are_sent_on_their_own_wire_and_reported_on_others() -> None:
    async with bench() as gateway:
        for at, (client, field, value, warning) in enumerate(SHAPES):
            fields: dict[str, Any] = {field: value}
            for model in models_for(client, at):
                status, headers, said = await gateway.ask(client, model, fields)
                shown = headers.get("x-dragoman-warnings", "")
                where = (client, value, model, said, shown, gateway.seen)
                assert status == 200, where
                if model == client:
                    assert gateway.seen[0][field] == value, where
                    assert warning not in shown, where
                else:
                    assert warning in shown, where


async def test_tool_keeps_vendor_specific_fields_on_its_own_wire() -> None:
    closed = {"type": "object", "properties": {}, "additionalProperties": False, "required": []}
    function = {"name": "f", "description": "d", "parameters": closed, "strict": True}
    strict: Any = [{"type": "function", "function": function}]
    marked: Any = [{**TOOLS["anthropic"][0], "cache_control": {"type": "ephemeral"}}]
    async with bench() as gateway:
        await gateway.ask("openai", "openai", {"tools": strict})
        assert gateway.seen[0]["tools"] == strict
        _, headers, _ = await gateway.ask("openai", "gemini", {"tools": strict})
        assert "strict_dropped tools[0].strict" in headers["x-dragoman-warnings"]
        await gateway.ask("anthropic", "anthropic", {"tools": marked})
        assert gateway.seen[0]["tools"] == marked


async def test_tools_of_a_namespace_are_called_by_their_own_names() -> None:
    no_fields = {"type": "object", "properties": {}}
    tools = [
        {"type": "function", "name": "search", "parameters": no_fields},
        {
            "type": "namespace",
            "name": "mcp__docs__",
            "description": "The documents.",
            "tools": [
                {
                    "type": "function",
                    "name": "search",
                    "description": "Search.",
                    "parameters": no_fields,
                },
                {"type": "custom", "name": "query", "description": "Ask."},
            ],
        },
    ]
    calls = [Call("search"), Call("mcp__docs__search"), Call("mcp__docs__query", {"input": "x"})]
    model = ScriptedProvider(Answer("", tool_calls=calls))
    wanted = [
        ("function_call", "search", None),
        ("function_call", "search", "mcp__docs__"),
        ("custom_tool_call", "query", "mcp__docs__"),
    ]
    body = {"model": "m", "input": "Hi", "tools": tools}
    async with serving(create_app({"m": model})) as url, aiohttp.ClientSession(url) as http:
        async with http.post("/v1/responses", json=body) as reply:
            whole = await reply.json()
            warned = reply.headers["x-dragoman-warnings"]
        async with http.post("/v1/responses", json={**body, "stream": True}) as reply:
            lines = [line[6:] async for line in reply.content if line.startswith(b"data: ")]
    streamed = json.loads(lines[-1])["response"]
    for response in (whole, streamed):
        assert [
            (item["type"], item["name"], item.get("namespace")) for item in response["output"]
        ] == wanted
    assert "namespace_joined tools[1]" in warned
    offered = model.requests[0].tools
    assert [(tool.name, tool.description) for tool in offered] == [
        ("search", ""),
        ("mcp__docs__search", "The documents.\n\nSearch."),
        ("mcp__docs__query", "Ask."),
    ]


def test_namespace_tool_that_is_not_a_function_is_reported() -> None:
    inner = {"type": "web_search"}
    body = {"input": "Hi", "tools": [{"type": "namespace", "name": "n", "tools": [inner]}]}
    prepared = prepare("responses", body)
    assert prepared.body["tools"] == []
    assert [(each.code, each.path) for each in prepared.left] == [
        ("namespace_joined", "tools[0]"),
        ("hosted_tool_dropped", "tools[0].tools[0]"),
    ]


async def test_tool_namespace_is_sent_unchanged_to_a_model_of_the_clients_wire() -> None:
    inner = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "namespace", "name": "n", "description": "d", "tools": [inner]}]
    async with bench() as gateway:
        await gateway.ask("responses", "responses", {"tools": tools})
        assert gateway.seen[0]["tools"] == tools


async def test_instructions_are_not_sent_twice_to_a_model_of_the_clients_wire() -> None:
    talk = [USER, SAID, {"role": "system", "content": "Be brief."}, USER]
    async with bench() as gateway:
        await gateway.ask("anthropic", "anthropic", {"messages": talk, "system": "First."})
        assert (gateway.seen[0]["system"], gateway.seen[0]["messages"]) == ("First.", talk)
        await gateway.ask("anthropic", "anthropic", {"messages": talk})
        assert "system" not in gateway.seen[0]
        await gateway.ask("anthropic", "openai", {"messages": talk, "system": "First."})
        assert gateway.seen[0]["messages"][0]["content"].split() == ["First.", "Be", "brief."]


async def test_gemini_route_accepts_snake_case_url_safe_base64_and_single_objects() -> None:
    snake = {
        "system_instruction": {"parts": {"text": "S"}},
        "contents": {
            "parts": [
                {"text": "Hi"},
                {"inline_data": {"mime_type": "image/png", "data": "-_-_iA"}},
            ]
        },
        "generation_config": {
            "max_output_tokens": 7,
            "top_k": 3,
            "response_mime_type": "application/json",
        },
        "tools": [
            {
                "function_declarations": [
                    {
                        "name": "f",
                        "parameters_json_schema": {
                            "type": "object",
                            "properties": {"a_b": {"type": "string"}},
                        },
                    }
                ]
            }
        ],
        "safety_settings": [{"category": "A", "threshold": "B"}],
    }
    async with bench() as gateway:
        status, headers, said = await gateway.ask("gemini", "openai", snake)
        assert status == 200, said
        sent = gateway.seen[0]
        assert (
            sent["messages"][-1]["content"][1]["image_url"]["url"]
            == "data:image/png;base64,+/+/iA=="
        )
        assert list(sent["tools"][0]["function"]["parameters"]["properties"]) == ["a_b"]
        assert "safetySettings_dropped" in headers["x-dragoman-warnings"]
        status, _, said = await gateway.ask("gemini", "gemini", snake)
        assert status == 200, said
        assert gateway.seen[0]["safetySettings"] == snake["safety_settings"]
        assert gateway.seen[0]["generationConfig"]["topK"] == 3


async def test_schema_in_the_gemini_dialect_is_converted_to_json_schema() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "b": {"type": "STRING", "nullable": True},
            "a": {"type": "ARRAY", "items": {"type": "INTEGER"}},
        },
        "required": ["b"],
        "propertyOrdering": ["b", "a"],
    }
    config = {
        "generationConfig": {"responseMimeType": "application/json", "responseSchema": schema}
    }
    async with bench('{"b": "x"}') as gateway:
        status, _, said = await gateway.ask("gemini", "openai", config)
        assert status == 200, said
        sent = gateway.seen[0]["response_format"]["json_schema"]["schema"]
        assert sent["properties"]["b"] == {"type": ["string", "null"]}
        assert sent["properties"]["a"] == {"type": "array", "items": {"type": "integer"}}
        await gateway.ask("gemini", "gemini", config)
        assert gateway.seen[0]["generationConfig"]["responseSchema"] == schema
        assert "responseJsonSchema" not in gateway.seen[0]["generationConfig"]
    words = {
        "generationConfig": {
            "responseMimeType": "text/x.enum",
            "responseSchema": {"type": "STRING", "enum": ["a"]},
        }
    }
    async with bench("a") as gateway:
        status, headers, said = await gateway.ask("gemini", "openai", words)
        assert (status, "schema_in_words" in headers["x-dragoman-warnings"]) == (200, True), said
        assert '"enum"' in gateway.seen[0]["messages"][0]["content"]
        await gateway.ask("gemini", "gemini", words)
        assert gateway.seen[0]["generationConfig"] == words["generationConfig"]
