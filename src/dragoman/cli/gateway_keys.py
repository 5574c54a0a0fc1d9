"""Implement ``dragoman keys gateway``, which manages the keys of a gateway's clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import click
import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from ..database import is_postgres
from ..gateway.budgets import PERIODS, TEAM, Period
from ..gateway.keys import MAX_LIMIT, Key, read_key_file, read_money
from ..gateway.keystore import KeyStore, is_key_database, show_key
from .console import show_json, show_table
from .errors import reject, report_mistakes
from .parameters import Json, add_options, option, read_duration

_NONE = "none"
_LIMITS = {
    "budget_usd": "${} in all",
    "budget_usd_month": "${} a month",
    "requests_per_minute": "{} requests/min",
    "tokens_per_minute": "{} tokens/min",
    "max_concurrency": "{} at a time",
}


@click.group("gateway")
def command() -> None:
    """Manage the keys of a gateway's clients in a database, which `dragoman serve --auth` reads.

    The database is a SQLite file (keys.db) or a postgresql:// URL. It contains hashes, not the
    keys themselves. Running gateways apply every change within a second, and every change leaves
    an audit record.
    """


def _reading(read: Callable[[str], Any], problem: str | None = None) -> Callable[..., Any]:
    """Return the callback of an option whose value ``read`` converts, unless it is ``none``."""

    def convert(_: click.Context, option: click.Parameter, value: str | None) -> Any:
        if value is None or value == _NONE:
            return value
        try:
            return read(value)
        except ValueError as error:
            raise click.BadParameter(problem or str(error), param=option) from None

    return convert


def _read_number(value: str) -> int:
    if not value.isdigit() or int(value) < 1:
        raise ValueError("must be 1 or more")
    if int(value) > MAX_LIMIT:
        raise ValueError(f"must be at most {MAX_LIMIT}")
    return int(value)


def _read_duration(value: str) -> timedelta:
    duration = read_duration(value, "smhd")
    if duration is None:
        raise ValueError("must be a duration such as 24h, 30m or 7d")
    return duration


_read_day = _reading(date.fromisoformat, "must be a date such as 2030-01-31")
AuthPlace: TypeAlias = Annotated[
    str,
    "Use this key database, a SQLite file or a postgresql:// URL.",
    option("PLACE", "--auth", envvar="DRAGOMAN_AUTH", show_envvar=True),
]
_Amount: TypeAlias = Annotated[Any, option("USD", callback=_reading(read_money))]
_Number: TypeAlias = Annotated[Any, option("N", callback=_reading(_read_number))]


class KeyRights(Struct):
    """The options that set what a key may do; ``none`` clears a field."""

    team: Annotated[str | None, "Let the key share the budget of this team.", option("NAME")] = (
        None
    )
    user: Annotated[
        str | None, "Bill the key's calls to this user, such as ann@example.org.", option("NAME")
    ] = None
    names_user: Annotated[
        bool | None,
        "Let the key's clients name their user in a request.",
        option(flags="--names-user/--no-names-user"),
    ] = None
    models: Annotated[
        tuple[str, ...],
        "Allow only this model, such as fast or 'anthropic:*'; may be repeated.",
        option("PATTERN", "--model"),
    ] = ()
    budget_usd: Annotated[_Amount, "Limit the key's total spending.", option(flags="--budget")] = (
        None
    )
    budget_usd_month: Annotated[
        _Amount, "Limit the key's spending in a month (UTC).", option(flags="--budget-month")
    ] = None
    requests_per_minute: Annotated[_Number, "Allow the key N requests a minute."] = None
    tokens_per_minute: Annotated[_Number, "Allow the key N tokens a minute."] = None
    max_concurrency: Annotated[_Number, "Allow the key at most N calls at a time."] = None
    expires: Annotated[
        Any, "Make the key valid until the end of this day.", option("DATE", callback=_read_day)
    ] = None
    on_loss: Annotated[
        Literal["drop", "warn", "reject"] | None,
        "Drop fields that the model's wire lacks, with a warning or without, or reject requests.",
    ] = None


@command.command("new")
@click.argument("name")
@add_options
def new(
    name: str,
    *,
    rights: KeyRights,
    place: AuthPlace,
    as_json: Annotated[Json, "Print the key as JSON."] = False,
) -> None:
    """Create the key NAME and print it. It is not shown again."""
    fields = {field: value for field, value in _read_rights(rights).items() if value is not None}
    with _open(place, create=True) as store:
        key = store.create(name, **fields)
    _show_key(name, key, as_json=as_json)


@command.command("change")
@click.argument("name")
@add_options
def change(name: str, *, rights: KeyRights, place: AuthPlace) -> None:
    """Change what the key NAME may do.

    "none" removes a limit, the expiry or the team; --model '*' allows all models.
    """
    fields = _read_rights(rights)
    if not fields:
        raise click.UsageError("nothing to change: give an option, such as --budget-month 20")
    with _open(place) as store:
        store.change(name, fields)
    click.echo(f"{name} is changed")


@command.command("rotate")
@click.argument("name")
@add_options
def rotate(
    name: str,
    *,
    overlap: Annotated[
        Any,
        "Keep the old key valid for this time: 30m, 24h, 7d, or 0s.",
        option("TIME", callback=_reading(_read_duration)),
    ] = "24h",
    place: AuthPlace,
    as_json: Annotated[Json, "Print the key as JSON."] = False,
) -> None:
    """Replace the key NAME and print the new key. It is not shown again.

    The budget and the limits stay the same.
    """
    with _open(place) as store:
        key, until = store.rotate(name, overlap)
    _show_key(name, key, as_json=as_json, old_until=until.isoformat(timespec="seconds"))


@command.command("revoke")
@click.argument("name")
@add_options
def revoke(name: str, *, place: AuthPlace) -> None:
    """Delete the key NAME. The record of what it has spent stays in the ledger."""
    with _open(place) as store:
        store.revoke(name)
    click.echo(f"{name} is revoked")


@command.command("withdraw")
@click.argument("user")
@add_options
def withdraw(user: str, *, place: AuthPlace) -> None:
    """Delete the keys of the user USER, and refuse new ones.

    Running gateways refuse the tokens and the sessions of the user too, within a second.
    """
    with _open(place) as store:
        names = store.withdraw(user)
    deleted = f"; deleted: {', '.join(names)}" if names else ""
    click.echo(f"the access of {user} is withdrawn{deleted}")


@command.command("admit")
@click.argument("user")
@add_options
def admit(user: str, *, place: AuthPlace) -> None:
    """Let the user USER in again, whose access was withdrawn. The deleted keys stay deleted."""
    with _open(place) as store:
        store.admit(user)
    click.echo(f"{user} is admitted")


@command.command("team")
@click.argument("name")
@add_options
def team(
    name: str,
    *,
    budget_month: Annotated[
        _Amount, "Limit what the team's keys may spend in a month (UTC); none removes the limit."
    ] = None,
    place: AuthPlace,
) -> None:
    """Create or change the team NAME."""
    with _open(place, create=True) as store:
        store.set_team(name, None if budget_month == _NONE else budget_month)
    click.echo(f"team {name} is stored")


@command.command("budget")
@click.argument("account")
@click.argument("period", type=click.Choice(PERIODS))
@click.argument("usd", callback=_reading(read_money))
@add_options
def set_budget(account: str, period: Period, usd: Any, *, place: AuthPlace) -> None:
    """Limit what ACCOUNT may spend in a PERIOD to USD; "none" removes the budget.

    An account is the name of a key, or user:NAME, team:NAME or tag:NAME. A request must fit into
    the budgets of its key, its user, its team and its tag. Days, weeks (from Monday) and months
    follow the calendar in UTC.
    """
    with _open(place) as store:
        store.set_budget(account, period, None if usd == _NONE else usd)
    click.echo(f"the budget {account}:{period} is {'removed' if usd == _NONE else 'stored'}")


@command.command("reset")
@click.argument("account")
@click.argument("period", type=click.Choice(PERIODS))
@add_options
def reset_budget(account: str, period: Period, *, place: AuthPlace) -> None:
    """Let the budget of ACCOUNT for a PERIOD begin again with nothing spent.

    An account is the name of a key, or user:NAME, team:NAME or tag:NAME. The bill stays as it is.
    """
    with _open(place) as store:
        store.reset_budget(account, period)
    click.echo(f"the budget {account}:{period} begins again")


@command.command("list")
@add_options
def list_keys(
    *, place: AuthPlace, as_json: Annotated[Json, "Print the list as JSON."] = False
) -> None:
    """List keys, teams and limits; the keys themselves are never shown."""
    with _open(place) as store:
        keys = store.read_keys()
        teams = store.teams()
        budgets = [each for each in store.read_budgets() if each.usd is not None]
    if as_json:
        show_json({"keys": [show_key(key) for key in keys], "teams": teams, "budgets": budgets})
        return
    show_table(
        ["NAME", "USER", "TEAM", "MODELS", "LIMITS", "EXPIRES"], [_row(key) for key in keys]
    )
    for team in teams:
        usd = team.budget_usd_month
        click.echo(f"team {team.id}: {'no budget' if usd is None else f'${usd} a month'}")
    listed = {f"{TEAM}{team.id}:month" for team in teams}
    for each in budgets:
        if each.name not in listed:
            click.echo(f"budget {each.account}: ${each.usd} ({each.period})")


@command.command("audit")
@click.argument("name", required=False)
@add_options
def audit(
    name: str | None,
    *,
    limit: Annotated[int, "List at most this many changes.", option(ge=1, le=100_000)] = 100,
    place: AuthPlace,
    as_json: Annotated[Json, "Print the list as JSON."] = False,
) -> None:
    """List all changes, or those of the key NAME, newest first. team:NAME stands for a team.

    An admin who read the records of a session is listed too, with the session as the key.
    """
    with _open(place) as store:
        records = store.audit(name, limit)
    if as_json:
        show_json(records)
        return
    rows = []
    for each in records:
        time = f"{each.at:%Y-%m-%d %H:%M:%S}"
        change = msgspec.json.encode(each.detail).decode()
        rows.append([time, each.actor, each.action, each.subject, change])
    show_table(["TIME (UTC)", "BY", "ACTION", "KEY", "CHANGE"], rows)


@command.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@add_options
def import_keys(file: str, *, place: AuthPlace) -> None:
    """Import keys and teams from FILE, a YAML key file. The clients' keys stay valid."""
    with report_mistakes():
        found = read_key_file(Path(file))
    with _open(place, create=True) as store:
        store.add(found.keys, "import")
        for name, budget in found.teams.items():
            store.set_team(name, budget)
        for each in found.budgets:
            store.set_budget(each.account, each.period, each.usd)
    click.echo(f"{len(found.keys)} keys are stored")


