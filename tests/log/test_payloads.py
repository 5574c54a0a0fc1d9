from __future__ import annotations

from decimal import Decimal
from typing import Any, get_args

import msgspec
import pytest

from dragoman.log import (
    CATALOGUE,
    InvalidRecordError,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    Payload,
    RoutingProviderRecovered,
    RoutingProviderUnavailable,
    RoutingSwitched,
    SessionStarted,
    ToolObserved,
    ToolStarted,
    TurnStarted,
    UnknownTypeError,
    parse_payload,
    to_payload,
)
from dragoman.log.payloads import decode_payload, encode_payload, find_actor
from dragoman.messages import Text
from dragoman.middleware.availability import ProviderRecovered, ProviderUnavailable, Trigger
from dragoman.middleware.fallback import RoutingSwitched as Switched
from dragoman.middleware.observe import CallCompleted, CallFailed, CallStarted, EventsDropped

from .samples import INTENT, SAMPLES


def test_every_type_of_the_catalogue_has_a_sample_and_its_defaults() -> None:
    assert {kind for kind, *_ in SAMPLES} == set(CATALOGUE)
    assert {entry.payload for entry in CATALOGUE.values()} == set(get_args(Payload))
    for kind, payload, actor, sensitivity in SAMPLES:
        entry, _ = encode_payload(payload)
        assert (entry.type, find_actor(entry, payload), entry.sensitivity) == (kind, actor, sensitivity)


@pytest.mark.parametrize(("kind", "payload"), [(kind, payload) for kind, payload, *_ in SAMPLES])
def test_a_payload_reads_back_as_itself(kind: str, payload: Any) -> None:
    _, data = encode_payload(payload)
    assert decode_payload(kind, data) == payload
    assert parse_payload(kind, msgspec.json.decode(data)) == payload


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (TurnStarted("1"), "payload of turn.started: number: Expected `int`, got `str`"),  # type: ignore[arg-type]
        (SessionStarted(tools=("a", 1)), "payload of session.started: tools[1]: Expected `str`, got `int`"),  # type: ignore[arg-type]
        (
            LlmCallCompleted("m", "p", "stop", 1.0),  # type: ignore[arg-type]
            "payload of llm.call_completed: stop_reason: Invalid enum value 'stop'",
        ),
        (LlmCallFailed("m", "p", "auth", 3), "payload of llm.call_failed: error_message_redacted: Expected `str`"),  # type: ignore[arg-type]
        (ToolStarted("i", "t", {"x": [float("nan")]}), "payload of tool.started: holds a number that JSON cannot"),
        (ToolStarted("i", "t", {"x": float("-inf")}), "payload of tool.started: holds a number that JSON cannot"),
        (ToolStarted("i", "t", {1: 2}), "payload of tool.started: the keys of an object must be text"),  # type: ignore[dict-item]
        (ToolStarted("i", "t", {"x": object()}), "payload of tool.started: Encoding objects of type object"),
        (ToolObserved("i", "t", "half \ud800"), "payload of tool.observed: holds text that is not Unicode"),
        (msgspec.structs.replace(INTENT, status="executed"), "payload of tool_intent.proposed: status: Invalid enum"),
    ],
)  # fmt: skip
def test_a_payload_that_does_not_fit_is_refused_by_field(payload: Any, complaint: str) -> None:
    with pytest.raises(InvalidRecordError) as caught:
        encode_payload(payload)
    assert str(caught.value).startswith(complaint)


def test_nesting_without_end_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["x"] = loop
    with pytest.raises(InvalidRecordError, match="nested too deeply"):
        encode_payload(ToolStarted("i", "t", loop))


@pytest.mark.parametrize("stranger", [Text("x"), {"type": "turn.started"}, "turn.started", None])
def test_what_is_no_payload_is_refused(stranger: Any) -> None:
    with pytest.raises(UnknownTypeError, match=f"payload: {type(stranger).__name__} is not the payload of any"):
        encode_payload(stranger)


