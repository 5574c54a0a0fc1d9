"""The anthropic wire: conformance cases, properties, and recordings of real servers."""

import itertools
import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman as d
from dragoman.provider import HttpProvider
from dragoman.transport import FixtureTransport
from dragoman.validate import check_request
from dragoman.wire.anthropic import AnthropicCodec, Quirks
from dragoman.wire.anthropic.schema import fits_format, project_format
from dragoman.wire.codec import Notes
from tests import strategies as some
from tests.wire.cases import (
    BASE_URL,
    MODEL,
    Case,
    DecodedReply,
    decode,
    find_cases,
)

ISSUER = d.Issuer("anthropic", None, MODEL)
LIMIT = d.RuntimeConfig(max_tokens=64)
HELLO = d.Request((d.User("Hello?"),), config=LIMIT, model=MODEL, request_id="R")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "title": "Person",
}


def connect(
    quirks: Any = None, *, base_url: str = BASE_URL, **capabilities: Any
) -> AnthropicCodec:
    return AnthropicCodec.connect(MODEL, base_url, quirks, d.Capabilities.of(capabilities))


def sent(request: d.Request, codec: AnthropicCodec | None = None) -> Any:
    return msgspec.json.decode((codec or connect()).encode(request).http.body)


def hear(
    reply: bytes, request: d.Request = HELLO, codec: AnthropicCodec | None = None
) -> DecodedReply:
    return decode(codec or connect(), request, [reply])


def replied(heard: DecodedReply) -> d.Response:
    assert heard.error is None, heard.error
    assert heard.response is not None
    return heard.response


# --- conformance cases -------------------------------------------------------------------------


LOSSES = {
    "reasoning-effort-as-budget": [("reasoning_approximated", "config.reasoning")],
    "foreign-state": [
        ("thinking_dropped", "messages[1].content[0]"),
        ("thinking_dropped", "messages[1].content[1]"),
        ("thinking_dropped", "messages[1].content[2]"),
        ("thinking_dropped", "messages[1].content[3]"),
        ("redacted_thinking_dropped", "messages[1].content[7]"),
        ("continuity_dropped", "messages[1].content[8].continuity"),
        ("opaque_dropped", "messages[1].content[9]"),
        ("thinking_dropped", "messages[1].content[10]"),
        ("continuity_dropped", "messages[1].content[11].continuity"),
        ("continuity_dropped", "messages[1].content[12].continuity"),
    ],
    "foreign-vendor": [("thinking_dropped", "messages[1].content[0]")],
    "turn-ends-with-thinking": [("thinking_dropped", "messages[1].content[0]"),
                                ("message_dropped", "messages[1]")],
    "dangling-calls": [("dangling_call_dropped", "messages[1].content[1]"),
                       ("dangling_call_dropped", "messages[3].content[0]"),
                       ("message_dropped", "messages[3]")],
    "id-of-a-dangling-call-again": [("dangling_call_dropped", "messages[1].content[1]")],
    "late-result": [("order_lost", "messages[5]")],
    "quirk-result-media-omitted": [("image_omitted", "messages[2].content[1]")],
    "result-after-text": [("order_lost", "messages[3]")],
    "server-tool-round-trip": [("dangling_call_dropped", "messages[1].content[3]"),
                               ("opaque_dropped", "messages[1].content[4]"),
                               ("opaque_dropped", "messages[1].content[7]")],
    "media": [("detail_dropped", "messages[0].content[1].detail")],
    "tool-schema": [("schema_keyword_dropped", "tools[0].parameters.anyOf"),
                    ("schema_keyword_dropped", "tools[1].parameters.oneOf")],
    "structured-projected": [
        ("schema_keyword_dropped", "response_schema.$defs.Line.properties.count.exclusiveMinimum"),
        ("schema_keyword_dropped", "response_schema.$defs.Line.properties.count.maximum"),
        ("schema_keyword_dropped", "response_schema.$defs.Line.properties.sku.maxLength"),
        ("schema_keyword_dropped", "response_schema.properties.lines.maxItems"),
        ("schema_keyword_dropped", "response_schema.properties.tags.minItems"),
        ("schema_keyword_dropped", "response_schema.properties.id.format"),
        ("schema_keyword_rewritten", "response_schema.properties.pay.oneOf"),
    ],
    "structured-native": [("schema_keyword_dropped", "response_schema.properties.age.minimum")],
    "structured-with-effort": [("schema_keyword_dropped",
                                "response_schema.properties.age.minimum")],
    "structured-wrong": [("schema_keyword_dropped", "response_schema.properties.age.minimum")],
}  # fmt: skip


