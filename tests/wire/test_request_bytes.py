"""A request that is decoded and encoded again equals the original, except for explained
differences.
"""

from typing import Any

import pytest
from bench.requests import PAGE, compare, normalise, reason_of, report, with_table

TOOL = {
    "type": "object",
    "properties": {"z": {"type": "string"}, "a": {"type": "string"}},
    "required": ["z"],
}
CLOSED = {**TOOL, "additionalProperties": False}
OWN: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": ("openai",
             {"model": "m",
              "messages": [{"role": "developer", "content": "Be terse."},
                           {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                           {"role": "assistant", "content": None,
                            "tool_calls": [{"id": "c" * 46, "type": "function",
                                            "function": {"name": "f",
                                                         "arguments": '{"z": "1"}'}}]},
                           {"role": "tool", "tool_call_id": "c" * 46, "content": "r"}],
              "tools": [{"type": "function",
                         "function": {"name": "f", "description": "d", "parameters": TOOL}}],
              "max_completion_tokens": 9, "stream": False}, ""),
    "messages": ("anthropic",
                 {"model": "m", "max_tokens": 9, "system": [{"type": "text", "text": "Be terse."}],
                  "messages": [{"role": "user", "content": "Hi"},
                               {"role": "assistant",
                                "content": [{"type": "tool_use", "id": "t1", "name": "f",
                                             "input": {"z": "1"}}]},
                               {"role": "user",
                                "content": [{"type": "tool_result", "tool_use_id": "t1",
                                             "content": "r"}]}],
                  "tools": [{"name": "f", "description": "d", "input_schema": TOOL}]}, ""),
    "contents": ("gemini",
                 {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
                  "systemInstruction": {"role": "user", "parts": [{"text": "Be terse."}]},
                  "tools": [{"functionDeclarations": [{"name": "f", "description": "d",
                                                       "parameters": TOOL}]}],
                  "generationConfig": {"temperature": 0.5}}, "/v1beta/models/m:generateContent"),
    "input": ("responses",
              {"model": "m",
               "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
               "instructions": "Be terse.",
               "tools": [{"type": "function", "name": "f", "description": "d", "parameters": TOOL,
                          "strict": False}], "store": False}, ""),
    "turns": (
        "bedrock",
        {
            "modelId": "m",
            "system": [{"text": "Be terse."}, {"cachePoint": {"type": "default", "ttl": "1h"}}],
            "messages": [
                {"role": "user",
                 "content": [
                     {"text": "Hi"}, {"audio": {"format": "wav", "source": {"bytes": "aGk="}}}]},
                {"role": "assistant",
                 "content": [{"toolUse": {
                                  "toolUseId": "t1", "name": "f", "input": {"z": "1"},
                                  "type": "tool_use"}}]},
                {"role": "user",
                 "content": [
                     {"toolResult": {
                          "toolUseId": "t1", "content": [{"text": "r"}], "status": "success"}},
                     {"cachePoint": {"type": "default", "ttl": "1h"}}]}],
            "toolConfig": {"tools": [
                               {"toolSpec": {
                                    "name": "f", "inputSchema": {"json": CLOSED}, "strict": True}},
                               {"systemTool": {"name": "nova_grounding"}}]},
            "inferenceConfig": {},
            "requestMetadata": {"a": "b"},
        },
        "/model/m/converse",
    ),
    "lines": ("ollama",
              {"model": "m", "messages": [{"role": "user", "content": "Hi"}],
               "options": {"temperature": 0.5}, "format": TOOL, "stream": False}, ""),
}  # fmt: skip


UNNAMED = {
    "type": "json_schema",
    "json_schema": {"name": "", "schema": {**TOOL, "required": ["z", "a"]}, "strict": True},
}


@pytest.mark.parametrize(("wire", "body", "path"), OWN.values(), ids=OWN)
def test_decoding_and_encoding_a_request_gives_the_same_json(
    wire: str, body: dict[str, Any], path: str
) -> None:
    assert compare(wire, body, path) == ("same", ())


def test_comparison_finds_a_changed_request() -> None:
    wire, body, path = OWN["messages"]
    changed = {
        **body,
        "metadata": {"user_id": "u"},
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    }
    assert compare(wire, changed, path) == ("reported", ("parallel_tool_calls_dropped",))
    assert compare("openai", {**OWN["chat"][1], "response_format": UNNAMED}).places == (
        "response_format.json_schema.name",
    )
    assert (
        compare("openai", {"model": "m", "messages": [{"role": "user", "content": 5}]}).verdict
        == "refused"
    )
    wire, body, path = OWN["turns"]
    point = {"cachePoint": {"type": "default"}}
    marked = {**body, "toolConfig": {"tools": [*body["toolConfig"]["tools"], point]}}
    assert compare(wire, marked, path) == ("reported", ("cache_point_dropped",))
    assert normalise("openai", {"n": 1, "messages": []}) == {"messages": []}


# For each wire: of the requests that our classes can represent, the minimum share that is encoded
# again without a difference, and the minimum number. The number is needed because representing
# fewer requests would raise the share.
LEAST = {
    "openai": (0.99, 3600),
    "anthropic": (0.98, 900),
    "gemini": (0.91, 725),
    "responses": (0.93, 1000),
    "ollama": (0.97, 75),
    "cohere": (0.90, 80),
    "bedrock": (0.94, 190),
}


@pytest.mark.recordings
def test_re_encoded_recorded_requests_differ_only_where_explained() -> None:
    found = report()
    assert set(found) == set(LEAST)
    for wire, share in found.items():
        least, number = LEAST[wire]
        assert share.same / share.expressed >= least, (wire, share.differing)
        assert share.same >= number, (wire, share.reported, share.refused)
        assert [place for place in share.differing if reason_of(place) is None] == [], wire
    assert PAGE.read_text() == with_table(PAGE.read_text(), found), (
        "run: python -m bench.requests --write"
    )
