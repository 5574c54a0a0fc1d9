"""The openai wire: raw replies, emulated tools, readiness, limits, and the decoder's events."""

# ruff: noqa: SLF001 - what a decoder keeps of a body is not public, and its bound is

import json
import os
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dragoman as d
import dragoman.events.assembler as assembler_module
import dragoman.wire.codec as codec_module
from dragoman.events import Assembler
from dragoman.wire import Decoder, Encoded, HttpReply
from dragoman.wire.openai import OpenAICodec, Quirks
from dragoman.wire.openai.reply import OpenAIDecoder
from dragoman.wire.sse import Frame, SseDecoder
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
from .test_damaged import TREE

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


def test_request_asks_for_json_or_events() -> None:
    assert encode(make_request()).http.headers == {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
    }


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
    assert isinstance(cause := decoder.error.__cause__, KeyError)
    assert cause.__traceback__ is None, "its frames would keep the reply and the decoder in memory"
    assert d.fold(events).text == "a"


def pieces_of_calls(*calls: dict[str, Any]) -> bytes:
    deltas: list[Any] = [{"delta": {"tool_calls": [call]}} for call in calls]
    deltas.append({"delta": {}, "finish_reason": "tool_calls"})
    return b"".join(
        [b"data: " + json.dumps({"choices": [delta]}).encode() + b"\n\n" for delta in deltas]
    )


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
