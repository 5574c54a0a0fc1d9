"""``connect_embedder`` and ``connect_reranker``: open a model by name or address."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, Unpack

from ..capabilities import Capabilities
from ..prices import PricedAs, PriceRow, name_host
from ..provider import ApiKey
from ..provider.connect import SCHEME_SETTINGS, add_retries, load, open_by_scheme
from ..transport import HttpTransport, Timeouts, Transport
from ..validate.fields import take_renamed
from .contract import Embedder, Reranker
from .http import HttpEmbedder, HttpReranker, HttpRetrieval
from .values import Operation
from .wire import EMBED_CODECS, RERANK_CODECS

EMBED_SCHEMES: dict[str, str | Callable[..., Embedder]] = {"local": "dragoman.local:LocalEmbedder"}
"""Names of embedders that need no address, each with the function that opens it, or its import
path.
"""

# Modules of higher layers, imported on demand: programs that give an address do not need them.
_REGISTRY = "dragoman.registry:open_retrieval_name"


class RetrievalSettings(TypedDict, total=False):
    """The settings of embedding and reranking models; ``connect`` documents most of them.

    ``batch_size`` is how many texts or documents go into one request, by default as many as the
    wire allows. ``keep_raw`` is whether the server's replies are kept; by default, replies up to
    16 MiB are.
    """

    wire: str | None
    api_key: ApiKey | None
    batch_size: int | None
    capabilities: Capabilities | Mapping[str, Any] | None
    quirks: Any
    timeouts: Timeouts | Mapping[str, Any] | float | None
    on_loss: Literal["warn", "reject"] | None
    transport: Transport | None
    name: str | None
    headers: Mapping[str, str] | None
    keep_raw: bool | None
    priced_as: PricedAs | PriceRow | str | None


def connect_embedder(
    model: str,
    *,
    base_url: str | None = None,
    prefixes: Mapping[str, str] | None = None,
    retries: int | None = None,
    **settings: Unpack[RetrievalSettings],
) -> Embedder:
    """Return an embedding model. Nothing is sent before the first call.

    ``model`` is a name such as ``"openai:text-embedding-3-small"``, an alias in ``models.yaml``,
    or ``"local"``, a small model that runs on this machine. With ``base_url``, ``"vendor:model"``
    is this vendor's model at that address, without the vendor's key; any other name is the
    server's own, and its ``wire`` is ``"openai"`` by default.

    ``prefixes`` maps an input type to a string that is put before each text, for models that were
    trained with one: ``{"query": "query: ", "document": "passage: "}``. The other settings are
    those of ``RetrievalSettings`` and ``connect``.
    """
    found: Embedder = _connect("embed", model, base_url, retries, settings, prefixes=prefixes)
    return found


def connect_reranker(
    model: str,
    *,
    base_url: str | None = None,
    retries: int | None = None,
    **settings: Unpack[RetrievalSettings],
) -> Reranker:
    """Return a reranking model. Nothing is sent before the first call.

    ``model`` is a name such as ``"cohere:rerank-v3.5"`` or an alias in ``models.yaml``. With
    ``base_url``, ``"vendor:model"`` is this vendor's model at that address, without the vendor's
    key; any other name is the server's own, and its ``wire`` is ``"openai"`` by default:
    ``/v1/rerank`` as vLLM and llama.cpp implement it. The other settings are those of
    ``RetrievalSettings`` and ``connect``.
    """
    found: Reranker = _connect("rerank", model, base_url, retries, settings)
    return found


_OWNERS: Mapping[Operation, str] = {"embed": "connect_embedder", "rerank": "connect_reranker"}


def _connect(
    operation: Operation,
    model: str,
    base_url: str | None,
    retries: int | None,
    settings: RetrievalSettings,
    **more: Any,
) -> Any:
    retries = take_renamed(_OWNERS[operation], settings, "retries", "max_retries", retries)
    for name in settings:
        if name not in RetrievalSettings.__annotations__:
            raise TypeError(f"{name!r} is not a setting of a model that can {operation}")
    given = {name: each for name, each in {**settings, **more}.items() if each is not None}
    opened: Embedder | Reranker | None = None
    if base_url is None or ":" in model or "/" in model:  # the name may begin with a vendor
        opened = load(_REGISTRY)(operation, model, base_url, retries, given)
    return opened or add_retries(_bind(operation, model, base_url or "", **given), retries)


def bind_embedder(model: str, base_url: str, **settings: Any) -> Embedder:
    """Return an embedding model at an address, with settings as in ``connect_embedder``.

    ``hint`` is the advice in the error that is raised if no server answers.
    """
    embedder: Embedder = _bind("embed", model, base_url, **settings)
    return embedder


def bind_reranker(model: str, base_url: str, **settings: Any) -> Reranker:
    """Return a reranking model at an address, with settings as in ``bind_embedder``."""
    reranker: Reranker = _bind("rerank", model, base_url, **settings)
    return reranker


def _bind(
    operation: Operation,
    model: str,
    base_url: str,
    *,
    wire: str = "openai",
    quirks: Any = None,
    transport: Transport | None = None,
    name: str | None = None,
    batch_size: int | None = None,
    **settings: Any,
) -> Any:
    kind, codecs = _KINDS[operation]
    if wire not in codecs:
        raise ValueError(f"unknown wire {wire!r}; one of {', '.join(sorted(codecs))}")
    if batch_size is not None and (type(batch_size) is not int or batch_size <= 0):
        raise ValueError(f"batch_size must be a positive whole number, not {batch_size!r}")
    return kind(
        codecs[wire].connect(model, base_url, quirks),
        transport or HttpTransport(),
        name=name or name_host(base_url),
        batch_size=batch_size,
        **settings,
    )


_KINDS: dict[str, tuple[type[HttpRetrieval], Mapping[str, Any]]] = {
    "embed": (HttpEmbedder, EMBED_CODECS),
    "rerank": (HttpReranker, RERANK_CODECS),
}


def open_embed_scheme(model: str, settings: Mapping[str, Any]) -> Embedder:
    """Open an embedder that has no URL, such as ``local:NAME``; ignore settings for HTTP."""
    names = ("batch_size", "prefixes", *SCHEME_SETTINGS)
    embedder: Embedder = open_by_scheme(EMBED_SCHEMES, model, settings, names)
    return embedder
