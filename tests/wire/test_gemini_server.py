"""Streams for clients of the Gemini wire are valid turns for Google's own SDKs."""

from typing import Any

import msgspec
import pytest
from google.genai import types
from google.genai.chats import _validate_response  # pyright: ignore[reportPrivateUsage]

import dragoman as d
from dragoman.events import Assembler, Event
from dragoman.validate import Expectation
from dragoman.wire import SERVER_CODECS, Asked
from dragoman.wire.seal import seal_thought

from .cases import decode, find_cases
from .pairs import WIRES, hear, serve

TOOL = d.Tool("any", "", parameters={"type": "object"})


def read_chunks(data: bytes) -> list[dict[str, Any]]:
    return [
        msgspec.json.decode(frame.removeprefix(b"data: "))
        for frame in data.split(b"\n\n")
        if frame
    ]


def write(events: list[Event], error: d.ProviderError | None, *, stream: bool) -> bytes:
    request = d.Request([d.User("Hi")], tools=(TOOL,), model="m", stream=stream)
    return b"".join(serve("gemini", request, events, error))


@pytest.mark.parametrize("wire", sorted(WIRES))
def test_every_chunk_is_a_turn_that_googles_chat_keeps(wire: str) -> None:
    for case in find_cases(wire, "events.jsonl")[::5]:
        heard = decode(case.codec(), case.request, [case.reply or b""])
        if not heard.events or heard.error is not None:
            continue
        for chunk in read_chunks(write(heard.events, None, stream=True)):
            assert _validate_response(types.GenerateContentResponse.model_validate(chunk)), case


@pytest.mark.parametrize("arguments", ["", '{"a": '])
def test_call_cut_by_the_limit_ends_the_stream_with_max_tokens(arguments: str) -> None:
    request = d.Request([d.User("Hi")], tools=(TOOL,), model="m", stream=True)
    out = Assembler(model="m", expected=Expectation(request))
    out.start()
    out.tool_start(0, "c1", "any")
    out.tool_input(0, arguments)
    out.finish("length", "max_tokens")
    written = write(out.take(), out.error, stream=True)
    *_, last = read_chunks(written)
    assert last["candidates"][0]["finishReason"] == "MAX_TOKENS"
    heard = hear("gemini", request, [written])
    assert isinstance(heard.error, d.MalformedToolCallError)
    ending = heard.events[-1]
    assert isinstance(ending, d.MessageComplete)
    assert ending.finish_reason == "length"


def test_body_of_an_empty_reply_has_a_part() -> None:
    out = Assembler(model="m")
    out.start()
    out.finish("stop")
    asked = Asked(request=d.Request([d.User("Hi")], model="m"))
    encoder = SERVER_CODECS["gemini"].encoder(asked)
    for event in out.take():
        encoder.feed(event)
    (candidate,) = msgspec.json.decode(encoder.end())["candidates"]
    assert candidate["content"]["parts"] == [{"text": ""}]


def test_pieces_of_a_streamed_reply_are_one_block_again() -> None:
    # The history of a chat of Google's SDK has a content for each chunk of a stream.
    parts: list[Any] = [
        {"text": "Hm", "thought": True},
        {"text": ".", "thought": True},
        {"text": "One"},
        {"text": "\n\n"},
        {"text": "two"},
        {"text": "", "thoughtSignature": "c2ln"},
        {"text": "three"},
        {"text": ""},
    ]
    chunks: list[Any] = [{"role": "model", "parts": [part]} for part in parts]
    asked: dict[str, Any] = {"role": "user", "parts": [{"text": "Hi"}]}
    body = msgspec.json.encode({"contents": [asked, *chunks, asked]})
    read = SERVER_CODECS["gemini"].decode(body, "/v1beta/models/m:generateContent").request
    state = d.Continuity("c2ln", issuer=d.Issuer("gemini"))
    assert read.messages[1] == d.Assistant(
        [
            d.Thinking("Hm.", d.Continuity(issuer=d.Issuer("gemini"))),
            d.Text("One\n\ntwo"),
            d.Text("", state),
            d.Text("three"),
        ]
    )


def test_state_that_follows_a_streamed_thought_leaves_the_thought_before_it() -> None:
    issuer = d.Issuer("responses", "v", "m")
    thoughts = [
        d.Thinking(each, d.Continuity(opaque={"id": each}, issuer=issuer)) for each in "ab"
    ]
    parts: list[Any] = []
    for thought in thoughts:
        token = seal_thought(thought.text, thought.continuity)
        parts.append({"text": thought.text, "thought": True})
        parts.append({"text": "", "thought": True, "thoughtSignature": token})
    asked: dict[str, Any] = {"role": "user", "parts": [{"text": "Hi"}]}
    body = msgspec.json.encode({"contents": [asked, {"role": "model", "parts": parts}, asked]})
    read = SERVER_CODECS["gemini"].decode(body, "/v1beta/models/m:generateContent").request
    assert read.messages[1] == d.Assistant(thoughts)
