"""Embed texts with a local model, which the llama.cpp server runs in embedding mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..calls import Operation
from ..prices import PricedAs
from ..retrieval import Embedder, bind_embedder
from .serving import LocalServing


class LocalEmbedder(LocalServing):
    """An embedder with its own server, which starts with the first call and ends with ``close()``.

    ``model`` is an embedding model of the catalogue, the name of a downloaded model, or a path.
    The default is all-MiniLM-L6-v2 for texts in English of up to 512 tokens, which is downloaded
    on first use. The vector of a text is the mean of the vectors of its tokens.
    """

    operation: Operation = "embed"

    def __init__(
        self, model: str | Path | None = None, *, threads: int | None = None, **settings: Any
    ) -> None:
        super().__init__(model, threads, settings)
        entry = self._found.entry
        self._context = entry.context if entry is not None else 2048  # tokens of one text
        self.batch_size = settings.pop("batch_size", None)
        if entry is not None:
            self._settings = {"prefixes": entry.prefixes, **settings}
        self._know({"supports_embeddings": True, "supports_dimensions": False})

    def _find_seller(self) -> PricedAs:
        return PricedAs.of("free", self.model)

    def _connect(self, url: str, key: str) -> Embedder:
        return bind_embedder(
            self.model,
            url,
            api_key=key,
            name=self.name,
            quirks={"encoding_format": "base64", "any_model": True, "readiness": "health"},
            priced_as="free",
            **self._settings,
        )
