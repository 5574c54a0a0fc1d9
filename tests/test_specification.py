"""Rules of the provider specification that are easily broken, tested through the public API."""

# mypy: disable-error-code="arg-type,list-item"

import json
from typing import Any

import msgspec
import pytest

import dragoman as d
from dragoman.provider import HttpProvider
from dragoman.registry.vendors import load_vendor
from dragoman.transport import FixtureTransport
from dragoman.wire import CODECS
from tests.rows import read_table

from .server import DONE

KEY = "sk-secret-0123456789abcdef"
EMPTY = {"type": "object", "properties": {}}


def fixed(*replies: tuple[int, Any], **settings: Any) -> tuple[HttpProvider, FixtureTransport]:
    transport = FixtureTransport(
        *[
            (status, {}, [body if isinstance(body, bytes) else json.dumps(body).encode()])
            for status, body in replies
        ]
    )
    model = d.connect(
        "m", base_url="http://127.0.0.1:9/v1", transport=transport, api_key=KEY, **settings
    )
    assert isinstance(model, HttpProvider)
    return model, transport


def choice(message: Any, finish: str | None = "stop", **fields: Any) -> dict[str, Any]:
    return {"index": 0, "message": message, "finish_reason": finish, **fields}


def answer(text: str = "ok") -> dict[str, Any]:
    return {"choices": [choice({"role": "assistant", "content": text})]}


def calls(arguments: Any, call_id: str = "c1", finish: str = "tool_calls") -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {
        "choices": [choice({"role": "assistant", "content": None, "tool_calls": [call]}, finish)]
    }


def frames(*chunks: dict[str, Any]) -> bytes:
    """Return the body of a stream."""
    return b"".join([b"data: %s\n\n" % json.dumps(each).encode() for each in chunks]) + DONE


HI = d.User("hi")


async def test_empty_text_with_a_signature_may_be_sent_back() -> None:
    signed = d.Assistant([d.Text("", d.Continuity("c2ln", issuer=d.Issuer("gemini", None, "m")))])
    model, transport = fixed(
        (200, {"candidates": [{"content": {"parts": [{"text": "ok"}]}, "finishReason": "STOP"}]}),
        wire="gemini",
    )
    assert (await model.complete([HI, signed, HI])).text == "ok"
    sent = json.loads(transport.requests[0].body)["contents"][1]["parts"]
    assert sent == [{"text": "", "thoughtSignature": "c2ln"}]


async def test_tool_call_ids_of_any_length_are_sent_back_unchanged() -> None:
    made = "chatcmpl-tool-" + "0123456789abcdef" * 8
    model, transport = fixed((200, calls("{}", made)), (200, answer()))
    reply = await model.complete("hi", [d.Tool("f")])
    await model.complete(
        [HI, reply.message, d.ToolResult(reply.tool_calls[0].id, "r")], [d.Tool("f")]
    )
    sent = json.loads(transport.requests[1].body)["messages"]
    assert [sent[1]["tool_calls"][0]["id"], sent[2]["tool_call_id"]] == [made, made]


def test_tool_call_id_limits_depend_on_the_vendor() -> None:
    for vendor in ("openai", "azure"):
        assert load_vendor(vendor).quirks["id_rule"] == {"max_length": 40, "any_character": True}


@pytest.mark.parametrize(
    "choices",
    [
        [choice({"content": "x"}, index=1)],
        [choice({"content": "x"}, index=None)],
        [choice({"content": "x"}, index=None), choice({"content": "y"}, "length", index=None)],
        [choice({"content": "y"}, "length", index=1), choice({"content": "x"}, index=0)],
    ],
)
async def test_choice_with_index_0_is_read(choices: list[Any]) -> None:
    model, _ = fixed((200, {"choices": choices}))
    reply = await model.complete("hi")
    assert reply.text == "x"
    assert reply.finish_reason == "stop"


