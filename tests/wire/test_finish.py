"""Each finish reason of a wire is decoded from a reply written by hand, independently of
recordings.
"""

import json

import pytest

from dragoman.capabilities import Capabilities
from dragoman.wire import CODECS
from dragoman.wire.finish import READ

from .cases import BASE_URL, MODEL, DecodedReply, decode, plain_request
from .replies import Call, reply

ENDS: dict[str, dict[str, str]] = {
    "openai": {"stop": "stop", "length": "length", "tool_calls": "tool_calls",
               "function_call": "tool_calls", "tool_call": "tool_calls",
               "content_filter": "content_filter", "error": "error"},
    "anthropic": {"end_turn": "stop", "stop_sequence": "stop", "pause_turn": "stop",
                  "compaction": "stop", "max_tokens": "length",
                  "model_context_window_exceeded": "length", "tool_use": "tool_calls",
                  "refusal": "content_filter"},
    "gemini": {"STOP": "stop", "MAX_TOKENS": "length", "SAFETY": "content_filter",
               "RECITATION": "content_filter", "BLOCKLIST": "content_filter",
               "PROHIBITED_CONTENT": "content_filter", "SPII": "content_filter",
               "IMAGE_SAFETY": "content_filter", "IMAGE_PROHIBITED_CONTENT": "content_filter",
               "IMAGE_RECITATION": "content_filter", "MODEL_ARMOR": "content_filter"},
    "responses": {"completed": "stop", "complete": "stop", "max_output_tokens": "length",
                  "max_tokens": "length", "content_filter": "content_filter"},
    "ollama": {"stop": "stop", "length": "length", "load": "stop", "unload": "stop"},
    "bedrock": {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length",
                "model_context_window_exceeded": "length", "tool_use": "tool_calls",
                "guardrail_intervened": "content_filter", "content_filtered": "content_filter",
                "malformed_model_output": "error", "malformed_tool_use": "error"},
    "cohere": {"COMPLETE": "stop", "STOP_SEQUENCE": "stop", "MAX_TOKENS": "length",
               "TOOL_CALL": "tool_calls", "ERROR_TOXIC": "content_filter", "ERROR_LIMIT": "length",
               "ERROR": "error", "TIMEOUT": "error", "USER_CANCEL": "error"},
}  # fmt: skip


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
        assert (found.text, found.finish_reason) == ("Hi", reason), word


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_unknown_finish_reason_is_an_error_without_an_exception(wire: str) -> None:
    heard = hear(wire, "NOT_INVENTED_YET")
    assert heard.error is None
    assert heard.response is not None
    found = (heard.response.text, heard.response.finish_reason, heard.response.finish_raw)
    assert found == ("Hi", "error", "NOT_INVENTED_YET")
