"""The W3C trace context of outgoing requests: headers ``traceparent`` and ``tracestate``."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

from ..transport import Secret

TRACE_HEADERS: ContextVar[Mapping[str, Secret] | None] = ContextVar(
    "dragoman_trace_headers", default=None
)
"""The headers for the calls of this context; the gateway sets them. ``None``: none are sent."""
