"""Encode requests of Ollama's native wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import messages as m
from ...errors import UnsupportedContentError
from ...validate.data_url import read_inline
from ..codec import Notes
from ..conversation import FieldWriter
from ..json import merge_extras, ordered_json
from ..request import RequestWriter
from ..settings import write_settings
from ..strict import note_strict, write_function
from .quirks import Quirks

SETTINGS = {
    "temperature": "temperature",
    "max_tokens": "num_predict",
    "top_p": "top_p",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "stop_sequences": "stop",
}


class OllamaWriter(RequestWriter):
    """Write the body of a request; most settings are in the object ``options``."""

    def body(self) -> dict[str, Any]:
        request = self.request
        quirks = self.quirks
        notes = self.notes
        conversation = _Writer(request, self.home, quirks, notes)
        body: dict[str, Any] = {"model": self.home.model, "stream": request.stream}
        if quirks.keep_alive is not None:
            body["keep_alive"] = quirks.keep_alive
        body |= self.reasoning() or {}
        self.cache()
        if request.server_tools:
            self.server_tools({})
        if request.tools and request.tool_choice == "none":
            why = "the wire cannot forbid a call; no tool is sent"
            notes.rewrite("tool_choice", "tools_omitted", why)
        elif request.tools:
            for at, tool in enumerate(request.tools):
                note_strict(tool, f"tools[{at}]", notes)
            body["tools"] = [write_function(tool, tool.parameters) for tool in request.tools]
        if request.tool_choice not in (None, "auto", "none"):
            notes.drop("tool_choice", "tool_choice_dropped", "this wire cannot force a call")
        if self.path == "native":
            body["format"] = ordered_json(request.response_schema)
        options = write_settings(self.config, SETTINGS)
        if quirks.num_ctx is not None:
            options["num_ctx"] = quirks.num_ctx
        merge_extras(options, self.config.extras, lists=frozenset({"stop"}), coerce=True)
        if options:
            body["options"] = options
        conversation.add_system(self.directive())
        body["messages"] = conversation.write()
        return body


class _Writer(FieldWriter):
    """Write a conversation; a tool result is sent with the tool's name in place of the call id."""

    media_fields = ()

    def __init__(self, request: m.Request, home: m.Issuer, quirks: Quirks, notes: Notes) -> None:
        super().__init__(request, home, quirks, notes)
        self._names = {
            call.id: call.name
            for message in self.messages
            if isinstance(message, m.Assistant)
            for call in message.tool_calls
        }

    def user(self, message: m.User, path: str) -> None:
        self.written.append({"role": "user", **self._content(message.content, path)})

    def result(self, message: m.ToolResult, sent: str, at: int, path: str) -> None:
        named = {"role": "tool", "tool_name": self._names[sent]}
        self.written.append({**named, **self._content(message.content, path)})

    def _content(self, content: str | Sequence[m.UserBlock], path: str) -> dict[str, Any]:
        if isinstance(content, str):
            return {"content": content}
        parts = list(zip(content, self.parts(content, path), strict=True))
        texts = [part for block, part in parts if isinstance(block, m.Text)]
        images = [part for block, part in parts if not isinstance(block, m.Text)]
        return {"content": "\n".join(texts), **({"images": images} if images else {})}

    def part(self, block: m.UserBlock, path: str) -> str:
        if isinstance(block, m.Text):
            return block.text
        found = read_inline(block) if isinstance(block, m.Image) else None
        if found is None:
            raise UnsupportedContentError(f"{path}: this wire takes text and inline images only")
        return found[1]

    def text(self, block: m.Text, path: str) -> tuple[str, str]:
        return "content", block.text

    def thinking(self, block: m.Thinking, path: str) -> Any:
        if block.continuity is not None and not block.continuity.replayable:
            return self.drop(block, path)
        return "thinking", block.text

    def call(self, block: m.ToolCall, sent: str, path: str) -> tuple[str, dict[str, Any]]:
        function = {"name": block.name, "arguments": ordered_json(block.arguments)}
        return "tool_calls", {"function": function}

    def fields(self, parts: dict[str, list[Any]]) -> dict[str, Any] | None:
        text = "".join(parts.get("content", ()))
        written: dict[str, Any] = {"role": "assistant", "content": text}
        if "thinking" in parts:
            written["thinking"] = "".join(parts["thinking"])
        if "tool_calls" in parts:
            written["tool_calls"] = parts["tool_calls"]
        return written if text or len(written) > 2 else None
