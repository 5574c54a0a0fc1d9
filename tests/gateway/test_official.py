"""The reply checker finds each kind of fault, and none in a correct reply."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from .official import Form, check_reply, find_form
from .serving import serving
from .upstream import write_reply

CHAT: dict[str, Any] = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "logprobs": None,
            "message": {"role": "assistant", "content": "Hi", "refusal": None},
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
EVENT: dict[str, Any] = {
    "type": "response.output_text.delta",
    "item_id": "i",
    "output_index": 0,
    "content_index": 0,
    "delta": "Hi",
    "logprobs": [],
    "sequence_number": 3,
}


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


def test_a_correct_reply_matches_the_vendors_schema() -> None:
    assert faults("/v1/chat/completions", CHAT) == []
    assert (
        faults(
            "/v1/messages",
            {**json.loads(write_reply("anthropic", "Hi")), "model": "m", "stop_sequence": None},
        )
        == []
    )
    assert (
        faults("/v1beta/models/m:generateContent", json.loads(write_reply("gemini", "Hi"))) == []
    )
    assert faults("/api/chat", json.loads(write_reply("ollama", "Hi"))) == []


def test_a_missing_field_violates_the_schema_even_if_it_may_be_null() -> None:
    choice = {name: value for name, value in CHAT["choices"][0].items() if name != "logprobs"}
    (fault,) = faults("/v1/chat/completions", {**CHAT, "choices": [choice]})
    assert '"logprobs" is a required property' in fault


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"created": "1"}, "valid integer"),
        ({"created": 1.5}, "valid integer"),
        ({"object": "chat"}, "chat.completion"),
        ({"usage": {"prompt_tokens": 1}}, "completion_tokens"),
    ],
)
def test_value_of_the_wrong_type_violates_the_vendors_schema(
    change: dict[str, Any], text: str
) -> None:
    assert text in "\n".join(faults("/v1/chat/completions", CHAT | change))


def test_an_unknown_field_violates_the_gemini_schema() -> None:
    record = {**json.loads(write_reply("gemini", "Hi")), "candidateTokens": 5}
    assert "candidateTokens" in "\n".join(faults("/v1/models/m:generateContent", record))


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1beta/models/m:countTokens",
        "/api/generate",
    ],
)
def test_error_of_another_shape_violates_the_vendors_schema(path: str) -> None:
    assert faults(path, {"detail": "Not Found"}, 404)


def test_an_error_of_the_documented_shape_matches_the_vendors_schema() -> None:
    error = {"message": "m", "type": "t", "param": None, "code": None}
    assert faults("/v1/responses", {"error": error}, 400) == []
    assert (
        faults(
            "/v1/messages",
            {"type": "error", "error": {"type": "api_error", "message": "m"}, "request_id": "r"},
            500,
        )
        == []
    )
    assert (
        faults(
            "/v1beta/models/m:countTokens",
            {"error": {"code": 400, "message": "m", "status": "S"}},
            400,
        )
        == []
    )


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
    app.state.service = None  # as a gateway has
    with pytest.raises(AssertionError, match="POST /v1/chat/completions 200: ChatCompletion at"):
        async with serving(app) as url, aiohttp.ClientSession(url) as http:
            await http.post("/v1/chat/completions")
