"""Reading a reply: events and bodies, with all that servers get wrong in them.

A reply is a list of items. A stream adds them one by one, says their pieces, and says each whole once
it is done; a body is the list of those that are done. So there is one way to read both: ``_end_item``
says of a finished item what was not said yet, and a body is a stream in which nothing was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from ...errors import InvalidResponseError, StreamInterruptedError, cut
from ...events import Assembler, FinishReason, Usage, read_json, read_object
from ...messages import Opaque, Request, Text, Thinking, ToolCall
from ...sse import Frame
from ..codec import Decoder
from ..errors import is_failure
from ..json import json_text, read_count
from .errors import reply_error


class _Response(Struct):
    """A response object: a whole body, or what some events carry. Only what is used is decoded."""

    object: Any = None
    model: Any = None
    status: Any = None
    output: Any = None
    error: Any = None
    incomplete_details: Any = None
    usage: Any = None


class _Event(Struct):
    """Any event of a stream. llama.cpp leaves the indices out, OpenRouter the event names."""

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


def _read(data: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.convert(read_json(data), decoder.type)


class _Item:
    """One item of the output, while it is said."""

    __slots__ = (
        "call_id", "done", "gist", "given", "id", "key", "kind", "name", "part", "parts", "phase", "said", "started",
    )  # fmt: skip

    def __init__(self, key: int, kind: str, item_id: str) -> None:
        self.key = key
        self.kind = kind
        self.id = item_id
        self.done = False
        self.said: list[str] = []  # every fragment, in the order of arrival
        self.parts: dict[Any, list[str]] = {}  # those of a message by the number their part was given
        self.part: tuple[str, int] | None = None  # of reasoning: the part that speaks
        self.phase: Any = None
        self.gist = ""  # what it came down to, once it is done
        self.name = ""
        self.call_id = ""
        self.given: Any = None  # arguments that came in one piece
        self.started = False  # has the call begun?


FINISH: dict[str, FinishReason] = {
    "completed": "stop",
    "max_output_tokens": "length",
    "content_filter": "content_filter",
}
"""Ends of this wire: the status of a reply, or the reason why it is incomplete."""

# Words of imitators, which are read and never sent. ``complete``: mistral.rs.
_READ: dict[str, FinishReason] = {**FINISH, "complete": "stop", "max_tokens": "length"}
_TERMINAL = {
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}
_BETWEEN = "\n\n"  # the parts of one reasoning item
_ERRORS = ("error", "response.error")
_UNFINISHED = ("queued", "in_progress")
_OWN_FIELDS = frozenset({"type", "id", "call_id", "name", "arguments", "status", "item_id", "output_index"})


class ResponsesDecoder(Decoder):
    """Reads events and bodies of this wire. A reply of ``limit`` tokens was cut, whatever the server says."""

    def __init__(self, request: Request, out: Assembler, *, limit: int | None = None, keep_raw: bool = True) -> None:
        super().__init__(request, out, keep_raw=keep_raw)
        self._limit = limit
        self._items: dict[int, _Item] = {}
        self._by_id: dict[str, _Item] = {}
        self._last: _Item | None = None
        self._next = 0
        self._place: tuple[int, Any] | None = None  # whose text or thinking is open
        self._refused = False
        self._cut = False  # does the server say that a call was?
        self._usage = Usage()
        self._usage_raw: Any = None
        self._finish_raw: str | None = None

    def frame(self, frame: Frame) -> None:
        data = frame.data.strip()
        if not data:
            return
        if data == b"[DONE]":  # OpenRouter, after the end; alone it is no end mark of this wire
            self.done = True
            self.interrupted()
            return
        if frame.event == b"error" and not data.startswith(b"{"):
            self._fail(data.decode("utf-8", "replace"))
            return
        event = _read(data, _events)
        reader = _READERS.get(event.type) if type(event.type) is str else None
        if reader is not None:
            reader(self, event)
        elif (
            event.type in _ERRORS
            or frame.event == b"error"
            or (not str(event.type).startswith("response.") and (event.error or is_failure(data)))
        ):
            self._fail(event.error or read_json(data))

    def body(self, data: bytes) -> None:
        response: _Response = _read(data, _responses)
        output = response.output
        if not output and (response.error or (response.status is None and is_failure(data))):
            self._fail(response.error or read_json(data))
            return
        if response.object not in (None, "response") and str(response.object).startswith("response."):
            raise InvalidResponseError(f"the reply is a {cut(str(response.object))}, not a response")
        if not isinstance(output, list) and response.status != "failed":
            raise InvalidResponseError("the reply has no output")
        if response.status in _UNFINISHED:
            # Background mode answers so. Asking again would only queue it again: not an outage.
            raise InvalidResponseError(
                f"the server answered before the reply was finished ({cut(str(response.status))})"
            )
        self._start(response)
        self._settle(response, response.status if isinstance(response.status, str) else "completed")

    def at_end(self) -> None:
        self.interrupted()

    def facts(self) -> dict[str, Any]:
        return {"finish_reason": self._finish_raw, "usage": self._usage_raw}

    # events

    def _fail(self, error: Any) -> None:
        self.out.fail(reply_error(error))

    def _start(self, response: _Response | None = None) -> None:
        if not self.out.started:
            model = response.model if response is not None else None
            self.out.start(model if isinstance(model, str) else None)

    def _begin(self, event: _Event) -> None:
        self._start(event.response)

    def _added(self, event: _Event) -> None:
        record = event.item
        if not isinstance(record, dict):
            return
        self._start()
        kind, item_id = _kind(record), _word(record.get("id"))
        item = self._find_announced(event.output_index, item_id, kind) or self._open(event.output_index, item_id, kind)
        item.phase = record.get("phase")
        if kind == "function_call":
            item.name, item.call_id = _word(record.get("name")), _word(record.get("call_id")) or item_id
            item.given = record.get("arguments")
            self._start_call(item)

    def _done(self, event: _Event) -> None:
        record = event.item
        if not isinstance(record, dict):
            return
        self._start()
        kind, item_id = _kind(record), _word(record.get("id"))
        item = self._find(event.output_index, item_id, kind)
        if item is None:
            known = self._by_id.get(item_id)
            if known is not None and known.kind == kind:  # said twice
                return
            item = self._open(event.output_index, item_id, kind)
        self._end_item(item, record)

    def _text_delta(self, event: _Event) -> None:
        self._say_text(self._item_of(event, "message"), _index(event.content_index), event.delta)

    def _refusal_delta(self, event: _Event) -> None:
        self._refused = self._refused or bool(event.delta)
        self._text_delta(event)

    def _summary_delta(self, event: _Event) -> None:
        self._say_thought(self._item_of(event, "reasoning"), ("summary", _index(event.summary_index)), event.delta)

    def _thought_delta(self, event: _Event) -> None:
        self._say_thought(self._item_of(event, "reasoning"), ("content", _index(event.content_index)), event.delta)

    def _arguments_delta(self, event: _Event) -> None:
        if event.delta and isinstance(event.delta, str):
            self._say_arguments(self._item_of(event, "function_call"), event.delta)

    def _part_done(self, event: _Event) -> None:
        item = self._find(event.output_index, event.item_id, "message")
        text = _text_of(event.part)
        if item is not None and text is not None:  # of a message; the rest waits for its item
            number = _index(event.content_index)
            self._say_text(item, number, _rest(item.parts.get(number, ()), text))
            if self._number_of(item) == number:
                self._close_text(item, event.part)

    def _arguments_done(self, event: _Event) -> None:
        item = self._item_of(event, "function_call")
        item.name, item.given = item.name or _word(event.name), event.arguments
        self._start_call(item)
        if item.started:
            self._end_arguments(item, event.arguments)

    def _end(self, event: _Event) -> None:
        response = event.response or _Response()
        self._start(response)
        # The event's own name is truer than a status that says "in_progress" at the end.
        status = response.status if response.status in ("incomplete", "failed", "cancelled") else _TERMINAL[event.type]
        self._settle(response, status)

    # which item

    def _find(self, index: Any, item_id: Any, kind: str) -> _Item | None:
        """The open item that an event is about: by its id, by its index, or because it is its turn.

        GitHub Copilot gives an item another id in every event; llama.cpp gives no index.
        """
        named = self._by_id.get(item_id) if type(item_id) is str else None
        indexed = self._items.get(index) if type(index) is int else self._last
        if indexed is not None and indexed.done:
            indexed = self._last  # every item has the same index
        for item in (named, indexed):
            if item is not None and item.kind == kind and not item.done:
                return item
        return None

    def _find_announced(self, index: Any, item_id: str, kind: str) -> _Item | None:
        """The item that was announced before, or spoke before it was; another id means another item."""
        item = self._find(index, item_id, kind)
        if item is None or (item.id and item_id != item.id) or (not item.id and item.key != index):
            return None
        return item

    def _open(self, index: Any, item_id: Any, kind: str) -> _Item:
        key = index if type(index) is int and index not in self._items else self._next
        item = self._items[key] = self._last = _Item(key, kind, item_id if type(item_id) is str else "")
        if item.id:
            self._by_id[item.id] = item
        self._next = max(self._next, key + 1)
        return item

    def _item_of(self, event: _Event, kind: str) -> _Item:
        """The item of a delta; one that was never announced is taken as if it had been."""
        item = self._last
        if item is not None and event.item_id == item.id != "" and item.kind == kind and not item.done:
            return item  # nearly every event there is
        self._start()
        found = self._find(event.output_index, event.item_id, kind)
        return found or self._open(event.output_index, event.item_id, kind)

    # saying

    def _turn_to(self, place: tuple[int, Any] | None) -> None:
        """Close the text or thinking that is open, unless it is this one's."""
        if self._place != place:
            if self._place is not None:
                self.out.block_end()
            self._place = place

    def _say_text(self, item: _Item, number: Any, piece: Any) -> None:
        if piece and isinstance(piece, str):
            self._turn_to((item.key, number))
            item.parts.setdefault(number, []).append(piece)
            item.said.append(piece)
            self.out.text(piece)

    def _number_of(self, item: _Item) -> Any:
        """The number of the part of this message whose text is open, or ``None``."""
        return self._place[1] if self._place is not None and self._place[0] == item.key else None

    def _close_text(self, item: _Item, part: Any) -> None:
        """Close the open text with what only its issuer understands: its citations and its phase."""
        own = {"annotations": part.get("annotations") if isinstance(part, dict) else None, "phase": item.phase}
        state = {name: value for name, value in own.items() if value}
        if state:
            self.out.attach(Text, opaque=state)
        self._turn_to(None)

    def _say_thought(self, item: _Item, part: tuple[str, int], piece: Any) -> None:
        if piece and isinstance(piece, str):
            self._turn_to((item.key, "thinking"))
            pieces = [_BETWEEN, piece] if item.said and part != item.part else [piece]
            item.part = part
            item.said += pieces
            for each in pieces:
                self.out.thinking(each)

    def _start_call(self, item: _Item) -> None:
        if item.name and not item.started:
            self._begin_call(item)

    def _begin_call(self, item: _Item) -> None:
        item.started = True
        self._turn_to(None)
        self.out.tool_start(item.key, item.call_id or None, item.name)
        for piece in item.said:
            self.out.tool_input(item.key, piece)

    def _say_arguments(self, item: _Item, piece: str) -> None:
        item.said.append(piece)
        if item.started:
            self.out.tool_input(item.key, piece)

    # ending an item: say what was not said

    def _end_item(self, item: _Item, record: dict[str, Any]) -> None:
        item.done, item.gist = True, _gist(record)
        if item.kind == "message":
            self._end_message(item, record)
        elif item.kind == "reasoning":
            self._end_reasoning(item, record)
        elif item.kind == "function_call":
            self._end_call(item, record)
        else:
            self._turn_to(None)
            self.out.whole(Opaque(record))

    def _end_message(self, item: _Item, record: dict[str, Any]) -> None:
        """Parts are told apart by what they say: bedrock-mantle numbers the only one 1."""
        item.phase = record.get("phase") or item.phase
        parts = _parts_of(record)
        said, whole = "".join(item.said), "".join([_text_of(part) or "" for part in parts])
        left = len(said) if whole.startswith(said) else len(whole)  # what is said stays said
        for at, part in enumerate(parts):
            text = _text_of(part)
            if text is None:
                self._turn_to(None)
                self.out.whole(Opaque({"type": "message", "role": "assistant", "content": [part]}))
                continue
            self._refused = self._refused or (bool(text) and _is_refusal(part))
            self._say_text(item, self._number_of(item) if left else ("end", at), text[left:])
            left = max(0, left - len(text))
            if text and not left and self._number_of(item) is not None:
                self._close_text(item, part)

    def _end_reasoning(self, item: _Item, record: dict[str, Any]) -> None:
        parts = [part for channel in ("summary", "content") for part in _list(record.get(channel))]
        whole = _BETWEEN.join([text for part in parts if (text := _text_of(part))])
        rest = _rest(item.said, whole)
        if item.said or whole or record.get("encrypted_content"):
            # Anything else is an empty shell that means something only to a server that stored it.
            self._turn_to((item.key, "thinking"))
            if rest:
                self.out.thinking(rest)
            self.out.attach(Thinking, opaque=record)
            self._turn_to(None)

    def _end_call(self, item: _Item, record: dict[str, Any]) -> None:
        item.name = item.name or _word(record.get("name"))
        item.call_id = item.call_id or _word(record.get("call_id")) or _word(record.get("id"))
        if not item.started:
            self._begin_call(item)
        self._end_arguments(item, record.get("arguments") or item.given)
        own = {name: value for name, value in record.items() if name not in _OWN_FIELDS and value is not None}
        if own:
            self.out.attach(ToolCall, opaque=own, key=item.key)
        if record.get("status") == "incomplete":
            self._cut = True  # left open: without arguments it must not pass for a call that needs none
        else:
            self.out.block_end(item.key)

    def _end_arguments(self, item: _Item, final: Any) -> None:
        text = final if isinstance(final, str) else "" if final is None else json_text(final)
        said = "".join(item.said)
        if text.startswith(said):
            if text != said:
                self._say_arguments(item, text[len(said) :])
        elif text and (read_object(said) is None or read_object(said) != read_object(text)):
            # Two different sets of arguments: with both said, neither can be taken for the call's.
            self._say_arguments(item, text)

    # ending the reply

    def _settle(self, response: _Response, status: str) -> None:
        for item, record in self._match(_list(response.output)):
            self._end_item(item, record)
        usage = _read_usage(response.usage)
        if usage is not None:
            self._usage, self._usage_raw = usage, response.usage
            self.out.usage(usage)
        if response.error or status == "failed":
            self._fail(response.error)
        elif status == "cancelled":
            # Not by us: the server stopped it before its end, as a broken connection would.
            self.out.fail(StreamInterruptedError("the server cancelled the reply before it was finished"))
        else:
            details = response.incomplete_details
            reason = details.get("reason") if isinstance(details, dict) and status == "incomplete" else None
            self._finish(reason if isinstance(reason, str) else status)

    def _match(self, output: list[Any]) -> Iterator[tuple[_Item, dict[str, Any]]]:
        """The items of the final list that were not said yet, whether or not they were announced.

        An item is known by its place, by its id, or by what it says. The list may be empty although
        items were streamed (chatgpt.com), or hold more than were.
        """
        records = {at: record for at, record in enumerate(output) if isinstance(record, dict)}
        left = dict(self._items)
        found: dict[int, _Item] = {}
        for mark in _MARKS:
            marked = {mark(item.key, item.id, item.gist): item for item in left.values()}
            for at, record in records.items():
                wanted = "" if at in found else mark(at, _word(record.get("id")), _gist(record))
                item = marked.get(wanted) if wanted != "" else None
                if item is not None and item.kind == _kind(record) and left.pop(item.key, None) is not None:
                    found[at] = item
        for at, record in records.items():
            item = found.get(at) or self._open(at, record.get("id"), _kind(record))
            if not item.done:
                yield item, record

    def _finish(self, word: str) -> None:
        self._finish_raw = word
        for item in self._items.values():
            if item.kind == "function_call" and not item.done:
                if not item.started:  # never named, and surfaced all the same
                    self._begin_call(item)
                if not item.said:
                    self._end_arguments(item, item.given)
        self.out.finish(self._reason(word), word)

    def _reason(self, word: str) -> FinishReason:
        if self._refused:
            return "content_filter"
        reason = _READ.get(word, "error")
        if reason == "stop" and self._limit is not None and (self._usage.output_tokens or 0) >= self._limit:
            return "length"
        if reason != "stop" or not self.out.has_calls:
            return reason
        return "length" if self._cut and not self.out.calls_are_complete() else "tool_calls"


