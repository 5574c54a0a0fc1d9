"""Encode the conversation by the rules of this wire.

User and assistant turns alternate, so consecutive messages of one role become one turn. Tool
results come first in the turn after their calls. The server rejects a call without a result, a
result without a call, repeated call ids, empty texts, and an assistant turn that ends with
thinking. Opaque blocks are sent back unchanged, and only to their issuer.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec.structs import replace

from ...errors import UnsupportedContentError, quote
from ...messages import (
    Assistant,
    AssistantBlock,
    Audio,
    Document,
    Image,
    Inline,
    Issuer,
    Message,
    Opaque,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    User,
    UserBlock,
)
from ...validate.data_url import read_data_url
from ..codec import Note, Notes
from ..continuity import is_ours, is_welcome, note_state
from ..ids import IdRule
from ..json import ordered_json
from ..media import fit_result, refuse_audio, transcribe
from ..pairing import Call, Pairs
from .breakpoints import mark_of, take_mark
from .quirks import Quirks

BlockWriter: TypeAlias = Callable[[UserBlock, str, Notes], dict[str, Any]]
_OWN_FIELDS = frozenset({"type", "text", "thinking", "signature", "id", "name", "input"})


# --- pairing calls with their results ----------------------------------------------------------


class _Turns(Pairs):
    """Pair tool calls with results, and find the calls of server-side tools.

    A call of a server-side tool is sent back only if it has a result or is still running.
    """

    def __init__(self, messages: Sequence[Message], first: int, rule: IdRule | None) -> None:
        super().__init__(messages, first, rule)
        # ``served``: ids of server-side tool calls that have a result or are still running.
        # ``serving``: ids of all server-side tool calls.
        self.served: set[str] = set()
        self.serving: set[str] = set()
        for message in messages:
            for block in message.content if type(message) is Assistant else ():
                self._note(block)

    def _note(self, block: AssistantBlock) -> None:
        if type(block) is ToolCall:
            caller = _extras_of(block).get("caller")
            if isinstance(caller, dict) and isinstance(caller.get("tool_id"), str):
                self.served.add(caller["tool_id"])
        elif type(block) is Opaque and isinstance(block.data, dict):
            if isinstance(block.data.get("tool_use_id"), str):
                self.served.add(block.data["tool_use_id"])
            elif isinstance(block.data.get("id"), str):
                self.serving.add(block.data["id"])


# --- writing turns -----------------------------------------------------------------------------


def write_turns(
    messages: Sequence[Message],
    first: int,
    home: Issuer,
    quirks: Quirks,
    notes: Notes,
    write_block: BlockWriter | None = None,
) -> list[dict[str, Any]]:
    """Return the conversation as turns, without the system prompt.

    ``first`` is the index, in the request, of the first message after the system prompt. A wire
    with the same turn rules but other block formats passes ``write_block``, which encodes the
    blocks of user messages and tool results.
    """
    writer = _Writer(
        _Turns(messages, first, quirks.id_rule),
        home,
        notes,
        omit_media=quirks.result_media == "omit",
    )
    if write_block is not None:
        writer.write_block = write_block
    for at, message in enumerate(messages, first):
        kind, path = type(message), f"messages[{at}]"
        if kind is User:
            writer.user(message, path)  # type: ignore[arg-type]
        elif kind is Assistant:
            writer.assistant(message, at, path)  # type: ignore[arg-type]
        else:
            writer.result(message, at, path)  # type: ignore[arg-type]
    return writer.turns


class _Writer:
    def __init__(self, pairs: _Turns, home: Issuer, notes: Notes, *, omit_media: bool) -> None:
        self._omit_media = omit_media
        self.write_block: BlockWriter = _write_block
        self.turns: list[dict[str, Any]] = []
        self._pairs = pairs
        self._home = home
        self._notes = notes
        # Maps the index of each assistant message to the position of its turn.
        self._asked: dict[int, int] = {}

    def _turn(self, role: str) -> list[Any]:
        """Return the blocks of the current turn; begin a new turn if the role differs."""
        if not self.turns or self.turns[-1]["role"] != role:
            self.turns.append({"role": role, "content": []})
        return _as_blocks(self.turns[-1])

    def user(self, message: User, path: str) -> None:
        if isinstance(message.content, str):
            if message.cache or (self.turns and self.turns[-1]["role"] == "user"):
                self._turn("user").append(
                    {"type": "text", "text": message.content, **mark_of(message)}
                )
            else:
                self.turns.append({"role": "user", "content": message.content})
            return
        note_state(message, path, self._notes)
        blocks = self._blocks(message.content, path)
        blocks[-1] |= mark_of(message)
        self._turn("user").extend(blocks)

    def _blocks(self, blocks: Sequence[UserBlock], path: str) -> list[dict[str, Any]]:
        return [
            self.write_block(block, f"{path}.content[{at}]", self._notes)
            for at, block in enumerate(blocks)
        ]

    def _try_block(self, block: Image | Document | Audio, path: str) -> None:
        """Raise an error if the medium in this block cannot be part of a tool result.

        Audio is allowed only in user messages.
        """
        if isinstance(block, Audio):
            refuse_audio(block, path)
        self.write_block(block, path, Notes())

    def assistant(self, message: Assistant, at: int, path: str) -> None:
        blocks = _AssistantWriter(message, at, path, self._pairs, self._home, self._notes).write()
        if blocks:
            self._turn("assistant").extend(blocks)
            self._asked[at] = len(self.turns) - 1
        else:
            self._notes.drop(
                path, "message_dropped", "nothing of the message can be sent on this wire"
            )

    def result(self, message: ToolResult, at: int, path: str) -> None:
        call = self._pairs.answers.get(at)
        if call is None:
            self._notes.drop(path, "orphan_result_dropped", "the call it answers cannot be sent")
            return
        message = fit_result(message, path, self._notes, self._try_block, omit=self._omit_media)
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": self._pairs.ids[call]}
        if isinstance(message.content, str):
            block["content"] = message.content
        elif message.content:
            note_state(message, path, self._notes)
            block["content"] = self._blocks(message.content, path)
            message = replace(message, cache=take_mark(block["content"]) or message.cache)
        if message.is_error:
            block["is_error"] = True
        block |= mark_of(message)
        if self._pairs.ids[call] != message.tool_call_id:
            self._notes.rewrite(
                f"{path}.tool_call_id", "id_projected", "as in the call it answers"
            )
        self._place(block, self._asked[call.message] + 1, path)

    def _place(self, block: dict[str, Any], turn: int, path: str) -> None:
        """Insert a tool result at the start of the turn after its call, as the wire requires."""
        if turn == len(self.turns):
            self.turns.append({"role": "user", "content": []})
        blocks = _as_blocks(self.turns[turn])
        place = next(
            (at for at, other in enumerate(blocks) if other["type"] != "tool_result"), len(blocks)
        )
        if place < len(blocks) or turn < len(self.turns) - 1:
            self._notes.rewrite(
                path, "order_lost", "a result is sent right after its call on this wire", loss=True
            )
        blocks.insert(place, block)


def _as_blocks(turn: dict[str, Any]) -> list[Any]:
    if isinstance(turn["content"], str):
        turn["content"] = [{"type": "text", "text": turn["content"]}]
    blocks: list[Any] = turn["content"]
    return blocks


# --- writing messages of users and tools -------------------------------------------------------


def _write_block(block: UserBlock, path: str, notes: Notes) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text, **mark_of(block)}
    if isinstance(block, Image):
        if block.detail is not None:
            notes.drop(f"{path}.detail", "detail_dropped", "this wire has no such hint")
        return {"type": "image", "source": _write_source(block, path), **mark_of(block)}
    if isinstance(block, Audio):
        refuse_audio(block, path)
    titled = {} if block.name is None else {"title": block.name}
    return {"type": "document", "source": _write_document(block, path), **titled, **mark_of(block)}


def _write_source(block: Image | Document, path: str) -> dict[str, Any]:
    source = block.source
    if isinstance(source, Inline):
        return {"type": "base64", "media_type": block.media_type, "data": source.base64_data}
    if not source.url.startswith("data:"):
        return {"type": "url", "url": source.url}
    # Media in a data: URL are sent inline, because the server fetches only http URLs.
    found = read_data_url(source.url)
    if found is None or found[0] is None:
        raise UnsupportedContentError(
            f"{path}: this wire takes data: URLs in base64 with a media type only"
        )
    return {"type": "base64", "media_type": found[0], "data": found[1]}


def _write_document(block: Document, path: str) -> dict[str, Any]:
    written = _write_source(block, path)
    kind = written.get("media_type", block.media_type)
    if kind == "text/plain" and written["type"] == "base64":
        return {"type": "text", "media_type": kind, "data": _read_text(written["data"], path)}
    if kind != "application/pdf":
        raise UnsupportedContentError(
            f"{path}: this wire takes PDF, and plain text inline, not {quote(kind)}"
        )
    return written


def _read_text(data: str, path: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode("utf-8")
    except (binascii.Error, ValueError) as error:
        raise UnsupportedContentError(
            f"{path}: the document is not UTF-8 text in base64"
        ) from error


# --- writing messages of the model -------------------------------------------------------------


def _extras_of(block: AssistantBlock) -> dict[str, Any]:
    """Return the provider-specific fields that the decoder stored with a block."""
    state = block.continuity
    return state.opaque if state is not None and isinstance(state.opaque, dict) else {}


def _foreign_fields(extras: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in extras.items() if name not in _OWN_FIELDS}


class _AssistantWriter:
    """Encode one assistant message."""

    def __init__(
        self, message: Assistant, at: int, path: str, pairs: _Turns, home: Issuer, notes: Notes
    ) -> None:
        self._message = message
        self._at = at
        self._path = path
        self._pairs = pairs
        self._home = home
        self._notes = notes
        self._has_text = any(
            type(block) is Text and block.text.strip() for block in message.content
        )

    def write(self) -> list[dict[str, Any]]:
        written: list[tuple[str, dict[str, Any]]] = []
        for index, block in enumerate(self._message.content):
            path = f"{self._path}.content[{index}]"
            made = self._block(block, index, path)
            if made is not None:
                written.append((path, made))
        while written and written[-1][1].get("type") in ("thinking", "redacted_thinking"):
            # A turn cannot end with thinking. The block after this thinking was truncated or
            # dropped.
            path, _ = written.pop()
            self._notes.drop(
                path, "thinking_dropped", "the wire takes no turn that ends with thinking"
            )
        return [made for _, made in written]

    def _block(self, block: AssistantBlock, index: int, path: str) -> dict[str, Any] | None:
        if isinstance(block, Text):
            return self._text(block, path)
        if isinstance(block, ToolCall):
            return self._call(block, Call(self._at, index), path)
        if isinstance(block, Opaque):
            return self._opaque(block, path)
        if isinstance(block, Thinking):
            return self._thinking(block, path)
        if isinstance(block, Audio):
            said = transcribe(block, path, self._notes)
            return None if said is None else {"type": "text", "text": said}
        if isinstance(block, Image):
            return self._drop(block, path, "this wire has no pictures of the model")
        if block.continuity is None or is_welcome(block.continuity, self._home):
            return {"type": "redacted_thinking", "data": block.data}
        return self._drop(block, path, "only its issuer can read it")

    def _drop(self, block: AssistantBlock, path: str, why: str) -> dict[str, Any] | None:
        self._notes.drop(path, f"{block.__struct_config__.tag}_dropped", why)
        return None

    def _text(self, block: Text, path: str) -> dict[str, Any] | None:
        if not block.text or not (self._has_text or block.text.strip()):
            blank = Note(
                "dropped", "blank_text_dropped", path, "the wire takes no blank text", loss=False
            )
            self._notes.items.append(blank)
            return None
        return {"type": "text", "text": block.text, **self._extras(block, path), **mark_of(block)}

    def _thinking(self, block: Thinking, path: str) -> dict[str, Any] | None:
        state = block.continuity
        if state is None or not state.signature:
            return self._drop(block, path, "the wire takes back only thinking that it signed")
        if not is_welcome(state, self._home):
            return self._drop(block, path, "its signature is another issuer's, or was cut off")
        extras = _foreign_fields(_extras_of(block)) if is_ours(state, self._home) else {}
        return {"type": "thinking", "thinking": block.text, "signature": state.signature, **extras}

    def _call(self, block: ToolCall, call: Call, path: str) -> dict[str, Any] | None:
        sent = self._pairs.ids.get(call)
        if sent is None:
            self._notes.drop(
                path, "dangling_call_dropped", "the wire takes no call without its result"
            )
            return None
        if sent != block.id:
            self._notes.rewrite(
                path, "id_projected", "the wire does not take this id; call and result get another"
            )
        made = {
            "type": "tool_use",
            "id": sent,
            "name": block.name,
            "input": ordered_json(block.arguments),
        }
        return {**made, **self._extras(block, path)}

    def _opaque(self, block: Opaque, path: str) -> dict[str, Any] | None:
        if not is_ours(block.continuity, self._home) or not isinstance(block.data, dict):
            return self._drop(block, path, "only its issuer can read it")
        answered = block.data.get("tool_use_id")
        if isinstance(answered, str) and answered not in self._pairs.serving:
            return self._drop(block, path, "the call it answers is missing")
        own_id = block.data.get("id")
        served = isinstance(own_id, str) and own_id in self._pairs.served
        if str(block.data.get("type")).endswith("tool_use") and not served:
            self._notes.drop(
                path, "dangling_call_dropped", "the provider's own call has no result"
            )
            return None
        return dict(block.data)

    def _extras(self, block: Text | ToolCall, path: str) -> dict[str, Any]:
        """Return the provider-specific fields of a block, if the request goes to that provider."""
        state, extras = block.continuity, _extras_of(block)
        if state is None or not (state.opaque or state.signature):
            return {}
        if extras and is_ours(state, self._home):
            return _foreign_fields(extras)
        self._notes.drop(
            f"{path}.continuity",
            "continuity_dropped",
            "state of another issuer, or cut off, is not sent",
        )
        return {}
