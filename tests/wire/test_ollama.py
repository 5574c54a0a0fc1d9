"""Ollama's native wire, which uses JSON lines."""

import json
from typing import Any

import pytest

import dragoman as d
from dragoman.wire import HttpReply
from dragoman.wire.ollama import OllamaCodec, Quirks

from .cases import cut_at_random, decode, find_cases, with_crlf


def codec(**quirks: Any) -> OllamaCodec:
    return OllamaCodec("m", "http://127.0.0.1:11434", Quirks(**quirks))


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


def ask(*replies: tuple[int, Any]) -> None:
    questions = codec().ready()
    next(questions)
    for status, body in replies:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            questions.send(HttpReply(status, {}, data))
        except StopIteration:
            return


def test_readiness_is_checked() -> None:
    there = {"models": [5, {"name": "m:latest"}]}
    nothing = {"models": []}
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


def test_body_of_several_lines_is_read_although_one_was_requested() -> None:
    lines = [
        {"model": "m", "message": {"role": "assistant", "content": "Hel"}, "done": False},
        {"model": "m", "message": {"role": "assistant", "content": "lo"}, "done": True,
         "done_reason": "stop"},
    ]  # fmt: skip
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    heard = decode(codec(), d.Request([d.User("Hi")], model="m"), [body])
    ending = heard.events[-1]
    assert isinstance(ending, d.MessageComplete)
    assert ending.final_content == (d.Text("Hello"),)
    assert ending.kept is not None
    assert len(ending.kept.value["chunks"]) == 2


def test_bytes_that_are_not_lines_of_json_are_an_invalid_reply() -> None:
    heard = decode(codec(), d.Request([d.User("Hi")], model="m", stream=True), [b"<html>\n"])
    assert isinstance(heard.error, d.InvalidResponseError)


@pytest.mark.parametrize("body", [b"da", b"data:"])
def test_start_of_an_event_stream_is_an_invalid_reply(body: bytes) -> None:
    heard = decode(codec(), d.Request([d.User("Hi")], model="m", stream=True), [body])
    assert isinstance(heard.error, d.InvalidResponseError)
    assert "not lines of JSON" in str(heard.error)
