"""Test replies as ASGI responses: what is sent before, during and after the body."""

import asyncio
import json
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from starlette.background import BackgroundTask
from starlette.responses import Response

import dragoman as d
from dragoman.events import Assembler
from dragoman.integrations.starlette import (
    ndjson_response,
    sse_response,
    ui_message_stream_response,
)
from dragoman.integrations.ui_messages import UIMessageChunks
from dragoman.messages import AssistantBlock
from dragoman.sim import Answer, Call, Fault, ScriptedProvider, ScriptRule, SimServer

from ..gateway.serving import serving
from ..listed import Listed, broken, speak
from ..waiting import arrival, until

HELPERS = {"sse": sse_response, "ndjson": ndjson_response, "ui": ui_message_stream_response}
HEADERS = {
    "sse": "text/event-stream; charset=utf-8",
    "ndjson": "application/x-ndjson",
    "ui": "text/event-stream; charset=utf-8",
}
each_helper = pytest.mark.parametrize("kind", HELPERS)


def serve(model: d.Provider) -> FastAPI:
    app = FastAPI()

    @app.post("/{kind}")
    async def ask(kind: str) -> Response:
        return await HELPERS[kind](model.stream("Hi"))

    return app


async def post(model: d.Provider, kind: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=serve(model))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post(f"/{kind}")


def read(body: str) -> list[Any]:
    """Return the data of an event stream: JSON objects, and ``[DONE]`` as a string."""
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def collect_text(reply: httpx.Response, pieces: list[str]) -> None:
    async for piece in reply.aiter_text():
        pieces.append(piece)


@each_helper
async def test_a_reply_ends_with_its_finish_reason_and_usage(kind: str) -> None:
    reply = await post(ScriptedProvider(Answer("Hello there.", usage=d.Usage(10, 5))), kind)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == HEADERS[kind]
    assert reply.headers["cache-control"] == "no-cache"
    sent = read(reply.text)
    if kind == "ui":
        assert reply.headers["x-vercel-ai-ui-message-stream"] == "v1"
        assert "".join(chunk.get("delta", "") for chunk in sent[:-1]) == "Hello there."
        assert sent[-1] == "[DONE]"
        assert sent[-2]["type"] == "finish"
        assert sent[-2]["finishReason"] == "stop"
        assert sent[-2]["messageMetadata"]["usage"]["output_tokens"] == 5
    else:
        assert (
            "".join(event["text"] for event in sent if event["type"] == "text.delta")
            == "Hello there."
        )
        assert sent[0]["type"] == "message.start"
        assert sent[-1]["type"] == "message.complete"
        assert sent[-1]["finish_reason"] == "stop"
        assert sent[-1]["usage"]["output_tokens"] == 5


@each_helper
async def test_an_error_before_the_first_event_gets_a_status_and_a_json_body(kind: str) -> None:
    script = ScriptedProvider(
        ScriptRule(Answer("x"), fault=Fault(status=429, message="slow down", retry_after=3))
    )
    with SimServer(script) as server:
        async with d.connect("sim", base_url=server.base_urls["openai"]) as model:
            reply = await post(model, kind)
    assert reply.status_code == 429
    assert reply.headers["retry-after"] == "3"
    assert reply.headers["content-type"] == "application/json"
    error = reply.json()["error"]
    assert error["type"] == "provider_rate_limit"
    assert error["message"] == "slow down"
    assert error["retryable"] is True


STATUSES = [
    (d.RateLimitError("x"), 429),
    (d.OverloadedError("x", status=529), 503),
    (d.OverloadedError("x", status=429), 429),
    (d.UnavailableError("x", status=500), 500),
    (d.UnavailableError("x"), 502),
    (d.UnavailableError("x", status=302), 502),
    (d.NetworkError("x"), 502),
    (d.TimedOutError("x"), 504),
    (d.InvalidRequestError("x"), 400),
    (d.InvalidRequestError("x", status=422), 422),
    (d.ContextOverflowError("x", status=400), 400),
    # the application's key is wrong, not the client's
    (d.AuthenticationError("x", status=401), 502),
    (d.AuthenticationError("x", status=400), 502),
    (d.InvalidModelError("x", status=404), 502),
    (d.ProviderError("x"), 502),
]


