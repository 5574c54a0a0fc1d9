"""Encode requests of this wire.

The plan, content and calls of an assistant message are separate fields, so text that follows a
call is sent before it. Documents are sent in a field of the request, not of a message.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Literal, NoReturn

from ...errors import UnsupportedContentError, quote
from ...messages import (
    Assistant,
    AssistantBlock,
    Audio,
    Document,
    ForceTool,
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
from ...reasoning import NOT_REASONING
from ..caching import note_unplaced, read_cache
from ..codec import Notes
from ..continuity import is_ours, note_state
from ..extras import note_raw_only
from ..json import json_text, merge_extras, ordered_json
from ..media import fit_result, refuse_audio, transcribe
from ..names import rename_calls
from ..reasoning import reasoning_fields
from ..schema import schema_directive
from ..server_tools import write_server_tools
from ..strict import note_strict
from ..urls import media_url
from .quirks import Quirks

_FIELDS = {
    "temperature": "temperature",
    "max_tokens": "max_tokens",
    "top_p": "p",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}


def structured_path(request: Request, quirks: Quirks) -> Literal["native", "prompt"] | None:
    """Return how the response schema is requested: in the wire's own field, or in the prompt.

    The field cannot be combined with tools or documents.
    """
    if request.response_schema is None:
        return None
    beside = (
        request.tools or "tools" in request.config.extras or "documents" in request.config.extras
    )
    return "prompt" if beside or _has_documents(request.messages) else quirks.structured


def write_request(
    request: Request, home: Issuer, quirks: Quirks, path: str | None, notes: Notes
) -> dict[str, Any]:
    """Return the body of a request, with the messages last.

    ``path`` selects where the response schema is sent: ``native`` (its own field) or ``prompt``.
    """
    request = rename_calls(request, notes)
    body: dict[str, Any] = {"model": home.model, "stream": request.stream}
    body |= _write_config(request.config)
    body |= reasoning_fields(request.config, quirks.reasoning, home, notes) or {}
    note_unplaced(read_cache(request), (), notes)
    note_raw_only(request.config.extras, notes, choices="n", logprobs="logprobs")
    write_server_tools(request.server_tools, {}, None)
    _write_tools(body, request, notes)
    if path == "native":
        body["response_format"] = {
            "type": "json_object",
            "json_schema": ordered_json(request.response_schema),
        }
    writer = _Writer(home, quirks, notes)
    messages = writer.write(request, path)
    if writer.documents:
        body["documents"] = writer.documents
    merge_extras(body, request.config.extras, lists=frozenset({"stop_sequences"}))
    body["messages"] = messages
    return body


def _write_config(config: RuntimeConfig) -> dict[str, Any]:
    fields = {
        theirs: value
        for ours, theirs in _FIELDS.items()
        if (value := getattr(config, ours)) is not None
    }
    if config.stop_sequences is not None:
        fields["stop_sequences"] = list(config.stop_sequences)
    return fields


def _write_tools(body: dict[str, Any], request: Request, notes: Notes) -> None:
    """Write the tools and the tool choice.

    The wire cannot force one tool among several, so a forced tool is sent alone.
    """
    choice = request.tool_choice
    named = choice.name if isinstance(choice, ForceTool) else None
    tools = [tool for tool in request.tools if named in (None, tool.name)]
    if named is not None and len(tools) < len(request.tools):
        notes.rewrite("tool_choice", "tools_narrowed", "only the tool that must be called is sent")
    if tools:
        if strict := all(tool.strict for tool in tools):
            body["strict_tools"] = True
        body["tools"] = [
            _write_tool(tool, f"tools[{at}]", notes, strict=strict)
            for at, tool in enumerate(tools)
        ]
    if choice not in (None, "auto"):
        if tools or "tools" in request.config.extras:
            body["tool_choice"] = "NONE" if choice == "none" else "REQUIRED"
        else:
            notes.rewrite("tool_choice", "tool_choice_omitted", "there is no tool to choose")


def _write_tool(tool: Tool, path: str, notes: Notes, *, strict: bool) -> dict[str, Any]:
    if not strict:
        # This API has one strict switch for all tools, not one per tool.
        note_strict(tool, path, notes)
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": ordered_json(tool.parameters),
    }
    return {"type": "function", "function": function}


def _has_documents(messages: Sequence[Message]) -> bool:
    blocks = [message.content for message in messages if isinstance(message, User)]
    return any(
        isinstance(block, Document)
        for content in blocks
        if not isinstance(content, str)
        for block in content
    )


class _Writer:
    """Encode a conversation, and collect its documents."""

    def __init__(self, home: Issuer, quirks: Quirks, notes: Notes) -> None:
        self.documents: list[dict[str, Any]] = []
        # Images of the preceding tool results. They are sent in a message after the results.
        self._media: list[dict[str, Any]] = []
        self._home = home
        self._quirks = quirks
        self._notes = notes

    def write(self, request: Request, path: str | None) -> list[dict[str, Any]]:
        system, rest = join_system(request.messages)
        directive = schema_directive(request.response_schema or {}) if path == "prompt" else None
        said = "\n\n".join([part for part in (system, directive) if part])
        written: list[dict[str, Any]] = [{"role": "system", "content": said}] if said else []
        for at, message in enumerate(rest, len(request.messages) - len(rest)):
            if not isinstance(message, ToolResult):
                written += self._take_media()
            made = self._message(message, f"messages[{at}]")
            if made is not None:
                written.append(made)
        return [*written, *self._take_media()]

    def _take_media(self) -> list[dict[str, Any]]:
        """Return the user message with the images of the preceding tool results, if any."""
        media, self._media = self._media, []
        return [{"role": "user", "content": media}] if media else []

    def _message(self, message: Message, path: str) -> dict[str, Any] | None:
        if isinstance(message, Assistant):
            return self._assistant(message, path)
        assert isinstance(message, User | ToolResult)
        note_state(message, path, self._notes)
        if isinstance(message, ToolResult):
            return self._result(message, path)
        if isinstance(message.content, str):
            return {"role": "user", "content": message.content}
        parts = [
            self._part(block, f"{path}.content[{at}]") for at, block in enumerate(message.content)
        ]
        kept = [part for part in parts if part is not None]
        return {"role": "user", "content": kept or ""}

    def _part(self, block: UserBlock, path: str) -> dict[str, Any] | None:
        if isinstance(block, Text):
            return {"type": "text", "text": block.text}
        if isinstance(block, Image):
            detail = {} if block.detail is None else {"detail": block.detail}
            return {"type": "image_url", "image_url": {"url": media_url(block), **detail}}
        if isinstance(block, Audio):
            refuse_audio(block, path)
        self.documents.append(_write_document(block, len(self.documents), path))
        self._notes.rewrite(path, "document_moved", "sent among the documents of the request")
        return None

    def _result(self, message: ToolResult, path: str) -> dict[str, Any]:
        check = _check_image if self._quirks.result_media == "after" else _refuse_medium
        message = fit_result(message, path, self._notes, check, omit=False)
        if message.is_error:
            why = "this wire cannot mark a result as an error"
            self._notes.rewrite(f"{path}.is_error", "is_error_dropped", why, loss=True)
        content: Any = message.content
        if not isinstance(content, str):
            texts = [
                self._result_text(block, f"{path}.content[{at}]")
                for at, block in enumerate(content)
            ]
            content = [{"type": "text", "text": text} for text in texts] or ""
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}

    def _result_text(self, block: UserBlock, path: str) -> str:
        """Return a block of a tool result as text.

        An image becomes a numbered placeholder, and the image itself is sent after the tool
        results.
        """
        if isinstance(block, Text):
            return block.text
        name = f"image {len(self._media) // 2 + 1}"
        self._media += [{"type": "text", "text": f"[{name}]"}, self._part(block, path) or {}]
        self._notes.rewrite(path, "image_moved", "sent as a message of the user after the results")
        return f"[{name}: in the message after the results]"

    def _assistant(self, message: Assistant, path: str) -> dict[str, Any] | None:
        turn = _Turn()
        for at, block in enumerate(message.content):
            self._block(turn, block, f"{path}.content[{at}]")
        if not (turn.parts or turn.calls or turn.plan):
            self._notes.drop(
                path, "message_dropped", "nothing of the message can be sent on this wire"
            )
            return None
        return turn.write()

    def _block(self, turn: _Turn, block: AssistantBlock, path: str) -> None:
        if isinstance(block, ToolCall):
            function = {"name": block.name, "arguments": json_text(block.arguments)}
            turn.calls.append({"id": block.id, "type": "function", "function": function})
        elif isinstance(block, Thinking) and (
            block.continuity is None or block.continuity.replayable
        ):
            self._think(turn, block, path)
        elif isinstance(block, Text | Audio):
            if turn.calls:
                why = "text after a tool call is sent before it on this wire"
                self._notes.rewrite(path, "order_lost", why, loss=True)
            said = block.text if isinstance(block, Text) else transcribe(block, path, self._notes)
            if said:
                turn.parts.append({"type": "text", "text": said})
        else:
            self._notes.drop(
                path, f"{block.__struct_config__.tag}_dropped", "this wire has no place for it"
            )
        if isinstance(block, Text | ToolCall | Thinking) and block.continuity is not None:
            self._state(turn, block, path)

    def _think(self, turn: _Turn, block: Thinking, path: str) -> None:
        state = block.continuity
        if state is not None and is_ours(state, self._home) and state.opaque == PLAN:
            turn.plan += block.text
        elif self._quirks.reasoning == NOT_REASONING:
            self._notes.drop(path, "thinking_dropped", "this model is known not to reason")
        else:
            turn.parts.append({"type": "thinking", "thinking": block.text})

    def _state(self, turn: _Turn, block: Text | ToolCall | Thinking, path: str) -> None:
        """Send a text's citations back to their issuer; report that other opaque state is dropped.

        The state of a tool plan is not reported. It only records that the text arrived in
        ``tool_plan``.
        """
        state = block.continuity
        opaque = state.opaque if state is not None and is_ours(state, self._home) else None
        if (
            isinstance(block, Text)
            and isinstance(opaque, dict)
            and isinstance(opaque.get("citations"), list)
        ):
            turn.citations += opaque["citations"]
        elif opaque != PLAN:
            why = "opaque state of another issuer is not sent"
            self._notes.drop(f"{path}.continuity", "continuity_dropped", why)


class _Turn:
    """An assistant message, split into the fields of this wire."""

    def __init__(self) -> None:
        self.plan = ""
        self.parts: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.citations: list[Any] = []

    def write(self) -> dict[str, Any]:
        made: dict[str, Any] = {"role": "assistant"}
        if self.plan:
            made["tool_plan"] = self.plan
        if self.parts:
            made["content"] = self.parts
        if self.calls:
            made["tool_calls"] = self.calls
        if self.citations:
            made["citations"] = self.citations
        return made


PLAN = {"tool_plan": True}
"""The opaque state of a thinking block that arrived as a tool plan. Such a block is sent back in
the field ``tool_plan``.
"""


def _write_document(block: Document, count: int, path: str) -> dict[str, Any]:
    if not isinstance(block.source, Inline) or not (block.media_type or "").startswith("text/"):
        raise UnsupportedContentError(
            f"{path}: this wire takes documents of text inline, not {quote(_kind_of(block))}"
        )
    try:
        text = base64.b64decode(block.source.base64_data, validate=True).decode("utf-8")
    except (binascii.Error, ValueError) as error:
        raise UnsupportedContentError(
            f"{path}: the document is not UTF-8 text in base64"
        ) from error
    titled = {} if block.name is None else {"title": block.name}
    return {"id": f"doc_{count}", "data": {**titled, "text": text}}


def _kind_of(block: Document) -> str:
    return block.media_type or "one of an unknown type"


def _check_image(block: Image | Document | Audio, path: str) -> None:
    if not isinstance(block, Image):
        _refuse_medium(block, path)
    media_url(block)


def _refuse_medium(block: Image | Document | Audio, path: str) -> NoReturn:
    raise UnsupportedContentError(f"{path}: this wire takes text only in a tool's result")
