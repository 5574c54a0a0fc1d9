"""Ollama: ``/api/embed``.

Requests set ``truncate`` to false, so that Ollama rejects long texts. By default it truncates
them, and on ``/v1`` it always does.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar

import msgspec
from msgspec import Struct, field

from ...wire.codec import Encoded, HttpReply, HttpRequest, Notes
from ...wire.json import read_count
from ...wire.ollama import OllamaCodec
from ...wire.urls import root_of
from ..values import EmbedRequest
from .codec import EmbedCodec, EmbedPart, drop_input_type
from .reading import check_count, pack_vectors, read_name, read_typed, read_usage


class EmbedQuirks(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for Ollama: model ``options``; ``keep_alive`` is how long a model stays loaded."""

    options: dict[str, Any] = field(default_factory=dict)
    keep_alive: str | float | None = None
    batch_limit: int | None = None


class _Reply(Struct):
    embeddings: list[list[float]]
    model: Any = None
    prompt_eval_count: Any = None


_decode = msgspec.json.Decoder(_Reply).decode


class OllamaEmbed(EmbedCodec[EmbedQuirks]):
    """Encode and decode ``/api/embed`` for one model on one server."""

    wire: ClassVar[str] = "ollama"
    quirks_type = EmbedQuirks

    def encode(self, request: EmbedRequest) -> Encoded:
        notes = Notes()
        drop_input_type(request, notes)
        body: dict[str, Any] = {"model": request.model or self.model, "truncate": False}
        if request.dimensions is not None:
            body["dimensions"] = request.dimensions
        if self.quirks.keep_alive is not None:
            body["keep_alive"] = self.quirks.keep_alive
        if self.quirks.options:
            body["options"] = self.quirks.options
        body["input"] = list(request.texts)
        return self.post(
            f"{root_of(self.base_url).removesuffix('/api')}/api/embed", body, request, notes
        )

    def decode(self, reply: HttpReply, request: EmbedRequest) -> EmbedPart:
        read = read_typed(reply.body, _decode, self.inband_error)
        check_count(len(read.embeddings), len(request.texts))
        data, dimensions = pack_vectors(read.embeddings)
        usage = read_usage({"count": read_count(read.prompt_eval_count)}, "count")
        return EmbedPart(data, dimensions, usage, None, read_name(read.model))

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        yield from OllamaCodec(self.model, self.base_url).ready()
