"""Decode requests of the Messages wire.

A user turn contains tool results and text; in Dragoman each result is a separate message. Opaque
blocks are kept unchanged, for an endpoint of this wire.
"""

from __future__ import annotations

import base64
from typing import Any, Literal

from ...errors import UnsupportedContentError, quote
from ...messages import (
    Assistant,
    AssistantBlock,
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
from ..seal import read_opaque, unseal
from ..server import Asked
from .request import EFFORTS

_ISSUER = Issuer("anthropic")
_WHY = "a mark for the prompt cache is kept for texts, media, results and the system prompt"
_CHOICES: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}


def read_request(body: bytes | dict[str, Any], *, counting: bool = False) -> Asked:
    """Decode the body of a request.

    ``max_tokens`` is optional if the client asks only for a token count.
    """
    fields, losses = read_body(body), _Losses()
    model = fields.need_text("model")
    limit = fields.whole("max_tokens")
    if limit is None and not counting:
        fields.refuse("max_tokens", "is required")
    stream = fields.flag("stream") or False
    messages = [
        *_read_system(fields, losses),
        *_read_turns(fields.inners("messages", required=True), losses),
    ]
    tools = _read_tools(fields, losses)
    choice = _read_choice(fields, losses)
    schema, reasoning = _read_output(fields)
    config = RuntimeConfig(
        fields.number("temperature"),
        limit,
        fields.number("top_p"),
        stop_sequences=read_stops(fields, "stop_sequences"),
        reasoning=reasoning,  # type: ignore[arg-type]
        cache=_read_cache(fields, losses),
        extras=fields.rest(),
    )
    return Asked(
        Request(messages, tools, config, schema, choice, model, stream=stream), losses.warnings
    )


class _Losses(Losses):
    """Collect warnings for dropped fields, and the retention time that cache marks request."""

    ttl: Literal["1h"] | None = None

    def mark(self, record: Fields) -> bool:
        """Return whether a block is marked for the prompt cache."""
        given = record.inner("cache_control")
        if given is None:
            return False
        if given.need_text("type") != "ephemeral":
            given.refuse("type", "must be ephemeral")
        self.ttl = "1h" if given.text("ttl") == "1h" else self.ttl
        given.done()
        return True

    def drop_mark(self, record: Fields) -> None:
        """Record that a prompt-cache mark was dropped, because the message has no field for it."""
        self.drop_fields(record, ("cache_control",), _WHY)


# --- reading settings of clients ---------------------------------------------------------------


def _read_cache(fields: Fields, losses: _Losses) -> PromptCache | None:
    """Return the cache setting.

    A cache mark at the root of the body means ``auto``; marks on blocks are read with the blocks.
    """
    auto = losses.mark(fields)
    return PromptCache(auto, losses.ttl) if auto or losses.ttl else None


def _read_output(fields: Fields) -> tuple[dict[str, Any] | None, str | int | None]:
    """Return the response schema and the reasoning setting; other settings become extras."""
    record = fields.take("output_config")
    output = Fields(record or {}, "output_config")
    schema = None
    if (form := output.inner("format")) is not None:
        if form.need_text("type") != "json_schema":
            form.refuse("type", "must be json_schema")
        schema = form.take("schema")
        if not isinstance(schema, dict):
            form.refuse("schema", "must be a JSON Schema")
        form.done()
    effort = output.text("effort")
    if effort is not None and effort not in EFFORTS:
        output.put("effort", effort)
        effort = None
    if output.rest():
        fields.put("output_config", output.rest())
    return schema, _read_thinking(fields, effort)


def _read_thinking(fields: Fields, effort: str | None) -> str | int | None:
    record = fields.take("thinking")
    if record is None:
        return effort
    thinking = Fields(record, "thinking")
    kind, budget = thinking.need_text("type"), thinking.whole("budget_tokens")
    if not thinking.rest():
        if kind == "adaptive" and effort is not None:
            return effort
        if effort is None and kind == "disabled":
            return "none"
        if effort is None and kind == "enabled" and budget:
            return budget
    fields.put("thinking", record)
    return effort


def _read_tools(fields: Fields, losses: _Losses) -> list[Tool]:
    """Return the client's tools; server-side tools become extras."""
    tools: list[Tool] = []
    theirs: list[Any] = []
    for record in fields.inners("tools"):
        if (record.text("type") or "custom") != "custom":
            theirs.append(record.data)
            continue
        losses.drop_mark(record)
        losses.drop_fields(
            record, ("eager_input_streaming",), "not passed on; arguments are checked instead"
        )
        strict = record.flag("strict")
        name, described, schema = (
            record.need_text("name"),
            record.text("description"),
            record.take("input_schema"),
        )
        if not isinstance(schema, dict):
            record.refuse("input_schema", "must be a JSON Schema")
        record.done()
        tools.append(Tool(name, described or "", schema, strict))
    if theirs:
        fields.put("tools", theirs)
    return tools


def _read_choice(fields: Fields, losses: _Losses) -> ToolChoice | None:
    record = fields.inner("tool_choice")
    if record is None:
        return None
    if record.flag("disable_parallel_tool_use"):
        why = "a limit of one call cannot be asked for here"
        losses.drop("tool_choice.disable_parallel_tool_use", "parallel_limit_dropped", why)
    kind = record.need_text("type")
    choice = ForceTool(record.need_text("name")) if kind == "tool" else _CHOICES.get(kind)
    record.done()
    if choice is None:
        record.refuse("type", "must be auto, any, tool or none")
    return choice


# --- reading the conversation of clients -------------------------------------------------------