@pytest.mark.parametrize("case", find_cases("anthropic", "wire.json"), ids=str)
def test_exactly_the_losses_of_a_case_are_reported(case: Case) -> None:
    warnings = case.codec(AnthropicCodec).encode(case.request).warnings
    assert [(warning.code, warning.path) for warning in warnings] == LOSSES.get(case.name, [])


@pytest.mark.parametrize(
    ("name", "notes"),
    [
        (
            "illegal-ids",
            ["id_projected messages[1].content[0]", "id_projected messages[2].tool_call_id"],
        ),
        (
            "repeated-ids",
            ["id_projected messages[3].content[0]", "id_projected messages[4].tool_call_id"],
        ),
        ("choice-without-tools", ["tool_choice_omitted tool_choice"]),
    ],
)
def test_changes_without_loss_are_noted_without_a_warning(name: str, notes: list[str]) -> None:
    case = Case("anthropic", name)
    encoded = case.codec(AnthropicCodec).encode(case.request)
    assert [f"{note.code} {note.path}" for note in encoded.notes] == notes
    assert not encoded.warnings


def test_blank_text_blocks_are_omitted_without_a_warning() -> None:
    request = msgspec.structs.replace(
        HELLO, messages=(d.User("a"), d.Assistant([d.Text(" ")]), d.User("b"))
    )
    encoded = connect().encode(request)
    assert [(note.code, note.loss) for note in encoded.notes] == [
        ("blank_text_dropped", False),
        ("message_dropped", True),
    ]


def test_provider_state_on_a_user_message_is_reported() -> None:
    request = msgspec.structs.replace(HELLO, messages=(d.User([d.Text("a", d.Continuity("s"))]),))
    assert [warning.path for warning in connect().encode(request).warnings] == [
        "messages[0].content[0].continuity"
    ]


# --- replies that are sent back ----------------------------------------------------------------

names = st.sampled_from(["get_weather", "get_time"])
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
search = {"type": "server_tool_use", "id": "srv", "name": "web_search"}
blocks = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.builds(
        lambda text, cited: {"type": "text", "text": text, "citations": [cited]},
        texts,
        some.json_objects,
    ),
    st.builds(
        lambda text, sign: {"type": "thinking", "thinking": text, "signature": sign},
        st.just("") | texts,
        texts,
    ),
    st.builds(lambda data: {"type": "redacted_thinking", "data": data}, texts),
    st.builds(
        lambda name, given: {"type": "tool_use", "name": name, "input": given},
        names,
        some.json_objects,
    ),
    st.builds(lambda given: {**search, "input": given}, some.json_objects),
    st.builds(
        lambda inner: {"type": "web_search_tool_result", "tool_use_id": "srv", "content": inner},
        some.json_values,
    ),
)
ANY = {"type": "object"}
TOOLED = msgspec.structs.replace(
    HELLO, tools=(d.Tool("get_weather", "", ANY), d.Tool("get_time", "", ANY))
)


@given(st.lists(blocks, min_size=1, max_size=5))
def test_model_reply_is_sent_back_unchanged(content: list[dict[str, Any]]) -> None:
    content = [
        {**search, "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srv"},
        *content,
    ]
    content.append({"type": "text", "text": "So."})
    for number, block in enumerate(content):
        if block["type"] == "tool_use":
            block["id"] = f"toolu_{number}"
    reply = {"content": content, "stop_reason": "end_turn"}
    message = replied(hear(json.dumps(reply).encode(), TOOLED)).message
    results = [d.ToolResult(call.id, "done") for call in message.tool_calls]
    request = msgspec.structs.replace(
        TOOLED, messages=(d.User("a"), message, *results, d.User("b"))
    )
    encoded = connect().encode(request)
    assert not encoded.notes
    assert msgspec.json.decode(encoded.http.body)["messages"][1]["content"] == content


def test_lone_surrogate_and_empty_event_are_tolerated() -> None:
    """Models emit lone surrogates, which the fast JSON parser rejects, and proxies send empty
    events.
    """
    reply = Case("anthropic", "text-stream").reply or b""
    head, mark, rest = reply.partition(b'"type": "text_delta", "text": "')
    heard = hear(head.replace(b"\n\n", b"\n\ndata: \n\n", 1) + mark + b"\\ud800" + rest)
    assert replied(heard).text.startswith("\ufffd")


