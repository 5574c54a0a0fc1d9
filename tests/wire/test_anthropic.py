"""The anthropic wire: losses of the cases, URLs and headers, and schemas."""

from typing import Any

import msgspec
import pytest

import dragoman as d
from dragoman.messages import AssistantBlock
from dragoman.wire import SERVER_CODECS
from dragoman.wire.anthropic import AnthropicCodec, Quirks
from dragoman.wire.anthropic.schema import fits_format, project_format
from dragoman.wire.anthropic.thinking import can_return
from dragoman.wire.codec import Notes
from dragoman.wire.headers import read_version
from dragoman.wire.policy.translate import Target, translate
from tests.rows import read_table
from tests.wire.cases import BASE_URL, MODEL, DecodedReply, decode, find_cases

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


def test_event_without_data_is_ignored() -> None:
    case = next(
        case for case in find_cases("anthropic", "reply.sse") if case.name == "call-stream"
    )
    whole = decode(case.codec(), case.request, [case.reply or b""])
    empty = decode(case.codec(), case.request, [b"event: x\ndata:\n\n" + (case.reply or b"")])
    assert empty.facts == whole.facts


# --- conformance cases -------------------------------------------------------------------------


LOSSES = dict(read_table("anthropic_losses"))


def test_exactly_the_losses_of_each_case_are_reported() -> None:
    for case in find_cases("anthropic", "wire.json"):
        warnings = case.codec(AnthropicCodec).encode(case.request).warnings
        found = [[warning.code, warning.path] for warning in warnings]
        assert found == LOSSES.get(case.name, []), case


# --- URLs and headers --------------------------------------------------------------------------


@pytest.mark.parametrize(("stream", "verb"), [(False, "rawPredict"), (True, "streamRawPredict")])
def test_model_name_is_in_the_url_on_vertex(stream: bool, verb: str) -> None:
    place = "https://host/v1/projects/p/locations/l/publishers/anthropic"
    model = "claude-sonnet-4-5@20250929"
    codec = AnthropicCodec.connect(model, place, {"raw_predict": True}, d.Capabilities())
    request = msgspec.structs.replace(HELLO, model=model, stream=stream)
    assert codec.encode(request).http.url == f"{place}/models/{model}:{verb}"
    assert "model" not in sent(request, codec)


def test_api_version_and_content_type_are_sent_as_headers() -> None:
    codec = connect()
    for request in (codec.encode(HELLO).http, next(codec.ready())):
        assert request.headers["anthropic-version"] == "2023-06-01"
        assert "x-api-key" not in request.headers
    assert codec.encode(HELLO).http.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("quirks", "version"), [({}, "2026-10-21"), ({"raw_predict": True}, "2023-06-01")]
)
def test_given_api_version_replaces_that_of_the_codec(
    quirks: dict[str, Any], version: str
) -> None:
    """Google Cloud reads the version from the body."""
    native = {"anthropic": {"headers": {"anthropic-version": "2026-10-21"}, "speed": "fast"}}
    request = msgspec.structs.replace(HELLO, native=native)
    codec = AnthropicCodec.connect("m", BASE_URL, quirks, d.Capabilities())
    assert codec.encode(request).http.headers["anthropic-version"] == version
    body = sent(request, codec)
    assert body["speed"] == "fast"
    assert "headers" not in body


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({}, {}),
        ({"anthropic-version": "2023-06-01"}, {}),
        ({"anthropic-version": "2026-10-21"}, {"anthropic-version": "2026-10-21"}),
        ({"anthropic-version": "a b"}, {}),
    ],
)
@pytest.mark.parametrize("target", ["anthropic", "openai"])
def test_server_passes_another_api_version_to_its_wire(
    given: dict[str, str], read: dict[str, str], target: str
) -> None:
    front = SERVER_CODECS["anthropic"]
    version = read_version(given, *front.version_header)
    assert version == read
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    asked = msgspec.structs.replace(front.decode(body), headers=version)
    made = translate(asked, front, Target("m", frozenset({target})))
    passed = made.request.native.get("anthropic", {})
    assert passed.get("headers", {}) == (read if target == "anthropic" else {})


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


