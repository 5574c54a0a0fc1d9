"""Test tools, instructions, schemas and stop sequences that wires write in different ways."""

import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.events import MessageComplete, TextDelta
from dragoman.gateway.app import create_app
from dragoman.gateway.stop_sequences import StopCutter
from dragoman.messages import Text, User
from dragoman.provider import connect
from dragoman.sim import Answer, Call, ScriptedProvider
from dragoman.wire import SERVER_CODECS
from dragoman.wire.policy import Target, translate

from ..server import Connection, serve
from .serving import serving
from .translations import MOVED, NO_FIELDS
from .upstream import WIRES, bench, write_reply


async def test_tools_of_a_namespace_are_called_by_their_own_names() -> None:
    search = {"type": "function", "name": "search", "parameters": NO_FIELDS}
    inner = [
        {**search, "description": "Search."},
        {"type": "custom", "name": "query", "description": "Ask."},
    ]
    docs = {"type": "namespace", "name": "mcp__docs__", "description": "The documents."}
    tools = [search, {**docs, "tools": inner}]
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
    tools = [{"type": "namespace", "name": "n", "tools": [inner]}]
    asked = SERVER_CODECS["responses"].decode({"model": "m", "input": "Hi", "tools": tools})
    assert asked.request.tools == ()
    assert [(each.code, each.path) for each in asked.left] == [
        ("namespace_joined", "tools[0]"),
        ("hosted_tool_dropped", "tools[0].tools[0]"),
    ]


EXEC = {"type": "custom", "name": "exec", "description": "Run JavaScript."}
WAIT = {"type": "function", "name": "wait", "parameters": NO_FIELDS}
FUNCTIONS = {"type": "namespace", "name": "functions", "tools": [EXEC, WAIT]}
LITE = {"type": "additional_tools", "role": "developer", "tools": [FUNCTIONS]}
ASK = {"type": "message", "role": "user", "content": "Hi"}
CODEX = {"input": [LITE, ASK], "tool_choice": "auto", "parallel_tool_calls": False}


@pytest.mark.parametrize("wire", WIRES)
async def test_tools_in_an_input_item_reach_a_model_of_every_wire(wire: str) -> None:
    """Codex 0.144 and later sends the tools for ``gpt-5.6-*`` and ``gpt-6-*`` so
    (openai/codex#27946; theopenco/llmgateway#3613; run with Codex 0.169.0 on 2026-11-18).
    """
    async with bench() as gateway:
        for tools in ({}, {"tools": [WAIT]}):
            status, headers, _ = await gateway.ask("responses", wire, {**CODEX, **tools})
            sent = gateway.seen[0]
            shown = headers.get("x-dragoman-warnings", "")
            assert status == 200
            assert "opaque" not in shown
            assert "opening" not in shown
            names = [*find_names(sent)]
            assert {"functions__exec", "functions__wait"} <= {*names}
            assert ("wait" in names) == bool(tools)
            if wire == "responses":
                assert {tool["type"] for tool in sent["tools"]} == {"function"}
                assert sent["parallel_tool_calls"] is False
                assert sent["tool_choice"] == "auto"
            else:
                assert "additional_tools_joined input[0]" in shown


def find_names(value: Any) -> Iterator[str]:
    """Yield every name in a request body."""
    for name, each in value.items() if isinstance(value, dict) else enumerate(value):
        if name == "name":
            yield each
        elif isinstance(each, dict | list):
            yield from find_names(each)


