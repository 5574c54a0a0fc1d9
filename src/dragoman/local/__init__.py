"""The embedded model: a llama.cpp server in a child process, and a catalogue of small models.

Box: extras.

``connect("local")`` opens the default model, SmolLM2-135M-Instruct (Apache-2.0), which is a
demonstration rather than an assistant. It is downloaded on first use. ``connect("local:NAME")``
opens a model that ``dragoman local pull NAME`` has downloaded, and
``connect("local:/path/to/model.gguf")`` a file of your own. This package needs ``pip install
'dragoman[local]'``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from ..messages import Request, System
from ..provider import Provider, connect
from ..wire import Encoded, SwapPlan
from .catalog import CatalogModel, ModelDefaults
from .embedder import LocalEmbedder
from .pull import LocalModel, check_model, find_model, list_models, pull_model, remove_model
from .server import LocalServer, LocalServerError, is_installed
from .serving import CONTEXT, LocalServing, open_server
from .store import Found, WeightsError

__all__ = [
    "CatalogModel", "Found", "LocalEmbedder", "LocalModel", "LocalProvider", "LocalServer",
    "LocalServerError", "WeightsError", "check_model", "find_model", "is_installed", "list_models",
    "open_server", "pull_model", "remove_model",
]  # fmt: skip


class LocalProvider(LocalServing):
    """A provider with its own server, which starts with the first call and stops with ``close()``.

    ``model`` is a name in the catalogue, the name of a downloaded model, or a path. ``threads`` is
    the number of compute threads: by default ``$DRAGOMAN_LOCAL_THREADS``, or the catalogue's
    value, which is 1. A model of the catalogue has defaults for the system prompt, the temperature
    and ``max_tokens``, which apply if a call sets none.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        context: int | None = None,
        threads: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model, threads, settings)
        entry = self._found.entry
        self._defaults = entry.defaults if entry is not None else ModelDefaults()
        self._context = context or (entry.context if entry is not None else CONTEXT)
        self._know({"max_context_tokens": self._context, "supports_images": False})

    def settings(self) -> Mapping[str, Any]:
        defaults = asdict(self._defaults) | {"extras": ", ".join(self._defaults.extras) or None}
        return {
            **super().settings(),
            **{key: value for key, value in defaults.items() if value is not None},
        }

    def plan(self, messages: Any) -> SwapPlan:
        # Planning sends nothing, so no server is needed and the address does not matter.
        return self._connect("http://127.0.0.1:1", None).plan(messages)

    def preview(self, request: Request) -> Encoded | None:
        inner = self._inner
        if not isinstance(inner, Provider):
            inner = self._connect("http://127.0.0.1:1", None)
        return inner.preview(self._with_defaults(request))

    def _connect(self, url: str, key: str | None) -> Provider:
        # llama.cpp serves its one model under every name. If the chat template does not support
        # tools, tool calls are requested by a JSON Schema instead.
        calls = self._server.calls if self._server is not None else "schema"
        return connect(
            self.model,
            base_url=url,
            api_key=key,
            name=self.name,
            quirks={"tools": calls, "any_model": True, "readiness": "health"},
            capabilities=self.capabilities,
            **self._settings,
        )

    def _with_defaults(self, request: Request) -> Request:
        config = request.config
        defaults = self._defaults
        if config.max_tokens is None:
            config = replace(config, max_tokens=defaults.max_tokens)
        if config.temperature is None and defaults.temperature is not None:
            config = replace(config, temperature=defaults.temperature)
        if defaults.extras:
            config = replace(config, extras={**defaults.extras, **(config.extras or {})})
        messages = request.messages
        if defaults.system is not None and type(messages[0]) is not System:
            messages = (System(defaults.system), *messages)
        return replace(request, config=config, messages=messages)
