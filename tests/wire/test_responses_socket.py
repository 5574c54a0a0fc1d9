"""The messages of the Responses wire on a WebSocket."""

from typing import Any

import msgspec
import pytest

from dragoman.errors import InvalidRequestError
from dragoman.wire.responses.socket import ResponsesSocket
from dragoman.wire.socket import SocketRequest

SOCKET = ResponsesSocket()


@pytest.mark.parametrize(
    ("message", "lane"),
    [
        (b'{"type":"response.create"}', ""),
        (b'{"stream_id":null}', ""),
        (b'{"stream_id":"a_1-B.c"}', "a_1-B.c"),
        (b'{"stream_id":"%s"}' % (b"x" * 256), "x" * 256),
        # what cannot be read belongs to the default lane, which reports the mistake
        (b"{", ""),
        (b"[]", ""),
        (b'{"a":"\xff"}', ""),
    ],
)
def test_lane_of_a_message_is_its_stream_id(message: bytes, lane: str) -> None:
    assert SOCKET.read_lane(message) == lane


@pytest.mark.parametrize("value", ["", "a b", "ü", "x" * 257, "a\n", 5, ["a"]])
def test_invalid_stream_id_is_rejected(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="stream_id must be 1 to 256") as caught:
        SOCKET.read_lane(msgspec.json.encode({"stream_id": value}))
    assert caught.value.status == 400
    assert caught.value.provider_code == "invalid_stream_id"


def test_request_is_the_body_without_the_fields_of_the_message() -> None:
    fields = {
        "type": "response.create",
        "stream_id": "a",
        "background": True,
        "model": "m",
        "input": "Hi",
        "stream": False,
    }
    posted = {"model": "m", "input": "Hi", "stream": True}
    assert SOCKET.read_request(fields) == SocketRequest(posted, True)
    assert SOCKET.read_request({**fields, "generate": True}) == SocketRequest(posted, True)
    assert SOCKET.read_request({**fields, "generate": None}) == SocketRequest(posted, True)
    assert SOCKET.read_request({**fields, "generate": False}) == SocketRequest(posted, False)
    assert fields["stream"] is False


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "type must be 'response.create', not None"),
        ({"type": "response.cancel"}, "type must be 'response.create', not 'response.cancel'"),
        ({"type": "response.create", "generate": "no"}, "generate must be a boolean"),
        ({"type": "response.create", "generate": 1}, "generate must be a boolean"),
    ],
)
def test_invalid_message_is_rejected(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        SOCKET.read_request(fields)


def test_event_names_the_lane_unless_it_is_the_default_one() -> None:
    event = b'{"type":"response.created","sequence_number":0}'
    assert SOCKET.write_event(event, "") == event
    assert msgspec.json.decode(SOCKET.write_event(event, "a")) == {
        "stream_id": "a",
        "type": "response.created",
        "sequence_number": 0,
    }


def test_first_event_has_the_headers_of_the_reply_but_those_of_its_body() -> None:
    headers = {"content-type": "text/event-stream", "connection": "close", "x-request-id": "r"}
    event = b'{"type":"response.created"}'
    shown = {"headers": {"x-request-id": "r"}, "type": "response.created"}
    assert msgspec.json.decode(SOCKET.write_event(event, "", headers)) == shown
    named = msgspec.json.decode(SOCKET.write_event(event, "a", headers))
    assert named == {"stream_id": "a", **shown}


def test_error_reply_becomes_an_event_without_the_headers_of_its_body() -> None:
    headers = {"content-type": "application/json", "connection": "close", "retry-after": "5"}
    body = b'{"error":{"message":"slow down"}}'
    event = {
        "type": "error",
        "status": 429,
        "error": {"message": "slow down"},
        "headers": {"retry-after": "5"},
    }
    assert msgspec.json.decode(SOCKET.write_error(429, headers, body, "")) == event
    named = {"stream_id": "a", **event}
    assert msgspec.json.decode(SOCKET.write_error(429, headers, body, "a")) == named


def test_limits_of_a_connection_have_codes() -> None:
    codes = {SOCKET.too_old().provider_code, SOCKET.too_many_lanes().provider_code}
    assert codes == {"websocket_connection_limit_reached", "websocket_stream_limit_reached"}
