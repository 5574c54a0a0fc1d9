"""The Gemini wire from the server's side."""

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
    ModelNotLoadedError,
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
from ...messages import Issuer, Opaque, Text, ToolCall
from ..codec import HttpReply
from ..seal import seal
from ..server import Asked, ReplyEncoder
from ..server_errors import find_class, headers_of, message_of, status_of
from .reply import FINISH
from .server_request import read_request


class GeminiServer:
    """The Gemini wire, served."""

    wire: ClassVar[str] = "gemini"

    def decode(self, body: bytes, path: str = "") -> Asked:
        """Read a request's body and path."""
        return read_request(body, path)

    def encoder(self, asked: Asked, *, created: int = 0) -> ReplyEncoder:
        """An encoder for the reply, whole or streamed."""
        return (_StreamEncoder if asked.request.stream else _BodyEncoder)(asked.issuer)

    def error(self, error: ProviderError) -> HttpReply:
        """A refusal."""
        return HttpReply(status_of(error), headers_of(error), _encode({"error": _error_record(error)}))

    def key(self, headers: Mapping[str, str]) -> str | None:
        """The key in this wire's own header. One in the URL is not taken: addresses are logged."""
        return headers.get("x-goog-api-key") or None


_encode = msgspec.json.Encoder().encode


