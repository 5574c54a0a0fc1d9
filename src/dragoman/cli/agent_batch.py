"""Run ``dragoman agent --batch``: a session for each row of a file, with a folder of its own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import click
import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from ..batches import BatchError, BatchReport, OutputError
from ..batches.api import run_rows
from ..batches.results import Result, describe_error
from ..batches.rows import Defaults, Parser, Row, Shape, read_id
from ..batches.sources import Record
from ..errors import ProviderError
from ..events import Usage
from ..log import EventLog
from ..provider import Provider
from ..session import Budget, Outcome, Session, SessionError, SharedBudget, reduce_records
from ..tools import ToolFailure
from .batch import show_progress, show_report
from .console import notify, show_json
from .errors import EXIT_CODES, WrongFile, report_errors
from .parameters import option

_encode = msgspec.json.Encoder(decimal_format="string").encode
_FIELDS = ("id", "goal", "workspace")
_FILE = click.Path(dir_okay=False, path_type=Path)

OpenSession: TypeAlias = Callable[
    [str, Path, SharedBudget], AbstractAsyncContextManager[Session[Any]]
]
"""Open the session with a name, or continue it, with tools for a folder and a budget."""


class AgentBatchOptions(Struct, kw_only=True):
    """The options of ``dragoman agent`` for a file of goals."""

    batch: Annotated[
        tuple[Path, Path] | None,
        "Run a session for each row of a file, and write a row with its outcome to another file.",
        option("IN OUT", nargs=2, multiple=False, type=_FILE),
    ] = None
    concurrency: Annotated[
        int, "Run at most N sessions of --batch at once.", option("N", ge=1)
    ] = 4
    retry_failed: Annotated[bool, "Continue the sessions of --batch that failed."] = False
    fresh: Annotated[bool, "Delete the results of --batch, and begin again."] = False


class Goal(Struct, frozen=True):
    """The goal of a row, and the folder that the row names, if it names one."""

    text: str
    workspace: Path | None = None


class GoalParser(Parser):
    """Parse rows that have a ``goal``, and optionally an ``id`` and a ``workspace``."""

    own = frozenset(_FIELDS)
    filled = "goal"

    def name(self, record: Record) -> tuple[str | None, Shape]:
        return read_id(record, "id"), "own"

    def build(self, record: Mapping[str, Any]) -> Goal:
        goal = record.get("goal")
        if not isinstance(goal, str) or not goal.strip():
            raise ValueError("goal must be a text that is not empty")
        folder = record.get("workspace")
        if folder is None:
            return Goal(goal)
        if not isinstance(folder, str) or not Path(folder).is_dir():
            raise ValueError(f"workspace: there is no folder {folder!r}")
        return Goal(goal, Path(folder))

    def read_foreign(self, record: Record, shape: Shape) -> Any:
        raise NotImplementedError

    def explain_unknown(self, name: str) -> str:
        return f"{name!r} is not a field of a row; the fields are {', '.join(_FIELDS)}"

    def check(self, request: Any) -> None:
        """Accept every goal that could be parsed."""


class SessionCaller:
    """Run the session of each row. All sessions keep to the budget of the batch together.

    The session of a row has the same name in every run of the batch. A run thus continues the
    sessions that an earlier one left, and repeats none of their calls.
    """

    def __init__(
        self,
        name: str,
        *,
        log: EventLog,
        limits: Budget,
        folder: Path,
        template: Path | None,
        open_session: OpenSession,
    ) -> None:
        self.name = name
        self.waiting = 0
        self._folder = folder
        self._template = template
        self._open_session = open_session
        # the limits on turns and time are those of each session
        self._each = Budget(steps=limits.steps, seconds=limits.seconds)
        self._all = msgspec.structs.replace(limits, steps=None, seconds=None).share()
        for entry in log.sessions():
            if entry.session.startswith(f"{name}_"):
                spent = reduce_records(log.read(entry.session)).spent
                self._all.count(entry.session, spent)

    @property
    def is_exhausted(self) -> bool:
        """Whether the budget of the batch is used up."""
        return self._all.limits.find_excess(self._all.spent) is not None

    async def send(self, row: Row) -> Outcome | Exception | None:
        """Run the session of a row; return ``None`` if it has not come to an end."""
        if self.is_exhausted:
            return None
        goal: Goal = row.request
        budget = SharedBudget(self._each, [self._all])
        try:
            folder = goal.workspace
            if folder is None:
                folder = await asyncio.to_thread(self._make_folder, row.line)
            async with self._open_session(f"{self.name}_{row.line}", folder, budget) as session:
                outcome = await _pursue(session, goal.text)
        except (ProviderError, SessionError, ToolFailure, OSError) as error:
            return error
        if outcome.outcome == "waiting":
            self.waiting += 1
            return None
        return None if outcome.outcome == "exhausted" and self.is_exhausted else outcome

    def write(self, row: Row, outcome: Outcome | Exception) -> Result:
        """Return the row of the output for the outcome of a session."""
        facts: dict[str, Any] = {"line": row.line}
        if row.id is not None:
            facts["id"] = row.id
        facts["session"] = f"{self.name}_{row.line}"
        if isinstance(outcome, Exception):
            facts["error"] = describe_error(outcome)
            return Result(row.line, _encode(facts) + b"\n", failed=True)
        spent = outcome.spent
        facts |= {"outcome": outcome.outcome, "text": outcome.text}
        has_failed = outcome.outcome != "completed"
        if has_failed:
            message = outcome.detail or f"the session {outcome.outcome}"
            facts["error"] = {"category": f"session_{outcome.outcome}", "message": message}
        if outcome.denied:
            facts["denied"] = [each.tool_name for each in outcome.denied]
        facts["workspace"] = str(row.request.workspace or self._name_folder(row.line))
        facts["spent"] = {
            "turns": spent.turns, "tokens": spent.tokens, "tool_calls": spent.tool_calls
        }  # fmt: skip
        is_priced = spent.cost_unknown is None
        if is_priced:
            facts["cost_usd"] = spent.cost_usd
        return Result(
            row.line, _encode(facts) + b"\n", failed=has_failed,
            usage=Usage(input_tokens=spent.tokens),
            cost=spent.cost_usd if is_priced else None, unpriced=spent.cost_unknown,
        )  # fmt: skip

    def _name_folder(self, line: int) -> Path:
        return self._folder / self.name / str(line)

    def _make_folder(self, line: int) -> Path:
        """Return the folder of a row: empty, or a copy of the folder that was given."""
        folder = self._name_folder(line)
        if folder.exists():
            return folder
        part = folder.with_name(f"{line}.part")  # a copy that was interrupted is made again
        shutil.rmtree(part, ignore_errors=True)
        if self._template is None:
            part.mkdir(parents=True)
        else:
            shutil.copytree(self._template, part, symlinks=True, ignore=self._find_own)
        part.rename(folder)
        return folder

    def _find_own(self, place: str, names: list[str]) -> list[str]:
        """Return the folder of this batch, which must not be copied into itself."""
        return [name for name in names if (Path(place) / name).resolve() == self._folder.resolve()]


async def _pursue(session: Session[Any], goal: str) -> Outcome:
    """Run a session to the end of its goal; continue one that a smaller budget ended."""
    finished = session.state.finished
    if finished is not None and finished.outcome == "exhausted":
        return await session.run()
    return await session.run(goal, key="goal")


def run_agents(
    options: AgentBatchOptions,
    provider: Provider,
    open_session: OpenSession,
    *,
    log: EventLog,
    limits: Budget,
    template: Path | None,
    identity: dict[str, Any],
    as_json: bool,
) -> None:
    """Run the sessions of ``--batch``, and print the report."""
    assert options.batch is not None
    source, out = options.batch
    folder = out.with_name(f"{out.name}.work")
    callers: list[SessionCaller] = []

    def make_caller(name: str) -> SessionCaller:
        callers.append(
            SessionCaller(
                name, log=log, limits=limits, folder=folder, template=template,
                open_session=open_session,
            )
        )  # fmt: skip
        return callers[0]

    async def run() -> BatchReport:
        async with provider:
            return await run_rows(
                source, out, GoalParser(Defaults(), ""), make_caller, identity,
                concurrency=options.concurrency, retry_failed=options.retry_failed,
                fresh=options.fresh, on_progress=progress,
            )  # fmt: skip

    with report_errors(as_json=as_json), show_progress(out.name, quiet=as_json) as progress:
        try:
            report = asyncio.run(run())
        except OutputError as error:
            raise WrongFile(str(error)) from error
        except (BatchError, OSError) as error:
            raise click.ClickException(str(error)) from error
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    _show(report, callers[0], as_json=as_json)


def _show(report: BatchReport, caller: SessionCaller, *, as_json: bool) -> None:
    """Print the report of a batch; exit with 23 if its budget is used up."""
    stopped = "budget" if caller.is_exhausted else report.stopped
    report = msgspec.structs.replace(report, stopped=stopped)
    if as_json:
        facts = {**asdict(report), "cost_usd": str(report.cost_usd), "waiting": caller.waiting}
        show_json(facts)
    else:
        show_report(report)
        if caller.waiting:
            notify(
                f"{caller.waiting:,} wait for a decision; answer with dragoman log approve, and "
                "give the same command again"
            )
    if stopped is not None:
        raise SystemExit(EXIT_CODES["session_exhausted"])
