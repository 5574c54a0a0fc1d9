"""The openai wire: cases, encoding, decoding, rejections, readiness, and arbitrary replies."""

# ruff: noqa: SLF001 - what a decoder keeps of a body is not public, and its bound is

import copy
import json
import os
import re
from contextlib import suppress
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dragoman as d
import dragoman.events.assembler as assembler_module
import dragoman.wire.codec as codec_module
from dragoman.events import Assembler
from dragoman.sse import Frame, SseDecoder
from dragoman.wire import Decoder, Encoded, HttpReply
from dragoman.wire.ids import IdRule
from dragoman.wire.openai import OpenAICodec, Quirks
from dragoman.wire.openai.reply import OpenAIDecoder
from tests import strategies as some

from .cases import (
    BASE_URL,
    Case,
    ask_ready,
    bytewise,
    cut_at_random,
    decode,
    find_cases,
    plain_ids,
    plain_request,
)
from .test_damaged import TREE, hear

EXHAUSTIVE = os.environ.get("DRAGOMAN_EXHAUSTIVE") == "1"
FAST = settings(
    max_examples=1000 if EXHAUSTIVE else 12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


HELLO = d.User("Hello")

CASE_LIST = find_cases("openai")
REPLIED = [case for case in CASE_LIST if case.reply is not None and case.options.status < 300]


def make_codec(model: str = "m", base_url: str = BASE_URL, **quirks: Any) -> OpenAICodec:
    return OpenAICodec(model, base_url, Quirks(**quirks))


def make_request(*messages: Any, **fields: Any) -> d.Request:
    return d.Request(
        messages or (HELLO,), model=fields.pop("model", "m"), request_id="R", **fields
    )


def encode(request: d.Request, **quirks: Any) -> Encoded:
    return make_codec(**quirks).encode(request)


def body_of(request: d.Request, **quirks: Any) -> dict[str, Any]:
    return json.loads(encode(request, **quirks).http.body)


# --- conformance cases -------------------------------------------------------------------------


def test_raw_reply_of_a_stream_has_finish_reason_and_usage() -> None:
    heard = decode(
        make_codec(),
        make_request(stream=True),
        [Case("openai", "second-usage-all-zeros").reply or b""],
    )
    assert heard.response is not None
    assert heard.response.raw["finish_reason"] == "stop"
    assert heard.response.raw["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
    }


def test_usage_in_a_choice_is_read_before_the_finish_reason_arrives() -> None:
    body = (
        b'data: {"choices": [{"delta": {"content": "Hi"}, "usage": {"prompt_tokens": 3}}]}\n\n'
        b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    )
    heard = decode(make_codec(), make_request(stream=True), [body])
    assert heard.response is not None
    assert (heard.response.text, heard.response.usage.input_tokens) == ("Hi", 3)


def test_raw_bytes_of_many_small_chunks_are_joined() -> None:
    codec = OpenAICodec("m", BASE_URL)
    decoder = codec.decoder(plain_request(stream=True), Assembler())
    text = b'data: {"choices": [{"delta": {"content": "Hi "}}]}\n\n'
    body = (
        text * 50
        + b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    )
    events = [event for piece in bytewise(body) for event in decoder.feed(piece)]
    assert len(decoder._kept) == 1
    assert b"".join(decoder._kept) == body[: len(b"".join(decoder._kept))]
    assert len(d.fold(events).raw["chunks"]) == 51


def test_stream_that_keeps_no_raw_reply_stores_no_bytes() -> None:
    codec = OpenAICodec("m", BASE_URL, keep_raw=False)
    decoder = codec.decoder(make_request(stream=True), Assembler())
    for _ in range(3):
        decoder.feed(event_of(PLAIN_CHUNK))
    assert decoder._kept == []


NATIVE_TOOLS = [case for case in REPLIED if not case.name.startswith("coerced")]


@pytest.mark.exhaustive
def test_emulating_tools_changes_only_when_text_is_emitted() -> None:
    """With ``tools="schema"``, the text is emitted in one piece at the end of the reply. Tool
    calls, finish reasons, usage and errors do not change.
    """
    for case in NATIVE_TOOLS[:: 1 if EXHAUSTIVE else 8]:
        default = Case("openai", "default").request.tools
        request = msgspec.structs.replace(case.request, tools=default)
        options = {**(case.options.quirks or {}), "tools": "schema"}
        codec = OpenAICodec.connect("m", BASE_URL, options, d.Capabilities())
        heard = decode(codec, request, cut_at_random(case.reply or b"", case.name))
        native = decode(case.codec(), request, [case.reply or b""])
        assert type(heard.error) is type(native.error), case
        assert (heard.response is None) == (native.response is None), case
        if heard.response is None or native.response is None:
            continue
        for name in ("finish_reason", "finish_raw", "usage"):
            assert getattr(heard.response, name) == getattr(native.response, name), (case, name)
        calls = [
            msgspec.to_builtins(reply.tool_calls) for reply in (heard.response, native.response)
        ]
        assert plain_ids(calls[0]) == plain_ids(calls[1]), case
        assert heard.response.message.thinking == native.response.message.thinking, case
        finished = native.error is None or isinstance(
            native.error, d.MalformedToolCallError | d.StructuredOutputError
        )
        assert heard.response.text == (native.response.text if finished else ""), case


# --- encoding requests -------------------------------------------------------------------------


def test_request_asks_for_json_or_events() -> None:
    assert encode(make_request()).http.headers == {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
    }


# Settings that a test of truth would drop; all others are in case 005-wire-mapping-config.
CONFIGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"temperature": 0.0, "seed": 0}, {"temperature": 0.0, "seed": 0}),
    ({"presence_penalty": 0.0}, {"presence_penalty": 0.0}),
    ({"stop_sequences": ()}, {"stop": []}),
]


