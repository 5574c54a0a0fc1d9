"""The server side of ``/api/generate``, Ollama's older API with one prompt and one text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...events import MessageComplete, MessageStart, TextDelta, ThinkingDelta
from ...messages import Text, Thinking
from ..server import Asked, BodyEncoder, ReplyEncoder, encode_json
from .server import OllamaServer, end_fields, format_time

_TAKEN = ("prompt", "system", "images")


def to_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the equivalent ``/api/chat`` body for an ``/api/generate`` body."""
    chat = {name: value for name, value in body.items() if name not in _TAKEN}
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    images = {"images": body["images"]} if body.get("images") else {}
    chat["messages"] = [*system, {"role": "user", "content": body.get("prompt") or "", **images}]
    return chat


class OllamaGenerateServer(OllamaServer):
    """The server side of ``/api/generate``."""

    def unwrap(self, fields: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        """Return the fields of the equivalent ``/api/chat`` request."""
        return to_chat(fields)

    def encoder(self, asked: Asked, *, created: int = 0) -> ReplyEncoder:
        """Return an encoder for the reply, which is one body or a stream."""
        at = format_time(created)
        if asked.request.stream:
            return _StreamEncoder(at)
        return BodyEncoder(lambda reply, complete: _write_body(reply, complete, at))


class _StreamEncoder(ReplyEncoder):
    content_type = "application/x-ndjson"

    def __init__(self, at: str) -> None:
        super().__init__()
        self._at = at

    def begin(self, event: MessageStart) -> bytes:
        return _line(self, self._at, "")

    def text(self, event: TextDelta) -> bytes:
        return _line(self, self._at, event.text)

    def thinking(self, event: ThinkingDelta) -> bytes:
        return _line(self, self._at, "", thinking=event.text) if event.text else b""

    def write_end(self, complete: MessageComplete) -> bytes:
        return _line(self, self._at, "", done=True, **end_fields(self, complete))

    def write_error(self, error: Any) -> bytes:
        return OllamaServer().error(error).body + b"\n"


def _write_body(reply: BodyEncoder, complete: MessageComplete, at: str) -> bytes:
    text = "".join([block.text for block in complete.final_content if isinstance(block, Text)])
    thoughts = "".join(
        [block.text for block in complete.final_content if isinstance(block, Thinking)]
    )
    thinking = {"thinking": thoughts} if thoughts else {}
    return _line(reply, at, text, **thinking, done=True, **end_fields(reply, complete))


def _line(reply: ReplyEncoder, at: str, text: str, *, done: bool = False, **fields: Any) -> bytes:
    head = {"model": reply.model, "created_at": at, "response": text, "done": done}
    return encode_json({**head, **fields}) + b"\n"
