"""Ollama's native wire, server side: one JSON object per line.

Calls have no ids on this wire. A result belongs to the first call of the same name that has no
result yet. Both get an id that is derived from the position of the call.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from ...errors import (
    BillingError,
    ContextOverflowError,
    InvalidModelError,
    InvalidRequestError,
    MalformedToolCallError,
    ModelNotLoadedError,
    OverloadedError,
    ProviderError,
    QuotaExceededError,
    UnsupportedContentError,
    UnsupportedFeatureError,
)
from ...events import (
    Event,
    MessageComplete,
    MessageStart,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
)
from ...messages import (
    EFFORTS,
    Assistant,
    AssistantBlock,
    Audio,
    Effort,
    Image,
    Inline,
    Message,
    Request,
    RuntimeConfig,
    System,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    User,
    UserBlock,
)
from ...validate import parse_tools
from ...validate.fields import Fields
from ..codec import HttpReply
from ..fields import Losses, read_body, read_stops
from ..media import describe_medium
from ..server import (
    Asked,
    BodyEncoder,
    ReplyEncoder,
    bearer_token,
    encode_json,
    has_unreadable_call,
    known,
    split_at_text,
)
from ..server_errors import find_class, headers_of, message_with, status_of
from .reply import FINISH


class OllamaServer:
    """The server side of Ollama's native wire."""

    wire: ClassVar[str] = "ollama"

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> Asked:
        """Decode the body of a request. ``stream`` defaults to true on this wire."""
        fields, losses = read_body(body), Losses()
        model, stream = fields.need_text("model"), fields.flag("stream")
        messages = _Reader().read(fields.inners("messages", required=True))
        tools = parse_tools(fields.items("tools"))
        schema = _read_format(fields)
        config = _read_config(fields)
        losses.drop_fields(
            fields,
            ("keep_alive",),
            "how long a model stays in memory is not a client's to say here",
        )
        fields.done()
        request = Request(messages, tools, config, schema, None, model, stream=stream is not False)
        return Asked(request, losses.warnings)

    def encoder(self, asked: Asked, *, created: int = 0) -> ReplyEncoder:
        """Return an encoder for the reply, which is one body or a stream."""
        at = format_time(created)
        if asked.request.stream:
            return _StreamEncoder(at)
        return BodyEncoder(lambda reply, complete: _write_body(reply, complete, at), _hides_call)

    def error(self, error: ProviderError) -> HttpReply:
        """Return the status, headers and body for an error; the body contains only a message."""
        return HttpReply(
            status_of(error), headers_of(error), encode_json({"error": _sentence(error)})
        )

    def key(self, headers: Mapping[str, str]) -> str | None:
        """Return the client's bearer token."""
        return bearer_token(headers)


def format_time(created: int) -> str:
    """Return a time, given in epoch seconds, in the format of this wire."""
    return datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- reading requests of clients ---------------------------------------------------------------


def _read_config(fields: Fields) -> RuntimeConfig:
    inner = fields.inner("options") or Fields({}, "options")
    return RuntimeConfig(
        inner.number("temperature"),
        inner.whole("num_predict"),
        inner.number("top_p"),
        inner.whole("seed"),
        inner.number("frequency_penalty"),
        inner.number("presence_penalty"),
        read_stops(inner, "stop"),
        _read_think(fields),
        inner.rest(),
    )


def _read_think(fields: Fields) -> Effort | None:
    """Return the reasoning setting from ``think``, which is an effort or a boolean."""
    think = fields.take("think")
    if isinstance(think, bool):
        return "medium" if think else "none"
    return fields.choice("think", EFFORTS)


def _read_format(fields: Fields) -> dict[str, Any] | None:
    wanted = fields.take("format")
    if wanted is None or wanted == "":
        return None
    if wanted == "json":
        return {"type": "object"}
    if not isinstance(wanted, dict):
        fields.refuse("format", "must be json or a JSON Schema")
    return wanted


