"""Implement the command ``dragoman log``."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import re
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import msgspec

from ..errors import scrub
from ..log import (
    ADMINISTRATION,
    CATALOGUE,
    EventLog,
    LogError,
    LogLockedError,
    LogRecord,
    Progress,
    find_place,
    name_place,
    open_log,
)
from ..permission import Decision
from ..replay import describe, find_excerpt, make_printable, shorten, summarize
from ..session import Question, SessionError, answer_question, find_questions
from ..trace import TraceServer, export_html
from ..trace.approval import Approvals
from .bills import GROUPS, add_up, show_bills, write_csv
from .console import Bar, echo_json, legible, show_table, working
from .errors import EXIT_CODES, report_errors
from .options import json_option, load_prices
from .recording import find_marker, is_logging, set_logging
from .sessions import ROW, find_session, make_row, shorten_ids, sort_sessions, to_json

_PATIENCE = 1.0  # how many seconds to wait for another process that writes the log
_SHOWN = 50  # maximum number of sessions in a list, except with --json


@click.group("log")
def command() -> None:
    """Inspect the event log: what was proposed, allowed, executed and observed, and the cost."""


def log_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option that sets the location of the log."""
    return click.option(
        "--log",
        "where",
        metavar="PLACE",
        help=(
            "A file, an export (*.jsonl) or a postgresql:// URL; else $DRAGOMAN_LOG, or log.db in "
            "your data folder."
        ),
    )(command)


@contextlib.contextmanager
def open_log_at(where: str | None, *, readonly: bool = True) -> Iterator[EventLog]:
    """Open the log at the value of ``--log``; convert its errors to messages and exit codes."""
    try:
        with report_errors(), _open_patiently(find_place(where), readonly=readonly) as log:
            yield log
    except LogError as error:
        click.echo(
            f"{click.style('error', fg='red')}: {legible(scrub(str(error)), err=True)}", err=True
        )
        raise SystemExit(EXIT_CODES["log_unusable"]) from None


