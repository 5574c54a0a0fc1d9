"""``connect_embedder`` and ``connect_reranker``: open a model by name or address."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from ..capabilities import Capabilities
from ..prices import PricedAs, PriceRow, name_host
from ..provider.connect import parse_timeouts
from ..transport import HttpTransport, Timeouts, Transport
from .contract import Embedder, Reranker
from .http import Endpoint, HttpEmbedder, HttpReranker
from .wire import EMBED_CODECS, RERANK_CODECS

EMBED_SCHEMES: dict[str, str | Callable[..., Embedder]] = {
    "local": "dragoman.local:open_local_embedder"
}
"""Names of embedders that need no address, each with the function that opens it, or its import
path.
"""

# Modules of higher layers, imported on demand: programs that give an address do not need them.
_EMBEDDER = "dragoman.registry:open_embedder_name"
_RERANKER = "dragoman.registry:open_reranker_name"
_RETRY = "dragoman.middleware:Retry"

ModelT = TypeVar("ModelT", Embedder, Reranker)


def connect_embedder(
    model: str,
    *,
    wire: str | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
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
    settings: dict[str, Any] = {
        "wire": wire, "api_key": api_key, "batch_size": batch_size, "prefixes": prefixes,
        "capabilities": capabilities, "quirks": quirks, "timeouts": timeouts, "on_loss": on_loss,
        "transport": transport, "name": name, "headers": headers, "keep_raw": keep_raw,
        "priced_as": priced_as,
    }  # fmt: skip
    given = {key: value for key, value in settings.items() if value is not None}
    if base_url is None:
        opened: Embedder = _load(_EMBEDDER)(model, retries, given)
        return opened
    return add_retries(bind_embedder(model, base_url, **given), retries)


def connect_reranker(
    model: str,
    *,
    wire: str | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
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
    settings: dict[str, Any] = {
        "wire": wire, "api_key": api_key, "batch_size": batch_size,
        "capabilities": capabilities, "quirks": quirks, "timeouts": timeouts, "on_loss": on_loss,
        "transport": transport, "name": name, "headers": headers, "keep_raw": keep_raw,
        "priced_as": priced_as,
    }  # fmt: skip
    given = {key: value for key, value in settings.items() if value is not None}
    if base_url is None:
        opened: Reranker = _load(_RERANKER)(model, retries, given)
        return opened
    return add_retries(bind_reranker(model, base_url, **given), retries)


def bind_embedder(
    model: str,
    base_url: str,
    *,
    wire: str = "openai",
    quirks: Any = None,
    batch_size: int | None = None,
    prefixes: Mapping[str, str] | None = None,
    capabilities: Capabilities | Mapping[str, Any] | None = None,
    priced_as: PricedAs | PriceRow | str | None = None,
    **settings: Any,
) -> Embedder:
    """Return an embedding model at an address, with settings as in ``connect_embedder``.

    ``hint`` is the advice in the error that is raised if no server answers.
    """
    if wire not in EMBED_CODECS:
        raise ValueError(f"unknown wire {wire!r}; one of {', '.join(sorted(EMBED_CODECS))}")
    codec = EMBED_CODECS[wire].connect(model, base_url, quirks)
    embedder = HttpEmbedder(
        _open_endpoint(codec, settings),
        codec,
        capabilities=_read_capabilities(capabilities),
        batch_size=_check_batch_size(batch_size),
        prefixes=prefixes,
    )
    if priced_as is not None:
        embedder.priced_as = priced_as
    return embedder


def bind_reranker(
    model: str,
    base_url: str,
    *,
    wire: str = "openai",
    quirks: Any = None,
    batch_size: int | None = None,
    capabilities: Capabilities | Mapping[str, Any] | None = None,
    priced_as: PricedAs | PriceRow | str | None = None,
    **settings: Any,
) -> Reranker:
    """Return a reranking model at an address, with settings as in ``connect_reranker``.

    ``hint`` is the advice in the error that is raised if no server answers.
    """
    if wire not in RERANK_CODECS:
        raise ValueError(f"unknown wire {wire!r}; one of {', '.join(sorted(RERANK_CODECS))}")
    codec = RERANK_CODECS[wire].connect(model, base_url, quirks)
    reranker = HttpReranker(
        _open_endpoint(codec, settings),
        codec,
        capabilities=_read_capabilities(capabilities),
        batch_size=_check_batch_size(batch_size),
    )
    if priced_as is not None:
        reranker.priced_as = priced_as
    return reranker


def add_retries(model: ModelT, retries: int | None) -> ModelT:
    """Wrap a model in a ``Retry``, if retries are requested."""
    retried: ModelT = _load(_RETRY)(model, max_retries=retries) if retries else model
    return retried


def open_embed_scheme(model: str, settings: Mapping[str, Any]) -> Embedder:
    """Open an embedder that has no URL, such as ``local:NAME``; ignore settings for HTTP."""
    scheme, _, rest = model.partition(":")
    known = {key: settings[key] for key in _SCHEME_SETTINGS if key in settings}
    opener = EMBED_SCHEMES[scheme]
    if isinstance(opener, str):
        opener = EMBED_SCHEMES[scheme] = _load(opener)
    return opener(rest, **known)


_SCHEME_SETTINGS = ("batch_size", "prefixes", "capabilities", "timeouts", "on_loss", "keep_raw")


def _open_endpoint(codec: Any, settings: dict[str, Any]) -> Endpoint[Any]:
    on_loss = settings.get("on_loss", "warn")
    if on_loss not in ("warn", "reject"):
        raise ValueError(f"on_loss must be 'warn' or 'reject', not {on_loss!r}")
    transport = settings.pop("transport", None) or HttpTransport()
    timeouts = parse_timeouts(settings.pop("timeouts", None))
    name = settings.pop("name", None) or name_host(codec.base_url)
    return Endpoint(codec, transport, name=name, timeouts=timeouts, **settings)


def _read_capabilities(given: Capabilities | Mapping[str, Any] | None) -> Capabilities:
    return given if isinstance(given, Capabilities) else Capabilities.of(given or {})


def _check_batch_size(size: int | None) -> int | None:
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size <= 0):
        raise ValueError(f"batch_size must be a positive whole number, not {size!r}")
    return size


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