# --- validity of encoded requests --------------------------------------------------------------

ids = st.sampled_from(["call_0", "call_1", "functions.f:0", "x" * 65, "y" * 64])
issuers = st.sampled_from(
    [
        None,
        ISSUER,
        d.Issuer("anthropic"),
        d.Issuer("anthropic", None, "other"),
        d.Issuer("gemini", None, MODEL),
    ]
)
states = st.none() | st.builds(
    d.Continuity,
    st.none() | st.just("sig"),
    st.none()
    | st.just({"citations": [{"n": 1}]})
    | st.just({"caller": {"type": "p", "tool_id": "srv1"}}),
    issuers,
    st.booleans(),
)
server = st.sampled_from(["srv1", "srv2"])
spoken = st.one_of(
    st.builds(d.Text, st.sampled_from(["", " ", "Hello"]), states),
    st.builds(d.Thinking, st.sampled_from(["", "Hm"]), states),
    st.builds(d.RedactedThinking, st.just("xx"), states),
    st.builds(
        lambda name: d.Opaque(
            {"type": "server_tool_use", "id": name}, d.Continuity(issuer=ISSUER)
        ),
        server,
    ),
    st.builds(
        lambda name: d.Opaque(
            {"type": "x_tool_result", "tool_use_id": name}, d.Continuity(issuer=ISSUER)
        ),
        server,
    ),
)


@st.composite
def conversations(draw: Any) -> tuple[d.Message, ...]:
    """Generate valid conversations whose tool calls are answered at once, late, out of order or
    never.
    """
    messages: list[d.Message] = [d.User("Go.")]
    waiting: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        calls = draw(st.lists(ids, max_size=2, unique=True))
        made = [
            *draw(st.lists(spoken, max_size=2)),
            *[d.ToolCall(name, "f", {}, draw(states)) for name in calls],
        ]
        if any(block != d.Text("") for block in made):
            messages.append(d.Assistant(draw(st.permutations(made))))
            waiting += calls
        answers: list[d.Message] = [
            d.User(draw(st.sampled_from(["And?", [d.Text("a"), d.Document(d.Inline("aaaa"))]])))
        ]
        for name in draw(st.permutations(waiting)):
            if draw(st.booleans()):
                waiting.remove(name)
                content = draw(
                    st.sampled_from(
                        ["", "done", (d.Text("done"), d.Image(d.Inline("aaaa"), "image/png"))]
                    )
                )
                answers.append(d.ToolResult(name, content, draw(st.booleans())))
        messages += draw(st.permutations(answers))
    return (*messages, d.User("Well?"))


def assert_legal(turns: list[dict[str, Any]]) -> None:
    """Assert that messages follow the rules that the real server enforces."""
    assert [turn["role"] for turn in turns] == [
        role for role, _ in zip(itertools.cycle(["user", "assistant"]), turns)
    ]
    seen: set[str] = set()
    asked: list[str] = []
    for turn in turns:
        content = (
            [{"type": "text", "text": turn["content"]}]
            if isinstance(turn["content"], str)
            else turn["content"]
        )
        assert content
        kinds = [block["type"] for block in content]
        answered = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        assert sorted(answered) == sorted(asked)
        assert kinds[: len(answered)] == ["tool_result"] * len(answered)
        asked = [block["id"] for block in content if block["type"] == "tool_use"]
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in asked)
        assert len(set(asked)) == len(asked)
        assert not seen.intersection(asked)
        seen.update(asked)
        said = [block["text"] for block in content if block["type"] == "text"]
        assert all(said)
        assert not said or any(text.strip() for text in said)
        assert all(block["signature"] for block in content if block["type"] == "thinking")
        assert turn["role"] == "user" or kinds[-1] not in ("thinking", "redacted_thinking")
    assert not asked


@given(conversations())
def test_any_conversation_is_encoded_as_a_valid_request(messages: tuple[d.Message, ...]) -> None:
    request = msgspec.structs.replace(HELLO, messages=messages)
    check_request(request)
    encoded = connect().encode(request)
    body = msgspec.json.decode(encoded.http.body)
    assert_legal(body["messages"])
    blocks = [
        block
        for turn in body["messages"]
        if isinstance(turn["content"], list)
        for block in turn["content"]
    ]
    results = sum(block["type"] == "tool_result" for block in blocks)
    assert results == sum(type(message) is d.ToolResult for message in messages), (
        "no result is lost"
    )
    used = {block["id"] for block in blocks if block["type"] == "server_tool_use"}
    assert {block["tool_use_id"] for block in blocks if block["type"] == "x_tool_result"} <= {
        message.data["id"]
        for turn in messages
        if type(turn) is d.Assistant
        for message in turn.content
        if type(message) is d.Opaque and "id" in message.data
    }
    assert used <= {"srv1", "srv2"}


