"""The gemini wire: forms of a reply, replies that are sent back, URLs, and schemas."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman as d
from dragoman.wire import CODECS
from dragoman.wire.codec import Codec, Notes
from dragoman.wire.gemini import GeminiCodec
from dragoman.wire.gemini.arguments import StreamedArguments
from dragoman.wire.gemini.schema import project_schema
from tests import strategies as some
from tests.rows import read_table
from tests.wire.cases import Case, DecodedReply, decode, find_cases
from tests.wire.readings import joined

MODEL = "gemini-3-flash"
PLACEHOLDER = ', "thoughtSignature": "skip_thought_signature_validator"'
BASE = "https://models.example"
CODEC = GeminiCodec(MODEL, BASE)
HELLO = d.Request((d.User("Hello"),), model=MODEL)
STREAM = d.Request((d.User("Hello"),), model=MODEL, stream=True)

STREAMED = find_cases("gemini", "reply.sse")


def hear(case: Case, reply: bytes | None = None) -> DecodedReply:
    return decode(
        case.codec(GeminiCodec), case.request, [(case.reply or b"") if reply is None else reply]
    )


def listen(body: Any, request: d.Request = HELLO, codec: Codec = CODEC) -> DecodedReply:
    return decode(codec, request, [body if isinstance(body, bytes) else json.dumps(body).encode()])


def reply_of(*parts: Any, finish: Any = "STOP", **more: Any) -> dict[str, Any]:
    return {
        "candidates": [
            {"content": {"parts": list(parts), "role": "model"}, "finishReason": finish}
        ],
        **more,
    }


def sent(messages: Sequence[d.Message], codec: GeminiCodec = CODEC, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(
        codec.encode(d.Request(messages, model=codec.model, **more)).http.body
    )
    return body


# Cases about what occurs in a stream only: an error after text, several token counts, an end that
# is missing, and an event that is a list.
STREAMS_ONLY = """
    error-after-text arguments-interrupted blocked-after-text blocked-after-text-by-number
    usage-on-every-chunk array-in-an-event
"""


def test_json_body_json_array_and_stream_give_the_same_reply() -> None:
    for case in STREAMED:
        whole = hear(case).facts
        lines = (case.reply or b"").decode().splitlines()
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        chunks += [
            each for line in lines if line.startswith("data: [{") for each in json.loads(line[6:])
        ]
        assert hear(case, json.dumps(chunks, indent=2).encode()).facts == whole, case
        if case.name not in STREAMS_ONLY.split():
            assert hear(case, json.dumps(merge(chunks)).encode()).facts == whole, case
        # Compatible servers end a stream with a marker.
        marked = (case.reply or b"") + b"data: [DONE]\n\ndata:\n\n"
        assert hear(case, b"\xef\xbb\xbf" + marked).facts == whole, case


def merge(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the chunks of a stream into one unstreamed body."""
    whole: dict[str, Any] = {}
    for chunk in chunks:
        whole |= {key: value for key, value in chunk.items() if key != "candidates"}
        for candidate in chunk.get("candidates", ()):
            mine = whole.setdefault("candidates", [{"content": {"parts": []}}])[0]
            mine["content"]["parts"] += candidate.get("content", {}).get("parts", [])
            if mine.get("finishReason") in (None, "STOP") and "finishReason" in candidate:
                mine["finishReason"] = candidate["finishReason"]
    return whole


def test_complete_chunks_of_a_truncated_json_array_are_read() -> None:
    words = ["one ", "två ", "three"]
    chunks = [
        json.dumps(reply_of({"text": word}, finish=None), indent=1, ensure_ascii=False).encode()
        for word in words
    ]
    body = b"[" + b"\n,\r\n".join(chunks) + b"\n]"
    ends = [body.index(chunk) + len(chunk) for chunk in chunks]
    for cut in range(1, len(body) + 1, 3):
        heard = listen(body[:cut], STREAM)
        assert isinstance(heard.error, d.StreamInterruptedError)
        said = "".join([word for word, end in zip(words, ends, strict=True) if end <= cut])
        assert (heard.response.text if heard.response else "") == said


