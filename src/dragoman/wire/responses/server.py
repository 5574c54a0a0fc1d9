"""The Responses wire from the server's side. Nothing is stored: every request says all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from ...errors import CallCancelledError, ProviderError
from ...events import (
    Event,
    MessageComplete,
    MessageStart,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    Usage,
)
from ...messages import AssistantBlock, Opaque, Text, Thinking, ToolCall
from ..codec import HttpReply
from ..openai.server import OpenAIServer, error_record
from ..server import Asked, ReplyEncoder
from .reply import FINISH
from .server_request import read_request


class ResponsesServer:
    """The Responses wire, served."""

    wire: ClassVar[str] = "responses"
    _refuser = OpenAIServer()

    def decode(self, body: bytes, path: str = "") -> Asked:
        """Read a request's body."""
        return read_request(body)

    def encoder(self, asked: Asked, *, created: int = 0) -> ReplyEncoder:
        """An encoder for the reply, whole or streamed."""
        return _StreamEncoder(created) if asked.request.stream else _BodyEncoder(created)

    def error(self, error: ProviderError) -> HttpReply:
        """A refusal, in the form of the vendor's other wire."""
        return self._refuser.error(error)

    def key(self, headers: Mapping[str, str]) -> str | None:
        """The bearer token."""
        return self._refuser.key(headers)


_encode = msgspec.json.Encoder().encode


class _Encoder(ReplyEncoder):
    """What a body and the end of a stream have in common: the response, whole."""

    def __init__(self, created: int) -> None:
        super().__init__()
        self._created = created
        self._start: MessageStart | None = None
        self._items: list[dict[str, Any]] = []
        self._said: list[str] = []  # of the item that is open

    def _follow(self, event: Event) -> dict[str, Any] | None:
        """Take note of an event; the item that it begins, if any."""
        if isinstance(event, ToolUseStart):
            self.note_input(event)
            return self._begin("function_call", call_id=event.tool_use_id, name=event.tool_name, arguments="")
        if isinstance(event, ToolUseInputDelta | ToolUseEnd):
            self.note_input(event)
            self._items[-1]["arguments"] = "".join(self._input)
            if isinstance(event, ToolUseEnd):
                blank = event.intent is not None and not "".join(self._input).strip()
                self._items[-1]["arguments"] += "{}" if blank else ""
                self._items[-1]["status"] = "completed" if event.intent is not None else "incomplete"
        return None

    def _begin(self, kind: str, **fields: Any) -> dict[str, Any]:
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        item = {"id": f"{prefix}_{len(self._items)}_{self._id}", "type": kind, **fields, "status": "in_progress"}
        if kind == "reasoning":
            del item["status"]
        self._items.append(item)
        return item

    @property
    def _id(self) -> str:
        return "" if self._start is None else self._start.message_id.removeprefix("msg_")

    def _response(self, status: str, **facts: Any) -> dict[str, Any]:
        complete = self._complete
        usage = _write_usage(complete.usage) if complete is not None else None
        model = (complete.model if complete is not None else None) or (self._start.model if self._start else "")
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": model,
            "output": self._items,
            "parallel_tool_calls": True,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "store": False,
            "usage": usage or None,
            **facts,
        }

    def _ended(self) -> dict[str, Any]:
        assert self._complete is not None
        word = self.finish_word(self._complete, FINISH)
        if self._complete.finish_reason in ("stop", "tool_calls") or word == "completed":
            return self._response("completed")
        if self._complete.finish_reason == "error" and self._unsound is not None:
            return self._response("completed")
        return self._response("incomplete", incomplete_details={"reason": word})


