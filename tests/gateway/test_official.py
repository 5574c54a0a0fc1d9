"""Test that the reply checker finds each kind of fault."""

import gzip
import json
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ..wire.cases import RECORDED
from .official import DOCUMENTED, NOT_SENT, Form, check_reply, find_component, find_form
from .serving import serving
from .upstream import write_reply

CHAT: dict[str, Any] = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "logprobs": None,
                 "message": {"role": "assistant", "content": "Hi", "refusal": None}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip
EVENT: dict[str, Any] = {
    "type": "response.output_text.delta", "item_id": "i", "output_index": 0, "content_index": 0,
    "delta": "Hi", "logprobs": [], "sequence_number": 3,
}  # fmt: skip


MESSAGE: dict[str, Any] = {
    **json.loads(write_reply("anthropic", "Hi")),
    "model": "m",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1, "cache_read_input_tokens": None,
              "cache_creation_input_tokens": None},
}  # fmt: skip


TOOL_USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
GEMINI = json.loads(write_reply("gemini", "Hi"))


def form_of(path: str, method: str = "POST") -> Form:
    form = find_form(method, path)
    assert form is not None
    return form


def faults(path: str, record: Any, status: int = 200) -> list[str]:
    return list(
        check_reply(form_of(path), status, "application/json", json.dumps(record).encode())
    )


def stream_faults(path: str, text: str) -> list[str]:
    return list(check_reply(form_of(path), 200, "text/event-stream", text.encode()))


def of_chat(change: dict[str, Any]) -> tuple[str, Any]:
    return "/v1/chat/completions", CHAT | change


def of_message(change: dict[str, Any]) -> tuple[str, Any]:
    return "/v1/messages", MESSAGE | change


CHOICE = {name: value for name, value in CHAT["choices"][0].items() if name != "logprobs"}


# Every test of the gateway shows that correct replies have no fault.
@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (of_chat({"created": "1"}), "valid integer"),
        (of_chat({"created": 1.5}), "valid integer"),
        (of_chat({"object": "chat"}), "chat.completion"),
        (of_chat({"usage": {"prompt_tokens": 1}}), "completion_tokens"),
        # The field is required, even if it may be null.
        (of_chat({"choices": [CHOICE]}), '"logprobs" is a required property'),
        (
            of_message({"usage": {"input_tokens": 1, "output_tokens": 1}}),
            "cache_read_input_tokens",
        ),
        (of_message({"usage": {**MESSAGE["usage"], "output_tokens": -1}}), "the minimum of 0"),
        (of_message({"content": [{**TOOL_USE, "id": "a.b"}]}), "oneOf"),
        (of_message({"content": [{**TOOL_USE, "name": ""}]}), "oneOf"),
        (("/v1/models/m:generateContent", {**GEMINI, "candidateTokens": 5}), "candidateTokens"),
    ],
)
def test_wrong_reply_violates_the_vendors_schema(reply: tuple[str, Any], text: str) -> None:
    found = faults(*reply)
    assert text in "\n".join(found)
    # Only the OpenAPI document describes the bounds of messages.
    assert reply[0] != "/v1/messages" or not [fault for fault in found if "strictly" in fault]


def test_each_event_of_the_openapi_document_has_a_schema() -> None:
    assert find_component(EVENT["type"]).is_valid(EVENT)
    assert not find_component(EVENT["type"]).is_valid({**EVENT, "logprobs": None})
    assert all(find_component(name) is not None for name in DOCUMENTED)


@pytest.mark.recordings
@pytest.mark.parametrize("name", sorted(NOT_SENT["anthropic"]))
def test_each_field_treated_as_optional_is_missing_in_recorded_replies(name: str) -> None:
    holder = {"container": "message", "caller": "tool_use"}.get(name, "usage")
    without = 0
    with gzip.open(RECORDED, "rt") as lines:
        for line in lines:
            call = json.loads(line)
            if "api.anthropic.com" in call["url"] and call["status"] == 200 and not call["stream"]:
                without += any(name not in each for each in find_objects(call, holder))
    assert without >= 20


def find_objects(call: dict[str, Any], holder: str) -> list[dict[str, Any]]:
    reply = json.loads(call["response_body"])
    if holder == "tool_use":
        return [each for each in reply.get("content", ()) if each["type"] == "tool_use"]
    return [reply] if holder == "message" else [reply["usage"]] if "usage" in reply else []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1beta/models/m:countTokens",
        "/api/generate",
    ],
)  # fmt: skip
def test_error_of_another_shape_violates_the_vendors_schema(path: str) -> None:
    assert faults(path, {"detail": "Not Found"}, 404)


def test_stream_events_are_checked_against_the_vendors_schema() -> None:
    right = f"event: {EVENT['type']}\ndata: {json.dumps(EVENT)}\n\n"
    assert stream_faults("/v1/responses", right) == []
    assert stream_faults("/v1/responses", right.replace('"Hi"', "5"))
    assert stream_faults("/v1/responses", right.replace("delta\n", "done\n"))
    assert stream_faults("/v1/responses", 'event: x\ndata: {"type": "x"}\n\n') == [
        "no event of type 'x' is described"
    ]
    assert stream_faults("/v1/responses", right + 'event: cut\ndata: {"ty') == []
    assert stream_faults("/v1/chat/completions", 'data: {"id": "c"}\n\ndata: [DONE]\n\n')
    assert stream_faults("/v1/messages", 'event: ping\ndata: {"type":"ping"}\n\n') == []


async def test_a_gateway_reply_that_violates_the_schema_fails_its_test() -> None:
    async def answer(asked: Request) -> JSONResponse:
        return JSONResponse({"choices": []})

    app = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
    app.state.service = None  # every gateway application has this attribute
    with pytest.raises(AssertionError, match="POST /v1/chat/completions 200: ChatCompletion at"):
        async with serving(app) as url, aiohttp.ClientSession(url) as http:
            await http.post("/v1/chat/completions")
