"""Build the call records of embedding and reranking requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..calls import TURN, CallCompleted, CallFailed, price_usage, read_headers, redact
from ..errors import ProviderError
from ..events import Usage
from ..retrieval import Embeddings, EmbedRequest, Ranking, RerankRequest, RetrievalModel
from .attempts import MAX_MESSAGE, read_attempt
from .layer import RETRY_REASON


def describe_request(
    model: RetrievalModel[Any, Any],
    request: EmbedRequest | RerankRequest,
    at: float,
    *,
    include_content: bool = False,
) -> dict[str, Any]:
    """Return the fields that are the same in all records of a request."""
    facts: dict[str, Any] = {
        "operation": model.operation,
        "provider": model.name,
        "model": request.model or model.model,
        "server": model.server,
        "request_id": request.request_id,
        "at": at,
        "attempt": read_attempt(request),
        "retry_reason": request.metadata.get(RETRY_REASON),
        "session_id": request.session_id,
        "turn_id": request.metadata.get(TURN),
    }
    if isinstance(request, EmbedRequest):
        given = {"input_type": request.input_type, "dimensions": request.dimensions}
        facts["input_count"] = len(request.texts)
        content: dict[str, Any] = {"texts": tuple(request.texts)}
    else:
        given = {"return_documents": request.return_documents}
        facts |= {"document_count": len(request.documents), "top_k": request.top_k}
        content = {"query": request.query, "documents": tuple(request.documents)}
    facts["settings"] = {name: value for name, value in given.items() if value is not None}
    return facts | content if include_content else facts


def record_answer(
    model: RetrievalModel[Any, Any],
    facts: dict[str, Any],
    answer: Embeddings | Ranking,
    seconds: float,
    price: Callable[[Usage, str], Any] | None = None,
) -> CallCompleted:
    """Return the record of a request that succeeded."""
    found: dict[str, Any] = (
        {"dimensions": answer.dimensions}
        if isinstance(answer, Embeddings)
        else {"result_count": len(answer.results)}
    )
    return CallCompleted(
        stop_reason="end_turn",
        latency_ms=round(seconds * 1000, 3),
        response_model=answer.model,
        response_id=answer.response_id,
        **found,
        **facts,
        **_price(model, facts, answer.usage, price),
    )


def record_failed_request(
    model: RetrievalModel[Any, Any],
    facts: dict[str, Any],
    error: BaseException,
    partial: Any,
    seconds: float,
    price: Callable[[Usage, str], Any] | None = None,
) -> CallFailed:
    """Return the record of a failed request.

    ``partial`` is the part of the request that was answered and billed before the failure.
    """
    used = (
        _price(model, facts, partial.usage, price)
        if isinstance(partial, Embeddings | Ranking)
        else {}
    )
    common: dict[str, Any] = {
        "latency_ms": round(seconds * 1000, 3),
        "retry_count": facts["attempt"],
        **facts,
        **used,
    }
    if isinstance(error, asyncio.CancelledError):
        message = "the call was cancelled"
        return CallFailed(
            error_class="cancelled", category="cancelled", error_message_redacted=message, **common
        )
    if not isinstance(error, ProviderError):
        return CallFailed(
            error_class="other",
            error_message_redacted=redact(f"{type(error).__name__}: {error}"),
            **common,
        )
    return CallFailed(
        error_class=error.error_class,
        error_message_redacted=redact(str(error)[:MAX_MESSAGE]),
        category=error.category,
        status=error.status,
        **common,
        **read_headers(error.headers),
    )


def _price(
    model: RetrievalModel[Any, Any],
    facts: dict[str, Any],
    usage: Usage,
    price: Callable[[Usage, str], Any] | None,
) -> dict[str, Any]:
    sold_as = model.priced_as
    bill = (
        sold_as.cost(usage)
        if price is None
        else price(usage, f"{facts['provider']}:{facts['model']}")
    )
    return price_usage(usage, bill, sold_as.model)