@pytest.mark.parametrize(("error", "status"), STATUSES, ids=lambda value: repr(value))
async def test_each_error_class_has_its_http_status(error: d.ProviderError, status: int) -> None:
    assert (await sse_response(Listed(error).stream("Hi"))).status_code == status


async def test_error_text_that_repeats_the_prompt_is_not_sent_to_the_client() -> None:
    error = d.InvalidRequestError(
        "x", provider_message="cannot read: the secret system prompt of the application"
    )
    error.hide([], ["the secret system prompt of the application"])
    body = (await sse_response(Listed(error).stream("Hi"))).body
    assert json.loads(bytes(body))["error"]["message"] == "provider_invalid_request"


@each_helper
async def test_an_error_after_the_first_event_is_sent_as_the_last_event(
    kind: str,
) -> None:
    model = Listed(broken("Half", d.UnavailableError("went away")))
    pieces: list[str] = []
    async with serving(serve(model)) as url, httpx.AsyncClient() as client:
        reply = await client.send(client.build_request("POST", f"{url}/{kind}"), stream=True)
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            await collect_text(reply, pieces)
    assert reply.status_code == 200
    sent = read("".join(pieces))
    assert sent[-1]["type"] == "error"
    assert "went away" in json.dumps(sent[-1])
    assert "Half" in json.dumps(sent[:-1])
    assert "finish" not in [chunk["type"] for chunk in sent]


@each_helper
async def test_a_structured_reply_that_violates_its_schema_does_not_look_complete(
    kind: str,
) -> None:
    response = await HELPERS[kind](Listed("no JSON").stream("Hi", response_schema=dict[str, int]))
    sent: list[Any] = []
    with pytest.raises(d.StructuredOutputError):
        await run(response, sent, asyncio.Event())
    assert sent[-1]["more_body"]
    assert b'"type":"error"' in sent[-1]["body"]


async def run(response: Response, sent: list[Any], gone: asyncio.Event, spec: str = "2.4") -> None:
    """Call an ASGI response as a server does; the client disconnects when the event ``gone`` is
    set.
    """

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await response({"type": "http", "asgi": {"spec_version": spec}}, receive, send)


def stalling(request: Any) -> list[Any]:
    out = Assembler(request_id=request.request_id, model="m", provider="listed")
    out.start()
    out.text("Half")
    return [*out.take(), asyncio.Event()]  # an event that is never set, so the stream hangs


@each_helper
@pytest.mark.parametrize("spec", ["2.3", "2.4"])
async def test_disconnecting_the_client_cancels_the_call(kind: str, spec: str) -> None:
    model = Listed(stalling)
    stream = model.stream("Hi")
    response = await HELPERS[kind](stream)
    sent: list[Any] = []
    gone = asyncio.Event()
    running = asyncio.create_task(run(response, sent, gone, spec))
    await until(lambda: any(b"Half" in each.get("body", b"") for each in sent), "half the text")
    assert model.running == 1
    gone.set()
    await arrival(running, "the end of the response")
    assert model.running == 0
    assert stream.response.finish_reason == "cancelled"
    assert sent[-1]["more_body"]


async def test_stopping_the_server_cancels_the_call() -> None:
    model = Listed(stalling)
    running = asyncio.create_task(
        run(await sse_response(model.stream("Hi")), sent := [], asyncio.Event())
    )
    while len(sent) < 3:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert model.running == 0


