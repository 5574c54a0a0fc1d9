"""The contract of a provider's streams: events, cancellation, ids and concurrent calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, get_args

from .. import events as ev
from ..errors import InvalidRequestError, ProviderError, UnsupportedFeatureError
from ..messages import Assistant, new_ulid
from ..provider import EventStream, Provider
from .provider import Kit
from .violation import Violation, demand, demand_same

_FINISHES = get_args(ev.FinishReason)

Check = Callable[[Kit, Provider], Awaitable[None]]


# --- reading events ----------------------------------------------------------------------------


async def read_events(stream: EventStream) -> list[ev.Event]:
    """Return the events of a stream; raise ``Violation`` if they break a rule."""
    events = [event async for event in stream]
    demand_rules(events)
    return events


def demand_rules(events: list[ev.Event]) -> None:
    """Raise ``Violation`` if events break a rule of streams."""
    try:
        ev.check_events(events)
    except ev.StreamContractError as error:
        raise Violation(f"the stream breaks a rule: {error}") from error


async def read_until_error(stream: EventStream) -> tuple[list[ev.Event], ProviderError | None]:
    """Return the events of a stream, and the error that ended it, if any."""
    events: list[ev.Event] = []
    try:
        async for event in stream:
            events.append(event)
    except ProviderError as error:
        return events, error
    return events, None


@contextlib.asynccontextmanager
async def refused(*kinds: type[ProviderError], what: str) -> AsyncIterator[None]:
    """Check that the ``with`` block raises one of the given errors before anything is sent."""
    try:
        yield
    except ProviderError as error:
        named = " or ".join([kind.__name__ for kind in kinds])
        demand(
            isinstance(error, kinds), f"{what}: rejected with {type(error).__name__}, not {named}"
        )
        demand(error.status is None, f"{what}: rejected by the server, not before sending")
        return
    raise Violation(f"{what}: not rejected")


def demand_response(reply: Any) -> None:
    """Raise ``Violation`` unless a reply is a complete ``Response``."""
    demand(isinstance(reply, ev.Response), f"complete() returned {type(reply).__name__}")
    demand(isinstance(reply.message, Assistant), "message is not an Assistant")
    demand(reply.finish_reason in _FINISHES, f"finish_reason is {reply.finish_reason!r}")
    demand(bool(reply.request_id), "request_id is empty")
    demand(bool(reply.model), "model is empty")
    _demand_usage(reply.usage)


def _demand_usage(usage: ev.Usage) -> None:
    for name in ev.Usage.__struct_fields__:
        value = getattr(usage, name)
        if name.endswith("_tokens") and value is not None:
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            demand(is_count, f"usage.{name} is {value!r}: neither a non-negative integer nor None")
    for part, whole in (
        ("cached_input_tokens", "input_tokens"),
        ("reasoning_tokens", "output_tokens"),
    ):
        some = getattr(usage, part)
        of_all = getattr(usage, whole)
        demand(
            some is None or of_all is None or some <= of_all,
            f"usage.{part} is more than {whole}, which includes it",
        )


# --- cases for streams -------------------------------------------------------------------------


async def _streams_keep_the_rules(kit: Kit, provider: Provider) -> None:
    events = await read_events(kit.stream(provider))
    demand(bool(events), "the stream ended without an event and without an error")
    demand(isinstance(events[0], ev.MessageStart), "the first event is not message.start")
    demand(isinstance(events[-1], ev.MessageComplete), "the last event is not message.complete")
    demand(any(isinstance(event, ev.TextDelta) for event in events), "no text came")


async def _a_stream_folds_to_its_response(kit: Kit, provider: Provider) -> None:
    async with kit.stream(provider) as stream:
        demand(not stream.ended, "the stream counts as ended before its end")
        events = await read_events(stream)
    demand(stream.ended, "the stream does not count as ended after its end")
    reply = stream.response
    demand_response(reply)
    demand_same(
        reply.message,
        ev.fold(events).message,
        "the stream's response and the fold of its events",
    )
    demand_same(reply.usage, ev.fold(events).usage, "their usage")


async def _a_stream_can_be_abandoned(kit: Kit, provider: Provider) -> None:
    async with kit.stream(provider) as stream:
        await anext(stream)
    demand(not await provider.cancel(stream.request_id), "an abandoned stream is still in flight")
    await read_events(kit.stream(provider))


async def is_known_not_to_stream(kit: Kit, provider: Provider) -> None:
    """Check that a provider without streams rejects them before sending."""
    async with refused(UnsupportedFeatureError, what="a stream"):
        await read_events(kit.stream(provider))


# --- cases for cancelling a stream -------------------------------------------------------------


async def _a_cancelled_stream_is_closed(kit: Kit, provider: Provider) -> None:
    stream = kit.stream(provider)
    events = [await anext(stream)]
    demand(await stream.cancel(), "cancel() of a running stream returned False")
    events += [event async for event in stream]
    demand_rules(events)
    demand_same(ev.fold(events).finish_reason, "cancelled", "the finish reason")
    demand(not await stream.cancel(), "a second cancel() returned True")
    demand(
        not await provider.cancel(stream.request_id),
        "cancel() of a finished call returned True",
    )


async def _outer_cancellation_passes(kit: Kit, provider: Provider) -> None:
    for ask in (
        lambda: kit.ask(provider),
        lambda: _started(provider, kit),
    ):
        task = asyncio.ensure_future(ask())
        await asyncio.sleep(0)
        if not task.cancel():
            continue  # the provider has answered without waiting
        with contextlib.suppress(asyncio.CancelledError):
            await task
            raise Violation("the task's own cancellation was swallowed")
        demand(task.cancelled(), "the task's own cancellation was swallowed")
    await kit.ask(provider)


async def _started(provider: Provider, kit: Kit) -> None:
    async with kit.stream(provider) as stream:
        async for _ in stream:
            await asyncio.sleep(0)
        await asyncio.Event().wait()


# --- cases for ids -----------------------------------------------------------------------------


async def _ids_are_the_callers(kit: Kit, provider: Provider) -> None:
    name = new_ulid()
    events = await read_events(kit.stream(provider, request_id=name))
    demand(
        {event.request_id for event in events} == {name},
        "events do not have the given request_id",
    )
    reply = await kit.ask(provider, request_id=name)
    demand_same(reply.request_id, name, "the reply's request_id")


async def _ids_differ(kit: Kit, provider: Provider) -> None:
    calls = [await read_events(kit.stream(provider)) for _ in range(3)]
    demand(
        len({events[0].request_id for events in calls}) == 3,
        "two calls have the same request_id",
    )
    demand(
        len({events[0].message_id for events in calls}) == 3,
        "two replies have the same message_id",
    )


async def _an_id_is_in_flight_once(kit: Kit, provider: Provider) -> None:
    async with kit.stream(provider, request_id="R") as stream:
        await anext(stream)
        async with refused(InvalidRequestError, what="a request_id that is in flight"):
            await kit.ask(provider, request_id="R")


# --- cases for concurrency ---------------------------------------------------------------------


async def _many_at_once(kit: Kit, provider: Provider) -> None:
    names = [new_ulid() for _ in range(kit.at_once)]
    calls = [read_events(kit.stream(provider, request_id=name)) for name in names]
    for name, events in zip(names, await asyncio.gather(*calls), strict=True):
        demand(
            {event.request_id for event in events} == {name},
            "events of one call have another call's id",
        )


async def _calls_do_not_wait_for_each_other(kit: Kit, provider: Provider) -> None:
    """Check that one stream can stay open while another runs from beginning to end."""
    async with kit.stream(provider) as waiting:
        await anext(waiting)
        await read_events(kit.stream(provider))
        events = [event async for event in waiting]
        demand(isinstance(events[-1], ev.MessageComplete), "the first of two streams did not end")


STREAMED: dict[str, Check] = {
    "streams.keep-the-rules": _streams_keep_the_rules,
    "streams.fold-to-their-response": _a_stream_folds_to_its_response,
    "streams.can-be-left": _a_stream_can_be_abandoned,
    "cancel.a-stream": _a_cancelled_stream_is_closed,
    "cancel.from-outside": _outer_cancellation_passes,
    "ids.are-the-callers": _ids_are_the_callers,
    "ids.differ": _ids_differ,
    "ids.in-flight-once": _an_id_is_in_flight_once,
    "concurrency.many-at-once": _many_at_once,
    "concurrency.no-waiting": _calls_do_not_wait_for_each_other,
}
