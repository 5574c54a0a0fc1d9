"""Decode requests of Cohere's v2 chat wire."""

from __future__ import annotations

from typing import Any

from ... import messages as m
from ...events import read_object
from ...validate import parse_tools
from ..fields import open_body, read_body, read_media_url
from ..losses import READ, FieldTable, Record, Rule
from ..server import Asked, encode_json, gather
from ..settings import read_settings
from .request import PLAN, SETTINGS

TABLE = FieldTable(
    {
        **dict.fromkeys(
            ("model", "messages", "stream", "tools", "tool_choice", "response_format", "thinking"),
            READ,
        ),
        **dict.fromkeys(SETTINGS.values(), READ),
        "strict_tools": Rule(
            "hint", "which tools are strict is a setting of each tool here", always=True
        ),
        "k": Rule("mapped", default=(0,), concept="top_k"),
        "documents": Rule("refused", "write them into a message, or ask a model of this wire"),
        "citation_options": Rule("hint", "the model's wire has no such citations"),
        "safety_mode": Rule("hint", "the model's wire has no such mode", default=("CONTEXTUAL",)),
        "logprobs": Rule("refused", "ask a model of this wire, or leave it out", default=(False,)),
        "priority": Rule("hint", "it does not change what the answer means"),
    },
    ("messages",),
    {"top_p": "p", "top_k": "k", "reasoning": "thinking", "json_mode": "response_format"},
)


def read_request(body: bytes | dict[str, Any]) -> Asked:
    """Decode the body of a request."""
    fields = open_body(read_body(body), TABLE, Record)
    model, stream = fields.need_text("model"), fields.flag("stream") or False
    messages = [_read_message(record) for record in fields.inners("messages", required=True)]
    tools = parse_tools(fields.inners("tools"))
    choice = _read_choice(fields)
    schema = _read_format(fields)
    config = m.RuntimeConfig(**read_settings(fields, SETTINGS), reasoning=_read_thinking(fields))
    request = m.Request(messages, tools, config, schema, choice, model, stream=stream)
    return gather(request, fields.losses)


def _read_choice(fields: Record) -> m.ToolChoice | None:
    choice = fields.choice("tool_choice", ("REQUIRED", "NONE"))
    if choice is None:
        return None
    return "required" if choice == "REQUIRED" else "none"


def _read_format(fields: Record) -> dict[str, Any] | None:
    inner = fields.inner("response_format")
    if inner is None:
        return None
    kind, schema = inner.need_text("type"), inner.take("json_schema")
    inner.done()
    if kind == "text":
        return None
    if schema is not None and not isinstance(schema, dict):
        inner.refuse("json_schema", "must be a JSON Schema")
    return schema or {"type": "object"}


def _read_thinking(fields: Record) -> Any:
    """Return the reasoning setting: a token budget, or whether reasoning is enabled."""
    inner = fields.inner("thinking")
    if inner is None:
        return None
    kind, budget = inner.choice("type", ("enabled", "disabled")), inner.whole("token_budget")
    inner.done()
    if kind == "disabled":
        return "off"
    return "medium" if budget is None else budget


def _read_message(fields: Record) -> m.Message:
    role = fields.need_text("role")
    message: m.Message
    if role == "system":
        message = m.System("\n\n".join([part.text for part in _read_texts(fields)]))
    elif role == "user":
        message = m.User(_read_content(fields))
    elif role == "assistant":
        message = m.Assistant(_read_blocks(fields))
    elif role == "tool":
        message = m.ToolResult(fields.need_text("tool_call_id"), _read_content(fields))
    else:
        fields.refuse("role", "must be system, user, assistant or tool")
    fields.done()
    return message


def _read_texts(fields: Record) -> list[m.Text]:
    if isinstance(content := fields.take("content"), str):
        return [m.Text(content)]
    return [_read_text(part) for part in fields.inners("content")]


def _read_text(part: Record) -> m.Text:
    part.choice("type", ("text",))
    text = m.Text(part.need_text("text"))
    part.done()
    return text


def _read_content(fields: Record) -> str | tuple[m.UserBlock, ...]:
    if isinstance(content := fields.take("content"), str):
        return content
    return tuple([_read_part(part) for part in fields.inners("content", required=True)])


def _read_part(part: Record) -> m.UserBlock:
    kind = part.need_text("type")
    block: m.UserBlock
    if kind == "text":
        block = m.Text(part.need_text("text"))
    elif kind == "image_url":
        inner = part.need_inner("image_url")
        source, media_type = read_media_url(inner.need_text("url"))
        block = m.Image(source, media_type, inner.choice("detail", ("auto", "low", "high")))
        inner.done()
    elif kind == "document":
        inner = part.need_inner("document")
        data, _ = inner.take("data"), inner.take("id")
        block = m.Text(data if isinstance(data, str) else encode_json(data).decode())
        inner.done()
    else:
        part.refuse("type", "must be text, image_url or document")
    part.done()
    return block


def _read_blocks(fields: Record) -> list[m.AssistantBlock]:
    plan, citations = fields.text("tool_plan"), fields.items("citations")
    blocks: list[m.AssistantBlock] = (
        [m.Thinking(plan, m.Continuity(None, PLAN, m.Issuer("cohere")))] if plan else []
    )
    content = fields.take("content")
    if isinstance(content, str):
        blocks += [m.Text(content)] if content else []
    elif content is not None:
        blocks += [_read_spoken(part) for part in fields.inners("content")]
    if citations and any(isinstance(block, m.Text) for block in blocks):
        last = max(at for at, block in enumerate(blocks) if isinstance(block, m.Text))
        state = m.Continuity(None, {"citations": list(citations)}, m.Issuer("cohere"))
        text = blocks[last]
        assert isinstance(text, m.Text)
        blocks[last] = m.Text(text.text, state)
    return [*blocks, *[_read_call(call) for call in fields.inners("tool_calls")]]


def _read_spoken(part: Record) -> m.AssistantBlock:
    kind = part.choice("type", ("text", "thinking"))
    block = (
        m.Thinking(part.need_text("thinking"))
        if kind == "thinking"
        else m.Text(part.need_text("text"))
    )
    part.done()
    return block


def _read_call(fields: Record) -> m.ToolCall:
    call_id, inner = fields.need_text("id"), fields.need_inner("function")
    fields.take("type")
    name, text = inner.need_text("name"), inner.text("arguments")
    arguments = read_object(text or "{}")
    if arguments is None:
        inner.refuse("arguments", "must be the JSON of an object")
    inner.done()
    fields.done()
    return m.ToolCall(call_id, name, arguments)
