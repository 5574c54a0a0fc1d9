"""Record a finished request in the metrics, the ledger, the access log and the event log.

Each failed attempt of a call before the last has one ``CallFailed``; the last attempt has one
``CallCompleted`` or ``CallFailed``. Each record has ``inbound``, which describes the client's
request. The tokens and the cost in the ledger are the sums of these records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from ..calls import CallFailed, Inbound
from ..errors import CallCancelledError, ProviderError
from ..events import MessageComplete, Usage
from ..messages import LossWarning, Request
from ..middleware.attempts import Attempt, CallEnd
from ..prices.results import EXACT
from ..provider import Provider, Reply
from ..wire import ServerCodec
from .access import Service
from .call_log import hide_messages
from .keys import Key
from .ledger import Lease
from .routing import find_switches

access = logging.getLogger("dragoman.access")

# A body with more bytes than this is parsed in a thread, and its tokens are estimated only
# roughly.
LARGE = 256 * 1024
_MAX_WARNINGS = 50  # maximum number of warnings that the access log shows for one request


class Charged(NamedTuple):
    """A call's records that the ledger has already counted, and its error at that time.

    A call is charged shortly before the last bytes of its reply are sent. It may still fail after
    that.
    """

    records: list[CallEnd]
    error: ProviderError | None


class Ended(Protocol):
    """The data about a finished request; ``Exchange`` implements this protocol."""

    service: Service
    codec: ServerCodec
    began: float
    first: float | None
    key: Key | None
    limited: Key | None
    lease: Lease | None
    model: str
    status: int
    size: int
    length: int
    provider: Provider | None
    request: Request | None
    reply: Reply | None
    span: Any
    complete: MessageComplete | None
    error: ProviderError | None
    warnings: tuple[LossWarning, ...]
    charged: Charged | None

    @property
    def id(self) -> str:
        """The id of the request."""
        ...

    @property
    def record(self) -> Callable[[float], list[CallEnd]] | None:
        """A function that builds a retrieval request's records, or ``None`` for a chat request."""


async def charge(exchange: Ended) -> None:
    """Write the cost of a call to the ledger before the end of its reply is sent.

    If the cost were written later, a client could send its next request as soon as the reply ends,
    and another worker would admit that request although the budget is exhausted.
    """
    key = exchange.limited
    if key is None or not key.has_budget or exchange.charged is not None:
        return
    records = _make_records(exchange, time.perf_counter() - exchange.began)
    exchange.charged = Charged(records, exchange.error)
    usage, money = add_up(records)
    lease, exchange.lease = exchange.lease, None
    await exchange.service.ledger.charge(lease, key, _count_tokens(usage), money)


def account(exchange: Ended) -> None:
    """Count a finished request and write its log records."""
    service, seconds = exchange.service, time.perf_counter() - exchange.began
    metrics, reply = service.metrics, exchange.reply
    metrics.count(exchange.codec.wire, exchange.model, exchange.status)
    metrics.warn(exchange.codec.wire, exchange.warnings)
    metrics.time("request", seconds)
    if exchange.first is not None:
        metrics.time("first_event", exchange.first)
    if reply is not None and reply.history:
        metrics.switch(exchange.model, find_switches(reply))
    if exchange.record is not None or _needs_records(exchange):
        usage = _record(exchange, seconds)
    else:
        usage = _count_usage(exchange)
    if _count_tokens(usage):
        metrics.use(exchange.model, usage)


def _needs_records(exchange: Ended) -> bool:
    """Return whether the records of a request are written anywhere, or its price is needed.

    Most gateways need neither for most requests, and building the records takes a tenth of a
    request's CPU time.
    """
    service = exchange.service
    return (
        service.calls is not None
        or service.tracing is not None
        or service.usage is not None
        or exchange.limited is not None
        or access.isEnabledFor(logging.INFO)
    )


def _record(exchange: Ended, seconds: float) -> Usage:
    """Write the records of a request to all logs and ledgers; return its token usage."""
    service = exchange.service
    records = _make_records(exchange, seconds)
    if service.calls is not None and records:
        service.calls.put(records, exchange.request, exchange.reply, exchange.complete)
    usage, money = add_up(records)
    tokens = _count_tokens(usage)
    if exchange.limited is not None and (exchange.lease or tokens):
        _settle(exchange, exchange.limited, tokens, money)
    if service.tracing is not None and exchange.span is not None:
        owner = None if exchange.key is None else exchange.key.id
        facts = {
            "http.response.status_code": exchange.status,
            "dragoman.model": exchange.model or None,
        }
        facts |= {"dragoman.key": owner, "dragoman.request_id": exchange.id}
        service.tracing.end(exchange.span, facts, records)
    # the model is empty if the request was rejected before its model was known
    if service.usage is not None and exchange.model:
        owner = "" if exchange.key is None else exchange.key.id
        service.usage.count(owner, exchange.model, exchange.status, usage, money)
    if access.isEnabledFor(logging.INFO):
        lines: list[Any] = [*find_switches(exchange.reply), *hide_messages(records)] or [
            _describe(exchange.request, describe_inbound(exchange), seconds)
        ]
        for line in lines:
            access.info("%s", msgspec.json.encode(line).decode())
    return usage


