"""The keys and teams of a gateway's clients on the page.

A change does what ``dragoman keys gateway`` does, and leaves the same audit record.
"""

from __future__ import annotations

import asyncio
from datetime import date, timedelta
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict, replace
from starlette.requests import Request

from ..access import Service
from ..keys import MAX_LIMIT, read_money
from ..keystore import KeyStore, show_key
from ..people import Person

PERSON = "dragoman.person"
"""The entry of the scope of a request with the person who sent it."""
_MOST_AUDITED = 50  # changes that the page lists
_Count: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_LIMIT)] | UnsetType | None


class KeyChange(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that changes a key or a team; a missing field is not changed."""

    action: Literal["new", "change", "rotate", "block", "revoke", "team"]
    name: str
    team: str | UnsetType | None = UNSET
    user: str | UnsetType | None = UNSET
    names_user: bool | UnsetType = UNSET
    models: Annotated[tuple[str, ...], Meta(min_length=1)] | UnsetType = UNSET
    budget_usd: str | UnsetType | None = UNSET
    budget_usd_month: str | UnsetType | None = UNSET
    requests_per_minute: _Count = UNSET
    tokens_per_minute: _Count = UNSET
    max_concurrency: _Count = UNSET
    expires: date | UnsetType | None = UNSET
    on_loss: Literal["drop", "warn", "reject"] | UnsetType = UNSET
    overlap_hours: Annotated[float, Meta(ge=0, le=24 * 365)] = 24.0

    def read_fields(self) -> dict[str, Any]:
        """Return the fields of the key that the change sets."""
        fields = {name: value for name, value in asdict(self).items() if value is not UNSET}
        for name in ("action", "name", "overlap_hours"):
            del fields[name]
        for name in ("budget_usd", "budget_usd_month"):
            if isinstance(fields.get(name), str):
                fields[name] = read_money(fields[name])
        return fields


def find_store(service: Service) -> KeyStore | None:
    """Return the key database of a gateway that has an admin key, or ``None``."""
    source = None if service.keys is None or service.people is None else service.keys.source
    return source if isinstance(source, KeyStore) else None


async def list_keys(service: Service, request: Request) -> dict[str, Any]:
    """Return the keys without their hashes, the teams, and the latest changes."""
    store = find_store(service)
    team = find_person(request).team
    assert store is not None

    def read() -> dict[str, Any]:
        keys = [
            {**show_key(key), "blocked": key.expires is not None and key.expires < date.today()}
            for key in store.read_keys()
            if team is None or key.team == team
        ]
        if team is not None:
            return {"keys": keys, "teams": [], "audit": []}
        return {"keys": keys, "teams": store.teams(), "audit": store.audit(limit=_MOST_AUDITED)}

    return await asyncio.to_thread(read)


async def change_key(service: Service, request: Request) -> dict[str, Any]:
    """Apply a change to the key database; only the reply to this request has a new key."""
    change = msgspec.json.decode(await request.body(), type=KeyChange)
    shared = find_store(service)
    ring = service.keys
    person = find_person(request)
    if person.team is not None and change.action == "new" and change.team is UNSET:
        change = replace(change, team=person.team)
    assert shared is not None
    assert ring is not None

    def apply() -> dict[str, Any]:
        store = KeyStore(shared.place, actor=person.name)
        try:
            _check_team(store, change, person)
            return _apply(store, change)
        finally:
            store.close()

    made = await asyncio.to_thread(apply)
    await asyncio.to_thread(ring.poll)  # this process uses the change at once, the others soon
    return made


def find_person(request: Request) -> Person:
    """Return the person who sent a request that needs one."""
    person = request.scope[PERSON]
    assert isinstance(person, Person)
    return person


def _check_team(store: KeyStore, change: KeyChange, person: Person) -> None:
    """Raise ``ValueError`` if a lead changes what is not of the own team."""
    if person.team is None:
        return
    is_own = change.action == "new" or (
        change.action != "team"
        and any(key.id == change.name and key.team == person.team for key in store.read_keys())
    )
    if not is_own or change.team not in (UNSET, person.team):
        raise ValueError(f"the lead of the team {person.team} changes keys of this team only")


def _apply(store: KeyStore, change: KeyChange) -> dict[str, Any]:
    name = change.name
    fields = change.read_fields()
    if change.action == "new":
        return {"name": name, "key": store.create(name, **fields)}
    if change.action == "rotate":
        key, until = store.rotate(name, timedelta(hours=change.overlap_hours))
        return {"name": name, "key": key, "old_until": until}
    if change.action == "team":
        store.set_team(name, fields.get("budget_usd_month"))
    elif change.action == "revoke":
        store.revoke(name)
    elif change.action == "block":
        store.change(name, {"expires": date.today() - timedelta(days=1)})
    else:
        store.change(name, fields)
    return {"name": name}
