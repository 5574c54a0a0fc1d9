"""Encode the conversation by the rules of the anthropic wire.

User and assistant turns alternate, so consecutive messages of one role become one turn. Tool
results come first in the turn after their calls. The server rejects a call without a result, a
result without a call, repeated call ids, empty texts, and an assistant turn that ends with
thinking. Opaque blocks are sent back unchanged, and only to their issuer.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ... import messages as m
from ...errors import UnsupportedContentError, quote
from ...validate.data_url import read_inline
from ..cache_marks import mark_of, take_mark
from ..codec import Note, Notes
from ..continuity import is_ours, is_welcome
from ..conversation import CONTINUE, PairedWriter
from ..json import dict_of, dig, ordered_json
from ..media import read_text, refuse_audio
from ..urls import media_url
from .quirks import Quirks

# The fields of a block that Dragoman has attributes for.
_OWN_FIELDS = frozenset({"type", "text", "thinking", "signature", "id", "name", "input"})
_BLANK = "the wire takes no blank text"
_SILENT = "the model rejects thinking in a turn that it finishes without reasoning"


class TurnWriter(PairedWriter):
    """Write the turns of a conversation, without the system prompt."""

    unfinished = ("thinking", "redacted_thinking")
    sends_compaction_first = True
    media_fields = ("name",)
    # "role 'system' must precede an 'assistant' message or end the array"
    # (anthropics/claude-code#73821, 2026-07-03)
    system_ends_turn = True

    def __init__(self, request: m.Request, home: m.Issuer, quirks: Quirks, notes: Notes) -> None:
        super().__init__(request, home, quirks, notes)
        # The index of the first message whose thinking is not sent, because the model rejects it.
        self.silent_from: int | None = None
        # Whether a turn without thinking begins with a blank thought, which the server demands.
        self.needs_thought = False
        self._at = 0  # the index of the message that is being written
        # Maps the index of each assistant message to the position of its turn.
        self._asked: dict[int, int] = {}
        # ``served``: ids of server-side tool calls that have a result or are still running. A call
        # of a server-side tool is sent back only then.
        # ``serving``: ids of all server-side tool calls.
        self._served: set[str] = set()
        self._serving: set[str] = set()
        for message in self.messages:
            for block in message.content if type(message) is m.Assistant else ():
                self._note_server_tool(block)

    def _note_server_tool(self, block: m.AssistantBlock) -> None:
        if type(block) is m.ToolCall:
            if isinstance(caller := dig(_extras_of(block), "caller", "tool_id"), str):
                self._served.add(caller)
        elif type(block) is m.Opaque and isinstance(block.data, dict):
            if isinstance(block.data.get("tool_use_id"), str):
                self._served.add(block.data["tool_use_id"])
            elif isinstance(block.data.get("id"), str):
                self._serving.add(block.data["id"])

    def write(self) -> list[Any]:
        written = super().write()
        if self.quirks.prefill or not written or written[-1]["role"] != "assistant":
            return written
        # A turn that a server tool has paused is continued by sending it back.
        if _as_blocks(written[-1])[-1]["type"] == "text":
            path = f"messages[{self.first + len(self.messages) - 1}]"
            why = "the model does not continue a message, so a message of the user asks for it"
            self.notes.rewrite(path, "prefill_rewritten", why, loss=True)
            written.append({"role": "user", "content": CONTINUE})
        return written

    def message(self, message: m.Message, at: int) -> None:
        self._at = at
        super().message(message, at)

    def _is_silent(self) -> bool:
        return self.silent_from is not None and self._at >= self.silent_from

    def _open(self, role: str) -> list[Any]:
        """Return the blocks of the current turn; begin a new turn if the role differs."""
        if not self.written or self.written[-1]["role"] != role:
            self.written.append({"role": role, "content": []})
        return _as_blocks(self.written[-1])

    # --- messages of users and tools

    def user(self, message: m.User, path: str) -> None:
        if not isinstance(message.content, str):
            blocks = self._omit_blank(self.parts(message.content, path), path)
            blocks[-1] |= mark_of(message)
            self._open("user").extend(blocks)
        else:
            self._write_text("user", message)

    def _omit_blank(self, blocks: list[Any], path: str) -> list[Any]:
        """Return the blocks of a message of the user without blank texts, if others are left.

        "text content blocks must contain non-whitespace text" (anthropics/claude-code#23440,
        2026-02-05; on Bedrock NousResearch/hermes-agent#41985, 2026-06-08).
        """
        is_blank = [block["type"] == "text" and not block["text"].strip() for block in blocks]
        if all(is_blank):
            return blocks
        for at in [at for at, blank in enumerate(is_blank) if blank]:
            place = f"{path}.content[{at}]"
            note = Note(
                outcome="dropped", code="blank_text_dropped", path=place, detail=_BLANK, loss=False
            )
            self.notes.items.append(note)
        return [block for block, blank in zip(blocks, is_blank, strict=True) if not blank]

    def _write_text(self, role: str, message: m.User | m.System) -> None:
        """Write a message that is one text; consecutive messages of a role are one turn."""
        if message.cache or (self.written and self.written[-1]["role"] == role):
            block = {"type": "text", "text": message.content, **mark_of(message)}
            self._open(role).append(block)
        else:
            self.written.append({"role": role, "content": message.content})

    def system_message(self, message: m.System, path: str) -> None:
        self._write_text("system", message)

    def part(self, block: m.UserBlock, path: str) -> dict[str, Any]:
        if isinstance(block, m.Text):
            return {"type": "text", "text": block.text, **mark_of(block)}
        if isinstance(block, m.Image):
            return {"type": "image", "source": _write_source(block, path), **mark_of(block)}
        if isinstance(block, m.Audio):
            refuse_audio(block, path)
        titled = {} if block.name is None else {"title": block.name}
        source = _write_document(block, path)
        return {"type": "document", "source": source, **titled, **mark_of(block)}

    def check_medium(self, block: m.Image | m.Document | m.Audio, path: str) -> None:
        if isinstance(block, m.Audio):  # allowed only in messages of the user
            refuse_audio(block, path)
        super().check_medium(block, path)

    def result(self, message: m.ToolResult, sent: str, at: int, path: str) -> None:
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": sent}
        is_marked = message.cache
        if isinstance(message.content, str):
            block["content"] = message.content
        elif message.content:
            block["content"] = self.parts(message.content, path)
            is_marked = take_mark(block["content"]) or is_marked
        if message.is_error:
            block["is_error"] = True
        block |= mark_of(replace(message, cache=is_marked))
        self._place(block, self._asked[self.pairs.answers[at].message] + 1, path)

    def _place(self, block: dict[str, Any], turn: int, path: str) -> None:
        """Insert a tool result at the start of the turn after its call, as the wire requires."""
        if turn == len(self.written):
            self.written.append({"role": "user", "content": []})
        blocks = _as_blocks(self.written[turn])
        place = next(
            (at for at, other in enumerate(blocks) if other["type"] != "tool_result"), len(blocks)
        )
        if place < len(blocks) or turn < len(self.written) - 1:
            why = "a result is sent right after its call on this wire"
            self.notes.rewrite(path, "order_lost", why, loss=True)
        blocks.insert(place, block)

    # --- messages of the model

    def turn(self, parts: list[Any], at: int, path: str) -> bool:
        turn = self._open("assistant")
        thoughts = ("thinking", "redacted_thinking")
        if self.needs_thought and not any(part["type"] in thoughts for part in (*turn, *parts)):
            turn.insert(0, {"type": "thinking", "thinking": " ", "signature": ""})
        turn.extend(parts)
        self._asked[at] = len(self.written) - 1
        return True

    def text(self, block: m.Text, path: str) -> Any:
        if not block.text.strip():
            return self.drop(block, path, _BLANK, code="blank_text_dropped", loss=False)
        own = foreign_fields(self.own_fields(block, path))
        return {"type": "text", "text": block.text, **own, **mark_of(block)}

    def thinking(self, block: m.Thinking, path: str) -> Any:
        state = block.continuity
        if state is None or not state.signature:
            if self.quirks.unsigned_thinking and block.text:
                return {"type": "thinking", "thinking": block.text, "signature": ""}
            return self.drop(block, path, "the wire takes back only thinking that it signed")
        if not is_welcome(state, self.home):
            return self.drop(block, path, "its signature is another issuer's, or was cut off")
        if self._is_silent():
            return self.drop(block, path, _SILENT)
        extras = foreign_fields(_extras_of(block)) if is_ours(state, self.home) else {}
        return {"type": "thinking", "thinking": block.text, "signature": state.signature, **extras}

    def redacted(self, block: m.RedactedThinking, path: str) -> Any:
        if self._is_silent():
            return self.drop(block, path, _SILENT)
        if block.continuity is None or is_welcome(block.continuity, self.home):
            return {"type": "redacted_thinking", "data": block.data}
        return self.drop(block, path, "only its issuer can read it")

    def call(self, block: m.ToolCall, sent: str, path: str) -> dict[str, Any]:
        given = {"id": sent, "name": block.name, "input": ordered_json(block.arguments)}
        return {"type": "tool_use", **given, **foreign_fields(self.own_fields(block, path))}

    def opaque(self, block: m.Opaque, path: str) -> Any:
        if not is_ours(block.continuity, self.home) or not isinstance(block.data, dict):
            return self.drop(block, path, "only its issuer can read it")
        answered = block.data.get("tool_use_id")
        if isinstance(answered, str) and answered not in self._serving:
            return self.drop(block, path, "the call it answers is missing")
        own_id = block.data.get("id")
        served = isinstance(own_id, str) and own_id in self._served
        if str(block.data.get("type")).endswith("tool_use") and not served:
            why = "the provider's own call has no result"
            return self.drop(block, path, why, code="dangling_call_dropped")
        return dict(block.data)


def _as_blocks(turn: dict[str, Any]) -> list[Any]:
    if isinstance(turn["content"], str):
        turn["content"] = [{"type": "text", "text": turn["content"]}]
    blocks: list[Any] = turn["content"]
    return blocks


def _extras_of(block: m.AssistantBlock) -> dict[str, Any]:
    """Return the provider-specific fields that the decoder stored with a block."""
    return {} if block.continuity is None else dict_of(block.continuity.opaque)


def foreign_fields(block: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a block that Dragoman has no attributes for."""
    return {name: value for name, value in block.items() if name not in _OWN_FIELDS}


# --- writing media -----------------------------------------------------------------------------


def _write_source(block: m.Image | m.Document, path: str) -> dict[str, Any]:
    found = read_inline(block)
    if found is not None and found[0] is not None:
        return {"type": "base64", "media_type": found[0], "data": found[1]}
    url = media_url(block)
    if url.startswith("data:"):  # the server fetches only http URLs
        raise UnsupportedContentError(
            f"{path}: this wire takes data: URLs in base64 with a media type only"
        )
    return {"type": "url", "url": url}


def _write_document(block: m.Document, path: str) -> dict[str, Any]:
    written = _write_source(block, path)
    kind = written.get("media_type", block.media_type)
    if kind == "text/plain" and written["type"] == "base64":
        return {"type": "text", "media_type": kind, "data": read_text(written["data"], path)}
    if kind != "application/pdf":
        raise UnsupportedContentError(
            f"{path}: this wire takes PDF, and plain text inline, not {quote(kind)}"
        )
    return written
