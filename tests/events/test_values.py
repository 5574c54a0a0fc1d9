"""Test events as JSON, the repair of invalid JSON that real servers send, and responses made from
events.
"""

import html
import json
import re
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import dragoman as d
from dragoman.events import Raw, UnknownEvent, read_json, read_object
from tests import strategies as some

# --- writing and reading events as JSON --------------------------------------------------------


@pytest.mark.parametrize("kind", some.EVENTS)
@given(data=st.data())
def test_events_round_trip_through_json(kind: type, data: st.DataObject) -> None:
    event = data.draw(some.EVENTS[kind])
    written = d.encode_event(event)
    assert d.decode_event(written) == d.decode_event(written.decode()) == event
    assert json.loads(written)["type"] == event.type


def test_every_event_class_is_tested() -> None:
    assert set(some.EVENTS) == set(get_args(d.Event))


def test_event_types_have_the_names_of_the_adapter_contract() -> None:
    assert [kind.type for kind in get_args(d.Event)] == [
        "message.start",
        "text.delta",
        "thinking.delta",
        "tool.use_start",
        "tool.use_input_delta",
        "tool.use_end",
        "message.complete",
    ]


def test_raw_bytes_are_not_serialised() -> None:
    event = d.MessageComplete("m", "r", finish_reason="stop", kept=Raw([b"secret"], bytes.decode))
    assert b"secret" not in d.encode_event(event)
    assert d.decode_event(d.encode_event(event)) == d.MessageComplete(
        "m", "r", finish_reason="stop"
    )
    assert event.kept.value == "secret"


def test_unknown_fields_of_an_event_are_ignored() -> None:
    written = b'{"type":"text.delta","message_id":"m","request_id":"r","content_block_index":0,"text":"a","new":1}'
    assert d.decode_event(written) == d.TextDelta("m", "r", content_block_index=0, text="a")


@pytest.mark.parametrize(
    "data", [b'{"type":"citation.delta","n":1}', '{"type":"citation.delta","n":1}']
)
def test_unknown_event_types_are_decoded_without_an_error(data: bytes | str) -> None:
    assert d.decode_event(data) == UnknownEvent(
        "citation.delta", {"type": "citation.delta", "n": 1}
    )


@pytest.mark.parametrize(
    "data",
    [
        b'{"type":"future.thing","x":1}',
        b'{"x":{"type":"text.delta"},"type":"future.thing"}',
        b'{"type":"future.thing","data":{"q":[1,null]}}',
        b'{"type":"future.thing"}',
    ],
)
def test_unknown_events_are_encoded_exactly_as_they_were_read(data: bytes) -> None:
    event = d.decode_event(data)
    assert d.encode_event(event) == data
    assert d.decode_event(d.encode_event(event)) == event


def test_unknown_event_made_in_code_is_encoded_with_its_type() -> None:
    assert json.loads(d.encode_event(UnknownEvent("future.thing", {"x": 1}))) == {
        "type": "future.thing",
        "x": 1,
    }


MALFORMED = [
    b'{"type":"text.delta"}',
    b'{"type":"text.delta","message_id":1,"request_id":"r","content_block_index":0,"text":"a"}',
    b'{"type":"message.complete","message_id":"m","request_id":"r","finish_reason":"tired"}',
    b'{"type":5}',
    b'{"no":"type"}',
    b"[]",
    b"5",
    b"",
    b"{",
]


