"""Examine a live embedder or reranker: run the checks and report the model's capabilities."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from ...capabilities import Capabilities
from ...provider.http_model import show_url
from ...retrieval import bind_embedder, bind_reranker
from ..checks import Check, Failed, Unsupported
from ..live import run_check
from ..report import Report
from ..server import reach
from .contract import NEAR, find_cosine

_TEXTS = ("The Rhine rises in the Alps.", "Bread is made of flour.", "A prime has two divisors.")
_QUERY = "Where does the Rhine rise?"


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
    if "transport" not in settings:
        await reach(url, seconds)
    bind: Any = bind_embedder if operation == "embed" else bind_reranker
    key = {"api_key": api_key} if api_key else {}
    async with bind(model, url, wire=wire, timeouts=seconds, **key, **settings) as opened:
        probe = _Probe(opened)
        outcomes = [await run_check(check, probe) for check in _CHECKS[operation]]
    if outcomes[-1].name == "embed.dimensions" and outcomes[-1].status == "unsupported":
        probe.facts["supports_dimensions"] = False
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    known = Capabilities.of(probe.facts, "probed", at=at, by=f"{by} check")
    return Report(
        url=show_url(url),
        wire=wire,
        model=model,
        by=by,
        at=at,
        outcomes=tuple(outcomes),
        capabilities=known,
        probes={},
    )


class _Probe:
    """The model under test, and the capabilities that the checks have found."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.facts: dict[str, Any] = {}

    async def embed(self, texts: tuple[str, ...] = _TEXTS, **settings: Any) -> Any:
        return await self.model.embed(texts, **settings)

    async def rerank(self, **settings: Any) -> Any:
        return await self.model.rerank(_QUERY, _TEXTS, **settings)


async def _check_vectors(probe: _Probe) -> str:
    found = await probe.embed()
    probe.facts.update(supports_embeddings=True, max_dimensions=found.dimensions)
    return f"{len(found.vectors)} vectors of {found.dimensions} numbers"


async def _check_order(probe: _Probe) -> str:
    together = await probe.embed()
    for text, row in zip(_TEXTS, together.vectors, strict=True):
        alone = (await probe.embed((text,))).vectors[0]
        if find_cosine(row, alone) < NEAR:
            raise Failed(f"the vector of {text!r} differs between a list and a separate call")
    return "texts have the same vectors in a list and alone"


async def _check_many(probe: _Probe) -> str:
    count = min(probe.model.batch_size or 32, 32)
    found = await probe.embed(tuple([f"Text number {number}." for number in range(count)]))
    return f"{len(found.vectors)} texts in one request"


async def _check_tokens(probe: _Probe) -> str:
    tokens = (await probe.embed(_TEXTS[:1])).usage.input_tokens
    if tokens is None:
        raise Unsupported("no tokens are reported")
    return f"{tokens} tokens"


async def _check_dimensions(probe: _Probe) -> str:
    full = probe.facts.get("max_dimensions") or 2
    found = await probe.embed(_TEXTS[:1], dimensions=full // 2)
    probe.facts["supports_dimensions"] = found.dimensions == full // 2
    if not probe.facts["supports_dimensions"]:
        raise Unsupported(f"{full // 2} were requested, {found.dimensions} came")
    return f"{found.dimensions} of {full}"


async def _check_scores(probe: _Probe) -> str:
    found = await probe.rerank()
    if sorted([each.index for each in found.results]) != [0, 1, 2]:
        raise Failed(f"{len(found.results)} of 3 documents were ranked")
    probe.facts["supports_reranking"] = True
    return f"the best is {_TEXTS[found.results[0].index]!r}"


async def _check_top_k(probe: _Probe) -> str:
    found = await probe.rerank(top_k=1)
    if len(found.results) != 1:
        raise Failed(f"{len(found.results)} results, 1 was requested")
    return "one result for top_k=1"


async def _check_documents(probe: _Probe) -> str:
    found = await probe.rerank(return_documents=True)
    if any(each.document is None for each in found.results):
        raise Unsupported("the documents are not returned")
    if any(each.document != _TEXTS[each.index] for each in found.results):
        raise Failed("a document is returned under the index of another")
    return "the documents are returned"


async def _check_usage(probe: _Probe) -> str:
    found = (await probe.rerank()).usage
    if found.input_tokens is None and found.search_units is None:
        raise Unsupported("neither tokens nor searches are reported")
    return f"tokens {found.input_tokens}, searches {found.search_units}"


_CHECKS = {
    "embed": (
        Check("embed.vectors", "One vector for each text.", _check_vectors),
        Check("embed.order", "Vectors belong to their texts.", _check_order),
        Check("embed.many", "Many texts in one request.", _check_many),
        Check("embed.usage", "Tokens are reported.", _check_tokens, True),
        Check("embed.dimensions", "Vectors can be shortened.", _check_dimensions, True),
    ),
    "rerank": (
        Check("rerank.scores", "Every document is ranked.", _check_scores),
        Check("rerank.top_k", "top_k limits the results.", _check_top_k),
        Check("rerank.documents", "Documents are returned.", _check_documents, True),
        Check("rerank.usage", "Usage is reported.", _check_usage, True),
    ),
}
