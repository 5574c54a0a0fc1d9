"""Ollama: ``/api/embed``.

Requests set ``truncate`` to false, so that Ollama rejects long texts. By default it truncates
them, and on ``/v1`` it always does.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, ClassVar

from msgspec import field

from ...capabilities import Capabilities
from ...wire import CODECS
from ...wire.codec import HttpReply, HttpRequest
from ...wire.urls import root_of
from .codec import BatchQuirks, EmbedCodec, EmbedRow
from .reading import EmbedReply, Vector


class EmbedQuirks(BatchQuirks, frozen=True, forbid_unknown_fields=True):
    """Settings for Ollama: model ``options``; ``keep_alive`` is how long a model stays loaded."""

    options: dict[str, Any] = field(default_factory=dict)
    keep_alive: str | float | None = None


class _Reply(EmbedReply, kw_only=True):
    embeddings: list[list[float]]
    prompt_eval_count: Any = None

    def __post_init__(self) -> None:
        self.usage = {"prompt_eval_count": self.prompt_eval_count}

    def find_vectors(self, count: int) -> Sequence[Vector]:
        return self.embeddings


class OllamaEmbed(EmbedCodec[EmbedQuirks]):
    """Encode and decode ``/api/embed`` for one model on one server."""

    wire: ClassVar[str] = "ollama"
    quirks_type = EmbedQuirks
    row = EmbedRow(
        path="/api/embed",
        sends=("keep_alive", "options"),
        fixed={"truncate": False},
        reply=_Reply,
        tokens=("prompt_eval_count",),
    )

    def locate(self, path: str) -> str:
        return root_of(self.base_url).removesuffix("/api") + path

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        # The server has the same lists of models for chat.
        chat = CODECS[self.wire].connect(self.model, self.base_url, None, Capabilities())
        yield from chat.ready()
