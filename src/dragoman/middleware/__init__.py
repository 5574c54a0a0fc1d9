"""Around the provider: each of these is a ``Provider`` around a ``Provider``.

``Retry`` tries again, ``Fallback`` asks somebody else, ``RateLimit`` waits, ``Observe`` tells, ``Record``
remembers. ``describe`` prints a stack of them. Which goes around which: outermost ``Fallback``, then
``Retry``, ``RateLimit``, ``Observe`` and ``Record``, and the provider inside.
"""

from ..calls import (
    IS_WORKER,
    CallCompleted,
    CallFailed,
    CallStarted,
    ProviderRecovered,
    ProviderUnavailable,
    RoutingSwitched,
    redact,
)
from .availability import Admission, Availability
from .cassette import CassetteError, CassetteMiss, Record, request_key
from .fallback import Fallback, NotConfigured, RoutingEvent
from .layer import ATTEMPT, RETRY_REASON, Layer, Middleware, Wrapper, describe, reading, walk
from .observe import CallEvent, EventsDropped, Observe, Subscriber
from .otel import OpenTelemetry
from .ratelimit import Lease, Limiter, RateLimit
from .redis import LimiterUnavailableError, RedisLimiter
from .retry import Retry

__all__ = [
    "ATTEMPT",
    "IS_WORKER",
    "RETRY_REASON",
    "Admission",
    "Availability",
    "CallCompleted",
    "CallEvent",
    "CallFailed",
    "CallStarted",
    "CassetteError",
    "CassetteMiss",
    "EventsDropped",
    "Fallback",
    "Layer",
    "Lease",
    "Limiter",
    "LimiterUnavailableError",
    "Middleware",
    "NotConfigured",
    "Observe",
    "OpenTelemetry",
    "ProviderRecovered",
    "ProviderUnavailable",
    "RateLimit",
    "Record",
    "RedisLimiter",
    "Retry",
    "RoutingEvent",
    "RoutingSwitched",
    "Subscriber",
    "Wrapper",
    "describe",
    "reading",
    "redact",
    "request_key",
    "walk",
]
