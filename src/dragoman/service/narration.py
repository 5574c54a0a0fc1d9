"""Turn what happens in a session into values that the protocols of user interfaces have in common.

Text arrives twice: as deltas while the model writes, and whole in the record of the reply. A
reader that was there from the beginning of a reply gets the deltas, any other one the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from .. import log as logs
from ..events import MessageStart, TextDelta, ThinkingDelta, ToolIntent
from ..messages import Assistant, Text, Thinking, ToolResult
from .runner import Happening

PartKind: TypeAlias = Literal["text", "reasoning"]


class TurnBegan(Struct, frozen=True):
    """The model is called; ``number`` counts the turns of the session."""

    number: int


class Delta(Struct, frozen=True):
    """A piece of the text, or of the reasoning, of the part with this id."""

    kind: PartKind
    id: str
    text: str


class PartEnded(Struct, frozen=True):
    """The part with this id is complete."""

    kind: PartKind
    id: str


class CallProposed(Struct, frozen=True):
    """The model proposes a tool call; its id is that of the intent."""

    id: str
    tool_name: str
    input: dict[str, Any]


class CallEnded(Struct, frozen=True):
    """What the model receives about a call: its result, or why there is none."""

    id: str
    text: str
    is_error: bool
    is_denied: bool


class Progress(Struct, frozen=True):
    """A running tool reported how far it is."""

    id: str
    tool_name: str
    progress: Any


class ModelUsed(Struct, frozen=True):
    """A call of a model ended, and used this many tokens."""

    provider: str
    model: str
    input_tokens: int | None
    output_tokens: int | None


class RunEnded(Struct, frozen=True):
    """The run ended with this outcome."""

    outcome: str
    detail: str | None


Told: TypeAlias = (
    TurnBegan | Delta | PartEnded | CallProposed | CallEnded | Progress | ModelUsed | RunEnded
)


class Narrator:
    """Turn records and events of a session, in order, into the values above."""

    def __init__(self) -> None:
        self._part: tuple[PartKind, str] | None = None
        self._heard: str | None = None  # the reply whose first event arrived here
        self._denied: set[str] = set()
        # The log has the calls of a reply before the reply, but a reader gets its text first.
        self._proposed: list[CallProposed] = []

    def narrate(self, news: Happening) -> Iterator[Told]:
        """Yield what a record or an event means."""
        if isinstance(news, logs.LogRecord):
            yield from self._close()
            yield from self._narrate_record(news.payload)
        elif isinstance(news, MessageStart):
            self._heard = news.request_id
        elif isinstance(news, TextDelta | ThinkingDelta) and news.request_id == self._heard:
            kind: PartKind = "text" if isinstance(news, TextDelta) else "reasoning"
            yield from self._add(kind, news.request_id, news.content_block_index, news.text)

    def _narrate_record(self, payload: object) -> Iterator[Told]:
        if isinstance(payload, logs.TurnStarted):
            yield TurnBegan(payload.number)
        elif isinstance(payload, logs.MessageRecorded):
            yield from self._narrate_message(payload)
        elif isinstance(payload, ToolIntent):
            self._proposed.append(CallProposed(payload.id, payload.tool_name, payload.input))
        elif isinstance(payload, logs.PermissionDenied):
            self._denied.add(payload.intent_id)
        elif isinstance(payload, logs.ToolProgress):
            yield Progress(payload.intent_id, payload.tool_name, payload.progress)
        elif isinstance(payload, logs.CallCompleted | logs.CallFailed):
            yield ModelUsed(
                payload.provider, payload.model, payload.input_tokens, payload.output_tokens
            )
        elif isinstance(payload, logs.SessionFinished):
            yield RunEnded(payload.outcome, payload.detail)

    def _narrate_message(self, recorded: logs.MessageRecorded) -> Iterator[Told]:
        message = recorded.message
        if isinstance(message, ToolResult):
            name = recorded.tool_ids.get(message.tool_call_id, message.tool_call_id)
            is_denied = name in self._denied
            yield CallEnded(name, message.text, message.is_error, is_denied)
            return
        if isinstance(message, Assistant) and recorded.request_id != self._heard:
            reply = recorded.request_id or recorded.message_id or ""
            for index, block in enumerate(message.content):
                if isinstance(block, Text | Thinking):
                    kind: PartKind = "text" if isinstance(block, Text) else "reasoning"
                    yield from self._add(kind, reply, index, block.text)
            yield from self._close()
        yield from self._proposed
        self._proposed = []

    def _add(self, kind: PartKind, reply: str, index: int, text: str) -> Iterator[Told]:
        if not text:
            return
        part = (kind, f"{reply}-{index}")
        if self._part != part:
            yield from self._close()
            self._part = part
        yield Delta(kind, part[1], text)

    def _close(self) -> Iterator[Told]:
        if self._part is not None:
            yield PartEnded(*self._part)
            self._part = None
