"""The only package that opens sockets to providers.

Box: core.

``HttpTransport`` is the client that providers use. It sends a request once, does not follow
redirects, limits how much it reads, and closes the socket when a call is cancelled. To use another
HTTP library, implement ``Transport`` and ``HttpStream``.
"""

from __future__ import annotations

from .clock import Timeouts
from .contract import MAX_ERROR_BODY, HttpStream, Secret, Transport
from .fixture import FixtureTransport
from .http import HttpTransport

__all__ = [
    "MAX_ERROR_BODY", "FixtureTransport", "HttpStream", "HttpTransport", "Secret", "Timeouts",
    "Transport",
]  # fmt: skip