@pytest.mark.parametrize(
    ("extras", "indices", "text"),
    [({}, [1, 1], "ab"), ({"n": 2}, [1, 0], "b"), ({}, [None, None], "ab")],
)
async def test_stream_choices_have_an_index(extras: Any, indices: list[Any], text: str) -> None:
    chunks = [
        {"choices": [{"index": index, "delta": {"content": piece}, "finish_reason": "stop"}]}
        for index, piece in zip(indices, "ab", strict=True)
    ]
    model, _ = fixed((200, frames(*chunks)))
    stream = model.stream("hi", extras=extras)
    async for _ in stream:
        pass
    assert stream.response.text == text


@pytest.mark.parametrize(
    ("found", "count"),
    [
        ("x", 0),
        ([None], 0),
        ([{"id": "c", "function": "x"}], 1),
        ([{"id": "c", "function": {"name": "f"}}, 5], 1),
    ],
)
async def test_invalid_tool_calls_of_a_failed_reply_do_not_raise(found: Any, count: int) -> None:
    body = {
        "choices": [
            choice({"role": "assistant", "content": "so far", "tool_calls": found}, "error")
        ]
    }
    model, _ = fixed((200, body))
    reply = await model.complete("hi", [d.Tool("f")])
    assert reply.finish_reason == "error"
    assert reply.text == "so far"
    assert len(reply.tool_calls) == count
    assert reply.raw == body


