"""The gemini wire: cases, truncated and mutated replies, and recordings of real servers."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman as d
from dragoman.messages import new_ulid
from dragoman.wire.codec import Codec, Notes
from dragoman.wire.gemini import GeminiCodec, Quirks
from dragoman.wire.gemini.arguments import StreamedArguments
from dragoman.wire.gemini.schema import project_schema
from tests import strategies as some
from tests.rows import read_table
from tests.wire.cases import Case, DecodedReply, decode, find_cases
from tests.wire.readings import joined

MODEL = "gemini-3-flash"
BASE = "https://models.example"
OURS = d.Issuer("gemini", None, MODEL)
CODEC = GeminiCodec(MODEL, BASE)
HELLO = d.Request((d.User("Hello"),), model=MODEL)
STREAM = d.Request((d.User("Hello"),), model=MODEL, stream=True)
CLOCK = d.Tool("clock", "The time.")

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


def stream_of(*chunks: Any) -> bytes:
    return b"".join([b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n" for chunk in chunks])


def sent(messages: Sequence[d.Message], codec: GeminiCodec = CODEC, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(
        codec.encode(d.Request(messages, model=codec.model, **more)).http.body
    )
    return body


def warned(
    messages: Sequence[d.Message], codec: GeminiCodec = CODEC, **more: Any
) -> list[tuple[str, str]]:
    encoded = codec.encode(d.Request(messages, model=codec.model, **more))
    return [(warning.code, warning.path) for warning in encoded.warnings]


def content_of(heard: DecodedReply) -> tuple[Any, ...]:
    assert heard.response is not None
    return heard.response.message.content


# --- conformance cases -------------------------------------------------------------------------


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
        assert joined(as_parts(hear(case))) == joined(parts), case


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


@pytest.mark.parametrize("model", ["", ".", "..", "models/.."])
def test_model_name_with_dot_segments_is_rejected(model: str) -> None:
    with pytest.raises(d.InvalidRequestError, match="model"):
        GeminiCodec(model, BASE).encode(d.Request([d.User("Hello")]))


@pytest.mark.parametrize("base_url", [f"{BASE}?key=secret", f"{BASE}/v1beta?access_token=secret"])
def test_base_url_with_a_key_is_rejected_without_repeating_it(base_url: str) -> None:
    with pytest.raises(ValueError, match="base_url") as caught:
        GeminiCodec(MODEL, base_url)
    assert "secret" not in str(caught.value)


def test_extra_fields_of_the_wrong_type_are_rejected() -> None:
    with pytest.raises(d.InvalidRequestError, match="thinkingConfig"):
        sent(
            [d.User("Hello")],
            config=d.RuntimeConfig(reasoning="low", extras={"thinkingConfig": 5}),
        )
    body = sent(
        [d.User("Hello")],
        config=d.RuntimeConfig(extras={"thinkingConfig": {"thinkingBudget": 1}, "stream": True}),
    )
    assert body["generationConfig"] == {"thinkingConfig": {"thinkingBudget": 1}}
    assert body["stream"] is True


def test_configured_body_fields_are_merged_with_those_of_the_call() -> None:
    codec = GeminiCodec(
        MODEL, BASE, Quirks(body={"tools": [{"search": {}}], "cachedContent": "c/1"})
    )
    body = sent([d.User("Hello")], codec, tools=[CLOCK])
    assert [list(tool) for tool in body["tools"]] == [["functionDeclarations"], ["search"]]
    assert body["cachedContent"] == "c/1"
    assert list(body)[-1] == "contents"


@pytest.mark.parametrize(
    "name", ["contents", "systemInstruction", "generationConfig", "toolConfig"]
)
def test_contradicting_body_fields_are_rejected(name: str) -> None:
    codec = GeminiCodec(MODEL, BASE, Quirks(body={name: {}}))
    messages = [d.System("Be terse."), d.User("Hello")]
    with pytest.raises(d.InvalidRequestError, match=rf"quirks\.body\['{name}'\]"):
        sent(messages, codec, tools=[CLOCK], tool_choice="auto", config=d.RuntimeConfig(seed=1))


def test_unreadable_tool_calls_and_unmatched_tool_results_are_omitted() -> None:
    messages = [
        d.User("Hello"),
        d.Assistant([d.Text("Hm."), d.ToolCall("a", "clock", None)]),
        d.ToolResult("a", "noon"),
        d.ToolResult("b", "never asked"),
        d.User("And?"),
    ]
    contents = sent(messages)["contents"]
    found = [part for turn in contents for part in turn["parts"]]
    assert found == [{"text": "Hello"}, {"text": "Hm."}, {"text": "And?"}]
    assert warned(messages) == [
        ("dangling_call_dropped", "messages[1].content[1]"),
        ("result_dropped", "messages[2]"),
        ("result_dropped", "messages[3]"),
    ]


def test_late_tool_results_are_moved_to_their_calls_and_noted() -> None:
    messages = [
        d.User("1"),
        d.Assistant([d.ToolCall("a", "clock", {})]),
        d.User("2"),
        d.ToolResult("a", "noon"),
        d.User("3"),
    ]
    encoded = CODEC.encode(d.Request(messages, model=MODEL))
    contents = json.loads(encoded.http.body)["contents"]
    kinds = [next(iter(turn["parts"][0])) for turn in contents]
    assert kinds == ["text", "functionCall", "functionResponse", "text", "text"]
    assert [(note.code, note.path, note.loss) for note in encoded.notes] == [
        ("result_moved", "messages[3]", False)
    ]


def test_generated_tool_call_id_is_not_sent() -> None:
    for minted in ["call_" + new_ulid() for _ in range(20)]:
        contents = sent(
            [
                d.User("1"),
                d.Assistant([d.ToolCall(minted, "clock", {})]),
                d.ToolResult(minted, "noon"),
            ]
        )["contents"]
        assert contents[1]["parts"] == [{"functionCall": {"name": "clock", "args": {}}}]
        assert contents[2]["parts"] == [
            {"functionResponse": {"name": "clock", "response": {"result": "noon"}}}
        ]


@pytest.mark.parametrize(
    "provided", ["call_abc", "call_" + "0" * 25, "call_" + "0" * 27, "call_" + "u" * 26, "x" * 31]
)
def test_tool_call_id_from_the_server_is_sent_even_if_it_looks_generated(provided: str) -> None:
    contents = sent(
        [
            d.User("1"),
            d.Assistant([d.ToolCall(provided, "clock", {})]),
            d.ToolResult(provided, "noon"),
        ]
    )["contents"]
    assert contents[1]["parts"][0]["functionCall"]["id"] == provided
    assert contents[2]["parts"][0]["functionResponse"]["id"] == provided


def test_placeholder_signature_is_sent_only_in_turns_without_a_signature() -> None:
    codec = GeminiCodec(MODEL, BASE, Quirks(placeholder_signature="skip"))
    signed = d.Assistant(
        [
            d.ToolCall("a", "clock", {}, d.Continuity("c2ln", None, OURS)),
            d.ToolCall("b", "clock", {}),
        ]
    )
    results = [d.ToolResult("a", "1"), d.ToolResult("b", "2")]
    contents = sent(
        [d.User("1"), signed, *results, d.User("2"), d.Assistant("text"), d.User("3")], codec
    )["contents"]
    signatures = [part.get("thoughtSignature") for turn in contents for part in turn["parts"]]
    assert signatures == [None, "c2ln", None, None, None, None, None, None]
    unsigned = [
        d.User("1"),
        d.Assistant([d.Text("So."), d.ToolCall("a", "clock", {})]),
        d.ToolResult("a", "1"),
    ]
    assert [
        part.get("thoughtSignature") for part in sent(unsigned, codec)["contents"][1]["parts"]
    ] == [None, "skip"]
    assert [note.code for note in codec.encode(d.Request(unsigned)).notes] == [
        "signature_placeholder"
    ]


def at(kind: str, uri: str) -> dict[str, Any]:
    return {"fileData": {"mimeType": kind, "fileUri": uri}}


def inline(kind: str, data: str) -> dict[str, Any]:
    return {"inlineData": {"mimeType": kind, "data": data}}


WEB = "https://x.example/a"
SUFFIXES = {kind: kind for kind in ("avif", "bmp", "gif", "heic", "heif", "jpeg", "png", "webp")}


@pytest.mark.parametrize(
    ("block", "part"),
    [
        *[
            (d.Image(d.Url(f"{WEB}.{suffix}#top")), at(f"image/{kind}", f"{WEB}.{suffix}#top"))
            for suffix, kind in {**SUFFIXES, "jpg": "jpeg"}.items()
        ],
        (d.Image(d.Url("gs://b/a"), "image/png"), at("image/png", "gs://b/a")),
        (d.Image(d.Url("http://[bad.png")), at("image/png", "http://[bad.png")),
        (d.Image(d.Url("data:;base64,aGk%3D"), "image/png"), inline("image/png", "aGk=")),
        (d.Image(d.Url("DATA:image/png;BASE64,aGk=")), inline("image/png", "aGk=")),
        (d.Document(d.Inline("aGk=")), inline("application/pdf", "aGk=")),
        (d.Document(d.Url("data:text/csv,a%2Cb")), inline("text/csv", "YSxi")),
    ],
)
def test_images_and_documents_are_encoded(
    block: d.Image | d.Document, part: dict[str, Any]
) -> None:
    assert sent([d.User([block])])["contents"][0]["parts"] == [part]


@pytest.mark.parametrize(
    "block",
    [
        d.Image(d.Url("https://x.example/a.tiff?b.png")),
        d.Image(d.Url("data:;base64,aGk=")),
        d.Image(d.Inline("aGk=")),
    ],
)
def test_media_of_unknown_type_are_rejected_with_their_path(block: d.Image) -> None:
    with pytest.raises(
        d.UnsupportedContentError, match=r"messages\[0\]\.content\[0\]\.media_type"
    ):
        sent([d.User([block])])


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


# --- decoding replies --------------------------------------------------------------------------


ANY = d.Request(
    (d.User("Hello"),), [d.Tool("any", "", {"type": "object"})], model=MODEL, stream=True
)


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


@pytest.mark.parametrize(
    ("word", "reason", "raw"),
    [
        ("MALFORMED_FUNCTION_CALL", "error", "MALFORMED_FUNCTION_CALL"),
        (99, "error", "99"),
        (-1, "error", "-1"),
        (0, "stop", None),
        ("FINISH_REASON_UNSPECIFIED", "stop", None),
        ("", "stop", None),
        (None, "stop", None),
        (True, "stop", None),
    ],
)
def test_finish_reasons_are_mapped(word: Any, reason: str, raw: str | None) -> None:
    reply = listen(reply_of({"text": "x"}, finish=word)).response
    assert reply is not None
    assert (reply.finish_reason, reply.finish_raw) == (reason, raw)
    call = {"functionCall": {"name": "clock", "args": {}}}
    with_call = listen(reply_of(call, finish=word), d.Request((d.User("Hello"),), [CLOCK]))
    assert with_call.response is not None
    assert with_call.response.finish_reason == "tool_calls"


NUMBERED = """
    STOP MAX_TOKENS SAFETY RECITATION OTHER LANGUAGE BLOCKLIST PROHIBITED_CONTENT SPII
    MALFORMED_FUNCTION_CALL IMAGE_SAFETY UNEXPECTED_TOOL_CALL
