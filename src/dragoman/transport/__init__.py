"""The only package that opens sockets to providers.

``HttpTransport`` is the client that providers use; ``AiohttpTransport`` does the same with aiohttp, for what
aiohttp alone can do. Both send once, follow no redirect, bound what they read, and close the socket
when a call is cancelled. ``Transport`` and ``HttpStream`` are what to implement for another HTTP
library.
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
