"""Any JSON is read as a client's request or rejected; keys, and errors for clients."""

import contextlib
import os
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dragoman as d
from dragoman.wire import SERVER_CODECS, Asked
from tests import strategies as some
from tests.rows import read_table

EXHAUSTIVE = os.environ.get("DRAGOMAN_EXHAUSTIVE") == "1"
HELLO = {"role": "user", "content": "Hello"}
PLAIN: dict[str, dict[str, Any]] = {
    "openai": {"model": "m", "messages": [HELLO]},
    "anthropic": {"model": "m", "max_tokens": 9, "messages": [HELLO]},
    "responses": {"model": "m", "input": [HELLO]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]},
}
PATHS = {"gemini": "/v1beta/models/m:generateContent"}


def decode(wire: str, **fields: Any) -> Asked:
    return SERVER_CODECS[wire].decode(
        msgspec.json.encode({**PLAIN[wire], **fields}), PATHS.get(wire, "")
    )


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"5", b"{", b'{"model": "\xff"}', b"[" * 100_000, b'{"a":' * 5000]
)
@pytest.mark.parametrize("wire", PLAIN)
def test_body_that_is_not_an_object_is_rejected(wire: str, body: bytes) -> None:
    with pytest.raises(d.InvalidRequestError):
        SERVER_CODECS[wire].decode(body)


KEYS = read_table("field_names")


@pytest.mark.parametrize(("wire", "headers", "key"), KEYS)
def test_api_key_of_the_client_is_read_from_the_headers(
    wire: str, headers: dict[str, str], key: str | None
) -> None:
    assert SERVER_CODECS[wire].key(headers) == key


FIELDS = {
    "responses": (
        "model input stream text tools tool_choice reasoning include instructions store "
        "temperature"
    ),
    "openai": (
        "model messages stream stream_options response_format tools tool_choice "
        "max_tokens stop n seed reasoning_effort temperature"
    ),
    "anthropic": (
        "model messages max_tokens stream system tools tool_choice thinking "
        "output_config stop_sequences"
    ),
}


BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "tool_use", "tool_result", "x"])},
    optional=dict.fromkeys(
        ("text", "source", "input", "content", "id", "name", "image_url"), some.json_values
    ),
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "tool", "system"]),
            "content": some.json_values | st.lists(BLOCKS, max_size=2),
        }
    )
)
REQUESTS = {
    wire: st.dictionaries(st.sampled_from(names.split()), some.json_values | MESSAGES, max_size=4)
    for wire, names in FIELDS.items()
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("wire", FIELDS)
@settings(max_examples=1000 if EXHAUSTIVE else 10)
@given(data=st.data())
def test_any_json_request_is_read_or_rejected_with_a_request_error(
    wire: str, data: st.DataObject
) -> None:
    with contextlib.suppress(d.InvalidRequestError, d.UnsupportedContentError):
        decode(wire, **data.draw(REQUESTS[wire]))


@pytest.mark.parametrize("wire", sorted(SERVER_CODECS))
@pytest.mark.parametrize(("status", "expected"), [(307, 502), (400, 400), (None, 400)])
def test_redirect_from_the_provider_is_reported_as_a_server_error(
    wire: str, status: int | None, expected: int
) -> None:
    assert SERVER_CODECS[wire].error(d.InvalidRequestError("no", status=status)).status == expected


@pytest.mark.parametrize("wire", ["openai", "responses"])
def test_only_a_tier_that_raises_the_price_needs_consent(wire: str) -> None:
    dear = decode(wire, service_tier="priority")
    assert [(left.path, left.rule.opt_in) for left in dear.left] == [
        ("service_tier", "priority-tier")
    ]
    assert not dear.concepts
    cheap = decode(wire, service_tier="flex")
    assert cheap.left == ()
    assert cheap.concepts["service_tier"].value == "flex"
    usual = decode(wire, service_tier="auto")
    assert usual.left == ()
    assert usual.concepts == {}


def test_empty_text_of_a_bedrock_result_is_an_empty_result() -> None:
    texts = ([{"text": ""}], [{"text": "a"}, {"text": ""}])
    results = [{"toolResult": {"toolUseId": "c1", "content": each}} for each in texts]
    body = {"messages": [{"role": "user", "content": results}]}
    read = SERVER_CODECS["bedrock"].decode(msgspec.json.encode(body), "/model/m/converse").request
    empty, other = read.messages
    assert empty.content == ""
    # What else a client sends is checked as it is.
    assert [getattr(each, "text", None) for each in other.content] == ["a", ""]
