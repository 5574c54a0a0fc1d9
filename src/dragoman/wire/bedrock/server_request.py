"""Decode requests of Converse.

In Converse, a cache point is a separate block after the block that it marks. In Dragoman, the mark
is a field of the block. In Converse, a user turn contains tool results and other blocks. In
Dragoman, each result is a separate message.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote

from ... import messages as m
from ...errors import InvalidRequestError, UnsupportedContentError, quote
from ...events import read_object
from ..fields import open_body, read_body, read_schema
from ..losses import ClientRecord
from ..rules import (
    CACHE,
    HELD_CACHE,
    HINT,
    READ,
    TIER,
    TIER_IS_SET,
    FieldRule,
    FieldTable,
    hint,
    refused,
)
from ..seal import Carried, deliver, read_hidden, read_thought
from ..server import Asked, encode_json, gather
from ..settings import read_settings
from .request import AUDIO, DOCUMENTS, IMAGES, SERVER_TOOLS, SETTINGS

B = TypeVar("B")

_ISSUER = m.Issuer("bedrock")
_MORE = "additionalModelRequestFields"
_READ = ("modelId", "messages", "system", "toolConfig", "inferenceConfig", "outputConfig")
TABLE = FieldTable(
    {
        **dict.fromkeys(_READ, READ),
        _MORE: FieldRule("mapped", "thinking and top_k are translated"),
        "additionalModelResponseFieldPaths": hint("each wire has its own reply"),
        "guardrailConfig": refused("check the texts yourself, or ask a model of this wire"),
        # Optimized latency has rates of its own (docs.aws.amazon.com/bedrock/latest/userguide/
        # latency-optimized-inference.html, aws.amazon.com/bedrock/pricing; seen 2026-11-19).
        "performanceConfig": hint(TIER_IS_SET, opt_in=TIER, cheap=({"latency": "standard"},)),
        "promptVariables": refused("write the text of the prompt into the messages"),
        "requestMetadata": HINT,
        "serviceTier": hint(
            TIER_IS_SET,
            {"type": "default"},
            opt_in=TIER,
            cheap=({"type": "flex"}, {"type": "reserved"}),
        ),
    },
    ("messages", "system"),
    {
        "reasoning": f"{_MORE}.thinking",
        "top_k": f"{_MORE}.top_k",
        **{name: f"inferenceConfig.{field}" for name, field in SETTINGS.items()},
    },
)


def read_request(body: bytes | dict[str, Any], path: str) -> Asked:
    """Decode a request. The model and the mode are in the URL path."""
    head, found, mode = path.rpartition("/converse")
    model = head.partition("/model/")[2]
    if not found or not model or mode not in ("", "-stream"):
        raise InvalidRequestError(
            "the path must be /model/MODEL/converse or /model/MODEL/converse-stream"
        )
    fields = open_body(read_body(body), TABLE, ClientRecord, skip=(_MORE,))
    # SDKs also send the model id in the body, but the model in the path is used.
    fields.take("modelId")
    system = [_whole(_read_system, each, mark=mark) for each, mark in _split(fields, "system")]
    messages = [
        each for turn in fields.inners("messages", required=True) for each in _read_turn(turn)
    ]
    tools, offered, choice = _read_tools(fields)
    inner = fields.inner("inferenceConfig") or fields.enter("inferenceConfig", {})
    ttl = fields.losses.ttl
    schema = _read_output(fields)
    _read_more(fields)
    config = m.RuntimeConfig(
        **read_settings(inner, SETTINGS), cache=m.PromptCache(auto=False, ttl=ttl) if ttl else None
    )
    inner.done()
    request = m.Request(
        [*system, *messages],
        tools=tools,
        config=config,
        response_schema=schema,
        tool_choice=choice,
        model=unquote(model),
        stream=bool(mode),
        server_tools=offered,
    )
    return gather(request, fields.losses)


def _read_output(fields: ClientRecord) -> dict[str, Any] | None:
    """Record the effort, and return the response schema, which is the text of a JSON document."""
    output = fields.inner("outputConfig")
    if output is None:
        return None
    if effort := output.choice("effort", m.EFFORTS):
        fields.losses.add_concept("reasoning", effort, {"outputConfig": {"effort": effort}})
    form = output.inner("textFormat")
    output.done()
    if form is None:
        return None
    form.choice("type", ("json_schema",))
    inner = form.need_inner("structure").need_inner("jsonSchema")
    schema = read_object(inner.need_text("schema"))
    name = inner.text("name")
    inner.done()
    return read_schema(schema, name, inner.at("schema"), fields.losses)


def _read_more(fields: ClientRecord) -> None:
    """Record fields for one model; other wires can express only thinking and ``top_k``."""
    more = fields.inner(_MORE)
    if more is None:
        return
    if (thinking := more.inner("thinking")) is not None:
        kind = thinking.choice("type", ("enabled", "disabled", "adaptive", "between_tools"))
        is_on = kind not in ("disabled", "between_tools")
        amount = (thinking.whole("budget_tokens") or "medium") if is_on else "off"
        fields.losses.add_concept("reasoning", amount, {_MORE: {"thinking": thinking.data}})
    if (top_k := more.whole("top_k")) is not None:
        fields.losses.add_concept("top_k", top_k, {_MORE: {"top_k": top_k}})
    if more.rest():
        fields.leave(_MORE)


def _split(
    holder: ClientRecord, name: str, *, required: bool = False
) -> list[tuple[ClientRecord, bool]]:
    """Return each block, paired with whether a cache point follows it."""
    found: list[tuple[ClientRecord, bool]] = []
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


def _drop_mark(record: ClientRecord) -> None:
    """Record that a prompt-cache mark was dropped, because the message has no field for it."""
    record.losses.leave(record.where, CACHE, "cache_point_dropped")


# --- reading tools of clients ------------------------------------------------------------------


_Tools: TypeAlias = tuple[tuple[m.Tool, ...], tuple[m.ServerTool, ...], m.ToolChoice | None]


def _read_tools(fields: ClientRecord) -> _Tools:
    """Return the client's tools, the service's tools, and the tool choice."""
    inner = fields.inner("toolConfig")
    if inner is None:
        return (), (), None
    found = []
    server_tools = []
    for record, mark in _split(inner, "tools"):
        if mark:
            _drop_mark(record)
        if "systemTool" in record:
            server_tools.append(_read_server_tool(record.need_inner("systemTool")))
            continue
        spec = record.need_inner("toolSpec")
        schema = spec.need_inner("inputSchema").take("json")
        found.append(
            m.Tool(
                spec.need_text("name"),
                spec.text("description") or "",
                parameters=schema,
                strict=spec.flag("strict"),
            )
        )
        spec.done()
    choice = inner.inner("toolChoice")
    inner.done()
    return tuple(found), tuple(server_tools), _read_choice(choice)


def _read_server_tool(record: ClientRecord) -> m.ServerTool:
    name = record.need_text("name")
    portable = next(
        (known for known, fields in SERVER_TOOLS.items() if fields["name"] == name), name
    )
    return m.ServerTool(portable, record.rest())


def _read_choice(choice: ClientRecord | None) -> m.ToolChoice | None:
    if choice is None:
        return None
    if "tool" in choice:
        return m.ForceTool(choice.need_inner("tool").need_text("name"))
    return "required" if "any" in choice else "auto"


# --- reading the conversation of clients -------------------------------------------------------


def _whole(read: Callable[..., B], fields: ClientRecord, *, mark: bool = False) -> B:
    """Return the result of ``read`` for a block; record the fields that it did not read."""
    block = read(fields, mark=mark)
    fields.done()
    return block


def _read_system(fields: ClientRecord, *, mark: bool) -> m.System:
    return m.System(fields.need_text("text"), mark)


def _read_turn(fields: ClientRecord) -> list[m.Message]:
    role = fields.choice("role", ("user", "assistant"))
    records = _split(fields, "content", required=True)
    fields.done()
    if role == "assistant":
        spoken = [_whole(_read_spoken, block, mark=mark) for block, mark in records]
        return [m.Assistant(deliver(spoken))]
    messages: list[m.Message] = []
    blocks: list[m.UserBlock] = []
    for block, mark in records:
        if "toolResult" not in block:
            blocks.append(_whole(_read_block, block, mark=mark))
            continue
        messages += [m.User(blocks)] if blocks else []
        blocks = []
        messages.append(_whole(_read_result, block, mark=mark))
    return [*messages, m.User(blocks)] if blocks else messages


def _read_result(block: ClientRecord, *, mark: bool) -> m.ToolResult:
    fields = block.need_inner("toolResult")
    content: list[m.UserBlock] | str = [
        _whole(_read_block, each) for each in fields.inners("content")
    ]
    # Clients write an empty result so, and the service accepts it
    # (NousResearch/hermes-agent#55092).
    if content == [m.Text("")]:
        content = ""
    failed = fields.choice("status", ("success", "error")) == "error"
    call_id = fields.need_text("toolUseId")
    fields.take("type")
    fields.done()
    return m.ToolResult(call_id, content, is_error=failed, cache=mark)


def _read_block(fields: ClientRecord, *, mark: bool) -> m.UserBlock:
    if "text" in fields:
        return m.Text(fields.need_text("text"), cache=mark)
    if "json" in fields:
        return m.Text(encode_json(fields.take("json")).decode(), cache=mark)
    kind = next(iter(fields.data), "")
    if kind not in _MEDIA:
        raise UnsupportedContentError(
            f"{fields.where}: content of type {quote(kind)} is not supported"
        )
    if kind == "audio" and mark:
        _drop_mark(fields)
    return _whole(_MEDIA[kind], fields.need_inner(kind), mark=mark)


def _read_audio(inner: ClientRecord, *, mark: bool) -> m.Audio:
    return m.Audio(_read_source(inner), _kind_of(inner, AUDIO))


def _read_image(inner: ClientRecord, *, mark: bool) -> m.Image:
    return m.Image(_read_source(inner), _kind_of(inner, IMAGES), cache=mark)


def _read_document(inner: ClientRecord, *, mark: bool) -> m.Document:
    for name in ("citations", "context"):
        if name in inner:
            inner.leave(name, hint("our documents have no field for it"))
    return m.Document(_read_source(inner), _kind_of(inner, DOCUMENTS), inner.text("name"), mark)


_MEDIA: dict[str, Callable[..., m.UserBlock]] = {
    "audio": _read_audio,
    "image": _read_image,
    "document": _read_document,
}


def _read_source(fields: ClientRecord) -> m.Inline | m.Url:
    source = fields.need_inner("source")
    if "s3Location" in source:
        place = source.need_inner("s3Location")
        url = m.Url(place.need_text("uri"))
        place.done()
        return url
    if "text" in source:
        return m.Inline(base64.b64encode(source.need_text("text").encode("utf-8")).decode())
    if "content" in source:
        raise UnsupportedContentError(
            f"{source.at('content')}: a document of several parts is not supported"
        )
    return m.Inline(source.need_text("bytes"))


def _kind_of(fields: ClientRecord, kinds: Mapping[str, str]) -> str:
    word = fields.choice("format", tuple(dict.fromkeys(kinds.values())))
    if word is None and "text" in (fields.inner("source") or ()):
        word = "txt"
    return next(
        kind for kind, format_word in kinds.items() if format_word == (word or format_word)
    )


def _read_spoken(fields: ClientRecord, *, mark: bool) -> m.AssistantBlock | Carried:
    if mark and not ("text" in fields or "citationsContent" in fields):
        _drop_mark(fields)
    if "text" in fields:
        return m.Text(fields.need_text("text"), cache=mark)
    if "reasoningContent" in fields:
        return _read_thinking(fields.need_inner("reasoningContent"))
    if "citationsContent" in fields:
        inner = fields.need_inner("citationsContent")
        text = "".join([part.need_text("text") for part in inner.inners("content")])
        return m.Text(
            text, m.Continuity(None, {"citations": inner.take("citations")}, _ISSUER), mark
        )
    if "toolUse" in fields:
        inner = fields.need_inner("toolUse")
        if inner.text("type") != "server_tool_use":
            return _whole(_read_call, inner)
    kind = next(iter(fields.data), "")
    return m.Opaque({"type": kind, kind: fields.take(kind)}, m.Continuity(issuer=_ISSUER))


def _read_call(fields: ClientRecord, *, mark: bool) -> m.ToolCall:
    arguments = fields.take("input") or {}
    return m.ToolCall(fields.need_text("toolUseId"), fields.need_text("name"), arguments)


def _read_thinking(inner: ClientRecord) -> m.AssistantBlock | Carried:
    if "redactedContent" in inner:
        return read_hidden(inner.need_text("redactedContent"), "bedrock")
    text = inner.need_inner("reasoningText")
    return read_thought(text.text("text") or "", text.text("signature"), "bedrock")
