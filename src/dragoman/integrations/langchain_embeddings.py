"""``DragomanEmbeddings``: all embedding models of Dragoman, for LangChain's vector stores."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

from ..errors import advise_import

with advise_import(
    "dragoman.integrations.langchain_embeddings needs the extra: pip install 'dragoman[langchain]'"
):
    from langchain_core.embeddings import Embeddings
    from pydantic import BaseModel, ConfigDict, Field, SecretStr

from ..blocking import SyncEmbedder
from ..retrieval import Embedder, connect_embedder
from ..retrieval import Embeddings as Embedded
from .loops import Opened
from .losses import warn_of_losses


class DragomanEmbeddings(BaseModel, Embeddings):
    """LangChain embeddings that call ``dragoman.connect_embedder(model)`` or your ``embedder``.

    Documents are sent with the input type ``"document"`` and queries with ``"query"``. If a wire
    has no field for the input type, both are embedded alike. If a model was trained with a prefix
    for each type, set ``prefixes``. An ``embedder`` belongs to the event loop that uses it first.
    If you give the name of a model instead, each event loop gets its own connections.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    model: str = ""
    base_url: str | None = None
    wire: str | None = None
    api_key: SecretStr | None = None
    dimensions: int | None = None
    batch_size: int | None = None
    prefixes: dict[str, str] | None = None
    timeout: float | None = None
    max_retries: int = 0
    extras: dict[str, Any] = Field(default_factory=dict)
    embedder: Embedder | None = Field(default=None, exclude=True)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return a vector for each text, in the order of the texts."""
        if not texts:
            return []
        return _make_lists(self._opened.blocking.embed(texts, **self._arguments("document")))

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return _make_lists(self._opened.blocking.embed([text], **self._arguments("query")))[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return a vector for each text, in the order of the texts."""
        if not texts:
            return []
        embedder = await self._opened.get()
        return _make_lists(await embedder.embed(texts, **self._arguments("document")))

    async def aembed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        embedder = await self._opened.get()
        return _make_lists(await embedder.embed([text], **self._arguments("query")))[0]

    def _arguments(self, input_type: Literal["document", "query"]) -> dict[str, Any]:
        return {
            "input_type": input_type,
            "dimensions": self.dimensions,
            "extras": self.extras or None,
        }

    @cached_property
    def _opened(self) -> Opened[Embedder, SyncEmbedder]:
        own = {"batch_size": self.batch_size, "prefixes": self.prefixes, **connection_of(self)}
        return Opened(lambda: connect_embedder(self.model, **own), SyncEmbedder, self.embedder)


def connection_of(model: Any) -> dict[str, Any]:
    """Return the settings of ``connect`` that chat and embedding models of LangChain share."""
    return {
        "base_url": model.base_url,
        "wire": model.wire,
        "api_key": model.api_key.get_secret_value() if model.api_key is not None else None,
        "timeouts": model.timeout,
        "retries": model.max_retries or None,
    }


def _make_lists(answer: Embedded) -> list[list[float]]:
    # LangChain's methods set the input type; the caller did not request it. So do not warn the
    # caller if the wire has no field for it.
    losses = [loss for loss in answer.warnings if loss.code != "input_type_dropped"]
    warn_of_losses(losses, stacklevel=3)
    return answer.vectors.tolist()