NULLS: dict[str, Any] = {
    "openai": {
        "choices": [
            {
                "index": 0,
                "message": {
                    "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "null"}}]
                },
                "finish_reason": "stop",
            }
        ]
    },
    "responses": {
        "status": "completed",
        "output": [
            {
                "type": "function_call",
                "call_id": "c",
                "name": "f",
                "arguments": "null",
                "status": "completed",
            }
        ],
    },
    "anthropic": {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c", "name": "f", "input": None}],
        "stop_reason": "tool_use",
    },
    "gemini": {
        "candidates": [
            {
                "content": {"parts": [{"functionCall": {"name": "f", "args": None}}]},
                "finishReason": "STOP",
            }
        ]
    },
    "bedrock": {
        "output": {
            "message": {"content": [{"toolUse": {"toolUseId": "c", "name": "f", "input": None}}]}
        },
        "stopReason": "tool_use",
    },
    "cohere": {
        "message": {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": None}}]},
        "finish_reason": "TOOL_CALL",
    },
    "ollama": {
        "message": {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": None}}],
        },
        "done": True,
        "done_reason": "stop",
    },
}


@pytest.mark.parametrize("wire", sorted(CODECS))
async def test_null_tool_arguments_mean_no_arguments(wire: str) -> None:
    model, _ = fixed((200, NULLS[wire]), wire=wire)
    reply = await model.complete("hi", [d.Tool("f", "", parameters=EMPTY)], max_tokens=9)
    assert [call.arguments for call in reply.tool_calls] == [{}]
    assert reply.finish_reason == "tool_calls"


async def refusal(status: int, body: Any, **settings: Any) -> d.ProviderError:
    model, _ = fixed((status, body), **settings)
    with pytest.raises(d.ProviderError) as caught:
        await model.complete("What is the weather like?", max_tokens=9)
    return caught.value


async def test_error_keeps_its_parameter_inner_error_and_body() -> None:
    inner = {
        "code": "ResponsibleAIPolicyViolation",
        "content_filter_result": {"hate": {"filtered": True}},
    }
    body = {
        "error": {
            "message": f"filtered, {KEY}",
            "param": "prompt",
            "code": "content_filter",
            "innererror": inner,
        }
    }
    error = await refusal(400, body)
    assert isinstance(error, d.InvalidRequestError)
    assert error.param == "prompt"
    assert error.inner_error == inner
    assert error.body == {"error": {**body["error"], "message": "filtered, [hidden]"}}
    assert KEY not in str(vars(error))
    assert "ResponsibleAIPolicyViolation" not in str(error)


@pytest.mark.parametrize("wire", sorted(CODECS))
async def test_every_wire_keeps_the_body_of_an_error(wire: str) -> None:
    body = {
        "error": {
            "message": "no",
            "param": "p",
            "details": [{"reason": "WHY"}],
            "status": "INVALID_ARGUMENT",
        }
    }
    error = await refusal(400, body, wire=wire)
    assert error.body == body
    assert error.param == "p"
    assert error.inner_error == [{"reason": "WHY"}]


async def test_size_of_error_bodies_is_limited() -> None:
    error = await refusal(500, b'{"error": "' + b"x" * 100_000 + b'"}')
    assert isinstance(error.body, str)
    assert len(error.body) <= 16 * 1024
    assert error.inner_error is None
    assert (await refusal(500, b"")).body is None
    assert (await refusal(500, b"<html>no</html>")).body == "<html>no</html>"


@pytest.mark.parametrize(
    "body", [b'{"choices": []}', b"[1, 2]", b"<html>hello</html>", b'{"choices": [{}]}']
)
async def test_body_of_an_unreadable_reply_is_kept_on_the_error(body: bytes) -> None:
    error = await refusal(200, body)
    assert isinstance(error, d.InvalidResponseError)
    assert error.body_text == body.decode()


@pytest.mark.parametrize("stream", [False, True])
async def test_error_with_status_200_keeps_the_text_received_with_it(stream: bool) -> None:
    part = {"role": "assistant", "content": "so far"}
    body: Any = {
        "choices": [{"index": 0, "delta" if stream else "message": part}],
        "error": {"message": "no"},
    }
    body = b"data: " + json.dumps(body).encode() + b"\n\n" if stream else body
    error = await refusal(200, body)
    assert error.response.text == "so far"
    assert error.response.finish_reason == "error"
    empty = {"choices": [{"index": 0, "message": {"content": ""}}], "error": {"message": "no"}}
    assert (await refusal(200, empty)).response is None


async def test_error_with_status_200_keeps_its_body() -> None:
    error = await refusal(200, {"error": {"message": "no", "code": 400, "innererror": {"x": 1}}})
    assert error.inner_error == {"x": 1}


@pytest.mark.parametrize("wire", sorted(CODECS))
@pytest.mark.parametrize(
    "message", ["Payment required", "Insufficient credits", "insufficient_quota"]
)
async def test_payment_required_is_a_billing_error(wire: str, message: str) -> None:
    error = await refusal(402, {"type": "error", "error": {"message": message}}, wire=wire)
    assert type(error) is d.BillingError
    assert isinstance(error, d.AuthenticationError)
    found = (error.category, error.error_class, error.kind, error.transient)
    assert found == ("provider_authentication", "auth", "quota", False)


LISTED = {"data": [{"id": "m"}]}


async def test_wrong_key_is_reported_even_if_the_model_list_is_public() -> None:
    model, transport = fixed(
        (401, {"error": {"message": "User not found."}}), quirks={"readiness": "key"}
    )
    with pytest.raises(d.AuthenticationError):
        await model.ready()
    assert [request.url for request in transport.requests] == ["http://127.0.0.1:9/v1/key"]
    for status in (200, 404):
        model, transport = fixed((status, {}), (200, LISTED), quirks={"readiness": "key"})
        await model.ready()
        assert len(transport.requests) == 2


def test_catalogue_marks_vendors_with_a_public_model_list() -> None:
    model = d.connect("openrouter:openai/gpt-5", api_key="k")
    assert isinstance(model, HttpProvider)
    assert model.codec.quirks.readiness == "key"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("entry", "state"), read_table("model_that_cannot_chat_is_not_ready"))
async def test_model_that_cannot_chat_is_not_ready(entry: dict[str, Any], state: str) -> None:
    model, _ = fixed((200, {"data": [{"id": "m", **entry}]}), quirks={"readiness": "models"})
    with pytest.raises(d.ModelNotLoadedError, match=f"lists the model as {state}"):
        await model.ready()