@pytest.mark.parametrize(("config", "sent"), CONFIGS)
def test_generation_settings_of_zero_are_encoded(
    config: dict[str, Any], sent: dict[str, Any]
) -> None:
    body = body_of(make_request(config=d.RuntimeConfig(**config)))
    assert body == {"model": "m", **sent, "messages": [{"role": "user", "content": "Hello"}]}


def test_reasoning_budget_is_not_supported() -> None:
    with pytest.raises(d.UnsupportedFeatureError, match=r"config\.reasoning"):
        encode(make_request(config=d.RuntimeConfig(reasoning=1024)))


SCHEMA = {
    "title": "A",
    "type": "object",
    "properties": {},
    "required": [],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "A", "schema": SCHEMA, "strict": True}}
ONE = d.Tool("now", "The time.")
ONE_SENT = {
    "type": "function",
    "function": {
        "name": "now",
        "description": "The time.",
        "parameters": {"type": "object", "properties": {}},
    },
}

# Each entry: the settings, request fields or quirks of the call; the extra fields; and the value
# that must be sent under the name of the extra field. NO means that the call must be rejected,
# ABSENT that the field must not be sent.
NO, ABSENT = d.InvalidRequestError, ...
JSON_MODE = {"type": "json_object"}
FORCED = {"type": "function", "function": {"name": "now"}}
USAGE_ASKED = {"include_usage": True}
NUMBERS = ("temperature", "top_p", "max_tokens", "seed", "frequency_penalty", "presence_penalty")
ONE_TOOL: dict[str, Any] = {"tools": (ONE,)}
AUTO: dict[str, Any] = {"tools": (ONE,), "tool_choice": "auto"}
FORCE: dict[str, Any] = {"tools": (ONE,), "tool_choice": d.ForceTool("now")}
STRUCTURED: dict[str, Any] = {"response_schema": SCHEMA}
STREAMED_CALL: dict[str, Any] = {"stream": True}
DEEP_VALUE = {"b": [1, {"z": 1, "a": 2}], "a": None}

