"""The embedded default model: a real llama.cpp server in a child process, and a small model for it.

``connect("local")`` answers with SmolLM2-135M-Instruct (Apache-2.0), which is a demonstration and not
an assistant: it speaks, it does not know much. ``connect("local:/path/to/model.gguf")`` serves your own.
Needs the extra: ``pip install 'dragoman[local]'``. Weights are fetched once, see ``weights``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from ..capabilities import Capabilities
from ..errors import ModelNotLoadedError
from ..events import Event
from ..messages import Request, System
from ..provider import Provider, Reply, ReplyProvider, Served, WrappedReply, connect
from ..transport import Timeouts
from ..wire import SwapPlan
from .server import LocalServer, LocalServerError
from .weights import WeightsError, pull_weights, remove_weights, weights_path

__all__ = [
    "LocalProvider",
    "LocalServer",
    "LocalServerError",
    "WeightsError",
    "open_local",
    "pull_weights",
    "remove_weights",
    "weights_path",
]

# SmolLM2 answers its own default system prompt with gibberish, and runs on without a limit.
_SYSTEM = "You are a helpful assistant. Answer briefly."
_MAX_TOKENS = 400
_CONTEXT = 4096

# Its chat template ignores tools, so calls are asked for through a JSON Schema; it has one model
# and serves it under every name. A dialect like any other.
_DIALECT = {"tools": "schema", "any_model": True, "readiness": "health"}


class LocalProvider(ReplyProvider):
    """A provider that owns its server. The server starts with the first call and ends with ``close()``."""

    name = "local"

    def __init__(self, model: str | Path | None = None, *, context: int = _CONTEXT, **settings: Any) -> None:
        self._path = None if model is None or str(model) == "" else Path(model).expanduser()
        self._is_demo = self._path is None
        self.model = "smollm2-135m-instruct" if self._path is None else self._path.stem
        self._context = context
        self._settings = settings
        self._server: LocalServer | None = None
        self._inner: Provider | None = None
        self._starting = asyncio.Lock()
        declared = settings.pop("capabilities", None)
        known = Capabilities.of({"max_context_tokens": context, "supports_images": False}, "catalogue", by="local")
        if declared is not None:
            known = known.merged(declared if isinstance(declared, Capabilities) else Capabilities.of(declared))
        self.capabilities = known

    def open(self, request: Request) -> Reply:
        return WrappedReply(request, self.name, self.model, self._serve)

    async def _serve(self, request: Request, served: Served) -> AsyncGenerator[list[Event], None]:
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

    def plan(self, messages: Any) -> SwapPlan:
        # Planning sends nothing, so it needs no server: any address will do.
        return self._connect("http://127.0.0.1:1", "").plan(messages)

    async def _start(self) -> Provider:
        async with self._starting:
            if self._inner is None or self._server is None or not self._server.is_alive():
                path = self._path if self._path is not None else await asyncio.to_thread(pull_weights)
                self._server = LocalServer(path, alias=self.model, context=self._context)
                try:
                    url = await asyncio.to_thread(self._server.start)
                except LocalServerError as error:
                    raise ModelNotLoadedError(str(error), provider=self.name, model=self.model) from error
                self._inner = self._connect(url, self._server.key)
            return self._inner

    def _connect(self, url: str, key: str) -> Provider:
        return connect(
            self.model,
            base_url=url,
            api_key=key,
            name=self.name,
            quirks=_DIALECT,
            capabilities=self.capabilities,
            **self._settings,
        )

    def _with_defaults(self, request: Request) -> Request:
        if request.config.max_tokens is None:
            request = replace(request, config=replace(request.config, max_tokens=_MAX_TOKENS))
        if self._is_demo and type(request.messages[0]) is not System:
            request = replace(request, messages=(System(_SYSTEM), *request.messages))
        return request


def open_local(
    path: str = "",
    *,
    capabilities: Capabilities | Mapping[str, Any] | None = None,
    timeouts: Timeouts | Mapping[str, Any] | float | None = None,
    on_loss: Literal["warn", "reject"] = "warn",
    keep_raw: bool = True,
) -> LocalProvider:
    """What ``connect("local")`` and ``connect("local:PATH")`` call."""
    return LocalProvider(path, capabilities=capabilities, timeouts=timeouts, on_loss=on_loss, keep_raw=keep_raw)