# --- replies that are sent back unchanged ------------------------------------------------------


def as_parts(heard: DecodedReply, codec: GeminiCodec = CODEC) -> list[Any]:
    """Encode a decoded reply as a message of the next request; return the parts of the message."""
    message = heard.response.message if heard.response else d.Assistant()
    results = [
        d.ToolResult(call.id, "done") for call in message.tool_calls if call.arguments is not None
    ]
    contents = sent([d.User("Hello"), message, *results, d.User("And?")], codec)["contents"]
    return list(contents[1]["parts"]) if contents[1]["role"] == "model" else []


def test_replies_are_sent_back_unchanged() -> None:
    for case in STREAMED:
        if case.name.startswith("arguments-") or case.name == "array-in-an-event":
            continue  # these arrive in pieces or in lists but are sent back in one piece
        candidates = [
            item
            for line in (case.reply or b"").decode().splitlines()
            if line.startswith("data: {")
            for item in json.loads(line[6:]).get("candidates", ())
        ]
        parts = [part for item in candidates for part in item.get("content", {}).get("parts", ())]
        # calls that arrive without a signature get the placeholder
        back = json.loads(json.dumps(as_parts(hear(case))).replace(PLACEHOLDER, ""))
        assert joined(back) == joined(parts), case


# --- encoding requests -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base_url", "model", "stream", "url"), read_table("url_contains_the_model_and_the_method")
)
def test_url_contains_the_model_and_the_method(
    base_url: str, model: str, stream: bool, url: str
) -> None:
    encoded = GeminiCodec(model, base_url).encode(d.Request([d.User("Hello")], stream=stream))
    assert encoded.http.url == url
    assert b"model" not in encoded.http.body
    assert encoded.http.method == "POST"
    assert encoded.http.headers["content-type"] == "application/json"


@pytest.mark.parametrize("base_url", [f"{BASE}?key=secret", f"{BASE}/v1beta?access_token=secret"])
def test_base_url_with_a_key_is_rejected_without_repeating_it(base_url: str) -> None:
    with pytest.raises(ValueError, match="base_url") as caught:
        GeminiCodec(MODEL, base_url)
    assert "secret" not in str(caught.value)


# --- schemas reduced for older servers ---------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "projected", "lost"), read_table("schema_is_reduced_to_the_supported_subset")
)
def test_schema_is_reduced_to_the_supported_subset(
    schema: dict[str, Any], projected: dict[str, Any], lost: list[str]
) -> None:
    notes = Notes()
    assert project_schema(schema, "S", notes) == projected
    assert [warning.path for warning in notes.warnings] == [f"S.{path}" for path in lost]


def test_exponentially_nested_schema_references_are_cut_off() -> None:
    definitions = {
        f"d{n}": {"properties": {side: {"$ref": f"#/$defs/d{n + 1}"} for side in "ab"}}
        for n in range(30)
    }
    notes = Notes()
    projected = project_schema({"$ref": "#/$defs/d0", "$defs": definitions}, "S", notes)
    assert len(json.dumps(projected)) < 200_000
    assert notes.warnings


