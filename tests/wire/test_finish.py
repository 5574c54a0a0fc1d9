"""Each finish reason of a wire is decoded from a reply written by hand, independently of
recordings.
"""

import json
from importlib import import_module

import pytest

import dragoman as d
from dragoman.capabilities import Capabilities
from dragoman.events import Assembler
from dragoman.wire import CODECS, SERVER_CODECS, Asked

from .cases import BASE_URL, MODEL, DecodedReply, decode, plain_request
from .replies import Call, reply

READ = {wire: import_module(f"dragoman.wire.{wire}.finish").FINISH.read for wire in CODECS}
ENDS: dict[str, dict[str, str]] = {
    "openai": {
        "stop": "stop",
        "length": "length",
        "tool_calls": "tool_calls",
        "function_call": "tool_calls",
        "tool_call": "tool_calls",
        "content_filter": "content_filter",
        "error": "error",
        "model_length": "length",
        "model_context_window_exceeded": "length",
        "sensitive": "content_filter",
        "network_error": "error",
    },
    "anthropic": {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "pause_turn": "stop",
        "compaction": "stop",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "tool_use": "tool_calls",
        "refusal": "content_filter",
    },
    "gemini": {
        "STOP": "stop",
        "MAX_TOKENS": "length",
        "SAFETY": "content_filter",
        "RECITATION": "content_filter",
        "BLOCKLIST": "content_filter",
        "PROHIBITED_CONTENT": "content_filter",
        "SPII": "content_filter",
        "IMAGE_SAFETY": "content_filter",
        "IMAGE_PROHIBITED_CONTENT": "content_filter",
        "IMAGE_RECITATION": "content_filter",
        "MODEL_ARMOR": "content_filter",
        "OTHER": "error",
    },
    "responses": {
        "completed": "stop",
        "complete": "stop",
        "max_output_tokens": "length",
        "max_tokens": "length",
        "content_filter": "content_filter",
    },
    "ollama": {
        "stop": "stop",
        "length": "length",
        "load": "stop",
        "unload": "stop",
        "content_filter": "content_filter",
    },
    "bedrock": {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "tool_use": "tool_calls",
        "guardrail_intervened": "content_filter",
        "content_filtered": "content_filter",
        "malformed_model_output": "error",
        "malformed_tool_use": "error",
    },
    "cohere": {
        "COMPLETE": "stop",
        "STOP_SEQUENCE": "stop",
        "MAX_TOKENS": "length",
        "TOOL_CALL": "tool_calls",
        "ERROR_TOXIC": "content_filter",
        "ERROR_LIMIT": "length",
        "ERROR": "error",
        "TIMEOUT": "error",
        "USER_CANCEL": "error",
    },
}


def hear(wire: str, word: str, *calls: Call) -> DecodedReply:
    codec = CODECS[wire].connect(MODEL, BASE_URL, None, Capabilities())
    body = json.dumps(reply(wire, "Hi", *calls, finish=word)).encode()
    return decode(codec, plain_request(stream=False), [body], judged=False)


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_finish_reasons_of_each_wire_are_read(wire: str) -> None:
    assert READ[wire] == ENDS[wire]
    for word, reason in ENDS[wire].items():
        heard = hear(wire, word, *([("c", "f", {})] if reason == "tool_calls" else []))
        found = heard.response or (heard.error.response if heard.error is not None else None)
        assert found is not None, word
        assert found.text == "Hi", word
        assert found.finish_reason == reason, word


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_unknown_finish_reason_is_an_error_without_an_exception(wire: str) -> None:
    heard = hear(wire, "NOT_INVENTED_YET")
    assert heard.error is None
    assert heard.response is not None
    found = (heard.response.text, heard.response.finish_reason, heard.response.finish_raw)
    assert found == ("Hi", "error", "NOT_INVENTED_YET")


@pytest.mark.parametrize("client", sorted(SERVER_CODECS))
def test_filtered_reply_has_one_word_for_a_client_whatever_the_model_says(client: str) -> None:
    found = set()
    for wire in sorted(set(READ) - {client}):
        for raw, meaning in READ[wire].items():
            if (
                meaning != "content_filter"
                or raw in SERVER_CODECS[client].stream_type.finish.written
            ):
                continue
            out = Assembler(model="m")
            out.start()
            out.finish("content_filter", raw)
            asked = Asked(request=d.Request([d.User("Hi")], model="m"))
            encoder = SERVER_CODECS[client].encoder(asked)
            for event in out.take():
                encoder.feed(event)
            assert encoder.complete is not None
            found.add(encoder.finish_word(encoder.complete))
    assert len(found) == 1
    assert SERVER_CODECS[client].stream_type.finish.written[found.pop()] == "content_filter"


@pytest.mark.parametrize("client", sorted(SERVER_CODECS))
@pytest.mark.parametrize("raw", ["ERROR", "OTHER", "malformed_model_output", "NOT_INVENTED_YET"])
def test_failed_reply_of_another_wire_has_a_word_of_the_clients_wire(
    client: str, raw: str
) -> None:
    out = Assembler(model="m")
    out.start()
    out.text("Half")
    out.finish("error", raw)
    events = out.take()
    words = SERVER_CODECS[client].stream_type.finish
    for is_own in (False, True):
        encoder = SERVER_CODECS[client].encoder(
            Asked(request=d.Request([d.User("Hi")], model="m"))
        )
        encoder.is_own = is_own
        for event in events:
            encoder.feed(event)
        assert encoder.complete is not None
        word = encoder.finish_word(encoder.complete)
        if "error" in words.written.values():
            assert words.written[word] == "error"
        else:
            # A model of the wire of the client may use a new term.
            assert word == (raw if is_own else words.choose("length", None, is_own=True))