class _Encoder(ReplyEncoder):
    """Parts of a reply, as a body gathers them and a stream sends them."""

    def __init__(self, issuer: Issuer | None) -> None:
        super().__init__()
        self._issuer = issuer
        self._start: MessageStart | None = None
        self._name = ""

    def _part(self, event: Event) -> dict[str, Any] | None:
        """The part that an event makes: a call only when it is whole, for an input is an object here."""
        if isinstance(event, TextDelta):
            return {"text": event.text} if event.text else None
        if isinstance(event, ThinkingDelta):
            sealed = None if event.signature is None else seal(event.signature, self._issuer, "gemini")
            signed = {} if sealed is None else {"thoughtSignature": sealed}
            return {"text": event.text, "thought": True, **signed} if event.text or signed else None
        if isinstance(event, ToolUseStart):
            self._name = event.tool_name
        if isinstance(event, ToolUseStart | ToolUseInputDelta):
            self.note_input(event)
        if isinstance(event, ToolUseEnd):
            self.note_input(event)
            return self._call(event)
        if isinstance(event, MessageStart):
            self._start = event
        if isinstance(event, MessageComplete):
            self._complete = event
        return None

    def _call(self, event: ToolUseEnd) -> dict[str, Any]:
        call: dict[str, Any] = {"id": event.tool_use_id, "name": self._name}
        if event.intent is None and event.problem not in ("unknown_tool", "invalid_arguments"):
            return {"functionCall": {**call, "willContinue": True}}  # and it never does: so it is known as cut off
        return {"functionCall": {**call, "args": event.final_input}}

    def _chunk(self, parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
        assert self._start is not None
        candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        chunk = {"candidates": [candidate], "modelVersion": self._start.model, "responseId": self._start.message_id}
        usage = _write_usage(self._complete.usage) if self._complete is not None else {}
        return {**chunk, "usageMetadata": usage} if usage else chunk

    def _reason(self) -> str:
        assert self._complete is not None
        return "STOP" if self._complete.finish_reason == "tool_calls" else self.finish_word(self._complete, FINISH)

    def _is_unreadable(self) -> bool:
        """Is there a call whose input cannot be shown, in a reply that was not too long?"""
        assert self._complete is not None
        if self._complete.finish_reason == "length":
            return False
        return any(isinstance(block, ToolCall) and block.arguments is None for block in self._complete.final_content)

    def _own_parts(self) -> list[dict[str, Any]]:
        """Parts of a kind of their own, known only at the end."""
        assert self._complete is not None
        blocks = [block for block in self._complete.final_content if isinstance(block, Opaque)]
        return [block.data for block in blocks if isinstance(block.data, dict) and _is_ours(block)]


class _StreamEncoder(_Encoder):
    content_type = "text/event-stream"

    def __init__(self, issuer: Issuer | None) -> None:
        super().__init__(issuer)
        self._before_text = self._after_text = b""

    def feed(self, event: Event) -> bytes:
        if type(event) is TextDelta and event.text:
            return self._before_text + _encode(event.text) + self._after_text
        part = self._part(event)
        if part is not None:
            return _frame(self._chunk([part]))
        if isinstance(event, MessageStart):
            # Nearly every chunk of a stream differs from the last in its text alone.
            whole = _frame(self._chunk([{"text": "\0"}]))
            self._before_text, self._after_text = whole.split(b'"\\u0000"', 1)
            return _frame(self._chunk([]))
        return b""

    def end(self) -> bytes:
        assert self._complete is not None
        if self._complete.finish_reason == "cancelled":
            return self.broken(CallCancelledError("the call was cancelled"))
        if self._unsound is not None and self._is_unreadable():
            return self.broken(self._unsound)
        return _frame(self._chunk(self._own_parts(), self._reason()))

    def broken(self, error: ProviderError) -> bytes:
        usage = _write_usage(self._complete.usage) if self._complete is not None else {}
        counted = _frame(self._chunk([])) if usage and self._start is not None else b""
        return counted + _frame({"error": _error_record(error)})


class _BodyEncoder(_Encoder):
    def __init__(self, issuer: Issuer | None) -> None:
        super().__init__(issuer)
        self._parts: list[dict[str, Any]] = []
        self._block = -1

    def feed(self, event: Event) -> bytes:
        part = self._part(event)
        if part is None:
            return b""
        block = getattr(event, "content_block_index", -1)
        last = self._parts[-1] if self._parts else {}
        if "text" in part and block == self._block and "thoughtSignature" not in last:
            self._parts[-1] = {**last, **part, "text": last["text"] + part["text"]}
        else:
            self._parts.append(part)
        self._block = block
        return b""

    def end(self) -> bytes:
        complete = self._complete
        assert complete is not None
        if complete.finish_reason == "cancelled":
            return self.broken(CallCancelledError("the call was cancelled"))
        if self._unsound is not None and self._is_unreadable():
            raise self._unsound
        return _encode(self._chunk([*self._parts, *self._own_parts()], self._reason()))

    def broken(self, error: ProviderError) -> bytes:
        raise error


def _frame(data: dict[str, Any]) -> bytes:
    return b"data: " + _encode(data) + b"\n\n"


def _is_ours(block: Opaque | Text) -> bool:
    state = block.continuity
    return state is not None and state.issuer is not None and state.issuer.wire == "gemini"


def _write_usage(usage: Usage) -> dict[str, Any]:
    """Thoughts are counted beside the answer here."""
    thoughts, made = usage.reasoning_tokens, usage.output_tokens
    counts = {
        "promptTokenCount": usage.input_tokens,
        "candidatesTokenCount": None if made is None else max(0, made - (thoughts or 0)),
        "thoughtsTokenCount": thoughts,
        "cachedContentTokenCount": usage.cached_input_tokens,
        "totalTokenCount": usage.total_tokens,
    }
    return {name: value for name, value in counts.items() if value is not None}


# --- refusing -------------------------------------------------------------------------------------

# The word this wire's clients know an error by, and a beginning of its message where they look there.
_ERRORS: dict[type[ProviderError], tuple[str, str]] = {
    AuthenticationError: ("UNAUTHENTICATED", ""),
    InvalidModelError: ("NOT_FOUND", ""),
    ModelNotLoadedError: ("UNAVAILABLE", "the model is loading: "),
    QuotaExceededError: ("RESOURCE_EXHAUSTED", "credits are depleted: "),
    RateLimitError: ("RESOURCE_EXHAUSTED", ""),
    OverloadedError: ("UNAVAILABLE", "overloaded: "),
    TimedOutError: ("DEADLINE_EXCEEDED", ""),
    ContextOverflowError: ("INVALID_ARGUMENT", "the input token count exceeds the maximum number of tokens: "),
    UnsupportedContentError: ("INVALID_ARGUMENT", "input modality is not supported: "),
    InvalidRequestError: ("INVALID_ARGUMENT", ""),
    ProviderError: ("INTERNAL", ""),
}


def _error_record(error: ProviderError) -> dict[str, Any]:
    word, opening = find_class(error, _ERRORS)
    said = message_of(error)
    return {"code": status_of(error), "message": said if opening in said else opening + said, "status": word}
