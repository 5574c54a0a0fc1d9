"""Embed texts with a local model, which the llama.cpp server runs in embedding mode."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ..capabilities import Capabilities
from ..errors import InvalidModelError, ModelNotLoadedError
from ..prices import PricedAs
from ..retrieval import Embedder, Embeddings, EmbedRequest, bind_embedder
from ..transport import Timeouts
from .pull import find_model, pull_model
from .server import LocalServer, LocalServerError
from .start import open_server
from .store import WeightsError

CONTEXT = 2048
"""The maximum length of a text in tokens."""


class LocalEmbedder(Embedder):
    """An embedder with its own server, which starts with the first call and ends with ``close()``.

    ``model`` is a name in the catalogue, the name of a downloaded model, or a path. The vector of
    a text is the mean of the vectors of its tokens. The default model was made for chat, so its
    vectors are suitable for experiments only; for real search, give the path of a GGUF file of an
    embedding model.
    """

    name = "local"

    def __init__(
        self, model: str | Path | None = None, *, threads: int | None = None, **settings: Any
    ) -> None:
        try:
            self._found = find_model(model)
        except WeightsError as error:
            raise InvalidModelError(
                str(error), provider=self.name, model=str(model), advice=""
            ) from error
        entry = self._found.entry
        self.model = entry.model if entry is not None else self._found.name
        self.batch_size = settings.pop("batch_size", None)
        declared = settings.pop("capabilities", None)
        known = Capabilities.of(
            {"supports_embeddings": True, "supports_dimensions": False}, "catalogue", by="local"
        )
        if declared is not None:
            known = known.merged(
                declared if isinstance(declared, Capabilities) else Capabilities.of(declared)
            )
        self.capabilities = known
        self._threads = threads
        self._settings = settings
        self._server: LocalServer | None = None
        self._inner: Embedder | None = None
        self._starting = asyncio.Lock()

    async def answer(self, request: EmbedRequest) -> Embeddings:
        inner = await self._start()
        return await inner.answer(request)

    async def ready(self) -> None:
        await (await self._start()).ready()

    async def close(self) -> None:
        inner, self._inner = self._inner, None
        server, self._server = self._server, None
        if inner is not None:
            await inner.close()
        if server is not None:
            await asyncio.to_thread(server.stop)

    def _find_seller(self) -> PricedAs:
        return PricedAs.of("free", self.model)

    async def _start(self) -> Embedder:
        async with self._starting:
            if self._inner is None or self._server is None or not self._server.is_alive():
                try:
                    self._server = await asyncio.to_thread(self._prepare)
                    url = await asyncio.to_thread(self._server.start)
                except (LocalServerError, WeightsError) as error:
                    failed = ModelNotLoadedError(
                        str(error), provider=self.name, model=self.model, advice=""
                    )
                    # the error is permanent, so do not retry
                    failed.transient = False
                    raise failed from error
                self._inner = bind_embedder(
                    self.model,
                    url,
                    api_key=self._server.key,
                    name=self.name,
                    quirks={"encoding_format": "base64", "any_model": True, "readiness": "health"},
                    priced_as="free",
                    **self._settings,
                )
            return self._inner

    def _prepare(self) -> LocalServer:
        found = self._found
        if found == find_model(None):
            pull_model(found.name)
        return open_server(found, context=CONTEXT, threads=self._threads, embeds=True)


def open_local_embedder(
    path: str = "",
    *,
    batch_size: int | None = None,
    prefixes: Mapping[str, str] | None = None,
    capabilities: Capabilities | Mapping[str, Any] | None = None,
    timeouts: Timeouts | Mapping[str, Any] | float | None = None,
    on_loss: Literal["warn", "reject"] = "warn",
    keep_raw: bool | None = None,
) -> LocalEmbedder:
    """Open ``local``, ``local:NAME`` or ``local:PATH`` for ``connect_embedder``."""
    return LocalEmbedder(
        path,
        batch_size=batch_size,
        prefixes=prefixes,
        capabilities=capabilities,
        timeouts=timeouts,
        on_loss=on_loss,
        keep_raw=keep_raw,
    )
