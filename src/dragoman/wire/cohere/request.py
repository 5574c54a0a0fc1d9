"""Encode requests of the cohere wire.

The plan, content and calls of an assistant message are separate fields, so text that follows a
call is sent before it. Documents are sent in a field of the request, not of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ... import messages as m
from ...errors import UnsupportedContentError, quote
from ...validate.data_url import read_inline
from ..codec import Notes
from ..continuity import is_ours
from ..conversation import FieldWriter
from ..json import json_text, merge_extras, ordered_json
from ..media import read_text, refuse_audio
from ..reasoning import NOT_REASONING
from ..request import RequestWriter
from ..settings import write_settings
from ..strict import note_strict, write_function
from ..urls import media_url
from .quirks import Quirks

SETTINGS = {
    "temperature": "temperature",
    "max_tokens": "max_tokens",
    "top_p": "p",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "stop_sequences": "stop_sequences",
}


def structured_path(request: m.Request, quirks: Quirks) -> Literal["native", "prompt"]:
    """Return how the response schema is requested: in the wire's own field, or in the prompt.

    The field cannot be combined with tools or documents.
    """
    beside = (
        request.tools or "tools" in request.config.extras or "documents" in request.config.extras
    )
    return "prompt" if beside or _has_documents(request.messages) else quirks.structured


class CohereWriter(RequestWriter):
    """Write the body of a request."""

    def body(self) -> dict[str, Any]:
        conversation = _Writer(self.request, self.home, self.quirks, self.notes)
        body: dict[str, Any] = {"model": self.home.model, "stream": self.request.stream}
        body |= write_settings(self.config, SETTINGS)
        body |= self.reasoning() or {}
        self.cache()
        self.note_raw_only("n", "logprobs")
        if self.request.server_tools:
            self.server_tools({})
        self._write_tools(body)
        if self.path == "native":
            schema = ordered_json(self.request.response_schema)
            body["response_format"] = {"type": "json_object", "json_schema": schema}
        conversation.add_system(self.directive())
        messages = conversation.write()
        if conversation.documents:
            body["documents"] = conversation.documents
        merge_extras(body, self.config.extras, lists=frozenset({"stop_sequences"}))
        body["messages"] = messages
        return body

    def _write_tools(self, body: dict[str, Any]) -> None:
        """Write the tools and the tool choice.

        The wire cannot force one tool among several, so a forced tool is sent alone.
        """
        choice = self.request.tool_choice
        offered = self.request.tools
        notes = self.notes
        named = choice.name if isinstance(choice, m.ForceTool) else None
        tools = [tool for tool in offered if named in (None, tool.name)]
        if named is not None and len(tools) < len(offered):
            why = "only the tool that must be called is sent"
            notes.rewrite("tool_choice", "tools_narrowed", why)
        if tools:
            if strict := all(tool.strict for tool in tools):
                body["strict_tools"] = True
            for at, tool in enumerate([] if strict else tools):
                # This API has one strict switch for all tools, not one per tool.
                note_strict(tool, f"tools[{at}]", notes)
            body["tools"] = [write_function(tool, tool.parameters) for tool in tools]
        if choice not in (None, "auto"):
            if tools or "tools" in self.config.extras:
                body["tool_choice"] = "NONE" if choice == "none" else "REQUIRED"
            else:
                notes.rewrite("tool_choice", "tool_choice_omitted", "there is no tool to choose")


def _has_documents(messages: Sequence[m.Message]) -> bool:
    blocks = [message.content for message in messages if isinstance(message, m.User)]
    return any(
        isinstance(block, m.Document)
        for content in blocks
        if not isinstance(content, str)
        for block in content
    )


class _Writer(FieldWriter):
    """Encode a conversation, and collect its documents."""

    def __init__(self, request: m.Request, home: m.Issuer, quirks: Quirks, notes: Notes) -> None:
        super().__init__(request, home, quirks, notes)
        self.omits_media = False
        self.documents: list[dict[str, Any]] = []

    # --- messages of users and tools

    def user(self, message: m.User, path: str) -> None:
        content: Any = message.content
        if not isinstance(content, str):
            content = [part for part in self.parts(content, path) if part is not None] or ""
        self.written.append({"role": "user", "content": content})

    def part(self, block: m.UserBlock, path: str) -> dict[str, Any] | None:
        if isinstance(block, m.Text):
            return {"type": "text", "text": block.text}
        if isinstance(block, m.Image):
            detail = {} if block.detail is None else {"detail": block.detail}
            return {"type": "image_url", "image_url": {"url": media_url(block), **detail}}
        if isinstance(block, m.Audio):
            refuse_audio(block, path)
        self.documents.append(_write_document(block, len(self.documents), path))
        self.notes.rewrite(path, "document_moved", "sent among the documents of the request")
        return None

    def check_medium(self, block: m.Image | m.Document | m.Audio, path: str) -> None:
        if self.quirks.result_media != "after" or not isinstance(block, m.Image):
            raise UnsupportedContentError(f"{path}: in a tool's result this wire takes only text")

    def result(self, message: m.ToolResult, sent: str, at: int, path: str) -> None:
        content: Any = message.content
        if not isinstance(content, str):
            texts = self.result_texts(content, path)
            content = [{"type": "text", "text": text} for text in texts] or ""
        self.written.append({"role": "tool", "tool_call_id": sent, "content": content})

    # --- messages of the model

    def text(self, block: m.Text, path: str) -> Any:
        return ("content", {"type": "text", "text": block.text}) if block.text else None

    def thinking(self, block: m.Thinking, path: str) -> Any:
        state = block.continuity
        if state is not None and not state.replayable:
            return self.drop(block, path)
        if state is not None and is_ours(state, self.home) and state.opaque == PLAN:
            return ("tool_plan", block.text) if block.text else None
        if self.quirks.reasoning == NOT_REASONING:
            return self.drop(block, path, "this model is known not to reason")
        return "content", {"type": "thinking", "thinking": block.text}

    def call(self, block: m.ToolCall, sent: str, path: str) -> tuple[str, Any]:
        function = {"name": block.name, "arguments": json_text(block.arguments)}
        return "tool_calls", {"id": sent, "type": "function", "function": function}

    def note_state(self, block: m.AssistantBlock, path: str) -> None:
        # The state of a tool plan only records that the text arrived in ``tool_plan``.
        if not isinstance(block, self.with_state):
            return
        if self._citations(block) is None and self._own_state(block) != PLAN:
            why = "opaque state of another issuer is not sent"
            self.notes.drop(f"{path}.continuity", "continuity_dropped", why)

    def _own_state(self, block: m.AssistantBlock) -> Any:
        state = block.continuity
        return state.opaque if state is not None and is_ours(state, self.home) else None

    def _citations(self, block: m.AssistantBlock) -> list[Any] | None:
        """Return the citations of a text, which are sent back to their issuer."""
        own = self._own_state(block) if isinstance(block, m.Text) else None
        cited = own.get("citations") if isinstance(own, dict) else None
        return cited if isinstance(cited, list) else None

    def fields(self, parts: dict[str, list[Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {"role": "assistant"}
        if "tool_plan" in parts:
            made["tool_plan"] = "".join(parts["tool_plan"])
        made |= {name: parts[name] for name in ("content", "tool_calls") if name in parts}
        for block in self.answer.content:
            if cited := self._citations(block):
                made["citations"] = [*made.get("citations", ()), *cited]
        return made


PLAN = {"tool_plan": True}
"""The opaque state of a thinking block that arrived as a tool plan. Such a block is sent back in
the field ``tool_plan``.
"""


def _write_document(block: m.Document, count: int, path: str) -> dict[str, Any]:
    found = read_inline(block)
    if found is None or not (found[0] or "").startswith("text/"):
        kind = block.media_type or "one of an unknown type"
        raise UnsupportedContentError(
            f"{path}: this wire takes documents of text inline, not {quote(kind)}"
        )
    text = read_text(found[1], path)
    titled = {} if block.name is None else {"title": block.name}
    return {"id": f"doc_{count}", "data": {**titled, "text": text}}