@pytest.mark.parametrize(
    ("kind", "data", "error", "words"),
    [
        ("turn.ended", {}, UnknownTypeError, "type: 'turn.ended' is not in the catalogue"),
        ("turn.started", {}, InvalidRecordError, "payload of turn.started: Object missing required field `number`"),
        ("turn.started", {"number": None}, InvalidRecordError, "payload of turn.started: number: Expected `int`"),
        ("turn.started", {"number": 1, "colour": "red"}, InvalidRecordError, "turn.started: has no field 'colour'"),
    ],
)
def test_plain_data_is_refused_by_field(kind: str, data: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        parse_payload(kind, data)
    assert words in str(caught.value)


TOLD: list[tuple[Any, Any]] = [
    (
        CallStarted(model="m", provider="p", request_id="r", estimated_input_tokens=7, attempt=1, session_id="s"),
        LlmCallStarted("m", "p", "r", 7, attempt=1),
    ),
    (
        CallCompleted(
            model="m", provider="p", request_id="r", stop_reason="tool_use", latency_ms=2.5, finish_reason="tool_calls",
            input_tokens=5, cost_usd=Decimal("0.1"), pricing_version="v", produced_tool_calls=1, response_model="m-1",
        ),
        LlmCallCompleted(
            "m", "p", "tool_use", 2.5, "r", 5, cost_usd=Decimal("0.1"), pricing_version="v", produced_tool_calls=1,
            finish_reason="tool_calls", response_model="m-1",
        ),
    ),
    (
        CallFailed(
            model="m", provider="p", request_id="r", error_class="network", error_message_redacted="reset",
            retry_count=2, latency_ms=9.0, status=502,
        ),
        LlmCallFailed("m", "p", "network", "reset", 2, 9.0, "r", 502),
    ),
    (
        Switched("p:m", "q:n", "rate_limit", "rate_limit", "r"),
        RoutingSwitched("p:m", "q:n", "rate_limit", "rate_limit", "r"),
    ),
    (
        ProviderUnavailable("p", "provider_wide", ("m",), "auth_error"),
        RoutingProviderUnavailable("p", "provider_wide", "auth_error", ("m",)),
    ),
    (
        ProviderRecovered("p", "model_specific", ("m",), 3.0),
        RoutingProviderRecovered("p", "model_specific", 3.0, ("m",)),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("event", "payload"), TOLD)
def test_what_the_middleware_tells_fits_the_log(event: Any, payload: Any) -> None:
    assert to_payload(event) == payload
    entry, data = encode_payload(payload)
    assert (entry.type, decode_payload(entry.type, data)) == (event.type, payload)


def test_every_reason_to_call_a_provider_unavailable_fits() -> None:
    for reason in get_args(Trigger):
        event = ProviderUnavailable("p", "provider_wide", (), reason)
        assert encode_payload(to_payload(event))[0].type == "routing.provider_unavailable"


def test_what_is_told_and_does_not_fit_is_refused() -> None:
    with pytest.raises(UnknownTypeError, match=r"type: 'observe.events_dropped' is not in the catalogue"):
        to_payload(EventsDropped(3))
    with pytest.raises(UnknownTypeError, match="type: None"):
        to_payload(Text("x"))
    with pytest.raises(InvalidRecordError, match=r"payload of routing.switched: from_: Expected `str`, got `int`"):
        to_payload(Switched(3, "b", "r", "other", "r"))  # type: ignore[arg-type]


def test_reading_tolerates_what_a_newer_version_wrote() -> None:
    assert decode_payload("future.event", b'{"a":1}') == {"a": 1}
    assert decode_payload("turn.started", b'{"number":"first"}') == {"number": "first"}
    assert decode_payload("turn.started", b'{"number":1,"colour":"red"}') == TurnStarted(1)


def test_a_cost_is_an_exact_number() -> None:
    cost = Decimal("0.004750000000000000000001")
    _, data = encode_payload(LlmCallCompleted("m", "p", "end_turn", 1.0, cost_usd=cost))
    assert b'"cost_usd":0.004750000000000000000001' in data
    read = decode_payload("llm.call_completed", data)
    assert isinstance(read, LlmCallCompleted)
    assert read.cost_usd == cost


def test_a_key_in_an_error_message_is_hidden() -> None:
    failed = LlmCallFailed("m", "p", "auth", "Incorrect API key provided: sk-proj-abcdefghijklmnop")
    _, data = encode_payload(failed)
    assert b"sk-proj" not in data
    assert b"Incorrect API key provided: [hidden]" in data


def test_unknown_counts_are_absent_and_not_zero() -> None:
    _, data = encode_payload(LlmCallCompleted("m", "p", "end_turn", 1.0, input_tokens=0))
    assert msgspec.json.decode(data) == {
        "model": "m", "provider": "p", "stop_reason": "end_turn", "latency_ms": 1.0, "input_tokens": 0,
    }  # fmt: skip
