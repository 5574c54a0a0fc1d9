"""Chat Completions, server side: read requests, write replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from ...errors import (
    AuthenticationError,
    BillingError,
    ContextOverflowError,
    InvalidModelError,
    InvalidRequestError,
    ModelNotLoadedError,
    OverloadedError,
    ProviderError,
    QuotaExceededError,
    RateLimitError,
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
    ToolUseInputDelta,
    ToolUseStart,
    Usage,
)
from ...messages import (
    EFFORTS,
    NO_CONFIG,
    AssistantBlock,
    Effort,
    Image,
    Message,
    Request,
    RuntimeConfig,
    Text,
    Thinking,
    ToolCall,
    Url,
    User,
)
from ...validate import parse_messages, parse_tool_choice, parse_tools
from ...validate.fields import Fields
from ..codec import HttpReply
from ..fields import Losses, read_body, read_key, read_media_url, read_schema, read_stops
from ..server import (
    Asked,
    BodyEncoder,
    ReplyEncoder,
    bearer_token,
    data_frame,
    encode_json,
    known,
    split_at_text,
    total_tokens,
)
from ..server_errors import find_class, headers_of, message_with, status_of
from .finish import FINISH
from .other_parts import write_other_parts


class OpenAIServer:
    """The server side of the Chat Completions wire."""

    wire: ClassVar[str] = "openai"

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> Asked:
        """Decode the body of a request."""
        fields, losses = read_body(body), Losses()
        model, stream = fields.need_text("model"), fields.flag("stream") or False
        records = fields.items("messages", required=True) or ()
        joined = [
            _drop_name(_join_system_parts(record, at), at, losses)
            for at, record in enumerate(records)
        ]
        messages = tuple([_inline_media(message) for message in parse_messages(joined)])
        if not fields.rest():  # as in many requests
            request = Request(messages, model=model, stream=stream)
            return Asked(request, losses.warnings, stream_usage=False)
        if (fields.take("n") or 1) != 1:
            fields.refuse("n", "must be 1: a reply has one choice here")
        usage = _read_stream_options(fields, stream)
        schema = _read_format(fields, losses)
        tools = fields.items("tools")
        choice = parse_tool_choice(fields.take("tool_choice"))
        config = _read_config(fields) if fields.rest() else NO_CONFIG
        request = Request(
            messages, parse_tools(tools), config, schema, choice, model, stream=stream
        )
        return Asked(request, losses.warnings, usage)

    def encoder(self, asked: Asked, *, created: int = 0) -> ReplyEncoder:
        """Return an encoder for the reply, which is one body or a stream."""
        if asked.request.stream:
            return _StreamEncoder(asked, created)
        return BodyEncoder(lambda reply, complete: _write_body(reply, complete, created))

    def error(self, error: ProviderError) -> HttpReply:
        """Return an error as status, headers and body."""
        return HttpReply(
            status_of(error), headers_of(error), encode_json({"error": error_record(error)})
        )

    def key(self, headers: Mapping[str, str]) -> str | None:
        """Return the client's bearer token."""
        return bearer_token(headers)


# --- reading requests of clients ---------------------------------------------------------------


def _join_system_parts(record: Any, at: int) -> Any:
    """Return a system message with its text parts joined: many clients send a list."""
    if not isinstance(record, dict) or record.get("role") not in ("system", "developer"):
        return record
    if not isinstance(record.get("content"), list):
        return record
    parts = []
    for part in Fields(record, f"messages[{at}]").inners("content"):
        part.allow("type", "text")
        parts.append(part.need_text("text"))
    return {**record, "content": "".join(parts)}


def _drop_name(record: Any, at: int, losses: Losses) -> Any:
    """Return a message without ``name``, a field that Dragoman's messages do not have."""
    if not isinstance(record, dict) or not isinstance(record.get("name"), str):
        return record
    losses.drop(f"messages[{at}].name", "name_dropped", "a participant has no name here")
    return {name: value for name, value in record.items() if name != "name"}


def _inline_media(message: Message) -> Message:
    """Return a message with its ``data:`` URLs decoded.

    Other wires need the data and the media type separately.
    """
    if not isinstance(message, User) or isinstance(message.content, str):
        return message
    return User(
        [_inline_image(block) if isinstance(block, Image) else block for block in message.content]
    )


def _inline_image(image: Image) -> Image:
    if not isinstance(image.source, Url):
        return image
    source, media_type = read_media_url(image.source.url)
    return image if media_type is None else replace(image, source=source, media_type=media_type)


