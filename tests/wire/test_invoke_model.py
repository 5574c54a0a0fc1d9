"""The server side of Bedrock's InvokeModel, whose bodies are those of the Messages wire."""

import base64
from typing import Any

import msgspec
import pytest

from dragoman.errors import InvalidModelError, InvalidRequestError, RateLimitError
from dragoman.events import Assembler, Usage
from dragoman.messages import User
from dragoman.wire import OTHER_SERVER_CODECS, Asked
from dragoman.wire.bedrock.invoke import InvokeServer
from dragoman.wire.eventstream import EventStreamDecoder

SERVER = OTHER_SERVER_CODECS["bedrock"]
STREAMED = "/model/eu.anthropic.m%3A0/invoke-with-response-stream"
WHOLE = "/model/eu.anthropic.m%3A0/invoke"
BODY = {
    "anthropic_version": "bedrock-2023-05-31",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hi"}],
}


def decode(path: str, **fields: Any) -> Asked:
    return SERVER.decode(dict(SERVER.unwrap({**BODY, **fields}, path)))


def read_stream(data: bytes) -> list[tuple[bytes, Any]]:
    """Return the kind and the payload of each binary message."""
    decoder = EventStreamDecoder()
    frames = [*decoder.feed(data), *decoder.end()]
    return [(frame.event, msgspec.json.decode(frame.data)) for frame in frames]


def reply(path: str) -> bytes:
    encoder = SERVER.encoder(decode(path))
    out = Assembler(request_id="R", model="m")
    out.start()
    out.text("Hello")
    out.usage(Usage(3, 2))
    out.finish("stop")
    return b"".join([encoder.feed(event) for event in out.take()]) + encoder.end()


def test_model_and_mode_are_read_from_the_path() -> None:
    assert isinstance(SERVER, InvokeServer)
    for path, streams in ((STREAMED, True), (WHOLE, False)):
        fields = SERVER.unwrap({**BODY, "anthropic_beta": ["a-1"]}, path)
        assert fields == {
            "max_tokens": 9,
            "messages": BODY["messages"],
            "model": "eu.anthropic.m:0",
            "stream": streams,
        }
        request = decode(path).request
        assert request.model == "eu.anthropic.m:0"
        assert request.messages == (User("Hi"),)
        assert request.stream == streams
        assert request.config.max_tokens == 9


def test_body_without_the_version_is_of_another_vendor() -> None:
    with pytest.raises(InvalidRequestError, match="anthropic_version is missing"):
        SERVER.unwrap({"inputText": "Hi"}, WHOLE)


def test_betas_of_the_header_and_the_body_are_joined() -> None:
    headers = {"anthropic-beta": "a-1,b-1"}
    assert SERVER.list_betas(headers, {"anthropic_beta": ["c-1", 5]}) == ["a-1", "b-1", "c-1"]
    assert SERVER.list_betas(headers, {"anthropic_beta": "c-1"}) == ["a-1", "b-1"]
    assert SERVER.list_betas({}, {}) == []


def test_body_of_a_reply_is_a_message() -> None:
    message = msgspec.json.decode(reply(WHOLE))
    assert message["content"] == [{"type": "text", "text": "Hello"}]
    assert message["type"] == "message"
    assert message["stop_reason"] == "end_turn"
    assert "amazon-bedrock-invocationMetrics" not in message


def test_events_of_a_stream_are_base64_in_binary_messages() -> None:
    messages = read_stream(reply(STREAMED))
    assert {kind for kind, _ in messages} == {b"event"}
    events = [
        msgspec.json.decode(base64.b64decode(payload["chunk"]["bytes"])) for _, payload in messages
    ]
    assert [event["type"] for event in events] == [
        "message_start", "ping", "content_block_start", "content_block_delta",
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[3]["delta"]["text"] == "Hello"
    metrics = events[-1]["amazon-bedrock-invocationMetrics"]
    assert metrics["inputTokenCount"] == 3
    assert metrics["outputTokenCount"] == 2
    assert metrics["invocationLatency"] >= metrics["firstByteLatency"] >= 0


def test_error_inside_a_stream_is_an_exception() -> None:
    encoder = SERVER.encoder(decode(STREAMED))
    ((kind, payload),) = read_stream(encoder.write_error(RateLimitError("slow down")))
    assert kind == b"exception"
    ((name, record),) = payload.items()
    assert name == "throttlingException"
    assert "slow down" in record["message"]


@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (RateLimitError("oh no"), 429, "ThrottlingException"),
        (InvalidRequestError("oh no"), 400, "ValidationException"),
        (InvalidModelError("oh no", status=404), 404, "ResourceNotFoundException"),
    ],
)
def test_error_reply_has_the_name_and_the_body_of_aws(error: Any, status: int, name: str) -> None:
    made = SERVER.error(error)
    assert made.status == status
    assert made.headers["x-amzn-errortype"] == name
    record = msgspec.json.decode(made.body)
    assert "oh no" in record["message"]
    assert "type" not in record