@given(conversations())
def test_encoding_is_deterministic_and_later_turns_only_append_bytes(
    messages: tuple[d.Message, ...],
) -> None:
    request = msgspec.structs.replace(HELLO, messages=messages)
    body = connect().encode(request).http.body
    again = msgspec.convert(msgspec.to_builtins(request), d.Request)
    assert connect().encode(again).http.body == body
    longer = msgspec.structs.replace(
        request, messages=(*messages, d.Assistant("Yes."), d.User("Good."))
    )
    assert connect().encode(longer).http.body.startswith(body.removesuffix(b"]}"))


# --- URLs and headers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("https://host", "https://host/v1/messages"),
        ("https://host/", "https://host/v1/messages"),
        ("https://host/v1", "https://host/v1/messages"),
        ("https://host/v1/", "https://host/v1/messages"),
        ("https://proxy/anthropic", "https://proxy/anthropic/v1/messages"),
        ("https://proxy/anthropic/v1", "https://proxy/anthropic/v1/messages"),
        ("http://127.0.0.1:8080/v1?tenant=a", "http://127.0.0.1:8080/v1/messages?tenant=a"),
    ],
)
def test_api_version_occurs_only_once_in_the_url(base_url: str, url: str) -> None:
    codec = connect(base_url=base_url)
    assert codec.encode(HELLO).http.url == url
    assert next(codec.ready()).url == url.replace("/messages", f"/models/{MODEL}")


@pytest.mark.parametrize(("stream", "verb"), [(False, "rawPredict"), (True, "streamRawPredict")])
def test_model_name_is_in_the_url_on_vertex(stream: bool, verb: str) -> None:
    place = "https://host/v1/projects/p/locations/l/publishers/anthropic"
    model = "claude-sonnet-4-5@20250929"
    codec = AnthropicCodec.connect(model, place, {"raw_predict": True}, d.Capabilities())
    request = msgspec.structs.replace(HELLO, model=model, stream=stream)
    assert codec.encode(request).http.url == f"{place}/models/{model}:{verb}"
    assert "model" not in sent(request, codec)


@pytest.mark.parametrize("fields", [{}, {"tools": (d.Tool("f"),), "tool_choice": "none"}])
def test_setting_for_parallel_tool_calls_is_omitted_without_tools(fields: dict[str, Any]) -> None:
    body = sent(msgspec.structs.replace(HELLO, **fields), connect({"parallel_tools": False}))
    assert "disable_parallel_tool_use" not in body.get("tool_choice", {})


def test_api_version_content_type_and_key_are_sent_as_headers() -> None:
    codec = connect()
    for request in (codec.encode(HELLO).http, next(codec.ready())):
        assert request.headers["anthropic-version"] == "2023-06-01"
        assert "x-api-key" not in request.headers
    assert codec.encode(HELLO).http.method == "POST"
    assert codec.encode(HELLO).http.headers["content-type"] == "application/json"
    assert codec.authorise("k") == {"x-api-key": "k"}


@pytest.mark.parametrize(
    ("capabilities", "structured"),
    [
        ({}, "native"),
        ({"supports_structured_output": True}, "native"),
        ({"supports_structured_output": False}, "tool"),
        ({"supports_structured_output": False, "supports_tools": False}, "prompt"),
    ],
)
def test_model_capabilities_decide_how_structured_output_is_requested(
    capabilities: dict[str, bool], structured: str
) -> None:
    assert connect(**capabilities).quirks.structured == structured


