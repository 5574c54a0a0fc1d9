"""Implement the command ``dragoman log``."""

from __future__ import annotations

import asyncio
import getpass
import json
import sys
import webbrowser
from typing import Annotated, Literal
from urllib.parse import quote

import click
import msgspec
from msgspec import Struct

from ..log import CATALOGUE, LogRecord, SessionEntry, find_place, name_place
from ..permission import Decision
from ..replay import describe, find_excerpt, make_printable, summarize
from ..session import Question, SessionError, answer_question, find_questions
from ..trace import TraceServer
from ..trace.approval import Approvals
from .bills import GROUPS, add_up, show_bills, write_csv
from .console import echo_json, legible, notify, show_json, show_table, working
from .errors import reject
from .log_place import LogPlace, open_log_at
from .log_tools import show_tools
from .log_upkeep import erase, export, prune, take_over, verify
from .options import load_prices
from .parameters import ExistingFile, Json, Port, add_options, option
from .sessions import ROW, find_session, make_row, shorten_ids, sort_sessions, to_json
from .transcript import find_marker, is_logging, set_logging

_SHOWN = 50  # maximum number of sessions in a list, except with --json


@click.group("log")
def command() -> None:
    """Inspect the event log: what was proposed, allowed, executed and observed, and the cost."""


for _each in (verify, export, take_over, prune, erase, show_tools):
    command.add_command(_each)


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
    with reject(OSError, about=f"{find_marker()}: cannot be changed: "):
        set_logging(on=on)
    click.echo(f"ask and chat are {'logged' if on else 'not logged'}", err=True)


@command.command("status")
@add_options
def status(*, as_json: Annotated[Json, "Print the state as JSON."] = False) -> None:
    """Print whether ask and chat are recorded, and where the log is."""
    place = name_place(find_place())
    word = "logged" if is_logging() else "not logged"
    if as_json:
        show_json({"logging": is_logging(), "place": place})
    else:
        click.echo(f"ask and chat are {word}; the log is {place}")


# --- listing, searching and showing sessions ---------------------------------------------------


@command.command("list")
@add_options
def show_list(
    *,
    where: LogPlace = None,
    limit: Annotated[int | None, "List only the N newest sessions.", option("N", ge=1)] = None,
    kind: Annotated[
        Literal["agent", "chat", "ask", "gateway"] | None, "List only sessions of this kind."
    ] = None,
    as_json: Annotated[Json, "Print the sessions as JSON."] = False,
) -> None:
    """List the sessions, the newest first."""
    with open_log_at(where) as log:
        entries = sort_sessions(log, *([kind] if kind else []))
        chosen = entries[: limit or (None if as_json else _SHOWN)]
        with working("reading the sessions"):
            found = [(entry, summarize(log, entry)) for entry in chosen]
        if as_json:
            show_json([to_json(*each) for each in found])
            return
        if rows := [make_row(*each) for each in shorten_ids(found, entries)]:
            show_table(ROW, rows, right=["cost"])
        _show_rest(entries, len(chosen), where, "no sessions")


@command.command("search")
@click.argument("text")
@add_options
def search(
    text: str,
    *,
    where: LogPlace = None,
    limit: Annotated[int, "List only the N newest matches.", option("N", ge=1)] = 20,
    as_json: Annotated[Json, "Print the sessions and their matches as JSON."] = False,
) -> None:
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
            matches = {
                session: [
                    {"seq": each.seq, "type": each.type, "excerpt": find_excerpt(each, text)}
                    for each in records
                ]
                for session, records in found.items()
            }
            show_json([{**to_json(*each), "matches": matches[each[0].session]} for each in shown])
            return
        for entry, summary in shown:
            when, kind, model, _, _, session, begins = make_row(entry, summary)
            head = f"{click.style(session, bold=True)}  {when}  {kind}  {model}  {begins}"
            click.echo(head.rstrip())
            first, *others = found[entry.session]
            more = f"  ({len(others) + 1} records)" if others else ""
            click.echo(f"  {first.seq:>4}  {find_excerpt(first, text)}{more}")
        _show_rest(entries, len(shown), where, f"no session contains {text!r}")


