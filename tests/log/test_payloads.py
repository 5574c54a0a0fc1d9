from decimal import Decimal
from typing import Any, get_args

import msgspec
import pytest

import dragoman as d
from dragoman import log as logs
from dragoman.calls import (
    CallCompleted,
    CallFailed,
    CallStarted,
    ProviderRecovered,
    ProviderUnavailable,
    RoutingSwitched,
    Trigger,
)
from dragoman.log.payloads import decode_payload, encode_payload, find_actor
from dragoman.middleware.observe import EventsDropped

from .samples import INTENT, SAMPLES


def test_every_record_type_has_its_default_actor_and_sensitivity() -> None:
    assert {kind for kind, *_ in SAMPLES} == set(logs.CATALOGUE)
    assert {entry.payload for entry in logs.CATALOGUE.values()} == set(get_args(logs.Payload))
    for kind, payload, actor, sensitivity in SAMPLES:
        entry, _ = encode_payload(payload)
        assert entry.type == kind
        assert find_actor(entry, payload) == actor
        assert entry.sensitivity == sensitivity


@pytest.mark.parametrize(("kind", "payload"), [(kind, payload) for kind, payload, *_ in SAMPLES])
def test_payload_is_decoded_to_the_value_that_was_encoded(kind: str, payload: Any) -> None:
    _, data = encode_payload(payload)
    assert decode_payload(kind, data) == payload
    assert logs.parse_payload(kind, msgspec.json.decode(data)) == payload


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (logs.TurnStarted("1"),
         "payload of turn.started: number: Expected `int`, got `str`"),  # type: ignore[arg-type]
        (logs.SessionStarted(tools=("a", 1)),
         "payload of session.started: tools[1]: Expected `str`, got `int`"),  # type: ignore[arg-type]
        (
            CallCompleted(model="m", provider="p", stop_reason="stop",
                          latency_ms=1.0),  # type: ignore[arg-type]
            "payload of llm.call_completed: stop_reason: Invalid enum value 'stop'",
        ),
        (
            CallFailed(model="m", provider="p", error_class="auth",
                       error_message_redacted=3),  # type: ignore[arg-type]
            "payload of llm.call_failed: error_message_redacted: Expected `str`",
        ),
        (logs.MessageRecorded(message=d.User("Hi"), cost_usd=Decimal("1e315") + Decimal("0.25")),
         "payload of message.recorded: Number out of range"),
        (logs.MessageRecorded(message=d.User("Hi"), cost_usd=Decimal("1e400")),
         "payload of message.recorded: Number out of range"),
        (logs.ToolStarted("i", "t", {"x": 10**5000}),
         "payload of tool.started: Exceeds the limit (4300 digits)"),
        (logs.ToolStarted("i", "t", {"x": [float("nan")]}),
         "payload of tool.started: contains a number that JSON cannot"),
        (logs.ToolStarted("i", "t", {"x": float("-inf")}),
         "payload of tool.started: contains a number that JSON cannot"),
        (logs.ToolStarted("i", "t", {1: 2}),
         "payload of tool.started: the keys of an object must be strings"),  # type: ignore[dict-item]
        (logs.ToolStarted("i", "t", {"x": object()}),
         "payload of tool.started: Encoding objects of type object"),
        (logs.ToolObserved(intent_id="i", tool_name="t", content="half \ud800"),
         "payload of tool.observed: contains a string that is not valid"),
        (msgspec.structs.replace(INTENT, status="executed"),
         "payload of tool_intent.proposed: status: Invalid enum"),
    ],
)  # fmt: skip
def test_error_names_the_invalid_field_of_a_payload(payload: Any, complaint: str) -> None:
    with pytest.raises(logs.InvalidRecordError) as caught:
        encode_payload(payload)
    assert str(caught.value).startswith(complaint)


def test_deeply_nested_payload_is_rejected() -> None:
    loop: dict[str, Any] = {}
    loop["x"] = loop
    with pytest.raises(logs.InvalidRecordError, match="nested too deeply"):
        encode_payload(logs.ToolStarted("i", "t", loop))


@pytest.mark.parametrize("stranger", [d.Text("x"), {"type": "turn.started"}, "turn.started", None])
def test_objects_that_are_not_payloads_are_rejected(stranger: Any) -> None:
    with pytest.raises(
        logs.UnknownTypeError,
        match=f"payload: {type(stranger).__name__} is not the payload of any",
    ):
        encode_payload(stranger)


