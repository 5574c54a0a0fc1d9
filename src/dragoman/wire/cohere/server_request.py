"""Decode requests of Cohere's v2 chat wire."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ... import messages as m
from ...validate import parse_tools
from ...validate.parse import read_message
from ..fields import open_body, read_body
from ..losses import ClientRecord
from ..openai.server_request import inline_media
from ..rules import HINT, READ, FieldTable, hint, mapped, refused
from ..server import Asked, encode_json, gather
from ..settings import read_settings
from .request import PLAN, SETTINGS

_ISSUER = m.Issuer("cohere")
TABLE = FieldTable(
    {
        **dict.fromkeys(
            ("model", "messages", "stream", "tools", "tool_choice", "response_format", "thinking"),
            READ,
        ),
        **dict.fromkeys(SETTINGS.values(), READ),
        "strict_tools": hint("which tools are strict is a setting of each tool here", always=True),
        "k": mapped("top_k", 0),
        "documents": refused("write them into a message, or ask a model of this wire"),
        "citation_options": hint("the model's wire has no such citations"),
        "safety_mode": hint("the model's wire has no such mode", "CONTEXTUAL"),
        "logprobs": refused("ask a model of this wire, or leave it out", False),
        "priority": HINT,
    },
    ("messages",),
    {"top_p": "p", "top_k": "k", "reasoning": "thinking", "json_mode": "response_format"},
)


def read_request(body: bytes | dict[str, Any], path: str) -> Asked:
    """Decode the body of a request."""
    fields = open_body(read_body(body), TABLE, ClientRecord)
    model = fields.need_text("model")
    stream = fields.flag("stream") or False
    messages = [_read_message(record) for record in fields.inners("messages", required=True)]
    tools = parse_tools(fields.inners("tools"))
    choice = _read_choice(fields)
    schema = _read_format(fields)
    config = m.RuntimeConfig(**read_settings(fields, SETTINGS), reasoning=_read_thinking(fields))
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


def _read_choice(fields: ClientRecord) -> m.ToolChoice | None:
    choice = fields.choice("tool_choice", ("REQUIRED", "NONE"))
    if choice is None:
        return None
    return "required" if choice == "REQUIRED" else "none"


def _read_format(fields: ClientRecord) -> dict[str, Any] | None:
    inner = fields.inner("response_format")
    if inner is None:
        return None
    kind = inner.need_text("type")
    inner.take("json_schema")
    inner.done()
    return None if kind == "text" else inner.schema("json_schema") or {"type": "object"}


def _read_thinking(fields: ClientRecord) -> Any:
    """Return the reasoning setting: a token budget, or whether reasoning is enabled."""
    inner = fields.inner("thinking")
    if inner is None:
        return None
    kind = inner.choice("type", ("enabled", "disabled"))
    budget = inner.whole("token_budget")
    inner.done()
    if kind == "disabled":
        return "off"
    return "medium" if budget is None else budget


def _read_message(record: ClientRecord) -> m.Message:
    """Read a message, which has the form of Chat Completions with a few more fields."""
    plan = record.text("tool_plan")
    citations = record.items("citations")
    if isinstance(content := record.data.get("content"), list):
        if record.data.get("role") == "system":
            texts = [_read_text(part) for part in record.inners("content")]
            record.put("content", "\n\n".join(texts))
        else:
            record.put("content", [_as_text(part) for part in content])
    message = read_message(record)
    if not isinstance(message, m.Assistant):
        return inline_media(message)
    blocks = [
        replace(block, arguments=block.arguments or {}) if isinstance(block, m.ToolCall) else block
        for block in message.content
    ]
    texts_at = [at for at, block in enumerate(blocks) if isinstance(block, m.Text)]
    if citations and texts_at:
        state = m.Continuity(None, {"citations": list(citations)}, _ISSUER)
        blocks[texts_at[-1]] = replace(blocks[texts_at[-1]], continuity=state)
    if plan:
        blocks.insert(0, m.Thinking(plan, m.Continuity(None, PLAN, _ISSUER)))
    return m.Assistant(blocks)


def _read_text(part: ClientRecord) -> str:
    part.choice("type", ("text",))
    text = part.need_text("text")
    part.done()
    return text


def _as_text(part: Any) -> Any:
    """Return a document in a message as a text; return any other part unchanged."""
    document = part.get("document") if isinstance(part, dict) else None
    if not isinstance(document, dict) or part.get("type") != "document":
        return part
    data = document.get("data")
    return {"type": "text", "text": data if isinstance(data, str) else encode_json(data).decode()}
