"""The server side of Converse: messages of an event stream, or one body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import unquote

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
    TimedOutError,
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
from ...eventstream import encode_message
from ...messages import (
    Assistant,
    AssistantBlock,
    Audio,
    Continuity,
    Document,
    ForceTool,
    Image,
    Inline,
    Issuer,
    Message,
    RedactedThinking,
    Request,
    RuntimeConfig,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Url,
    User,
    UserBlock,
)
from ...validate.fields import Fields
from ..codec import HttpReply
from ..fields import Losses, read_body, read_stops
from ..media import describe_medium
from ..seal import seal, unseal
from ..server import (
    Asked,
    BodyEncoder,
    ReplyEncoder,
    bearer_token,
    encode_json,
    has_unreadable_call,
    known,
    total_tokens,
)
from ..server_errors import find_class, headers_of, message_with, status_of
from .reply import FINISH
from .request import DOCUMENTS, IMAGES


class BedrockServer:
    """The server side of the Converse wire."""

    wire: ClassVar[str] = "bedrock"

    def decode(self, body: bytes | dict[str, Any], path: str = "") -> Asked:
        """Decode the body of a request; the model and the mode are in the path."""
        head, mark, mode = path.rpartition("/converse")
        model = head.partition("/model/")[2]
        if not mark or not model or mode not in ("", "-stream"):
            raise InvalidRequestError("the path must be /model/MODEL/converse or /model/MODEL/converse-stream")
        fields, losses = read_body(body), Losses()
        system = [System(each.need_text("text")) for each in fields.inners("system") if "cachePoint" not in each]
        messages = [each for turn in fields.inners("messages", required=True) for each in _read_turn(turn)]
        tools, choice = _read_tools(fields)
        inner = fields.inner("inferenceConfig") or Fields({}, "inferenceConfig")
        config = RuntimeConfig(
            inner.number("temperature"),
            inner.whole("maxTokens"),
            inner.number("topP"),
            stop_sequences=read_stops(inner, "stopSequences"),
            extras=fields.rest(),
        )
        inner.done()
        request = Request([*system, *messages], tools, config, None, choice, unquote(model), stream=bool(mode))
        return Asked(request, losses.warnings)

    def encoder(self, asked: Asked, *, created: int = 0) -> ReplyEncoder:
        """Return an encoder for the reply, a body or a stream."""
        return _StreamEncoder() if asked.request.stream else BodyEncoder(_write_body, _hides_call)

    def error(self, error: ProviderError) -> HttpReply:
        """Return an error reply: a message, and the name of the exception in a header."""
        name, opening = find_class(error, _ERRORS)
        headers = {**headers_of(error), "x-amzn-errortype": name}
        return HttpReply(status_of(error), headers, encode_json({"message": message_with(error, opening)}))

    def key(self, headers: Mapping[str, str]) -> str | None:
        """Return the bearer token."""
        return bearer_token(headers)


# --- reading --------------------------------------------------------------------------------------


def _read_tools(fields: Fields) -> tuple[tuple[Tool, ...], ToolChoice | None]:
    inner = fields.inner("toolConfig")
    if inner is None:
        return (), None
    found = []
    for record in inner.inners("tools"):
        if "cachePoint" not in record:
            spec = record.need_inner("toolSpec")
            schema = spec.need_inner("inputSchema").take("json")
            found.append(Tool(spec.need_text("name"), spec.text("description") or "", schema))
    choice = inner.inner("toolChoice")
    inner.done()
    if choice is None:
        return tuple(found), None
    if "tool" in choice:
        return tuple(found), ForceTool(choice.need_inner("tool").need_text("name"))
    return tuple(found), "required" if "any" in choice else "auto"


def _read_turn(fields: Fields) -> list[Message]:
    role = fields.choice("role", ("user", "assistant"))
    blocks = [block for block in fields.inners("content", required=True) if "cachePoint" not in block]
    fields.done()
    if role == "assistant":
        return [Assistant([_read_spoken(block) for block in blocks])]
    results: list[Message] = [_read_result(block.need_inner("toolResult")) for block in blocks if "toolResult" in block]
    rest = [_read_block(block) for block in blocks if "toolResult" not in block]
    return [*results, User(rest)] if rest else results


def _read_result(fields: Fields) -> ToolResult:
    content = [_read_block(block) for block in fields.inners("content")]
    failed = fields.choice("status", ("success", "error")) == "error"
    return ToolResult(fields.need_text("toolUseId"), content, failed)


def _read_block(fields: Fields) -> UserBlock:
    if "text" in fields:
        return Text(fields.need_text("text"))
    if "json" in fields:
        return Text(encode_json(fields.take("json")).decode())
    if "image" in fields:
        inner = fields.need_inner("image")
        return Image(_read_source(inner), _kind_of(inner, IMAGES))
    inner = fields.need_inner("document")
    return Document(_read_source(inner), _kind_of(inner, DOCUMENTS), inner.text("name"))


def _read_source(fields: Fields) -> Inline | Url:
    source = fields.need_inner("source")
    if "s3Location" in source:
        return Url(source.need_inner("s3Location").need_text("uri"))
    return Inline(source.need_text("bytes"))


def _kind_of(fields: Fields, kinds: Mapping[str, str]) -> str:
    word = fields.choice("format", tuple(kinds.values()))
    return next(kind for kind, format_word in kinds.items() if format_word == (word or format_word))


def _read_spoken(fields: Fields) -> AssistantBlock:
    if "toolUse" in fields:
        inner = fields.need_inner("toolUse")
        return ToolCall(inner.need_text("toolUseId"), inner.need_text("name"), inner.take("input") or {})
    if "reasoningContent" in fields:
        inner = fields.need_inner("reasoningContent")
        if "redactedContent" in inner:
            return RedactedThinking(inner.need_text("redactedContent"), Continuity(issuer=Issuer("bedrock")))
        text = inner.need_inner("reasoningText")
        signature = text.text("signature")
        made, issuer = unseal(signature, "bedrock") if signature else (None, Issuer("bedrock"))
        return Thinking(text.text("text") or "", Continuity(made, issuer=issuer) if made else None)
    if "citationsContent" in fields:
        inner = fields.need_inner("citationsContent")
        said = "".join([part.need_text("text") for part in inner.inners("content")])
        state = Continuity(None, {"citations": inner.take("citations")}, Issuer("bedrock"))
        return Text(said, state)
    return Text(fields.need_text("text"))


# --- writing --------------------------------------------------------------------------------------


class _StreamEncoder(ReplyEncoder):
    content_type = "application/vnd.amazon.eventstream"

    def __init__(self) -> None:
        super().__init__()
        self._index = -1
        self._open = ""  # the type of the open block

    def feed(self, event: Event) -> bytes:
        if type(event) is TextDelta:
            return self._turn("text") + self._delta({"text": event.text}) if event.text else b""
        self.note(event)
        if isinstance(event, ThinkingDelta):
            return self._think(event)
        if isinstance(event, ToolUseStart):
            started = {"toolUse": {"toolUseId": event.tool_use_id, "name": event.tool_name}}
            opened = self._turn("call")
            return opened + _event("contentBlockStart", {"start": started, "contentBlockIndex": self._index})
        if isinstance(event, ToolUseInputDelta):
            return self._delta({"toolUse": {"input": event.partial_json}})
        if isinstance(event, ToolUseEnd):
            return self._turn("")
        return _event("messageStart", {"role": "assistant"}) if isinstance(event, MessageStart) else b""

    def write_end(self, complete: MessageComplete) -> bytes:
        late = b"".join([self._late(block) for block in complete.final_content])
        stop = _event("messageStop", {"stopReason": self.finish_word(complete, FINISH)})
        usage = {"usage": _write_usage(complete.usage), "metrics": {"latencyMs": 0}}
        return late + self._turn("") + stop + _event("metadata", usage)

    def write_error(self, error: ProviderError) -> bytes:
        name, opening = find_class(error, _ERRORS)
        headers = {":message-type": "exception", ":exception-type": name[:1].lower() + name[1:]}
        payload = encode_json({"message": message_with(error, opening)})
        return encode_message({**headers, ":content-type": "application/json"}, payload)

    def _think(self, event: ThinkingDelta) -> bytes:
        opened = self._turn("thinking")
        text = self._delta({"reasoningContent": {"text": event.text}}) if event.text else b""
        if event.signature is None:
            return opened + text
        return opened + text + self._delta({"reasoningContent": {"signature": event.signature}})

    def _late(self, block: AssistantBlock) -> bytes:
        """Return the blocks without deltas, which are sent last: redacted thinking and audio."""
        if isinstance(block, RedactedThinking):
            return self._turn("") + self._turn("hidden") + self._delta({"reasoningContent": _hidden(block)})
        if isinstance(block, Audio | Image):
            return self._turn("text") + self._delta({"text": describe_medium(block)})
        return b""

    def _turn(self, kind: str) -> bytes:
        """Close the open block and begin one of another type. Only a call has a start event."""
        if kind == self._open and kind != "call":
            return b""
        ended = _event("contentBlockStop", {"contentBlockIndex": self._index}) if self._open else b""
        self._open = kind
        self._index += bool(kind)
        return ended

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("contentBlockDelta", {"delta": delta, "contentBlockIndex": self._index})


def _event(name: str, payload: dict[str, Any]) -> bytes:
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return encode_message(headers, encode_json(payload))


def _hidden(block: RedactedThinking) -> dict[str, str]:
    return {"redactedContent": block.data}


def _write_body(reply: BodyEncoder, complete: MessageComplete) -> bytes:
    message = {"role": "assistant", "content": [each for block in complete.final_content for each in _write(block)]}
    body = {
        "output": {"message": message},
        "stopReason": reply.finish_word(complete, FINISH),
        "usage": _write_usage(complete.usage),
        "metrics": {"latencyMs": 0},
    }
    return encode_json(body)


def _write(block: AssistantBlock) -> list[dict[str, Any]]:
    if isinstance(block, Text):
        state = block.continuity
        cited = state.opaque.get("citations") if state is not None and isinstance(state.opaque, dict) else None
        if cited and state is not None and state.issuer is not None and state.issuer.wire == "bedrock":
            return [{"citationsContent": {"content": [{"text": block.text}], "citations": cited}}]
        return [{"text": block.text}]
    if isinstance(block, ToolCall):
        return [{"toolUse": {"toolUseId": block.id, "name": block.name, "input": block.arguments}}]
    if isinstance(block, Thinking):
        state = block.continuity
        signed = {}
        if state is not None and state.signature:
            signed["signature"] = seal(state.signature, state.issuer, "bedrock")
        return [{"reasoningContent": {"reasoningText": {"text": block.text, **signed}}}]
    if isinstance(block, RedactedThinking):
        return [{"reasoningContent": _hidden(block)}]
    return [{"text": describe_medium(block)}] if isinstance(block, Audio | Image) else []


def _write_usage(usage: Usage) -> dict[str, Any]:
    """Write usage. Counts do not overlap on this wire: cached tokens are not part of the input count."""
    asked = usage.input_tokens
    if asked is not None:
        asked = max(0, asked - (usage.cached_input_tokens or 0) - (usage.cache_creation_input_tokens or 0))
    return known(
        inputTokens=asked,
        outputTokens=usage.output_tokens,
        totalTokens=total_tokens(usage),
        cacheReadInputTokens=usage.cached_input_tokens,
        cacheWriteInputTokens=usage.cache_creation_input_tokens,
    )


def _hides_call(complete: MessageComplete) -> bool:
    return has_unreadable_call(complete.final_content)


# --- errors ---------------------------------------------------------------------------------------

_INVALID = "ValidationException"
# The name of the exception, and a prefix of the message for clients that match it.
_ERRORS: dict[type[ProviderError], tuple[str, str]] = {
    AuthenticationError: ("AccessDeniedException", ""),
    BillingError: ("AccessDeniedException", ""),
    InvalidModelError: ("ResourceNotFoundException", ""),
    ModelNotLoadedError: ("ModelNotReadyException", ""),
    QuotaExceededError: ("ServiceQuotaExceededException", ""),
    RateLimitError: ("ThrottlingException", ""),
    TimedOutError: ("ModelTimeoutException", ""),
    OverloadedError: ("ServiceUnavailableException", "overloaded: "),
    ContextOverflowError: (_INVALID, "Input is too long: "),
    UnsupportedContentError: (_INVALID, "This model doesn't support the content block: "),
    UnsupportedFeatureError: (_INVALID, "This model doesn't support it: "),
    InvalidRequestError: (_INVALID, ""),
    ProviderError: ("InternalServerException", ""),
}