def _read_stream_options(fields: Fields, stream: bool) -> bool:
    options = fields.inner("stream_options")
    if options is None:
        return False
    if not stream:
        fields.refuse("stream_options", "is for streams only")
    wanted = options.flag("include_usage") or False
    # This option pads chunks against side-channel attacks; our server never sends such padding.
    options.flag("include_obfuscation")
    options.done()
    return wanted


def _read_format(fields: Fields, losses: Losses) -> dict[str, Any] | None:
    inner = fields.inner("response_format")
    if inner is None:
        return None
    kind = inner.need_text("type")
    if kind == "text":
        inner.done()
        return None
    if kind != "json_schema":  # JSON mode has no schema, so the field becomes an extra
        fields.put("response_format", inner.data)
        return None
    asked = inner.need_inner("json_schema")
    inner.done()
    # ignored, because the client codecs set ``strict`` if the schema allows it
    asked.flag("strict")
    losses.drop_fields(
        asked, ["description"], "the description inside the schema is sent, this one is not"
    )
    name = asked.need_text("name")
    schema = read_schema(asked.take("schema") or {}, name, asked.at("schema"), losses)
    asked.done()
    return schema


def _read_config(fields: Fields) -> RuntimeConfig:
    limit, newer = fields.whole("max_tokens"), fields.whole("max_completion_tokens")
    if limit is not None and newer is not None and limit != newer:
        fields.refuse("max_tokens", "contradicts max_completion_tokens, its newer name")
    return RuntimeConfig(
        fields.number("temperature"),
        newer if limit is None else limit,
        fields.number("top_p"),
        fields.whole("seed"),
        fields.number("frequency_penalty"),
        fields.number("presence_penalty"),
        read_stops(fields, "stop"),
        _read_reasoning(fields),
        cache=read_key(fields),
        extras=fields.rest(),
    )


def _read_reasoning(fields: Fields) -> Effort | int | None:
    """Return the reasoning setting from ``reasoning_effort`` or ``reasoning``.

    Routers use ``reasoning``, an object with one field: an effort, a token budget or ``enabled:
    false``. Any other object becomes an extra, for an endpoint that understands it.
    """
    effort, record = fields.choice("reasoning_effort", EFFORTS), fields.take("reasoning")
    if record is None:
        return effort
    if effort is None and isinstance(record, dict) and len(record) == 1:
        inner = Fields(record, "reasoning")
        if "effort" in inner:
            return inner.choice("effort", EFFORTS)
        if "max_tokens" in inner:
            return inner.whole("max_tokens")
        if inner.take("enabled") is False:
            return "off"
    fields.put("reasoning", record)
    return effort


# --- writing replies for clients ---------------------------------------------------------------

_DONE = b"data: [DONE]\n\n"


class _StreamEncoder(ReplyEncoder):
    content_type = "text/event-stream"

    def __init__(self, asked: Asked, created: int) -> None:
        super().__init__()
        self._created = created
        self._with_usage = asked.stream_usage
        self._head: dict[str, Any] = {}
        self._before_text = self._after_text = b""
        self._index = -1  # the index of the open call

    def feed(self, event: Event) -> bytes:
        if type(event) is TextDelta:
            return self._before_text + encode_json(event.text) + self._after_text
        self.note(event)
        if isinstance(event, ToolUseInputDelta):
            return self._call({"function": {"arguments": event.partial_json}})
        if isinstance(event, ThinkingDelta):
            return self._chunk({"reasoning_content": event.text}) if event.text else b""
        if isinstance(event, ToolUseStart):
            self._index += 1
            function = {"name": event.tool_name, "arguments": ""}
            return self._call({"id": event.tool_use_id, "type": "function", "function": function})
        if isinstance(event, ToolUseEnd):
            is_empty = event.intent is not None and self.calls[-1].is_blank
            return self._call({"function": {"arguments": "{}"}}) if is_empty else b""
        return self._begin(event) if isinstance(event, MessageStart) else b""

    def write_end(self, complete: MessageComplete) -> bytes:
        other = write_other_parts(complete.final_content)
        late = self._chunk(other) if other else b""
        return late + self._chunk({}, self.finish_word(complete, FINISH)) + self._usage() + _DONE

    def write_error(self, error: ProviderError) -> bytes:
        return self._usage() + data_frame({"error": error_record(error)})

    def _usage(self) -> bytes:
        usage = (
            _write_usage(self.complete.usage)
            if self.complete is not None and self._with_usage
            else {}
        )
        return data_frame({**self._head, "choices": [], "usage": usage}) if usage else b""

    def _begin(self, event: MessageStart) -> bytes:
        self._head = {
            "id": _reply_id(event.message_id),
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": event.model,
        }
        self._before_text, self._after_text = split_at_text(self._chunk({"content": "\0"}))
        return self._chunk({"role": "assistant", "content": ""})

    def _call(self, call: dict[str, Any]) -> bytes:
        return self._chunk({"tool_calls": [{"index": self._index, **call}]})

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return data_frame({**self._head, "choices": [choice]})


