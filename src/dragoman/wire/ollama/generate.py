"""The server side of ``/api/generate``, Ollama's older API with one prompt and one text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..request_schema import TEXT, RequestSchema, body_with_model
from ..server import encode_json
from .server import LineBodyEncoder, LineEncoder, LineStreamEncoder, OllamaServer

_TAKEN = ("prompt", "system", "images")


def to_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the equivalent ``/api/chat`` body for an ``/api/generate`` body."""
    chat = {name: value for name, value in body.items() if name not in _TAKEN}
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    images = {"images": body["images"]} if body.get("images") else {}
    chat["messages"] = [*system, {"role": "user", "content": body.get("prompt") or "", **images}]
    return chat


class _GenerateLine(LineEncoder):
    def line(self, message: dict[str, Any], **ending: Any) -> bytes:
        """Return a line with the texts of a message; the fields ``ending`` end the reply."""
        head = {"model": self.model, "created_at": self.at, "response": message.pop("content")}
        return encode_json({**head, "done": bool(ending), **message, **ending}) + b"\n"


class _StreamEncoder(_GenerateLine, LineStreamEncoder):
    pass


class _BodyEncoder(_GenerateLine, LineBodyEncoder):
    pass


class OllamaGenerateServer(OllamaServer):
    """The server side of ``/api/generate``."""

    schema = RequestSchema(
        body_with_model("prompt", prompt=TEXT, stream={"type": "boolean", "default": True})
    )
    paths = ("/api/generate",)
    other_paths = ()
    stream_type = _StreamEncoder
    body_type = _BodyEncoder

    def unwrap(self, fields: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        """Return the fields of the equivalent ``/api/chat`` request."""
        return to_chat(fields)