KNOWN = "type enum const properties items anyOf oneOf allOf format $ref $defs title not"
KEYWORDS = st.sampled_from(KNOWN.split())
SCHEMAS = st.recursive(
    some.json_values | st.sampled_from(["#", "#/$defs/a", "string", "null", "date-time"]),
    lambda inner: (
        st.dictionaries(KEYWORDS | some.texts, inner, max_size=4) | st.lists(inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(KEYWORDS, SCHEMAS, max_size=5))
def test_reduced_schema_uses_supported_keywords_only(schema: dict[str, Any]) -> None:
    notes = Notes()
    known = {"type", "nullable", "anyOf", "enum", "properties", "items", "format", "title"}
    pending = [project_schema(schema, "S", notes)]
    while pending:
        node = pending.pop()
        assert node.keys() <= known
        pending += [*node.get("properties", {}).values(), *node.get("anyOf", ())]
        pending += [node["items"]] if "items" in node else []


PATHS = "$ a $. $.a..b $.a[ $[1] $.a[2] $.a.b $['a $.a[99999999999] $.a[0][0]"


@pytest.mark.parametrize("path", ["", *PATHS.split(), None])
def test_argument_pieces_without_a_valid_path_make_the_tool_call_invalid(path: Any) -> None:
    arguments = StreamedArguments({"a": [1]})
    with pytest.raises(d.MalformedToolCallError):
        arguments.add({"jsonPath": path, "numberValue": 1})
    with pytest.raises(d.MalformedToolCallError):
        arguments.add("text")


def test_objects_lists_and_texts_on_a_path_are_created() -> None:
    arguments = StreamedArguments({})
    arguments.add({"jsonPath": "$.a[0][0].b", "numberValue": 1})
    for letters in ("x", "y"):
        arguments.add({"jsonPath": r"$['it\'s']", "stringValue": letters, "willContinue": True})
    arguments.add({"jsonPath": r"$['it\'s']", "stringValue": ""})
    arguments.add({"jsonPath": "$.none", "nullValue": "NULL_VALUE"})
    arguments.add({"jsonPath": "$.a[1]", "boolValue": True})
    assert arguments.value == {"a": [[{"b": 1}], True], "it's": "xy", "none": None}


# --- functions next to tools that the server runs ----------------------------------------------

CLOCK = (d.Tool("clock", "The time.", parameters={"type": "object", "properties": {}}),)
SEARCH = (d.ServerTool("web_search"),)
GOOGLE = "https://generativelanguage.googleapis.com"
VERTEX = "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/google"
FLAG = {"includeServerSideToolInvocations": True}


@pytest.mark.parametrize(
    ("base_url", "model", "fields", "expected"),
    [
        (GOOGLE, "gemini-3.8-flash", {"tools": CLOCK, "server_tools": SEARCH}, FLAG),
        (GOOGLE, "gemini-flash-latest", {"tools": CLOCK, "server_tools": SEARCH}, FLAG),
        (GOOGLE, "gemini-4-argon", {"tools": CLOCK, "server_tools": SEARCH}, FLAG),
        (
            GOOGLE,
            "gemini-3.8-flash",
            {"tools": CLOCK, "server_tools": SEARCH, "tool_choice": "required"},
            {**FLAG, "functionCallingConfig": {"mode": "ANY"}},
        ),
        (
            GOOGLE,
            "gemini-3.8-flash",
            {"tools": CLOCK, "config": d.RuntimeConfig(extras={"tools": [{"googleSearch": {}}]})},
            FLAG,
        ),
        (
            GOOGLE,
            "gemini-3.8-flash",
            {
                "tools": CLOCK,
                "server_tools": SEARCH,
                "config": d.RuntimeConfig(
                    extras={"toolConfig.includeServerSideToolInvocations": False}
                ),
            },
            {"includeServerSideToolInvocations": False},
        ),
        (GOOGLE, "gemini-3.8-flash", {"tools": CLOCK}, None),
        (GOOGLE, "gemini-3.8-flash", {"server_tools": SEARCH}, None),
        (GOOGLE, "gemini-2.5-flash", {"tools": CLOCK, "server_tools": SEARCH}, None),
        (VERTEX, "gemini-3.8-flash", {"tools": CLOCK, "server_tools": SEARCH}, None),
    ],
)
def test_server_tools_next_to_functions_are_enabled_where_the_server_demands_it(
    base_url: str, model: str, fields: dict[str, Any], expected: Any
) -> None:
    encoded = GeminiCodec(model, base_url).encode(d.Request((d.User("Hello"),), **fields))
    assert json.loads(encoded.http.body).get("toolConfig") == expected


def test_extra_that_replaces_the_tool_configuration_is_sent_unchanged() -> None:
    config = d.RuntimeConfig(extras={"toolConfig": {"retrievalConfig": {"languageCode": "de"}}})
    request = d.Request((d.User("Hello"),), tools=CLOCK, server_tools=SEARCH, config=config)
    body = json.loads(GeminiCodec("gemini-3.8-flash", GOOGLE).encode(request).http.body)
    assert body["toolConfig"]["retrievalConfig"] == {"languageCode": "de"}


def test_server_that_demands_and_refuses_server_invocations_is_not_asked_for_ever() -> None:
    codec: Any = GeminiCodec("gemini-3.8-flash", "https://proxy.test")
    request = d.Request((d.User("Hello"),), tools=CLOCK, server_tools=SEARCH)
    texts = [
        "Please enable tool_config.include_server_side_tool_invocations to use Built-in tools",
        "Invalid JSON payload received. Unknown name \"includeServerSideToolInvocations\"",
    ]  # fmt: skip
    learned = []
    while codec is not None:
        refusal = d.InvalidRequestError("", status=400, provider_message=texts[len(learned) % 2])
        codec = codec.learn(refusal, request)
        learned.append(codec.quirks.server_invocations if codec is not None else None)
    assert learned == [True, False, None]


@pytest.mark.parametrize(
    ("model", "placeholder"),
    [
        ("gemini-3.8-flash", True),
        ("gemini-pro-latest", True),
        ("gemini-2.5-flash", False),
        ("gemini-2.0-flash-001", False),
    ],
)
def test_unsigned_calls_get_the_placeholder_at_once_if_the_model_demands_it(
    model: str, placeholder: bool
) -> None:
    call = d.Assistant((d.ToolCall("c1", "clock", {}),))
    messages = (d.User("Hello"), call, d.ToolResult("c1", "noon"))
    encoded = GeminiCodec(model, GOOGLE).encode(d.Request(messages, tools=CLOCK))
    assert (b"skip_thought_signature_validator" in encoded.http.body) == placeholder


@pytest.mark.parametrize("wire", ["gemini", "openai"])
@pytest.mark.parametrize(
    ("model", "refused"),
    [("gemini-3.8-flash", True), ("gemini-2.5-pro", True), ("gemini-2.0-flash", False)],
)
def test_penalties_are_not_sent_to_models_that_refuse_them(
    wire: str, model: str, refused: bool
) -> None:
    codec = CODECS[wire].connect(model, GOOGLE, None, d.Capabilities())
    for value in (0.0, 0.5):
        config = d.RuntimeConfig(presence_penalty=value)
        encoded = codec.encode(d.Request((d.User("Hello"),), config=config))
        assert (b"enalty" in encoded.http.body) != refused
        codes = [each.code for each in encoded.warnings]
        assert codes == (["setting_refused"] if refused and value else [])


@pytest.mark.parametrize("signed", [True, False])
def test_thought_without_an_issuer_goes_back_in_a_turn_that_the_model_signed(signed: bool) -> None:
    home = d.Issuer("gemini", None, MODEL)
    call = d.ToolCall("c", "f", {}, d.Continuity("c2ln", issuer=home) if signed else None)
    turn = d.Assistant([d.Thinking("Hm."), call])
    encoded = CODEC.encode(d.Request([d.User("Hi"), turn, d.ToolResult("c", "ok")]))
    parts = json.loads(encoded.http.body)["contents"][1]["parts"]
    assert ({"text": "Hm.", "thought": True} in parts) == signed
    lost = [each.code for each in encoded.warnings if each.code == "thinking_dropped"]
    assert bool(lost) != signed