def _write_message(reply: BodyEncoder, blocks: Sequence[AssistantBlock]) -> dict[str, Any]:
    """Return the message of a reply that is one body."""
    first = blocks[0] if len(blocks) == 1 else None
    if type(first) is Text and first.continuity is None:  # as in most replies
        return {"role": "assistant", "content": first.text}
    names = [block.name for block in blocks if isinstance(block, ToolCall)]
    calls = [
        {
            "id": call.end.tool_use_id,
            "type": "function",
            "function": {"name": name, "arguments": call.arguments},
        }
        for name, call in zip(names, reply.calls, strict=True)
    ]
    text = "".join([block.text for block in blocks if isinstance(block, Text)])
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
    if thoughts := "".join([block.text for block in blocks if isinstance(block, Thinking)]):
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = calls
    return message | write_other_parts(blocks)


def _write_body(reply: BodyEncoder, complete: MessageComplete, created: int) -> bytes:
    message = _write_message(reply, complete.final_content)
    finish = reply.finish_word(complete, FINISH)
    usage = _write_usage(complete.usage)
    body = {
        "id": _reply_id(complete.message_id),
        "object": "chat.completion",
        "created": created,
        "model": reply.model,
        "choices": [
            {
                "index": 0,
                "message": {**message, "refusal": None},
                "logprobs": None,
                "finish_reason": finish,
            }
        ],
        **({"usage": usage} if usage else {}),
    }
    return encode_json(body)


def _reply_id(message_id: str) -> str:
    return "chatcmpl-" + message_id.removeprefix("msg_")


def _write_usage(usage: Usage) -> dict[str, Any]:
    counts: dict[str, Any] = {}
    if usage.input_tokens is not None:
        counts["prompt_tokens"] = usage.input_tokens
    if usage.output_tokens is not None:
        counts["completion_tokens"] = usage.output_tokens
    if (total := total_tokens(usage)) is not None:
        counts["total_tokens"] = total
    if usage.cached_input_tokens is not None or usage.cache_creation_input_tokens is not None:
        counts["prompt_tokens_details"] = known(
            cached_tokens=usage.cached_input_tokens,
            cache_write_tokens=usage.cache_creation_input_tokens,
        )
    if usage.reasoning_tokens is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return counts


# --- writing errors for clients ----------------------------------------------------------------

_INVALID = "invalid_request_error"
# For each error class: the ``type`` and ``code`` of the error, and a prefix for the message. Some
# clients recognise an error by this prefix.
_ERRORS: dict[type[ProviderError], tuple[str, str | None, str]] = {
    AuthenticationError: ("authentication_error", "invalid_api_key", ""),
    InvalidModelError: (_INVALID, "model_not_found", ""),
    ModelNotLoadedError: ("server_error", "model_not_loaded", ""),
    BillingError: ("insufficient_quota", "billing_error", ""),
    QuotaExceededError: ("insufficient_quota", "insufficient_quota", ""),
    RateLimitError: ("rate_limit_error", "rate_limit_exceeded", ""),
    OverloadedError: ("server_error", "overloaded", ""),
    # Proxies and agents recognise this error by the vendor's error message, not by the code.
    ContextOverflowError: (
        _INVALID,
        "context_length_exceeded",
        "This model's maximum context length is exceeded: ",
    ),
    UnsupportedFeatureError: (_INVALID, "unsupported_parameter", ""),
    UnsupportedContentError: (_INVALID, "unsupported_content", "unsupported content block: "),
    InvalidRequestError: (_INVALID, None, ""),
    ProviderError: ("server_error", None, ""),
}


def error_record(error: ProviderError) -> dict[str, Any]:
    """Return an error in the form of this wire. Streams and bodies use the same form."""
    kind, code, opening = find_class(error, _ERRORS)
    return {"message": message_with(error, opening), "type": kind, "param": None, "code": code}
