"""The only package that opens sockets to providers.

``HttpTransport`` is the client that providers use; ``AiohttpTransport`` uses aiohttp instead, for
features that only aiohttp has. Both send a request once, do not follow redirects, limit how much
they read, and close the socket when a call is cancelled. To use another HTTP library, implement
``Transport`` and ``HttpStream``.
"""

from __future__ import annotations

from .aiohttp import AiohttpTransport
from .clock import Timeouts
from .contract import MAX_ERROR_BODY, HttpStream, Secret, Transport
from .fixture import FixtureTransport
from .http import HttpTransport

__all__ = [
    "MAX_ERROR_BODY",
    "AiohttpTransport",
    "FixtureTransport",
    "HttpStream",
    "HttpTransport",
    "Secret",
    "Timeouts",
    "Transport",
]
