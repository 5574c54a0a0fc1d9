"""Decode requests of Ollama's native wire.

Calls have no ids on this wire. A result belongs to the first call of the same name that has no
result yet. Both get an id that is derived from the position of the call.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from ... import messages as m
from ...errors import InvalidRequestError
from ...messages.media import read_source
from ...validate import parse_tools
from ..fields import open_body, read_body
from ..losses import ClientRecord
from ..rules import LOGPROBS, READ, FieldTable, hint, mapped, refused
from ..server import Asked, gather
from ..settings import read_settings
from .request import SETTINGS

_TOO_LONG = hint("a conversation that is too long is refused", True)
TABLE = FieldTable(
    {
        **dict.fromkeys(
            ("model", "messages", "stream", "tools", "format", "options", "think"), READ
        ),
        "keep_alive": hint(
            "how long a model stays in memory is the endpoint's setting", always=True
        ),
        "logprobs": LOGPROBS,
        "top_logprobs": LOGPROBS,
        "truncate": _TOO_LONG,
        "shift": _TOO_LONG,
        # fields of /api/generate that /api/chat does not have
        "suffix": refused("ask for the text in between with a prompt of your own", always=True),
        "context": refused("send the conversation to /api/chat", always=True),
        "template": hint("the model's server has its own template", always=True),
        "raw": hint("the model's server has its own template", False, always=True),
    },
    ("messages",),
    {
        **{name: f"options.{field}" for name, field in SETTINGS.items()},
        "top_k": "options.top_k",
        "min_p": "options.min_p",
        "repeat_penalty": "options.repeat_penalty",
        "reasoning": "think",
        "json_mode": "format",
    },
    {
        "options": {
            **dict.fromkeys(SETTINGS.values(), READ),
            "top_k": mapped("top_k"),
            "min_p": mapped("min_p", 0),
            "repeat_penalty": mapped("repeat_penalty"),
        }
    },
    lambda path, name: name,
)


def read_request(body: bytes | dict[str, Any], path: str) -> Asked:
    """Decode the body of a request. ``stream`` defaults to true on this wire."""
    fields = open_body(read_body(body), TABLE, ClientRecord)
    model = fields.need_text("model")
    stream = fields.flag("stream")
    messages = _Reader().read(fields.inners("messages", required=True))
    tools = parse_tools(fields.inners("tools"))
    schema = _read_format(fields)
    config = _read_config(fields)
    request = m.Request(
        messages,
        tools=tools,
        config=config,
        response_schema=schema,
        tool_choice=None,
        model=model,
        stream=stream is not False,
    )
    return gather(request, fields.losses)


def _read_config(fields: ClientRecord) -> m.RuntimeConfig:
    inner = fields.inner("options") or fields.enter("options", {})
    inner.sort(TABLE.inner["options"])
    settings = read_settings(inner, SETTINGS)
    if settings["max_tokens"] in (-1, -2):  # "no limit", which is the default
        settings["max_tokens"] = None
    return m.RuntimeConfig(**settings, reasoning=_read_think(fields))


def _read_think(fields: ClientRecord) -> m.Effort | None:
    """Return the reasoning setting from ``think``, which is an effort or a boolean."""
    think = fields.take("think")
    if isinstance(think, bool):
        return "medium" if think else "none"
    return fields.choice("think", m.EFFORTS)


def _read_format(fields: ClientRecord) -> dict[str, Any] | None:
    wanted = fields.take("format")
    if wanted is None or wanted == "":
        return None
    if wanted == "json":
        fields.losses.add_concept("json_mode", True, {"format": wanted})
        return None
    if not isinstance(wanted, dict):
        fields.refuse("format", "must be json or a JSON Schema")
    return wanted


class _Reader:
    """Read a conversation, and assign ids to its calls."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: list[tuple[str, str]] = []  # the names and ids of calls without a result
        self._ids: list[Any] = []  # the ids of all calls

    def read(self, items: Sequence[ClientRecord]) -> list[m.Message]:
        calls = [call for item in items for call in item.inners("tool_calls")]
        self._ids = [call.data.get("id") for call in calls]
        return [self._message(item) for item in items]

    def _message(self, fields: ClientRecord) -> m.Message:
        role = fields.need_text("role")
        message: m.Message
        if role == "system":
            message = m.System(fields.text("content") or "")
        elif role == "user":
            message = m.User(_read_content(fields))
        elif role == "assistant":
            message = m.Assistant(self._blocks(fields))
        elif role == "tool":
            message = m.ToolResult(self._answered(fields), _read_content(fields))
        else:
            fields.refuse("role", "must be system, user, assistant or tool")
        fields.done()
        return message

    def _blocks(self, fields: ClientRecord) -> list[m.AssistantBlock]:
        thinking = fields.text("thinking")
        text = fields.text("content")
        blocks: list[m.AssistantBlock] = [m.Thinking(thinking)] if thinking else []
        blocks += [m.Text(text)] if text else []
        return [*blocks, *[self._call(call) for call in fields.inners("tool_calls")]]

    def _call(self, fields: ClientRecord) -> m.ToolCall:
        own = fields.text("id")
        inner = fields.need_inner("function")
        name = inner.need_text("name")
        arguments = inner.take("arguments")
        if arguments is not None and not isinstance(arguments, dict):
            inner.refuse("arguments", "must be an object")
        inner.take("index")
        self._count += 1
        call_id = own or f"call_{self._count}"
        self._waiting.append((name, call_id))
        return m.ToolCall(call_id, name, arguments or {})

    def _answered(self, fields: ClientRecord) -> str:
        name = fields.text("tool_name")
        own = fields.text("tool_call_id")
        # litellm sends ids with results but not with calls. Such results are matched to calls by
        # their order.
        own = own if own in self._ids else None
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


def _read_content(fields: ClientRecord) -> str | tuple[m.UserBlock, ...]:
    text = fields.text("content") or ""
    images = fields.items("images")
    if not images:
        return text
    blocks: list[m.UserBlock] = [m.Text(text)] if text else []
    return (
        *blocks,
        *[_read_image(data, f"{fields.at('images')}[{at}]") for at, data in enumerate(images)],
    )


def _read_image(data: Any, path: str) -> m.Image:
    if not isinstance(data, str):
        raise InvalidRequestError(f"{path} must be base64 text")
    try:
        head = base64.b64decode(data[:16], validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError(f"{path} is not base64") from None
    # Requests contain no media types, so the type of an image is recognised by its first bytes.
    kind = read_source(head)[1] or ""
    return m.Image(m.Inline(data), kind if kind.startswith("image/") else "image/png")
