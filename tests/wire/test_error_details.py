"""The details of a provider's error, and its request id, reach clients of the anthropic wire."""

import json
from typing import Any

import pytest

from dragoman.conformance.cases import CodecCase, find_error, open_decoder
from dragoman.errors import InvalidRequestError, ProviderError
from dragoman.wire import SERVER_CODECS

CASE = CodecCase("anthropic", "error-with-details")
BODY: dict[str, Any] = CASE.json("reply.json")


def read_streamed() -> ProviderError:
    """Return the error of a stream that ends with the body of the case as an error event."""
    decoder = open_decoder(CASE.codec(), CASE.request)
    decoder.feed(b"event: error\ndata: " + json.dumps(BODY).encode() + b"\n\n")
    assert decoder.error is not None
    return decoder.error


@pytest.mark.parametrize("read", [lambda: find_error(CASE, CASE.codec()), read_streamed])
def test_details_and_request_id_of_an_error_are_kept(read: Any) -> None:
    error = read()
    assert error.inner_error == BODY["error"]["details"]
    assert error.provider_request_id == BODY["request_id"]
    error.request_id = "own"
    reply = SERVER_CODECS["anthropic"].error(error)
    written = json.loads(reply.body)
    assert written["error"]["details"] == BODY["error"]["details"]
    assert written["request_id"] == "own"
    assert reply.headers["x-dragoman-provider-request-id"] == BODY["request_id"]


def test_addresses_in_the_details_are_masked() -> None:
    details = {"error_code": "a_code", "at": ["see http://10.0.0.1:80/x", 1]}
    error = InvalidRequestError("x", status=400, body=json.dumps({"error": {"details": details}}))
    (written,) = [SERVER_CODECS["anthropic"].error_body(error)["error"]["details"]]
    assert written == {"error_code": "a_code", "at": ["see [address]", 1]}


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"Request-Id": "req_1"}, '{"request_id": "req_2"}', "req_1"),
        ({"x-request-id": "req_1"}, None, "req_1"),
        ({}, '{"request_id": "req_2"}', "req_2"),
        ({}, '{"request_id": 2}', None),
        ({}, "a page", None),
        ({}, None, None),
    ],
)
def test_request_id_of_the_provider_is_found(
    headers: dict[str, str], body: str | None, expected: str | None
) -> None:
    assert ProviderError(headers=headers, body=body).provider_request_id == expected
