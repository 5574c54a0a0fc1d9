"""A batch as data that can be sent to another process: the model, its settings, its middleware."""

from __future__ import annotations

import hashlib
import json
import shutil
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Struct, field

from ..middleware import Cache, RateLimit, RedisLimiter, Retry
from ..provider import Provider, connect
from ..retrieval import Embedder, connect_embedder
from .embed import EmbedDefaults, EmbedRowParser
from .output import OutputError, check_money, lock, replace_file
from .parts import hold, parts_of
from .rows import Defaults, Parser, RowParser
from .sources import Source

VERSION = 1


class Job(Struct, frozen=True, kw_only=True):
    """Everything that a runner needs to run a batch, except its rows.

    ``rates`` are the limits on requests and tokens per minute. With ``limits_redis``, all
    processes that use it share the limits.
    """

    model: str
    connection: dict[str, Any] = field(default_factory=dict)
    defaults: Defaults | EmbedDefaults = Defaults()
    concurrency: int = 16
    retries: int = 4
    rates: tuple[float | None, float | None] = (None, None)
    limits_redis: str | None = None
    cache: Any = None

    def __repr__(self) -> str:
        # omit the key, headers and URLs: Ray exports the arguments of its actors as text
        return f"Job({self.model!r})"

    def open(self, given: Provider | Embedder | None = None) -> Provider | Embedder:
        """Open the model, and wrap it in retries, rate limits and the cache."""
        model: Any = self._connect() if given is None else given
        if self.rates != (None, None):
            if self.limits_redis is None:
                model = RateLimit(model, *self.rates)
            else:
                key = f"dragoman:batch:{self.model}"
                limiter = RedisLimiter(self.limits_redis, key, *self.rates)
                model = RateLimit(model, limiter=limiter)
        if self.retries:
            model = Retry(model, max_retries=self.retries)
        found: Provider | Embedder = model if self.cache is None else Cache(model, self.cache)
        return found

    def make_parser(self, model: str) -> Parser:
        """Return the parser for this batch's rows, which creates requests to ``model``."""
        if isinstance(self.defaults, EmbedDefaults):
            return EmbedRowParser(self.defaults, model)
        return RowParser(self.defaults, model)

    def _connect(self) -> Provider | Embedder:
        if isinstance(self.defaults, EmbedDefaults):
            settings: dict[str, Any] = {"keep_raw": False, **self.connection}
            return connect_embedder(self.model, retries=0, **settings)
        return connect(self.model, retries=0, **self.connection)

    def identify(self) -> str:
        """Return a hash of everything that affects the replies.

        A restart of the batch must have the same hash.
        """
        facts = {
            "model": self.model,
            "connection": {name: self.connection.get(name) for name in ("base_url", "wire")},
            "defaults": msgspec.to_builtins(self.defaults),
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


class BatchState(Struct):
    """The contents of ``OUT.state``, the file next to the output.

    They identify the batch. If a provider's batch API is used, they also list the ids under which
    rows were submitted. ``name`` is unique to a batch of agents, whose sessions bear it.
    """

    version: int
    job: str
    source: dict[str, Any] = field(default_factory=dict)
    dropped_usd: Decimal = Decimal(0)
    provider: dict[str, Any] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        """Reject an amount that no run can have written."""
        check_money("dropped_usd", self.dropped_usd)


class StateFile:
    """Read the state of a batch from its file, and write it atomically."""

    def __init__(self, out: Any) -> None:
        self.out = out
        self.path = out.with_name(out.name + ".state")

    def open(self, job: str, source: Source, *, fresh: bool) -> BatchState:
        """Return the batch's state; raise ``OutputError`` if another batch wrote the output."""
        if self.out.exists() and not self.out.is_file():
            raise OutputError(
                f"{self.out} is not a regular file; a batch reads and locks its output, so give "
                "the path of a file"
            )
        if not self.path.exists() and self.out.exists() and self.out.stat().st_size:
            raise OutputError(
                f"{self.out} exists and is not the output of a batch; choose another file"
            )
        if fresh:
            self._clear()
        if not self.path.exists():
            state = BatchState(VERSION, job, source.identify())
            self.save(state)
            return state
        try:
            state = msgspec.json.decode(self.path.read_bytes(), type=BatchState)
        except ValueError as error:
            raise OutputError(f"{self.path} cannot be read: {error}") from None
        again = "give the same options again, choose another output, or start afresh (--fresh)"
        if state.version != VERSION or state.job != job:
            raise OutputError(
                f"{self.out} was begun with another model or other settings; {again}"
            )
        if (known := source.identify()) != state.source:
            # Rows may have been appended to the input since.
            if state.source and source.identify(state.source["length"]) != state.source:
                raise OutputError(f"{self.out} was begun with another input; {again}")
            state.source = known
            self.save(state)
        return state

    def _clear(self) -> None:
        """Delete the output of earlier runs, unless another process is writing it."""
        with hold(self.out), self.out.open("ab") as file:
            lock(file, self.out)
            self.out.with_name(self.out.name + ".ahead").unlink(missing_ok=True)
            file.truncate(0)
            self.path.unlink(missing_ok=True)
        shutil.rmtree(parts_of(self.out))

    def save(self, state: BatchState) -> None:
        """Write the state file to disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(self.path) as file:
            file.write(msgspec.json.encode(state))