COLLISIONS: list[tuple[dict[str, Any], str, Any, Any]] = [
    ({}, "user", "u", "u"),
    ({}, "provider", DEEP_VALUE, DEEP_VALUE),
    ({}, "model", "m", "m"),
    ({}, "model", "n", NO),
    (
        {},
        "messages",
        [{"content": "Hello", "role": "user"}],
        [{"content": "Hello", "role": "user"}],
    ),
    ({}, "messages", [], NO),
    (ONE_TOOL, "tools", [ONE_SENT], [ONE_SENT]),
    (ONE_TOOL, "tools", [], NO),
    ({}, "tools", [{"type": "web_search"}], [{"type": "web_search"}]),
    (AUTO, "tool_choice", "auto", "auto"),
    (AUTO, "tool_choice", "none", NO),
    (FORCE, "tool_choice", FORCED, FORCED),
    (FORCE, "tool_choice", {"type": "function"}, NO),
    (ONE_TOOL, "tool_choice", {"type": "allowed_tools"}, {"type": "allowed_tools"}),
    *[({name: 1}, name, 1, 1) for name in NUMBERS],
    *[({name: 1}, name, 2, NO) for name in NUMBERS],
    ({"reasoning": "low"}, "reasoning_effort", "low", "low"),
    ({"reasoning": "low"}, "reasoning_effort", "high", NO),
    ({}, "reasoning_effort", "high", "high"),
    (STRUCTURED, "response_format", FORMAT, FORMAT),
    (STRUCTURED, "response_format", JSON_MODE, NO),
    ({}, "response_format", JSON_MODE, JSON_MODE),
    ({**STRUCTURED, "quirks": {"structured": "prompt"}}, "response_format", JSON_MODE, JSON_MODE),
    ({**ONE_TOOL, "quirks": {"tools": "schema"}}, "response_format", JSON_MODE, NO),
    ({"stop_sequences": ("a", "b")}, "stop", ["b", "c", "a", "d"], ["a", "b", "c", "d"]),
    ({"stop_sequences": ("a",)}, "stop", "z", ["a", "z"]),
    ({"stop_sequences": ("a",)}, "stop", {"b": 1}, ["a"]),
    ({}, "stop", "z", "z"),
    ({}, "stream", False, ABSENT),
    ({}, "stream", True, NO),
    ({}, "stream", 0, NO),
    (STREAMED_CALL, "stream", True, True),
    (STREAMED_CALL, "stream", False, NO),
    (STREAMED_CALL, "stream_options", USAGE_ASKED, USAGE_ASKED),
    (STREAMED_CALL, "stream_options", {"include_usage": False}, NO),
    (STREAMED_CALL, "stream_options", {"include_usage": True, "x": 1}, NO),
    ({}, "stream_options", {"x": 1}, {"x": 1}),
    ({**STREAMED_CALL, "quirks": {"stream_usage": False}}, "stream_options", {"x": 1}, {"x": 1}),
]


@pytest.mark.parametrize(("sets", "name", "value", "sent"), COLLISIONS)
def test_extra_fields_are_merged_into_the_body(
    sets: dict[str, Any], name: str, value: Any, sent: Any
) -> None:
    extras = {name: copy.deepcopy(value)}
    settings_made = {
        key: item for key, item in sets.items() if key in d.RuntimeConfig.__struct_fields__
    }
    fields = {key: item for key, item in sets.items() if key in d.Request.__struct_fields__}
    request = make_request(config=d.RuntimeConfig(**settings_made, extras=extras), **fields)
    quirks = sets.get("quirks", {})
    if sent is NO:
        with pytest.raises(d.InvalidRequestError, match=re.escape(f"config.extras[{name!r}]")):
            encode(request, **quirks)
    else:
        body = body_of(request, **quirks)
        assert body.get(name, ABSENT) == sent
        assert list(body)[-1] == "messages"
    assert extras == {name: value}


def test_system_message_after_the_first_turn_is_rejected() -> None:
    with pytest.raises(d.InvalidRequestError, match=r"messages\[1\]"):
        encode(make_request(HELLO, d.System("Be terse."), HELLO))


OTHER = d.Continuity("sig", None, d.Issuer("anthropic", None, "x"))
OWN = d.Continuity("sig", None, d.Issuer("openai", None, "x"))
LONG = "call|" + "x" * 60
REASONS = {"send_reasoning": "reasoning"}

Noted = tuple[str, str, str, bool]


def dropped(code: str, path: str = "messages[1].content[0]") -> Noted:
    return ("dropped", code, path, True)


def rewritten(code: str, path: str, *, loss: bool) -> Noted:
    return ("rewritten", code, path, loss)