@pytest.mark.parametrize(
    ("reasoning", "quirks", "fields"),
    [
        (None, None, {}),
        ("none", None, {"thinking": {"type": "disabled"}}),
        (0, None, {"thinking": {"type": "disabled"}}),
        (2048, None, {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        ("low", {"effort": True}, {"output_config": {"effort": "low"}}),
        ("xhigh", {"effort": True}, {"output_config": {"effort": "xhigh"}}),
        (
            "high",
            {"effort": True, "adaptive": True},
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
        ),
    ],
)
def test_reasoning_settings_are_encoded(
    reasoning: Any, quirks: Any, fields: dict[str, Any]
) -> None:
    config = d.RuntimeConfig(max_tokens=64, reasoning=reasoning)
    body = sent(msgspec.structs.replace(HELLO, config=config), connect(quirks))
    assert {name: body[name] for name in ("thinking", "output_config") if name in body} == fields


@pytest.mark.parametrize("reasoning", [True, "max"])
def test_unknown_reasoning_effort_is_rejected(reasoning: Any) -> None:
    request = msgspec.structs.replace(
        HELLO, config=d.RuntimeConfig(max_tokens=1, reasoning=reasoning)
    )
    with pytest.raises(d.UnsupportedFeatureError, match=r"config\.reasoning"):
        sent(request, connect({"effort": True}))


@pytest.mark.parametrize(
    ("extras", "path"),
    [
        ({}, "tool"),
        ({"thinking": {"type": "adaptive"}}, "prompt"),
        ({"thinking": {"type": "disabled"}}, "tool"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "prompt"),
    ],
)
def test_tool_is_forced_for_structured_output_only_if_allowed(
    extras: dict[str, Any], path: str
) -> None:
    config = d.RuntimeConfig(max_tokens=64, extras=extras)
    request = msgspec.structs.replace(HELLO, config=config, response_schema=PERSON)
    encoded = connect({"structured": "tool"}).encode(request)
    assert encoded.structured_path == path
    assert ("tool_choice" in msgspec.json.decode(encoded.http.body)) == (path == "tool")


# --- opaque state and call ids of other issuers ------------------------------------------------


def test_tool_calls_with_unreadable_arguments_are_omitted_with_their_results() -> None:
    messages = (
        d.User("a"),
        d.Assistant([d.Text("b"), d.ToolCall("t", "f", None)]),
        d.ToolResult("t", "x"),
        d.User("c"),
    )
    encoded = connect().encode(msgspec.structs.replace(HELLO, messages=messages))
    turns = msgspec.json.decode(encoded.http.body)["messages"]
    assert turns[1:] == [
        {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]
    codes = [warning.code for warning in encoded.warnings]
    assert codes == ["dangling_call_dropped", "orphan_result_dropped"]


# --- supported schemas -------------------------------------------------------------------------

TREE = {
    "$ref": "#/$defs/Node",
    "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
}
PAIR = {"type": "object", "properties": {"a": {"$ref": "#/$defs/X"}, "b": {"$ref": "#/$defs/X"}}}
IN_ALL = {
    "type": "object",
    "properties": {"a": {"allOf": [{"$ref": "#/$defs/X"}]}},
    "$defs": {"X": {"type": "null"}},
}


def ladder(steps: int) -> dict[str, Any]:
    """Return schema definitions, each of which refers twice to the next, so that a naive traversal
    takes 2 ** ``steps`` steps.
    """
    return {
        f"d{step}": {
            "type": "object",
            "properties": {side: {"$ref": f"#/$defs/d{step + 1}"} for side in "ab"},
        }
        for step in range(steps)
    }


@pytest.mark.parametrize(
    ("schema", "fits"),
    [
        (PERSON, True),
        ({"type": "object", "properties": {}, "additionalProperties": False}, True),
        ({"type": "object"}, False),
        ({"type": ["object", "null"]}, False),
        ({"type": "object", "additionalProperties": {"type": "string"}}, False),
        ({**PERSON, "additionalProperties": True}, False),
        ({**PERSON, "patternProperties": {"^x": {"type": "string"}}}, False),
        ({"type": "object", "properties": {"a": {}}}, False),
        ({"type": "object", "properties": {"a": True}}, False),
        ({"type": "object", "properties": {"a": {"enum": [1, "x", None]}}}, True),
        ({"type": "object", "properties": {"a": {"enum": [{"b": 1}]}}}, False),
        ({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object"}}}},
         False),
        ({"type": "object",
          "properties": {"a": {"anyOf": [{"type": "null"}, {"type": "object"}]}}}, False),
        (IN_ALL, False),
        (TREE, False),
        ({**PAIR, "$defs": {"X": {"type": "string"}}}, True),
        ({**PAIR, "definitions": {"X": {"type": "string"}}}, False),
        ({"type": "object",
          "properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "null"}}}, False),
        ({"type": "object", "properties": {"a": {"$ref": "https://example.org/s"}}}, False),
        ({"$ref": "#/$defs/d0", "$defs": {**ladder(60), "d60": {"type": "string"}}}, True),
    ],
)  # fmt: skip
def test_schemas_that_the_api_supports_are_recognised(schema: dict[str, Any], fits: bool) -> None:
    assert fits_format(schema) is fits


def test_unused_schema_definitions_are_accepted() -> None:
    schema = {**PERSON, "$defs": {"Any": True}}
    assert fits_format(schema)
    assert project_format(schema, Notes())["$defs"] == {"Any": True}


def test_schema_with_any_of_and_one_of_keeps_only_any_of() -> None:
    notes = Notes()
    schema = {
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "null"}], "oneOf": [{"type": "null"}]}},
    }
    projected = project_format(schema, notes)["properties"]["a"]
    assert projected["anyOf"] == [{"type": "null"}]
    assert "oneOf" in projected["description"]
    assert [item.path for item in notes.items] == ["response_schema.properties.a.oneOf"]


# --- learning from rejected requests -----------------------------------------------------------

REFUSED_FORMAT = b'{"type":"error","error":{"type":"invalid_request_error","message":"output_config: Extra inputs are not permitted"}}'  # fmt: skip
REFUSED_TOOL = b'{"type":"error","error":{"type":"invalid_request_error","message":"tool_choice: forced tool use is not supported"}}'  # fmt: skip
ANSWER = b'{"content":[{"type":"text","text":"{\\"name\\":\\"Ada\\"}"}],"stop_reason":"end_turn"}'


def provider(
    *replies: tuple[int, bytes], codec: AnthropicCodec | None = None
) -> tuple[HttpProvider, FixtureTransport]:
    transport = FixtureTransport(*[(status, {}, [body]) for status, body in replies])
    return (
        HttpProvider(codec or connect(), transport, name="test", model=MODEL, api_key="k"),
        transport,
    )


async def test_rejected_structured_output_methods_are_not_tried_again() -> None:
    model, transport = provider(
        (400, REFUSED_FORMAT), (400, REFUSED_TOOL), (200, ANSWER), (200, ANSWER)
    )
    for _ in range(2):
        reply = await model.complete("Who?", config=LIMIT, response_schema=PERSON)
        assert reply.parsed == {"name": "Ada"}
        assert reply.structured_path == "prompt"
    bodies = [msgspec.json.decode(request.body) for request in transport.requests]
    assert ["output_config" in body for body in bodies] == [True, False, False, False]
    assert ["tool_choice" in body for body in bodies] == [False, True, False, False]
    assert ["system" in body for body in bodies] == [False, False, True, True]


async def test_rejected_output_format_with_tools_is_replaced_by_a_prompt() -> None:
    model, transport = provider((400, REFUSED_FORMAT), (200, ANSWER))
    reply = await model.complete("Who?", [d.Tool("f", "", ANY)], LIMIT, PERSON)
    assert reply.structured_path == "prompt"
    assert len(transport.requests) == 2


@pytest.mark.parametrize(
    ("status", "body", "schema"),
    [(400, REFUSED_FORMAT, None), (429, REFUSED_FORMAT, PERSON), (400, REFUSED_TOOL, PERSON)],
)
async def test_request_is_not_sent_again_after_unrelated_errors(
    status: int, body: bytes, schema: Any
) -> None:
    model, transport = provider((status, body), (200, ANSWER))
    with pytest.raises(d.ProviderError):
        await model.complete("Who?", config=LIMIT, response_schema=schema)
    assert len(transport.requests) == 1


def test_learning_from_a_rejection_keeps_all_other_settings() -> None:
    codec = AnthropicCodec(
        MODEL, BASE_URL, Quirks(effort=True), max_output_tokens=9, vendor="v", keep_raw=False
    )
    error = codec.error(400, {}, REFUSED_FORMAT)
    learned = codec.learn(error, msgspec.structs.replace(HELLO, response_schema=PERSON))
    assert learned is not None
    assert learned.quirks == Quirks(structured="tool", effort=True)
    bare = msgspec.structs.replace(HELLO, config=d.RuntimeConfig())
    assert sent(bare, learned)["max_tokens"] == 9
    assert learned.issuer_vendor == "v"
    assert hear(ANSWER, codec=learned).response.raw is None  # type: ignore[union-attr]


def test_event_field_of_the_wrong_type_is_an_invalid_response() -> None:
    data = (
        b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 0, "delta": '
        b"5}\n\n"
    )
    heard = hear(data, msgspec.structs.replace(HELLO, stream=True))
    assert isinstance(heard.error, d.InvalidResponseError)
