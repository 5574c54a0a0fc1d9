"""Encode the conversation: turns of ``user`` and ``model``, each a list of parts.

This wire pairs calls and results by position: the turn after the calls has one result for each
call, in the same order. Results are moved to that turn if necessary. A call without a result, from
a cancelled turn, is omitted.
"""

from __future__ import annotations

import re
from typing import Any

from ... import messages as m
from ...errors import UnsupportedContentError
from ...validate.data_url import read_inline
from ..codec import Notes
from ..continuity import drop_state, is_ours, is_welcome
from ..conversation import CONTINUE, PairedWriter
from ..ids import CallPosition, IdMap
from ..json import ordered_json
from ..urls import media_url
from .quirks import Quirks
from .reply import write_picture

# The form of ids that the assembler generates for calls without an id: a prefix and a ULID. The
# provider does not know these ids, so they are not sent. It pairs calls and results by order.
_MINTED = re.compile(r"call_[0-9A-HJKMNP-TV-Z]{26}")


class ContentWriter(PairedWriter):
    """Write the conversation as contents of the Gemini wire, without the system prompt."""

    orphan_code = "result_dropped"
    no_place = "only the model that made it takes it back"
    media_fields = ()

    def __init__(self, request: m.Request, home: m.Issuer, quirks: Quirks, notes: Notes) -> None:
        super().__init__(request, home, quirks, notes)
        self._ids = IdMap(quirks.id_rule, self.messages)
        # the calls of the message that is being written, with the index of their results
        self._calls: list[tuple[int, m.ToolCall]] = []
        # maps the index of a result to its call, the parts of its turn and the place among them
        self._slots: dict[int, tuple[m.ToolCall, list[Any], int]] = {}

    def write(self) -> list[Any]:
        written = super().write()
        if not self.quirks.prefill and written and written[-1]["role"] == "model":
            path = f"messages[{self.first + len(self.messages) - 1}]"
            why = "the model does not continue a message, so a message of the user asks for it"
            self.notes.rewrite(path, "prefill_rewritten", why, loss=True)
            written.append({"role": "user", "parts": [{"text": CONTINUE}]})
        return written

    # --- messages of the user

    def user(self, message: m.User, path: str) -> None:
        content = message.content
        parts = [{"text": content}] if isinstance(content, str) else self.parts(content, path)
        self.written.append({"role": "user", "parts": parts})

    def part(self, block: m.UserBlock, path: str) -> dict[str, Any]:
        if isinstance(block, m.Text):
            return {"text": block.text}
        return _write_media(block, path)

    # --- messages of the model, and the results of its calls

    def turn(self, parts: list[Any], at: int, path: str) -> bool:
        self._stand_in(parts, path)
        self.written.append({"role": "model", "parts": parts})
        calls, self._calls = self._calls, []
        if calls:
            results: list[Any] = [None] * len(calls)
            self.written.append({"role": "user", "parts": results})
            for place, (result, call) in enumerate(calls):
                self._slots[result] = call, results, place
                if result != at + 1 + place:
                    why = "results follow their calls, in the calls' order"
                    self.notes.rewrite(f"messages[{result}]", "result_moved", why)
        return True

    def text(self, block: m.Text, path: str) -> Any:
        signature = self._signature(block.continuity, path)
        return {"text": block.text, **signature} if block.text or signature else None

    def thinking(self, block: m.Thinking, path: str) -> Any:
        if not is_ours(block.continuity, self.home) and not self._is_of_our_turn(block):
            return self.drop(block, path)
        return {"text": block.text, "thought": True, **self._signature(block.continuity, path)}

    def _is_of_our_turn(self, block: m.Thinking) -> bool:
        """Return whether a thought of unknown origin is in a turn with state of this model.

        Gemini signs the calls and texts of a turn. Clients of other wires return a thought without
        its issuer if the thought has no signature.
        """
        state = block.continuity
        return (state is None or state.issuer is None) and any(
            is_ours(each.continuity, self.home) for each in self.answer.content
        )

    def opaque(self, block: m.Opaque, path: str) -> Any:
        if not is_ours(block.continuity, self.home):
            return self.drop(block, path)
        return ordered_json(block.data)

    def picture(self, block: m.Image, path: str) -> Any:
        if not is_ours(block.continuity, self.home):
            return self.drop(block, path)
        return ordered_json(write_picture(block))

    def audio(self, block: m.Audio, path: str) -> dict[str, Any]:
        medium = _write_media(block, path)
        return {**medium, **self._signature(block.continuity, path)}

    def id_of_result(self, message: m.ToolResult, at: int) -> str | None:
        return message.tool_call_id if at in self._slots else None

    def id_of_call(self, block: m.ToolCall, at: int, index: int) -> str | None:
        result = self.pairs.results.get(CallPosition(at, index))
        if result is None:
            return None
        self._calls.append((result, block))
        return self._ids[block.id]

    def call(self, block: m.ToolCall, sent: str, path: str) -> dict[str, Any]:
        inner = {**self._id_of(block), "name": block.name, "args": ordered_json(block.arguments)}
        return {"functionCall": inner, **self._signature(block.continuity, path)}

    def result(self, message: m.ToolResult, sent: str, at: int, path: str) -> None:
        call, results, place = self._slots[at]
        response = {"error" if message.is_error else "result": message.text}
        inner: dict[str, Any] = {**self._id_of(call), "name": call.name, "response": response}
        if not isinstance(message.content, str):
            parts = self.parts(message.content, path)
            media = [part for part in parts if "text" not in part]
            if media:  # Gemini 3 accepts media in a function response; older models answer 400
                inner["parts"] = media
        results[place] = {"functionResponse": inner}

    def _id_of(self, call: m.ToolCall) -> dict[str, str]:
        if not self.quirks.call_ids or _MINTED.fullmatch(call.id):
            return {}
        return {"id": self._ids[call.id]}

    # --- opaque state

    def _signature(self, state: m.Continuity | None, where: str) -> dict[str, str]:
        """Return the signature of a block, if it may be sent back.

        A signature whose issuer is unknown may be sent back.
        """
        if state is None or (state.signature is None and state.opaque is None):
            return {}
        if state.signature is not None and is_welcome(state, self.home):
            return {"thoughtSignature": state.signature}
        why = "state that is cut off or another issuer's is not sent"
        drop_state(state, self.home.wire, where, self.notes, why)
        return {}

    def _stand_in(self, parts: list[Any], path: str) -> None:
        """Add a placeholder signature to the first call of a turn if none of its calls has one."""
        calls = [part for part in parts if isinstance(part, dict) and "functionCall" in part]
        placeholder = self.quirks.placeholder_signature
        if placeholder is None or not calls or any("thoughtSignature" in call for call in calls):
            return
        calls[0]["thoughtSignature"] = placeholder
        why = "the model demands a signature that these calls never had"
        self.notes.rewrite(path, "signature_placeholder", why)


