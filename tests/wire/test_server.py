"""Encoding of replies by the server side, for cases that test_pairs.py does not cover."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import dragoman as d
from dragoman.events import Assembler, Event, MessageComplete, TextDelta, ThinkingDelta, Usage
from dragoman.messages import (
    Continuity,
    Opaque,
    RedactedThinking,
    Request,
    Thinking,
    Tool,
    User,
)
from dragoman.validate import Expectation
from dragoman.wire import SERVER_CODECS, Asked
from dragoman.wire.openai.usage import USAGE
from dragoman.wire.server import state_of
from dragoman.wire.usage import total_tokens


def make(*, finish: str = "stop", **usage: int) -> list[Event]:
    out = Assembler(request_id="R", model="m")
    out.start()
    out.thinking("Hm.")
    out.attach(Thinking, "signed")
    out.text("Yes.")
    out.whole(RedactedThinking("x"))
    out.whole(Opaque({"type": "theirs"}))
    out.usage(Usage(**usage))
    out.finish(finish)  # type: ignore[arg-type]
    return out.take()


def write(wire: str, events: list[Event], *, stream: bool, created: int = 0) -> bytes:
    encoder = SERVER_CODECS[wire].encoder(
        Asked(request=Request([User("Hi")], model="m", stream=stream)), created=created
    )
    return b"".join([encoder.feed(event) for event in events]) + encoder.end()


@pytest.mark.parametrize("wire", SERVER_CODECS)
def test_cancelled_reply_is_sent_to_the_client_as_an_error(wire: str) -> None:
    events = make(finish="cancelled")
    assert b"cancelled" in write(wire, events, stream=True)
    with pytest.raises(d.CallCancelledError):
        write(wire, events, stream=False)


def test_reply_names_the_model_that_the_client_asked_for() -> None:
    encoder = SERVER_CODECS["openai"].encoder(Asked(request=Request([User("Hi")])))
    encoder.served_model = "fast"
    body = b"".join([encoder.feed(event) for event in make()]) + encoder.end()
    assert msgspec.json.decode(body)["model"] == "fast"


def test_first_of_two_counts_of_the_same_tokens_is_used() -> None:
    apart = {"prompt_tokens_details": {"cached_tokens": 5}}
    for record in ({**apart, "cached_tokens": 3}, {"cached_tokens": 3, **apart}):
        assert USAGE.read(record).cached_input_tokens == 5


def test_empty_text_does_not_open_another_block() -> None:
    encoder = SERVER_CODECS["anthropic"].encoder(Asked(request=Request([User("Hi")], stream=True)))
    sent = b"".join(
        [
            encoder.feed(TextDelta("m", "R", content_block_index=0, text=text))
            for text in ("a", "", "b")
        ]
    )
    assert sent.count(b'"content_block_start"') == 1
    assert sent.count(b'"text_delta"') == 2


def test_errors_have_the_types_of_the_messages_api() -> None:
    codec = SERVER_CODECS["anthropic"]
    denied = codec.error(d.AuthenticationError("no", status=403))
    long = codec.error(d.InvalidRequestError("too long", status=413))
    busy = codec.error(d.OverloadedError("busy"))
    kinds = [
        (each.status, msgspec.json.decode(each.body)["error"]["type"])
        for each in (denied, long, busy)
    ]
    assert kinds == [
        (403, "permission_error"),
        (413, "request_too_large"),
        (529, "overloaded_error"),
    ]


def test_cached_and_reasoning_tokens_are_reported() -> None:
    events = make(input_tokens=9, output_tokens=3, cached_input_tokens=5, reasoning_tokens=2)
    usage = {
        wire: msgspec.json.decode(write(wire, events, stream=False))["usage"]
        for wire in ("openai", "responses")
    }
    cached = {"cached_tokens": 5, "cache_write_tokens": 0}
    assert usage["responses"]["input_tokens_details"] == cached
    assert usage["openai"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def test_empty_thinking_without_a_signature_is_not_sent() -> None:
    out = Assembler(request_id="R", model="m")
    out.start()
    out.attach(Thinking, opaque={"type": "reasoning"})
    out.text("Yes.")
    out.finish("stop")
    events = out.take()
    (candidate,) = msgspec.json.decode(write("gemini", events, stream=False))["candidates"]
    assert candidate["content"]["parts"] == [{"text": "Yes."}]


def test_thought_without_text_and_state_gets_no_signature() -> None:
    thought = ThinkingDelta("m", "R", content_block_index=0, text="")
    answer = TextDelta("m", "R", content_block_index=1, text="Yes.")
    encoder = SERVER_CODECS["anthropic"].encoder(Asked(request=Request([User("Hi")], stream=True)))
    sent = encoder.feed(thought) + encoder.feed(answer)
    assert sent.count(b'"content_block_stop"') == 1
    assert b"signature_delta" not in sent


def test_reply_lines_for_ollama_clients_have_timestamps() -> None:
    body: dict[str, Any] = msgspec.json.decode(
        write("ollama", make(), stream=False, created=1_800_000_000)
    )
    assert body["created_at"] == "2027-01-15T08:00:00Z"
    assert body["message"] == {"role": "assistant", "content": "Yes.", "thinking": "Hm."}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", SERVER_CODECS)
def test_unsigned_thinking_and_a_tool_call_are_encoded_for_clients(
    wire: str, stream: bool
) -> None:
    request = Request([User("Hi")], tools=[Tool("patch")], model="m")
    out = Assembler(request_id="R", model="m", expected=Expectation(request))
    out.start()
    out.thinking("Hm.")
    out.tool_start(0, "c1", "patch")
    out.tool_input(0, "{}")
    out.finish("tool_calls")
    written = write(wire, out.take(), stream=stream)
    assert b'"Hm."' in written
    assert b'"patch"' in written


@pytest.mark.parametrize("stream", [False, True])
def test_call_of_a_namespace_tool_contains_the_namespace(stream: bool) -> None:
    request = Request([User("Hi")], tools=[Tool("files__read")], model="m", stream=stream)
    out = Assembler(request_id="R", model="m", expected=Expectation(request))
    out.start()
    out.tool_start(0, "c1", "files__read")
    out.tool_input(0, "{}")
    out.finish("tool_calls")
    asked = Asked(request=request, grouped={"files__read": ("files", "read")})
    encoder = SERVER_CODECS["responses"].encoder(asked, created=0)
    written = b"".join([encoder.feed(event) for event in out.take()]) + encoder.end()
    assert b'"name":"read","namespace":"files"' in written
    assert b"files__read" not in written


# --- custom tools of the Responses wire --------------------------------------------------------


def custom_call(text: str, *, ending: str = "tool_calls") -> list[Any]:
    request = Request([User("Hi")], tools=[Tool("patch")], model="m")
    out = Assembler(request_id="R", model="m", expected=Expectation(request))
    out.start()
    out.tool_start(0, "c1", "patch")
    out.tool_input(0, text)
    out.finish(ending)  # type: ignore[arg-type]
    return out.take()


def frames_of(data: bytes) -> list[Any]:
    return [
        msgspec.json.decode(line[6:]) for line in data.splitlines() if line.startswith(b"data: ")
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [('{"input": "*** Begin"}', "*** Begin"), ('{"input": [1]}', "[1]"), ("{}", "")],
)
def test_custom_tool_call_contains_free_text(text: str, wanted: str) -> None:
    server = SERVER_CODECS["responses"]
    for stream in (False, True):
        asked = Asked(
            request=Request([User("Hi")], model="m", stream=stream), custom=frozenset({"patch"})
        )
        encoder = server.encoder(asked)
        data = b"".join([encoder.feed(event) for event in custom_call(text)]) + encoder.end()
        last = frames_of(data)[-1]["response"] if stream else msgspec.json.decode(data)
        (item,) = last["output"]
        facts = (item["type"], item["name"], item["input"], item["call_id"])
        assert facts == ("custom_tool_call", "patch", wanted, "c1")
        if stream:
            kinds = [frame["type"] for frame in frames_of(data)]
            assert "response.custom_tool_call_input.done" in kinds
            assert "response.function_call_arguments.delta" not in kinds


def test_truncated_call_of_a_custom_tool_is_marked_as_incomplete() -> None:
    server = SERVER_CODECS["responses"]
    asked = Asked(
        request=Request([User("Hi")], model="m", stream=True), custom=frozenset({"patch"})
    )
    encoder = server.encoder(asked)
    data = b"".join(
        [encoder.feed(event) for event in custom_call('{"input": "***', ending="length")]
    )
    data += encoder.fail(d.MalformedToolCallError("cut"))
    (item,) = frames_of(data)[-1]["response"]["output"]
    assert item["type"] == "custom_tool_call"
    assert item["status"] == "incomplete"
    assert b"custom_tool_call_input.done" not in data


def test_response_object_repeats_settings_of_the_request() -> None:
    asked = Asked(
        request=Request([User("Hi")], model="m"),
        echo={"text": {"format": {"type": "json_object"}}, "store": True},
    )
    encoder = SERVER_CODECS["responses"].encoder(asked)
    out = Assembler(request_id="R", model="m")
    out.start()
    out.text("Hi")
    out.finish("stop")
    for event in out.take():
        encoder.feed(event)
    made = msgspec.json.decode(encoder.end())
    assert made["text"] == {"format": {"type": "json_object"}}
    assert made["store"] is True


def test_error_for_an_unsupported_thread_contains_its_error_code() -> None:
    error = d.UnsupportedFeatureError("thread: not kept")
    error.provider_code = "thread_unsupported_request"
    reply = msgspec.json.decode(SERVER_CODECS["anthropic"].error(error).body)
    assert reply["error"]["details"] == {"error_code": "thread_unsupported_request"}


def test_response_body_carries_redacted_thinking_in_a_reasoning_item() -> None:
    body = msgspec.json.decode(
        write("responses", make(input_tokens=1, output_tokens=2), stream=False)
    )
    kinds = [item["type"] for item in body["output"]]
    assert kinds == ["reasoning", "message", "reasoning", "opaque"]


@pytest.mark.parametrize(
    ("usage", "total"),
    [(Usage(1, 2), 3), (Usage(1, 2, total_tokens=9), 9), (Usage(1, None), None)],
)
def test_total_tokens_are_the_reported_total_or_the_sum(usage: Usage, total: int | None) -> None:
    assert total_tokens(usage) == total


@pytest.mark.parametrize(
    ("continuity", "expected"),
    [(None, Continuity("s")), (Continuity("own"), Continuity("own"))],
)
def test_state_of_a_fragment_may_be_a_signature_alone(
    continuity: Continuity | None, expected: Continuity
) -> None:
    event = ThinkingDelta(
        "m", "R", content_block_index=0, text="Hm.", signature="s", continuity=continuity
    )
    assert state_of(event) == expected


def test_thought_without_text_and_state_is_not_an_item_for_responses_clients() -> None:
    out = Assembler(model="m")
    out.start()
    out.text("Yes.")
    out.finish("stop")
    *events, ending = out.take()
    assert isinstance(ending, MessageComplete)
    final = (Thinking(""), *ending.final_content)
    body = msgspec.json.decode(
        write("responses", [*events, replace(ending, final_content=final)], stream=False)
    )
    assert [each["type"] for each in body["output"]] == ["message"]
