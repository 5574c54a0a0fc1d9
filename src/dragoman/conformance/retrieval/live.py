"""Examine a live embedder or reranker: run the checks and report the model's capabilities."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Literal

from ...capabilities import Capabilities
from ...errors import InvalidRequestError, ProviderError, UnsupportedFeatureError
from ...retrieval import Embedder, Reranker, bind_embedder, bind_reranker
from ..report import CheckOutcome, Report, Status
from .contract import find_cosine

_TEXTS = ("The Rhine rises in the Alps.", "Bread is made of flour.", "A prime has two divisors.")
# Minimum cosine of two vectors of the same text; they differ because computation in batches rounds
# differently.
_NEAR = 0.999


class _FailedError(Exception):
    """The outcome of a check: the server breaks a rule."""


class _UnsupportedError(Exception):
    """The outcome of a check: the server lacks an optional feature."""


async def check_retrieval_server(
    url: str,
    model: str,
    operation: Literal["embed", "rerank"],
    wire: str = "openai",
    api_key: str | None = None,
    *,
    seconds: float = 60.0,
    by: str = "dragoman",
    **settings: Any,
) -> Report:
    """Run every check of an operation against the server at ``url`` and return a report.

    This makes about ten short calls.
    """
    bind: Any = bind_embedder if operation == "embed" else bind_reranker
    bound = bind(
        model,
        url,
        wire=wire,
        timeouts=seconds,
        **({"api_key": api_key} if api_key else {}),
        **settings,
    )
    async with bound as opened:
        outcomes, facts = await (
            _check_embedder(opened) if operation == "embed" else _check_reranker(opened)
        )
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    known = Capabilities.of(facts, "probed", at=at, by=f"{by} check")
    return Report(url.partition("?")[0], wire, model, by, at, tuple(outcomes), known, {})


async def _check_embedder(embedder: Embedder) -> tuple[list[CheckOutcome], dict[str, Any]]:
    facts: dict[str, Any] = {}

    async def vectors() -> str:
        found = await embedder.embed(_TEXTS)
        facts.update(supports_embeddings=True, max_dimensions=found.dimensions)
        return f"{len(found.vectors)} vectors of {found.dimensions} numbers"

    async def order() -> str:
        together = await embedder.embed(_TEXTS)
        for text, row in zip(_TEXTS, together.vectors, strict=True):
            alone = (await embedder.embed([text])).vectors[0]
            if find_cosine(row, alone) < _NEAR:
                raise _FailedError(
                    f"the vector of {text!r} differs between a list and a separate call"
                )
        return "texts have the same vectors in a list and alone"

    async def usage() -> str:
        tokens = (await embedder.embed(_TEXTS[:1])).usage.input_tokens
        if tokens is None:
            raise _UnsupportedError("no tokens are reported")
        return f"{tokens} tokens"

    async def dimensions() -> str:
        full = facts.get("max_dimensions") or 2
        found = await embedder.embed(_TEXTS[:1], dimensions=full // 2)
        facts["supports_dimensions"] = found.dimensions == full // 2
        if not facts["supports_dimensions"]:
            raise _UnsupportedError(f"{full // 2} were requested, {found.dimensions} came")
        return f"{found.dimensions} of {full}"

    async def many() -> str:
        count = min(embedder.batch_size or 32, 32)
        found = await embedder.embed([f"Text number {number}." for number in range(count)])
        return f"{len(found.vectors)} texts in one request"

    checks = {
        "embed.vectors": ("One vector for each text.", vectors, False),
        "embed.order": ("Vectors belong to their texts.", order, False),
        "embed.many": ("Many texts in one request.", many, False),
        "embed.usage": ("Tokens are reported.", usage, True),
        "embed.dimensions": ("Vectors can be shortened.", dimensions, True),
    }
    outcomes = [await _run(name, *check) for name, check in checks.items()]
    if outcomes[-1].status == "unsupported":
        facts["supports_dimensions"] = False
    return outcomes, facts


async def _check_reranker(reranker: Reranker) -> tuple[list[CheckOutcome], dict[str, Any]]:
    facts: dict[str, Any] = {}
    query = "Where does the Rhine rise?"

    async def scores() -> str:
        found = await reranker.rerank(query, _TEXTS)
        if sorted([each.index for each in found.results]) != [0, 1, 2]:
            raise _FailedError(f"{len(found.results)} of 3 documents were ranked")
        facts["supports_reranking"] = True
        return f"the best is {_TEXTS[found.results[0].index]!r}"

    async def top_k() -> str:
        found = await reranker.rerank(query, _TEXTS, top_k=1)
        if len(found.results) != 1:
            raise _FailedError(f"{len(found.results)} results, 1 was requested")
        return "one result for top_k=1"

    async def documents() -> str:
        found = await reranker.rerank(query, _TEXTS, return_documents=True)
        if any(each.document is None for each in found.results):
            raise _UnsupportedError("the documents are not returned")
        if any(each.document != _TEXTS[each.index] for each in found.results):
            raise _FailedError("a document is returned under the index of another")
        return "the documents are returned"

    async def usage() -> str:
        found = (await reranker.rerank(query, _TEXTS)).usage
        if found.input_tokens is None and found.search_units is None:
            raise _UnsupportedError("neither tokens nor searches are reported")
        return f"tokens {found.input_tokens}, searches {found.search_units}"

    checks = {
        "rerank.scores": ("Every document is ranked.", scores, False),
        "rerank.top_k": ("top_k limits the results.", top_k, False),
        "rerank.documents": ("Documents are returned.", documents, True),
        "rerank.usage": ("Usage is reported.", usage, True),
    }
    return [await _run(name, *check) for name, check in checks.items()], facts


async def _run(
    name: str, title: str, check: Callable[[], Awaitable[str]], optional: bool
) -> CheckOutcome:
    began = time.perf_counter()
    status: Status = "pass"
    about = True
    try:
        detail = await check()
    except _FailedError as found:
        status, detail = "fail", str(found)
    except _UnsupportedError as found:
        status, detail = "unsupported", str(found)
    except ProviderError as error:
        refused = optional and isinstance(error, InvalidRequestError | UnsupportedFeatureError)
        status, detail = ("unsupported" if refused else "fail"), f"{type(error).__name__}: {error}"
        about = refused or not error.transient
    return CheckOutcome(
        name, title, status, detail, (), round(time.perf_counter() - began, 3), about
    )
