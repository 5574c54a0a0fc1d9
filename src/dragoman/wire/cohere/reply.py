"""Decode replies of the cohere wire: events and bodies.

Events are named by ``type``. The index of a block is not unique: the text after a thought may have
the same index, so only ``content-start`` begins a block. Every stream ends with ``message-end``,
even a failed one.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from ...errors import InvalidResponseError
from ...events import LAST, Assembler, read_json
from ...messages import Request, Text, Thinking
from ..codec import Decoder
from ..errors import is_failure, read_failure
from ..json import dig, entries_of, json_text, list_of, read_as, string_of
from ..openai.errors import inband_error as foreign_error
from ..sse import Frame
from ..usage import UsageMap
from .errors import inband_error
from .finish import FINISH
from .request import PLAN


class _Message(Struct):
    """The message of an event or a body.

    Some fields are lists in a body but single objects in an event.
    """

    content: Any = None
    tool_plan: Any = None
    tool_calls: Any = None
    citations: Any = None


class _Delta(Struct):
    message: _Message | None = None
    finish_reason: Any = None
    usage: Any = None
    error: Any = None
    error_type: Any = None


class _Event(Struct):
    type: Any = None
    index: Any = None
    delta: _Delta | None = None
    error: Any = None


_events = msgspec.json.Decoder(_Event)


# The token counts include the tokens of the prompt template. Some replies have billed counts only.
USAGE = UsageMap(
    {
        "billed_input_tokens": "billed_units.input_tokens",
        "billed_output_tokens": "billed_units.output_tokens",
        "input_tokens": "tokens.input_tokens",
        "output_tokens": "tokens.output_tokens",
        "reasoning_tokens": "tokens.reasoning_tokens",
        "cached_input_tokens": "cached_tokens",
    },
    also={
        "input_tokens": ("billed_units.input_tokens",),
        "output_tokens": ("billed_units.output_tokens",),
    },
)


class CohereDecoder(Decoder):
    """Decode events and bodies of the cohere wire."""

    finish_words = FINISH.read

    def __init__(self, request: Request, out: Assembler, *, keep_raw: bool = True) -> None:
        super().__init__(request, out, keep_raw=keep_raw)
        self._count = 0  # the number of tool calls so far
        self._calls: dict[Any, int] = {}  # the open tool call at each index
        self._fed: set[int] = set()  # keys of the tool calls that have received some input
        self._citations: list[Any] = []  # citations of the open text block
        self._plans = False  # whether the open block is a plan
        self._end: dict[str, Any] = {}

    def frame(self, frame: Frame) -> None:
        data = frame.data.strip()
        if not data or data == b"[DONE]":  # [DONE] may follow the last event and has no meaning
            return
        if frame.event == b"error" and not data.startswith(b"{"):
            self._fail(data)
            return
        event = read_as(_events, data)
        kind = (
            event.type if isinstance(event.type, str) else frame.event.decode("utf-8", "replace")
        )
        message = event.delta.message if event.delta is not None else None
        if kind == "content-delta" and message is not None:
            self.start()
            self._write(message.content)
        elif kind == "message-end":
            self._close(event.delta or _Delta())
        elif event.error or (
            not self._read_rare(kind, event.index, message or _Message()) and is_failure(data)
        ):
            self._fail(data)

    def body(self, data: bytes) -> None:
        body = _read_body(data)
        message = body.get("message")
        if not isinstance(message, dict):
            if ("text" in body and "finish_reason" in body) or "generation_id" in body:
                self._read_earlier(body)
            elif message or body.get("error") or is_failure(data):
                self._fail(data)
            else:
                raise InvalidResponseError("the reply has no message")
            return
        self.start()
        reply = msgspec.convert(message, _Message)
        self._plan(reply.tool_plan)
        self._write_parts(reply)
        for at, call in enumerate(entries_of(reply.tool_calls)):
            self._call(at, call)
            self._stop(at)
        # Early servers of API version 2 send the token counts in ``meta``.
        self._finish(body.get("finish_reason"), body.get("usage") or body.get("meta"))

    def at_end(self) -> None:
        # even a failed stream ends with message-end, so a stream without it was interrupted
        self.interrupted()

    def facts(self) -> dict[str, Any]:
        return dict(self._end)

    # --- reading the events of a stream

    def _read_rare(self, kind: str, index: Any, message: _Message) -> bool:
        """Decode an event other than a content delta; return whether the event type is known."""
        if kind == "content-start":
            self.start()
            self.release_end()
            self.out.block_end()
            self._citations = []
            self._write(message.content)
        elif kind == "tool-plan-delta":
            self._plan(message.tool_plan)
        elif kind == "tool-call-start":
            self.start()
            self._call(index, message.tool_calls)
        elif kind == "tool-call-delta":
            self._feed(index, message.tool_calls)
        elif kind == "tool-call-end":
            self._stop(index)
        elif kind == "citation-start":
            self._cite([message.citations])
        elif kind == "message-start":
            self.start()
        else:
            return kind in ("content-end", "citation-end", "debug")
        return True

    def _fail(self, data: bytes) -> None:
        """Fail the message with an error that a proxy sent in the form of another wire."""
        self.out.fail(foreign_error(read_failure(data)))

    def _write(self, content: Any) -> None:
        if not isinstance(content, dict):
            return
        if self._plans:
            self._plans = False
            self.out.block_end()
        text = content.get("text")
        thinking = content.get("thinking")
        if isinstance(thinking, str):
            self.out.thinking(thinking)
        if isinstance(text, str):
            self.out.text(text)

    def _plan(self, piece: Any) -> None:
        """Add a tool plan as a thinking block, and mark it as a plan in its opaque state.

        The mark makes the encoder send the block back as a plan.
        """
        if not isinstance(piece, str) or not piece:
            return
        self.start()
        if not self._plans:
            self.out.block_end()
        self.out.thinking(piece)
        if not self._plans:
            self._plans = True
            self.out.attach(Thinking, None, PLAN)

    def _cite(self, records: list[Any]) -> None:
        """Attach citations to the text; citations of plans and thoughts stay only in ``raw``."""
        kept = [
            each
            for each in records
            if isinstance(each, dict) and each.get("type", _OF_TEXT) == _OF_TEXT
        ]
        if kept:
            self._citations = [*self._citations, *kept]
            self.out.attach(Text, None, {"citations": self._citations}, key=LAST)

    def _write_parts(self, message: _Message) -> None:
        """Emit the parts of a body. A citation without an index belongs to the last text."""
        content = (
            message.content if isinstance(message.content, list) else [{"text": message.content}]
        )
        parts = entries_of(content)
        records = entries_of(message.citations)
        texts = [at for at, part in enumerate(parts) if isinstance(part.get("text"), str)]
        for at, part in enumerate(parts):
            self._citations = []
            self._write(part)
            own = [
                each
                for each in records
                if each.get("content_index", texts[-1:] and texts[-1]) == at
            ]
            self._cite(own or (records if texts == [at] else []))
            self.out.block_end()

    # --- reading tool calls

    def _call(self, index: Any, call: Any) -> None:
        self.release_end()
        self._plans = False
        key, self._count = self._count, self._count + 1
        self._calls[index] = key
        self.start_call(key, dig(call, "id"), dig(call, "function", "name"))
        self._input(key, call)

    def _feed(self, index: Any, call: Any) -> None:
        if index not in self._calls:
            self.start()
            self._call(index, call)
            return
        self._input(self._calls[index], call)

    def _input(self, key: int, call: Any) -> None:
        piece = dig(call, "function", "arguments")
        if piece is not None and not isinstance(piece, str):
            piece = json_text(piece)
        if piece:
            self._fed.add(key)
            self.out.tool_input(key, piece)

    def _stop(self, index: Any) -> None:
        key = self._calls.pop(index, None)
        if key is None:
            return
        if key in self._fed:
            self.out.block_end(key)
        else:
            self.hold_end(key)

    # --- the end of the reply

    def _close(self, end: _Delta) -> None:
        self.start()
        self._end = {"finish_reason": end.finish_reason, "usage": end.usage}
        if isinstance(end.error, str) and end.error:
            self._count_tokens(end.usage)
            self.out.fail(inband_error(end.error, string_of(end.error_type)))
        else:
            self._finish(end.finish_reason, end.usage)
        self.done = True

    def _finish(self, word: Any, usage: Any) -> None:
        self._count_tokens(usage)
        raw = string_of(word) or None
        reason = self.reason_for(raw)
        if reason in ("stop", "tool_calls"):
            self.release_end()
        self.out.finish(reason, raw)

    def _count_tokens(self, record: Any) -> None:
        if isinstance(record, dict) and record:
            self.out.usage(USAGE.read(record))

    # --- reading replies of version 1 of the API

    def _read_earlier(self, body: dict[str, Any]) -> None:
        """Decode a reply in the older ``/v1/chat`` format, which some proxies send."""
        self.start()
        self.out.text(string_of(body.get("text")))
        records = [
            {**each, "sources": _listed(each, body)} for each in entries_of(body.get("citations"))
        ]
        self._cite(records)
        self.out.block_end()
        for at, call in enumerate(entries_of(body.get("tool_calls"))):
            self._call(
                at, {"function": {"name": call.get("name"), "arguments": call.get("parameters")}}
            )
            self._stop(at)
        self._finish(body.get("finish_reason"), body.get("meta"))


_OF_TEXT = "TEXT_CONTENT"


def _read_body(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a body.

    A stream of API version 1 consists of JSON lines. Its last line contains the complete reply.
    """
    try:
        body = read_json(data)
    except ValueError:
        body = read_json(data.strip().rpartition(b"\n")[2])
        body = dig(body, "response") if dig(body, "event_type") == "stream-end" else None
    if not isinstance(body, dict):
        raise InvalidResponseError("the reply is not an object")
    return body


def _listed(record: dict[str, Any], body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sources of a citation in API version 1, where a citation lists document ids."""
    known = {each.get("id"): each for each in entries_of(body.get("documents"))}
    found = [each for each in list_of(record.get("document_ids")) if isinstance(each, str)]
    return [{"type": "document", "id": each, "document": known.get(each, {})} for each in found]