async def test_failure_to_send_is_ignored_and_failure_to_receive_is_raised() -> None:
    """A failure to send means that the client has disconnected; a failure to receive is an error."""

    async def fail(*_: Any) -> Any:
        raise failure

    model = Listed("Hello.", "Hello.")
    failure: Exception = OSError("the client is gone")
    scope = {"type": "http"}
    await (await sse_response(model.stream("Hi")))(scope, asyncio.Event().wait, fail)  # type: ignore[arg-type]
    failure = RuntimeError("unexpected message")
    with pytest.raises(RuntimeError, match="unexpected message"):
        await (await sse_response(model.stream("Hi")))(scope, fail, lambda _: asyncio.sleep(0))
    assert model.running == 0


async def test_a_background_task_runs_after_the_reply() -> None:
    ran: list[int] = []
    response = await sse_response(Listed("Hello.").stream("Hi"))
    response.background = BackgroundTask(ran.append, 1)
    await run(response, sent := [], asyncio.Event())
    assert ran == [1]
    assert sent[-1]["more_body"] is False


async def test_a_stream_that_was_already_read_is_rejected() -> None:
    stream = Listed("Hello.").stream("Hi")
    async for _ in stream:
        pass
    with pytest.raises(RuntimeError, match="has not been read"):
        await sse_response(stream)


# --- chunks of the UI message stream -----------------------------------------------------------


LOOK = d.Tool(
    "look",
    "Describe a place.",
    parameters={"type": "object", "properties": {"place": {"type": "string"}}},
)


async def chunks_of(model: d.Provider, **settings: Any) -> list[Any]:
    response = await ui_message_stream_response(model.stream("Hi", tools=[LOOK]), **settings)
    await run(response, sent := [], asyncio.Event())
    return read(b"".join(message.get("body", b"") for message in sent).decode())


async def test_every_kind_of_content_block_is_sent_as_ui_message_chunks() -> None:
    answer = Answer(thinking="Hm.", text="Hi.", tool_calls=[Call("look", {"place": "x"}, id="c1")])
    sent = await chunks_of(ScriptedProvider(answer), message_id="m1")
    assert sent[0] == {
        "type": "start",
        "messageMetadata": {"provider": "sim", "model": "sim"},
        "messageId": "m1",
    }
    assert sent[1:8] == [
        {"type": "start-step"},
        {"type": "reasoning-start", "id": "reasoning-0"},
        {"type": "reasoning-delta", "id": "reasoning-0", "delta": "Hm."},
        {"type": "reasoning-end", "id": "reasoning-0"},
        {"type": "text-start", "id": "text-1"},
        {"type": "text-delta", "id": "text-1", "delta": "Hi."},
        {"type": "text-end", "id": "text-1"},
    ]
    assert sent[8] == {"type": "tool-input-start", "toolCallId": "c1", "toolName": "look"}
    fragments = [
        chunk["inputTextDelta"] for chunk in sent[:-1] if chunk["type"] == "tool-input-delta"
    ]
    assert json.loads("".join(fragments)) == {"place": "x"}
    available = {
        "type": "tool-input-available",
        "toolCallId": "c1",
        "toolName": "look",
        "input": {"place": "x"},
    }
    assert sent[-4:-2] == [available, {"type": "finish-step"}]
    assert sent[-2]["finishReason"] == "tool-calls"


async def test_reasoning_signature_is_sent_at_the_end_of_the_reasoning() -> None:
    def sign(out: Assembler) -> None:
        out.thinking("Hm.")
        out.attach(d.Thinking, "s")

    ends = [
        chunk
        for chunk in (await chunks_of(Listed(speak(sign))))[:-1]
        if chunk["type"] == "reasoning-end"
    ]
    assert ends == [
        {
            "type": "reasoning-end",
            "id": "reasoning-0",
            "providerMetadata": {"dragoman": {"signature": "s"}},
        }
    ]


