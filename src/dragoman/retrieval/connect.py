"""``connect_embedder`` and ``connect_reranker``: open a model by name or address."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from ..capabilities import Capabilities
from ..prices import PricedAs, PriceRow, name_host
from ..provider import ApiKey
from ..provider.connect import check_on_loss, load, parse_timeouts, read_capabilities
from ..transport import HttpTransport, Timeouts, Transport
from .contract import Embedder, Reranker
from .http import HttpEmbedder, HttpReranker, HttpRetrieval
from .values import Operation
from .wire import EMBED_CODECS, RERANK_CODECS

EMBED_SCHEMES: dict[str, str | Callable[..., Embedder]] = {
    "local": "dragoman.local:open_local_embedder"
}
"""Names of embedders that need no address, each with the function that opens it, or its import
path.
"""

# Modules of higher layers, imported on demand: programs that give an address do not need them.
_OPENERS = {
    "embed": "dragoman.registry:open_embedder_name",
    "rerank": "dragoman.registry:open_reranker_name",
}
_RETRY = "dragoman.middleware:Retry"

ModelT = TypeVar("ModelT", Embedder, Reranker)


def connect_embedder(
    model: str,
    *,
    wire: str | None = None,
    base_url: str | None = None,
    api_key: ApiKey | None = None,
    batch_size: int | None = None,
    prefixes: Mapping[str, str] | None = None,
    retries: int | None = None,
    capabilities: Capabilities | Mapping[str, Any] | None = None,
    quirks: Any = None,
    timeouts: Timeouts | Mapping[str, Any] | float | None = None,
    on_loss: Literal["warn", "reject"] | None = None,
    transport: Transport | None = None,
    name: str | None = None,
    headers: Mapping[str, str] | None = None,
    keep_raw: bool | None = None,
    priced_as: PricedAs | PriceRow | str | None = None,
) -> Embedder:
    """Return an embedding model. Nothing is sent before the first call.

    ``model`` is a name such as ``"openai:text-embedding-3-small"``, an alias in ``models.yaml``,
    or ``"local"``, a small model that runs on this machine; with ``base_url`` it is the model's
    name at that address, whose ``wire`` is ``"openai"`` by default.

    ``batch_size`` is how many texts go into one request, by default as many as the wire allows.
    ``prefixes`` maps an input type to a string that is put before each text, for models that were
    trained with one: ``{"query": "query: ", "document": "passage: "}``. ``keep_raw`` is whether
    the server's replies are kept; by default, replies up to 16 MiB are. The other settings are the
    same as for ``connect``.
    """
    settings = {
        "wire": wire, "api_key": api_key, "batch_size": batch_size, "prefixes": prefixes,
        "capabilities": capabilities, "quirks": quirks, "timeouts": timeouts, "on_loss": on_loss,
        "transport": transport, "name": name, "headers": headers, "keep_raw": keep_raw,
        "priced_as": priced_as,
    }  # fmt: skip
    found: Embedder = _connect("embed", model, base_url, retries, settings)
    return found


def connect_reranker(
    model: str,
    *,
    wire: str | None = None,
    base_url: str | None = None,
    api_key: ApiKey | None = None,
    batch_size: int | None = None,
    retries: int | None = None,
    capabilities: Capabilities | Mapping[str, Any] | None = None,
    quirks: Any = None,
    timeouts: Timeouts | Mapping[str, Any] | float | None = None,
    on_loss: Literal["warn", "reject"] | None = None,
    transport: Transport | None = None,
    name: str | None = None,
    headers: Mapping[str, str] | None = None,
    keep_raw: bool | None = None,
    priced_as: PricedAs | PriceRow | str | None = None,
) -> Reranker:
    """Return a reranking model. Nothing is sent before the first call.

    ``model`` is a name such as ``"cohere:rerank-v3.5"`` or an alias in ``models.yaml``; with
    ``base_url`` it is the model's name at that address, whose ``wire`` is ``"openai"`` by default:
    ``/v1/rerank`` as vLLM and llama.cpp implement it. ``batch_size`` is how many documents go into
    one request. The other settings are the same as for ``connect``.
    """
    settings = {
        "wire": wire, "api_key": api_key, "batch_size": batch_size,
        "capabilities": capabilities, "quirks": quirks, "timeouts": timeouts, "on_loss": on_loss,
        "transport": transport, "name": name, "headers": headers, "keep_raw": keep_raw,
        "priced_as": priced_as,
    }  # fmt: skip
    found: Reranker = _connect("rerank", model, base_url, retries, settings)
    return found


def _connect(
    operation: Operation,
    model: str,
    base_url: str | None,
    retries: int | None,
    settings: Mapping[str, Any],
) -> Any:
    given = {key: value for key, value in settings.items() if value is not None}
    if base_url is None:
        return load(_OPENERS[operation])(model, retries, given)
    return add_retries(_bind(operation, model, base_url, **given), retries)


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
    capabilities: Capabilities | Mapping[str, Any] | None = None,
    timeouts: Timeouts | Mapping[str, Any] | float | None = None,
    on_loss: Literal["warn", "reject"] = "warn",
    priced_as: PricedAs | PriceRow | str | None = None,
    **settings: Any,
) -> Any:
    kind, codecs = _KINDS[operation]
    if wire not in codecs:
        raise ValueError(f"unknown wire {wire!r}; one of {', '.join(sorted(codecs))}")
    if batch_size is not None and (type(batch_size) is not int or batch_size <= 0):
        raise ValueError(f"batch_size must be a positive whole number, not {batch_size!r}")
    found = kind(
        codecs[wire].connect(model, base_url, quirks),
        transport or HttpTransport(),
        name=name or name_host(base_url),
        capabilities=read_capabilities(capabilities),
        batch_size=batch_size,
        timeouts=parse_timeouts(timeouts),
        on_loss=check_on_loss(on_loss),
        **settings,
    )
    if priced_as is not None:
        found.priced_as = priced_as
    return found


_KINDS: dict[str, tuple[type[HttpRetrieval], Mapping[str, Any]]] = {
    "embed": (HttpEmbedder, EMBED_CODECS),
    "rerank": (HttpReranker, RERANK_CODECS),
}


def add_retries(model: ModelT, retries: int | None) -> ModelT:
    """Wrap a model in a ``Retry``, if retries are requested."""
    retried: ModelT = load(_RETRY)(model, max_retries=retries) if retries else model
    return retried


def open_embed_scheme(model: str, settings: Mapping[str, Any]) -> Embedder:
    """Open an embedder that has no URL, such as ``local:NAME``; ignore settings for HTTP."""
    scheme, _, rest = model.partition(":")
    known = {key: settings[key] for key in _SCHEME_SETTINGS if key in settings}
    opener = EMBED_SCHEMES[scheme]
    if isinstance(opener, str):
        opener = EMBED_SCHEMES[scheme] = load(opener)
    return opener(rest, **known)


_SCHEME_SETTINGS = ("batch_size", "prefixes", "capabilities", "timeouts", "on_loss", "keep_raw")
