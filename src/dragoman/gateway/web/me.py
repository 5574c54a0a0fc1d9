"""The page of a person who logged in: own keys, own spending and own limits.

The key that a person creates has the rights that the rules give to a token of this person, and the
same id. So both are counted together, even if the key was deleted and created again. It is valid
for a number of days, and gets the rights of the day when it is rotated. Changes leave audit
records with the person's name.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request

from ...errors import AuthenticationError, InvalidRequestError
from ..access import Service
from ..administration import change_store, find_store
from ..keys import Key, KeyRing
from ..keystore import KeyStore, show_key
from ..spend_page import describe_amounts
from ..sums import read_period, select_bill
from .keys import find_person

_MOST_LINES = 100
# the facts of a key that do not come from rules
_OF_THE_KEY = ("id", "expires", "old_until", "team_budget_usd_month")


class OwnChange(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that creates, rotates or deletes a key of the person."""

    action: Literal["new", "rotate", "revoke"]
    name: str = ""
    overlap_hours: Annotated[float, Meta(ge=0, le=24 * 365)] = 24.0


async def read_own(service: Service, request: Request) -> dict[str, Any]:
    """Return the keys, the rights, the budgets and this month's spending of a person."""
    own = _find_own(request)
    ring = KeyRing() if service.keys is None else service.keys
    known = ring.keys
    keys = [key for key in known if key.user == own.user]
    counted = keys if any(key.id == own.id for key in keys) else [*keys, own]
    budgets = {
        (each.account, each.period): each
        for key in counted
        for each in await service.read_budgets(key)
    }
    return {
        "name": own.id,
        "user": own.user,
        "team": own.team,
        "rights": _list_rights(own),
        "keys": [{**show_key(key), "blocked": _has_ended(key)} for key in keys],
        "creates": find_store(service) is not None,
        "budgets": [*budgets.values()],
        "spend": await _read_spend(service, own.user or ""),
    }


async def change_own(service: Service, request: Request) -> dict[str, Any]:
    """Create, rotate or delete a key of a person; only the reply to this request has a new key."""
    change = msgspec.json.decode(await request.body(), type=OwnChange)
    person = find_person(request)
    own = _find_own(request)
    login = service.login
    assert login is not None
    if find_store(service) is None:
        raise InvalidRequestError("the keys of this gateway are in a file; ask its operator")
    rights = {
        **_list_rights(own),
        "expires": date.today() + timedelta(days=login.settings.key_days),
    }

    def apply(store: KeyStore) -> dict[str, Any]:
        if change.action == "new":
            return {"name": own.id, "key": store.create(own.id, **rights)}
        known = _find_key(store, own, change.name)
        if change.action == "revoke":
            store.revoke(change.name)
            return {"name": change.name}
        is_old = any(getattr(known, name) != value for name, value in rights.items())
        if known.id == own.id and is_old:
            store.change(own.id, rights)
        key, until = store.rotate(change.name, timedelta(hours=change.overlap_hours))
        return {"name": change.name, "key": key, "old_until": until}

    made: dict[str, Any] = await change_store(service, person, apply, is_own=True)
    return made


def _find_own(request: Request) -> Key:
    """Return the rights of the person who sent a request; the key of an operator has none."""
    own = find_person(request).own
    if own is None:
        raise AuthenticationError("this page is for people who logged in", status=403)
    return own


def _find_key(store: KeyStore, own: Key, name: str) -> Key:
    """Return a key of a person; raise ``LookupError`` about the key of another, as if it were missing."""
    for key in store.read_keys():
        if key.id == name and key.user == own.user:
            return key
    raise LookupError(f"you have no key named {name!r}")


def _list_rights(own: Key) -> dict[str, Any]:
    return {name: value for name, value in show_key(own).items() if name not in _OF_THE_KEY}


def _has_ended(key: Key) -> bool:
    return key.expires is not None and key.expires < date.today()


async def _read_spend(service: Service, user: str) -> dict[str, Any]:
    """Return the bill of a user in this month, by day and by model."""
    book = service.usage
    assert book is not None
    await book.flush(service.live)
    period = read_period(None, None)
    only = {"user": user}
    found: dict[str, Any] = {}
    for by in ("day", "model"):
        rows = await book.read(select_bill, period, [by], only, range(_MOST_LINES))
        found[by] = [{"name": row.labels[by], **describe_amounts(row)} for row in rows]
    [total] = await book.read(select_bill, period, (), only, range(1))
    return {**found, "total": describe_amounts(total)}