NO_THINKING = dropped("thinking_dropped")
UNANSWERED = dropped("dangling_call_dropped", "messages[1].content[1]")
UNFINISHED = d.Continuity(issuer=OWN.issuer, replayable=False)
RESULT = d.ToolResult("c", "x")
LONG_RESULT = d.ToolResult(LONG, "x")


def turn(*blocks: Any) -> d.Assistant:
    return d.Assistant(blocks)


SECOND = "messages[1].content[1]"
NO_STATE = dropped("continuity_dropped", "messages[1].content[0].continuity")
NO_MESSAGE = dropped("message_dropped", "messages[1]")
OUT_OF_ORDER = rewritten("order_lost", SECOND, loss=True)
NO_ERROR = rewritten("is_error_dropped", "messages[2].is_error", loss=True)
SHORT = {"id_rule": IdRule(40, any_character=True)}
SHORTENED = [
    rewritten("id_projected", path, loss=False)
    for path in ("messages[1].content[0]", "messages[2].tool_call_id")
]
CALL, UNREADABLE = d.ToolCall("c", "any", {}), d.ToolCall("d", "any", None)
FAILED = d.ToolResult("c", "x", is_error=True)
UNKNOWN = d.Continuity("of whom?")

# Each entry: the assistant message, the message after it, the quirks, and the expected notes.
LOSSES: list[tuple[d.Assistant, Any, dict[str, Any], list[Noted]]] = [
    (turn(d.Text("Hi")), HELLO, {}, []),
    (turn(d.Thinking("Hm"), d.Text("Hi")), HELLO, {}, [NO_THINKING]),
    (turn(d.Thinking("Hm"), d.Text("Hi")), HELLO, REASONS, []),
    (turn(d.Thinking("Hm", OWN), d.Text("Hi")), HELLO, REASONS, []),
    (turn(d.Thinking("Hm", OTHER), d.Text("Hi")), HELLO, REASONS, [NO_THINKING]),
    (turn(d.Thinking("Hm", UNKNOWN), d.Text("Hi")), HELLO, REASONS, [NO_THINKING]),
    (turn(d.Thinking("Hm", UNFINISHED), d.Text("Hi")), HELLO, REASONS, [NO_THINKING]),
    (turn(d.Thinking("Hm")), HELLO, {}, [NO_THINKING, NO_MESSAGE]),
    (turn(d.Thinking("Hm")), HELLO, REASONS, [NO_MESSAGE]),
    (
        turn(d.RedactedThinking("x"), d.Text("Hi")),
        HELLO,
        {},
        [dropped("redacted_thinking_dropped")],
    ),
    (turn(d.Text("Hi"), d.Opaque({"type": "x"})), HELLO, {}, [dropped("opaque_dropped", SECOND)]),
    (turn(d.Text("Hi", OTHER)), HELLO, {}, [NO_STATE]),
    (turn(d.ToolCall("c", "any", {}, OTHER)), RESULT, {}, [NO_STATE]),
    (turn(CALL, d.Text("Hi")), RESULT, {}, [OUT_OF_ORDER]),
    (turn(CALL), FAILED, {}, [NO_ERROR]),
    (turn(d.ToolCall(LONG, "any", {})), LONG_RESULT, SHORT, SHORTENED),
    (turn(d.ToolCall(LONG, "any", {})), LONG_RESULT, {}, []),
    (turn(d.Text("Hi"), CALL), HELLO, {}, [UNANSWERED]),
    (turn(CALL, UNREADABLE), RESULT, {}, [UNANSWERED]),
    (turn(CALL, UNREADABLE), RESULT, {"tools": "schema"}, [UNANSWERED]),
    (turn(CALL), HELLO, {}, [dropped("dangling_call_dropped"), NO_MESSAGE]),
]


@pytest.mark.parametrize(("answer", "then", "quirks", "notes"), LOSSES)
def test_every_loss_is_reported(
    answer: d.Assistant, then: Any, quirks: dict[str, Any], notes: list[Any]
) -> None:
    encoded = encode(make_request(HELLO, answer, then), **quirks)
    assert [(note.outcome, note.code, note.path, note.loss) for note in encoded.notes] == notes
    assert [(warning.code, warning.path) for warning in encoded.warnings] == [
        (code, path) for _, code, path, loss in notes if loss
    ]
    assert all(note.detail for note in encoded.notes)