async def test_input_item_with_tools_is_sent_to_a_server_that_has_it_until_it_refuses() -> None:
    """A server that does not know the item answers 400 once; then the tools are sent apart."""
    known = [True]
    seen: list[Any] = []

    async def handler(connection: Connection) -> None:
        body = connection.seen.json
        seen.append(body)
        if not known[0] and body["input"][0]["type"] == "additional_tools":
            message = "Unknown item type: additional_tools"
            connection.reply(400, json.dumps({"error": {"message": message}}).encode())
            return
        connection.reply(200, write_reply("responses", "Hello"))

    async with serve(handler) as upstream:
        quirks = {"additional_tools": True, "tool_kinds": "all"}
        model = connect("m", wire="responses", base_url=upstream.url, quirks=quirks)
        app = create_app({"m": model})
        async with serving(app) as url, aiohttp.ClientSession(url) as http:
            for takes_item in (True, False, False):
                known[0] = takes_item
                body = {"model": "m", **CODEX}
                async with http.post("/v1/responses", json=body) as reply:
                    assert reply.status == 200
                    assert "x-dragoman-warnings" not in reply.headers
    assert [(each["input"], each.get("tools")) for each in seen] == [
        ([LITE, ASK], None),
        ([LITE, ASK], None),
        ([ASK], [FUNCTIONS]),
        ([ASK], [FUNCTIONS]),
    ]
    assert [each["parallel_tool_calls"] for each in seen] == [False] * 4


async def test_tool_that_is_offered_twice_is_read_once() -> None:
    asked = SERVER_CODECS["responses"].decode(
        {"model": "m", "tools": [WAIT], "input": [LITE, ASK, LITE, {**LITE, "tools": [WAIT]}]}
    )
    names = [tool.name for tool in asked.request.tools]
    assert names == ["wait", "functions__exec", "functions__wait"]
    assert [*asked.request.messages] == [User("Hi")]


async def test_instructions_are_not_sent_twice_to_a_model_of_the_clients_wire() -> None:
    async with bench() as gateway:
        for model in ("anthropic", "openai"):
            await gateway.ask("anthropic", model, {"messages": MOVED, "system": "First."})
            sent = json.dumps(gateway.seen[0])
            assert sent.count("First.") == 1
            assert sent.count("Be brief.") == 1
        await gateway.ask("anthropic", "anthropic", {"messages": MOVED})
        assert "system" not in gateway.seen[0]


