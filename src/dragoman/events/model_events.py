"""Convert a stream to the events that an agent runtime uses: model events and proposed intents."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import ClassVar, TypeAlias, overload

from msgspec import Struct

from ..errors import ProviderError
from . import values as ev
from .intents import ToolIntent


class ModelStarted(Struct, frozen=True, tag="model.started"):
    """The model began to answer."""

    provider: str
    model: str
    request_id: str
    type: ClassVar[str] = "model.started"


class ModelTextDelta(Struct, frozen=True, tag="model.text_delta"):
    """A fragment of the reply's text."""

    text: str
    type: ClassVar[str] = "model.text_delta"


class ModelReasoningDelta(Struct, frozen=True, tag="model.reasoning_delta"):
    """A fragment of the model's thinking."""

    text: str
    type: ClassVar[str] = "model.reasoning_delta"


class ToolIntentDelta(Struct, frozen=True, tag="tool_intent.delta"):
    """A tool call that is still arriving: ``raw_input_text`` is the text of its arguments so far.

    ``provider_call_id`` is the ``tool_use_id`` of the stream. This is the provider's id, unless
    that id is missing or repeats an earlier one. In an intent, ``provider_call_id`` is always the
    provider's unchanged id.
    """

    provider_call_id: str
    tool_name: str
    raw_input_text: str
    type: ClassVar[str] = "tool_intent.delta"


class ToolIntentProposed(Struct, frozen=True, tag="tool_intent.proposed"):
    """A tool call that is complete and parsed.

    The intent has an ``id``. Its ``source`` is the provider, the model and the request; its
    ``assembled_from`` describes the fragments that it was assembled from. ``turn_id`` is the turn
    of the session that the request belongs to.
    """

    intent: ToolIntent
    turn_id: str | None = None
    type: ClassVar[str] = "tool_intent.proposed"


class ModelFinished(Struct, frozen=True, tag="model.finished"):
    """The model has finished its reply."""

    finish_reason: ev.FinishReason
    usage: ev.Usage
    type: ClassVar[str] = "model.finished"


class ProviderErrorEvent(Struct, frozen=True, tag="provider.error", kw_only=True):
    """The call to the model failed. The failure of a tool does not cause this event."""

    kind: str
    retryable: bool
    provider: str | None
    model: str | None
    request_id: str | None
    message: str
    type: ClassVar[str] = "provider.error"


ModelEvent: TypeAlias = (
    ModelStarted
    | ModelTextDelta
    | ModelReasoningDelta
    | ToolIntentDelta
    | ToolIntentProposed
    | ModelFinished
    | ProviderErrorEvent
)


@overload
def to_model_events(
    events: Iterable[ev.Event | ev.UnknownEvent], turn_id: str | None = None
) -> Iterator[ModelEvent]: ...
@overload
def to_model_events(
    events: AsyncIterable[ev.Event | ev.UnknownEvent], turn_id: str | None = None
) -> AsyncIterator[ModelEvent]: ...
def to_model_events(
    events: Iterable[ev.Event | ev.UnknownEvent] | AsyncIterable[ev.Event | ev.UnknownEvent],
    turn_id: str | None = None,
) -> Iterator[ModelEvent] | AsyncIterator[ModelEvent]:
    """Convert a stream to model events; an error raised by the stream becomes ``provider.error``.

    A call that was cancelled, cut off or malformed yields no ``tool_intent.proposed``. Events of
    unknown types are ignored. Proposed intents have the ``turn_id``; the default is the turn that
    the request of an ``EventStream`` belongs to.
    """
    turn_id = turn_id or getattr(events, "turn_id", None)
    if isinstance(events, AsyncIterable):
        return _project_async(events, turn_id)
    return _project(events, turn_id)


def _project(
    events: Iterable[ev.Event | ev.UnknownEvent], turn_id: str | None
) -> Iterator[ModelEvent]:
    project = _Projector(turn_id)
    try:
        for event in events:
            yield from project(event)
    except ProviderError as error:
        yield _error_event(error)


async def _project_async(
    events: AsyncIterable[ev.Event | ev.UnknownEvent], turn_id: str | None
) -> AsyncIterator[ModelEvent]:
    project = _Projector(turn_id)
    try:
        async for event in events:
            for projected in project(event):
                yield projected
    except ProviderError as error:
        yield _error_event(error)


def _error_event(error: ProviderError) -> ProviderErrorEvent:
    return ProviderErrorEvent(
        kind=error.kind,
        retryable=error.transient,
        provider=error.provider,
        model=error.model,
        request_id=error.request_id,
        message=str(error),
    )


class _Projector:
    def __init__(self, turn_id: str | None) -> None:
        self.name = self.arguments = ""
        self.turn_id = turn_id

    def __call__(self, event: ev.Event | ev.UnknownEvent) -> list[ModelEvent]:
        if isinstance(event, ev.TextDelta):
            return [ModelTextDelta(event.text)]
        if isinstance(event, ev.ThinkingDelta):
            return [ModelReasoningDelta(event.text)] if event.text else []
        if isinstance(event, ev.MessageStart):
            return [ModelStarted(event.provider, event.model, event.request_id)]
        if isinstance(event, ev.ToolUseStart):
            self.name = event.tool_name
            self.arguments = ""
            return []
        if isinstance(event, ev.ToolUseInputDelta):
            self.arguments += event.partial_json
            return [ToolIntentDelta(event.tool_use_id, self.name, self.arguments)]
        if isinstance(event, ev.ToolUseEnd):
            if event.intent is None:
                return []
            return [ToolIntentProposed(event.intent, self.turn_id)]
        if isinstance(event, ev.MessageComplete):
            return [ModelFinished(event.finish_reason, event.usage)]
        return []
