"""Encode requests of Ollama's native wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UnsupportedContentError
from ...messages import (
    Assistant,
    Audio,
    Document,
    Image,
    Inline,
    Issuer,
    Message,
    Request,
    RuntimeConfig,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    User,
    UserBlock,
    join_system,
)
from ..caching import note_unplaced, read_cache
from ..codec import Notes
from ..continuity import note_state
from ..json import merge_extras, ordered_json
from ..media import fit_result, transcribe
from ..names import rename_calls
from ..reasoning import reasoning_fields
from ..schema import schema_directive
from ..server_tools import write_server_tools
from ..strict import note_strict
from .quirks import Quirks

_OPTIONS = {
    "temperature": "temperature",
    "max_tokens": "num_predict",
    "top_p": "top_p",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}


def write_request(
    request: Request, home: Issuer, quirks: Quirks, path: str | None, notes: Notes
) -> dict[str, Any]:
    """Return the body of a request, with the messages last.

    ``path`` selects where the response schema is sent: ``native`` (its own field) or ``prompt``.
    """
    request = rename_calls(request, notes)
    body: dict[str, Any] = {"model": home.model, "stream": request.stream}
    if quirks.keep_alive is not None:
        body["keep_alive"] = quirks.keep_alive
    body |= reasoning_fields(request.config, quirks.reasoning, home, notes) or {}
    note_unplaced(read_cache(request), (), notes)
    write_server_tools(request.server_tools, {}, None)
    if request.tools and request.tool_choice != "none":
        body["tools"] = [
            _write_tool(tool, f"tools[{at}]", notes) for at, tool in enumerate(request.tools)
        ]
    if request.tool_choice not in (None, "auto", "none"):
        notes.drop("tool_choice", "tool_choice_dropped", "this wire cannot force a call")
    if path == "native":
        body["format"] = ordered_json(request.response_schema)
    options = _write_options(request.config, quirks)
    merge_extras(options, request.config.extras, lists=frozenset({"stop"}), coerce=True)
    if options:
        body["options"] = options
    body["messages"] = _write_messages(request, path, quirks, notes)
    return body


def _write_tool(tool: Tool, path: str, notes: Notes) -> dict[str, Any]:
    note_strict(tool, path, notes)
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": ordered_json(tool.parameters),
    }
    return {"type": "function", "function": function}


def _write_options(config: RuntimeConfig, quirks: Quirks) -> dict[str, Any]:
    options = {
        theirs: value
        for ours, theirs in _OPTIONS.items()
        if (value := getattr(config, ours)) is not None
    }
    if config.stop_sequences is not None:
        options["stop"] = list(config.stop_sequences)
    if quirks.num_ctx is not None:
        options["num_ctx"] = quirks.num_ctx
    return options


def _write_messages(
    request: Request, path: str | None, quirks: Quirks, notes: Notes
) -> list[dict[str, Any]]:
    system, rest = join_system(request.messages)
    directive = schema_directive(request.response_schema or {}) if path == "prompt" else None
    said = "\n\n".join([part for part in (system, directive) if part])
    written: list[dict[str, Any]] = [{"role": "system", "content": said}] if said else []
    names = _names(rest)
    for at, message in enumerate(rest, len(request.messages) - len(rest)):
        where = f"messages[{at}]"
        if isinstance(message, User):
            note_state(message, where, notes)
            written.append({"role": "user", **_write_content(message.content, where, notes)})
        elif isinstance(message, ToolResult):
            written.append(_write_result(message, names, where, quirks, notes))
        elif (
            isinstance(message, Assistant)
            and (reply := _write_assistant(message, where, notes)) is not None
        ):
            written.append(reply)
    return written


def _names(messages: Sequence[Message]) -> dict[str, str]:
    """Return the tool name for each call id.

    A tool result is sent with the tool's name in place of the call id.
    """
    return {
        call.id: call.name
        for message in messages
        if isinstance(message, Assistant)
        for call in message.tool_calls
    }


def _write_content(content: str | Sequence[UserBlock], path: str, notes: Notes) -> dict[str, Any]:
    if isinstance(content, str):
        return {"content": content}
    texts, images = [], []
    for at, block in enumerate(content):
        where = f"{path}.content[{at}]"
        if isinstance(block, Text):
            texts.append(block.text)
        else:
            images.append(_check_medium(block, where))
            if isinstance(block, Image) and block.detail is not None:
                notes.drop(f"{where}.detail", "detail_dropped", "this wire has no place for it")
    return {"content": "\n".join(texts), **({"images": images} if images else {})}


def _check_medium(block: Image | Document | Audio, path: str) -> str:
    """Return the data of an inline image; raise an error for any other medium."""
    if isinstance(block, Image) and isinstance(block.source, Inline):
        return block.source.base64_data
    raise UnsupportedContentError(f"{path}: this wire takes text and inline images only")


def _write_result(
    message: ToolResult, names: Mapping[str, str], path: str, quirks: Quirks, notes: Notes
) -> dict[str, Any]:
    message = fit_result(message, path, notes, _check_medium, omit=quirks.result_media == "omit")
    if message.is_error:
        notes.rewrite(
            f"{path}.is_error",
            "is_error_dropped",
            "this wire cannot mark a result as an error",
            loss=True,
        )
    note_state(message, path, notes)
    name = names[message.tool_call_id]
    return {"role": "tool", "tool_name": name, **_write_content(message.content, path, notes)}


def _write_assistant(message: Assistant, path: str, notes: Notes) -> dict[str, Any] | None:
    written: dict[str, Any] = {"role": "assistant", "content": message.text}
    calls = []
    for at, block in enumerate(message.content):
        where = f"{path}.content[{at}]"
        if isinstance(block, ToolCall):
            calls.append(
                {"function": {"name": block.name, "arguments": ordered_json(block.arguments)}}
            )
        elif isinstance(block, Text):
            if calls:
                notes.rewrite(
                    where,
                    "order_lost",
                    "text after a tool call is sent before it on this wire",
                    loss=True,
                )
        elif isinstance(block, Audio):
            written["content"] += transcribe(block, where, notes) or ""
        elif isinstance(block, Thinking) and (
            block.continuity is None or block.continuity.replayable
        ):
            written["thinking"] = written.get("thinking", "") + block.text
        else:
            notes.drop(
                where, f"{block.__struct_config__.tag}_dropped", "this wire has no place for it"
            )
        if isinstance(block, Text | ToolCall | Thinking) and block.continuity is not None:
            notes.drop(
                f"{where}.continuity",
                "continuity_dropped",
                "opaque state of another issuer is not sent",
            )
    if calls:
        written["tool_calls"] = calls
    if not calls and not written["content"] and "thinking" not in written:
        notes.drop(path, "message_dropped", "nothing of the message can be sent on this wire")
        return None
    return written