@pytest.mark.parametrize(
    ("kind", "data", "error", "words"),
    [
        ("turn.ended", {}, logs.UnknownTypeError, "type: 'turn.ended' is not in the catalogue"),
        ("turn.started", {}, logs.InvalidRecordError,
         "payload of turn.started: Object missing required field `number`"),
        ("turn.started", {"number": None}, logs.InvalidRecordError,
         "payload of turn.started: number: Expected `int`"),
        ("turn.started", {"number": 1, "colour": "red"}, logs.InvalidRecordError,
         "turn.started: has no field 'colour'"),
    ],
)  # fmt: skip
def test_error_names_the_invalid_field_of_plain_data(
    kind: str, data: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        logs.parse_payload(kind, data)
    assert words in str(caught.value)


REQUEST = d.Request(messages=(d.User("a secret"),))
CALL: dict[str, Any] = {
    "model": "m", "provider": "p", "request_id": "r", "session_id": "s", "request": REQUEST,
}  # fmt: skip
OBSERVED: list[Any] = [
    CallStarted(**CALL, estimated_input_tokens=7, attempt=1),
    CallCompleted(
        **CALL,
        stop_reason="tool_use",
        latency_ms=2.5,
        finish_reason="tool_calls",
        input_tokens=5,
        cost_usd=Decimal("0.1"),
        pricing_version="v",
        produced_tool_calls=1,
        content=(d.Text("a secret"),),
    ),
    CallFailed(
        **CALL,
        error_class="network",
        error_message_redacted="reset",
        retry_count=2,
        latency_ms=9.0,
        status=502,
    ),
    RoutingSwitched(
        from_="p:m", to="q:n", reason="rate_limit", error_class="rate_limit", request_id="r"
    ),
    *[ProviderUnavailable("p", "provider_wide", reason, ("m",)) for reason in get_args(Trigger)],
    ProviderRecovered("p", "model_specific", 3.0, ("m",)),
]


@pytest.mark.parametrize("event", OBSERVED, ids=lambda event: event.type)
def test_call_events_are_stored_without_content_and_session_id(event: Any) -> None:
    entry, data = encode_payload(event)
    stored = msgspec.json.decode(data)
    assert entry.type == event.type
    assert {"type", "session_id", "request", "content"} & set(stored) == set()
    assert b"secret" not in data
    left_out = {"session_id": None, "request": None, "content": None}
    fields = {name: value for name, value in left_out.items() if name in event.__struct_fields__}
    assert decode_payload(entry.type, data) == msgspec.structs.replace(event, **fields)


def test_event_without_a_record_type_is_rejected() -> None:
    with pytest.raises(
        logs.UnknownTypeError, match="EventsDropped is not the payload of any event type"
    ):
        encode_payload(EventsDropped(3))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        # type and payload as earlier versions stored them, including fields that were removed later
        (
            "llm.call_started",
            (
                '{"attempt":1,"config":{"temperature":0.5},"estimated_input_tokens":7,'
                '"is_worker":true,"model":"m","parent_session_id":"s0","provider":"p",'
                '"request_id":"r","retry_reason":"transient","stream":true}'
            ),
        ),
        (
            "llm.call_completed",
            (
                '{"cost_usd":0.00475,"finish_reason":"stop","gateway_key_id":"k",'
                '"inbound_shape":"openai","input_tokens":5,"latency_ms":2.5,"model":"m",'
                '"provider":"p","stop_reason":"end_turn","team_id":"t","user_id":"u"}'
            ),
        ),
        (
            "llm.call_failed",
            (
                '{"error_class":"other","error_message_redacted":"its end was not recorded",'
                '"model":"m","provider":"p"}'
            ),
        ),
        (
            "routing.switched",
            '{"from":"p:m","reason":"the reply came from another provider","to":"q:n"}',
        ),
        (
            "routing.provider_unavailable",
            '{"provider":"p","scope":"provider_wide","trigger_reason":"auth_error"}',
        ),
        (
            "routing.provider_recovered",
            '{"downtime_seconds":3.0,"provider":"p","scope":"provider_wide"}',
        ),
    ],
)
def test_records_of_earlier_versions_are_read(kind: str, data: str) -> None:
    assert isinstance(decode_payload(kind, data.encode()), logs.CATALOGUE[kind].payload)


def test_records_of_newer_versions_are_read_without_an_error() -> None:
    assert decode_payload("future.event", b'{"a":1}') == {"a": 1}
    assert decode_payload("turn.started", b'{"number":"first"}') == {"number": "first"}
    assert decode_payload("turn.started", b'{"number":1,"colour":"red"}') == logs.TurnStarted(1)


ENDED: dict[str, Any] = {
    "model": "m", "provider": "p", "stop_reason": "end_turn", "latency_ms": 1.0,
}  # fmt: skip


def test_a_cost_is_stored_as_an_exact_decimal_number() -> None:
    cost = Decimal("0.004750000000000000000001")
    _, data = encode_payload(CallCompleted(**ENDED, cost_usd=cost))
    assert b'"cost_usd":0.004750000000000000000001' in data
    read = decode_payload("llm.call_completed", data)
    assert isinstance(read, CallCompleted)
    assert read.cost_usd == cost


def test_a_key_in_an_error_message_is_hidden() -> None:
    failed = CallFailed(
        model="m", provider="p", error_class="auth",
        error_message_redacted="Incorrect API key provided: sk-proj-abcdefghijklmnop",
    )  # fmt: skip
    _, data = encode_payload(failed)
    assert b"sk-proj" not in data
    assert b"Incorrect API key provided: [hidden]" in data


def test_unknown_token_counts_are_omitted_rather_than_stored_as_zero() -> None:
    _, data = encode_payload(CallCompleted(**ENDED, input_tokens=0))
    assert msgspec.json.decode(data) == {**ENDED, "input_tokens": 0}
