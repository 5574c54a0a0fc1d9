"""Ollama's native wire, server side: one JSON object per line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from ...errors import MalformedToolCallError, ProviderError
from ...events import Event, MessageComplete, MessageStart, TextDelta, ThinkingDelta, ToolUseEnd
from ...messages import Audio, Image, Text, Thinking, ToolCall
from ...validate.fields import Fields
from ..fields import read_body
from ..media import describe_all, describe_medium
from ..request_schema import (
    FREE,
    LIST,
    MESSAGES,
    TEXT,
    WORD_OR_OBJECT,
    RequestSchema,
    body_with_model,
)
from ..rules import FieldTable
from ..server import (
    Asked,
    BodyEncoder,
    ModelQuestion,
    ReplyEncoder,
    ServerCodec,
    encode_json,
    escape_line_ends,
)
from ..server_errors import code_field, message_on
from ..sse import JSON_LINES
from .finish import FINISH
from .model_pages import PAGES, show_model
from .reply import USAGE
from .server_errors import TERMS
from .server_request import TABLE, read_request

_SECOND = 1_000_000_000  # in nanoseconds
# a request that only loads a model has at most this many bytes
_LONGEST_LOAD = 4096


def format_time(created: int) -> str:
    """Return a time, given in epoch seconds, in the format of this wire."""
    return datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- writing replies for clients ---------------------------------------------------------------


class LineEncoder(ReplyEncoder):
    """What the encoders of bodies and streams share. A body is the only line of a reply."""

    content_type = JSON_LINES
    wire = "ollama"
    finish = FINISH

    def __init__(self, asked: Asked, created: int) -> None:
        super().__init__(asked, created)
        self.at = format_time(created)
        self._first = 0.0  # seconds from the request to the first event

    def begin(self, event: MessageStart) -> bytes:
        self._first = self.elapsed()
        return b""

    def line(self, message: dict[str, Any], **ending: Any) -> bytes:
        """Return a line with a message; the fields ``ending`` are those of the last line."""
        message = {"role": "assistant", **message}
        record = {"model": self.model, "created_at": self.at, "message": message}
        return encode_json({**record, "done": bool(ending), **ending}) + b"\n"

    def ending(self, complete: MessageComplete) -> dict[str, Any]:
        """Return the finish reason, the durations in nanoseconds and the token counts.

        Clients divide by durations, so only the loading time may be zero. On this wire the finish
        reason is ``stop`` even if the reply has tool calls, valid or not.
        """
        called = complete.finish_reason == "tool_calls" or isinstance(
            self.unsound, MalformedToolCallError
        )
        is_cut = complete.finish_reason == "length"
        word = "stop" if called and not is_cut else self.finish_word(complete)
        first = int(self._first * _SECOND)
        last = int(self.elapsed() * _SECOND)
        durations = {
            "total_duration": max(2, last),
            "load_duration": 0,
            "prompt_eval_duration": max(1, first),
            "eval_duration": max(1, last - first),
        }
        return {"done_reason": word, **durations, **USAGE.write(complete.usage)}

    def write_error(self, error: ProviderError) -> bytes:
        return encode_json(_error_record(error)) + b"\n"

    def hides_call(self, complete: MessageComplete) -> bool:
        return self.has_unreadable_call(complete.final_content)


class LineStreamEncoder(LineEncoder):
    """Write a line for each event."""

    # Ollama's SDK for Python splits a stream at these characters (ollama 0.6.3, 2026-11-19).
    def feed(self, event: Event) -> bytes:
        return escape_line_ends(super().feed(event))

    def end(self) -> bytes:
        return escape_line_ends(super().end())

    def begin(self, event: MessageStart) -> bytes:
        super().begin(event)
        self.frame_text(self.line({"content": "\0"}))
        return self.line({"content": ""})

    def text(self, event: TextDelta) -> bytes:
        return self.write_text(event) if event.text else b""

    def thinking(self, event: ThinkingDelta) -> bytes:
        message = {"content": "", "thinking": event.text}
        return self.line(message) if event.text else b""

    def call_end(self, event: ToolUseEnd) -> bytes:
        # A call is sent when it is complete, because its input is an object on this wire.
        if not self.calls[-1].is_object:
            return b""
        call = _write_call(event.tool_use_id, self.tool_name, event.final_input)
        return self.line({"content": "", "tool_calls": [call]})

    def write_end(self, complete: MessageComplete) -> bytes:
        media = "".join(describe_all(complete.final_content))
        return self.line({"content": media}, **self.ending(complete))


class LineBodyEncoder(BodyEncoder, LineEncoder):
    """Write the reply as one line."""

    def write_end(self, complete: MessageComplete) -> bytes:
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
        return self.line(message, **self.ending(complete))


def _error_record(error: ProviderError) -> dict[str, Any]:
    return {"error": message_on(error, TERMS), **code_field(error)}


def _write_call(call_id: str, name: str, arguments: dict[str, Any] | None) -> dict[str, Any]:
    return {"id": call_id, "function": {"name": name, "arguments": arguments}}


def _write_loaded(model: str, empty: dict[str, Any], created: int) -> bytes:
    head = {"model": model, "created_at": format_time(created)}
    return encode_json({**head, **empty, "done": True, "done_reason": "load"}) + b"\n"


class OllamaServer(ServerCodec):
    """The server side of Ollama's native wire."""

    wire: ClassVar[str] = "ollama"
    terms = TERMS
    table: ClassVar[FieldTable] = TABLE
    schema = RequestSchema(
        body_with_model(
            "messages",
            stream={"type": "boolean", "default": True},
            messages=MESSAGES,
            tools=LIST,
            options=FREE,
            format=WORD_OR_OBJECT,
            think={"anyOf": [{"type": "boolean"}, TEXT]},
            keep_alive={"anyOf": [TEXT, {"type": "number"}]},
        ),
        others={"/api/show": body_with_model()},
    )
    paths = ("/api/chat",)
    other_paths: ClassVar[tuple[str, ...]] = ("/api/show",)
    pages = PAGES
    path_marks = ("/api/",)
    read_request = staticmethod(read_request)
    stream_type: ClassVar[type[ReplyEncoder]] = LineStreamEncoder
    body_type: ClassVar[type[ReplyEncoder]] = LineBodyEncoder
    accepts_forms: ClassVar[bool] = True
    returns_state: ClassVar[bool] = False

    def read_question(self, body: bytes, path: str) -> ModelQuestion | None:
        """Return the question if a request asks for a description or loads a model.

        A request that loads a model has no prompt and no messages. Older clients that ask for a
        description send the name in the field ``name`` instead of ``model``.
        """
        if path.endswith("/show"):
            fields = Fields(read_body(body))
            name = fields.text("model") or fields.need_text("name")
            return ModelQuestion(name, lambda model, _: encode_json(show_model(model)))
        if len(body) > _LONGEST_LOAD:
            return None
        fields = Fields(read_body(body))
        if any(fields.data.get(name) for name in ("prompt", "system", "images", "messages")):
            return None
        model = fields.need_text("model")
        empty: dict[str, Any] = {"response": ""}
        if path.endswith("/chat"):
            empty = {"message": {"role": "assistant", "content": ""}}
        return ModelQuestion(model, lambda _, created: _write_loaded(model, empty, created))

    def error_body(self, error: ProviderError) -> dict[str, Any]:
        return _error_record(error)