def _show_rest(entries: list[SessionEntry], shown: int, where: str | None, if_none: str) -> None:
    """Print how many sessions are not shown, or that there are none."""
    count = len(entries)
    if shown < count:
        click.echo(f"and {count - shown} more (--limit {count} shows all)", err=True)
    if not entries:
        click.echo(f"{name_place(find_place(where))}: {if_none}", err=True)


@command.command("show")
@click.argument("session")
@add_options
def show(
    session: str,
    *,
    where: LogPlace = None,
    types: Annotated[
        tuple[str, ...], "Show only this type of event; may be repeated.", option("TYPE", "--type")
    ] = (),
    after: Annotated[
        int, "Show only records after number SEQ.", option("SEQ", ge=0, show_default=False)
    ] = 0,
    as_json: Annotated[Json, "Print each record as a line of JSON, as stored."] = False,
) -> None:
    """Show the records of SESSION, one line each."""
    for name in types:
        if name not in CATALOGUE:
            raise click.UsageError(f"--type: {name!r} is not one of {', '.join(CATALOGUE)}")
    with open_log_at(where) as log:
        session = find_session(log, session)
        for record in log.find(*types, session=session) if types else log.read(session, after):
            if record.seq > after:
                if as_json:
                    echo_json(record.line)
                    continue
                place = f"{record.seq:>6}  {record.timestamp:%H:%M:%S}  {record.actor:<6}"
                click.echo(f"{place}  {record.type:<22}  {describe(record)}")


# --- answering permission requests -------------------------------------------------------------


class AnswerOptions(Struct):
    """The options that decide about a tool call."""

    deny: Annotated[bool, "Deny the tool call."] = False
    reason: Annotated[str, "Record a reason, sent to the model on denial.", option("TEXT")] = ""
    by: Annotated[
        str | None, "Record this name for the decision, not your user name.", option("NAME")
    ] = None
    edited: Annotated[str | None, "Run the tool with this input.", option("JSON", "--input")] = (
        None
    )
    scope: Annotated[
        Literal["once", "session", "path", "prefix"],
        "Allow more in this session: all calls of the tool, the same paths, or commands with "
        "the same first words.",
    ] = "once"
    prefix: Annotated[
        str | None, "Set the first words for --scope prefix, by default one word.", option("WORDS")
    ] = None


@command.command("approve")
@click.argument("session", required=False)
@click.argument("intent", required=False)
@add_options
def approve(
    session: str | None,
    intent: str | None,
    *,
    where: LogPlace = None,
    answer: AnswerOptions,
    as_json: Annotated[Json, "Print the open questions, or the recorded answer, as JSON."] = False,
) -> None:
    """Allow or deny a tool call that a session in another process proposes.

    The session must run with dragoman agent --await-approval. INTENT is the id of the proposal, or
    its prefix. Without INTENT, the open questions are listed.
    """
    with open_log_at(where) as log:
        session = find_session(log, session)
        questions = find_questions(log, session)
        if intent is None:
            _show_questions(questions, as_json=as_json)
            return
        matching = [each for each in questions if each.intent_id.startswith(intent)]
        if len(matching) != 1:
            problem = f"open questions have an id that begins with {intent!r}"
            raise click.UsageError(f"{len(matching)} {problem}")
        asked = matching[0]
        decision = _read_decision(answer)
        with reject(SessionError):
            record = answer_question(log, asked.session, asked.intent_id, decision)
    if as_json:
        show_json(record.data)
    else:
        notify(f"{asked.tool_name} {'allowed' if decision.allowed else 'denied'} by {decision.by}")


def _show_questions(questions: list[Question], *, as_json: bool) -> None:
    if as_json:
        show_json(questions)
        return
    for each in questions:
        place = f"{click.style(legible(each.session), bold=True)}  {legible(each.intent_id)}"
        click.echo(f"{place}  {legible(each.tool_name)} ({legible(each.side_effect)})")
        click.echo(f"  {make_printable(json.dumps(each.input, ensure_ascii=False))}")
    if not questions:
        click.echo("no open questions", err=True)


