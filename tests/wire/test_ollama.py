"""Ollama's native wire, which uses JSON lines."""

import json
from typing import Any

import pytest

import dragoman as d
from dragoman.events import Assembler
from dragoman.wire import HttpReply
from dragoman.wire.ollama import OllamaCodec, Quirks

from .cases import cut_at_random, decode, find_cases, with_crlf

TOOL = d.Tool(
    "weather",
    "W",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def codec(**quirks: Any) -> OllamaCodec:
    return OllamaCodec("m", "http://127.0.0.1:11434", Quirks(**quirks))


def line(content: str = "", *, done: bool = False, **more: Any) -> bytes:
    message = {"role": "assistant", "content": content, **more.pop("message", {})}
    return json.dumps({"model": "m", "message": message, "done": done, **more}).encode() + b"\n"


LAST = line(done=True, done_reason="stop", prompt_eval_count=7, eval_count=3)


def read(
    *chunks: bytes, tools: tuple[d.Tool, ...] = (), stream: bool = True
) -> tuple[list[Any], d.ProviderError | None]:
    request = d.Request([d.User("x")], tools, stream=stream)
    decoder = codec().decoder(request, Assembler())
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    events += decoder.end()
    d.check_events(events)
    return events, decoder.error


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def test_line_ends_and_empty_lines_change_nothing() -> None:
    for case in find_cases("ollama", "reply.ndjson"):
        reply = case.reply or b""
        whole = decode(case.codec(), case.request, [reply]).facts
        for data in (
            with_crlf(reply),
            reply.replace(b"\n", b"\n\n \n"),
            reply.removesuffix(b"\n"),
        ):
            heard = decode(case.codec(), case.request, cut_at_random(data, case.name))
            assert heard.facts == whole, case


@pytest.mark.parametrize(
    ("word", "after", "sound"),
    [("stop", b"", True), ("length", b"", False), ("length", line("x"), True)],
)
def test_missing_tool_arguments_mean_no_arguments_only_in_a_complete_call(
    word: str, after: bytes, sound: bool
) -> None:
    call = line(message={"tool_calls": [{"function": {"name": "any", "arguments": None}}]})
    events, error = read(call + after + line(done=True, done_reason=word), tools=(d.Tool("any"),))
    end = next(event for event in events if isinstance(event, d.ToolUseEnd))
    assert (end.intent is not None, end.problem is None) == (sound, sound)
    assert isinstance(error, d.MalformedToolCallError) == (not sound)


def test_tool_arguments_in_a_json_string_are_read() -> None:
    call = line(message={"tool_calls": [{"function": {"name": "any", "arguments": '{"a": 1}'}}]})
    assert d.fold(read(call + LAST, tools=(d.Tool("any"),))[0]).tool_calls[0].arguments == {"a": 1}


def test_last_line_needs_no_message() -> None:
    response = d.fold(read(line("x") + b'{"done": true, "done_reason": "length"}\n')[0])
    assert (response.text, response.finish_reason) == ("x", "length")


@pytest.mark.parametrize("word", ["", 5])
def test_finish_reason_that_is_no_word_means_stop(word: Any) -> None:
    for end in (line(done=True, done_reason=word), b'{"done": true}'):
        assert d.fold(read(line("x") + end)[0]).finish_reason == "stop"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (line("Hel"), d.StreamInterruptedError),
        (b"", d.StreamInterruptedError),
        (line("Hel") + b'{"error": "something broke"}\n', d.UnavailableError),
        (b"<html>", d.InvalidResponseError),
        (b"nonsense\n", d.InvalidResponseError),
        (b'{"message": 5}\n', d.InvalidResponseError),
        (b"{}\n", d.InvalidResponseError),
        (b"[1]\n", d.InvalidResponseError),
    ],
)
def test_broken_streams_raise_the_right_error(data: bytes, kind: type[d.ProviderError]) -> None:
    assert type(read(data)[1]) is kind
    assert type(read(*bytewise(data))[1]) is kind


def test_invalid_utf8_in_text_is_replaced() -> None:
    data = b'{"message": {"content": "\\ud83d x \xff", "thinking": 5}, "done": true}\n'
    assert d.fold(read(data)[0]).text == "� x �"
    assert d.fold(read(line(message={"content": None, "thinking": "hm"}) + LAST)[0]).text == ""


