"""A body that is one text takes a short way through the decoder of the openai wire; the events are
the same as on the long way.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count as counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.events import Assembler, Event, check_events
from dragoman.messages import Request, RuntimeConfig, Tool, User
from dragoman.validate import Expectation
from dragoman.wire.openai import OpenAICodec, Quirks, reply
from dragoman.wire.openai.chunks import Choice, Chunk, Part
from dragoman.wire.openai.plain import read_plain

from .cases import BASE_URL, Record, find_cases, find_exchanges, find_records

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
REQUESTS = [
    Request((User("Hi"),), model="m", request_id="R"),
    Request((User("Hi"),), model="m", request_id="R", response_schema=SCHEMA),
    Request((User("Hi"),), config=RuntimeConfig(extras={"n": 2}), model="m", request_id="R"),
]
QUIRKS = [
    {},
    {"reasoning_details": True},
    {"finish_words": {"stop": "length"}},
    {"usage_path": "x.usage"},
    {"tools": "schema"},
]


class Ways:
    """Decodes a body on the long way and on the usual way; ``taken`` counts the short ones."""

    def __init__(self) -> None:
        self.taken = 0

    def decode(
        self, body: bytes, request: Request, quirks: dict[str, Any], undelivered: int | None
    ) -> list[Any]:
        """Return everything that can be seen of a reply; its last events may be undelivered."""
        numbers = counter()
        codec = OpenAICodec("m", BASE_URL, Quirks(**quirks))
        out = Assembler(
            request_id="R",
            model="m",
            provider="p",
            expected=Expectation(request),
            new_id=lambda: str(next(numbers)),
        )
        decoder = codec.decoder(request, out)
        events: list[Event] = [*decoder.feed(body), *decoder.end()]
        check_events(events)
        if undelivered is not None:
            held = events[len(events) - min(undelivered, len(events)) :]
            events = [*events[: len(events) - len(held)], *out.cut(held)]
        error = None if out.error is None else (type(out.error), str(out.error))
        return [events, error, out.reported, out.model, out.warnings, out.response]

    def compare(
        self,
        body: bytes,
        request: Request = REQUESTS[0],
        quirks: dict[str, Any] | None = None,
        undelivered: int | None = None,
    ) -> None:
        def usual(*arguments: Any) -> bool:
            is_taken = read_plain(*arguments)
            self.taken += is_taken
            return is_taken

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reply, "read_plain", usual)
            short = self.decode(body, request, quirks or {}, undelivered)
            patch.setattr(reply, "read_plain", lambda *arguments: False)
            assert short == self.decode(body, request, quirks or {}, undelivered)


def bodies() -> list[bytes]:
    """Return every complete body of the openai wire in the cases and in the recordings."""
    found = [case.reply or b"" for case in find_cases("openai", "reply.json")]
    records: list[Record] = list(find_records().values())
    found += [each.body for each in records if each.wire == "openai" and not each.is_events]
    found += [(each["response_body"] or "").encode() for each in find_exchanges()]
    return found


def test_known_bodies_give_the_same_events_on_both_ways(count: Callable[[str, int], None]) -> None:
    ways = Ways()
    for body in bodies():
        ways.compare(body)
    count("bodies on the short way", ways.taken)
    assert ways.taken > 0


NOTHING: list[Any] = [None, "", [], {}, 0]
TEXTS = st.text(max_size=5) | st.none() | st.just([{"type": "text", "text": "x"}])
CALLS = [[], None, [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]]
PARTS = st.fixed_dictionaries(
    {"content": TEXTS},
    optional={
        **{
            name: st.sampled_from([*NOTHING, "said", [{"a": 1}]])
            for name in (
                "refusal",
                "reasoning",
                "reasoning_content",
                "annotations",
                "images",
                "audio",
                "executed_tools",
                "reasoning_details",
            )
        },
        "tool_calls": st.sampled_from(CALLS),
        "function_call": st.sampled_from([None, {"name": "f", "arguments": "{}"}]),
    },
)
COUNTS = st.sampled_from([None, 0, 3, 7, -1, "3", {"cached_tokens": 2}])
USAGES = st.none() | st.dictionaries(
    st.sampled_from(
        ["prompt_tokens", "completion_tokens", "total_tokens", "reasoning_tokens", "cost",
         "prompt_tokens_details", "cached_tokens"]
    ),
    COUNTS,
)  # fmt: skip
CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "index": st.sampled_from([0, 1, None, "0"]),
        "message": PARTS | st.none(),
        "delta": PARTS,
        "finish_reason": st.sampled_from(
            ["stop", "length", "tool_calls", "content_filter", "odd", None, "", 1, ["stop"]]
        ),
        "native_finish_reason": st.sampled_from([None, "MAX_TOKENS"]),
        "usage": USAGES,
        "error": st.sampled_from([None, {}, {"message": "broken"}]),
    },
)
BODIES = st.fixed_dictionaries(
    {"choices": st.lists(CHOICES, max_size=2)},
    optional={
        "model": st.sampled_from(["m2", "", None, 1]),
        "usage": USAGES,
        "error": st.sampled_from([None, {}, {"message": "broken"}]),
        "x": st.just({"usage": {"prompt_tokens": 9, "completion_tokens": 9}}),
        **{
            name: st.sampled_from([*NOTHING, ["http://a.test"], [{"url": "http://a.test"}]])
            for name in ("citations", "search_results", "images", "related_questions")
        },
    },
)


@given(
    body=BODIES,
    request=st.sampled_from(REQUESTS),
    quirks=st.sampled_from(QUIRKS),
    undelivered=st.none() | st.integers(0, 3),
)
def test_any_body_gives_the_same_events_on_both_ways(
    body: Any, request: Request, quirks: dict[str, Any], undelivered: int | None
) -> None:
    Ways().compare(json.dumps(body).encode(), request, quirks, undelivered)


PLAIN = {
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}
MESSAGE = {"role": "assistant", "content": "Hi"}
CALL = {"name": "any", "arguments": "{}"}


def changed(**fields: Any) -> Any:
    """Return the plain body with other fields in its choice."""
    return {**PLAIN, "choices": [{"message": MESSAGE, "finish_reason": "stop", **fields}]}


def counted(**counts: Any) -> Any:
    return {**PLAIN, "usage": {**PLAIN["usage"], **counts}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("body", "quirks"),
    [
        ({**PLAIN, "x": {"usage": {"prompt_tokens": 9, "completion_tokens": 9}}}, QUIRKS[3]),
        (changed(message={**MESSAGE, "reasoning_details": [{"type": "t", "data": 1}]}), QUIRKS[1]),
        (changed(message={**MESSAGE, "content": '{"answer": "Hi"}'}), QUIRKS[4]),
        ({**changed(usage={"prompt_tokens": 9, "completion_tokens": 9}), "usage": None}, {}),
        (changed(message={**MESSAGE, "function_call": CALL}), {}),
        (counted(cached_tokens=2), {}),
        (counted(prompt_tokens_details={"cached_tokens": 2}), {}),
        (counted(cost=0.5), {}),
        (counted(total_tokens=9, reasoning_tokens=5), {}),
    ],
)
def test_unusual_body_gives_the_same_events_on_both_ways(
    body: Any, quirks: dict[str, Any]
) -> None:
    tools = (Tool("any", "Takes anything.", {"type": "object"}),)
    for given_tools in ((), tools):
        asked = Request((User("Hi"),), given_tools, model="m", request_id="R")
        Ways().compare(json.dumps(body).encode(), asked, quirks)


VALUES: list[Any] = [None, "", "said", [], ["a"], {}, {"a": 1}, 0, 1, True, "length", "stop"]


def variants() -> list[Any]:
    """Return the plain body, and bodies that differ from it in one field of one level."""
    fields = [name for kind in (Chunk, Choice, Part) for name in kind.__struct_fields__]
    names = [*fields, "prompt_tokens", "completion_tokens", "total_tokens", "unknown"]
    made: list[Any] = []
    for name in names:
        for value in VALUES:
            made.append({**PLAIN, name: value})
            choice = {**PLAIN["choices"][0], name: value}  # type: ignore[dict-item]
            made.append({**PLAIN, "choices": [choice]})
            part = {**PLAIN["choices"][0]["message"], name: value}  # type: ignore[index]
            made.append({**PLAIN, "choices": [{**choice, "message": part}]})
            made.append({**PLAIN, "usage": {**PLAIN["usage"], name: value}})  # type: ignore[dict-item]
    return made


def test_every_field_of_a_body_has_the_same_effect_on_both_ways() -> None:
    ways = Ways()
    for body in variants():
        ways.compare(json.dumps(body).encode())
    assert ways.taken > 100


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("quirks", QUIRKS)
@pytest.mark.parametrize("undelivered", [None, 0, 1, 2, 3])
def test_plain_body_gives_the_same_events_for_every_kind_of_request(
    request_: Request, quirks: dict[str, Any], undelivered: int | None
) -> None:
    Ways().compare(json.dumps(PLAIN).encode(), request_, quirks, undelivered)