def _read_decision(answer: AnswerOptions) -> Decision:
    if answer.deny and (answer.edited is not None or answer.scope != "once"):
        raise click.UsageError("--deny takes neither --input nor --scope; leave them out")
    if answer.prefix is not None and answer.scope != "prefix":
        raise click.UsageError("--prefix needs a scope; add --scope prefix")
    given = None
    if answer.edited is not None:
        with reject(msgspec.DecodeError, about="--input: is not a JSON object: "):
            given = msgspec.json.decode(answer.edited, type=dict)
    by = answer.by or getpass.getuser()
    return Decision(
        not answer.deny,
        by,
        reason=answer.reason,
        scope=answer.scope,
        prefix=answer.prefix,
        input=given,
    )


# --- summing costs -----------------------------------------------------------------------------


@command.command("cost")
@click.argument("session", required=False)
@add_options
def show_cost(
    session: str | None,
    *,
    where: LogPlace = None,
    prices: Annotated[
        ExistingFile, "Price the calls again; the file's prices precede the others."
    ] = None,
    only: Annotated[bool, "Use only the prices in the file of --prices."] = False,
    by: Annotated[
        str,
        "Sum costs by a property; a project is the session's folder, or the one that its metadata"
        " names.",
        option(type=click.Choice(GROUPS)),
    ] = "model",
    as_csv: Annotated[bool, "Print the bills as CSV.", option(flags="--csv")] = False,
    as_json: Annotated[Json, "Print the bills as JSON."] = False,
) -> None:
    """Sum the cost of the calls of SESSION or of the log, as recorded and by a price table.

    Each call is priced with the row of the table that was valid on the day of the call. An unknown
    cost never counts as zero. At a terminal, a bar shows each group's share of the recorded cost.
    """
    if only and prices is None:
        raise click.UsageError("--only needs a file of prices; add --prices FILE")
    if as_csv and as_json:
        raise click.UsageError("give --csv or --json, not both")
    table = load_prices(prices, only=only)
    with open_log_at(where) as log:
        session = find_session(log, session)
        with working("adding up"):
            rows = add_up(log, session, table, by)
    if as_json:
        show_json({"pricing_version": table.version, f"{by}s": rows})
    elif as_csv:
        click.echo(write_csv(rows, by), nl=False)
    else:
        show_bills(rows, table, by, chart=sys.stdout.isatty())


# --- the trace viewer in a browser -------------------------------------------------------------


@command.command("view")
@click.argument("session", required=False)
@add_options
def view(
    session: str | None,
    *,
    where: LogPlace = None,
    port: Annotated[Port, option(show_default=False)] = 0,
    browser: Annotated[bool, "Open the page in a browser."] = True,
    approve: Annotated[bool, "Let the page approve and deny tool calls."] = False,
    by: Annotated[str | None, "Record this name for decisions.", option("NAME")] = None,
    as_json: Annotated[Json, "Print the address as JSON."] = False,
) -> None:
    """Show the log in a browser: sessions, timelines, decisions, costs and the hash chain.

    Ctrl-C stops the server. The page is served on the loopback address only, with a URL that is
    new each time. Keep the URL secret: it gives access to the log and, with --approve, to
    decisions about what sessions may run.
    """
    if by is not None and not approve:
        raise click.UsageError("--by names who approves; add --approve")
    with open_log_at(where) as log:
        decisions = Approvals(log, by or getpass.getuser()) if approve else None
        session = find_session(log, session)
        with reject(ImportError), reject(OSError, about=f"--port {port}: "):
            server = TraceServer(log, port=port, decisions=decisions)
            asyncio.run(_serve(server, session, browser=browser, as_json=as_json))


async def _serve(
    server: TraceServer, session: str | None, *, browser: bool, as_json: bool
) -> None:
    async with server:
        url = server.url + (f"#{quote(session, safe='')}" if session is not None else "")
        click.echo(json.dumps({"url": url}) if as_json else url)
        if browser:
            # A text browser blocks until the user closes it, so the browser is opened in a thread.
            await asyncio.to_thread(webbrowser.open, url)
        await asyncio.Event().wait()
