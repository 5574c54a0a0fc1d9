"""Implement the command ``dragoman import``."""
# ruff: noqa: N999 - a module has the name of its command

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from ..compat.litellm.daily_spend import read_days
from ..compat.litellm.database import Estate, connect_database
from ..compat.litellm.proxy import Conversion
from ..database import is_postgres
from ..gateway.keys import Key, read_key_file
from ..gateway.keystore import KeyStore, is_key_database
from ..gateway.moving import DayAmounts, MovedKeys, MovedSpend, move_budgets, move_keys
from ..registry import read_file
from ..registry.folders import write_private
from .console import show_json
from .errors import reject, report_mistakes
from .parameters import Json, add_options, option


class ImportOptions(Struct):
    """Where the converted files, keys and costs go."""

    output: Annotated[
        Path,
        "Write the files to this folder.",
        option("FOLDER", type=click.Path(exists=True, file_okay=False, path_type=Path)),
    ] = Path()
    database: Annotated[
        str | None,
        "Read virtual keys, teams, budgets and costs from LiteLLM's database at this postgresql:// URL, "
        "too. Needs the extra postgres.",
        option("URL"),
    ] = None
    auth: Annotated[
        str | None,
        "Add the keys to this database, a SQLite file or a postgresql:// URL; by default keys.db in "
        "the folder of --output.",
        option("PLACE"),
    ] = None
    state: Annotated[
        str | None,
        "Add the costs to this store of dragoman serve --state; by default state.db in the folder of "
        "--output.",
        option("PLACE"),
    ] = None
    force: Annotated[
        bool, "Replace existing files, and the rights of keys that were added before."
    ] = False
    strict: Annotated[bool, "Write nothing and exit with 2 if a setting has no equal."] = False
    dry_run: Annotated[bool, "Write nothing, and show what would be written."] = False


@click.group("import")
def command() -> None:
    """Convert the configuration of another program to models.yaml and keys.yaml."""


@command.command("litellm")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@add_options
def convert(
    file: Path | None,
    *,
    options: ImportOptions,
    as_json: Annotated[Json, "Print what was written and the remarks as JSON."] = False,
) -> None:
    """Convert FILE, the config.yaml of LiteLLM's proxy, and list what has no equal.

    API keys of vendors are not copied: models.yaml names the environment variables that hold them,
    and keys.yaml has only the hash of the master key.

    With --database, virtual keys keep their values, since their hashes are copied. The import can
    be repeated until the clients use the gateway: it adds what is new, and counts no cost twice.
    """
    if file is None and options.database is None:
        raise click.UsageError("give FILE, the config.yaml of the proxy, or --database, or both")
    with report_mistakes():
        converted = None if file is None else Conversion(file)
    moved = None if options.database is None else _read_database(options.database)
    remarks = _list_remarks(converted, moved)
    for _, shown in remarks:
        if not as_json:
            click.echo(f"{click.style('remark', fg='yellow')}: {shown}", err=True)
    is_refused = options.strict and bool(remarks)
    made: dict[str, Any] = {"files": [], "remarks": [each for each, _ in remarks]}
    if converted is not None and not is_refused:
        made["files"] = _write_config(converted, options)
    if moved is not None and not is_refused:
        made |= _write_database(moved, [] if converted is None else converted.list_keys(), options)
    if as_json:
        show_json(made)
    else:
        _show(made)
    if is_refused:
        raise SystemExit(2)


class Moved(Struct):
    """What the database of a proxy has."""

    estate: Estate
    days: list[DayAmounts]


def _read_database(url: str) -> Moved:
    # the driver has its own exceptions, and may be missing
    with reject(Exception, about="--database: "), connect_database(url) as connection:
        estate = Estate(connection)
        return Moved(estate, [*read_days(connection, estate)])


