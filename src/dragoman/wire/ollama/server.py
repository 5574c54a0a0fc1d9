"""Ollama's native wire, server side: one JSON object per line."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from ...errors import MalformedToolCallError, ProviderError
from ...events import (
    MessageComplete,
    MessageStart,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
)
from ...messages import Audio, Image, Text, Thinking, ToolCall
from ..codec import HttpReply
from ..fields import read_body
from ..losses import FieldTable
from ..media import describe_medium
from ..server import (
    Asked,
    BodyEncoder,
    ModelQuestion,
    ReplyEncoder,
    ServerCodec,
    bearer_token,
    encode_json,
    has_unreadable_call,
    known,
)
from ..server_errors import headers_of, message_on, status_of
from .listings import show_model
from .server_request import TABLE, read_request

# a request that only loads a model has at most this many bytes
_LONGEST_LOAD = 4096


class OllamaServer(ServerCodec):
    """The server side of Ollama's native wire."""

    wire: ClassVar[str] = "ollama"
    table: ClassVar[FieldTable] = TABLE
    accepts_forms: ClassVar[bool] = True

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> Asked:
        """Decode the body of a request. ``stream`` defaults to true on this wire."""
        return read_request(body)

    def encoder(self, asked: Asked, *, created: int = 0) -> ReplyEncoder:
        """Return an encoder for the reply, which is one body or a stream."""
        at = format_time(created)
        if asked.request.stream:
            return _StreamEncoder(at)
        return BodyEncoder(lambda reply, complete: _write_body(reply, complete, at), _hides_call)

    def read_question(self, body: bytes, path: str) -> ModelQuestion | None:
        """Return the question if a request asks for a description or loads a model.

        A request that loads a model has no prompt and no messages. Older clients that ask for a
        description send the name in the field ``name`` instead of ``model``.
        """
        if path.endswith("/show"):
            fields = read_body(body)
            name = fields.text("model") or fields.need_text("name")
            return ModelQuestion(name, lambda model, _: encode_json(show_model(model)))
        if len(body) > _LONGEST_LOAD:
            return None
        fields = read_body(body)
        if any(fields.data.get(name) for name in ("prompt", "system", "images", "messages")):
            return None
        model = fields.need_text("model")
        empty: dict[str, Any] = {"response": ""}
        if path.endswith("/chat"):
            empty = {"message": {"role": "assistant", "content": ""}}
        return ModelQuestion(model, lambda _, created: _write_loaded(model, empty, created))

    def error(self, error: ProviderError) -> HttpReply:
        """Return the status, headers and body for an error; the body contains only a message."""
        return HttpReply(
            status_of(error),
            headers_of(error),
            encode_json({"error": message_on(error, "ollama")}),
        )

    def key(self, headers: Mapping[str, str]) -> str | None:
        """Return the client's bearer token."""
        return bearer_token(headers)


def _write_loaded(model: str, empty: dict[str, Any], created: int) -> bytes:
    head = {"model": model, "created_at": format_time(created)}
    return encode_json({**head, **empty, "done": True, "done_reason": "load"}) + b"\n"


def format_time(created: int) -> str:
    """Return a time, given in epoch seconds, in the format of this wire."""
    return datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- writing replies for clients ---------------------------------------------------------------


class _StreamEncoder(ReplyEncoder):
    content_type = "application/x-ndjson"

    def __init__(self, at: str) -> None:
        super().__init__()
        self._at = at  # the time of the reply, as text
        self._name = ""  # the tool name of the open call

    def begin(self, event: MessageStart) -> bytes:
        self.frame_text(_line(self, self._at, {"content": "\0"}))
        return _line(self, self._at, {"content": ""})

    def text(self, event: TextDelta) -> bytes:
        return self.write_text(event) if event.text else b""

    def thinking(self, event: ThinkingDelta) -> bytes:
        message = {"content": "", "thinking": event.text}
        return _line(self, self._at, message) if event.text else b""

    def call_start(self, event: ToolUseStart) -> bytes:
        self._name = event.tool_name
        return b""

    def call_end(self, event: ToolUseEnd) -> bytes:
        # A call is sent when it is complete, because its input is an object on this wire.
        if event.intent is None and event.problem not in ("unknown_tool", "invalid_arguments"):
            return b""
        call = _write_call(event.tool_use_id, self._name, event.final_input)
        return _line(self, self._at, {"content": "", "tool_calls": [call]})

    def hides_call(self, complete: MessageComplete) -> bool:
        return _hides_call(complete)

    def write_end(self, complete: MessageComplete) -> bytes:
        media = "".join(
            [
                describe_medium(block)
                for block in complete.final_content
                if isinstance(block, Audio | Image)
            ]
        )
        return _line(self, self._at, {"content": media}, **end_fields(self, complete))

    def write_error(self, error: ProviderError) -> bytes:
        return encode_json({"error": message_on(error, "ollama")}) + b"\n"


def _write_body(reply: BodyEncoder, complete: MessageComplete, at: str) -> bytes:
    message: dict[str, Any] = {"content": ""}
    calls = []
    for block in complete.final_content:
        if isinstance(block, Text):
            message["content"] += block.text
        elif isinstance(block, Audio | Image):
            message["content"] += describe_medium(block)
        elif isinstance(block, Thinking):
            message["thinking"] = message.get("thinking", "") + block.text
        elif isinstance(block, ToolCall) and block.arguments is not None:
            calls.append(_write_call(block.id, block.name, block.arguments))
    if calls:
        message["tool_calls"] = calls
    return _line(reply, at, message, **end_fields(reply, complete))


def _line(reply: ReplyEncoder, at: str, message: dict[str, Any], **ending: Any) -> bytes:
    record = {"model": reply.start.model if reply.start is not None else "", "created_at": at}
    line = {**record, "message": {"role": "assistant", **message}, "done": bool(ending), **ending}
    return encode_json(line) + b"\n"


def _write_call(call_id: str, name: str, arguments: dict[str, Any] | None) -> dict[str, Any]:
    return {"id": call_id, "function": {"name": name, "arguments": arguments}}


def end_fields(reply: ReplyEncoder, complete: MessageComplete) -> dict[str, Any]:
    """Return the finish reason and the token counts.

    On this wire the finish reason is ``stop`` even if the reply has tool calls, valid or not.
    """
    called = complete.finish_reason == "tool_calls" or isinstance(
        reply.unsound, MalformedToolCallError
    )
    is_cut = complete.finish_reason == "length"
    word = "stop" if called and not is_cut else reply.finish_word(complete, "ollama")
    counts = known(
        prompt_eval_count=complete.usage.input_tokens, eval_count=complete.usage.output_tokens
    )
    return {"done_reason": word, **counts}


def _hides_call(complete: MessageComplete) -> bool:
    return has_unreadable_call(complete.final_content)