async def test_cancelling_a_reply_sends_an_abort_chunk_and_ends_the_open_call() -> None:
    stream = ScriptedProvider(
        Answer(tool_calls=[Call("look", {"place": "far away"}, id="c1")], piece=4)
    ).stream("Hi")
    chunks = UIMessageChunks()
    sent: list[Any] = []
    async for event in stream:
        sent += chunks.convert(event)
        if event.type == "tool.use_input_delta":
            await stream.cancel()
    failed = next(chunk for chunk in sent if chunk["type"] == "tool-input-error")
    assert failed["toolCallId"] == "c1"
    assert failed["toolName"] == "look"
    assert failed["errorText"]
    ending = chunks.finish()
    assert [chunk["type"] for chunk in ending] == ["message-metadata", "abort"]
    assert ending[0]["messageMetadata"]["finishReason"] == "cancelled"


def test_images_audio_and_sources_are_sent_at_the_end_of_the_reply() -> None:
    cited = {
        "annotations": [
            {"type": "url_citation", "url_citation": {"url": "https://a.example", "title": "A"}}
        ]
    }
    content = (
        d.Text("A.", d.Continuity(opaque=cited)),
        d.Text("Again.", d.Continuity(opaque=cited)),
        d.Text("B.", d.Continuity(opaque={"annotations": [{"type": "file_citation",
                                                           "file_id": "f1",
                                                           "filename": "b.txt"}]})),
        d.Image(d.Inline("aGk="), "image/webp"),
        d.Audio(d.Url("https://a.example/x")),
    )  # fmt: skip
    chunks = UIMessageChunks()
    chunks.convert(d.MessageStart("m", "r", model="model"))
    chunks.convert(d.TextDelta("m", "r", content_block_index=0, text="A."))
    assert chunks.convert(
        d.MessageComplete("m", "r", finish_reason="stop", final_content=content)
    ) == [
        {"type": "text-end", "id": "text-0"},
        {
            "type": "source-url",
            "sourceId": "https://a.example",
            "url": "https://a.example",
            "title": "A",
        },
        {"type": "source-document", "sourceId": "f1", "mediaType": "text/plain", "title": "b.txt"},
        {"type": "file", "url": "data:image/webp;base64,aGk=", "mediaType": "image/webp"},
        {"type": "file", "url": "https://a.example/x", "mediaType": "audio/wav"},
        *[
            {
                "type": "data-dragoman-continuity",
                "id": f"continuity-{index}",
                "data": {
                    "index": index,
                    "continuity": msgspec.to_builtins(content[index].continuity),
                },
            }
            for index in range(3)
        ],
    ]


def test_a_ui_message_keeps_opaque_provider_state() -> None:
    issuer = d.Issuer("anthropic", "anthropic", "m")
    content = (
        # The signature is stored in the metadata of the reasoning part.
        d.Thinking("Hm.", d.Continuity("signed", issuer=issuer)),
        d.RedactedThinking("c2VjcmV0", d.Continuity(issuer=issuer)),
        d.Opaque({"type": "web_search_tool_result", "content": [{"url": "https://a.example"}]}),
        d.Text("Found.", None),
        d.ToolCall("c1", "look", {}, d.Continuity("thought-signature", issuer=issuer)),
    )
    chunks = UIMessageChunks()
    chunks.convert(d.MessageStart("m", "r", model="model"))
    sent = chunks.convert(d.MessageComplete("m", "r", finish_reason="stop", final_content=content))
    assert [(chunk["type"], chunk["id"]) for chunk in sent] == [
        ("data-dragoman-block", "block-1"),
        ("data-dragoman-block", "block-2"),
        ("data-dragoman-continuity", "continuity-4"),
    ]
    blocks = json.loads(msgspec.json.encode([chunk["data"] for chunk in sent]))
    assert [each["index"] for each in blocks] == [1, 2, 4]
    read_back = [msgspec.convert(each["block"], AssistantBlock) for each in blocks[:2]]  # type: ignore[arg-type]
    assert read_back == [content[1], content[2]]
    assert msgspec.convert(blocks[2]["continuity"], d.Continuity) == content[4].continuity
