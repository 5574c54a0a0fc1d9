"""Record a finished request in the metrics, the ledger, the access log and the event log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from ..calls import Inbound
from ..errors import ProviderError
from ..events import MessageComplete, Usage
from ..messages import LossWarning, Request
from ..middleware.attempts import CallEnd
from ..prices.results import EXACT
from ..provider import Provider, Reply
from ..wire import ServerCodec
from .access import Service
from .evidence import GatewayCall, add_up, hide_messages
from .keys import Key
from .ledger import Lease
from .routing import find_switches

access = logging.getLogger("dragoman.access")

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
    records, _ = _describe_call(exchange, time.perf_counter() - exchange.began)
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
        usage = _find_usage(exchange, seconds)
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
    records, call = _describe_call(exchange, seconds)
    if service.calls is not None and call is not None:
        service.calls.put(call, records)
    elif service.calls is not None and records:
        service.calls.put_records(records, exchange.id)
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


def _describe_call(exchange: Ended, seconds: float) -> tuple[list[CallEnd], GatewayCall | None]:
    """Return the records of the request's model call, and the call itself.

    For a retrieval request, the call is ``None``. If no model was called, the list of records is
    empty and the call is ``None``.
    """
    if exchange.record is not None:
        return exchange.record(seconds), None
    call, charged = _make_call(exchange, seconds), exchange.charged
    if call is None:
        return [], None
    if charged is None or charged.error is not exchange.error:
        return call.record(), call
    # Reuse the records that were charged: computing the prices again would be slow.
    records = [replace(each, inbound=call.inbound) for each in charged.records]
    return [*records[:-1], replace(records[-1], latency_ms=round(seconds * 1000, 3))], call


def _find_usage(exchange: Ended, seconds: float) -> Usage:
    """Return the tokens of all attempts of a call, with estimates of those not reported."""
    reply = exchange.reply
    if reply is None:
        return Usage(0, 0)
    usage = reply.usage
    if usage.input_tokens is not None and usage.output_tokens is not None and not reply.history:
        return usage
    call = _make_call(exchange, seconds)
    return usage if call is None else call.count_tokens()


def _make_call(exchange: Ended, seconds: float) -> GatewayCall | None:
    """Return the call to the model; ``None`` if the request ended before a model was called."""
    if exchange.reply is None or exchange.provider is None or exchange.request is None:
        return None
    return GatewayCall(
        provider=exchange.provider,
        request=exchange.request,
        reply=exchange.reply,
        inbound=describe_inbound(exchange),
        at=time.time() - seconds,
        seconds=seconds,
        first=exchange.first,
        complete=exchange.complete,
        error=exchange.error,
        body_bytes=exchange.size,
    )


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