_MARKS: tuple[Callable[[int, str, str], Any], ...] = (
    lambda key, item_id, gist: key,
    lambda key, item_id, gist: item_id,
    lambda key, item_id, gist: gist,
)

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
    **dict.fromkeys(_TERMINAL, ResponsesDecoder._end),
}
"""What is read of a stream, by ``type``. The rest either repeats it or is about items kept whole."""


def _kind(record: dict[str, Any]) -> str:
    kind = record.get("type")
    if kind == "message" and record.get("role") in (None, "assistant"):
        return "message"
    return kind if kind in ("reasoning", "function_call") else "opaque"


def _parts_of(record: dict[str, Any]) -> list[Any]:
    content = record.get("content")
    return [content] if isinstance(content, str) else _list(content)


def _is_refusal(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "refusal"


def _text_of(part: Any) -> str | None:
    """The text of a part, or ``None`` for something that is none."""
    if isinstance(part, str) or not isinstance(part, dict):
        return part if isinstance(part, str) else ""
    name = "refusal" if _is_refusal(part) else "text"
    return _word(part[name]) if name in part else None


def _gist(record: dict[str, Any]) -> str:
    """What an item comes down to: the call it makes, or the text it says."""
    if record.get("type") == "function_call":
        return _word(record.get("call_id"))
    parts = [*_parts_of(record), *_list(record.get("summary"))]
    return "".join([_text_of(part) or "" for part in parts])


def _index(value: Any) -> int:
    return value if type(value) is int else 0


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _rest(pieces: Iterable[str], final: str) -> str:
    """What of the final text was not said; nothing when they differ, for what is said stays said."""
    said = "".join(pieces)
    return final[len(said) :] if final.startswith(said) else ""


def _read_usage(record: Any) -> Usage | None:
    if not isinstance(record, dict):
        return None
    asked, made = record.get("input_tokens_details"), record.get("output_tokens_details")
    asked = asked if isinstance(asked, dict) else {}
    made = made if isinstance(made, dict) else {}
    return Usage(
        read_count(record.get("input_tokens")),
        read_count(record.get("output_tokens")),
        read_count(asked.get("cached_tokens")),
        read_count(asked.get("cache_write_tokens")),
        read_count(made.get("reasoning_tokens")),
        read_count(record.get("total_tokens")),
    )
