"""Encode the conversation: turns of ``user`` and ``model``, each a list of parts.

This wire pairs calls and results by position: the turn after the calls has one result for each
call, in the same order. Results are moved to that turn if necessary. A call without a result, from
a cancelled turn, is omitted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ...errors import UnsupportedContentError
from ...messages import (
    Assistant,
    AssistantBlock,
    Audio,
    Continuity,
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
from ..codec import Notes
from ..continuity import drop_state, is_ours, is_welcome, note_state
from ..ids import IdMap
from ..json import ordered_json
from ..media import fit_result
from ..pairing import Call, Pairs
from .quirks import Quirks
from .reply import write_picture

# The form of ids that the assembler generates for calls without an id: a prefix and a ULID. The
# provider does not know these ids, so they are not sent. It pairs calls and results by order.
_MINTED = re.compile(r"call_[0-9A-HJKMNP-TV-Z]{26}")


def write_contents(
    messages: Sequence[Message], first: int, target: Issuer, quirks: Quirks, notes: Notes
) -> list[dict[str, Any]]:
    """Return the conversation as contents of this wire, without the system prompt.

    ``first`` is the index, in the request, of the first message after the system prompt.
    """
    return _Writer(messages, first, target, quirks, notes).write()


class _Writer:
    def __init__(
        self, messages: Sequence[Message], first: int, target: Issuer, quirks: Quirks, notes: Notes
    ) -> None:
        self._messages = messages
        self._first = first
        self._target = target
        self._quirks = quirks
        self._notes = notes
        self._ids = IdMap(quirks.id_rule, messages)
        self._pairs = Pairs(messages, 0, None)
        self._contents: list[dict[str, Any]] = []

    def write(self) -> list[dict[str, Any]]:
        for at, message in enumerate(self._messages):
            if isinstance(message, User):
                note_state(message, self._path(at), self._notes)
                parts = self._user_parts(message.content, self._path(at))
                self._contents.append({"role": "user", "parts": parts})
            elif isinstance(message, Assistant):
                self._write_turn(message, at)
            elif at not in self._pairs.answers:
                self._notes.drop(
                    self._path(at), "result_dropped", "the call it answers is not sent"
                )
        return self._contents

    def _path(self, at: int) -> str:
        return f"messages[{self._first + at}]"

    # --- writing messages of the user

    def _user_parts(self, content: str | Sequence[UserBlock], path: str) -> list[dict[str, Any]]:
        if isinstance(content, str):
            return [{"text": content}]
        return [
            self._user_part(block, f"{path}.content[{at}]") for at, block in enumerate(content)
        ]

    def _user_part(self, block: UserBlock, path: str) -> dict[str, Any]:
        return (
            {"text": block.text}
            if isinstance(block, Text)
            else _write_media(block, path, self._notes)
        )

    # --- writing messages of the model, and the results of its calls

    def _write_turn(self, message: Assistant, at: int) -> None:
        path = self._path(at)
        parts: list[Any] = []
        calls: list[tuple[int, ToolCall]] = []
        for index, block in enumerate(message.content):
            where = f"{path}.content[{index}]"
            if not isinstance(block, ToolCall):
                parts += self._model_part(block, where)
            elif (answer := self._pairs.results.get(Call(at, index))) is not None:
                calls.append((answer, block))
                parts.append(self._write_call(block, where))
            else:
                self._notes.drop(
                    where,
                    "dangling_call_dropped",
                    "no result answers it, and the wire demands one",
                )
        if not parts:
            self._notes.drop(
                path, "message_dropped", "nothing of the message can be sent on this wire"
            )
            return
        self._stand_in(parts, path)
        self._contents.append({"role": "model", "parts": parts})
        if calls:
            self._contents.append({"role": "user", "parts": self._write_results(calls, at + 1)})

    def _model_part(self, block: AssistantBlock, where: str) -> list[Any]:
        """Encode a block of an assistant message as a list with one part.

        The list is empty if the block is not sent.
        """
        if isinstance(block, Text):
            signature = self._signature(block.continuity, where)
            return [{"text": block.text, **signature}] if block.text or signature else []
        state = block.continuity
        if isinstance(block, Audio):
            return [{**_write_media(block, where, self._notes), **self._signature(state, where)}]
        if is_ours(state, self._target):
            if isinstance(block, Thinking):
                return [{"text": block.text, "thought": True, **self._signature(state, where)}]
            if isinstance(block, Opaque):
                return [ordered_json(block.data)]
            if isinstance(block, Image):
                return [ordered_json(write_picture(block))]
        self._notes.drop(
            where,
            f"{block.__struct_config__.tag}_dropped",
            "only the model that made it takes it back",
        )
        return []

    def _write_call(self, call: ToolCall, where: str) -> dict[str, Any]:
        if call.id in self._ids:
            self._notes.rewrite(
                where,
                "id_projected",
                "the wire does not take this id; call and result get another",
            )
        inner = {**self._id_of(call), "name": call.name, "args": ordered_json(call.arguments)}
        return {"functionCall": inner, **self._signature(call.continuity, where)}

    def _write_results(
        self, calls: Sequence[tuple[int, ToolCall]], place: int
    ) -> list[dict[str, Any]]:
        parts = []
        for expected, (at, call) in enumerate(calls, place):
            if at != expected:
                self._notes.rewrite(
                    self._path(at),
                    "result_moved",
                    "results follow their calls, in the calls' order",
                )
            result = self._messages[at]
            assert isinstance(result, ToolResult)
            parts.append(self._write_result(result, call, self._path(at)))
        return parts

    def _write_result(self, result: ToolResult, call: ToolCall, path: str) -> dict[str, Any]:
        omit = self._quirks.result_media == "omit"
        result = fit_result(
            result,
            path,
            self._notes,
            lambda block, at: _write_media(block, at, Notes()),
            omit=omit,
        )
        note_state(result, path, self._notes)
        response = {"error" if result.is_error else "result": result.text}
        inner: dict[str, Any] = {**self._id_of(call), "name": call.name, "response": response}
        if not isinstance(result.content, str):
            media = [
                _write_media(block, f"{path}.content[{at}]", self._notes)
                for at, block in enumerate(result.content)
                if not isinstance(block, Text)
            ]
            if media:  # Gemini 3 accepts media in a function response; older models answer 400
                inner["parts"] = media
        return {"functionResponse": inner}

    def _id_of(self, call: ToolCall) -> dict[str, str]:
        if not self._quirks.call_ids or _MINTED.fullmatch(call.id):
            return {}
        return {"id": self._ids[call.id]}

    # --- writing opaque state

    def _signature(self, state: Continuity | None, where: str) -> dict[str, str]:
        """Return the signature of a block, if it may be sent back.

        A signature whose issuer is unknown may be sent back.
        """
        if state is None or (state.signature is None and state.opaque is None):
            return {}
        if state.signature is not None and is_welcome(state, self._target):
            return {"thoughtSignature": state.signature}
        drop_state(
            state,
            "gemini",
            where,
            self._notes,
            "state that is cut off or another issuer's is not sent",
        )
        return {}

    def _stand_in(self, parts: list[Any], path: str) -> None:
        """Add a placeholder signature to the first call of a turn if none of its calls has one."""
        calls = [part for part in parts if isinstance(part, dict) and "functionCall" in part]
        placeholder = self._quirks.placeholder_signature
        if placeholder is None or not calls or any("thoughtSignature" in call for call in calls):
            return
        calls[0]["thoughtSignature"] = placeholder
        self._notes.rewrite(
            path,
            "signature_placeholder",
            "the model demands a signature that these calls never had",
        )


# --- writing media -----------------------------------------------------------------------------

_SUFFIXES = {
    "aac": "audio/aac",
    "aiff": "audio/aiff",
    "flac": "audio/flac",
    "mp3": "audio/mp3",
    "ogg": "audio/ogg",
    "wav": "audio/wav",
    "avif": "image/avif",
    "bmp": "image/bmp",
    "gif": "image/gif",
    "heic": "image/heic",
    "heif": "image/heif",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
}


def _write_media(block: Image | Document | Audio, path: str, notes: Notes) -> dict[str, Any]:
    if isinstance(block, Image):
        if block.detail is not None:
            notes.drop(f"{path}.detail", "detail_dropped", "this wire has no place for it")
    elif isinstance(block, Document) and block.name is not None:
        notes.drop(f"{path}.name", "name_dropped", "this wire has no place for it")
    if isinstance(block.source, Inline):
        return _inline(block.media_type, block.source.base64_data, path)
    url = block.source.url
    if url[:5].lower() == "data:":
        found = read_data_url(url, percent_encoded=True)
        if found is None:
            raise UnsupportedContentError(f"{path}.source.url is not a data: URL that can be read")
        return _inline(found[0] or block.media_type, found[1], path)
    suffix = url.partition("?")[0].partition("#")[0].rpartition(".")[2].lower()
    media_type = block.media_type or _SUFFIXES.get(suffix)
    if not media_type:
        raise UnsupportedContentError(
            f"{path}.media_type is required on this wire: the URL does not show it"
        )
    return {"fileData": {"mimeType": media_type, "fileUri": url}}


def _inline(media_type: str | None, data: str, path: str) -> dict[str, Any]:
    if not media_type:
        raise UnsupportedContentError(f"{path}.media_type is required for inline content")
    return {"inlineData": {"mimeType": media_type, "data": data}}