def test_paths_in_notes_count_leading_system_messages() -> None:
    said = [d.System("a"), d.System("b"), HELLO, turn(d.Opaque(1), d.Text("Hi")), HELLO]
    assert [note.path for note in encode(make_request(*said)).notes] == ["messages[3].content[0]"]


def test_emulated_tool_calls_are_sent_as_text_separate_from_thinking() -> None:
    said = [
        HELLO,
        d.Assistant([d.Thinking("Hm"), d.ToolCall("c", "a.b", {"x": '"'})]),
        d.ToolResult("c", "x", is_error=True),
    ]
    body = body_of(make_request(*said, tools=(ONE,)), tools="schema", send_reasoning="reasoning")
    sent = {
        "role": "assistant",
        "content": '{"tool": "a_b", "arguments": {"x":"\\""}}',
        "reasoning": "Hm",
    }
    assert body["messages"][2] == sent
    assert json.loads(sent["content"]) == {"tool": "a_b", "arguments": {"x": '"'}}


# --- checking the readiness of a server --------------------------------------------------------


@pytest.mark.parametrize(
    ("base_url", "kind", "urls"),
    [
        (
            "http://h",
            "auto",
            ["http://h/v1/models", "http://h/health", "http://h/v1/chat/completions"],
        ),
        ("http://h/v1/", "health", ["http://h/health", "http://h/v1/models"]),
        ("http://h/openai/v1", "state", ["http://h/openai/v1/models", "http://h/api/v0/models"]),
        ("http://h/sub/v1", "resident", ["http://h/sub/v1/models", "http://h/sub/api/ps"]),
    ],
)
def test_readiness_check_sends_requests_below_the_base_url(
    base_url: str, kind: Any, urls: list[str]
) -> None:
    questions = make_codec(base_url=base_url, readiness=kind).ready()
    listed = HttpReply(
        200, {}, b'{"data": [{"id": "m", "state": "loaded"}], "models": [{"name": "m"}]}'
    )
    asked = [next(questions).url]
    with suppress(StopIteration):
        while True:
            asked.append(questions.send(listed).url)
    assert asked == urls


@FAST
@given(
    body=some.json_values | st.binary(max_size=30), status=st.sampled_from([200, 204, 404, 503])
)
def test_readiness_check_raises_only_provider_errors(body: Any, status: int) -> None:
    answer = {
        "status": status,
        "body": body.decode("latin-1") if isinstance(body, bytes) else body,
    }
    paths = ("/v1/models", "/health", "/api/v0/models", "/api/ps")
    kinds: list[Any] = ["auto", "models", "health", "state", "resident"]
    for kind in kinds:
        _, error = ask_ready(make_codec(readiness=kind), dict.fromkeys(paths, answer))
        assert error is None or type(error) in TREE


# --- decoding mutated replies ------------------------------------------------------------------

PLAIN_CHUNK = {
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": "Hello"}, "finish_reason": None}],
}


def event_of(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "length"])
def test_malformed_tool_calls_are_tolerated_only_in_a_reply_that_failed(finish: str) -> None:
    case = Case("openai", "error-finish-with-calls-of-other-types")
    reply = (case.reply or b"").replace(
        b'"finish_reason": "error"', f'"finish_reason": "{finish}"'.encode()
    )
    heard = hear(case.codec(), case.request, [reply])
    assert isinstance(heard.error, d.InvalidResponseError)


