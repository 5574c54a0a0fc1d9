"""Test that middleware changes neither the events of a call nor its response, wherever the call
ends.

Each case of the conformance kit is read to its end, cancelled after each event, and disconnected
after each frame: without middleware, with each layer, and with all of them. ``make test`` runs a
sample of these combinations.
"""

import os
import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from dragoman import Cache, Fallback, Guard, Observe, Provider, RateLimit, Record, Retry, Spend
from dragoman.errors import ProviderError, StreamInterruptedError
from dragoman.events import check_events, encode_event
from dragoman.middleware import Layer, Store, walk
from dragoman.middleware.guard import Action, Subject
from dragoman.provider import EventStream, HttpProvider, Reply
from dragoman.transport import FixtureTransport
from dragoman.wire import CODECS

from ..wire.cases import Case, find_cases

WHOLE = bool(os.environ.get("DRAGOMAN_EXHAUSTIVE"))
CASES = {
    wire: [
        case
        for case in find_cases(wire, "reply.json", "reply.sse", "reply.ndjson")
        if case.reply is not None
    ]
    for wire in CODECS
}
T = TypeVar("T")
Around = Callable[[Provider], Provider]
CASSETTE = Path("never-written.jsonl")


class Empty(Store):
    async def get(self, key: str) -> bytes | None:
        return None

    async def put(self, key: str, value: bytes) -> None:
        pass


def _limit_cost(model: Provider) -> Provider:
    next(each for each in walk(model) if not isinstance(each, Layer)).priced_as = "free"
    return Spend(model, usd=1)


async def allow(subject: Subject) -> Action:
    return "allow"


LAYERS: dict[str, Around] = {
    "Retry": lambda model: Retry(model, 0),
    "Observe": lambda model: Observe(model, lambda event: None),
    "RateLimit": lambda model: RateLimit(model, max_concurrency=5),
    "Spend": lambda model: _limit_cost(model),
    "Record": lambda model: Record(model, CASSETTE, "off"),
    "Guard": lambda model: Guard(model, allow, on="request"),
    # Give the fallback the name of the provider, because a reply that is cancelled before a
    # candidate is called carries the name of the fallback.
    "Fallback": lambda model: Fallback([model], name="acme"),
}


def around_all(model: Provider) -> Provider:
    for name in ("Record", "Observe", "RateLimit", "Retry", "Fallback"):
        model = LAYERS[name](model)
    return Cache(model, Empty())


LAYERS["all"] = around_all


def frames_of(case: Case) -> list[bytes]:
    """Return the pieces in which the server sends a reply; each piece is one event or one line."""
    reply = case.reply or b""
    parts = re.split(rb"(?<=\n\n)", reply) if b"\n\n" in reply else reply.splitlines(keepends=True)
    return [part for part in parts if part]


def open_case(case: Case, chunks: list[bytes | Exception]) -> HttpProvider:
    transport = FixtureTransport((case.options.status, case.options.headers, chunks))
    return HttpProvider(case.codec(), transport, name="acme", model=case.options.model)


async def read(model: Provider, case: Case, cancel_after: int | None) -> dict[str, Any]:
    """Read a reply, or cancel it after ``cancel_after`` events; return everything that a caller
    can observe.
    """
    request = msgspec.structs.replace(case.request, request_id="r1")
    stream = EventStream(model.open(request), request)
    events: list[Any] = []
    error: ProviderError | None = None
    if cancel_after == 0:
        await stream.cancel()
    try:
        async for event in stream:
            events.append(event)
            if len(events) == cancel_after:
                await stream.cancel()
    except ProviderError as raised:
        error = raised
    if events:
        check_events(events)
    await stream.aclose()
    return {
        "events": [encode_event(event).decode() for event in events],
        "response": show_response(stream.response if stream.ended else None),
        "error": None
        if error is None
        else (type(error).__name__, str(error), show_response(error.response)),
        "reply": show_reply(stream.reply),
    }


def show_response(response: Any) -> Any:
    """Return a response with its raw JSON and without its duration."""
    if response is None:
        return None
    plain = msgspec.to_builtins(msgspec.structs.replace(response, latency_ms=None, kept=None))
    return {**plain, "raw": response.raw}


def show_reply(reply: Reply) -> Any:
    return [
        reply.usage, reply.raw, reply.warnings, reply.issuer, reply.provider, reply.model,
        reply.attempt,
    ]  # fmt: skip


def with_plain_ids(seen: dict[str, Any]) -> str:
    """Return the observed values as text in which the generated ids are replaced by numbers."""
    numbers: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"{found[1]}_{numbers.setdefault(found[0], len(numbers))}"

    return re.sub(r"\b(msg|tu|call)_[0-9A-Z]{26}\b", number, repr(seen))


def places(case: Case) -> Iterator[tuple[str, list[bytes | Exception], int | None]]:
    """Yield each way in which a call can end: complete, cancelled after an event, or disconnected
    after a frame.
    """
    reply = case.reply or b""
    frames = frames_of(case)
    yield "to the end", [reply], None
    yield "to the end, in frames", [*frames], None
    events = sum(len(line) > 0 for line in (case.part("events.jsonl") or b"").splitlines())
    for at in range(events + 1):
        yield f"cancelled after {at} of one read", [reply], at
        yield f"cancelled after {at}", [*frames], at
    for at in range(len(frames) + 1):
        yield (
            f"lost after frame {at}",
            [*frames[:at], StreamInterruptedError("the connection was lost")],
            None,
        )


def sample(items: Iterable[T], draw: random.Random) -> list[T]:
    """In an exhaustive run, return all items; otherwise draw one."""
    found = list(items)
    return found if WHOLE else [draw.choice(found)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("wire", CODECS)
async def test_middleware_does_not_change_the_events_of_a_provider(
    wire: str, count: Callable[[str, int], None]
) -> None:
    assert CASES[wire]
    draw = random.Random(wire)
    for case in CASES[wire]:
        for place, chunks, cancel_after in sample(places(case), draw):
            bare = with_plain_ids(await read(open_case(case, chunks), case, cancel_after))
            for name, around in sample(LAYERS.items(), draw):
                wrapped = with_plain_ids(
                    await read(around(open_case(case, chunks)), case, cancel_after)
                )
                assert wrapped == bare, f"{wire}/{case} through {name}, {place}"
                count("calls compared with bare ones", 1)


async def test_a_cancelled_call_keeps_its_usage_behind_middleware() -> None:
    """Regression: a cancelled call behind a Retry lost the 100,000 tokens that the provider had
    reported.
    """
    case = next(case for case in CASES["anthropic"] if case.is_stream)
    seen = await read(around_all(open_case(case, [*frames_of(case)])), case, 2)
    assert seen["response"]["finish_reason"] == "cancelled"
    assert seen["response"]["usage"]["input_tokens"] is not None
    assert seen["response"]["raw"] is not None