@pytest.mark.parametrize("data", MALFORMED)
def test_malformed_events_are_rejected(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        d.decode_event(data)


# --- parsing the JSON that servers write -------------------------------------------------------


@given(some.json_values)
def test_valid_json_is_parsed_without_changes(value: Any) -> None:
    assert (
        read_json(json.dumps(value))
        == read_json(json.dumps(value, ensure_ascii=False).encode())
        == value
    )


DAMAGED: list[tuple[bytes | str, Any]] = [
    (r'"\ud83d\ude00"', "😀"),
    (r'"\uD83D\uDE00"', "😀"),
    (r'"\ud83d"', "\ufffd"),
    (r'"\ude00"', "\ufffd"),
    (r'"\uDE00\uD83D"', "\ufffd\ufffd"),
    (r'"\ud83d\ud83d\ude00"', "\ufffd😀"),
    (r'"\ud83d\n\ude00"', "\ufffd\n\ufffd"),
    (r'"\ud83d \\ud83d \"\ude00"', '\ufffd \\ud83d "\ufffd'),
    (r'"\\\ud83d"', "\\\ufffd"),
    (rb'{"a":"\ud83d"}', {"a": "\ufffd"}),
    (b'{"a":"\xff\xc3"}', {"a": "\ufffd\ufffd"}),
    (b'"\xed\xa0\xbd"', "\ufffd\ufffd\ufffd"),
    (b'[1.5,"\xff"]', [1.5, "\ufffd"]),
    ("9" * 40, int("9" * 40)),
    ("-" + "9" * 40, -int("9" * 40)),
]


@pytest.mark.parametrize(("data", "value"), DAMAGED)
def test_damaged_json_is_repaired(data: bytes | str, value: Any) -> None:
    assert read_json(data) == value
    msgspec.json.encode(read_json(data))  # the repaired value can be encoded as JSON again


REFUSED: list[tuple[bytes | str, str]] = [
    ("", "."),
    ("{", "."),
    ("{} {}", "."),
    ("nul", "."),
    ("{'a':1}", "."),
    ("NaN", "NaN is not JSON$"),
    ("[Infinity]", "Infinity is not JSON"),
    ('{"a":-Infinity}', "-Infinity is not JSON"),
    ("1e999", "1e999 is out of range$"),
    ("[-1.0e999]", "-1.0e999 is out of range"),
    ("9" * 5000, "limit"),
    ("[" * 10_000, "nested too deeply"),
    ("[" * 10_000 + "]" * 10_000, "nested too deeply"),
    ('{"a":' * 10_000 + "1" + "}" * 10_000, "nested too deeply"),
    (b'["\xff",' + b"[" * 10_000 + b"]" * 10_001, "nested too deeply"),
    ('"\ud83d"', "surrogates"),  # a lone surrogate, which cannot come from a wire
    (r'"\ud8zz"', "."),
]


@pytest.mark.parametrize(("data", "reason"), REFUSED)
def test_unrepairable_json_raises_a_value_error(data: bytes | str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_json(data)


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: '"' + text))
def test_parsing_any_bytes_as_json_raises_only_value_errors(data: bytes | str) -> None:
    try:
        value = read_json(data)
    except ValueError:
        return
    assert read_json(msgspec.json.encode(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"a":1}', {"a": 1}), ("{}", {}), ("[]", None), ("null", None), ("{", None), ("", None)],
)
def test_read_object_returns_none_unless_the_text_is_a_json_object(text: str, value: Any) -> None:
    assert read_object(text) == value


# --- the raw reply -----------------------------------------------------------------------------


def test_raw_reply_is_decoded_once_on_first_use() -> None:
    seen: list[bytes] = []

    def decode(data: bytes) -> Any:
        seen.append(data)
        return json.loads(data)

    raw = Raw([b'{"a"', b":1}"], decode)
    assert seen == []
    assert raw.value == raw.value == {"a": 1}
    assert seen == [b'{"a":1}']


def test_raw_replies_with_the_same_content_are_equal() -> None:
    raw = Raw([b"[1]"], json.loads)
    assert raw == Raw([b"[", b"1]"], json.loads)
    assert raw != Raw([b"[2]"], json.loads)
    assert raw != [1]
    with pytest.raises(TypeError, match="unhashable"):
        hash(raw)


def test_raw_bytes_are_replaced_by_a_placeholder_in_json() -> None:
    for value in (d.fold([COMPLETE]), COMPLETE):
        written = msgspec.json.encode(value)
        assert json.loads(written)["kept"] == {}
        again = msgspec.json.decode(written, type=type(value))
        assert again.kept is not None
        assert again.kept.value is None
        assert again.kept.value is None
        assert replace(again, kept=value.kept) == value
    assert (
        msgspec.json.decode(msgspec.json.encode(d.fold([COMPLETE])), type=d.Response).raw is None
    )
    assert json.loads(d.encode_event(COMPLETE))["kept"] is None


# --- token usage, and the folded response ------------------------------------------------------


def test_usage_offers_prompt_and_completion_tokens_as_aliases() -> None:
    usage = d.Usage(7, 5)
    assert usage.prompt_tokens == 7
    assert usage.completion_tokens == 5
    found = (d.Usage().prompt_tokens, d.Usage().completion_tokens, d.Usage().estimated)
    assert found == (None, None, False)


def test_unreported_usage_is_not_zero() -> None:
    assert msgspec.json.encode(d.Usage()) == b"{}"
    assert (
        msgspec.json.encode(d.Usage(0, cached_input_tokens=0))
        == b'{"input_tokens":0,"cached_input_tokens":0}'
    )
    assert d.Usage() != d.Usage(0)


def test_total_usage_of_a_response_includes_the_attempts_before_it() -> None:
    reply = d.Response(
        d.Assistant("x"), "stop", usage=d.Usage(3, 4), failed=(d.Usage(5), d.Usage(1, 1))
    )
    assert reply.total_usage == d.Usage(9, 5)


START = d.MessageStart("msg", "req", model="asked-for", provider="acme")
CALL = d.ToolCall("1", "search", {})
COMPLETE = d.MessageComplete(
    "msg",
    "req",
    finish_reason="tool_calls",
    final_content=(d.Text("hi"), CALL),
    usage=d.Usage(1, 2),
    finish_raw="tool_use",
    stop_sequence="###",
    model="answered",
    parsed={"x": 1},
    structured_path="native",
    warnings=(d.LossWarning("c", "p", "d"),),
    kept=Raw([b"[1]"], json.loads),
)