LISTS = b"data: {" + b"[" * 9
CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": "Hello"}}]}\n\n'
# Each entry: the name and the value of a limit, pieces that reach it, a piece that exceeds it, and
# the end of the error text.
LIMITS: list[tuple[str, int, list[bytes], bytes, str]] = [
    ("MAX_BODY", 900, [b" " * 300] * 3, b" ", "900 bytes"),
    ("MAX_BODY", 900, [b"{" * 300] * 3, b"{", "900 bytes"),
    ("MAX_STREAM", 10 * len(CHUNK), [CHUNK] * 10, CHUNK, f"{10 * len(CHUNK)} bytes"),
    ("MAX_STREAM", 140, [b": still here\n\n"] * 10, b": still here\n\n", "140 bytes"),
    ("MAX_EVENTS", 10, [CHUNK] * 10, CHUNK, "10 events"),
    ("MAX_LINES", 10, [CHUNK, b": still here\n\n" * 4], b": still here\n\n", "10 lines"),
    ("MAX_LINES", 10, [CHUNK, b"\n\n" * 4], b"\n\n", "10 lines"),
    ("MAX_LINES", 10, [CHUNK, b"\r\n\r\n" * 4], b"\r\n\r\n", "10 lines"),
    ("MAX_CONTAINERS", 10, [b'{"choices":[' + b"{}," * 8], b"{}]}", "10 objects and lists"),
    ("MAX_CONTAINERS", 10, [LISTS], b"[\n\n", "10 objects and lists"),
]


@pytest.mark.parametrize(("name", "limit", "reaching", "exceeding", "text"), LIMITS)
@pytest.mark.parametrize("keep_raw", [True, False])
def test_size_of_a_reply_is_limited(
    name: str,
    limit: int,
    reaching: list[bytes],
    exceeding: bytes,
    text: str,
    keep_raw: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec_module, name, limit)
    codec = OpenAICodec("m", "http://test", keep_raw=keep_raw)
    request = make_request(stream=True)
    assert text not in str(decode(codec, request, reaching).error)
    heard = decode(codec, request, [*reaching, exceeding])
    assert type(heard.error) is d.InvalidResponseError
    assert text in str(heard.error)
    if reaching[0] == CHUNK:
        assert heard.response is not None
        assert heard.response.text.startswith("Hello")


def test_oversized_event_is_rejected_and_kept_in_the_raw_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        OpenAIDecoder, "framing", staticmethod(lambda limit=1000: SseDecoder(limit))
    )
    data = event_of(PLAIN_CHUNK) + b"data: " + b"x" * 2000
    heard = decode(make_codec(), make_request(stream=True), cut_at_random(data, 1))
    assert type(heard.error) is d.InvalidResponseError
    assert heard.response is not None
    assert heard.response.text == "Hello"
    assert heard.response.raw["chunks"][0] == PLAIN_CHUNK
    assert set(heard.response.raw["chunks"][1]) == {"x"}


# --- the decoder, called without a provider ----------------------------------------------------


def make_decoder(**fields: Any) -> tuple[Any, Assembler]:
    out = Assembler(request_id="R", model="m", provider="p")
    return make_codec().decoder(make_request(**fields), out), out


def test_events_are_emitted_as_soon_as_their_bytes_arrive() -> None:
    decoder, _ = make_decoder(stream=True)
    data = event_of(PLAIN_CHUNK)
    assert decoder.feed(data[:-1]) == []
    assert [event.type for event in decoder.feed(data[-1:])] == ["message.start", "text.delta"]
    assert decoder.feed(b"") == []
    assert [event.type for event in decoder.feed(data + data)] == ["text.delta", "text.delta"]
    assert not decoder.done
    assert [event.type for event in decoder.feed(b"data: [DONE]\n\n")] == ["message.complete"]
    assert decoder.done


def test_no_event_is_emitted_after_the_end() -> None:
    decoder, out = make_decoder(stream=True)
    decoder.feed(event_of(PLAIN_CHUNK) + b"data: [DONE]\n\n")
    assert decoder.feed(event_of(PLAIN_CHUNK)) == []
    assert decoder.end() == []
    assert decoder.fail(d.NetworkError("late")) == []
    assert decoder.error is None
    assert out.response is not None
    assert out.response.raw["chunks"] == [PLAIN_CHUNK]


@pytest.mark.parametrize("said", [b"", b" ", event_of(PLAIN_CHUNK), b'{"choices": ['])
def test_failed_connection_ends_the_message(said: bytes) -> None:
    decoder, out = make_decoder(stream=True)
    events = decoder.feed(said)
    error = d.NetworkError("the connection was reset")
    events += decoder.fail(error)
    d.check_events(events)
    assert decoder.error is error
    assert decoder.done
    assert decoder.end() == []
    if events:
        assert isinstance(events[-1], d.MessageComplete)
        assert error.response is not None
        assert error.response.text == "Hello"
        assert out.response == error.response


