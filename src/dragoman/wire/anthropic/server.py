"""The Messages wire from the server's side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from ...errors import (
    AuthenticationError,
    CallCancelledError,
    ContextOverflowError,
    InvalidModelError,
    InvalidRequestError,
    OverloadedError,
    ProviderError,
    QuotaExceededError,
    RateLimitError,
    TimedOutError,
    UnsupportedContentError,
)
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
from ...messages import AssistantBlock, Issuer, Opaque, RedactedThinking, Text, Thinking, ToolCall
from ..codec import HttpReply
from ..seal import seal
from ..server import Asked, ReplyEncoder
from ..server_errors import find_class, headers_of, message_of, status_of
from .reply import FINISH
from .server_request import read_request


class AnthropicServer:
    """The Messages wire, served."""

    wire: ClassVar[str] = "anthropic"

    def decode(self, body: bytes, path: str = "") -> Asked:
        """Read a request's body. Only the token count (``path`` ends with it) needs no ``max_tokens``."""
        return read_request(body, counting=path.endswith("/count_tokens"))

    def encoder(self, asked: Asked, *, created: int = 0) -> ReplyEncoder:
        """An encoder for the reply, whole or streamed."""
        return _StreamEncoder(asked.issuer) if asked.request.stream else _BodyEncoder()

    def error(self, error: ProviderError) -> HttpReply:
        """A refusal."""
        status = find_class(error, _ERRORS)[0] or status_of(error)
        return HttpReply(status, headers_of(error), _encode(_error_record(error)))

    def key(self, headers: Mapping[str, str]) -> str | None:
        """The key in this wire's own header, or a bearer token."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return headers.get("x-api-key") or (token.strip() or None if scheme.lower() == "bearer" else None)


# --- writing --------------------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode


class _StreamEncoder(ReplyEncoder):
    content_type = "text/event-stream"

    def __init__(self, issuer: Issuer | None) -> None:
        super().__init__()
        self._issuer = issuer
        self._index = -1
        self._block = -1  # the event's own number of the block that is open
        self._is_open = False
        self._before_text = self._after_text = b""

    def feed(self, event: Event) -> bytes:
        if isinstance(event, TextDelta):
            if event.content_block_index == self._block:
                return self._before_text + _encode(event.text) + self._after_text
            opening = self._open(event.content_block_index, {"type": "text", "text": ""})
            # Nearly every event of a stream differs from the last in its text alone.
            delta = self._delta({"type": "text_delta", "text": "\0"})
            self._before_text, self._after_text = delta.rsplit(b'"\\u0000"', 1)
            return opening + self.feed(event)
        if isinstance(event, ToolUseInputDelta):
            self.note_input(event)
            return self._delta({"type": "input_json_delta", "partial_json": event.partial_json})
        if isinstance(event, ThinkingDelta):
            return self._think(event)
        if isinstance(event, ToolUseStart):
            self.note_input(event)
            block = {"type": "tool_use", "id": event.tool_use_id, "name": event.tool_name, "input": {}}
            return self._open(event.content_block_index, block)
        if isinstance(event, MessageStart):
            return _frame({"type": "message_start", "message": _write_message(event)})
        if isinstance(event, MessageComplete):
            self._complete = event
            return b""
        self.note_input(event)
        if event.problem in ("interrupted", "cancelled") or (event.problem and not "".join(self._input).strip()):
            self._is_open = False  # cut off, or without its input: once closed, it would pass for whole
        return self._close()

    def end(self) -> bytes:
        complete = self._complete
        assert complete is not None
        if complete.finish_reason == "cancelled":
            return self.broken(CallCancelledError("the call was cancelled"))
        # Blocks without deltas are known only now.
        late = [block for block in complete.final_content if isinstance(block, RedactedThinking | Opaque)]
        said = [self._open(-1, _write_block(block)) + self._close() for block in late]
        ending = self._ending(_stop_reason(self, complete))
        return self._close() + b"".join(said) + ending + _frame({"type": "message_stop"})

    def broken(self, error: ProviderError) -> bytes:
        known = self._complete is not None and self._complete.usage != Usage()
        return (self._ending(None) if known else b"") + _frame(_error_record(error))

    def _ending(self, reason: str | None) -> bytes:
        assert self._complete is not None
        delta = {"stop_reason": reason, "stop_sequence": self._complete.stop_sequence}
        return _frame({"type": "message_delta", "delta": delta, "usage": _write_usage(self._complete.usage)})

    def _think(self, event: ThinkingDelta) -> bytes:
        said = b""
        if event.content_block_index != self._block:
            said = self._open(event.content_block_index, {"type": "thinking", "thinking": "", "signature": ""})
        if event.text:
            said += self._delta({"type": "thinking_delta", "thinking": event.text})
        if event.signature is not None:
            signature = seal(event.signature, self._issuer, "anthropic")
            said += self._delta({"type": "signature_delta", "signature": signature})
        return said

    def _open(self, block: int, record: dict[str, Any]) -> bytes:
        closing = self._close()
        self._index, self._block, self._is_open = self._index + 1, block, True
        return closing + _frame({"type": "content_block_start", "index": self._index, "content_block": record})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _frame({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close(self) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        return _frame({"type": "content_block_stop", "index": self._index})


class _BodyEncoder(ReplyEncoder):
    def __init__(self) -> None:
        super().__init__()
        self._start: MessageStart | None = None

    def feed(self, event: Event) -> bytes:
        if isinstance(event, MessageStart):
            self._start = event
        elif isinstance(event, MessageComplete):
            self._complete = event
        elif isinstance(event, ToolUseStart | ToolUseInputDelta | ToolUseEnd):
            self.note_input(event)
        return b""

    def end(self) -> bytes:
        complete, start = self._complete, self._start
        assert complete is not None
        assert start is not None
        if complete.finish_reason == "cancelled":
            return self.broken(CallCancelledError("the call was cancelled"))
        if self._unsound is not None and _is_unreadable(complete):
            raise self._unsound
        content = [_write_block(block) for block in complete.final_content if _is_said(block)]
        message = {
            **_write_message(start),
            "model": complete.model or start.model,
            "content": content,
            "stop_reason": _stop_reason(self, complete),
            "stop_sequence": complete.stop_sequence,
            "usage": _write_usage(complete.usage),
        }
        return _encode(message)

    def broken(self, error: ProviderError) -> bytes:
        raise error


def _frame(data: dict[str, Any]) -> bytes:
    return b"event: " + str(data["type"]).encode() + b"\ndata: " + _encode(data) + b"\n\n"


def _write_message(start: MessageStart) -> dict[str, Any]:
    """The message before anything is said: what it used is not known, which is not zero."""
    return {
        "id": start.message_id,
        "type": "message",
        "role": "assistant",
        "model": start.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _write_usage(Usage()),
    }


def _is_unreadable(complete: MessageComplete) -> bool:
    """Is there a call whose input cannot be shown? It is an object here, whatever the model wrote.

    One cut off at the end of a reply that was too long has ``{}`` on this wire: clients know that by the reason.
    """
    content = complete.final_content
    shown = content[:-1] if complete.finish_reason == "length" else content
    return any(isinstance(block, ToolCall) and block.arguments is None for block in shown)


def _is_said(block: AssistantBlock) -> bool:
    return not isinstance(block, Text | Thinking) or bool(block.text or block.continuity is not None)


def _write_block(block: AssistantBlock) -> dict[str, Any]:
    state = block.continuity
    extras = state.opaque if state is not None and isinstance(state.opaque, dict) and _is_ours(block) else {}
    if isinstance(block, Text):
        return {"type": "text", "text": block.text, **extras}
    if isinstance(block, Thinking):
        signature = seal(state.signature, state.issuer, "anthropic") if state is not None and state.signature else ""
        return {"type": "thinking", "thinking": block.text, "signature": signature, **extras}
    if isinstance(block, RedactedThinking):
        return {"type": "redacted_thinking", "data": block.data}
    if isinstance(block, ToolCall):
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.arguments or {}, **extras}
    if isinstance(block.data, dict) and _is_ours(block):
        return block.data
    # Another wire's own kind of block means nothing here; it is carried for its issuer, which is named beside it.
    issuer = state.issuer if state is not None else None
    return {"type": "opaque", "issuer": msgspec.to_builtins(issuer), "data": block.data}


def _is_ours(block: AssistantBlock) -> bool:
    state = block.continuity
    return state is not None and state.issuer is not None and state.issuer.wire == "anthropic"


def _stop_reason(encoder: ReplyEncoder, complete: MessageComplete) -> str:
    word = encoder.finish_word(complete, FINISH)
    return "stop_sequence" if word == "end_turn" and complete.stop_sequence is not None else word


def _write_usage(usage: Usage) -> dict[str, Any]:
    """Three counters that do not overlap make the input here; two of them are always there, known or not."""
    cached, written = usage.cached_input_tokens, usage.cache_creation_input_tokens
    fresh = usage.input_tokens
    if fresh is not None:
        fresh = max(0, fresh - (cached or 0) - (written or 0))
    counts: dict[str, Any] = {"input_tokens": fresh, "output_tokens": usage.output_tokens}
    if cached is not None:
        counts["cache_read_input_tokens"] = cached
    if written is not None:
        counts["cache_creation_input_tokens"] = written
    if usage.reasoning_tokens is not None:
        counts["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return counts


# --- refusing -------------------------------------------------------------------------------------

# The status where this wire has one of its own, the ``type`` its clients know an error by, and a
# beginning of its message where they look there.
_ERRORS: dict[type[ProviderError], tuple[int | None, str, str]] = {
    AuthenticationError: (None, "authentication_error", ""),
    InvalidModelError: (None, "not_found_error", ""),
    QuotaExceededError: (402, "billing_error", ""),
    RateLimitError: (None, "rate_limit_error", ""),
    OverloadedError: (529, "overloaded_error", ""),
    TimedOutError: (None, "timeout_error", ""),
    ContextOverflowError: (None, "invalid_request_error", "prompt is too long: "),
    UnsupportedContentError: (None, "invalid_request_error", "unsupported content block: "),
    InvalidRequestError: (None, "invalid_request_error", ""),
    ProviderError: (None, "api_error", ""),
}


def _error_record(error: ProviderError) -> dict[str, Any]:
    _, kind, opening = find_class(error, _ERRORS)
    if status_of(error) in (403, 413):
        kind = {403: "permission_error", 413: "request_too_large"}[status_of(error)]
    said = message_of(error)
    inner = {"type": kind, "message": said if opening in said else opening + said}
    return {"type": "error", "error": inner, "request_id": error.request_id}
