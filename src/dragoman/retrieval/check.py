"""Check the arguments of a call and build requests; reject invalid calls before sending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..capabilities import Capabilities
from ..errors import InvalidRequestError, UnsupportedFeatureError, quote
from .values import EmbedRequest, RerankRequest


def build_embed_request(
    texts: Sequence[str],
    *,
    input_type: str | None = None,
    dimensions: int | None = None,
    extras: Mapping[str, Any] | None = None,
    **facts: Any,
) -> EmbedRequest:
    """Check the arguments of ``embed`` and return them as a request.

    ``facts`` are fields of the request that need no check; one that is ``None`` is not set.
    """
    if input_type is not None and (not isinstance(input_type, str) or not input_type):
        raise InvalidRequestError(
            f"input_type must be a string such as 'query' or 'document', not {quote(input_type)}"
        )
    _check_positive("dimensions", dimensions)
    return EmbedRequest(
        texts=_check_texts("texts", texts),
        input_type=input_type,
        dimensions=dimensions,
        extras=_check_extras(extras),
        **{name: value for name, value in facts.items() if value is not None},
    )


def build_rerank_request(
    query: str,
    documents: Sequence[str],
    *,
    top_k: int | None = None,
    return_documents: bool | None = None,
    extras: Mapping[str, Any] | None = None,
    **facts: Any,
) -> RerankRequest:
    """Check the arguments of ``rerank`` and return them as a request."""
    if not isinstance(query, str):
        raise InvalidRequestError(f"query must be a string, not {type(query).__name__}")
    if not query:
        raise InvalidRequestError("query is empty")
    if return_documents is not None and not isinstance(return_documents, bool):
        raise InvalidRequestError(
            f"return_documents must be true or false, not {quote(return_documents)}"
        )
    _check_positive("top_k", top_k)
    return RerankRequest(
        query=query,
        documents=_check_texts("documents", documents),
        top_k=top_k,
        return_documents=return_documents,
        extras=_check_extras(extras),
        **{name: value for name, value in facts.items() if value is not None},
    )


def check_abilities(request: EmbedRequest | RerankRequest, known: Capabilities) -> None:
    """Reject a request that uses a feature that the model is known to lack."""
    if isinstance(request, RerankRequest):
        if known.known("supports_reranking") is False:
            raise UnsupportedFeatureError("this model is known not to rank documents")
        return
    if known.known("supports_embeddings") is False:
        raise UnsupportedFeatureError("this model is known not to embed")
    if request.dimensions is not None:
        if known.known("supports_dimensions") is False:
            raise UnsupportedFeatureError(
                "dimensions: this model is known to have vectors of one length only"
            )
        most = known.known("max_dimensions")
        if most is not None and request.dimensions > most:
            raise InvalidRequestError(
                f"dimensions: this model has {most} at most, not {request.dimensions}"
            )


def _check_texts(name: str, texts: Any) -> tuple[str, ...]:
    if isinstance(texts, str | bytes):
        raise InvalidRequestError(
            f"{name} must be a list of strings; put the one string into a list"
        )
    if not isinstance(texts, Sequence):
        raise InvalidRequestError(f"{name} must be a list of strings, not {type(texts).__name__}")
    if not texts:
        raise InvalidRequestError(f"{name} is empty")
    given = tuple(texts)
    for at, text in enumerate(given):
        if type(text) is not str and not isinstance(text, str):
            raise InvalidRequestError(f"{name}[{at}] must be a string, not {type(text).__name__}")
    return given


def _check_positive(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value <= 0):
        raise InvalidRequestError(f"{name} must be a positive whole number, not {quote(value)}")


def _check_extras(extras: Any) -> Mapping[str, Any]:
    if extras is None:
        return {}
    if not isinstance(extras, Mapping) or not all(isinstance(name, str) for name in extras):
        raise InvalidRequestError("extras must be a mapping of field names")
    return extras