# --- supported schemas -------------------------------------------------------------------------


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
        *read_table("schemas_that_the_api_supports_are_recognised"),
        ({"$ref": "#/$defs/d0", "$defs": {**ladder(60), "d60": {"type": "string"}}}, True),
    ],
)
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
        "additionalProperties": False,
        "properties": {"a": {"anyOf": [{"type": "null"}], "oneOf": [{"type": "null"}]}},
    }
    projected = project_format(schema, notes)["properties"]["a"]
    assert projected["anyOf"] == [{"type": "null"}]
    assert "oneOf" in projected["description"]
    assert [item.path for item in notes.items] == ["response_schema.properties.a.oneOf"]


# --- learning from rejected requests -----------------------------------------------------------

REFUSED_FORMAT = b'{"type":"error","error":{"type":"invalid_request_error","message":"output_config: Extra inputs are not permitted"}}'  # fmt: skip


ANSWER = b'{"content":[{"type":"text","text":"{\\"name\\":\\"Ada\\"}"}],"stop_reason":"end_turn"}'


def test_learning_from_a_rejection_keeps_all_other_settings() -> None:
    codec = AnthropicCodec(
        MODEL,
        BASE_URL,
        Quirks(parallel_tools=False),
        max_output_tokens=9,
        vendor="v",
        keep_raw=False,
    )
    error = codec.error(400, {}, REFUSED_FORMAT)
    learned = codec.learn(error, msgspec.structs.replace(HELLO, response_schema=PERSON))
    assert learned is not None
    assert learned.quirks == Quirks(structured="tool", parallel_tools=False)
    bare = msgspec.structs.replace(HELLO, config=d.RuntimeConfig())
    assert sent(bare, learned)["max_tokens"] == 9
    assert learned.issuer_vendor == "v"
    assert hear(ANSWER, codec=learned).response.raw is None  # type: ignore[union-attr]


def test_second_structured_answer_is_reported() -> None:
    schema = {"type": "object", "title": "Answer", "properties": {"a": {"type": "integer"}}}
    request = d.Request([d.User("Hi")], response_schema=schema)
    codec = AnthropicCodec("m", "http://x/v1", Quirks(structured="tool"), max_output_tokens=9)
    name = msgspec.json.decode(codec.encode(request).http.body)["tools"][0]["name"]
    uses = [
        {"type": "tool_use", "id": f"t{at}", "name": name, "input": {"a": at}} for at in (1, 2)
    ]
    body = {"type": "message", "content": uses, "stop_reason": "tool_use"}
    heard = decode(codec, request, [msgspec.json.encode(body)])
    ending = heard.events[-1]
    assert isinstance(ending, d.MessageComplete)
    assert ending.parsed == {"a": 2}
    assert [each.code for each in ending.warnings] == ["answers_dropped"]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (d.RedactedThinking("x"), True),
        (d.RedactedThinking("x", d.Continuity(issuer=d.Issuer("gemini"))), False),
        (d.Thinking("x"), False),
        (d.Thinking("x", d.Continuity("s", issuer=d.Issuer("anthropic"))), True),
        (d.Text("x"), False),
    ],
)
def test_thinking_returns_only_to_a_server_that_accepts_it(
    block: AssistantBlock, expected: bool
) -> None:
    assert can_return(block, d.Issuer("anthropic")) is expected


def test_budget_of_a_model_without_a_known_style_may_not_be_negative() -> None:
    config = d.RuntimeConfig(max_tokens=64, reasoning=-1)
    with pytest.raises(d.InvalidRequestError, match="cannot be negative"):
        connect().encode(d.Request((d.User("Hi"),), config=config, model=MODEL))