class Echo(Decoder):
    """A minimal decoder: each event is a text, and every stream ends normally."""

    def frame(self, frame: Frame) -> None:
        if not self.out.started:
            self.out.start()
        self.out.text(frame.data.decode())

    def body(self, data: bytes) -> None:
        self.frame(Frame(data))
        self.at_end()

    def at_end(self) -> None:
        self.out.finish("stop")


def test_exception_inside_a_codec_becomes_a_provider_error() -> None:
    class Broken(Echo):
        def at_end(self) -> None:
            raise KeyError("a bug")

    decoder = Broken(make_request(), Assembler())
    events = decoder.feed(b"data: a\n\n") + decoder.end()
    d.check_events(events)
    assert type(decoder.error) is d.InvalidResponseError
    assert isinstance(decoder.error.__cause__, KeyError)
    assert d.fold(events).text == "a"


def pieces_of_calls(*calls: dict[str, Any]) -> bytes:
    deltas: list[Any] = [{"delta": {"tool_calls": [call]}} for call in calls]
    deltas.append({"delta": {}, "finish_reason": "tool_calls"})
    return b"".join(
        [b"data: " + json.dumps({"choices": [delta]}).encode() + b"\n\n" for delta in deltas]
    )


@pytest.mark.parametrize("tail", [{"arguments": ""}, {"arguments": None}, {"arguments": "\n"}, {}])
@pytest.mark.parametrize("place", [{"index": 0}, {}, {"index": 0, "id": ""}])
def test_repeated_tool_name_without_arguments_continues_the_same_call(
    tail: dict[str, Any], place: dict[str, Any]
) -> None:
    whole = {"index": 0, "id": "x", "function": {"name": "any", "arguments": '{"a": 1}'}}
    reply = pieces_of_calls(whole, {**place, "function": {"name": "any", **tail}})
    heard = decode(make_codec(), make_request(tools=[d.Tool("any")]), [reply])
    assert [event.final_input for event in heard.events if isinstance(event, d.ToolUseEnd)] == [
        {"a": 1}
    ]
    assert heard.error is None


@pytest.mark.parametrize("place", [{"index": 0}, {}])
def test_one_id_with_two_tool_names_means_two_calls(place: dict[str, Any]) -> None:
    calls = [
        {**place, "id": "c", "function": {"name": name, "arguments": "{}"}} for name in ("f", "g")
    ]
    heard = decode(
        make_codec(), make_request(tools=[d.Tool("f"), d.Tool("g")]), [pieces_of_calls(*calls)]
    )
    intents = [
        event.intent
        for event in heard.events
        if isinstance(event, d.ToolUseEnd) and event.intent is not None
    ]
    assert [intent.tool_name for intent in intents] == ["f", "g"]
    assert heard.error is None


def test_arguments_of_interleaved_tool_calls_are_parsed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = 0
    whole = assembler_module.read_object

    def count(text: str) -> Any:
        nonlocal read
        read += 1
        return whole(text)

    monkeypatch.setattr(assembler_module, "read_object", count)
    calls = [
        {"index": at, "id": f"c{at}", "function": {"name": "any", "arguments": '{"a": "'}}
        for at in (0, 1)
    ]
    for _ in range(300):
        calls += [{"index": at, "function": {"arguments": "xyz"}} for at in (0, 1)]
    calls += [{"index": at, "function": {"arguments": '"}'}} for at in (0, 1)]
    heard = decode(make_codec(), make_request(tools=[d.Tool("any")]), [pieces_of_calls(*calls)])
    assert heard.error is None
    assert read < 10


@pytest.mark.parametrize(
    ("stated", "read"),
    [
        (0.00014, Decimal("0.00014")),
        (0, Decimal(0)),
        (None, None),
        ("0.1", None),
        (-1, None),
        (True, None),
    ],
)
def test_cost_reported_by_a_server_is_read(stated: Any, read: Decimal | None) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "cost": stated}
    choice = {"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}
    body = json.dumps({"model": "m", "choices": [choice], "usage": usage}).encode()
    assert decode(make_codec(), make_request(), [body]).response.usage.stated_cost_usd == read