def test_request_with_every_setting_is_encoded() -> None:
    config = d.RuntimeConfig(0.5, 9, 0.9, 1, 0.1, 0.2, ["a"], "high", {"stop": "b", "mirostat": 1})
    conversation = [
        d.System("S"),
        d.User([d.Text("Look"), d.Image(d.Inline("aGk="), "image/png", "low"),
                d.Image(d.Inline("aG8="), "image/png")]),
        d.Assistant([d.Thinking("hm"), d.Text("ok"),
                     d.ToolCall("c1", "weather", {"city": "Oslo"})]),
        d.ToolResult("c1", "rain", is_error=True),
    ]  # fmt: skip
    request = d.Request(conversation, (TOOL,), config, SCHEMA, d.ForceTool("weather"), stream=True)
    encoded = codec(num_ctx=8192, keep_alive="5m").encode(request)
    body = json.loads(encoded.http.body)
    assert encoded.http.url == "http://127.0.0.1:11434/api/chat"
    assert list(body)[-1] == "messages"
    assert body["options"] == {
        "temperature": 0.5, "num_predict": 9, "top_p": 0.9, "seed": 1, "frequency_penalty": 0.1,
        "presence_penalty": 0.2, "stop": ["a", "b"], "num_ctx": 8192, "mirostat": 1,
    }  # fmt: skip
    found = (body["think"], body["keep_alive"], body["format"], body["stream"])
    assert found == ("high", "5m", SCHEMA, True)
    assert body["messages"] == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Look", "images": ["aGk=", "aG8="]},
        {"role": "assistant", "content": "ok", "thinking": "hm",
         "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Oslo"}}}]},
        {"role": "tool", "tool_name": "weather", "content": "rain"},
    ]  # fmt: skip
    facts = {warning.code for warning in encoded.warnings}
    assert facts == {"tool_choice_dropped", "detail_dropped", "is_error_dropped"}
    assert encoded.structured_path == "native"


def test_unsupported_content_is_rejected_or_reported() -> None:
    for blocks in ([d.Image(d.Url("https://x"))], [d.Document(d.Inline("eA=="))]):
        with pytest.raises(d.UnsupportedContentError):
            codec().encode(d.Request([d.User(blocks)]))
    with pytest.raises(d.UnsupportedFeatureError):
        codec().encode(d.Request([d.User("x")], config=d.RuntimeConfig(reasoning="xhigh")))
    messages = [
        d.User("x"),
        d.Assistant([d.Thinking("cut", d.Continuity(replayable=False))]),
        d.Assistant(
            [d.ToolCall("c", "f", {}, d.Continuity("sig")), d.Text("after"), d.Opaque({})]
        ),
        d.ToolResult("c", [d.Text("a"), d.Text("b")]),
        d.Assistant("plain"),
        d.User("y"),
    ]
    encoded = codec(structured="prompt").encode(
        d.Request(messages, (), d.RuntimeConfig(reasoning="none"), SCHEMA)
    )
    body = json.loads(encoded.http.body)
    assert body["think"] is False
    assert body["messages"][0]["content"].startswith("Reply with nothing but")
    assert [note.code for note in encoded.notes] == [
        "thinking_dropped", "continuity_dropped", "message_dropped", "continuity_dropped",
        "order_lost",
        "opaque_dropped",
    ]  # fmt: skip


def ask(*replies: tuple[int, Any]) -> None:
    questions = codec().ready()
    next(questions)
    for status, body in replies:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            questions.send(HttpReply(status, {}, data))
        except StopIteration:
            return


def test_tools_that_may_not_be_called_are_omitted_and_noted() -> None:
    encoded = codec().encode(d.Request([d.User("x")], [TOOL], tool_choice="none"))
    assert b"weather" not in encoded.http.body
    assert [(note.code, note.path, note.loss) for note in encoded.notes] == [
        ("tools_omitted", "tool_choice", False)
    ]


def test_readiness_is_checked() -> None:
    there, nothing = {"models": [5, {"name": "m:latest"}]}, {"models": []}
    ask((200, there), (200, there), (400, {"error": "model is required"}))
    for replies, kind in (
        ([(200, nothing)], d.InvalidModelError),
        ([(200, {"models": 5})], d.InvalidModelError),
        ([(200, there), (200, nothing)], d.ModelNotLoadedError),
        ([(200, there), (200, there), (401, {"error": "no"})], d.AuthenticationError),
        ([(500, {})], d.UnavailableError),
        ([(200, b"nonsense")], d.InvalidResponseError),
    ):
        with pytest.raises(kind):
            ask(*replies)