"""
BLOCKS = ["SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "IMAGE_SAFETY"]


@pytest.mark.parametrize(("number", "word"), list(enumerate(NUMBERED.split(), 1)))
def test_numeric_finish_reasons_are_mapped(number: int, word: str) -> None:
    assert (
        listen(reply_of({"text": "x"}, finish=number)).facts
        == listen(reply_of({"text": "x"}, finish=word)).facts
    )


@pytest.mark.parametrize(("number", "word"), list(enumerate(BLOCKS, 1)))
def test_numeric_block_reasons_are_mapped(number: int, word: str) -> None:
    by_number, by_word = [
        listen({"promptFeedback": {"blockReason": reason}}) for reason in (number, word)
    ]
    assert by_number.facts == by_word.facts
    assert by_word.response is not None
    assert (by_word.response.finish_reason, by_word.response.finish_raw) == (
        "content_filter",
        word,
    )


@pytest.mark.parametrize("body", read_table("empty_reply_is_an_invalid_response"))
def test_empty_reply_is_an_invalid_response(body: Any) -> None:
    assert type(listen(body).error) is d.InvalidResponseError


@pytest.mark.parametrize("body", [b"", b"[", b"[]", b"data: {}\n\n", b"data: {\n\n"[:-2]])
def test_empty_stream_counts_as_interrupted(body: bytes) -> None:
    assert type(listen(body, STREAM).error) is d.StreamInterruptedError


@pytest.mark.parametrize(
    ("record", "usage"),
    [
        ({}, d.Usage()),
        ({"promptTokenCount": 5, "totalTokenCount": 5}, d.Usage(5, None, total_tokens=5)),
        ({"promptTokenCount": 5, "candidatesTokenCount": 0}, d.Usage(5, 0)),
        ({"promptTokenCount": 5, "thoughtsTokenCount": 7, "totalTokenCount": 12},
         d.Usage(5, 7, reasoning_tokens=7, total_tokens=12)),
        ({"candidatesTokenCount": True, "thoughtsTokenCount": 7},
         d.Usage(None, None, reasoning_tokens=7)),
        ({"candidatesTokenCount": 3, "thoughtsTokenCount": "7"}, d.Usage()),
        ({"promptTokenCount": -1, "candidatesTokenCount": 3.5, "totalTokenCount": None},
         d.Usage()),
        ({"promptTokenCount": 5, "toolUsePromptTokenCount": 4, "candidatesTokenCount": 1,
          "totalTokenCount": 10}, d.Usage(9, 1, total_tokens=10)),
        ({"promptTokenCount": 5, "toolUsePromptTokenCount": 4, "candidatesTokenCount": 1},
         d.Usage(9, 1)),
        ({"promptTokenCount": 5, "toolUsePromptTokenCount": 4, "candidatesTokenCount": 1,
          "totalTokenCount": 6}, d.Usage(5, 1, total_tokens=6)),
        ({"toolUsePromptTokenCount": 4}, d.Usage()),
        ({"promptTokenCount": 5, "toolUsePromptTokenCount": "4", "candidatesTokenCount": 1},
         d.Usage(None, 1)),
        ({"promptTokenCount": 9, "cachedContentTokenCount": 8}, d.Usage(9, cached_input_tokens=8)),
        ({"promptTokenCount": 9, "cachedContentTokenCount": 0}, d.Usage(9, cached_input_tokens=0)),
        ("none", d.Usage()),
        (None, d.Usage()),
    ],
)  # fmt: skip
def test_token_usage_is_read(record: Any, usage: d.Usage) -> None:
    reply = listen(reply_of({"text": "x"}, usageMetadata=record)).response
    assert reply is not None
    assert reply.usage == usage


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 429, "message": "slow", "status": "RESOURCE_EXHAUSTED"}, d.RateLimitError),
        ({"code": "401", "message": "no"}, d.AuthenticationError),
        ({"code": 14, "message": "grpc", "status": "UNAVAILABLE"}, d.UnavailableError),
        ({"message": "no", "status": "PERMISSION_DENIED"}, d.AuthenticationError),
        ({"message": "none", "status": "NOT_FOUND"}, d.InvalidModelError),
        ({"message": "not now", "status": "FAILED_PRECONDITION"}, d.InvalidRequestError),
        ({"message": "who?", "status": "UNAUTHENTICATED"}, d.AuthenticationError),
        ({"message": "late", "status": "DEADLINE_EXCEEDED"}, d.UnavailableError),
        ("busy", d.UnavailableError),
        ({"unknown": 1}, d.UnavailableError),
    ],
)
def test_error_in_a_reply_with_status_200_is_raised(
    error: Any, kind: type[d.ProviderError]
) -> None:
    text = reply_of({"text": "x"}, finish=None)
    for body, request in (
        ({"error": error}, HELLO),
        ([{"error": error}], HELLO),
        ([text, {"error": error}], STREAM),
        (stream_of({"error": error}), STREAM),
        (stream_of(text, {"error": error}), STREAM),
    ):
        heard = listen(body, request)
        assert type(heard.error) is kind
        assert not heard.events or heard.response is not None
        assert not heard.response or heard.response.finish_reason == "error"


def test_invalid_utf8_is_replaced_and_numbers_out_of_range_are_rejected() -> None:
    for body in (
        b'[{"candidates":[{"content":{"parts":[{"text":"a\\ud83d"},{"text":"\xff"}]},"finishReason":"STOP"}]}]',
    ):
        assert content_of(listen(body, STREAM)) == (d.Text("a\ufffd\ufffd"),)
        assert content_of(listen(body[1:-1])) == (d.Text("a\ufffd\ufffd"),)
        assert content_of(listen(b"data: " + body[1:-1] + b"\n\n", STREAM)) == (
            d.Text("a\ufffd\ufffd"),
        )
    huge = (
        json.dumps(reply_of({"functionCall": {"name": "any", "args": {"a": 1}}}))
        .encode()
        .replace(b"1", b"1e999")
    )
    for reply in (huge, b"[" + huge + b"]", b"data: " + huge + b"\n\n"):
        assert isinstance(listen(reply, ANY).error, d.InvalidResponseError)


# --- error bodies that no conformance case covers ----------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "kind", "wait"),
    [
        (429, {"error": {"details": [{"retryDelay": 5}, {"retryDelay": "1.5s"}, "x"]}},
         d.RateLimitError, 1.5),
        (429, {"error": {"details": [{"retryDelay": "soon"}]}}, d.RateLimitError, None),
        (429,
         {"error": {"details": [{"violations": ["x", {"quotaId": 5}],
                                 "metadata": {"quota_limit": "TokensPerDay"}}]}},
         d.QuotaExceededError, None),
        (429, {"error": {"details": {"reason": "x"}}}, d.RateLimitError, None),
        (429, [], d.RateLimitError, None),
        (404, {"error": {"message": ""}}, d.InvalidModelError, None),
        (404, b"", d.InvalidModelError, None),
        (503, b"high demand", d.OverloadedError, None),
        (500, b"\xff", d.UnavailableError, None),
        (403, b"null", d.AuthenticationError, None),
        (400,
         {"error": {"message": "Invalid value at 'contents[0].parts[0].inline_data.mime_type'"}},
         d.UnsupportedContentError, None),
    ],
)  # fmt: skip
def test_error_bodies_of_every_form_are_read(
    status: int, body: Any, kind: type[d.ProviderError], wait: float | None
) -> None:
    error = CODEC.error(status, {}, body if isinstance(body, bytes) else json.dumps(body).encode())
    assert (type(error), error.retry_after) == (kind, wait)