def _read_rights(rights: KeyRights) -> dict[str, Any]:
    """Return the fields of a key that the options set; the value ``none`` clears a field."""
    return {
        name: None if value == _NONE else value
        for name, value in asdict(rights).items()
        if value is not None and value != ()
    }


def _row(key: Key) -> list[str]:
    values = {text: getattr(key, name) for name, text in _LIMITS.items()}
    limits = [text.format(value) for text, value in values.items() if value is not None]
    old = "" if key.old_until is None else f", old key until {key.old_until:%Y-%m-%d %H:%M}"
    models = ", ".join(key.models)
    limited = ", ".join(limits) + old
    return [key.id, key.user or "", key.team or "", models, limited, str(key.expires or "")]


def _show_key(name: str, key: str, *, as_json: bool, **more: str) -> None:
    if as_json:
        show_json({"name": name, "key": key, **more})
        return
    click.echo(f"key: {key}")
    until = f" The old key is valid until {more['old_until']}." if more else ""
    click.echo(f"It is shown this once; give it to its owner.{until}", err=True)


@contextmanager
def _open(place: str, *, create: bool = False) -> Iterator[KeyStore]:
    if not is_postgres(place):
        if not create and not Path(place).exists():
            raise click.UsageError(f"--auth: {place} does not exist")
        if not is_key_database(place):
            advice = "change a YAML file by hand, or import it into keys.db"
            raise click.UsageError(f"--auth: {place} is not a database; {advice}")
    # the SQLite and PostgreSQL drivers raise different exceptions
    with reject(Exception, about="--auth: "):
        store = KeyStore(place)
    try:
        yield store
    except (ValueError, LookupError) as error:
        raise click.UsageError(str(error)) from error
    finally:
        store.close()
