"""The messages of the Responses wire on a WebSocket to a provider."""

import json
from typing import Any

import pytest

from dragoman.capabilities import Capabilities
from dragoman.wire import CODECS, HttpReply
from dragoman.wire.responses.upstream_socket import ResponsesSocketForm
from dragoman.wire.socket import SocketEvent

FORM = ResponsesSocketForm()
UNREMARKABLE = SocketEvent(is_last=False, is_failure=False, headers={}, error=None)


def test_message_is_the_body_without_the_fields_of_http() -> None:
    body = b'{"model":"m","stream":true,"stream_options":{},"background":false,"input":[1.50]}'
    assert FORM.write_request(body) == b'{"type":"response.create","model":"m","input":[1.50]}'


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"type": "response.created"}, UNREMARKABLE),
        ({"type": ["response.completed"]}, UNREMARKABLE),
        ({}, UNREMARKABLE),
        ({"type": "response.completed"}, SocketEvent(True, False, {}, None)),
        ({"type": "response.incomplete"}, SocketEvent(True, False, {}, None)),
        ({"type": "response.failed"}, SocketEvent(True, True, {}, None)),
        ({"type": "error", "message": "no"}, SocketEvent(True, True, {}, None)),
        # the status of another event, or of none that HTTP has, is not one of an error reply
        ({"type": "response.created", "status": 400}, UNREMARKABLE),
        ({"type": "error", "status": "400"}, SocketEvent(True, True, {}, None)),
        ({"type": "error", "status": 200}, SocketEvent(True, True, {}, None)),
        ({"type": "error", "status": 600}, SocketEvent(True, True, {}, None)),
    ],
)
def test_event_ends_a_reply_or_not(event: dict[str, Any], expected: SocketEvent) -> None:
    assert FORM.read_event(json.dumps(event).encode()) == expected


@pytest.mark.parametrize("message", [b"{", b"[]", b'"\xff"'])
def test_message_that_cannot_be_read_is_left_to_the_decoder(message: bytes) -> None:
    assert FORM.read_event(message) == SocketEvent(False, True, {}, None)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({"Retry-After": "5", "x": 5, "y": None}, {"retry-after": "5"}), ([], {}), (None, {})],
)
def test_error_event_is_an_error_reply(headers: Any, expected: dict[str, str]) -> None:
    event = {"type": "error", "status": 429, "error": {"message": "slow"}, "headers": headers}
    message = json.dumps(event).encode()
    found = FORM.read_event(message)
    assert found.error == HttpReply(429, expected, message)
    assert found.headers == expected


def test_quirk_decides_whether_requests_are_messages() -> None:
    for quirks, form in (({}, type(None)), ({"socket": True}, ResponsesSocketForm)):
        codec = CODECS["responses"].connect("m", "http://x/v1", quirks, Capabilities())
        assert type(codec.socket) is form
