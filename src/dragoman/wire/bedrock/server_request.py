"""Decode requests of Converse.

In Converse, a cache point is a separate block after the block that it marks. In Dragoman, the mark
is a field of the block. In Converse, a user turn contains tool results and other blocks. In
Dragoman, each result is a separate message.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

from ...errors import InvalidRequestError, UnsupportedContentError, quote
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
    Opaque,
    PromptCache,
    RedactedThinking,
    Request,
    RuntimeConfig,
    ServerTool,
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
from ..fields import Losses, read_body, read_stops
from ..seal import unseal
from ..server import Asked, encode_json
from .request import AUDIO, DOCUMENTS, IMAGES, SERVER_TOOLS

_ISSUER = Issuer("bedrock")
_WHY = "a mark for the prompt cache is kept for texts, media, results and the system prompt"


def read_request(body: bytes | dict[str, Any], path: str) -> Asked:
    """Decode a request. The model and the mode are in the URL path."""
    head, found, mode = path.rpartition("/converse")
    model = head.partition("/model/")[2]
    if not found or not model or mode not in ("", "-stream"):
        raise InvalidRequestError(
            "the path must be /model/MODEL/converse or /model/MODEL/converse-stream"
        )
    fields, losses = read_body(body), _Losses()
    # SDKs also send the model id in the body, but the model in the path is used.
    fields.take("modelId")
    system = [
        System(each.need_text("text"), mark) for each, mark in losses.split(fields, "system")
    ]
    messages = [
        each
        for turn in fields.inners("messages", required=True)
        for each in _read_turn(turn, losses)
    ]
    tools, theirs, choice = _read_tools(fields, losses)
    inner = fields.inner("inferenceConfig") or Fields({}, "inferenceConfig")
    config = RuntimeConfig(
        inner.number("temperature"),
        inner.whole("maxTokens"),
        inner.number("topP"),
        stop_sequences=read_stops(inner, "stopSequences"),
        cache=PromptCache(auto=False, ttl=losses.ttl) if losses.ttl else None,
        extras=fields.rest(),
    )
    inner.done()
    asked = Request(
        [*system, *messages], tools, config, None, choice, unquote(model), stream=bool(mode),
        server_tools=theirs
    )  # fmt: skip
    return Asked(asked, losses.warnings)


class _Losses(Losses):
    """Collect warnings for dropped fields, and the retention time that cache marks request."""

    ttl: Literal["1h"] | None = None

    def split(
        self, holder: Fields, name: str, *, required: bool = False
    ) -> list[tuple[Fields, bool]]:
        """Return each block, paired with whether a cache point follows it."""
        found: list[tuple[Fields, bool]] = []
        for record in holder.inners(name, required=required):
            if "cachePoint" not in record:
                found.append((record, False))
                continue
            point = record.need_inner("cachePoint")
            point.take("type")
            self.ttl = "1h" if point.text("ttl") == "1h" else self.ttl
            point.done()
            if found:
                found[-1] = (found[-1][0], True)
            else:
                self.drop_mark(record)
        return found

    def drop_mark(self, record: Fields) -> None:
        """Record that a prompt-cache mark was dropped, because the message has no field for it."""
        self.drop(record.where, "cache_point_dropped", _WHY)


# --- reading tools of clients ------------------------------------------------------------------


_Tools: TypeAlias = tuple[tuple[Tool, ...], tuple[ServerTool, ...], ToolChoice | None]


def _read_tools(fields: Fields, losses: _Losses) -> _Tools:
    """Return the client's tools, the service's tools, and the tool choice."""
    inner = fields.inner("toolConfig")
    if inner is None:
        return (), (), None
    found, theirs = [], []
    for record, mark in losses.split(inner, "tools"):
        if mark:
            losses.drop_mark(record)
        if "systemTool" in record:
            theirs.append(_read_server_tool(record.need_inner("systemTool")))
            continue
        spec = record.need_inner("toolSpec")
        schema = spec.need_inner("inputSchema").take("json")
        found.append(
            Tool(
                spec.need_text("name"), spec.text("description") or "", schema, spec.flag("strict")
            )
        )
        spec.done()
    choice = inner.inner("toolChoice")
    inner.done()
    return tuple(found), tuple(theirs), _read_choice(choice)


def _read_server_tool(record: Fields) -> ServerTool:
    name = record.need_text("name")
    portable = next(
        (known for known, fields in SERVER_TOOLS.items() if fields["name"] == name), name
    )
    return ServerTool(portable, record.rest())


def _read_choice(choice: Fields | None) -> ToolChoice | None:
    if choice is None:
        return None
    if "tool" in choice:
        return ForceTool(choice.need_inner("tool").need_text("name"))
    return "required" if "any" in choice else "auto"


# --- reading the conversation of clients -------------------------------------------------------


def _read_turn(fields: Fields, losses: _Losses) -> list[Message]:
    role = fields.choice("role", ("user", "assistant"))
    blocks = losses.split(fields, "content", required=True)
    fields.done()
    if role == "assistant":
        return [Assistant([_read_spoken(block, losses, mark=mark) for block, mark in blocks])]
    messages: list[Message] = []
    said: list[UserBlock] = []
    for block, mark in blocks:
        if "toolResult" not in block:
            said.append(_read_block(block, losses, mark=mark))
            continue
        messages += [User(said)] if said else []
        said = []
        messages.append(_read_result(block.need_inner("toolResult"), losses, mark=mark))
    return [*messages, User(said)] if said else messages


def _read_result(fields: Fields, losses: _Losses, *, mark: bool) -> ToolResult:
    content = [_read_block(block, losses) for block in fields.inners("content")]
    failed = fields.choice("status", ("success", "error")) == "error"
    call_id = fields.need_text("toolUseId")
    fields.take("type")
    fields.done()
    return ToolResult(call_id, content, failed, mark)


def _read_block(fields: Fields, losses: _Losses, *, mark: bool = False) -> UserBlock:
    if "text" in fields:
        return Text(fields.need_text("text"), cache=mark)
    if "json" in fields:
        return Text(encode_json(fields.take("json")).decode(), cache=mark)
    kind = next(iter(fields.data), "")
    if kind not in ("image", "audio", "document"):
        raise UnsupportedContentError(
            f"{fields.where}: content of type {quote(kind)} is not supported"
        )
    inner = fields.need_inner(kind)
    if kind == "audio":
        if mark:
            losses.drop_mark(fields)
        return Audio(_read_source(inner), _kind_of(inner, AUDIO))
    if kind == "image":
        return Image(_read_source(inner), _kind_of(inner, IMAGES), cache=mark)
    if "citations" in inner or "context" in inner:
        losses.drop_fields(inner, ("citations", "context"), "our documents have no field for it")
    return Document(_read_source(inner), _kind_of(inner, DOCUMENTS), inner.text("name"), mark)


def _read_source(fields: Fields) -> Inline | Url:
    source = fields.need_inner("source")
    if "s3Location" in source:
        return Url(source.need_inner("s3Location").need_text("uri"))
    if "text" in source:
        return Inline(base64.b64encode(source.need_text("text").encode("utf-8")).decode())
    if "content" in source:
        raise UnsupportedContentError(
            f"{source.at('content')}: a document of several parts is not supported"
        )
    return Inline(source.need_text("bytes"))


def _kind_of(fields: Fields, kinds: Mapping[str, str]) -> str:
    word = fields.choice("format", tuple(dict.fromkeys(kinds.values())))
    if word is None and "text" in (fields.inner("source") or ()):
        word = "txt"
    return next(
        kind for kind, format_word in kinds.items() if format_word == (word or format_word)
    )


def _read_spoken(fields: Fields, losses: _Losses, *, mark: bool) -> AssistantBlock:
    if mark and not ("text" in fields or "citationsContent" in fields):
        losses.drop_mark(fields)
    if "text" in fields:
        return Text(fields.need_text("text"), cache=mark)
    if "reasoningContent" in fields:
        return _read_thinking(fields.need_inner("reasoningContent"))
    if "citationsContent" in fields:
        inner = fields.need_inner("citationsContent")
        said = "".join([part.need_text("text") for part in inner.inners("content")])
        return Text(said, Continuity(None, {"citations": inner.take("citations")}, _ISSUER), mark)
    if "toolUse" in fields:
        inner = fields.need_inner("toolUse")
        if inner.text("type") != "server_tool_use":
            return ToolCall(
                inner.need_text("toolUseId"), inner.need_text("name"), inner.take("input") or {}
            )
    kind = next(iter(fields.data), "")
    return Opaque({"type": kind, kind: fields.take(kind)}, Continuity(issuer=_ISSUER))


def _read_thinking(inner: Fields) -> Thinking | RedactedThinking:
    if "redactedContent" in inner:
        return RedactedThinking(inner.need_text("redactedContent"), Continuity(issuer=_ISSUER))
    text = inner.need_inner("reasoningText")
    signature = text.text("signature")
    made, issuer = unseal(signature, "bedrock") if signature else (None, _ISSUER)
    return Thinking(text.text("text") or "", Continuity(made, issuer=issuer) if made else None)
