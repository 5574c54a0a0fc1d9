"""If the model's wire has no equivalent for a field inside a message, a tool or a setting, the
gateway reports the path of the field.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import dragoman.gateway.policy as policy

from .test_shapes import SHAPES
from .upstream import bench

USER = {"role": "user", "content": "Hi"}
NO_FIELDS = {"type": "object", "properties": {}}
PNG = "iVBORw0KGgo="
FUNCTION = {"name": "f", "parameters": NO_FIELDS}
CACHE = {"type": "ephemeral"}


def call_openai(**fields: Any) -> dict[str, Any]:
    """Return a request body with a tool call and its result; ``fields`` are added to the call."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, **fields}
    result = {"role": "tool", "tool_call_id": "c", "content": "Done"}
    return {"messages": [USER, {"role": "assistant", "tool_calls": [call]}, result]}


def part_of(client: str, part: dict[str, Any]) -> dict[str, Any]:
    """Return a request body with one user message, which has one content part."""
    if client == "gemini":
        return {"contents": [{"role": "user", "parts": [part]}]}
    return {
        "input" if client == "responses" else "messages": [{"role": "user", "content": [part]}]
    }


# Each entry: the client's wire, the model's wire, fields of the request body, and the warning in
# the response header.
REPORTED: list[tuple[str, str, dict[str, Any], str]] = [
    ("openai", "gemini", {"messages": [{**USER, "x": 1}]}, "field_dropped messages[0].x"),
    (
        "openai",
        "gemini",
        part_of("openai", {"type": "text", "text": "Hi", "x": 1}),
        "field_dropped messages[0].content[0].x",
    ),
    (
        "openai",
        "gemini",
        part_of(
            "openai",
            {
                "type": "image_url",
                "image_url": {"url": f"data:image/png;base64,{PNG}", "x": 1},
            },
        ),
        "field_dropped messages[0].content[0].image_url.x",
    ),
    ("openai", "gemini", call_openai(x=1), "field_dropped messages[1].tool_calls[0].x"),
    (
        "openai",
        "gemini",
        call_openai(function={"name": "f", "arguments": "{}", "x": 1}),
        "field_dropped messages[1].tool_calls[0].function.x",
    ),
    (
        "openai",
        "gemini",
        call_openai(function={"name": "f", "arguments": "no JSON"}),
        "arguments_rewritten messages[1].tool_calls[0]",
    ),
    (
        "openai",
        "gemini",
        call_openai(type="custom", custom={"name": "f", "input": "x"}),
        "custom_call_rewritten messages[1].tool_calls[0]",
    ),
    (
        "openai",
        "gemini",
        {"tools": [{"type": "function", "function": {**FUNCTION, "x": 1}}]},
        "field_dropped tools[0].function.x",
    ),
    (
        "openai",
        "gemini",
        {"tools": [{"type": "function", "function": FUNCTION, "cache_control": CACHE}]},
        "cache_control_dropped tools[0].cache_control",
    ),
    (
        "openai",
        "gemini",
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": NO_FIELDS, "x": 1},
            }
        },
        "field_dropped response_format.json_schema.x",
    ),
    ("openai", "anthropic", {}, "max_tokens_added max_tokens"),
    (
        "responses",
        "gemini",
        {"input": [{"type": "message", **USER, "x": 1}]},
        "field_dropped input[0].x",
    ),
    (
        "responses",
        "gemini",
        part_of("responses", {"type": "input_text", "text": "Hi", "x": 1}),
        "field_dropped input[0].content[0].x",
    ),
    (
        "responses",
        "gemini",
        {
            "input": [
                USER,
                {"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "x"},
                {"type": "custom_tool_call_output", "call_id": "c", "output": "y"},
            ]
        },
        "custom_output_rewritten input[2]",
    ),
    (
        "responses",
        "gemini",
        {"tools": [{"type": "custom", "name": "p"}]},
        "custom_tool_rewritten tools[0]",
    ),
    (
        "responses",
        "gemini",
        {"tools": [{"type": "function", **FUNCTION, "defer_loading": True}]},
        "defer_loading_dropped tools[0].defer_loading",
    ),
    (
        "responses",
        "gemini",
        {
            "tools": [
                {
                    "type": "namespace",
                    "name": "n",
                    "description": "d",
                    "tools": [{"type": "function", **FUNCTION}],
                }
            ]
        },
        "namespace_joined tools[0]",
    ),
    (
        "responses",
        "anthropic",
        {
            "tools": [{"type": "web_search", "search_context_size": "low"}],
            "max_output_tokens": 9,
        },
        "tool_option_dropped tools[0].search_context_size",
    ),
    (
        "responses",
        "openai",
        {"tools": [{"type": "function", **FUNCTION}, {"type": "web_search"}]},
        "hosted_tool_dropped tools[1]",
    ),
    ("responses", "gemini", {"text": {"x": 1}}, "field_dropped text.x"),
    (
        "responses",
        "gemini",
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": NO_FIELDS, "x": 1}}},
        "field_dropped text.format.x",
    ),
    (
        "responses",
        "openai",
        {"reasoning": {"summary": "detailed"}},
        "summary_dropped reasoning.summary",
    ),
    (
        "anthropic",
        "openai",
        {"system": [{"type": "text", "text": "S", "cache_control": CACHE}]},
        "cache_control_dropped system[0].cache_control",
    ),
    ("anthropic", "openai", {"messages": [{**USER, "x": 1}]}, "field_dropped messages[0].x"),
    (
        "anthropic",
        "openai",
        part_of("anthropic", {"type": "text", "text": "Hi", "x": 1}),
        "field_dropped messages[0].content[0].x",
    ),
    (
        "anthropic",
        "openai",
        part_of(
            "anthropic",
            {
                "type": "document",
                "source": {"type": "content", "content": [{"type": "text", "text": "T"}]},
            },
        ),
        "document_joined messages[0].content[0].source",
    ),
    (
        "anthropic",
        "openai",
        {"tools": [{"name": "f", "input_schema": NO_FIELDS, "defer_loading": True}]},
        "defer_loading_dropped tools[0].defer_loading",
    ),
    (
        "anthropic",
        "openai",
        {"tools": [{"name": "f", "input_schema": NO_FIELDS, "x": 1}]},
        "field_dropped tools[0].x",
    ),
    ("anthropic", "openai", {"output_config": {"x": 1}}, "field_dropped output_config.x"),
    ("anthropic", "openai", {"thinking": {"type": "adaptive"}}, "thinking_adaptive thinking"),
    (
        "gemini",
        "openai",
        {"systemInstruction": {"parts": [{"text": "S", "x": 1}]}},
        "field_dropped systemInstruction.parts[0].x",
    ),
    (
        "gemini",
        "openai",
        {"contents": [{"role": "user", "parts": [{"text": "Hi"}], "x": 1}]},
        "field_dropped contents[0].x",
    ),
    (
        "gemini",
        "openai",
        part_of(
            "gemini",
            {"inlineData": {"mimeType": "image/png", "data": PNG, "displayName": "d"}},
        ),
        "displayName_dropped contents[0].parts[0].inlineData.displayName",
    ),
    (
        "gemini",
        "openai",
        {"tools": [{"functionDeclarations": [{"name": "f", "behavior": "NON_BLOCKING"}]}]},
        "behavior_dropped tools[0].functionDeclarations[0].behavior",
    ),
    ("gemini", "openai", {"toolConfig": {"x": 1}}, "field_dropped toolConfig.x"),
    (
        "gemini",
        "openai",
        {
            "generationConfig": {
                "responseMimeType": "application/json",
                "responseSchema": {"type": "ARRAY", "items": {"type": "STRING"}},
            }
        },
        "schema_in_words generationConfig.responseSchema",
    ),
    ("ollama", "gemini", {"messages": [{**USER, "x": 1}]}, "field_dropped messages[0].x"),
    (
        "ollama",
        "gemini",
        {"tools": [{"type": "function", "function": {**FUNCTION, "x": 1}}]},
        "field_dropped tools[0].function.x",
    ),
]
# Each entry has a part without which the answer would mean something else, and the path that the
# error names.
REJECTED: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "openai",
        "gemini",
        part_of("openai", {"type": "file", "file": {"file_id": "f"}}),
        "messages[0].content[0]",
    ),
    ("openai", "gemini", {"tools": [{"type": "x"}]}, "tools[0]"),
    (
        "responses",
        "gemini",
        part_of("responses", {"type": "input_file", "file_id": "f"}),
        "input[0].content[0]",
    ),
    (
        "anthropic",
        "openai",
        part_of("anthropic", {"type": "document", "source": {"type": "file", "file_id": "f"}}),
        "messages[0].content[0]",
    ),
    ("anthropic", "openai", {"tools": [{"type": "bash_20250124", "name": "b"}]}, "tools[0]"),
    ("gemini", "openai", part_of("gemini", {"x": 1}), "contents[0].parts[0]"),
    ("gemini", "openai", {"tools": [{"googleMaps": {}}]}, "tools[0].googleMaps"),
]
_REJECTED_CODES = {"content_dropped", "tool_dropped", "server_tool_dropped"}


