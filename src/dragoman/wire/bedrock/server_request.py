"""Decode requests of Converse.

In Converse, a cache point is a separate block after the block that it marks. In Dragoman, the mark
is a field of the block. In Converse, a user turn contains tool results and other blocks. In
Dragoman, each result is a separate message.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

from ... import messages as m
from ...errors import InvalidRequestError, UnsupportedContentError, quote
from ..fields import open_body, read_body
from ..losses import CACHE, HELD_CACHE, FieldTable, Record, Rule
from ..seal import unseal
from ..server import Asked, encode_json, gather
from ..settings import read_settings
from .request import AUDIO, DOCUMENTS, IMAGES, SERVER_TOOLS, SETTINGS

_ISSUER = m.Issuer("bedrock")
TABLE = FieldTable(
    dict.fromkeys(
        ("modelId", "messages", "system", "toolConfig", "inferenceConfig"), Rule("read")
    ),
    ("messages", "system"),
    {ours: f"inferenceConfig.{theirs}" for ours, theirs in SETTINGS.items()},
)


def read_request(body: bytes | dict[str, Any], path: str) -> Asked:
    """Decode a request. The model and the mode are in the URL path."""
    head, found, mode = path.rpartition("/converse")
    model = head.partition("/model/")[2]
    if not found or not model or mode not in ("", "-stream"):
        raise InvalidRequestError(
            "the path must be /model/MODEL/converse or /model/MODEL/converse-stream"
        )
    fields = open_body(read_body(body).data, TABLE, Record)
    # SDKs also send the model id in the body, but the model in the path is used.
    fields.take("modelId")
    system = [m.System(each.need_text("text"), mark) for each, mark in _split(fields, "system")]
    messages = [
        each for turn in fields.inners("messages", required=True) for each in _read_turn(turn)
    ]
    tools, offered, choice = _read_tools(fields)
    inner = fields.inner("inferenceConfig") or fields.enter("inferenceConfig", {})
    ttl = fields.losses.ttl
    config = m.RuntimeConfig(
        **read_settings(inner, SETTINGS), cache=m.PromptCache(auto=False, ttl=ttl) if ttl else None
    )
    inner.done()
    request = m.Request(
        [*system, *messages], tools, config, None, choice, unquote(model), stream=bool(mode),
        server_tools=offered
    )  # fmt: skip
    return gather(request, fields.losses)


def _split(holder: Record, name: str, *, required: bool = False) -> list[tuple[Record, bool]]:
    """Return each block, paired with whether a cache point follows it."""
    found: list[tuple[Record, bool]] = []
    for record in holder.inners(name, required=required):
        if "cachePoint" not in record:
            found.append((record, False))
            continue
        point = record.need_inner("cachePoint")
        point.take("type")
        if point.text("ttl") == "1h":
            holder.losses.ttl = "1h"
        point.done()
        if found:
            found[-1] = (found[-1][0], True)
            holder.losses.leave(record.where, HELD_CACHE, "cache_point_dropped")
        else:
            _drop_mark(record)
    return found


def _drop_mark(record: Record) -> None:
    """Record that a prompt-cache mark was dropped, because the message has no field for it."""
    record.losses.leave(record.where, CACHE, "cache_point_dropped")


# --- reading tools of clients ------------------------------------------------------------------


_Tools: TypeAlias = tuple[tuple[m.Tool, ...], tuple[m.ServerTool, ...], m.ToolChoice | None]


def _read_tools(fields: Record) -> _Tools:
    """Return the client's tools, the service's tools, and the tool choice."""
    inner = fields.inner("toolConfig")
    if inner is None:
        return (), (), None
    found, theirs = [], []
    for record, mark in _split(inner, "tools"):
        if mark:
            _drop_mark(record)
        if "systemTool" in record:
            theirs.append(_read_server_tool(record.need_inner("systemTool")))
            continue
        spec = record.need_inner("toolSpec")
        schema = spec.need_inner("inputSchema").take("json")
        found.append(
            m.Tool(
                spec.need_text("name"), spec.text("description") or "", schema, spec.flag("strict")
            )
        )
        spec.done()
    choice = inner.inner("toolChoice")
    inner.done()
    return tuple(found), tuple(theirs), _read_choice(choice)


def _read_server_tool(record: Record) -> m.ServerTool:
    name = record.need_text("name")
    portable = next(
        (known for known, fields in SERVER_TOOLS.items() if fields["name"] == name), name
    )
    return m.ServerTool(portable, record.rest())


def _read_choice(choice: Record | None) -> m.ToolChoice | None:
    if choice is None:
        return None
    if "tool" in choice:
        return m.ForceTool(choice.need_inner("tool").need_text("name"))
    return "required" if "any" in choice else "auto"


# --- reading the conversation of clients -------------------------------------------------------


def _read_turn(fields: Record) -> list[m.Message]:
    role = fields.choice("role", ("user", "assistant"))
    blocks = _split(fields, "content", required=True)
    fields.done()
    if role == "assistant":
        return [m.Assistant([_read_spoken(block, mark=mark) for block, mark in blocks])]
    messages: list[m.Message] = []
    said: list[m.UserBlock] = []
    for block, mark in blocks:
        if "toolResult" not in block:
            said.append(_read_block(block, mark=mark))
            continue
        messages += [m.User(said)] if said else []
        said = []
        messages.append(_read_result(block.need_inner("toolResult"), mark=mark))
    return [*messages, m.User(said)] if said else messages


def _read_result(fields: Record, *, mark: bool) -> m.ToolResult:
    content = [_read_block(block) for block in fields.inners("content")]
    failed = fields.choice("status", ("success", "error")) == "error"
    call_id = fields.need_text("toolUseId")
    fields.take("type")
    fields.done()
    return m.ToolResult(call_id, content, failed, mark)


def _read_block(fields: Record, *, mark: bool = False) -> m.UserBlock:
    if "text" in fields:
        return m.Text(fields.need_text("text"), cache=mark)
    if "json" in fields:
        return m.Text(encode_json(fields.take("json")).decode(), cache=mark)
    kind = next(iter(fields.data), "")
    if kind not in ("image", "audio", "document"):
        raise UnsupportedContentError(
            f"{fields.where}: content of type {quote(kind)} is not supported"
        )
    inner = fields.need_inner(kind)
    if kind == "audio":
        if mark:
            _drop_mark(fields)
        return m.Audio(_read_source(inner), _kind_of(inner, AUDIO))
    if kind == "image":
        return m.Image(_read_source(inner), _kind_of(inner, IMAGES), cache=mark)
    for name in ("citations", "context"):
        if name in inner:
            inner.leave(name, Rule("hint", "our documents have no field for it"))
    return m.Document(_read_source(inner), _kind_of(inner, DOCUMENTS), inner.text("name"), mark)


def _read_source(fields: Record) -> m.Inline | m.Url:
    source = fields.need_inner("source")
    if "s3Location" in source:
        return m.Url(source.need_inner("s3Location").need_text("uri"))
    if "text" in source:
        return m.Inline(base64.b64encode(source.need_text("text").encode("utf-8")).decode())
    if "content" in source:
        raise UnsupportedContentError(
            f"{source.at('content')}: a document of several parts is not supported"
        )
    return m.Inline(source.need_text("bytes"))


def _kind_of(fields: Record, kinds: Mapping[str, str]) -> str:
    word = fields.choice("format", tuple(dict.fromkeys(kinds.values())))
    if word is None and "text" in (fields.inner("source") or ()):
        word = "txt"
    return next(
        kind for kind, format_word in kinds.items() if format_word == (word or format_word)
    )


def _read_spoken(fields: Record, *, mark: bool) -> m.AssistantBlock:
    if mark and not ("text" in fields or "citationsContent" in fields):
        _drop_mark(fields)
    if "text" in fields:
        return m.Text(fields.need_text("text"), cache=mark)
    if "reasoningContent" in fields:
        return _read_thinking(fields.need_inner("reasoningContent"))
    if "citationsContent" in fields:
        inner = fields.need_inner("citationsContent")
        said = "".join([part.need_text("text") for part in inner.inners("content")])
        return m.Text(
            said, m.Continuity(None, {"citations": inner.take("citations")}, _ISSUER), mark
        )
    if "toolUse" in fields:
        inner = fields.need_inner("toolUse")
        if inner.text("type") != "server_tool_use":
            return m.ToolCall(
                inner.need_text("toolUseId"), inner.need_text("name"), inner.take("input") or {}
            )
    kind = next(iter(fields.data), "")
    return m.Opaque({"type": kind, kind: fields.take(kind)}, m.Continuity(issuer=_ISSUER))


def _read_thinking(inner: Record) -> m.Thinking | m.RedactedThinking:
    if "redactedContent" in inner:
        return m.RedactedThinking(inner.need_text("redactedContent"), m.Continuity(issuer=_ISSUER))
    text = inner.need_inner("reasoningText")
    signature = text.text("signature")
    made, issuer = unseal(signature, "bedrock") if signature else (None, _ISSUER)
    return m.Thinking(text.text("text") or "", m.Continuity(made, issuer=issuer) if made else None)
