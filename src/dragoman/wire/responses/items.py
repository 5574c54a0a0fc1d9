"""Encode the conversation as input items of the Responses wire.

The server stores nothing, so it rejects a call without its output, an output without its call, and
reasoning without the item that follows it. Such items are not sent. Opaque items are sent back
unchanged, and only to their issuer.
"""

from __future__ import annotations

from typing import Any

from ... import messages as m
from ...errors import UnsupportedContentError, quote
from ..cache_marks import mark_part
from ..caching import has_marks
from ..codec import Notes
from ..continuity import is_ours
from ..conversation import PairedWriter
from ..json import json_text
from ..media import refuse_audio
from ..urls import media_url
from .quirks import Quirks

# Items that no reply has as an opaque block. A client could forge a sealed block with one, to read
# an item that the server keeps for others, or to add tools and instructions that are not checked.
_NEVER_OPAQUE = frozenset(
    {"additional_tools", "function_call", "function_call_output", "item_reference"}
)
_INSTRUCTING = ("developer", "system")
# Item types of calls that the caller runs, other than function calls. The server requires an
# output for each such call.
_CALLS = frozenset(
    {
        "apply_patch_call", "computer_call", "custom_tool_call", "local_shell_call", "shell_call",
        "tool_search_call",
    }
)  # fmt: skip


class ItemWriter(PairedWriter):
    """Write the conversation as input items, without the system prompt."""

    can_mark_errors = False
    # The server answers 400 to reasoning without the item that follows it.
    unfinished = ("reasoning",)

    def __init__(self, request: m.Request, home: m.Issuer, quirks: Quirks, notes: Notes) -> None:
        super().__init__(request, home, quirks, notes)
        self.marks = (
            quirks.cache_form == "breakpoints"
            and request.config.cache != "off"
            and has_marks(request)
        )
        # The call_id of each opaque item, paired with whether the item is an output.
        self._own: set[tuple[str, bool]] = set()
        for message in self.messages:
            for block in message.content if isinstance(message, m.Assistant) else ():
                if isinstance(block, m.Opaque) and is_ours(block.continuity, home):
                    item: dict[str, Any] = block.data if isinstance(block.data, dict) else {}
                    kind = item.get("type")
                    call_id = item.get("call_id")
                    if isinstance(kind, str) and isinstance(call_id, str):
                        self._own.add((call_id, kind.endswith("_output")))

    # --- messages of users and tools

    def user(self, message: m.User, path: str) -> None:
        content = message.content
        plain = isinstance(content, str) or (len(content) == 1 and isinstance(content[0], m.Text))
        written = message.text if plain else self.parts(content, path)
        item = {"type": "message", "role": "user", "content": written}
        self.written.append(item)
        if self.marks:
            mark_part(item, "content", message)

    def system_message(self, message: m.System, path: str) -> None:
        # The role of Codex, whose instructions come between the turns; some servers of this wire
        # answer "System messages are not allowed" (router-for-me/CLIProxyAPI#4092, 2026-07-03).
        self.written.append({"type": "message", "role": "developer", "content": message.content})
        if self.marks:
            mark_part(self.written[-1], "content", message)

    def part(self, block: m.UserBlock, path: str) -> dict[str, Any]:
        if isinstance(block, m.Text):
            return {"type": "input_text", "text": block.text}
        if isinstance(block, m.Audio):
            refuse_audio(block, path)
        url = media_url(block)
        if isinstance(block, m.Image):
            detail = {} if block.detail is None else {"detail": block.detail}
            return {"type": "input_image", "image_url": url, **detail}
        if url.startswith("data:"):
            is_pdf = block.media_type == "application/pdf"
            name = block.name or ("document.pdf" if is_pdf else "document")
            return {"type": "input_file", "filename": name, "file_data": url}
        if block.name is not None:
            self.notes.drop(f"{path}.name", "name_dropped", "this wire has no name for a URL")
        return {"type": "input_file", "file_url": url}

    def result(self, message: m.ToolResult, sent: str, at: int, path: str) -> None:
        content = message.content
        # Output that is only text is sent as a string, because llama.cpp and vLLM reject a list of
        # parts.
        plain = isinstance(content, str) or all(isinstance(block, m.Text) for block in content)
        output = message.text if plain else self.parts(content, path)
        item = {"type": "function_call_output", "call_id": sent, "output": output}
        self.written.append(item)
        if self.marks:
            mark_part(item, "output", message)

    # --- messages of the model

    def turn(self, parts: list[Any], at: int, path: str) -> bool:
        self.written += parts
        return True

    def text(self, block: m.Text, path: str) -> Any:
        if not block.text:
            why = "the wire takes no blank text"
            return self.drop(block, path, why, code="blank_text_dropped", loss=False)
        own = self.own_fields(block, path)
        part: dict[str, Any] = {"type": "output_text", "text": block.text}
        if "annotations" in own:
            part["annotations"] = own["annotations"]
        plain = self.quirks.assistant_text == "plain" and "annotations" not in own
        item = {"type": "message", "role": "assistant", "content": block.text if plain else [part]}
        if "phase" in own:
            item["phase"] = own["phase"]
        return item

    def call(self, block: m.ToolCall, sent: str, path: str) -> dict[str, Any]:
        given = {"call_id": sent, "name": block.name, "arguments": json_text(block.arguments)}
        return {**self.own_fields(block, path), "type": "function_call", **given}

    def thinking(self, block: m.Thinking, path: str) -> Any:
        item = block.continuity.opaque if block.continuity is not None else None
        if (
            not isinstance(item, dict)
            or item.get("type") != "reasoning"
            or not is_ours(block.continuity, self.home)
        ):
            why = "only the issuer of reasoning takes it back, complete and unchanged"
            return self.drop(block, path, why)
        if item.get("status") in ("incomplete", "in_progress"):
            return self.drop(block, path, "the reasoning was cut off")
        if not item.get("encrypted_content") and self.quirks.send_reasoning == "encrypted":
            return self.drop(block, path, "reasoning that is not encrypted is not taken back")
        return item

    def opaque(self, block: m.Opaque, path: str) -> Any:
        item: dict[str, Any] = block.data if isinstance(block.data, dict) else {}
        kind = item.get("type")
        call_id = item.get("call_id")
        if not isinstance(kind, str) or not is_ours(block.continuity, self.home):
            return self.drop(block, path, "only its issuer can read it")
        if kind in _NEVER_OPAQUE or item.get("role") in _INSTRUCTING:
            raise UnsupportedContentError(
                f"{path}: an opaque item of type {quote(kind)} is not from a reply; send it as an"
                " item of the Responses API"
            )
        is_output = kind.endswith("_output")
        paired = isinstance(call_id, str) and (is_output or kind in _CALLS)
        if paired and (call_id, not is_output) not in self._own:
            why = "the wire takes no call without its output"
            return self.drop(block, path, why, code="dangling_call_dropped")
        return item

    def picture(self, block: m.Image, path: str) -> Any:
        own = block.continuity.opaque if block.continuity is not None else None
        if (
            not isinstance(own, dict)
            or not isinstance(block.source, m.Inline)
            or not is_ours(block.continuity, self.home)
        ):
            why = "only the issuer of a picture takes it back as the model's own"
            return self.drop(block, path, why)
        return {**own, "result": block.source.base64_data}
