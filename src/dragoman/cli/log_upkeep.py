"""The commands ``dragoman log verify``, ``export``, ``import``, ``prune`` and ``erase``."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from ..log import ADMINISTRATION, EventLog
from ..replay import shorten
from ..trace import export_html
from .console import Bar, plural, show_json
from .errors import EXIT_CODES, reject
from .log_place import LogPlace, open_log_at
from .parameters import ExistingFile, Json, add_options, option, read_duration
from .sessions import find_session

_CALLS = ("llm.call_completed", "llm.call_failed")
# These records have no content, or it was erased already.
_KEPT = ("session.finished", "record.erased")

# --- verifying, exporting and importing --------------------------------------------------------


@click.command("verify")
@click.argument("session", required=False)
@add_options
def verify(
    session: str | None,
    *,
    where: LogPlace = None,
    known: Annotated[
        ExistingFile, "Detect removed records by an earlier output of dragoman log list --json."
    ] = None,
    as_json: Annotated[Json, "Print the findings as JSON."] = False,
) -> None:
    """Check every hash of SESSION or of the complete log; report each session's first bad link.

    Exit codes: 0 every chain is intact, 21 a record was changed or removed, 25 all hashes are
    correct and a record cannot be read.
    """
    heads = _read_heads(known)
    with open_log_at(where) as log:
        if session is not None and session not in heads:
            session = find_session(log, session)
        with Bar(slow=True) as bar:
            report = log.verify(session, known=heads, progress=partial(bar, "verifying"))
        if as_json:
            show_json({"ok": report.ok, **msgspec.structs.asdict(report)})
        else:
            first, *breaks = str(report).splitlines()
            click.echo(click.style(first, fg="green" if report.ok else "red"))
            for found in breaks:
                click.echo(found)
    if not report.ok:
        raise SystemExit(EXIT_CODES["log_broken" if report.breaks else "log_unreadable"])


def _read_heads(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    about = f"{path}: is neither a list of sessions nor a table of hashes: "
    with reject(ValueError, TypeError, KeyError, about=about):
        data = json.loads(Path(path).read_text("utf-8"))
        if isinstance(data, list):
            data = {entry["session"]: entry["head"] for entry in data}
        return msgspec.convert(data, dict[str, str])


@click.command("export")
@click.argument("session", required=False)
@add_options
def export(
    session: str | None,
    *,
    where: LogPlace = None,
    output: Annotated[
        str, "Write to FILE; - is standard output.", option("FILE", "-o --output")
    ] = "-",
    as_html: Annotated[
        bool, "Write SESSION as one HTML page, whatever FILE is called.", option(flags="--html")
    ] = False,
) -> None:
    """Write the records of SESSION, or of the complete log, as JSON Lines that can be verified.

    A file is written atomically, and the same records give the same bytes. With --html, the output
    is the page of the trace viewer in one file, which needs no server and loads nothing from the
    network; long texts are truncated in it.
    """
    as_html = as_html or output.lower().endswith((".html", ".htm"))
    if as_html and session is None:
        raise click.UsageError("--html: needs a SESSION; `dragoman log list` shows them")
    with open_log_at(where) as log:
        session = find_session(log, session)
        if as_html and session is not None:
            _write_page(export_html(log, session), output)
            return
        if output == "-":
            log.export(sys.stdout.buffer, session)
            return
        with Bar(slow=True) as bar, reject(OSError, about=f"{output}: cannot be written: "):
            count = log.export(output, session, progress=partial(bar, "exporting"))
        click.echo(f"{output}: {plural(count, 'record')}", err=True)


def _write_page(page: str, output: str) -> None:
    if output == "-":
        click.echo(page.encode(), nl=False)
        return
    with reject(OSError, about=f"{output}: cannot be written: "):
        partial = Path(f"{output}.partial")
        partial.write_text(page, "utf-8")
        partial.replace(output)
    click.echo(f"{output}: {len(page.encode()):,} bytes", err=True)


@click.command("import")
@click.argument("source")
@add_options
def take_over(
    source: str,
    *,
    session: Annotated[str | None, "Import only this session.", option("SESSION")] = None,
    where: LogPlace = None,
    as_json: Annotated[Json, "Print the count as JSON."] = False,
) -> None:
    """Import the records of SOURCE, an export (*.jsonl) or another log, unchanged.

    SOURCE is verified first. Existing records are skipped, so that an import can be repeated; a
    session whose records differ from those in this log is rejected.
    """
    with open_log_at(source) as other:
        session = find_session(other, session)
        with open_log_at(where, readonly=False) as log, Bar(slow=True) as bar:
            count = log.restore(other, session, progress=partial(bar, "importing"))
    if as_json:
        show_json({"records": count})
    else:
        click.echo(f"imported {plural(count, 'record')}", err=True)


# --- removing old sessions ---------------------------------------------------------------------


def _read_age(ctx: click.Context, option: click.Parameter, value: str) -> datetime:
    """Return the time that an age, such as 90d, or a date, such as 2026-01-31, stands for."""
    if (age := read_duration(value, "mhdw")) is not None:
        return datetime.now(UTC) - age
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        problem = "give an age such as 90d, 12h or 8w, or a day such as 2026-01-31"
        raise click.BadParameter(problem) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@click.command("prune")
@add_options
def prune(
    *,
    where: LogPlace = None,
    before: Annotated[
        Any,
        "Remove sessions older than an age such as 90d, or than a day such as 2026-01-31 (UTC).",
        option("AGE", "--older-than", callback=_read_age),
    ],
    dry_run: Annotated[bool, "Print the sessions to remove, and remove nothing."] = False,
    yes: Annotated[bool, "Remove the sessions without asking."] = False,
    as_json: Annotated[Json, "Print the sessions as JSON."] = False,
) -> None:
    """Remove every session whose last record is older than AGE; the log records the removal."""
    with open_log_at(where) as log:
        names = [entry.session for entry in log.sessions() if entry.updated < before]
    old = [name for name in names if name != ADMINISTRATION]
    if old and not dry_run:
        if not yes and not sys.stdin.isatty():
            problem = "removing sessions needs --yes without a terminal; --dry-run lists them"
            raise click.UsageError(problem)
        if not yes:
            question = f"Remove {plural(len(old), 'session')} for good?"
            click.confirm(question, abort=True, err=True)
        with open_log_at(where, readonly=False) as log:
            old = [gone.session for gone in log.retain(before)]
    if as_json:
        removed, would_remove = ([], old) if dry_run else (old, [])
        show_json({"before": before, "removed": removed, "would_remove": would_remove})
        return
    for session in old:
        click.echo(shorten(session, 255))
    done = "would be removed" if dry_run else "removed"
    click.echo(f"{plural(len(old), 'session')} {done}", err=True)


# --- erasing content ---------------------------------------------------------------------------


@click.command("erase")
@click.argument("session", required=False)
@add_options
def erase(
    session: str | None,
    *,
    where: LogPlace = None,
    keys: Annotated[
        tuple[str, ...],
        "Erase the calls of this key of a gateway, by its id; may be repeated.",
        option("ID", "--key"),
    ] = (),
    reason: Annotated[str, "Record this reason.", option("TEXT")] = "",
    dry_run: Annotated[bool, "Print how many records would be erased, and erase none."] = False,
    yes: Annotated[bool, "Erase without asking."] = False,
    as_json: Annotated[Json, "Print the sessions and numbers as JSON."] = False,
) -> None:
    """Erase the content of SESSION, or what the users of keys sent and received, for good.

    Erased are messages, calls, tool inputs and results. The records keep their places, times and
    hashes, so the log can still be verified; costs of calls remain. Rows of the gateway's usage
    have no content.
    """
    if (session is None) is not bool(keys):
        raise click.UsageError("give a SESSION or --key, not both")
    with open_log_at(where) as log:
        chosen = _find_content(log, find_session(log, session), keys)
    count = sum(map(len, chosen.values()))
    if count and not dry_run:
        if not yes and not sys.stdin.isatty():
            raise click.UsageError("erasing needs --yes without a terminal; --dry-run counts")
        if not yes:
            click.confirm(f"Erase {plural(count, 'record')} for good?", abort=True, err=True)
        with open_log_at(where, readonly=False) as log:
            for name, numbers in chosen.items():
                log.erase(name, numbers, reason=reason)
    if as_json:
        show_json({"erased": not dry_run, "records": chosen})
        return
    done = "would be erased" if dry_run else "erased"
    click.echo(f"{plural(count, 'record')} {done}", err=True)


def _find_content(
    log: EventLog, session: str | None, keys: tuple[str, ...]
) -> dict[str, list[int]]:
    """Return the numbers of the private records of a session, or of the calls of some keys."""
    turns = {record.turn for record in log.find(*_CALLS) if _find_key(record.data) in keys}
    chosen: dict[str, list[int]] = {}
    names = [entry.session for entry in log.sessions()] if session is None else [session]
    for name in names:
        numbers = [
            record.seq
            for record in log.read(name)
            if record.sensitivity == "private"
            and record.type not in _KEPT
            and (session is not None or (record.turn in turns and not _is_gateway(record.data)))
        ]
        if numbers and name != ADMINISTRATION:
            chosen[name] = numbers
    return chosen


def _is_gateway(data: dict[str, Any]) -> bool:
    """Return whether a record is the start of a gateway's session, which has no content."""
    return data.get("kind") == "gateway"


def _find_key(data: dict[str, Any]) -> str | None:
    inbound = data.get("inbound")
    return inbound.get("key") if isinstance(inbound, dict) else None
