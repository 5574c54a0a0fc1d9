"""Run the cases of retrieval wires: one JSON file per case, in a folder per operation and wire.

A case has ``base_url``, ``model``, ``quirks`` and ``prefixes``, as for ``connect_embedder``; the
``request``; the ``url`` and ``body`` that must be sent; ``status``, ``headers`` and ``reply`` (or
``text``, for a reply that is not JSON) of the response; and what the caller must receive: an
``answer``, the codes of ``warnings``, or an ``error`` with its ``class``, a part of its
``message``, and whether anything was ``sent``.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from ... import retrieval
from ...errors import ProviderError
from ...transport import FixtureTransport
from ..folders import list_files, list_folders
from ..violation import demand, demand_same

CASES = Path(__file__).parent / "cases"
# for each operation, the codecs, the class of models and the class of requests
_KINDS: dict[str, tuple[Any, Any, Any]] = {
    "embed": (retrieval.EMBED_CODECS, retrieval.HttpEmbedder, retrieval.EmbedRequest),
    "rerank": (retrieval.RERANK_CODECS, retrieval.HttpReranker, retrieval.RerankRequest),
}


class RetrievalCase(Struct, frozen=True):
    """One case of a retrieval wire; ``run`` raises ``Violation`` if the codec fails it."""

    name: str
    operation: str
    wire: str
    data: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.operation}/{self.wire}/{self.name}"

    def run(self, codec: Any = None) -> None:
        """Test a codec class with the case; without one, test Dragoman's own codec."""
        data = self.data
        codecs, kind, request = _KINDS[self.operation]
        text = data.get("text")
        body = msgspec.json.encode(data.get("reply")) if text is None else str(text).encode()
        transport = FixtureTransport((data.get("status", 200), data.get("headers", {}), [body]))
        made = (codec or codecs[self.wire]).connect(
            data["model"], data["base_url"], data.get("quirks")
        )
        model = kind(made, transport, name="case", prefixes=data.get("prefixes"))
        error: ProviderError | None = None
        answer: retrieval.Embeddings | retrieval.Ranking | None = None
        try:
            answer = asyncio.run(model.send(msgspec.convert(data["request"], request)))
        except ProviderError as raised:
            error = raised
        self._check_sent(transport)
        if "error" in data:
            self._check_error(error)
            return
        demand(error is None, f"{self}: {error!r}")
        assert answer is not None
        wanted = {"response_id": None, **data["answer"]}
        demand_same(_show(answer), wanted, f"{self}: the answer")
        found = [warning.code for warning in answer.warnings]
        demand_same(found, data.get("warnings", []), f"{self}: the warnings")

    def _check_sent(self, transport: FixtureTransport) -> None:
        expects = self.data.get("error", {}).get("sent", True)
        demand(
            bool(transport.requests) is expects,
            f"{self}: {len(transport.requests)} requests were sent",
        )
        for request in transport.requests:
            if "url" in self.data:
                demand_same(request.url, self.data["url"], f"{self}: the URL")
            if "body" in self.data:
                demand_same(
                    _ordered(msgspec.json.decode(request.body)),
                    _ordered(self.data["body"]),
                    f"{self}: the body",
                )

    def _check_error(self, error: ProviderError | None) -> None:
        wanted = self.data["error"]
        demand(error is not None, f"{self}: no error, expected {wanted['class']}")
        assert error is not None
        demand_same(type(error).__name__, wanted["class"], f"{self}: the class of the error")
        demand(
            wanted.get("message", "") in str(error),
            f"{self}: {wanted.get('message')!r} is not in {str(error)!r}",
        )
        if "retry_after" in wanted:
            demand_same(error.retry_after, wanted["retry_after"], f"{self}: retry_after")


def find_retrieval_cases(
    operation: str = "*", wire: str = "*", folder: Path = CASES
) -> list[RetrievalCase]:
    """Return the cases of an operation on a wire; ``*`` stands for all operations or wires."""
    return [
        RetrievalCase(
            path.name.removesuffix(".json"),
            place.parent.name,
            place.name,
            msgspec.json.decode(path.read_bytes()),
        )
        for parent in sorted(folder.glob(operation))
        for place in list_folders(parent, wire)
        for path in list_files(place)
    ]


def _ordered(body: Any) -> Any:
    """Return a body with a list of its fields, so that a comparison also checks their order."""
    return [list(body.items()), body] if isinstance(body, dict) else body


def _show(answer: retrieval.Embeddings | retrieval.Ranking) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "model": answer.model,
        "usage": msgspec.to_builtins(answer.usage),
        "response_id": answer.response_id,
    }
    if isinstance(answer, retrieval.Embeddings):
        return shown | {"vectors": answer.vectors.tolist()}
    return shown | {
        "results": [[each.index, each.relevance_score, each.document] for each in answer.results]
    }
