"""Start the server of a local model: on request, or with the first call (``LocalServing``)."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from ..capabilities import Capabilities
from ..errors import InvalidModelError, ModelNotLoadedError
from ..events import Event
from ..middleware.layer import Wrapper
from ..provider import LayerCall, Model
from ..provider.http_model import read_capabilities
from .catalog import CatalogModel
from .pull import check_model, find_model, pull_model
from .server import LocalServer, LocalServerError
from .store import Found, WeightsError

CONTEXT = 4096
"""The context window in tokens, for files that are not in the catalogue."""

THREADS = "DRAGOMAN_LOCAL_THREADS"
"""The environment variable for the number of compute threads."""


class LocalServing(Wrapper):
    """A model with its own server, which starts with the first call and stops with ``close()``."""

    name = "local"
    _context: int

    def __init__(
        self, model: str | Path | None, threads: int | None, settings: dict[str, Any]
    ) -> None:
        self._embeds = self.operation == "embed"
        default = find_model(None, embeds=self._embeds).name
        try:
            self._found = find_model(model or default)
            entry = self._found.entry
            if entry is not None and entry.embeds != self._embeds:
                purpose = (
                    "embeds texts and cannot chat"
                    if entry.embeds
                    else ("is made for chat; its vectors do not tell texts apart")
                )
                raise WeightsError(f"{self._found.name} {purpose}; use local:{default}")
        except WeightsError as error:
            unknown = InvalidModelError(str(error), provider=self.name, model=str(model))
            unknown.advice = ""  # no advice is needed, since the message lists the known names
            raise unknown from error
        self.model = entry.model if entry is not None else self._found.name
        self._threads = threads or default_threads(entry)
        self._declared = settings.pop("capabilities", None)
        self._settings = settings
        self._server: LocalServer | None = None
        self._inner: Model | None = None
        self._starting = asyncio.Lock()

    def parts(self) -> tuple[Model, ...]:
        return ()

    def settings(self) -> Mapping[str, Any]:
        return {"model": self.model, "threads": self._threads, "context": self._context}

    async def serve(self, request: Any, served: LayerCall) -> AsyncGenerator[list[Event], None]:
        inner = await self._start()
        async with aclosing(inner.open(self._with_defaults(request))) as reply:
            served.reply = reply
            while batch := await reply.next():
                yield batch

    async def ready(self) -> None:
        inner = await self._start()
        await inner.ready()

    async def close(self) -> None:
        inner, self._inner = self._inner, None
        server, self._server = self._server, None
        if inner is not None:
            await inner.close()
        if server is not None:
            await asyncio.to_thread(server.stop)

    @abstractmethod
    def _connect(self, url: str, key: str) -> Model:
        """Return the model at the server's address."""

    def _with_defaults(self, request: Any) -> Any:
        """Return a request with the model's own defaults."""
        return request

    def _know(self, facts: Mapping[str, Any]) -> None:
        """Set the capabilities that the catalogue lists, and that the caller declared."""
        known = Capabilities.of(facts, "catalogue", by="local")
        self.capabilities = known.merged(read_capabilities(self._declared))

    async def _start(self) -> Model:
        async with self._starting:
            if self._inner is None or self._server is None or not self._server.is_alive():
                try:
                    self._server = await asyncio.to_thread(self._prepare)
                    url = await asyncio.to_thread(self._server.start)
                except (LocalServerError, WeightsError) as error:
                    failed = ModelNotLoadedError(str(error), provider=self.name, model=self.model)
                    # The message already contains advice. The error is permanent, so do not retry.
                    failed.advice = ""
                    failed.transient = False
                    raise failed from error
                self._inner = self._connect(url, self._server.key)
            return self._inner

    def _prepare(self) -> LocalServer:
        """Return a server for the model's file; download the default model if it is missing."""
        found = self._found
        embeds = self._embeds
        if found == find_model(None, embeds=embeds):
            pull_model(found.name)
        return open_server(found, context=self._context, threads=self._threads, embeds=embeds)


def open_server(
    found: Found,
    *,
    context: int | None = None,
    threads: int | None = None,
    parallel: int = 2,
    port: int = 0,
    key: str | None = None,
    embeds: bool = False,
) -> LocalServer:
    """Return a server for a model, not yet started, with settings from the environment.

    The catalogue provides the settings that the environment does not set. With ``embeds``, or for
    an embedding model of the catalogue, the server computes embeddings instead of chat replies.
    """
    entry = found.entry
    return LocalServer(
        check_model(found),
        alias=entry.model if entry is not None else found.name,
        context=context or (entry.context if entry is not None else CONTEXT),
        threads=threads or default_threads(entry),
        parallel=parallel,
        port=port,
        template=entry.template_text() if entry is not None else "",
        key=key,
        embeds=embeds or (entry is not None and entry.embeds),
    )


def default_threads(entry: CatalogModel | None = None) -> int:
    """Return the number of threads from ``$DRAGOMAN_LOCAL_THREADS`` or from the catalogue."""
    text = os.environ.get(THREADS, "")
    if not text:
        return entry.threads if entry is not None else 1
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ValueError(f"{THREADS} must be an integer of at least 1, not {text!r}")
    return int(text)
