"""Encode the conversation as input items of this wire.

The server stores nothing, so it rejects a call without its output, an output without its call, and
reasoning without the item that follows it. Such items are not sent. Opaque items are sent back
unchanged, and only to their issuer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import InvalidRequestError
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
from ..codec import Note, Notes
from ..continuity import is_ours, note_state
from ..ids import IdRule
from ..json import json_text
from ..media import fit_result, refuse_audio, transcribe
from ..pairing import Call, Pairs
from ..urls import media_url
from .quirks import Quirks

# Item types of calls that the caller runs, other than function calls. The server requires an
# output for each such call.
_CALLS = frozenset(
    {
        "apply_patch_call",
        "computer_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "tool_search_call",
    }
)


def write_input(
    messages: Sequence[Message], first: int, home: Issuer, quirks: Quirks, notes: Notes
) -> list[dict[str, Any]]:
    """Return the conversation as input items, without the system prompt.

    ``first`` is the index, in the request, of the first message after the system prompt.
    """
    writer = _Writer(_Items(messages, first, home, quirks.id_rule), home, quirks, notes)
    for at, message in enumerate(messages, first):
        if isinstance(message, User):
            writer.user(message, f"messages[{at}]")
        elif isinstance(message, Assistant):
            writer.assistant(message, at, f"messages[{at}]")
        elif isinstance(message, ToolResult):
            writer.result(message, at, f"messages[{at}]")
        else:
            raise InvalidRequestError(
                f"messages[{at}]: a system message may only lead the conversation"
            )
    return writer.items


# --- pairing function calls with their outputs -------------------------------------------------


class _Items(Pairs):
    """Pair calls with their outputs, both for function calls and for calls in opaque items."""

    def __init__(
        self, messages: Sequence[Message], first: int, home: Issuer, rule: IdRule | None
    ) -> None:
        super().__init__(messages, first, rule)
        # The call_id of each opaque item, paired with whether the item is an output.
        self.own: set[tuple[str, bool]] = set()
        for message in messages:
            for block in message.content if isinstance(message, Assistant) else ():
                if (
                    isinstance(block, Opaque)
                    and isinstance(block.data, dict)
                    and is_ours(block.continuity, home)
                ):
                    kind, call_id = block.data.get("type"), block.data.get("call_id")
                    if isinstance(kind, str) and isinstance(call_id, str):
                        self.own.add((call_id, kind.endswith("_output")))


# --- writing turns as items --------------------------------------------------------------------


class _Writer:
    def __init__(self, pairs: _Items, home: Issuer, quirks: Quirks, notes: Notes) -> None:
        self.items: list[dict[str, Any]] = []
        self._pairs = pairs
        self._home = home
        self._quirks = quirks
        self._notes = notes

    def user(self, message: User, path: str) -> None:
        content = message.content
        note_state(message, path, self._notes)
        plain = isinstance(content, str) or (len(content) == 1 and isinstance(content[0], Text))
        said = message.text if plain else _write_parts(content, path, self._notes)
        self.items.append({"type": "message", "role": "user", "content": said})

    def result(self, message: ToolResult, at: int, path: str) -> None:
        call = self._pairs.answers.get(at)
        if call is None:
            self._notes.drop(path, "orphan_result_dropped", "the call it answers cannot be sent")
            return
        omit = self._quirks.result_media == "omit"
        message = fit_result(message, path, self._notes, _write_medium, omit=omit)
        call_id = self._pairs.ids[call]
        if call_id != message.tool_call_id:
            self._notes.rewrite(
                f"{path}.tool_call_id", "id_projected", "as in the call it answers"
            )
        if message.is_error:
            why = "this wire cannot mark a result as an error"
            self._notes.rewrite(f"{path}.is_error", "is_error_dropped", why, loss=True)
        note_state(message, path, self._notes)
        content = message.content
        # Output that is only text is sent as a string, because llama.cpp and vLLM reject a list of
        # parts.
        plain = isinstance(content, str) or all(isinstance(block, Text) for block in content)
        output = message.text if plain else _write_parts(content, path, self._notes)
        self.items.append({"type": "function_call_output", "call_id": call_id, "output": output})

    def assistant(self, message: Assistant, at: int, path: str) -> None:
        written: list[tuple[str, dict[str, Any]]] = []
        for index, block in enumerate(message.content):
            where = f"{path}.content[{index}]"
            item = self._block(block, Call(at, index), where)
            if item is not None:
                written.append((where, item))
        # The server answers 400 to reasoning without the item that follows it.
        while written and written[-1][1]["type"] == "reasoning":
            where, _ = written.pop()
            self._notes.drop(
                where, "thinking_dropped", "what it led to was cut off or cannot be sent"
            )
        if not written:
            self._notes.drop(
                path, "message_dropped", "nothing of the message can be sent on this wire"
            )
        self.items += [item for _, item in written]

    def _block(self, block: AssistantBlock, call: Call, path: str) -> dict[str, Any] | None:
        if isinstance(block, Text):
            return self._text(block, path)
        if isinstance(block, ToolCall):
            return self._call(block, call, path)
        if isinstance(block, Thinking):
            return self._thinking(block, path)
        if isinstance(block, Opaque):
            return self._opaque(block, path)
        if isinstance(block, Image):
            return self._picture(block, path)
        if isinstance(block, Audio):
            said = transcribe(block, path, self._notes)
            return None if said is None else self._text(Text(said), path)
        return self._drop(block, path, "this wire has no place for it")

    def _drop(self, block: AssistantBlock, path: str, why: str) -> dict[str, Any] | None:
        self._notes.drop(path, f"{block.__struct_config__.tag}_dropped", why)
        return None

    def _text(self, block: Text, path: str) -> dict[str, Any] | None:
        if not block.text:
            self._notes.items.append(
                Note("dropped", "blank_text_dropped", path, "there is nothing in it", loss=False)
            )
            return None
        own = self._own_fields(block, path)
        part: dict[str, Any] = {"type": "output_text", "text": block.text}
        if "annotations" in own:
            part["annotations"] = own["annotations"]
        plain = self._quirks.assistant_text == "plain" and "annotations" not in own
        item = {"type": "message", "role": "assistant", "content": block.text if plain else [part]}
        if "phase" in own:
            item["phase"] = own["phase"]
        return item

    def _call(self, block: ToolCall, call: Call, path: str) -> dict[str, Any] | None:
        call_id = self._pairs.ids.get(call)
        if call_id is None:
            self._notes.drop(
                path, "dangling_call_dropped", "the wire takes no call without its result"
            )
            return None
        if call_id != block.id:
            self._notes.rewrite(
                path, "id_projected", "the wire does not take this id; call and result get another"
            )
        item = {
            "type": "function_call",
            "call_id": call_id,
            "name": block.name,
            "arguments": json_text(block.arguments),
        }
        return {**self._own_fields(block, path), **item}

    def _thinking(self, block: Thinking, path: str) -> dict[str, Any] | None:
        item = block.continuity.opaque if block.continuity is not None else None
        if (
            not isinstance(item, dict)
            or item.get("type") != "reasoning"
            or not is_ours(block.continuity, self._home)
        ):
            return self._drop(
                block, path, "only the issuer of reasoning takes it back, whole and as it came"
            )
        if item.get("status") in ("incomplete", "in_progress"):
            return self._drop(block, path, "the reasoning was cut off")
        if not item.get("encrypted_content") and self._quirks.send_reasoning == "encrypted":
            return self._drop(block, path, "reasoning that is not encrypted is not taken back")
        return item

    def _opaque(self, block: Opaque, path: str) -> dict[str, Any] | None:
        item: dict[str, Any] = block.data if isinstance(block.data, dict) else {}
        kind, call_id = item.get("type"), item.get("call_id")
        if not isinstance(kind, str) or not is_ours(block.continuity, self._home):
            return self._drop(block, path, "only its issuer can read it")
        is_output = kind.endswith("_output")
        paired = isinstance(call_id, str) and (is_output or kind in _CALLS)
        if paired and (call_id, not is_output) not in self._pairs.own:
            self._notes.drop(
                path, "dangling_call_dropped", "the wire takes no call without its output"
            )
            return None
        return item

    def _picture(self, block: Image, path: str) -> dict[str, Any] | None:
        own = block.continuity.opaque if block.continuity is not None else None
        if (
            not isinstance(own, dict)
            or not isinstance(block.source, Inline)
            or not is_ours(block.continuity, self._home)
        ):
            return self._drop(
                block, path, "only the issuer of a picture takes it back as the model's own"
            )
        return {**own, "result": block.source.base64_data}

    def _own_fields(self, block: Text | ToolCall, path: str) -> dict[str, Any]:
        """Return the provider-specific fields of a block.

        They are returned only if the request goes to the issuer of the block.
        """
        state = block.continuity
        if state is None or (state.signature is None and state.opaque is None):
            return {}
        if isinstance(state.opaque, dict) and is_ours(state, self._home):
            return state.opaque
        self._notes.drop(
            f"{path}.continuity",
            "continuity_dropped",
            "state of another issuer, or cut off, is not sent",
        )
        return {}


# --- writing messages of users and tools -------------------------------------------------------


def _write_parts(content: Any, path: str, notes: Notes) -> list[dict[str, Any]]:
    return [
        _write_block(block, f"{path}.content[{at}]", notes) for at, block in enumerate(content)
    ]


def _write_block(block: UserBlock, path: str, notes: Notes) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "input_text", "text": block.text}
    if isinstance(block, Audio):
        refuse_audio(block, path)
    url = media_url(block)
    if isinstance(block, Image):
        detail = {} if block.detail is None else {"detail": block.detail}
        return {"type": "input_image", "image_url": url, **detail}
    if url.startswith("data:"):
        return {"type": "input_file", "filename": block.name or _name_of(block), "file_data": url}
    if block.name is not None:
        notes.drop(f"{path}.name", "name_dropped", "this wire has no name for a URL")
    return {"type": "input_file", "file_url": url}


def _write_medium(block: Image | Document | Audio, path: str) -> object:
    return _write_block(block, path, Notes())


def _name_of(block: Document) -> str:
    return "document.pdf" if block.media_type == "application/pdf" else "document"
