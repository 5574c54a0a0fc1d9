"""Test faults in the bytes between the server side and the client side of a wire, in one process."""

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman as d
from dragoman.sim import Answer, Call, Fault, ScriptedProvider, ScriptRule
from dragoman.sim.faults import Mangler, interleave
from dragoman.wire import SERVER_CODECS

from ..listed import Clock, collect
from .test_provider import ANSWERS, TOOLS

WIRES = sorted(SERVER_CODECS)
TEXT = "The quick brown fox jumps over the lazy dog."
CALLS = Answer(
    "so", tool_calls=[Call("search", {"q": f"{n} some longer text"}, f"c{n}") for n in range(3)]
)


def mangler(**fault: Any) -> Mangler:
    return Mangler(Fault(**fault), random.Random(1))


def test_fault_cuts_the_bytes_at_the_given_position() -> None:
    cut = mangler(cut_at=5)
    assert cut.feed(b"abc").data == b"abc"
    assert cut.feed(b"defg") == type(cut.end())(b"de", "cut")
    assert cut.cut
    assert cut.end(b"xyz").data == b""
    ended = mangler(end_at=0)
    assert ended.feed(b"abc").then == "ended"
    assert not ended.cut


@given(st.binary(max_size=60), st.integers(0, 70), st.lists(st.integers(0, 60), max_size=4))
def test_garbage_fault_inserts_its_bytes_once(data: bytes, at: int, cuts: list[int]) -> None:
    edges = sorted({0, len(data), *[cut for cut in cuts if cut < len(data)]})
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    one = mangler(garbage_at=at, garbage=9)
    sent = b"".join([one.feed(piece).data for piece in pieces] + [one.end().data])
    noise = random.Random(1).randbytes(9)
    place = min(at, len(data))
    assert sent == data[:place] + noise + data[place:]


def test_duplicate_fault_sends_every_nth_chunk_twice() -> None:
    one = mangler(duplicate=2)
    sent = (
        one.feed(b"data: 1\n\n").data
        + one.feed(b"data: 2\n\ndata: 3\n\n").data
        + one.end(b"data: 4\n\n").data
    )
    assert sent == b"data: 1\n\ndata: 2\n\ndata: 2\n\ndata: 3\n\ndata: 4\n\ndata: 4\n\n"


def test_drip_fault_sends_pieces_of_the_given_size() -> None:
    assert mangler(drip=2).portions(b"abcde") == [b"ab", b"cd", b"e"]
    assert mangler().portions(b"") == []


@pytest.mark.parametrize("wire", WIRES)
async def test_interleaved_fragments_are_decoded_to_the_same_calls(wire: str) -> None:
    plain = ScriptedProvider(CALLS)
    mixed = ScriptedProvider(ScriptRule(CALLS, fault=Fault(interleave=True)), wire=wire)
    wanted = await plain.complete("x", tools=TOOLS)
    events, error = await collect(mixed.stream("x", tools=TOOLS))
    assert error is None
    d.check_events(events)
    found = [event.tool_use_id for event in events if isinstance(event, d.ToolUseStart)]
    assert found == ["c0", "c1", "c2"]
    heard = await mixed.complete("x", tools=TOOLS)
    assert heard.tool_calls == wanted.tool_calls
    assert heard.text == wanted.text


def test_fault_interleaves_the_fragments_of_several_calls() -> None:
    def frame(index: int, text: str) -> bytes:
        return b'data: {"choices":[{"delta":{"tool_calls":[{"index":%d,"t":"%s"}]}}]}\n\n' % (
            index,
            text.encode(),
        )

    other = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'

    def join(*frames: tuple[int, str]) -> bytes:
        return other + b"".join(frame(*each) for each in frames) + b"data: [DONE]\n\n"

    stream = join((0, "a"), (0, "b"), (1, "c"), (1, "d"), (1, "e"))
    wanted = join((0, "a"), (1, "c"), (0, "b"), (1, "d"), (1, "e"))
    assert interleave(stream) == wanted
    one = mangler(interleave=True)
    assert one.feed(stream[:100]).data + one.feed(stream[100:200]).data == b""
    assert one.end(stream[200:]).data == wanted


FAULTS: list[tuple[Fault, type[d.ProviderError] | None]] = [
    (Fault(cut_at=400), d.StreamInterruptedError),
    (Fault(end_at=400), d.StreamInterruptedError),
    (Fault(cut_at=0), d.StreamInterruptedError),
    (Fault(drip=3), None),
    (Fault(content_type="text/plain"), None),
    (Fault(status=502, body="<html>oops</html>"), d.UnavailableError),
    (Fault(duplicate=99), None),
]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("fault", "kind"), FAULTS)
async def test_each_fault_is_raised_by_the_client_as_its_error_class(
    wire: str, fault: Fault, kind: type[d.ProviderError] | None
) -> None:
    model = ScriptedProvider(ScriptRule(TEXT, fault=fault), wire=wire)
    events, error = await collect(model.stream("x"))
    d.check_events(events)
    assert (type(error) if error else None) is kind
    if kind is None:
        assert "".join([getattr(event, "text", "") for event in events]) == TEXT


def test_wire_that_cannot_be_simulated_is_rejected() -> None:
    with pytest.raises(ValueError, match="wire must be one that can be served"):
        ScriptedProvider("x", wire="morse")


BYTES = st.builds(
    Fault,
    cut_at=st.none() | st.integers(0, 600),
    end_at=st.none() | st.integers(0, 600),
    garbage_at=st.none() | st.integers(0, 600),
    garbage=st.integers(1, 20),
    duplicate=st.none() | st.integers(1, 4),
    interleave=st.booleans(),
    drip=st.none() | st.integers(1, 9),
    error=st.none() | st.just("OverloadedError"),
    after=st.integers(0, 8),
)


@given(ANSWERS, BYTES, st.sampled_from(WIRES), st.booleans(), st.integers(0, 9))
async def test_events_of_a_stream_with_any_fault_are_valid(
    answer: Answer, fault: Fault, wire: str, stream: bool, seed: int
) -> None:
    model = ScriptedProvider(
        ScriptRule(answer, fault=fault), wire=wire, seed=seed, sleep=Clock().sleep
    )
    if stream:
        events, error = await collect(model.stream("x", tools=[*TOOLS, d.Tool("third")]))
        d.check_events(events)
        assert events or error is not None
    else:
        try:
            await model.complete("x", tools=TOOLS)
            error = None
        except d.ProviderError as raised:
            error = raised
    assert error is None or isinstance(error, d.ProviderError)