class _StreamEncoder(_Encoder):
    content_type = "text/event-stream"

    def __init__(self, created: int) -> None:
        super().__init__(created)
        self._number = 0
        self._block = -1  # the event's own number of the block that is open
        self._open: dict[str, Any] | None = None
        self._before_text = b""

    def feed(self, event: Event) -> bytes:
        if isinstance(event, TextDelta):
            return self._text(event)
        if isinstance(event, ThinkingDelta):
            return self._think(event)
        if isinstance(event, ToolUseStart):
            closing = self._close()
            item = self._follow(event)
            assert item is not None
            self._open, self._block = item, event.content_block_index
            return closing + self._added(item)
        if isinstance(event, ToolUseInputDelta):
            self._follow(event)
            return self._say("response.function_call_arguments.delta", delta=event.partial_json)
        if isinstance(event, ToolUseEnd):
            return self._end_call(event)
        if isinstance(event, MessageStart):
            self._start = event
            opening = self._event("response.created", response=self._response("in_progress"))
            return opening + self._event("response.in_progress", response=self._response("in_progress"))
        self._complete = event
        return b""

    def end(self) -> bytes:
        complete = self._complete
        assert complete is not None
        if complete.finish_reason == "cancelled":
            return self.broken(CallCancelledError("the call was cancelled"))
        said = self._close()
        # Items of a kind of their own are known only now; so is what only its issuer understands of the others.
        for block in complete.final_content:
            if isinstance(block, Opaque):
                self._items.append(_write_opaque(block))
                said += self._added(self._items[-1]) + self._done(self._items[-1])
        response = self._ended()
        return said + self._event(f"response.{response['status']}", response=response)

    def broken(self, error: ProviderError) -> bytes:
        record = error_record(error)
        # Without its items: what is cut off would pass for whole. After this the vendor's server says no more,
        # and its SDK raises nothing; an error with an object inside makes it raise.
        failed = self._event("response.failed", response=self._response("failed", error=record, output=[]))
        return failed + self._event("error", code=record["code"], message=record["message"], param=None, error=record)

    # inside

    def _text(self, event: TextDelta) -> bytes:
        if event.content_block_index == self._block:
            self._said.append(event.text)
            self._number += 1
            return self._before_text + _encode(event.text) + b',"sequence_number":%d}\n\n' % (self._number - 1)
        opening = self._close()
        item = self._open = self._begin("message", role="assistant", content=[])
        self._block = event.content_block_index
        opening += self._added(item)
        part = {"type": "output_text", "text": "", "annotations": []}
        opening += self._say("response.content_part.added", content_index=0, part=part)
        # Nearly every event of a stream differs from the last in its text and number alone.
        head = {"type": "response.output_text.delta", "item_id": item["id"], "output_index": self._place}
        body = _encode({**head, "content_index": 0, "logprobs": []})
        self._before_text = b"event: response.output_text.delta\ndata: " + body[:-1] + b',"delta":'
        return opening + self._text(event)

    def _think(self, event: ThinkingDelta) -> bytes:
        said = b""
        if event.content_block_index != self._block or self._open is None:
            said = self._close()
            self._open, self._block = self._begin("reasoning", summary=[]), event.content_block_index
            part = {"type": "summary_text", "text": ""}
            said += self._added(self._open)
            said += self._say("response.reasoning_summary_part.added", summary_index=0, part=part)
        if event.text:
            self._said.append(event.text)
            said += self._say("response.reasoning_summary_text.delta", summary_index=0, delta=event.text)
        return said

    def _end_call(self, event: ToolUseEnd) -> bytes:
        self._follow(event)
        item, self._open, self._block = self._items[-1], None, -1
        if event.intent is None and (event.problem in ("interrupted", "cancelled") or not item["arguments"].strip()):
            return b""  # cut off, or without its input: once it is done, it would pass for whole
        facts = {"item_id": item["id"], "output_index": self._place, "arguments": item["arguments"]}
        item["status"] = "completed"
        done = self._event("response.function_call_arguments.done", **facts, name=item["name"])
        return done + self._done(item)

    def _close(self) -> bytes:
        item, self._open, self._block = self._open, None, -1
        text, self._said = "".join(self._said), []
        if item is None:
            return b""
        if item["type"] == "reasoning":
            return self._close_thinking(item, text)
        part = {"type": "output_text", "text": text, "annotations": []}
        item["content"], item["status"] = [part], "completed"
        facts = {"item_id": item["id"], "output_index": self._place, "content_index": 0}
        done = self._event("response.output_text.done", **facts, text=text, logprobs=[])
        return done + self._event("response.content_part.done", **facts, part=part) + self._done(item)

    def _close_thinking(self, item: dict[str, Any], text: str) -> bytes:
        part = {"type": "summary_text", "text": text}
        item["summary"] = [part]
        facts = {"item_id": item["id"], "output_index": self._place, "summary_index": 0}
        done = self._event("response.reasoning_summary_text.done", **facts, text=text)
        return done + self._event("response.reasoning_summary_part.done", **facts, part=part) + self._done(item)

    @property
    def _place(self) -> int:
        return len(self._items) - 1

    def _added(self, item: dict[str, Any]) -> bytes:
        return self._event("response.output_item.added", output_index=self._place, item=item)

    def _done(self, item: dict[str, Any]) -> bytes:
        return self._event("response.output_item.done", output_index=self._place, item=item)

    def _say(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._items[-1]["id"], output_index=self._place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        data = {"type": kind, **fields, "sequence_number": number}
        return b"event: " + kind.encode() + b"\ndata: " + _encode(data) + b"\n\n"


class _BodyEncoder(_Encoder):
    def feed(self, event: Event) -> bytes:
        if isinstance(event, MessageStart):
            self._start = event
        elif isinstance(event, MessageComplete):
            self._complete = event
        elif isinstance(event, ToolUseStart | ToolUseInputDelta | ToolUseEnd):
            self._follow(event)
        return b""

    def end(self) -> bytes:
        complete = self._complete
        assert complete is not None
        if complete.finish_reason == "cancelled":
            return self.broken(CallCancelledError("the call was cancelled"))
        calls, self._items = iter(self._items), []
        cut = complete.finish_reason == "length"
        for block in complete.final_content:
            if isinstance(block, ToolCall):
                call = {**next(calls), **_own_fields(block)}
                self._items.append(call if cut else {**call, "status": "completed"})
            elif isinstance(block, Opaque):
                self._items.append(_write_opaque(block))
            else:
                self._write(block)
        return _encode(self._ended())

    def broken(self, error: ProviderError) -> bytes:
        raise error

    def _write(self, block: AssistantBlock) -> None:
        own = _own_fields(block)
        if isinstance(block, Text):
            part = {"type": "output_text", "text": block.text, "annotations": own.pop("annotations", [])}
            self._begin("message", role="assistant", content=[part], **own)["status"] = "completed"
        elif isinstance(block, Thinking):
            if own.get("type") == "reasoning":
                self._items.append(own)
            else:
                self._begin("reasoning", summary=[{"type": "summary_text", "text": block.text}])


def _own_fields(block: AssistantBlock) -> dict[str, Any]:
    """What only the issuer understands of a block, if the issuer is of this wire."""
    state = block.continuity
    if state is None or state.issuer is None or state.issuer.wire != "responses":
        return {}
    return dict(state.opaque) if isinstance(state.opaque, dict) else {}


def _write_opaque(block: Opaque) -> dict[str, Any]:
    state = block.continuity
    ours = state is not None and state.issuer is not None and state.issuer.wire == "responses"
    if ours and isinstance(block.data, dict):
        return block.data
    # Another wire's own kind of block means nothing here; it is carried for its issuer, which is named beside it.
    issuer = state.issuer if state is not None else None
    return {"type": "opaque", "issuer": msgspec.to_builtins(issuer), "data": block.data}


def _write_usage(usage: Usage) -> dict[str, Any]:
    """What was counted; a counter that is not known is left out, which is not zero."""
    total = usage.total_tokens
    if total is None and usage.input_tokens is not None and usage.output_tokens is not None:
        total = usage.input_tokens + usage.output_tokens
    counts: dict[str, Any] = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": total,
        "input_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_creation_input_tokens,
        },
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
    for name in ("input_tokens_details", "output_tokens_details"):
        counts[name] = {word: value for word, value in counts[name].items() if value is not None}
    return {name: value for name, value in counts.items() if value not in (None, {})}
