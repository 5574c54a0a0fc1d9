"""Whatever a server sends, the decoder gives valid events or a provider error."""

import copy
import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dragoman.errors
from dragoman.capabilities import Capabilities
from dragoman.conformance.cases import write_frames
from dragoman.errors import InvalidResponseError, ProviderError, StreamInterruptedError
from dragoman.events import encode_event
from dragoman.messages import Request
from dragoman.wire import CODECS, Codec
from tests import strategies as some

from .cases import (
    BASE_URL,
    MODEL,
    Case,
    DecodedReply,
    bytewise,
    cut_at_random,
    decode,
    find_cases,
    plain_request,
)

EXHAUSTIVE = os.environ.get("DRAGOMAN_EXHAUSTIVE") == "1"
TREE = tuple(
    getattr(dragoman.errors, name) for name in dragoman.errors.__all__ if name.endswith("Error")
)
WIRES = sorted(CODECS)
# The wires that check the type of every value; the others rely on the decoder, which turns any
# exception into an error of the provider.
CHECKED = ("openai", "responses")
PARTS = ("reply.json", "reply.sse", "reply.ndjson", "reply.frames")
STREAM = plain_request(stream=True)

# Decoding traces nothing that the cases do not, and tracing doubles the time of these tests.
pytestmark = [pytest.mark.no_cover, pytest.mark.exhaustive]

each_wire = pytest.mark.parametrize("wire", WIRES)


def connect(wire: str) -> Codec:
    return CODECS[wire].connect(MODEL, BASE_URL, None, Capabilities())


def replied(wire: str) -> list[Case]:
    return [case for case in find_cases(wire, *PARTS) if case.options.status < 300]


def hear(codec: Codec, request: Request, pieces: Any) -> DecodedReply:
    """Decode a reply. Its error, if there is one, must be a provider error with an expected cause,
    and all its events must be serialisable.
    """
    heard = decode(codec, request, pieces)
    error = heard.error
    if error is not None:
        assert type(error) in TREE
        cause = error.__cause__
        if codec.wire in CHECKED:
            assert cause is None or isinstance(cause, ValueError | RecursionError), repr(cause)
        assert str(error)
        assert repr(error)
        assert heard.response is None or error.response is not None
    assert error is not None or heard.response is not None
    for event in heard.events:
        assert encode_event(event)
    return heard


# --- values of the wrong type ------------------------------------------------------------------

Line = tuple[bytes, Any]  # what precedes a JSON value, and the value; ``...`` if there is none
Path = tuple[Any, ...]
REPLACEMENTS: list[Any] = [
    ..., None, True, False, 0, 1, -1, 1.5, 2**70, "", "x", "stop", "text", "\x00", "{", [], [None],
    [[]], ["x"], {}, {"a": 1}, {"error": "x"}, {"type": []}, {"text": 5}, [{"index": 0}],
]  # fmt: skip


def lines_of(case: Case) -> list[Line]:
    """Split the reply of a case into its JSON values and the bytes before each of them."""
    if (body := case.part("reply.json")) is not None:
        return [read_line(b"", body)]
    text = next(data for part in PARTS if (data := case.part(part)) is not None)
    return [
        read_line(b"data: ", line.removeprefix(b"data:"))
        if line.startswith(b"data:")
        else read_line(b"", line)
        for line in text.replace(b"\r\n", b"\n").split(b"\n")
    ]


def read_line(prefix: bytes, text: bytes) -> Line:
    try:
        value = json.loads(text)
    except ValueError:
        return prefix + text, ...
    return prefix, value


def write_lines(case: Case, lines: list[Line]) -> bytes:
    text = b"\n".join(
        [prefix + (b"" if value is ... else json.dumps(value).encode()) for prefix, value in lines]
    )
    return write_frames(text) if case.path("reply.frames").exists() else text


def paths_in(value: Any, path: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from paths_in(item, (*path, key))


def changed(value: Any, path: Path, new: Any) -> Any:
    """Return a copy of a value with the part at a path replaced; ``...`` removes it."""
    made = copy.deepcopy(value)
    place = made
    for key in path[:-1]:
        place = place[key]
    if new is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = new
    return made


def places_of(wire: str) -> dict[Any, list[tuple[Case, int, Path]]]:
    """Return every field that occurs in the cases of a wire, with the places where it occurs."""
    found: dict[Any, list[tuple[Case, int, Path]]] = {}
    for case in replied(wire):
        for at, (_, value) in enumerate(lines_of(case)):
            kind = value.get("type") if isinstance(value, dict) else None
            for path in paths_in(value):
                if wire != "bedrock" or len(path) > 1 or not case.path("reply.frames").exists():
                    field = tuple(["*" if isinstance(key, int) else key for key in path])
                    found.setdefault((str(kind), field), []).append((case, at, path))
    return found


@each_wire
def test_values_of_the_wrong_type_anywhere_in_a_reply_are_handled(wire: str) -> None:
    fields = list(places_of(wire).items())
    for field, places in fields[:: 1 if EXHAUSTIVE else 2]:  # all places would take hours
        chance = random.Random(str(field))
        chosen = chance.sample(places, min(len(places), 3))
        shortest = min(chosen, key=lambda place: len(place[0].reply or b""))
        for case, at, path in chosen if EXHAUSTIVE else [shortest]:
            lines = lines_of(case)
            for new in REPLACEMENTS if EXHAUSTIVE else chance.sample(REPLACEMENTS, 1):
                prefix, value = lines[at]
                one = (prefix, changed(value, path, new))
                data = write_lines(case, [*lines[:at], one, *lines[at + 1 :]])
                try:
                    heard = hear(case.codec(), case.request, [data])
                    again = hear(case.codec(), case.request, cut_at_random(data, path, 400))
                    assert again.facts == heard.facts
                except AssertionError as failure:
                    raise AssertionError(
                        f"{wire}/{case}: {path} = {new!r}: {failure}"
                    ) from failure


# --- arbitrary bytes and JSON ------------------------------------------------------------------


@settings(max_examples=5000 if EXHAUSTIVE else 60)
@given(
    case=st.sampled_from([case for wire in WIRES for case in replied(wire)]), seed=st.integers()
)
def test_randomly_damaged_replies_are_handled(case: Case, seed: int) -> None:
    """The test changes, removes, duplicates or moves some bytes of valid replies."""
    chance = random.Random(seed)
    data = bytearray(case.reply or b"")
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(data))
        size = chance.randint(1, 12)
        match chance.randint(0, 4):
            case 0:
                del data[at : at + size]
            case 1:
                data[at:at] = data[at : at + size]
            case 2:
                data[at:at] = bytes(chance.choices(b'{}[]",:\\\n\r dnul0\xff', k=size))
            case 3:
                data[at : at + 1] = bytes([chance.randint(0, 255)])
            case _:
                other = chance.randint(0, len(data))
                data[at:at] = data[other : other + 40]
    damaged = bytes(data)
    heard = hear(case.codec(), case.request, [damaged])
    again = hear(case.codec(), case.request, cut_at_random(damaged, seed))
    # A frame with a wrong checksum hides the frames before it that arrive in the same piece.
    assert again.facts == heard.facts or case.path("reply.frames").exists()


