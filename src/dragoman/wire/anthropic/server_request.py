"""Decode requests of the Messages wire.

A user turn contains tool results and text; in Dragoman each result is a separate message. Opaque
blocks are kept unchanged, for an endpoint of this wire.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from ... import messages as m
from ...errors import UnsupportedContentError, UnsupportedFeatureError, quote
from ..fields import make_user, open_body, read_body, split_results
from ..losses import ClientRecord, Losses, OfferedTool
from ..rules import CACHE, HELD_CACHE, HINT, READ, FieldRule, FieldTable, hint, mapped, refused
from ..seal import Carried, deliver, read_hidden, read_opaque, read_thought
from ..server import Asked, gather
from ..settings import read_settings
from . import betas
from .reply import extras_of
from .request import SETTINGS

_ISSUER = m.Issuer("anthropic")
_CHOICES: dict[str, m.ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}
TABLE = FieldTable(
    {
        **dict.fromkeys(
            ("model", "messages", "system", "stream", "tools", "tool_choice", "thinking"), READ
        ),
        **dict.fromkeys(("output_config", "output_format", "metadata", *SETTINGS.values()), READ),
        "top_k": mapped("top_k"),
        "service_tier": hint("which capacity serves a request is the endpoint's setting", "auto"),
        "cache_control": HELD_CACHE,
        "betas": hint(f"they are read from the header {betas.HEADER}", always=True),
        "context_management": hint(
            "nothing is removed from the conversation", {"edits": []}, betas=betas.COMPACTION
        ),
        "compaction": hint("nothing is removed from the conversation", betas=betas.COMPACTION),
        "inference_geo": hint("where a model runs is the endpoint's setting", opt_in=betas.GEO),
        "speed": hint(
            "how fast a model answers is the endpoint's setting",
            "standard",
            betas=betas.FAST,
            opt_in=betas.SPEED,
        ),
        "diagnostics": HINT,
        "fallbacks": hint("which model answers is decided here", betas=betas.FALLBACKS),
        "container": refused("run code with a tool of your own, or ask a model of the same wire"),
        "mcp_servers": refused(
            "connect to the servers in your program, or ask a model of the same wire",
            betas=betas.MCP,
        ),
    },
    ("messages", "system"),
    {"reasoning": "thinking", "json_mode": "output_config.format", "user": "metadata.user_id"},
)
_SEARCH = hint("every tool is offered at once", False, betas=betas.TOOL_USE, released=True)
_TOOL = {
    "eager_input_streaming": hint(
        "arguments are sent as they arrive", False, betas=betas.STREAMED_INPUT, released=True
    ),
    "defer_loading": replace(_SEARCH, held=True),
    "input_examples": hint(
        "the model's wire has no examples of a tool's input", betas=betas.TOOL_USE, released=True
    ),
    "allowed_callers": hint(
        "the model calls every tool directly", ["direct"], betas=betas.TOOL_USE, released=True
    ),
}
_SERVER_TOOL = refused("offer tools of your own, or ask a model of the same wire")
_BLOCK = refused("send text, images, documents and results of tools")
_AS_TEXT = FieldRule("mapped", "it is sent as text")
_FILE = refused("send the file's content", betas=betas.FILES)
_TASK_BUDGET = hint("the model is not told a budget", betas=betas.TASK_BUDGETS)
_BINDING = hint("it does not change what the answer means", betas=betas.THINKING_BINDING)
_SCOPE = hint("each endpoint keeps its own cache", betas=("prompt-caching-scope-*",))


class _Record(ClientRecord):
    """Read a message, a block or a tool."""

    rules: ClassVar = {
        "cache_control": CACHE,
        "citations": hint("the answer comes without citations", {"enabled": False}),
        "context": HINT,
    }

    def mark(self) -> bool:
        """Return whether a block is marked for the prompt cache."""
        given = self.take("cache_control")
        if not given:
            return False
        is_mark = isinstance(given, dict) and given.get("type") == "ephemeral"
        self.leave("cache_control", HELD_CACHE if is_mark else CACHE)
        if is_mark and "scope" in given:
            self.losses.leave(f"{self.at('cache_control')}.scope", _SCOPE)
        if is_mark and given.get("ttl") == "1h":
            self.losses.ttl = "1h"
        return is_mark

    def drop_mark(self) -> None:
        """Record that a mark for the prompt cache is dropped: the block has no field for it."""
        if self.take("cache_control"):
            self.leave("cache_control", CACHE)


def read_request(body: bytes | dict[str, Any], path: str) -> Asked:
    """Decode the body of a request.

    ``max_tokens`` is optional if the client asks only for a token count.
    """
    fields = open_body(read_body(body), TABLE, _Record)
    if "thread" in fields:
        error = UnsupportedFeatureError(
            "thread: conversations are not kept here; send all messages"
        )
        error.provider_code = "thread_unsupported_request"  # the code that the SDKs expect
        raise error
    model = fields.need_text("model")
    if fields.whole("max_tokens") is None and not path.endswith("/count_tokens"):
        fields.refuse("max_tokens", "is required")
    stream = fields.flag("stream") or False
    system = _read_system(fields)
    talk = _read_turns(fields.inners("messages", required=True))
    messages = [*system, *talk]
    tools = _read_tools(fields)
    choice = _read_choice(fields)
    schema = _read_output(fields)
    _read_metadata(fields)
    config = m.RuntimeConfig(**read_settings(fields, SETTINGS), cache=_read_cache(fields))
    request = m.Request(
        messages,
        tools=tools,
        config=config,
        response_schema=schema,
        tool_choice=choice,
        model=model,
        stream=stream,
    )
    return gather(request, fields.losses)


# --- reading settings of clients ---------------------------------------------------------------


def _read_cache(fields: _Record) -> m.PromptCache | None:
    """Return the cache setting.

    A cache mark at the root of the body means ``auto``; marks on blocks are read with the blocks.
    """
    auto = fields.data.get("cache_control")
    ttl = fields.losses.ttl
    if isinstance(auto, dict) and auto.get("type") == "ephemeral":
        return m.PromptCache(True, "1h" if auto.get("ttl") == "1h" else ttl)
    return m.PromptCache(False, ttl) if ttl else None


def _read_output(fields: _Record) -> dict[str, Any] | None:
    """Return the response schema, and read the fields for reasoning."""
    output = fields.inner("output_config") or fields.enter("output_config", {})
    schema = None
    form = output.inner("format")
    older = fields.inner("output_format")
    if form is not None and older is not None:
        fields.refuse("output_format", "is the older name of output_config.format; send one")
    if (form := form or older) is not None:
        if form.need_text("type") != "json_schema":
            form.refuse("type", "must be json_schema")
        schema = form.schema("schema", required=True)
        form.done()
    _read_reasoning(fields.inner("thinking"), output.take("effort"), fields.losses)
    output.done({"task_budget": _TASK_BUDGET})
    return schema


def _read_reasoning(thinking: _Record | None, effort: Any, losses: Losses) -> None:
    """Record the reasoning setting: a token budget, an effort, or adaptive thinking."""
    own: dict[str, Any] = {}
    kind = budget = None
    if thinking is not None:
        own["thinking"] = {**thinking.data}
        if own["thinking"].pop("block_binding", None) is not None:
            thinking.leave("block_binding", _BINDING)
        kind = thinking.need_text("type")
        budget = thinking.whole("budget_tokens")
    if effort is not None:
        own["output_config"] = {"effort": effort}
        if effort in m.EFFORTS:
            is_exact = kind in (None, "adaptive")
            wanted = "none" if kind == "disabled" else effort
            losses.add_concept("reasoning", wanted, own, extra={} if is_exact else own)
            return
        losses.leave("output_config.effort")
    elif kind == "adaptive":
        # The effort is "high" unless the request sets one, and Claude 4.6 to 4.8 do not think
        # without the field (docs: effort; anthropics/claude-code#79798; seen 2026-11-18).
        losses.add_concept("reasoning", "high", own, extra=own)
        return
    elif kind == "disabled":
        losses.add_concept("reasoning", "none", own, extra={})
        return
    elif thinking is not None:
        if kind == "enabled" and budget is not None:
            losses.add_concept("reasoning", budget, own, extra=own if thinking.rest() else {})
            return
        losses.leave("thinking")
    losses.own |= own


def _read_metadata(fields: _Record) -> None:
    metadata = fields.take("metadata")
    if not isinstance(metadata, dict):
        return
    inner = fields.enter("metadata", metadata)
    if (user := inner.take("user_id")) is not None:
        fields.losses.add_concept("user", user, {"metadata": {"user_id": user}})
    inner.done()


def _read_tools(fields: _Record) -> list[m.Tool]:
    """Return the client's tools, and record the server's tools."""
    tools: list[m.Tool] = []
    for record in fields.inners("tools"):
        kind = record.take("type") or "custom"
        if kind != "custom":
            tool = OfferedTool(str(kind), record.data, dict(record.data))
            needed = [
                each for start, each in betas.TOOL_TYPES.items() if tool.kind.startswith(start)
            ]
            rule = replace(_SERVER_TOOL, betas=needed[0]) if needed else _SERVER_TOOL
            rule = _SEARCH if tool.is_search else rule
            fields.losses.leave(record.where, rule, "server_tool_dropped", tool)
            continue
        name = record.need_text("name")
        described = record.text("description") or ""
        schema = record.schema("input_schema", required=True)
        strict = record.flag("strict")
        record.drop_mark()
        record.done(_TOOL)
        deferred = record.data.get("defer_loading") is True
        tools.append(
            m.Tool(name, described, parameters=schema or {}, strict=strict, deferred=deferred)
        )
    return tools


def _read_choice(fields: _Record) -> m.ToolChoice | None:
    record = fields.inner("tool_choice")
    if record is None:
        return None
    kind = record.need_text("type")
    if record.take("disable_parallel_tool_use") is True and kind != "none":
        own = {"tool_choice": {"disable_parallel_tool_use": True}}
        fields.losses.add_concept("parallel_tool_calls", False, own, extra=None)
    choice = m.ForceTool(record.need_text("name")) if kind == "tool" else _CHOICES.get(kind)
    record.done()
    if choice is None:
        record.refuse("type", "must be auto, any, tool or none")
    return choice


# --- reading the conversation of clients -------------------------------------------------------


def _read_system(fields: _Record) -> list[m.System]:
    if "system" not in fields:
        return []
    problem = "must be a string or a list of text blocks"
    return _read_instructions(fields.text_or_parts("system", problem))


def _read_instructions(content: str | Sequence[_Record]) -> list[m.System]:
    if isinstance(content, str):
        return [m.System(content)] if content else []
    messages = []
    for record in content:
        if record.need_text("type") != "text":
            record.refuse("type", "must be text")
        mark = record.mark()
        messages.append(m.System(record.need_text("text"), mark))
        record.done()
    return [message for message in messages if message.content]


def _read_turns(turns: Sequence[_Record]) -> list[m.Message]:
    messages: list[m.Message] = []
    for turn in turns:
        role = turn.need_text("role")
        content = turn.text_or_parts("content", "must be a string or a list of blocks")
        turn.done()
        if role == "user":
            messages += _read_user(content)
        elif role == "assistant":
            blocks = (
                content
                if isinstance(content, str)
                else deliver([_read_assistant_block(each) for each in content])
            )
            messages.append(m.Assistant(blocks))
        elif role == "system":
            messages += _read_instructions(content)
        else:
            turn.refuse("role", "must be user or assistant")
    return messages


def _read_user(content: str | Sequence[_Record]) -> list[m.Message]:
    if isinstance(content, str):
        return [m.User(content)]
    return split_results(
        content, lambda each: each.data.get("type") == "tool_result", _read_result, _read_block
    )


def _read_result(record: _Record) -> m.ToolResult:
    record.take("type")
    call_id = record.need_text("tool_use_id")
    content = record.take("content")
    failed = record.flag("is_error") or False
    mark = record.mark()
    record.done()
    if content is None:
        return m.ToolResult(call_id, (), is_error=failed, cache=mark)
    blocks = record.text_or_parts("content", "must be a string or a list of blocks")
    if isinstance(blocks, str):
        return m.ToolResult(call_id, blocks, is_error=failed, cache=mark)
    inner = make_user([_read_block(inner) for inner in blocks])
    return m.ToolResult(call_id, inner.content, is_error=failed, cache=mark or inner.cache)


def _read_block(record: _Record) -> m.UserBlock:
    kind = record.need_text("type")
    mark = record.mark()
    if kind == "text":
        block: m.UserBlock = m.Text(record.need_text("text"), cache=mark)
    elif kind == "image":
        source, media_type = _read_source(record.need_inner("source"))
        block = m.Image(source, media_type, cache=mark)
    elif kind == "document":
        block = _read_document(record, mark)
    elif kind == "search_result":
        return m.Text(_read_search_result(record), cache=mark)
    elif kind == "tool_reference":
        record.losses.leave(record.where, _AS_TEXT, "tool_reference_rewritten")
        return m.Text(record.need_text("tool_name"), cache=mark)
    else:
        rule = _FILE if kind == "container_upload" else _BLOCK
        return replace(record.leave_part(rule), cache=mark)
    record.done()
    return block


def _read_document(record: _Record, mark: bool) -> m.Document | m.Text:
    """Return a document; one that consists of text blocks becomes a single text."""
    source = record.need_inner("source")
    title = record.text("title")
    kind = source.data.get("type")
    if kind == "content":
        joined = FieldRule("mapped", "its blocks are sent as one text")
        source.losses.leave(source.where, joined, "document_joined")
        data = "\n\n".join(_read_texts(source)).encode("utf-8")
        return m.Document(m.Inline(base64.b64encode(data).decode()), "text/plain", title, mark)
    if kind == "file":
        record.losses.leave(record.where, _FILE, "content_dropped")
        return m.Text("[a file]", cache=mark)
    found, media_type = _read_source(source)
    return m.Document(found, media_type or "application/pdf", title, mark)


def _read_search_result(record: _Record) -> str:
    record.losses.leave(record.where, _AS_TEXT, "search_result_rewritten")
    head = f"{record.data.get('title')} ({record.data.get('source')})"
    return "\n".join([head, *_read_texts(record)])


def _read_texts(record: _Record) -> list[str]:
    """Return the texts of a field ``content``, which is a string or a list of blocks."""
    content = record.data.get("content")
    if isinstance(content, str):
        return [content]
    blocks = content if isinstance(content, list) else ()
    texts = [block.get("text") for block in blocks if isinstance(block, dict)]
    return [text for text in texts if isinstance(text, str)]


def _read_source(source: _Record) -> tuple[m.Url | m.Inline, str | None]:
    kind = source.need_text("type")
    found: tuple[m.Url | m.Inline, str | None]
    if kind == "base64":
        found = m.Inline(source.need_text("data")), source.need_text("media_type")
    elif kind == "url":
        found = m.Url(source.need_text("url")), None
    elif kind == "text":
        data = source.need_text("data").encode("utf-8")
        found = (
            m.Inline(base64.b64encode(data).decode()),
            source.text("media_type") or "text/plain",
        )
    else:
        raise UnsupportedContentError(
            f"{source.at('type')}: a source of type {quote(kind)} is not supported"
        )
    source.done()
    return found


def _read_assistant_block(record: _Record) -> m.AssistantBlock | Carried:
    kind = record.need_text("type")
    if kind == "text":
        mark = record.mark()
        return m.Text(record.need_text("text"), _read_state(record), mark)
    record.drop_mark()
    if kind == "thinking":
        text = record.need_text("thinking")
        signature = record.text("signature")
        return read_thought(text, signature, "anthropic", extras_of(record.rest()) or None)
    if kind == "redacted_thinking":
        data = record.need_text("data")
        record.done()
        return read_hidden(data, "anthropic")
    if kind == "tool_use":
        call_id = record.need_text("id")
        name = record.need_text("name")
        if not isinstance(arguments := record.take("input"), dict):
            record.refuse("input", "must be an object")
        return m.ToolCall(call_id, name, arguments, _read_state(record))
    if kind == "opaque" and "issuer" in record:
        return read_opaque(record)
    return m.Opaque({"type": kind, **record.rest()}, m.Continuity(issuer=_ISSUER))


def _read_state(record: _Record) -> m.Continuity | None:
    """Return the opaque state of a text or a call, such as citations."""
    extras = extras_of(record.rest())
    return m.Continuity(None, extras, _ISSUER) if extras else None
