"""The keys and teams of a gateway's clients on the page.

A change does what ``dragoman keys gateway`` does, and leaves the same audit record.
"""

from __future__ import annotations

import asyncio
from datetime import date, timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta
from msgspec.structs import replace
from starlette.requests import Request

from ..access import Service
from ..administration import change_store, find_store
from ..budgets import TEAM, read_name
from ..keys import read_money
from ..keystore import KeyStore, show_key
from ..operations import KeyFields
from ..people import Person

PERSON = "dragoman.person"
"""The entry of the scope of a request with the person who sent it."""
_MOST_AUDITED = 50  # changes that the page lists


class KeyChange(KeyFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of a request that changes a key or a team; a missing field is not changed."""

    action: Literal["new", "change", "rotate", "block", "revoke", "team", "budget", "reset"]
    name: str
    # of the budget ``name``, such as team:research:week; null removes it
    usd: str | None = None
    overlap_hours: Annotated[float, Meta(ge=0, le=24 * 365)] = 24.0


async def list_keys(service: Service, request: Request) -> dict[str, Any]:
    """Return the keys without their hashes, the teams, the budgets, and the latest changes.

    ``exhausted`` of a key names its budgets of which nothing is left.
    """
    store = find_store(service)
    team = find_person(request).team
    assert store is not None
    found = await asyncio.to_thread(store.read_keys)
    keys = [key for key in found if team is None or key.team == team]
    exhausted = await service.find_exhausted(keys)
    own = {key.id for key in keys} | {f"{TEAM}{team}"}
    budgets = [
        each for each in await service.read_budgets() if team is None or each.account in own
    ]
    made: dict[str, Any] = {
        "keys": [
            {
                **show_key(key),
                "blocked": key.expires is not None and key.expires < date.today(),
                "exhausted": exhausted.get(key.id, []),
            }
            for key in keys
        ],
        "budgets": budgets,
        "teams": [],
        "audit": [],
    }
    if team is None:
        made["teams"] = await asyncio.to_thread(store.teams)
        made["audit"] = await asyncio.to_thread(store.audit, limit=_MOST_AUDITED)
    return made


async def change_key(service: Service, request: Request) -> dict[str, Any]:
    """Apply a change to the key database; only the reply to this request has a new key."""
    change = msgspec.json.decode(await request.body(), type=KeyChange)
    person = find_person(request)
    if person.team is not None and change.action == "new" and change.team is UNSET:
        change = replace(change, team=person.team)

    def apply(store: KeyStore) -> dict[str, Any]:
        return _apply(store, change)

    made: dict[str, Any] = await change_store(service, person, apply)
    return made


def find_person(request: Request) -> Person:
    """Return the person who sent a request that needs one."""
    person = request.scope[PERSON]
    assert isinstance(person, Person)
    return person


def _apply(store: KeyStore, change: KeyChange) -> dict[str, Any]:
    name = change.name
    fields = change.read()
    if change.action == "new":
        return {"name": name, "key": store.create(name, **fields)}
    if change.action == "rotate":
        key, until = store.rotate(name, timedelta(hours=change.overlap_hours))
        return {"name": name, "key": key, "old_until": until}
    if change.action in ("budget", "reset"):
        account, period = read_name(name)
        if change.action == "reset":
            store.reset_budget(account, period)
        else:
            store.set_budget(
                account, period, None if change.usd is None else read_money(change.usd)
            )
    elif change.action == "team":
        store.set_team(name, fields.get("budget_usd_month"))
    elif change.action == "revoke":
        store.revoke(name)
    elif change.action == "block":
        store.change(name, {"expires": date.today() - timedelta(days=1)})
    else:
        store.change(name, fields)
    return {"name": name}