async def test_gemini_route_accepts_snake_case_url_safe_base64_and_single_objects() -> None:
    picture = {"inline_data": {"mime_type": "image/png", "data": "-_-_iA"}}
    schema = {"type": "object", "properties": {"a_b": {"type": "string"}}}
    snake = {
        "system_instruction": {"parts": {"text": "S"}},
        "contents": {"parts": [{"text": "Hi"}, picture]},
        "generation_config": {"top_k": 3, "response_mime_type": "application/json"},
        "tools": [{"function_declarations": [{"name": "f", "parameters_json_schema": schema}]}],
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
        assert status == 200, said
        assert "schema_in_words" in headers["x-dragoman-warnings"], said
        assert '"enum"' in gateway.seen[0]["messages"][0]["content"]
        await gateway.ask("gemini", "gemini", words)
        assert gateway.seen[0]["generationConfig"] == words["generationConfig"]


async def test_stop_sequences_are_emulated_where_the_wire_has_none() -> None:
    async with bench("one two STOP three") as gateway:
        _, _, said = await gateway.ask("openai", "responses", {"stop": ["STOP", "never"]})
        assert said["choices"][0]["message"]["content"] == "one two "
        assert said["choices"][0]["finish_reason"] == "stop"
        assert "stop" not in str(sorted(gateway.seen[0]))
        _, _, said = await gateway.ask("anthropic", "responses", {"stop_sequences": ["two"]})
        assert said["content"][0]["text"] == "one "
        assert said["stop_reason"] == "stop_sequence"
        assert said["stop_sequence"] == "two"
        _, _, said = await gateway.ask("openai", "responses", {"stop": "absent"})
        assert said["choices"][0]["message"]["content"] == "one two STOP three"


def pieces_of(text: str, size: int) -> list[Any]:
    return [
        TextDelta("m", "r", content_block_index=0, text=text[at : at + size])
        for at in range(0, len(text), size)
    ]


def cut(text: str, size: int, stops: list[str]) -> tuple[str, str | None]:
    """Return the text that is forwarded in pieces of a size, and the stop sequence."""
    cutter = StopCutter(stops)
    passed = cutter.feed(pieces_of(text, size))
    passed += cutter.feed([MessageComplete("m", "r", finish_reason="stop")])
    texts = [event.text for event in passed if isinstance(event, TextDelta)]
    return "".join(texts), cutter.found


@pytest.mark.parametrize("stops", [["END", "ENDING"], ["ENDING", "END"], ["ND", "END"]])
def test_stop_sequence_that_ends_first_is_found_and_the_longest_of_two(stops: list[str]) -> None:
    assert cut("the ENDING", 50, stops) == ("the ", "END")


@given(
    text=st.text("abc", max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    size=st.integers(2, 12),
)
def test_stop_sequences_do_not_depend_on_the_boundaries_of_chunks(
    text: str, stops: list[str], size: int
) -> None:
    assert cut(text, size, stops) == cut(text, 1, stops)


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_stop_sequence_is_found_across_chunk_boundaries(size: int) -> None:
    cutter = StopCutter(["STOP", "ST!"])
    passed = cutter.feed(pieces_of("a STEP, a STSTOP, more", size))
    assert (
        "".join([event.text for event in passed if isinstance(event, TextDelta)]) == "a STEP, a ST"
    )
    complete = MessageComplete(
        "m", "r", finish_reason="cancelled", final_content=(Text("a STEP, a STSTOP, more"),)
    )
    closed = cutter.close(complete)
    assert closed.final_content == (Text("a STEP, a ST"),)
    assert closed.stop_sequence == "STOP"
    assert closed.finish_reason == "stop"
    kept = StopCutter(["STOP"])
    events = [*pieces_of("ends with ST", size), complete]
    assert (
        "".join([event.text for event in kept.feed(events) if isinstance(event, TextDelta)])
        == "ends with ST"
    )


def test_marks_for_the_prompt_cache_are_not_sent_to_another_wire() -> None:
    codec = SERVER_CODECS["anthropic"]
    block = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [block]}]}
    asked = codec.decode(body)
    assert asked.request.config.cache is not None
    made = translate(asked, codec, Target("m", frozenset({"bedrock"})))
    assert made.request.messages == (User("Hi"),)
    assert made.request.config.cache is None
    assert [warning.code for warning in made.warnings] == ["cache_control_dropped"]


# Gemini 3 runs its own tools next to functions at Google's address only: ag2ai/ag2#3145 (live
# 2026-08), strands-agents/harness-sdk#3646 (Vertex AI); seen 2026-11-18.
@pytest.mark.parametrize(
    ("model", "vendor", "searches"),
    [
        ("gemini-3.8-flash", "google", True),
        ("gemini-3.8-flash", None, False),
        ("gemini-2.5-flash", "google", False),
    ],
)
async def test_search_next_to_functions_reaches_models_that_accept_both(
    model: str, vendor: str | None, searches: bool
) -> None:
    seen: list[dict[str, Any]] = []

    async def handle(connection: Connection) -> None:
        seen.append(connection.seen.json)
        connection.reply(200, write_reply("gemini", "Hi."))

    tools = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"name": "f", "description": "d", "input_schema": NO_FIELDS},
    ]
    body = {"model": "m", "max_tokens": 9, "messages": MOVED[:1], "tools": tools}
    async with (
        serve(handle) as upstream,
        connect(model, base_url=upstream.url, wire="gemini", vendor=vendor) as provider,
        serving(create_app({"m": provider})) as url,
        aiohttp.ClientSession() as client,
    ):
        async with client.post(f"{url}/v1/messages", json=body) as reply:
            answer = await reply.json()
        if not searches:
            assert reply.status == 400
            assert seen == []
            assert "tools[0]" in answer["error"]["message"]
            return
    assert [sorted(each) for each in seen[0]["tools"]] == [
        ["functionDeclarations"],
        ["googleSearch"],
    ]
    assert seen[0]["toolConfig"]["includeServerSideToolInvocations"] is True
