"""Record a finished request in the metrics, the ledger, the access log and the event log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from ..calls import Inbound
from ..errors import ProviderError
from ..events import MessageComplete
from ..messages import LossWarning, Request
from ..provider import Provider, Reply
from ..wire import ServerCodec
from .access import Service
from .evidence import CallEnd, GatewayCall, add_up, hide_messages
from .keys import Key
from .ledger import Lease
from .routing import find_switches

access = logging.getLogger("dragoman.access")

_MAX_WARNINGS = 50  # the most warnings of one request in the access log


class Ended(Protocol):
    """What is known about a finished request; ``Exchange`` implements it."""

    service: Service
    codec: ServerCodec
    began: float
    first: float | None
    key: Key | None
    lease: Lease | None
    model: str
    status: int
    size: int
    length: int
    provider: Provider | None
    request: Request | None
    reply: Reply | None
    span: Any
    id: str
    complete: MessageComplete | None
    error: ProviderError | None
    warnings: tuple[LossWarning, ...]


def account(exchange: Ended, record: Callable[[float], list[CallEnd]] | None = None) -> None:
    """Count a finished request and write its log records; ``record`` builds the records of
    retrieval requests.
    """
    service, seconds = exchange.service, time.perf_counter() - exchange.began
    service.metrics.count(exchange.codec.wire, exchange.model, exchange.status)
    service.metrics.warn(exchange.codec.wire, exchange.warnings)
    service.metrics.time("request", seconds)
    if exchange.first is not None:
        service.metrics.time("first_event", exchange.first)
    switches = find_switches(exchange.reply)
    service.metrics.switch(exchange.model, switches)
    records = _record_call(exchange, seconds) if record is None else record(seconds)
    usage, money = add_up(records)
    tokens = (usage.input_tokens or 0) + (usage.output_tokens or 0)
    if tokens:
        service.metrics.use(exchange.model, usage)
    if exchange.key is not None and exchange.key.is_limited and (exchange.lease or tokens):
        service.ledger.settle(exchange.lease, exchange.key, tokens, money)
    if service.tracing is not None and exchange.span is not None:
        owner = None if exchange.key is None else exchange.key.id
        facts = {
            "http.response.status_code": exchange.status,
            "dragoman.model": exchange.model or None,
        }
        facts |= {"dragoman.key": owner, "dragoman.request_id": exchange.id}
        service.tracing.end(exchange.span, facts, records)
    if service.usage is not None and exchange.model:  # not for requests that were rejected before
        owner = "" if exchange.key is None else exchange.key.id
        service.usage.count(owner, exchange.model, exchange.status, usage, money)
    if access.isEnabledFor(logging.INFO):
        lines: list[Any] = [*switches, *hide_messages(records)] or [
            _describe(exchange.request, describe_inbound(exchange), seconds)
        ]
        for line in lines:
            access.info("%s", msgspec.json.encode(line).decode())


def _record_call(exchange: Ended, seconds: float) -> list[CallEnd]:
    """Return the records of the call, and write them to the log if there is one; empty without a
    call.
    """
    if exchange.reply is None or exchange.provider is None or exchange.request is None:
        return []
    call = GatewayCall(
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
    records = call.record()
    if exchange.service.calls is not None:
        exchange.service.calls.put(call, records)
    return records


def describe_inbound(exchange: Ended) -> Inbound:
    """Return the part of a log record that describes the client's side of a request."""
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
    """Return the line of the access log for a request without a model call."""
    at, took = round(time.time() - seconds, 6), round(seconds * 1000, 3)
    line = {"type": "gateway.request", "at": at, "latency_ms": took, "inbound": inbound}
    return line if request is None else {**line, "request_id": request.request_id}