class _Reader:
    """Read a conversation, and assign ids to its calls."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: list[tuple[str, str]] = []  # the names and ids of calls without a result

    def read(self, items: list[Fields]) -> list[Message]:
        return [self._message(item) for item in items]

    def _message(self, fields: Fields) -> Message:
        role = fields.need_text("role")
        message: Message
        if role == "system":
            message = System(fields.text("content") or "")
        elif role == "user":
            message = User(_read_content(fields))
        elif role == "assistant":
            message = Assistant(self._blocks(fields))
        elif role == "tool":
            message = ToolResult(self._answered(fields), _read_content(fields))
        else:
            fields.refuse("role", "must be system, user, assistant or tool")
        fields.done()
        return message

    def _blocks(self, fields: Fields) -> list[AssistantBlock]:
        thinking, text = fields.text("thinking"), fields.text("content")
        blocks: list[AssistantBlock] = [Thinking(thinking)] if thinking else []
        blocks += [Text(text)] if text else []
        return [*blocks, *[self._call(call) for call in fields.inners("tool_calls")]]

    def _call(self, fields: Fields) -> ToolCall:
        own = fields.text("id")
        inner = fields.need_inner("function")
        name, arguments = inner.need_text("name"), inner.take("arguments")
        if arguments is not None and not isinstance(arguments, dict):
            inner.refuse("arguments", "must be an object")
        inner.take("index")
        self._count += 1
        call_id = own or f"call_{self._count}"
        self._waiting.append((name, call_id))
        return ToolCall(call_id, name, arguments or {})

    def _answered(self, fields: Fields) -> str:
        name, own = fields.text("tool_name"), fields.text("tool_call_id")
        fitting = [
            each
            for each in self._waiting
            if own == each[1] or (own is None and name in (None, each[0]))
        ]
        if not fitting:
            fields.refuse(
                "tool_name" if own is None else "tool_call_id",
                "names no call that waits for a result",
            )
        self._waiting.remove(fitting[0])
        return fitting[0][1]


def _read_content(fields: Fields) -> str | tuple[UserBlock, ...]:
    text, images = fields.text("content") or "", fields.items("images")
    if not images:
        return text
    blocks: list[UserBlock] = [Text(text)] if text else []
    return (
        *blocks,
        *[_read_image(data, f"{fields.at('images')}[{at}]") for at, data in enumerate(images)],
    )


# Requests contain no media types, so the type of an image is recognised by its first bytes.
_KINDS = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)


def _read_image(data: Any, path: str) -> Image:
    if not isinstance(data, str):
        raise InvalidRequestError(f"{path} must be base64 text")
    try:
        head = base64.b64decode(data[:16], validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError(f"{path} is not base64") from None
    return Image(
        Inline(data), next((kind for first, kind in _KINDS if head.startswith(first)), "image/png")
    )


# --- writing replies for clients ---------------------------------------------------------------


class _StreamEncoder(ReplyEncoder):
    content_type = "application/x-ndjson"

    def __init__(self, at: str) -> None:
        super().__init__()
        self._at = at  # the time of the reply, as text
        self._name = ""  # the tool name of the open call
        self._before_text = self._after_text = b""

    def feed(self, event: Event) -> bytes:
        if type(event) is TextDelta:
            return (
                self._before_text + encode_json(event.text) + self._after_text
                if event.text
                else b""
            )
        self.note(event)
        if isinstance(event, ThinkingDelta):
            return (
                _line(self, self._at, {"content": "", "thinking": event.text})
                if event.text
                else b""
            )
        if isinstance(event, ToolUseStart):
            self._name = event.tool_name
        elif isinstance(event, ToolUseEnd):
            # A call is sent when it is complete, because its input is an object on this wire.
            if event.intent is not None or event.problem in ("unknown_tool", "invalid_arguments"):
                call = _write_call(event.tool_use_id, self._name, event.final_input)
                return _line(self, self._at, {"content": "", "tool_calls": [call]})
        elif isinstance(event, MessageStart):
            self._before_text, self._after_text = split_at_text(
                _line(self, self._at, {"content": "\0"})
            )
            return _line(self, self._at, {"content": ""})
        return b""

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
        return encode_json({"error": _sentence(error)}) + b"\n"


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
    word = "stop" if called and not is_cut else reply.finish_word(complete, FINISH)
    counts = known(
        prompt_eval_count=complete.usage.input_tokens, eval_count=complete.usage.output_tokens
    )
    return {"done_reason": word, **counts}


def _hides_call(complete: MessageComplete) -> bool:
    return has_unreadable_call(complete.final_content)


# --- writing errors for clients ----------------------------------------------------------------

# A prefix for the message of each error class. Clients recognise an error by it, because this wire
# has no error codes.
_OPENINGS: dict[type[ProviderError], str] = {
    InvalidModelError: "model not found: ",
    ModelNotLoadedError: "loading model: ",
    BillingError: "payment required: ",
    QuotaExceededError: "exceeded your current quota: ",
    OverloadedError: "overloaded: ",
    ContextOverflowError: "the prompt is too long: ",
    UnsupportedFeatureError: "unsupported_parameter: ",
    UnsupportedContentError: "unsupported content block: ",
    ProviderError: "",
}


def _sentence(error: ProviderError) -> str:
    return message_with(error, find_class(error, _OPENINGS))