def _open_patiently(place: str | Path, *, readonly: bool) -> EventLog:
    """Open a log; if another process is writing to it, retry for a short time."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return open_log(place, readonly=readonly)
        except LogLockedError:
            if readonly or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def write_json(value: Any) -> None:
    """Print a value as JSON; decimals are strings, so that they are not rounded."""
    echo_json(msgspec.json.format(msgspec.json.encode(value), indent=2))


# --- turning the recording on and off ----------------------------------------------------------


@command.command("on")
def turn_on() -> None:
    """Record ask and chat in the log, which is the default."""
    _turn(on=True)


@command.command("off")
def turn_off() -> None:
    """Stop recording ask and chat. The agent always records; existing records stay in the log."""
    _turn(on=False)


def _turn(*, on: bool) -> None:
    try:
        set_logging(on=on)
    except OSError as error:
        raise click.UsageError(f"{find_marker()}: cannot be changed: {error.strerror}") from error
    click.echo(f"ask and chat are {'logged' if on else 'not logged'}", err=True)


@command.command("status")
@json_option("the state")
def status(*, as_json: bool) -> None:
    """Print whether ask and chat are recorded, and where the log is."""
    place = name_place(find_place())
    if as_json:
        write_json({"logging": is_logging(), "place": place})
    else:
        click.echo(
            f"ask and chat are {'logged' if is_logging() else 'not logged'}; the log is {place}"
        )


# --- listing, searching and showing sessions ---------------------------------------------------


@command.command("list")
@log_option
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the N newest.")
@click.option(
    "--kind",
    type=click.Choice(["agent", "chat", "ask", "gateway"]),
    help="Only sessions of this kind.",
)
@json_option("the sessions")
def show_list(where: str | None, limit: int | None, kind: str | None, *, as_json: bool) -> None:
    """List the sessions, the newest first."""
    with open_log_at(where) as log:
        entries = sort_sessions(log, kind)
        chosen = entries[: limit or (None if as_json else _SHOWN)]
        with working("reading the sessions"):
            found = [(entry, summarize(log, entry)) for entry in chosen]
        if as_json:
            write_json([to_json(*each) for each in found])
            return
        if found:
            show_table(ROW, [make_row(*each) for each in shorten_ids(found, entries)], right=[3])
        if len(chosen) < len(entries):
            click.echo(
                f"and {len(entries) - len(chosen)} more (--limit {len(entries)} shows all)",
                err=True,
            )
        if not entries:
            click.echo(f"{name_place(find_place(where))}: no sessions", err=True)


@command.command("search")
@click.argument("text")
@log_option
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    metavar="N",
    help="The N newest.",
)
@json_option("the sessions and their matches")
def search(text: str, where: str | None, limit: int, *, as_json: bool) -> None:
    """Find sessions by their contents: questions, answers, commands, results, model names.

    The search ignores case. Each session is shown with the first match and the number of matches.
    """
    if not text.strip():
        raise click.UsageError("TEXT is empty; `dragoman log list` lists every session")
    with open_log_at(where) as log:
        with working("searching"):
            found: dict[str, list[LogRecord]] = {}
            for record in log.search(text):
                found.setdefault(record.session, []).append(record)
            entries = [entry for entry in sort_sessions(log) if entry.session in found]
            shown = [(entry, summarize(log, entry)) for entry in entries[:limit]]
        if as_json:
            write_json(
                [
                    {**to_json(*each), "matches": _matches(found[each[0].session], text)}
                    for each in shown
                ]
            )
            return
        for entry, summary in shown:
            _show_match(make_row(entry, summary), found[entry.session], text)
        if len(shown) < len(entries):
            click.echo(
                f"and {len(entries) - len(shown)} more (--limit {len(entries)} shows all)",
                err=True,
            )
        if not entries:
            click.echo(f"{name_place(find_place(where))}: no session contains {text!r}", err=True)


def _matches(records: list[LogRecord], text: str) -> list[dict[str, Any]]:
    return [
        {"seq": record.seq, "type": record.type, "excerpt": find_excerpt(record, text)}
        for record in records
    ]


def _show_match(row: list[str], records: list[LogRecord], text: str) -> None:
    when, kind, model, _, _, session, begins = row
    click.echo(f"{click.style(session, bold=True)}  {when}  {kind}  {model}  {begins}".rstrip())
    more = f"  ({len(records)} records)" if len(records) > 1 else ""
    click.echo(f"  {records[0].seq:>4}  {find_excerpt(records[0], text)}{more}")


@command.command("show")
@click.argument("session")
@log_option
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TYPE",
    help="Only events of this type; may be repeated.",
)
@click.option(
    "--after",
    type=click.IntRange(0),
    default=0,
    metavar="SEQ",
    help="Only what follows this record.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the records as stored, one line of JSON each."
)
def show(
    session: str, where: str | None, types: tuple[str, ...], after: int, *, as_json: bool
) -> None:
    """Show the records of SESSION, one line each."""
    for name in types:
        if name not in CATALOGUE:
            raise click.UsageError(f"--type: {name!r} is not one of {', '.join(CATALOGUE)}")
    with open_log_at(where) as log:
        session = find_session(log, session)
        for record in log.find(*types, session=session) if types else log.read(session, after):
            if record.seq > after:
                echo_json(record.line) if as_json else click.echo(_line(record))


def _line(record: LogRecord) -> str:
    return (
        f"{record.seq:>6}  {record.timestamp:%H:%M:%S}  {record.actor:<6}  {record.type:<22} "
        f" {describe(record)}"
    )


# --- answering permission requests -------------------------------------------------------------


@command.command("approve")
@click.argument("session", required=False)
@click.argument("intent", required=False)
@log_option
@click.option("--deny", is_flag=True, help="Deny it.")
@click.option(
    "--reason", default="", metavar="TEXT", help="Why; the model receives the reason of a denial."
)
@click.option("--by", metavar="NAME", help="Who decides; by default your user name.")
@click.option(
    "--input", "edited", metavar="JSON", help="Run it with this input; both inputs are recorded."
)
@click.option(
    "--scope",
    type=click.Choice(["once", "session", "path", "prefix"]),
    default="once",
    show_default=True,
    help=(
        "What else it allows in the session: the tool, the same paths, or commands with the same "
        "first words."
    ),
)
@click.option(
    "--prefix", metavar="WORDS", help="With --scope prefix: the words; by default the first one."
)
@json_option("the questions, or the answer")
def approve(
    session: str | None, intent: str | None, where: str | None, *, as_json: bool, **given: Any
) -> None:
    """Allow or deny a tool call that a session in another process proposes.

    The session must run with dragoman agent --await-approval. INTENT is the id of the proposal, or
    its prefix. Without INTENT, the open questions are listed.
    """
    with open_log_at(where) as log:
        session = find_session(log, session) if session is not None else None
        questions = find_questions(log, session)
        if intent is None:
            _show_questions(questions, as_json=as_json)
            return
        matching = [each for each in questions if each.intent_id.startswith(intent)]
        if len(matching) != 1:
            raise click.UsageError(
                f"{len(matching)} open questions have an id that begins with {intent!r}"
            )
        decision = _read_decision(**given)
        try:
            record = answer_question(log, matching[0].session, matching[0].intent_id, decision)
        except SessionError as error:
            raise click.UsageError(str(error)) from error
    if as_json:
        write_json(record.data)
    else:
        word = "allowed" if decision.allowed else "denied"
        click.echo(f"{matching[0].tool_name} {word} by {decision.by}", err=True)


def _show_questions(questions: list[Question], *, as_json: bool) -> None:
    if as_json:
        write_json(questions)
        return
    for each in questions:
        place = f"{click.style(legible(each.session), bold=True)}  {legible(each.intent_id)}"
        click.echo(f"{place}  {legible(each.tool_name)} ({legible(each.side_effect)})")
        click.echo(f"  {make_printable(json.dumps(each.input, ensure_ascii=False))}")
    if not questions:
        click.echo("no open questions", err=True)


def _read_decision(
    *, deny: bool, reason: str, by: str | None, edited: str | None, scope: Any, prefix: str | None
) -> Decision:
    if deny and (edited is not None or scope != "once"):
        raise click.UsageError("--deny takes neither --input nor --scope")
    if prefix is not None and scope != "prefix":
        raise click.UsageError("--prefix needs --scope prefix")
    given = None
    if edited is not None:
        try:
            given = msgspec.json.decode(edited, type=dict)
        except msgspec.DecodeError as error:
            raise click.UsageError(f"--input: is not a JSON object: {error}") from error
    return Decision(
        not deny, by or getpass.getuser(), reason, scope=scope, prefix=prefix, input=given
    )


# --- verifying, exporting and importing --------------------------------------------------------


@command.command("verify")
@click.argument("session", required=False)
@log_option
@click.option(
    "--known",
    type=click.Path(exists=True, dir_okay=False),
    help=(
        "Hashes noted earlier, as `log list --json` prints them: finds a chain that was cut short."
    ),
)
@json_option("the findings")
def verify(session: str | None, where: str | None, known: str | None, *, as_json: bool) -> None:
    """Check every hash of SESSION or of the complete log; report each session's first bad link."""
    heads = _read_heads(known)
    with open_log_at(where) as log:
        if session is not None and session not in heads:
            session = find_session(log, session)
        with _progress("verifying") as progress:
            report = log.verify(session, known=heads, progress=progress)
        if as_json:
            write_json({"ok": report.ok, **msgspec.structs.asdict(report)})
        else:
            first, *breaks = str(report).splitlines()
            click.echo(click.style(first, fg="green" if report.ok else "red"))
            for found in breaks:
                click.echo(found)
    if not report.ok:
        raise SystemExit(EXIT_CODES["log_broken"])


