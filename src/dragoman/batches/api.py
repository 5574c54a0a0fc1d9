"""``dragoman.batch``: call a model for every row of a file, and write a file of results."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias, Unpack

from msgspec import Struct
from msgspec.structs import asdict

from ..messages import new_ulid
from ..prices.results import EXACT
from ..provider import Provider
from ..retrieval import Embedder
from ..validate import build_request
from ..validate.fields import suggest
from .apis import open_api
from .cluster import ClusterRunner
from .embed import embeds, make_embed_defaults
from .job import BatchState, Job, StateFile
from .options import BatchOptions, BatchProgress, Options, read_options
from .output import Lines, Output, OutputError, drop_failures
from .parts import merge
from .remote import RemoteRunner
from .rows import BadRow, Defaults, Parser, Row, Skipped, find_bad_rows, name_of, read_rows
from .runner import MAX_PROBLEMS, BatchError, Caller, RowCaller, Runner
from .sources import FileSource, Source, open_source
from .spending import BatchBudget, Spent, parse_budget
from .template import Template


class StrictError(ValueError):
    """A batch with ``strict`` was not sent, since rows are invalid; ``rows`` has the first few."""

    def __init__(self, source: str, rows: list[Any]) -> None:
        shown = "\n".join(f"  {row}" for row in rows)
        more = "\n  ..." if len(rows) >= MAX_PROBLEMS else ""
        super().__init__(f"{source} has bad rows, so nothing was sent:\n{shown}{more}")
        self.rows = rows


class BatchReport(Struct, frozen=True, kw_only=True):
    """The report of a batch, which covers all runs of the batch.

    ``rows`` counts the rows with a result, ``failed`` the rows whose result is an error, and
    ``bad`` the failed rows that were invalid. ``resumed`` counts the rows that earlier runs
    finished, ``cached`` the rows of this run that the cache answered. ``unpriced`` counts the rows
    of this run whose cost is not known. ``problems`` names the first bad rows of this run.
    ``stopped`` is the reason why the batch ended early, such as ``"budget"``; ``None`` if it did
    not.
    """

    out: str
    rows: int
    failed: int
    bad: int
    resumed: int
    cached: int
    tokens: int
    cost_usd: Decimal
    unpriced: int = 0
    unpriced_reason: str | None = None
    problems: tuple[str, ...] = ()
    stopped: str | None = None
    seconds: float = 0.0


async def batch(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
    out: str | os.PathLike[str],
    model: str | Provider | Embedder,
    **options: Unpack[BatchOptions],
) -> BatchReport:
    """Call a model for every row of a file and write a result for each. No tool is executed.

    ``source`` is a JSONL, CSV or Parquet file, or an iterable of mappings. A row has ``prompt`` or
    ``messages``, and optionally ``id``, ``system``, ``tools``, ``response_schema`` and settings;
    or it is a row of a provider's batch file; or it has arbitrary columns, from which ``template``
    builds the prompt. ``model`` is a name for ``connect``, with ``connection`` as its settings, or
    a provider.

    With an embedding model, a row has ``input`` or ``text``, a string or a list of strings, or it
    is a row of OpenAI's batch file for ``/v1/embeddings``, and its result has the vectors.

    A batch can be stopped at any time, by any means, and started again: rows with a result in
    ``out`` are not sent again. A row that fails, or cannot be sent, gets a result with an
    ``error``. ``BatchOptions`` lists the keyword arguments.
    """
    given = read_options(options)
    rows = open_source(source, given.max_row_bytes)
    job = _make_job(model, rows, given)
    if given.on == "ray" and not isinstance(model, str):
        raise ValueError(
            "on: a batch on Ray needs the name of a model, which every process can open"
        )
    limits = parse_budget(given.budget)
    provider = job.open(None if isinstance(model, str) else model)
    try:
        problem = provider.priced_as.find_problem() if "usd" in limits else None
        if problem is not None:
            raise BatchError(f"a budget in usd cannot hold: {problem}")
        parser = job.make_parser(provider.model)
        if given.strict and (bad := find_bad_rows(rows, parser, MAX_PROBLEMS)):
            raise StrictError(name_of(source), bad)
        if isinstance(rows, FileSource) and rows.is_file(Path(out)):
            raise OutputError(f"{out} is the input; choose another file for the output")
        file = StateFile(Path(out))
        state = file.open(job.identify(), rows, fresh=given.fresh)
        # Merge the part files that an earlier run on a cluster left.
        merge(Path(out), ordered=given.order == "input")
        if given.retry_failed:
            # the rows are sent again, and the state file keeps their cost
            state.dropped_usd = EXACT.add(state.dropped_usd, drop_failures(file.out))
            file.save(state)
        output = Output(Path(out), ordered=given.order == "input", concurrency=given.concurrency)
        caller = RowCaller(provider, needs_price="usd" in limits)
        return await _Run(rows, parser, caller, output, limits, given, job).run(file, state)
    finally:
        if isinstance(model, str):
            await provider.close()


async def run_rows(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    parser: Parser,
    make_caller: Callable[[str], Caller],
    identity: Mapping[str, Any],
    **options: Unpack[BatchOptions],
) -> BatchReport:
    """Let a caller do the work of each row of a file, as ``batch`` lets a model do it.

    ``make_caller`` receives the name of the batch, which is new for a new output. ``identity`` is
    what a later run of the batch must have in common with the first.
    """
    given = read_options(options)
    rows = open_source(source, given.max_row_bytes)
    if isinstance(rows, FileSource) and rows.is_file(Path(out)):
        raise OutputError(f"{out} is the input; choose another file for the output")
    file = StateFile(Path(out))
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    state = file.open(digest, rows, fresh=given.fresh)
    if not state.name:
        state.name = f"batch_{new_ulid()}"
        file.save(state)
    if given.retry_failed:
        state.dropped_usd = EXACT.add(state.dropped_usd, drop_failures(file.out))
        file.save(state)
    output = Output(Path(out), ordered=given.order == "input", concurrency=given.concurrency)
    run = _Run(rows, parser, make_caller(state.name), output, {}, given)
    return await run.run(file, state)


def _make_job(model: str | Provider | Embedder, source: Source, given: Options) -> Job:
    if isinstance(model, str):
        is_embedding = embeds(model, source, given)
    else:
        is_embedding = model.operation == "embed"
        if given.embed not in (None, is_embedding):
            raise ValueError(f"embed: is {given.embed}, but model is a {type(model).__name__}")
    if given.template is not None:
        _check_columns(Template(given.template), source)
    return Job(
        model=model if isinstance(model, str) else f"{model.name}:{model.model}",
        connection=dict(given.connection or {}),
        defaults=make_embed_defaults(given) if is_embedding else _make_defaults(given),
        concurrency=given.concurrency,
        retries=given.retries,
        rates=(given.requests_per_minute, given.tokens_per_minute),
        limits_redis=given.limits_redis,
        cache=given.cache,
    )


_Runner: TypeAlias = Runner | RemoteRunner | ClusterRunner


@dataclass(eq=False)
class _Run:
    """One run of a batch: continue where earlier runs stopped, and build the report."""

    source: Source
    parser: Parser
    caller: Caller
    output: Output
    limits: Mapping[str, Decimal]
    given: Options
    job: Job | None = None

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._spent = Spent()
        self._resumed = 0
        self._total: int | None = None
        self._cluster: ClusterRunner | None = None
        self._problems: list[str] = []

    async def run(self, file: StateFile, state: BatchState) -> BatchReport:
        output = self.output
        given = self.given
        try:
            earlier = output.open()
            self._resumed = earlier.done.count
            self._spent.take_over(earlier, state.dropped_usd)
            self._total = self.source.count() if given.on_progress is not None else None
            spending = BatchBudget(self.limits, self._spent)

            runner = await self._run(earlier.done, spending, file, state)
        finally:
            output.release()
        return BatchReport(
            out=str(output.path),
            resumed=self._resumed,
            problems=(*self._problems, *runner.problems),
            stopped=runner.stopped,
            seconds=round(time.monotonic() - self._began, 3),
            **asdict(self._spent),
        )

    async def _run(
        self, done: Lines, spending: BatchBudget, file: StateFile, state: BatchState
    ) -> _Runner:
        given = self.given
        output = self.output

        def rows() -> Iterator[Row | BadRow | Skipped]:
            known = 0
            for row in read_rows(self.source, self.parser, done):
                known += type(row) is Skipped
                yield row
            if known < (count := self._resumed):
                self._problems = [
                    f"{output.path} has {count - known:,} results of lines that the input does not "
                    "have"
                ]

        if given.on == "ray" and self.job is not None:
            output.release()
            self._cluster = ClusterRunner(
                self.source, self.job, output.path, spending,
                ordered=output.ordered, workers=given.workers, address=given.ray_address,
                on_saved=self._report,
            )  # fmt: skip
            await self._cluster.run(done)
            # A worker that died may have saved rows without reporting them.
            self._spent.take_over(self._cluster.found, state.dropped_usd)
            return self._cluster
        shared: dict[str, Any] = {
            "output": output, "spending": spending, "on_saved": self._report
        }  # fmt: skip
        if given.via == "provider" and isinstance(self.caller, RowCaller):
            provider = self.caller.model
            if provider.operation == "embed" or not isinstance(provider, Provider):
                raise ValueError("via: rows to embed are not sent to a provider's batch API yet")
            remote = RemoteRunner(
                rows, open_api(provider), file, state, poll_seconds=given.poll_seconds, **shared
            )
            await remote.run(cancel=given.cancel)
            return remote
        runner = Runner(rows(), self.caller, concurrency=given.concurrency, **shared)
        await runner.run()
        return runner

    def _report(self) -> None:
        if self.given.on_progress is None:
            return
        spent = self._spent
        total = self._total
        seconds = time.monotonic() - self._began
        saved = self.output.saved if self._cluster is None else self._cluster.saved
        done = self._resumed + saved
        rate = saved / seconds if seconds > 0 else 0.0
        left = max(0, total - done) / rate if total is not None and rate > 0 else None
        progress = BatchProgress(
            total=total,
            rows=done,
            failed=spent.failed,
            cost_usd=spent.cost_usd,
            is_cost_known=not spent.unpriced,
            seconds=seconds,
            rate=rate,
            seconds_left=left,
        )
        self.given.on_progress(progress)


def _check_columns(template: Template, source: Source) -> None:
    """Raise ``ValueError`` if a column of the template is not in the file."""
    first = source.peek() if source.has_columns else None
    if first is None:
        return
    for name in template.names:
        if name not in first:
            hint = suggest(name, first)
            raise ValueError(
                f"template: the file has no column {name!r}; {hint or 'its columns are'} "
                f"{'' if hint else ', '.join(first)}".rstrip()
            )


def _make_defaults(given: Options) -> Defaults:
    """Check the settings that all rows share, and return them as plain data."""
    for name in ("input_type", "dimensions", "encoding_format"):
        if getattr(given, name) is not None:
            raise ValueError(f"{name}: is a setting of embeddings, and this batch chats")
    if given.template is not None:
        Template(given.template)
    settings = dict(given.settings)
    system = settings.pop("system", None)
    request = build_request(
        "", given.tools, None, given.response_schema, given.tool_choice, settings=settings
    )
    return Defaults(
        system=system,
        tools=tuple(request.tools),
        server_tools=request.server_tools,
        tool_choice=request.tool_choice,
        response_schema=request.response_schema,
        config=request.config,
        template=given.template,
        id_column=given.id_column,
    )
