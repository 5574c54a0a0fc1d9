"""The W3C trace context of outgoing requests: headers ``traceparent`` and ``tracestate``."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

from ..transport import Secret

TRACE_HEADERS: ContextVar[Mapping[str, Secret] | None] = ContextVar(
    "dragoman_trace_headers", default=None
)
"""The trace headers for calls in this context, set by the gateway; ``None`` sends no headers."""


def add_trace(credentials: Mapping[str, Secret]) -> Mapping[str, Secret]:
    """Return a request's credential headers, together with the trace headers of this context."""
    traced = TRACE_HEADERS.get()
    return credentials if traced is None else {**traced, **credentials}