def _count_tokens(usage: Usage) -> int:
    return (usage.input_tokens or 0) + (usage.output_tokens or 0)


def _settle(exchange: Ended, key: Key, tokens: int, money: Decimal) -> None:
    """Release the lease, and count the usage that the ledger has not counted yet.

    The usage can change between ``charge`` and the end of the request.
    """
    if exchange.charged is not None:
        usage, paid = add_up(exchange.charged.records)
        tokens, money = tokens - _count_tokens(usage), EXACT.subtract(money, paid)
    exchange.service.ledger.settle(exchange.lease, key, tokens, money)


def _make_records(exchange: Ended, seconds: float) -> list[CallEnd]:
    """Return one record for each attempt of the call; an empty list if no model was called."""
    if exchange.record is not None:
        return exchange.record(seconds)
    provider, request, reply = exchange.provider, exchange.request, exchange.reply
    if provider is None or request is None or reply is None:
        return []
    inbound, charged = describe_inbound(exchange), exchange.charged
    if charged is not None and charged.error is exchange.error:
        # Reuse the records that were charged: computing the prices again would be slow.
        *earlier, last = [replace(each, inbound=inbound) for each in charged.records]
        return [*earlier, replace(last, latency_ms=round(seconds * 1000, 3))]
    attempt = Attempt(provider, request, at=round(time.time() - seconds, 6))
    attempt.reply, attempt.answer = reply, exchange.complete
    attempt.began, attempt.first, attempt.ended = 0.0, exchange.first, seconds
    attempt.usage, attempt.error = _find_usage(exchange, reply), exchange.error
    if exchange.error is None and exchange.complete is None:
        attempt.error = CallCancelledError("the client hung up", advice="")
    failed = [replace(each, inbound=inbound) for each in _find_failed(reply)]
    return [*failed, attempt.end(inbound=inbound)]


def _find_failed(reply: Reply) -> list[CallFailed]:
    """Return the records of the attempts that failed before the last one."""
    return [each for each in reply.history if isinstance(each, CallFailed)]


def _find_usage(exchange: Ended, reply: Reply) -> Usage:
    """Return the reply's token usage, or an estimate if the provider did not report it."""
    usage, provider, request = reply.usage, exchange.provider, exchange.request
    is_known = usage.input_tokens is not None and usage.output_tokens is not None
    if is_known or exchange.first is None or provider is None or request is None:
        return usage
    asked = usage.input_tokens
    # for long requests assume four bytes per token, since a better estimate takes seconds
    if asked is None and exchange.size > LARGE:
        asked = exchange.size // 4
    elif asked is None:
        asked = provider.estimate_input_tokens(request.messages, request.tools)
    written = max(usage.output_tokens or 0, exchange.length // 100)
    return replace(
        usage, input_tokens=asked, output_tokens=written, total_tokens=None, estimated=True
    )


def _count_usage(exchange: Ended) -> Usage:
    """Return the tokens of all attempts of a call, without computing their price."""
    reply = exchange.reply
    if reply is None:
        return Usage(0, 0)
    usage = _find_usage(exchange, reply)
    if not reply.history:
        return usage
    used: list[Usage | CallFailed] = [usage, *_find_failed(reply)]
    return Usage(
        sum([each.input_tokens or 0 for each in used]),
        sum([each.output_tokens or 0 for each in used]),
    )


def add_up(records: Sequence[CallEnd]) -> tuple[Usage, Decimal]:
    """Return the total token usage and the total cost of some call records."""
    asked = sum([record.input_tokens or 0 for record in records])
    written = sum([record.output_tokens or 0 for record in records])
    money = Decimal(0)
    for record in records:
        money = EXACT.add(money, record.cost_usd or Decimal(0))
    return Usage(asked, written), money


def describe_inbound(exchange: Ended) -> Inbound:
    """Return the part of a call record that describes the client's request and its HTTP reply."""
    return Inbound(
        wire=exchange.codec.wire,
        key=None if exchange.key is None else exchange.key.id,
        name=exchange.model or None,
        status=exchange.status,
        bytes=exchange.length,
        warnings=tuple(
            [f"{warning.code} {warning.path}" for warning in exchange.warnings[:_MAX_WARNINGS]]
        ),
        error=None if exchange.error is None else exchange.error.category,
    )


def _describe(request: Request | None, inbound: Inbound, seconds: float) -> dict[str, Any]:
    """Return the access log line of a request that did not call a model."""
    at, took = round(time.time() - seconds, 6), round(seconds * 1000, 3)
    line = {"type": "gateway.request", "at": at, "latency_ms": took, "inbound": inbound}
    return line if request is None else {**line, "request_id": request.request_id}