async def test_each_part_that_is_dropped_or_rewritten_is_reported_with_its_path() -> None:
    missing = []
    async with bench() as gateway:
        for client, model, fields, warning in REPORTED:
            status, headers, body = await gateway.ask(client, model, fields)
            shown = headers.get("x-dragoman-warnings", "")
            if status != 200 or warning not in shown:
                missing.append((client, warning, status, shown, status != 200 and body))
    assert missing == []


async def test_each_part_that_changes_the_meaning_is_rejected_with_its_path() -> None:
    async with bench() as gateway:
        for client, model, fields, path in REJECTED:
            status, _, body = await gateway.ask(client, model, fields)
            assert (status, path in str(body)) == (400, True), (client, path, body)


def find_codes() -> set[str]:
    """Return the warning codes in the source code of the policy."""
    found: set[str] = set()
    for file in Path(str(policy.__file__)).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            at = {"leave": 2, "_warn": 0}.get(node.func.attr, len(node.args))
            code = node.args[at] if at < len(node.args) else None
            if isinstance(code, ast.Constant):
                found.add(str(code.value))
    return found


def test_every_warning_code_occurs_in_a_tested_header() -> None:
    shown = {warning.partition(" ")[0] for *_, warning in [*REPORTED, *SHAPES]}
    codes = find_codes()
    assert len(codes) > 15
    assert codes - shown == _REJECTED_CODES