@settings(max_examples=5000 if EXHAUSTIVE else 100)
@given(case=st.sampled_from(find_cases("responses", "reply.sse")), seed=st.integers())
def test_events_in_any_order_are_handled(case: Case, seed: int) -> None:
    """The test takes some events of a valid stream, in any order and with other indices."""
    chance = random.Random(seed)
    events = [value for _, value in lines_of(case) if isinstance(value, dict)]
    some_events = [dict(each) for each in chance.choices(events or [{}], k=chance.randint(1, 14))]
    for event in some_events[:: chance.randint(1, 3)]:
        event["output_index"] = chance.choice([None, 0, 1, 9])
    data = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in some_events]
    hear(case.codec(), case.request, data)


def first_event(wire: str) -> bytes:
    """Return the first event of a reply with text; nothing for a binary stream."""
    if wire == "bedrock":
        return b""
    cases = find_cases(wire, "reply.sse", "reply.ndjson")
    reply = next(case.reply or b"" for case in cases if "text" in case.name)
    end = b"\n" if wire == "ollama" else b"\n\n"
    return reply.replace(b"\r\n", b"\n").partition(end)[0] + end


FIRST = {wire: first_event(wire) for wire in WIRES}


@settings(max_examples=1000 if EXHAUSTIVE else 15)
@given(data=st.binary(max_size=80), stream=st.booleans(), seed=st.integers(0, 99))
def test_random_bytes_raise_only_provider_errors(data: bytes, stream: bool, seed: int) -> None:
    for wire in WIRES:
        check_bytes(wire, plain_request(stream=stream), data, seed)


def check_bytes(wire: str, request: Request, data: bytes, seed: int) -> None:
    codec = connect(wire)
    for prefix in (b"", b"data: ", b"{", b"\xef\xbb\xbf", b"\n ", FIRST[wire] + b"data:"):
        heard = hear(codec, request, [prefix + data])
        for pieces in (bytewise(prefix + data), cut_at_random(prefix + data, seed, 7)):
            assert hear(codec, request, pieces).facts == heard.facts


@settings(max_examples=1000 if EXHAUSTIVE else 15)
@given(value=some.json_values, values=st.lists(some.json_values, max_size=4))
def test_random_json_raises_only_provider_errors(value: Any, values: list[Any]) -> None:
    for wire in WIRES:
        codec = connect(wire)
        end = b"\n" if wire == "ollama" else b"\n\n"
        mark = b"" if wire == "ollama" else b"data: "
        events = [mark + json.dumps(each).encode() + end for each in values]
        for data in (json.dumps(value).encode(), FIRST[wire] + b"".join(events)):
            heard = hear(codec, STREAM, [data])
            assert hear(codec, STREAM, cut_at_random(data, wire)).facts == heard.facts, wire


NO_REPLIES = [b"", b" ", b"{", b'{"a": 1', b"[1]", b"<html>", b"\xef\xbb\xbf{}", b"{} and more"]


@each_wire
def test_bodies_that_are_not_replies_are_rejected(wire: str) -> None:
    for reply in NO_REPLIES:
        heard = hear(connect(wire), plain_request(stream=False), [reply])
        again = hear(connect(wire), plain_request(stream=False), bytewise(reply))
        assert heard.facts == again.facts
        assert isinstance(heard.error, ProviderError), reply


DEEP = 10_000


@each_wire
@pytest.mark.parametrize("prefix", [b"", b"data: "])
def test_deeply_nested_replies_are_rejected(wire: str, prefix: bytes) -> None:
    for reply in (
        b"[" * DEEP,
        b'{"a":' * DEEP + b"1" + b"}" * DEEP,
        b'{"choices": [{"message": {"content": ' + b"[" * DEEP + b"]" * DEEP + b"}}]}",
    ):
        for pieces in ([prefix + reply + b"\n\n"], cut_at_random(prefix + reply, 1, 500)):
            error = hear(connect(wire), STREAM, pieces).error
            assert isinstance(error, InvalidResponseError | StreamInterruptedError), error
            assert isinstance(error, InvalidResponseError) or prefix or wire not in CHECKED
