"""Trace requests: forward the W3C trace context, and optionally record OpenTelemetry spans.

A valid ``traceparent`` header of a client is forwarded to the model's server, with the id of the
gateway's own span as the parent. With ``Tracing``, that span is recorded, with a child span for
each attempt.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..calls import CallCompleted, CallFailed
from ..middleware import OpenTelemetry
from ..provider.tracing import TRACE_HEADERS
from ..transport import Secret

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

_PARENT = re.compile("([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MAX_STATE = 512


def read_parent(headers: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return the trace id, span id and flags of a ``traceparent``; ``None`` if it is not valid."""
    found = _PARENT.fullmatch(headers.get("traceparent", ""))
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    trace = found[2]
    span = found[3]
    flags = found[4]
    return None if set(trace) == {"0"} or set(span) == {"0"} else (trace, span, flags)


class Tracing:
    """Record an OpenTelemetry span for each request, with a child span for each attempt."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._attempts = OpenTelemetry(tracer_provider)
        # lazy import of an optional dependency; ``OpenTelemetry`` above reports its absence
        from opentelemetry import context, propagate, trace

        self._context: Any = context
        self._trace: Any = trace
        self._propagate: Any = propagate
        self._tracer = trace.get_tracer("dragoman.gateway", tracer_provider=tracer_provider)

    def begin(self, path: str, wire: str, headers: Mapping[str, str]) -> Any:
        """Start the span of a request, as a child of the client's span."""
        parent = self._propagate.extract(dict(headers))
        given = {"http.request.method": "POST", "url.path": path, "dragoman.wire": wire}
        return self._tracer.start_span(f"POST {path}", parent, self._trace.SpanKind.SERVER, given)

    def find_headers(self, span: Any) -> dict[str, str]:
        """Return the trace headers to send to the model's server."""
        found: dict[str, str] = {}
        self._propagate.inject(found, self._trace.set_span_in_context(span))
        return found

    def end(
        self, span: Any, facts: Mapping[str, Any], records: Sequence[CallCompleted | CallFailed]
    ) -> None:
        """Record a child span for each attempt of a request, and end the request's span."""
        token = self._context.attach(self._trace.set_span_in_context(span))
        try:
            for record in records:
                self._attempts(record)
        finally:
            self._context.detach(token)
        span.set_attributes({name: value for name, value in facts.items() if value is not None})
        if facts["http.response.status_code"] >= 500:
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()


def begin_trace(tracing: Tracing | None, path: str, wire: str, headers: Mapping[str, str]) -> Any:
    """Set the trace headers for the model calls of a request; return its span, if there is one."""
    span = None if tracing is None else tracing.begin(path, wire, headers)
    passed = {} if tracing is None else tracing.find_headers(span)
    if not passed and "traceparent" in headers and (parent := read_parent(headers)) is not None:
        trace, _, flags = parent
        passed = {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-{flags}"}
        if state := headers.get("tracestate", "")[:_MAX_STATE]:
            passed["tracestate"] = state
    TRACE_HEADERS.set({name: Secret(value) for name, value in passed.items()} if passed else None)
    return span
