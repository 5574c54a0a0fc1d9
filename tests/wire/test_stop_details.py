"""The details of a stop, which the anthropic wire writes whatever wire the provider has."""

import json
from typing import Any

import pytest

from dragoman.events import (
    FinishReason,
    MessageComplete,
    MessageStart,
    StopDetails,
    Usage,
    decode_event,
    encode_event,
    fold,
)
from dragoman.messages import Request, User
from dragoman.wire import SERVER_CODECS, Asked

OWN: dict[str, Any] = {"anthropic": {"stop_details": {"type": "refusal", "category": "bio"}}}
START = MessageStart("m", "r", model="model")
FILTERED = MessageComplete(
    "m",
    "r",
    finish_reason="content_filter",
    final_content=(),
    usage=Usage(),
    finish_raw="SAFETY",
    stop_details=StopDetails("HATE", "No."),
)


def write(complete: MessageComplete, *, stream: bool) -> dict[str, Any]:
    """Return the fields that an anthropic client gets at the end of a reply."""
    request = Request([User("Hi")], stream=stream)
    encoder = SERVER_CODECS["anthropic"].encoder(Asked(request=request))
    data = encoder.feed(START) + encoder.feed(complete) + encoder.end()
    if not stream:
        body: dict[str, Any] = json.loads(data)
        return body
    frames = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: ")]
    (ending,) = [frame["delta"] for frame in frames if frame["type"] == "message_delta"]
    return dict(ending)


@pytest.mark.parametrize("stream", [False, True])
def test_details_of_another_wire_are_written_for_a_refusal(stream: bool) -> None:
    written = write(FILTERED, stream=stream)
    assert written["stop_reason"] == "refusal"
    assert written["stop_details"] == {
        "type": "refusal",
        "category": None,
        "explanation": "No.",
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reason", "raw", "native", "expected"),
    [
        ("content_filter", "refusal", OWN, OWN["anthropic"]["stop_details"]),
        ("content_filter", "SAFETY", {"gemini": {"stop_details": 1}}, None),
        # the gateway ended the reply at a stop sequence, so the provider's reason does not apply
        ("stop", None, OWN, None),
    ],
)
def test_details_are_those_of_the_reply_that_the_client_gets(
    reason: FinishReason, raw: str | None, native: Any, expected: Any, stream: bool
) -> None:
    complete = MessageComplete(
        "m",
        "r",
        finish_reason=reason,
        final_content=(),
        usage=Usage(),
        finish_raw=raw,
        native=native,
    )
    assert write(complete, stream=stream).get("stop_details") == expected


def test_details_survive_encoding_and_folding() -> None:
    assert decode_event(encode_event(FILTERED)) == FILTERED
    assert fold([START, FILTERED]).stop_details == StopDetails("HATE", "No.")


def test_start_of_a_stream_has_the_fields_that_are_known_at_the_start() -> None:
    usage = {"speed": "fast", "output_tokens_details": {"summary_tokens": 4}}
    own = {"anthropic": {"usage": usage, "container": {"id": "c"}, "input_transformations": []}}
    encoder = SERVER_CODECS["anthropic"].encoder(Asked(request=Request([User("Hi")], stream=True)))
    data = encoder.feed(MessageStart("m", "r", model="model", native=own)).splitlines()[1]
    message = json.loads(data.removeprefix(b"data: "))["message"]
    assert message["usage"]["speed"] == "fast"
    assert message["usage"]["input_tokens"] == 0
    assert message["input_transformations"] == []
    assert "output_tokens_details" not in message["usage"]
    assert "container" not in message
