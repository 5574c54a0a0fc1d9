"""The options of a batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Literal

from msgspec import Struct

from ..middleware import Store
from ..validate.arguments import ResponseSchema, Settings, ToolChoices, Tools
from ..validate.fields import take_renamed
from .sources import MAX_ROW_BYTES


class BatchProgress(Struct, frozen=True, kw_only=True):
    """The progress of a batch.

    The counts cover all runs of the batch; ``seconds`` and ``rate`` (rows per second) cover only
    this run.
    """

    total: int | None
    rows: int
    failed: int
    cost_usd: Decimal
    is_cost_known: bool
    seconds: float
    rate: float
    seconds_left: float | None


class BatchOptions(Settings, total=False):
    """Keyword arguments of ``batch``, which include the settings of a call (``temperature`` ...).

    ``template`` builds the prompt from columns; ``id_column`` is the column with the id of a row.
    ``tools``, ``tool_choice`` and ``response_schema`` mean the same as for ``complete``; they
    apply to rows that do not set their own.

    ``embed`` is whether the batch requests embeddings; by default it does if ``model`` is an
    embedder, or if the first row has an ``input`` or a ``text``, or is a request for
    ``/v1/embeddings``. Then ``input_type``, ``dimensions`` and ``extras`` mean the same as for
    ``Embedder.embed``, and ``encoding_format`` (``"float"`` or ``"base64"``) is the format of
    vectors in the output, for rows that do not set their own.

    ``concurrency`` (16) is the number of simultaneous calls; ``order`` is the order of the results
    (``"input"`` or ``"completed"``). ``retries`` (4) is how often a call that failed transiently
    is repeated; ``requests_per_minute`` and ``tokens_per_minute`` are limits, shared by all
    processes that name the same ``limits_redis``. ``budget``, such as ``"usd=5"`` or ``{"rows":
    100}``, stops the batch cleanly when it is used up. ``cache`` sends identical rows only once;
    it is the path of a SQLite file, a ``redis://`` URL or a ``Store``.

    ``strict`` rejects an input with invalid rows before anything is sent, ``retry_failed`` sends
    the failed rows of an earlier run again, ``fresh`` deletes the output first, ``max_row_bytes``
    limits the size of an input row. ``on="ray"`` runs the batch on Ray, on this machine or on the
    cluster at ``ray_address``, with up to ``workers`` (2) processes of ``concurrency`` calls each;
    all machines must have access to the folder of ``out``. ``via="provider"`` uses the provider's
    batch API, which costs half and takes up to a day; ``poll_seconds`` (10) is the first interval
    at which its state is polled, and ``cancel`` stops its batches and downloads the finished
    answers. ``connection`` has the settings for ``connect``, if ``model`` is a name.
    ``on_progress`` is called after each sync.
    """

    template: str | None
    id_column: str | None
    embed: bool | None
    input_type: str | None
    dimensions: int | None
    encoding_format: Literal["float", "base64"] | None
    tools: Tools | None
    tool_choice: ToolChoices | None
    response_schema: ResponseSchema[Any] | None
    concurrency: int
    order: Literal["input", "completed"]
    retries: int
    requests_per_minute: float | None
    tokens_per_minute: float | None
    limits_redis: str | None
    budget: str | Mapping[str, Any] | None
    # This is the response cache. The setting of a call with the same name is for the provider's
    # prompt cache.
    cache: Store | str | os.PathLike[str] | None  # type: ignore[misc] # pyright: ignore
    strict: bool
    retry_failed: bool
    fresh: bool
    max_row_bytes: int
    on: Literal["local", "ray"]
    workers: int
    ray_address: str | None
    via: Literal["model", "provider"]
    poll_seconds: float
    cancel: bool
    connection: Mapping[str, Any] | None
    on_progress: Callable[[BatchProgress], None] | None


class Options(Struct, kw_only=True):
    """The keyword arguments of ``batch``; ``settings`` holds those that apply to each call."""

    template: str | None = None
    id_column: str | None = None
    embed: bool | None = None
    input_type: str | None = None
    dimensions: int | None = None
    encoding_format: str | None = None
    tools: Any = None
    tool_choice: Any = None
    response_schema: Any = None
    concurrency: int = 16
    order: Literal["input", "completed"] = "input"
    retries: int = 4
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    limits_redis: str | None = None
    budget: Any = None
    cache: Any = None
    strict: bool = False
    retry_failed: bool = False
    fresh: bool = False
    max_row_bytes: int = MAX_ROW_BYTES
    on: Literal["local", "ray"] = "local"
    workers: int = 2
    ray_address: str | None = None
    via: Literal["model", "provider"] = "model"
    poll_seconds: float = 10.0
    cancel: bool = False
    connection: Any = None
    on_progress: Callable[[BatchProgress], None] | None = None
    settings: dict[str, Any] = {}


def read_options(given: Mapping[str, Any]) -> Options:
    """Check the keyword arguments of ``batch``; raise ``ValueError`` if one is invalid."""
    names = set(Options.__struct_fields__) - {"settings"}
    given = {**given}
    retries = take_renamed("batch", given, "retries", "max_retries", given.get("retries"))
    if retries is not None:
        given["retries"] = retries
    own = {name: value for name, value in given.items() if name in names}
    settings = {name: value for name, value in given.items() if name not in names}
    options = Options(**own, settings=settings)
    for name, least in (("concurrency", 1), ("retries", 0), ("max_row_bytes", 1), ("workers", 1)):
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}: must be a whole number of at least {least}, not {value!r}")
    if options.order not in ("input", "completed"):
        raise ValueError(f"order: must be input or completed, not {options.order!r}")
    _check_runner(options)
    return options


def _check_runner(options: Options) -> None:
    if options.via not in ("model", "provider"):
        raise ValueError(f"via: must be model or provider, not {options.via!r}")
    if options.via == "provider" and (options.budget is not None or options.cache is not None):
        raise ValueError("via: a provider's batch API has no budget and no cache; leave them out")
    if options.cancel and options.via != "provider":
        raise ValueError('cancel: is for via="provider" only')
    if options.on not in ("local", "ray"):
        raise ValueError(f"on: must be local or ray, not {options.on!r}")
    if options.on == "local":
        return
    if options.via == "provider":
        raise ValueError(
            "on: a provider's batch API needs no cluster; leave out one of on and via"
        )
    if isinstance(options.cache, Store):
        raise ValueError("on: a cache on Ray is a redis:// URL, which every process can open")
    has_limits = options.requests_per_minute is not None or options.tokens_per_minute is not None
    if has_limits and options.limits_redis is None:
        raise ValueError("on: limits of a batch on Ray are shared over Redis; give limits_redis")