def _read_heads(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        data = json.loads(Path(path).read_text("utf-8"))
        heads = (
            {entry["session"]: entry["head"] for entry in data} if isinstance(data, list) else data
        )
        return msgspec.convert(heads, dict[str, str])
    except (ValueError, TypeError, KeyError) as error:
        raise click.UsageError(
            f"{path}: is neither a list of sessions nor a table of hashes: {error}"
        ) from error


@command.command("export")
@click.argument("session", required=False)
@log_option
@click.option(
    "-o",
    "--output",
    default="-",
    metavar="FILE",
    help="Where to; - is standard output.",
    show_default=True,
)
@click.option(
    "--html",
    "as_html",
    is_flag=True,
    help="Write SESSION as one HTML page to read; so does FILE.html.",
)
def export(session: str | None, where: str | None, output: str, *, as_html: bool) -> None:
    """Write the records of SESSION, or of the complete log, as JSON Lines that can be verified.

    A file is written atomically, and the same records give the same bytes. With --html, the output
    is the page of the trace viewer in one file, which needs no server and loads nothing from the
    network; long texts are truncated in it.
    """
    as_html = as_html or output.lower().endswith((".html", ".htm"))
    if as_html and session is None:
        raise click.UsageError("--html: needs a SESSION; `dragoman log list` shows them")
    with open_log_at(where) as log:
        if session is not None:
            session = find_session(log, session)
        if as_html and session is not None:
            _write_page(export_html(log, session), output)
            return
        if output == "-":
            log.export(sys.stdout.buffer, session)
            return
        with _progress("exporting") as progress:
            try:
                count = log.export(output, session, progress=progress)
            except OSError as error:
                raise click.UsageError(f"{output}: cannot be written: {error.strerror}") from error
        click.echo(f"{output}: {count} record{'s' * (count != 1)}", err=True)


def _write_page(page: str, output: str) -> None:
    if output == "-":
        click.echo(page.encode(), nl=False)
        return
    try:
        partial = Path(f"{output}.partial")
        partial.write_text(page, "utf-8")
        partial.replace(output)
    except OSError as error:
        raise click.UsageError(f"{output}: cannot be written: {error.strerror}") from error
    click.echo(f"{output}: {len(page.encode()):,} bytes", err=True)


@command.command("import")
@click.argument("source")
@click.option("--session", metavar="SESSION", help="Only this one.")
@log_option
@json_option("the count")
def take_over(source: str, session: str | None, where: str | None, *, as_json: bool) -> None:
    """Import the records of SOURCE, an export (*.jsonl) or another log, unchanged.

    SOURCE is verified first. Existing records are skipped, so that an import can be repeated; a
    session whose records differ from those in this log is rejected.
    """
    with open_log_at(source) as other:
        if session is not None:
            session = find_session(other, session)
        with open_log_at(where, readonly=False) as log, _progress("importing") as progress:
            count = log.restore(other, session, progress=progress)
    if as_json:
        write_json({"records": count})
    else:
        click.echo(f"imported {count} record{'s' * (count != 1)}", err=True)


@contextlib.contextmanager
def _progress(doing: str) -> Iterator[Progress]:
    """Show a progress bar at a terminal for a slow operation."""
    with Bar() as bar:
        yield lambda done, total: bar(doing, done, total)


# --- removing old sessions ---------------------------------------------------------------------

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _read_age(ctx: click.Context, option: click.Parameter, value: str) -> datetime:
    """Return the time that an age, such as 90d, or a date, such as 2026-01-31, stands for."""
    if found := re.fullmatch(r"(\d{1,6})([mhdw])", value):
        return datetime.now(UTC) - timedelta(**{_UNITS[found[2]]: int(found[1])})
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            "give an age such as 90d, 12h or 8w, or a day such as 2026-01-31"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@command.command("prune")
@log_option
@click.option(
    "--older-than",
    "before",
    required=True,
    metavar="AGE",
    callback=_read_age,
    help="An age such as 90d, 12h or 8w, or a day such as 2026-01-31 (UTC).",
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("the sessions")
def prune(where: str | None, before: datetime, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Remove every session whose last record is older than AGE; the log records the removal."""
    with open_log_at(where) as log:
        old = _find_old(log, before)
    if old and not dry_run:
        if not yes:
            _ask(len(old))
        with open_log_at(where, readonly=False) as log:
            old = [gone.session for gone in log.retain(before)]
    if as_json:
        write_json(
            {
                "before": before,
                "removed": [] if dry_run else old,
                "would_remove": old if dry_run else [],
            }
        )
        return
    for session in old:
        click.echo(shorten(session, 255))
    click.echo(
        f"{len(old)} session{'s' * (len(old) != 1)} "
        f"{'would be removed' if dry_run else 'removed'}",
        err=True,
    )


def _ask(count: int) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(
            "removing sessions needs --yes without a terminal; --dry-run lists them"
        )
    click.confirm(f"Remove {count} session{'s' * (count != 1)} for good?", abort=True, err=True)


def _find_old(log: EventLog, before: datetime) -> list[str]:
    return [
        entry.session
        for entry in log.sessions()
        if entry.updated < before and entry.session != ADMINISTRATION
    ]


# --- summing costs -----------------------------------------------------------------------------


@command.command("cost")
@click.argument("session", required=False)
@log_option
@click.option(
    "--prices",
    type=click.Path(exists=True, dir_okay=False),
    help="Price the calls again with the rates of this file, which go before the bundled ones.",
)
@click.option("--only", is_flag=True, help="With --prices: with these rates alone.")
@click.option(
    "--by",
    type=click.Choice(GROUPS),
    default="model",
    show_default=True,
    help=(
        "What to add up by. A key is one of the gateway; a project is one of the session's "
        "metadata, or its folder."
    ),
)
@click.option("--csv", "as_csv", is_flag=True, help="Print the bills as CSV.")
@json_option("the bills")
def show_cost(
    session: str | None,
    where: str | None,
    prices: str | None,
    by: str,
    *,
    only: bool,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Sum the cost of the calls of SESSION or of the log, as recorded and by a price table.

    Each call is priced with the row of the table that was valid on the day of the call. An unknown
    cost never counts as zero. At a terminal, a bar shows each group's share of the recorded cost.
    """
    if only and prices is None:
        raise click.UsageError("--only needs --prices")
    if as_csv and as_json:
        raise click.UsageError("--csv or --json, one of the two")
    table = load_prices(prices, only=only)
    with open_log_at(where) as log:
        if session is not None:
            session = find_session(log, session)
        with working("adding up"):
            rows = add_up(log, session, table, by)
    if as_json:
        write_json({"pricing_version": table.version, f"{by}s": rows})
    elif as_csv:
        click.echo(write_csv(rows, by), nl=False)
    else:
        show_bills(rows, table, by, chart=sys.stdout.isatty())


# --- the trace viewer in a browser -------------------------------------------------------------


@command.command("view")
@click.argument("session", required=False)
@log_option
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Where to listen; 0 finds a free one."
)
@click.option("--browser/--no-browser", default=True, show_default=True, help="Open the page.")
@click.option(
    "--approve",
    is_flag=True,
    help="Let the page answer questions of sessions, as log approve does.",
)
@click.option(
    "--by", metavar="NAME", help="With --approve: who decides; by default your user name."
)
@json_option("the address")
def view(
    session: str | None, where: str | None, *, approve: bool, by: str | None, **options: Any
) -> None:
    """Show the log in a browser: sessions, timelines, decisions, costs and the hash chain.

    Ctrl-C stops the server. The page is served on the loopback address only, with a URL that is
    new each time. Keep the URL secret: it gives access to the log and, with --approve, to
    decisions about what sessions may run.
    """
    if by is not None and not approve:
        raise click.UsageError("--by needs --approve")
    options["approve_by"] = (by or getpass.getuser()) if approve else None
    with open_log_at(where) as log:
        if session is not None:
            session = find_session(log, session)
        try:
            asyncio.run(_serve(log, session, **options))
        except OSError as error:
            raise click.UsageError(f"--port {options['port']}: {error.strerror}") from error
        except ImportError as error:
            raise click.UsageError(str(error)) from error


async def _serve(
    log: EventLog,
    session: str | None,
    *,
    port: int,
    approve_by: str | None,
    browser: bool,
    as_json: bool,
) -> None:
    decisions = Approvals(log, approve_by) if approve_by is not None else None
    async with TraceServer(log, port=port, decisions=decisions) as server:
        url = server.url + (f"#{quote(session, safe='')}" if session is not None else "")
        click.echo(json.dumps({"url": url}) if as_json else url)
        if browser:
            # A text browser blocks until the user closes it, so the browser is opened in a thread.
            await asyncio.to_thread(webbrowser.open, url)
        await asyncio.Event().wait()
