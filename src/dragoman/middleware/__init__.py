"""Middleware: layers, each of which is a ``Provider`` that wraps another ``Provider``.

Box: core.

``Retry`` repeats failed calls, ``Fallback`` switches to another model, ``RateLimit`` delays calls,
``Observe`` reports calls to subscribers, ``Spend`` limits their cost, ``Guard`` releases what
judges allow, ``Defaults`` adds settings, ``Record`` records calls to cassettes, and ``Cache``
stores replies. ``describe`` lists the layers. Use them in this order, from the outermost to the
innermost: ``Cache``, ``Spend``, ``Guard``, ``Fallback``, ``Retry``, ``RateLimit``, ``Observe``,
``Record``, then the provider.
"""

from ..calls import (
    IS_WORKER,
    CallCompleted,
    CallFailed,
    CallStarted,
    GuardJudged,
    ProviderRecovered,
    ProviderUnavailable,
    RoutingChosen,
    RoutingSwitched,
    redact,
)
from ..provider.call_log import ATTEMPT
from .availability import Admission, Availability, Thresholds
from .cache import CACHE, Cache
from .cassette import CassetteError, CassetteMiss, Record
from .defaults import Defaults
from .fallback import Fallback, NotConfigured, RoutingEvent
from .guard import Guard, Judge, Subject, Verdict
from .layer import RETRY_REASON, Layer, Middleware, Wrapper, describe, reading, walk
from .observe import CallEvent, EventsDropped, Observe, Subscriber
from .otel import OpenTelemetry
from .ratelimit import Lease, Limiter, RateLimit
from .redis_availability import RedisAvailability
from .redis_limiter import LimiterUnavailableError, RedisLimiter
from .request_keys import request_key
from .retry import Retry
from .rotation import KeyRotation
from .spend import Spend, Wallet
from .stores import RedisStore, SqliteStore, Store
from .strategy import STRATEGIES, Strategy, StrategyName

__all__ = [
    "ATTEMPT", "CACHE", "IS_WORKER", "RETRY_REASON", "STRATEGIES", "Admission", "Availability",
    "Cache", "CallCompleted", "CallEvent", "CallFailed", "CallStarted", "CassetteError",
    "CassetteMiss", "Defaults", "EventsDropped", "Fallback", "Guard", "GuardJudged", "Judge", "KeyRotation", "Layer", "Lease", "Limiter",
    "LimiterUnavailableError", "Middleware", "NotConfigured", "Observe", "OpenTelemetry",
    "ProviderRecovered", "ProviderUnavailable", "RateLimit", "Record", "RedisAvailability",
    "RedisLimiter", "RedisStore", "Retry", "RoutingChosen", "RoutingEvent", "RoutingSwitched",
    "Spend", "SqliteStore", "Store", "Strategy", "StrategyName", "Subject", "Subscriber", "Thresholds", "Verdict",
    "Wallet",
    "Wrapper",
    "describe", "reading", "redact", "request_key", "walk",
]  # fmt: skip