def _read_system(fields: Fields, losses: _Losses) -> list[System]:
    system = fields.take("system")
    if isinstance(system, str):
        return [System(system)] if system else []
    if system is None:
        return []
    if not isinstance(system, list):
        fields.refuse("system", "must be a string or a list of text blocks")
    said = []
    for record in fields.inners("system"):
        if record.need_text("type") != "text":
            record.refuse("type", "must be text")
        mark = losses.mark(record)
        said.append(System(record.need_text("text"), mark))
        record.done()
    return [message for message in said if message.content]


def _read_turns(turns: list[Fields], losses: _Losses) -> list[Message]:
    messages: list[Message] = []
    for turn in turns:
        role, content = turn.need_text("role"), turn.take("content")
        turn.done()
        if not isinstance(content, str | list):
            turn.refuse("content", "must be a string or a list of blocks")
        blocks = content if isinstance(content, str) else turn.inners("content")
        if role == "user":
            messages += _read_user(blocks, losses)
        elif role == "assistant":
            messages.append(_read_assistant(blocks, losses))
        else:
            turn.refuse("role", "must be user or assistant")
    return messages


def _read_user(content: str | list[Fields], losses: _Losses) -> list[Message]:
    if isinstance(content, str):
        return [User(content)]
    messages: list[Message] = []
    words: list[UserBlock] = []
    for record in content:
        if record.rest().get("type") != "tool_result":
            words.append(_read_block(record, losses))
            continue
        if words:
            messages.append(_user(words))
            words = []
        messages.append(_read_result(record, losses))
    return [*messages, _user(words)] if words or not messages else messages


def _user(blocks: list[UserBlock]) -> User:
    content = _plain(blocks)
    return User(content, isinstance(content, str) and blocks[0].cache)


def _plain(blocks: list[UserBlock]) -> str | list[UserBlock]:
    """Return the blocks of a message, or a string if the only block is a text.

    Every wire accepts a string.
    """
    only = blocks[0] if len(blocks) == 1 else None
    return only.text if isinstance(only, Text) else blocks


def _read_result(record: Fields, losses: _Losses) -> ToolResult:
    record.take("type")
    call_id, content = record.need_text("tool_use_id"), record.take("content")
    failed, mark = record.flag("is_error") or False, losses.mark(record)
    record.done()
    if content is None or isinstance(content, str):
        return ToolResult(call_id, () if content is None else content, failed, mark)
    if not isinstance(content, list):
        record.refuse("content", "must be a string or a list of blocks")
    blocks = [_read_block(inner, losses) for inner in record.inners("content")]
    content = _plain(blocks)
    return ToolResult(
        call_id, content, failed, mark or (isinstance(content, str) and blocks[0].cache)
    )


def _read_block(record: Fields, losses: _Losses) -> UserBlock:
    kind, mark = record.need_text("type"), losses.mark(record)
    block: UserBlock
    if kind == "text":
        block = Text(record.need_text("text"), cache=mark)
    elif kind == "image":
        source, media_type = _read_source(record)
        block = Image(source, media_type, cache=mark)
    elif kind == "document":
        source, media_type = _read_source(record)
        block = Document(source, media_type or "application/pdf", record.text("title"), mark)
    else:
        raise UnsupportedContentError(
            f"{record.at('type')}: content of type {quote(kind)} is not supported"
        )
    record.done()
    return block


def _read_source(record: Fields) -> tuple[Url | Inline, str | None]:
    source = record.need_inner("source")
    kind = source.need_text("type")
    found: tuple[Url | Inline, str | None]
    if kind == "base64":
        found = Inline(source.need_text("data")), source.need_text("media_type")
    elif kind == "url":
        found = Url(source.need_text("url")), None
    elif kind == "text":
        data = source.need_text("data").encode("utf-8")
        found = Inline(base64.b64encode(data).decode()), source.text("media_type") or "text/plain"
    else:
        raise UnsupportedContentError(
            f"{source.at('type')}: a source of type {quote(kind)} is not supported"
        )
    source.done()
    return found


def _read_assistant(content: str | list[Fields], losses: _Losses) -> Assistant:
    if isinstance(content, str):
        return Assistant(content)
    return Assistant([_read_said(record, losses) for record in content])


def _read_said(record: Fields, losses: _Losses) -> AssistantBlock:
    kind = record.need_text("type")
    if kind == "text":
        mark = losses.mark(record)
        return Text(record.need_text("text"), _read_state(record), mark)
    losses.drop_mark(record)
    if kind == "thinking":
        text, signature = record.need_text("thinking"), record.text("signature")
        return Thinking(text, _read_state(record, signature))
    if kind == "redacted_thinking":
        data = record.need_text("data")
        record.done()
        return RedactedThinking(data, Continuity(issuer=_ISSUER))
    if kind == "tool_use":
        call_id, name, arguments = (
            record.need_text("id"),
            record.need_text("name"),
            record.take("input"),
        )
        if not isinstance(arguments, dict):
            record.refuse("input", "must be an object")
        return ToolCall(call_id, name, arguments, _read_state(record))
    if kind == "opaque" and "issuer" in record:
        return read_opaque(record)
    return Opaque({"type": kind, **record.rest()}, Continuity(issuer=_ISSUER))


def _read_state(record: Fields, signature: str | None = None) -> Continuity | None:
    """Return the opaque state of a block, such as its signature and citations."""
    extras = {name: value for name, value in record.rest().items() if value not in ([], "")}
    if extras.get("caller") == {"type": "direct"}:
        # Every call has the caller ``direct`` by default, so this value is not stored.
        del extras["caller"]
    if signature:
        made, issuer = unseal(signature, "anthropic")
        return Continuity(made, extras or None, issuer)
    return Continuity(None, extras, _ISSUER) if extras else None