# --- writing media -----------------------------------------------------------------------------

_AUDIO = ("aac", "aiff", "flac", "mp3", "ogg", "wav")
_IMAGES = ("avif", "bmp", "gif", "heic", "heif", "jpeg", "png", "webp")
# the media type of a file, by the suffix of its name
_SUFFIXES = {
    **{suffix: f"audio/{suffix}" for suffix in _AUDIO},
    **{suffix: f"image/{suffix}" for suffix in _IMAGES},
    "jpg": "image/jpeg",
}


def _write_media(block: m.Image | m.Document | m.Audio, path: str) -> dict[str, Any]:
    if (found := read_inline(block, percent_encoded=True)) is not None:
        if not found[0]:
            raise UnsupportedContentError(f"{path}.media_type is required for inline content")
        return {"inlineData": {"mimeType": found[0], "data": found[1]}}
    url = media_url(block)
    if url[:5].lower() == "data:":
        raise UnsupportedContentError(f"{path}.source.url is not a data: URL that can be read")
    suffix = url.partition("?")[0].partition("#")[0].rpartition(".")[2].lower()
    media_type = block.media_type or _SUFFIXES.get(suffix)
    if not media_type:
        raise UnsupportedContentError(
            f"{path}.media_type is required on this wire: the URL does not show it"
        )
    return {"fileData": {"mimeType": media_type, "fileUri": url}}