def test_folded_response_keeps_every_field_of_the_events() -> None:
    response = d.fold(
        [START, d.TextDelta("msg", "req", content_block_index=0, text="hi"), COMPLETE]
    )
    assert response == d.Response(
        message=d.Assistant("hi", tool_calls=[CALL]),
        finish_reason="tool_calls",
        usage=d.Usage(1, 2),
        finish_raw="tool_use",
        stop_sequence="###",
        parsed={"x": 1},
        model="answered",
        provider="acme",
        request_id="req",
        latency_ms=None,
        warnings=(d.LossWarning("c", "p", "d"),),
        structured_path="native",
        kept=COMPLETE.kept,
    )
    assert response.text == "hi"
    assert response.tool_calls == (CALL,)
    assert response.raw == [1]


def test_folded_response_has_no_provider_if_no_event_names_one() -> None:
    assert d.fold([COMPLETE]).provider is None
    assert d.fold([d.MessageStart("msg", "req", model="m"), COMPLETE]).provider is None


@pytest.mark.parametrize(
    "half", [[], [START], [START, d.TextDelta("msg", "req", content_block_index=0, text="hi")]]
)
def test_fold_of_an_incomplete_stream_is_rejected(half: list[d.Event]) -> None:
    with pytest.raises(ValueError, match=r"no message\.complete"):
        d.fold(half)


def test_raw_reply_is_none_if_it_was_not_kept() -> None:
    assert d.Response(d.Assistant("hi"), "stop").raw is None


def test_cached_reply_is_recognised_by_its_usage() -> None:
    assert d.Response(d.Assistant("hi"), "stop", usage=d.Usage(from_cache=True)).cached
    assert not d.Response(d.Assistant("hi"), "stop", usage=d.Usage(1, 2)).cached


def test_reply_separates_thinking_from_text() -> None:
    response = d.Response(d.Assistant((d.Thinking("h"), d.Text("hi"), d.Thinking("m"))), "stop")
    assert response.thinking == "hm"
    assert response.text == "hi"


@pytest.mark.parametrize(
    ("reason", "raw", "paused"),
    [
        ("stop", "pause_turn", True),
        ("stop", "end_turn", False),
        ("stop", None, False),
        ("length", "pause_turn", False),
    ],
)
def test_paused_turn_is_recognised_by_the_raw_finish_reason(
    reason: Any, raw: str | None, paused: bool
) -> None:
    assert d.Response(d.Assistant("hi"), reason, finish_raw=raw).is_paused is paused


# --- display of a response in notebooks --------------------------------------------------------

REPLY: d.Response[Any] = d.Response(
    d.Assistant(
        [
            d.Thinking("Let me see."),
            d.Text("The <Rhine>."),
            d.ToolCall("c", "look", {"place": "a|b"}),
            d.Image(d.Inline("aGk="), "image/webp"),
            d.Image(d.Inline("aGk=")),
            d.Image(d.Url("https://evil.example/x.png")),
        ]
    ),
    "tool_calls",
    usage=d.Usage(10, 5),
    model="m",
    provider="p",
    latency_ms=12.4,
    warnings=(d.LossWarning("dropped", "config.seed", "the wire has no seed"),),
)


def test_notebooks_show_the_parts_of_a_response() -> None:
    page = html.unescape(REPLY._repr_html_())
    markdown = REPLY._repr_markdown_()
    for text in (
        "p:m",
        "tool_calls · 10 tokens in · 5 tokens out · 12 ms",
        "Let me see.",
        "The <Rhine>.",
    ):
        assert text in page
    assert '{"place":"a|b"}' in page
    assert "the wire has no seed" in page
    assert re.findall('src="(.*?)"', page) == [
        "data:image/webp;base64,aGk=",
        "data:image/png;base64,aGk=",
    ]
    assert "evil.example" not in page  # the page loads no image from another server
    assert "2 images" in markdown
    assert "The <Rhine>." in markdown
    empty = d.Response(d.Assistant(""), "stop")
    assert empty._repr_html_() == "<div><strong>?:?</strong><div><small>stop</small></div></div>"


def test_attribute_with_the_name_of_another_library_is_explained() -> None:
    reply: Any = REPLY
    with pytest.raises(
        AttributeError, match=r"no attribute 'choices'; write reply\.text"
    ) as caught:
        reply.choices  # noqa: B018 - the error is what is tested
    assert str(caught.value).startswith("'Response' object")
    with pytest.raises(AttributeError, match=r"^'Response' object has no attribute 'colour'$"):
        reply.colour  # noqa: B018 - the error is what is tested
    assert not hasattr(reply, "colour")


def test_reply_has_no_keys() -> None:
    reply: Any = REPLY
    with pytest.raises(TypeError, match=r"write reply\.text, not \['choices'\]"):
        reply["choices"]
