"""Build the records of a call's attempts, for retries and switches to another provider."""

from __future__ import annotations

from ..calls import TURN, CallFailed, CallStarted, price_usage, read_headers, redact
from ..errors import ProviderError
from ..messages import Request
from ..provider import Provider, Reply
from ..retrieval import EmbedRequest, RerankRequest
from .layer import ATTEMPT, RETRY_REASON, find_served

MAX_MESSAGE = 2000


def read_attempt(request: Request | EmbedRequest | RerankRequest) -> int:
    """Return the attempt's number, which ``Retry`` stores in the request's metadata."""
    number = str(request.metadata.get(ATTEMPT, "0"))
    return int(number) if number.isdecimal() else 0


def record_started(provider: Provider, request: Request) -> CallStarted:
    """Return the record for the start of an attempt."""
    return CallStarted(
        model=request.model or provider.model,
        provider=provider.name,
        request_id=request.request_id,
        attempt=read_attempt(request),
        retry_reason=request.metadata.get(RETRY_REASON),
        session_id=request.session_id,
        turn_id=request.metadata.get(TURN),
        stream=request.stream,
    )


def record_failed(
    provider: Provider,
    request: Request,
    reply: Reply,
    error: ProviderError,
    wait: float | None = None,
) -> CallFailed:
    """Return the record of a failed attempt; ``wait`` is the delay before the next one, if any."""
    attempt, sold_as = (
        read_attempt(request),
        find_served(provider, reply.provider, reply.model).priced_as,
    )
    return CallFailed(
        model=reply.model,
        provider=reply.provider,
        request_id=request.request_id,
        attempt=attempt,
        retry_count=attempt,
        retry_reason=request.metadata.get(RETRY_REASON),
        session_id=request.session_id,
        turn_id=request.metadata.get(TURN),
        stream=request.stream,
        error_class=error.error_class,
        error_message_redacted=redact(str(error)[:MAX_MESSAGE]),
        category=error.category,
        status=error.status,
        wait_seconds=wait,
        **read_headers(error.headers),
        **price_usage(reply.usage, sold_as.cost(reply.usage), sold_as.model),
    )