@pytest.mark.parametrize(
    "entry", [{"state": "loaded", "loaded": False}, {"ready": True}, {"status": "active"}]
)
async def test_model_that_can_chat_is_ready(entry: dict[str, Any]) -> None:
    model, _ = fixed((200, {"data": [{"id": "m", **entry}]}), quirks={"readiness": "models"})
    await model.ready()


@pytest.mark.parametrize("wire", ["ollama", "bedrock", "gemini", "anthropic"])
@pytest.mark.parametrize("hint", [True, False])
async def test_unsupported_hint_is_accepted_if_losses_are_errors(wire: str, hint: bool) -> None:
    image = d.Image(d.Inline("aGk="), "image/png", detail="high" if hint else None)
    thinking = [
        d.Assistant(
            [d.Thinking("so", d.Continuity("s", issuer=d.Issuer("x", None, "m"))), d.Text("x")]
        ),
        HI,
    ]
    model, transport = fixed((503, {}), wire=wire, on_loss="reject")
    expected = d.UnavailableError if hint else d.UnsupportedContentError
    with pytest.raises(expected):
        await model.complete([d.User([image]), *([] if hint else thinking)], max_tokens=5)
    assert len(transport.requests) == (1 if hint else 0)


@pytest.mark.parametrize("wire", ["openai", "responses"])
@pytest.mark.parametrize("status", [401, 403, 400, 422])
async def test_ready_means_that_the_key_is_accepted(wire: str, status: int) -> None:
    """Many compatible servers list their models to anyone."""
    refusal = {"error": {"message": "no"}}
    model, transport = fixed(
        (200, {"data": [{"id": "m"}]}), (404, {}), (status, refusal), wire=wire
    )
    if status in (401, 403):
        with pytest.raises(d.AuthenticationError):
            await model.ready()
    else:
        await model.ready()
    assert transport.requests[-1].body == b"{}"


RECORDS: dict[str, list[tuple[int, Any]]] = {
    "openai": [(200, {"data": [{"id": "m"}]}), (404, {})],
    "responses": [(200, {"data": [{"id": "m"}]}), (404, {})],
    "anthropic": [(200, {"id": "m"})],
    "gemini": [(200, {"supportedGenerationMethods": ["generateContent"]})],
    "bedrock": [(200, {})],
    "cohere": [(200, {"endpoints": ["chat"]})],
    "ollama": [(200, {"models": [{"name": "m"}]}), (200, {"models": [{"name": "m"}]})],
}
"""What a server that has the model replies to the questions before the probe, by wire."""

PROBES: list[tuple[int, str, type[d.ProviderError] | None]] = [
    (401, "no", d.AuthenticationError),
    (403, "no", d.AuthenticationError),
    (404, "the model 'm' does not exist", d.InvalidModelError),
    (404, "model: m not found", d.InvalidModelError),
    (404, "the model '' does not exist", None),  # the empty request names no model
    (404, "the model 'm:2' does not exist", None),
    (429, "slow down", d.RateLimitError),
    (502, "bad gateway", d.UnavailableError),
    (503, "no server", d.UnavailableError),
    (504, "timeout", d.TimedOutError),
    (529, "overloaded", d.OverloadedError),
    (400, "messages is missing", None),
    (422, "messages is missing", None),
    (500, "key error: 'messages'", None),
    (200, "", None),
]


@pytest.mark.parametrize("wire", RECORDS)
@pytest.mark.parametrize(("status", "message", "error"), PROBES)
async def test_ready_raises_the_error_of_its_own_probe(
    wire: str, status: int, message: str, error: type[d.ProviderError] | None
) -> None:
    """A proxy lists models whose server is down; the next call would raise the same error."""
    refusal: Any = {"error": {"message": message}}
    if wire == "anthropic":
        kind = "not_found_error" if status == 404 else "x"
        refusal = {"type": "error", "error": {"type": kind, "message": message}}
    if wire in ("bedrock", "cohere"):
        refusal = {"message": message}
    model, transport = fixed(*RECORDS[wire], (status, refusal), wire=wire)
    if error is None:
        await model.ready()
    else:
        with pytest.raises(error):
            await model.ready()
    probe = transport.requests[-1]
    assert probe.method == "POST"
    assert probe.body == b"{}"


