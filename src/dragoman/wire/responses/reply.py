"""Decode events and bodies of the Responses wire, including deviations of compatible servers.

This module reads events, bodies, usage and the finish reason. The module ``output`` tracks the
output items.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from ...errors import InvalidResponseError, StreamInterruptedError, cut
from ...events import Assembler, FinishReason, StopDetails, Usage, read_json
from ...messages import Request
from ..codec import Decoder
from ..errors import is_failure
from ..json import dig, list_of, read_as, string_of
from ..sse import Frame
from ..terms import note_terms
from ..usage import UsageMap
from .errors import reply_error
from .finish import FINISH
from .output import Item, OutputItems, index_of, kind_of, own_fields_of, rest_of, text_of


class _Response(Struct):
    """A response object: a complete body, or a field of some events.

    It has only the fields that the decoder uses.
    """

    object: Any = None
    model: Any = None
    status: Any = None
    output: Any = None
    error: Any = None
    incomplete_details: Any = None
    usage: Any = None
    service_tier: Any = None


class _Event(Struct):
    """Any event of a stream. llama.cpp sends no indices, and OpenRouter sends no event names."""

    type: Any = None
    response: _Response | None = None
    item: Any = None
    part: Any = None
    output_index: Any = None
    content_index: Any = None
    summary_index: Any = None
    item_id: Any = None
    delta: Any = None
    text: Any = None
    refusal: Any = None
    arguments: Any = None
    name: Any = None
    error: Any = None


_events = msgspec.json.Decoder(_Event)
_responses = msgspec.json.Decoder(_Response)


TERMINAL = {
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}
ERRORS = ("error", "response.error")
_UNFINISHED = ("queued", "in_progress")
USAGE = UsageMap(
    {
        "input_tokens": "input_tokens",
        "output_tokens": "output_tokens",
        "total_tokens": "total_tokens",
        "cached_input_tokens": "input_tokens_details.cached_tokens",
        "cache_creation_input_tokens": "input_tokens_details.cache_write_tokens",
        "reasoning_tokens": "output_tokens_details.reasoning_tokens",
    }
)


class ResponsesDecoder(Decoder):
    """Decode events and bodies of the Responses wire.

    A reply with as many tokens as ``limit`` counts as truncated.
    """

    def __init__(
        self, request: Request, out: Assembler, *, limit: int | None = None, keep_raw: bool = True
    ) -> None:
        super().__init__(request, out, keep_raw=keep_raw)
        self._limit = limit
        self._output = OutputItems(out)
        self._usage = Usage()
        self._usage_raw: Any = None
        self._finish_raw: str | None = None

    def frame(self, frame: Frame) -> None:
        data = frame.data.strip()
        if not data:
            return
        # OpenRouter sends [DONE] after the final event. If [DONE] arrives before a final event,
        # the reply is incomplete.
        if data == b"[DONE]":
            self.done = True
            self.interrupted()
            return
        if frame.event == b"error" and not data.startswith(b"{"):
            self._fail(data.decode("utf-8", "replace"))
            return
        event = read_as(_events, data)
        reader = _READERS.get(event.type) if type(event.type) is str else None
        if reader is not None:
            reader(self, event)
        elif (
            event.type in ERRORS
            or frame.event == b"error"
            or (not str(event.type).startswith("response.") and (event.error or is_failure(data)))
        ):
            self._fail(event.error or read_json(data))

    def body(self, data: bytes) -> None:
        response = read_as(_responses, data)
        output = response.output
        status = response.status
        kind = str(response.object)
        if not output and (response.error or (status is None and is_failure(data))):
            self._fail(response.error or read_json(data))
            return
        if kind.startswith("response."):
            raise InvalidResponseError(f"the reply is a {cut(kind)}, not a response")
        if not isinstance(output, list) and status != "failed":
            raise InvalidResponseError("the reply has no output")
        if status in _UNFINISHED:
            # In background mode the server answers before the reply exists. A retry would only
            # queue the call again, so the error is not transient (case: responses/status-queued).
            raise InvalidResponseError(
                f"the server answered before the reply was finished ({cut(str(status))})"
            )
        self._output.start(response.model)
        self._settle(response, status if isinstance(status, str) else "completed")

    def at_end(self) -> None:
        self.interrupted()

    def facts(self) -> dict[str, Any]:
        return {"finish_reason": self._finish_raw, "usage": self._usage_raw}

    # --- reading the events of a stream

    def _fail(self, error: Any) -> None:
        self.out.fail(reply_error(error))

    def _begin(self, event: _Event) -> None:
        self._output.start(event.response.model if event.response is not None else None)

    def _added(self, event: _Event) -> None:
        record = event.item
        if not isinstance(record, dict):
            return
        self._output.start()
        kind = kind_of(record)
        item_id = string_of(record.get("id"))
        item = self._output.find_announced(event.output_index, item_id, kind) or self._output.open(
            event.output_index, item_id, kind
        )
        item.phase = record.get("phase")
        if kind == "function_call":
            item.name = string_of(record.get("name"))
            item.call_id = string_of(record.get("call_id")) or item_id
            item.given = record.get("arguments")
            item.own = own_fields_of(record)
            self._output.start_call(item)

    def _done(self, event: _Event) -> None:
        record = event.item
        if not isinstance(record, dict):
            return
        self._output.start()
        kind = kind_of(record)
        item_id = string_of(record.get("id"))
        item = self._output.find(event.output_index, item_id, kind)
        if item is None:
            if self._output.knows(item_id, kind):  # the done event is repeated
                return
            item = self._output.open(event.output_index, item_id, kind)
        self._output.end(item, record)

    def _item_of(self, event: _Event, kind: str) -> Item:
        return self._output.item_of(event.output_index, event.item_id, kind)

    def _text_delta(self, event: _Event) -> None:
        self._output.add_text(
            self._item_of(event, "message"), index_of(event.content_index), event.delta
        )

    def _refusal_delta(self, event: _Event) -> None:
        self._output.refused = self._output.refused or bool(event.delta)
        self._text_delta(event)

    def _summary_delta(self, event: _Event) -> None:
        part = ("summary", index_of(event.summary_index))
        self._output.add_thought(self._item_of(event, "reasoning"), part, event.delta)

    def _thought_delta(self, event: _Event) -> None:
        part = ("content", index_of(event.content_index))
        self._output.add_thought(self._item_of(event, "reasoning"), part, event.delta)

    def _arguments_delta(self, event: _Event) -> None:
        if event.delta and isinstance(event.delta, str):
            self._output.add_arguments(self._item_of(event, "function_call"), event.delta)

    def _part_done(self, event: _Event) -> None:
        item = self._output.find(event.output_index, event.item_id, "message")
        text = text_of(event.part)
        # Only text parts of a message are read here; other parts are read when their item is done.
        if item is not None and text is not None:
            number = index_of(event.content_index)
            self._output.add_text(item, number, rest_of(item.parts.get(number, ()), text))
            if self._output.open_part(item) == number:
                self._output.close_text(item, event.part)

    def _arguments_done(self, event: _Event) -> None:
        item = self._item_of(event, "function_call")
        item.name = item.name or string_of(event.name)
        item.given = event.arguments
        self._output.start_call(item)
        if item.started:
            self._output.end_arguments(item, event.arguments)

    def _end(self, event: _Event) -> None:
        response = event.response or _Response()
        self._output.start(response.model)
        # The event name usually determines the status, because some servers send the status
        # "in_progress" in the final event (case: responses/still-in-progress-at-the-end-stream).
        status = (
            response.status
            if response.status in ("incomplete", "failed", "cancelled")
            else TERMINAL[event.type]
        )
        self._settle(response, status)

    # --- the end of the reply

    def _settle(self, response: _Response, status: str) -> None:
        for item, record in self._output.unfinished(list_of(response.output)):
            self._output.end(item, record)
        note_terms(self.out, {"service_tier": response.service_tier})
        if isinstance(response.usage, dict):
            self._usage = USAGE.read(response.usage)
            self._usage_raw = response.usage
            self.out.usage(self._usage)
        if response.error or status == "failed":
            self._fail(response.error)
        elif status == "cancelled":
            # The server cancelled the reply, not the caller. This counts as a broken connection
            # (case: responses/cancelled-stream).
            self.out.fail(
                StreamInterruptedError("the server cancelled the reply before it was finished")
            )
        else:
            reason = None
            if status == "incomplete":
                reason = dig(response.incomplete_details, "reason")
            self._finish(reason if isinstance(reason, str) else status)

    def _finish(self, word: str) -> None:
        self._finish_raw = word
        self._output.end_calls()
        reason = self._reason(word)
        if reason == "content_filter" and not self._output.refused:
            self.out.stop_details = StopDetails(word)  # a refusal has a text, but no category
        self.out.finish(reason, word)

    def _reason(self, word: str) -> FinishReason:
        if self._output.refused:
            return "content_filter"
        reason = FINISH.read.get(word, "error")
        if (
            reason == "stop"
            and self._limit is not None
            and (self._usage.output_tokens or 0) >= self._limit
        ):
            return "length"
        if reason != "stop" or not self.out.has_calls:
            return reason
        return "length" if self._output.cut and not self.out.calls_are_complete() else "tool_calls"


_READERS: dict[str, Callable[[ResponsesDecoder, _Event], None]] = {
    "response.created": ResponsesDecoder._begin,
    "response.queued": ResponsesDecoder._begin,
    "response.in_progress": ResponsesDecoder._begin,
    "response.output_item.added": ResponsesDecoder._added,
    "response.output_item.done": ResponsesDecoder._done,
    "response.content_part.done": ResponsesDecoder._part_done,
    "response.output_text.delta": ResponsesDecoder._text_delta,
    "response.refusal.delta": ResponsesDecoder._refusal_delta,
    "response.reasoning_summary_text.delta": ResponsesDecoder._summary_delta,
    "response.reasoning_text.delta": ResponsesDecoder._thought_delta,
    "response.function_call_arguments.delta": ResponsesDecoder._arguments_delta,
    "response.function_call_arguments.done": ResponsesDecoder._arguments_done,
    **dict.fromkeys(TERMINAL, ResponsesDecoder._end),
}
"""The handlers of events, by event type. Other events are ignored: they repeat content, or belong
to items that are read when they are done.
"""