def _list_remarks(
    converted: Conversion | None, moved: Moved | None
) -> list[tuple[dict[str, Any], str]]:
    """Return each remark as an object, and as a line."""
    found: list[tuple[dict[str, Any], str]] = []
    if converted is not None:
        for error in converted.remarks:
            found.append(({"line": error.line, "problem": error.problem}, str(error)))
    if moved is not None:
        found += [({"line": None, "problem": each}, each) for each in moved.estate.remarks]
    return found


def _write_config(converted: Conversion, options: ImportOptions) -> list[str]:
    """Write the files of a configuration, unless it is a dry run, and return their paths.

    With a database of keys, the master key is added to it.
    """
    keys = {} if options.database is not None else converted.keys
    contents = {"models.yaml": converted.models, "keys.yaml": keys}
    paths = {options.output / name: data for name, data in contents.items() if data}
    for path in [each for each in paths if each.exists() and not options.force]:
        raise click.UsageError(f"{path} exists; use --force, or another --output FOLDER")
    if not options.dry_run:
        with report_mistakes():
            _write_files(paths)
    return [str(path) for path in paths]


def _write_database(moved: Moved, master: Sequence[Key], options: ImportOptions) -> dict[str, Any]:
    """Write keys, teams and costs, or only return what would be written."""
    auth = options.auth or str(options.output / "keys.db")
    state = options.state or str(options.output / "state.db")
    exists = is_postgres(auth) or Path(auth).exists()
    if exists and not is_key_database(auth):
        raise click.UsageError(f"--auth: {auth} is not a database; name one, such as keys.db")
    estate = moved.estate
    hashes = {key.hash for key in estate.keys}
    keys = [*[key for key in master if key.hash not in hashes], *estate.keys]
    with reject(Exception, about="--auth: "):
        store = None if options.dry_run and not exists else KeyStore(auth)
        try:
            changes = move_keys(
                store,
                keys,
                estate.list_teams(),
                replace_known=options.force,
                write=not options.dry_run,
            )
            budgets = [each.budget for each in estate.limits]
            counters: dict[str, str] = {}
            if store is not None and not options.dry_run:
                counters = move_budgets(store, budgets, replace_known=options.force)
        finally:
            if store is not None:
                store.close()
    amounts = len(moved.days) + len(estate.limits)
    if not options.dry_run:
        with reject(Exception, about="--state: "):
            amounts = _write_costs(moved, state, counters)
    return {"keys": asdict(changes), "costs": amounts, "logins": estate.sessions}


def _write_costs(moved: Moved, state: str, counters: Mapping[str, str]) -> int:
    """Add the costs to a store, and return how many amounts were new or different."""
    spend = MovedSpend(state, "litellm")
    try:
        changed = spend.set_days(moved.days)
        for limit in moved.estate.limits:
            counter = counters[limit.budget.name]
            changed += spend.set_spent(limit.budget.account, counter, limit.spent)
    finally:
        spend.close()
    return changed


def _show(made: Mapping[str, Any]) -> None:
    for path in made["files"]:
        click.echo(path)
    if "keys" not in made:
        return
    names = MovedKeys(**made["keys"])
    parts = {
        "new": names.added,
        "changed": names.changed,
        "that differ and stay as they are; --force replaces their rights": names.kept,
        "that were revoked here and stay revoked": names.revoked,
    }
    for what, found in parts.items():
        if found:
            click.echo(f"keys {what}: {len(found)}")
    click.echo(f"teams: {len(names.teams)}")
    click.echo(f"amounts of costs: {made['costs']}")
    if made["logins"]:
        click.echo(f"keys of people logged in to LiteLLM's pages, left out: {made['logins']}")


def _write_files(contents: Mapping[Path, dict[str, Any]]) -> None:
    """Write the files, and read each again as the gateway will."""
    for path, data in contents.items():
        with reject(OSError, about=f"{path} cannot be written: "):
            kept = {name: value for name, value in data.items() if value}
            write_private(path, msgspec.yaml.encode(kept))
    for path in contents:
        if path.name == "keys.yaml":
            read_key_file(path)
            continue
        for problem in read_file(path).problems:
            raise problem