async def test_probe_of_the_responses_wire_uses_its_own_route() -> None:
    model, transport = fixed(*RECORDS["responses"], (401, {}), wire="responses")
    with pytest.raises(d.AuthenticationError):
        await model.ready()
    assert transport.requests[-1].url.endswith("/v1/responses")


async def test_server_that_is_loading_the_model_is_not_ready() -> None:
    loading = (503, {"error": {"message": "Loading model", "type": "unavailable_error"}})
    for wire in ("openai", "anthropic", "responses"):
        model, _ = fixed(*RECORDS[wire], loading, wire=wire)
        with pytest.raises(d.ModelNotLoadedError):
            await model.ready()


async def _call(model: HttpProvider, *, stream: bool) -> None:
    if not stream:
        await model.complete("x", max_tokens=9)
        return
    async for _ in model.stream("x", max_tokens=9):
        pass


@pytest.mark.parametrize("wire", RECORDS)
@pytest.mark.parametrize("body", [b"not json", b"null", b'"x"', b'{"a":', b"[]", b"<html></html>"])
@pytest.mark.parametrize("stream", [False, True])
async def test_reply_that_is_not_of_the_wire_is_invalid_and_not_repeated(
    wire: str, body: bytes, stream: bool
) -> None:
    model, transport = fixed((200, body), (200, body), wire=wire)
    # What may be the beginning of a stream, or of a growing list, was interrupted.
    starts = {("ollama", b'{"a":'), ("bedrock", b"not json"), ("bedrock", b"null")}
    starts |= {("bedrock", b'"x"')}
    is_cut = (stream and (wire, body) in starts) or (wire, body) == ("gemini", b"[]")
    expected = d.StreamInterruptedError if is_cut else d.InvalidResponseError
    with pytest.raises(expected) as caught:
        await _call(model, stream=stream)
    assert caught.value.transient is is_cut
    assert len(transport.requests) == 1


async def test_raw_of_an_ollama_reply_is_its_body() -> None:
    body = {"model": "m", "message": {"role": "assistant", "content": "ok"}, "done": True, "x": 1}
    model, _ = fixed((200, body), wire="ollama")
    assert (await model.complete("hi")).raw == body


def test_each_message_has_its_role() -> None:
    messages = [d.System("x"), d.User("x"), d.Assistant("x"), d.ToolResult("c", "x")]
    assert [each.role for each in messages] == ["system", "user", "assistant", "tool"]
    assert [json.loads(msgspec.json.encode(each))["role"] for each in messages] == [
        each.role for each in messages
    ]


@pytest.mark.parametrize("wire", ["anthropic", "bedrock"])
async def test_second_structured_answer_is_reported(wire: str) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}
    warned = []
    for answers in (["y"], ["y", "z"]):
        model, _ = fixed((200, {}), wire=wire, quirks={"structured": "tool"})
        request = d.Request(
            [d.User("x")], config=d.RuntimeConfig(max_tokens=9), response_schema=schema
        )
        name = model.codec.answer_tool(request)  # type: ignore[attr-defined]
        inputs = [{"b": each} for each in answers]
        if wire == "anthropic":
            uses = [{"type": "tool_use", "id": "t", "name": name, "input": at} for at in inputs]
            body = {"type": "message", "content": uses, "stop_reason": "tool_use"}
        else:
            uses = [{"toolUse": {"toolUseId": "t", "name": name, "input": at}} for at in inputs]
            message = {"role": "assistant", "content": uses}
            body = {"output": {"message": message}, "stopReason": "tool_use", "usage": {}}
        model, _ = fixed((200, body), wire=wire, quirks={"structured": "tool"})
        response = await model.send(request)
        assert response.parsed == inputs[-1]
        warned += [warning.code for warning in response.warnings]
    assert warned == ["answers_dropped"]
