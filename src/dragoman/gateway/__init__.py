"""The gateway: an HTTP server in front of providers. It needs the extra ``gateway``.

Box: gateway.

``create_app(models)`` is an ASGI application that serves clients of every wire. It reads requests
and writes replies with ``dragoman.wire.SERVER_CODECS``; this package adds keys, limits, metrics
and the access log.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..errors import advise_import

if TYPE_CHECKING:
    from .app import create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    # The application is imported on first use, so that keys and ledgers can be used without the
    # packages of the extra ``gateway``.
    if name == "create_app":
        with advise_import("the gateway needs the extra: pip install 'dragoman[gateway]'"):
            return importlib.import_module(".app", __name__).create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
