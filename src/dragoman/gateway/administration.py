"""``/v1/admin``: keys, teams, users, budgets, models and changes of a gateway, for programs.

A request needs the key of a person of ``--admin``. A viewer reads, a lead reads and changes the
keys of the own team, and an admin everything. Every change adds an audit record with the person's
name. PUT and DELETE are idempotent: to send one again changes nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, TypeAlias

import msgspec
from starlette.requests import Request as HttpAsked
from starlette.responses import Response
from starlette.routing import Route

from ..errors import AuthenticationError, InvalidRequestError
from .access import Service, read_headers
from .budgets import read_name
from .keys import MAX_NAME, Key, read_money
from .keystore import KeyStore, KnownKeyError, show_key
from .operations import (
    OPERATIONS,
    ROOT,
    BudgetFields,
    KeyFields,
    NewKey,
    Rotation,
    TeamFields,
    UserFields,
)
from .pages import answer_json, read_body, read_number, read_size, write_json
from .people import CHANGERS, Person


def find_store(service: Service) -> KeyStore | None:
    """Return the key database of a gateway that has an admin key, or ``None``."""
    source = None if service.keys is None or service.people is None else service.keys.source
    return source if isinstance(source, KeyStore) else None


async def change_store(
    service: Service, person: Person, change: Callable[[KeyStore], Any], *, is_own: bool = False
) -> Any:
    """Apply a change under a person's name; this process uses it at once, the others soon.

    The lead of a team changes its keys only, and ``is_own`` allows the lead's own keys elsewhere.
    """
    shared = find_store(service)
    ring = service.keys
    assert shared is not None
    assert ring is not None

    def apply() -> Any:
        team = None if is_own else person.team
        store = KeyStore(shared.place, actor=person.name, team=team)
        try:
            return change(store)
        finally:
            store.close()

    made = await asyncio.to_thread(apply)
    await asyncio.to_thread(ring.poll)
    return made


Handle: TypeAlias = Callable[[HttpAsked, Person], Awaitable[Any]]


class Administration:
    """The routes below ``/v1/admin``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Return the routes of all operations."""
        most = self._service.bounds.body_bytes
        return [
            Route(
                ROOT + each.path.replace("{name}", "{name:path}"),
                self._answer(getattr(self, f"_{each.handler}")),
                methods=[each.method],
                max_body_size=most,
            )
            for each in OPERATIONS
        ]

    def _answer(self, handle: Handle) -> Callable[[HttpAsked], Awaitable[Response]]:
        async def answer(asked: HttpAsked) -> Response:
            return await answer_json(asked, lambda: handle(asked, self._find_person(asked)))

        return answer

    def _find_person(self, asked: HttpAsked) -> Person:
        service = self._service
        if service.people is None:
            raise InvalidRequestError(
                "this gateway has no administration; its operator must start it with --admin",
                status=404,
            )
        person = service.find_person(read_headers(asked.scope))
        if person is None:
            raise AuthenticationError("the key of a person of --admin is missing or wrong")
        if asked.method not in ("GET", "HEAD") and person.role not in CHANGERS:
            raise AuthenticationError("your role does not allow changes", status=403)
        return person

    async def _read_keys(self, person: Person) -> list[Key]:
        keys = await asyncio.to_thread(_need_store(self._service).read_keys)
        return [key for key in keys if person.team is None or key.team == person.team]

    # --- keys

    async def _list_keys(self, asked: HttpAsked, person: Person) -> Any:
        query = asked.query_params
        keys = await self._read_keys(person)
        for name in ("team", "user"):
            if name in query:
                keys = [key for key in keys if (getattr(key, name) or "") == query[name]]
        words = query.get("search", "").lower()
        found = [
            {"name": key.id, "key": key}
            for key in keys
            if words in f"{key.id} {key.user or ''} {key.team or ''}".lower()
        ]
        page = _page(found, asked)
        return {
            **page,
            "data": await _describe(self._service, [each["key"] for each in page["data"]]),
        }

    async def _show_key(self, asked: HttpAsked, person: Person) -> Any:
        name = asked.path_params["name"]
        for key in await self._read_keys(person):
            if key.id == name:
                return (await _describe(self._service, [key]))[0]
        raise LookupError(f"there is no key named {name!r}")

    async def _create_key(self, asked: HttpAsked, person: Person) -> Any:
        given = await read_body(asked, NewKey)
        made = await self._make(given.name, given, person)
        return write_json(made, 201)

    async def _put_key(self, asked: HttpAsked, person: Person) -> Any:
        name = asked.path_params["name"]
        given = await read_body(asked, KeyFields)
        try:
            return write_json(await self._make(name, given, person), 201)
        except KnownKeyError:
            return await self._set(name, given, person)

    async def _change_key(self, asked: HttpAsked, person: Person) -> Any:
        return await self._set(
            asked.path_params["name"], await read_body(asked, KeyFields), person
        )

    async def _make(self, name: str, given: KeyFields, person: Person) -> dict[str, Any]:
        fields = given.read()
        if person.team is not None:
            fields.setdefault("team", person.team)
        _need_store(self._service)

        def make(store: KeyStore) -> str:
            return store.create(name, **fields)

        return {"name": name, "key": await change_store(self._service, person, make)}

    async def _set(self, name: str, given: KeyFields, person: Person) -> Any:
        fields = given.read()
        _need_store(self._service)

        def change(store: KeyStore) -> Key:
            return store.change(name, fields)

        return _show(await change_store(self._service, person, change))

    async def _delete_key(self, asked: HttpAsked, person: Person) -> Any:
        name = asked.path_params["name"]
        _need_store(self._service)

        def delete(store: KeyStore) -> None:
            with contextlib.suppress(LookupError):  # another request has deleted it
                store.revoke(name)

        await change_store(self._service, person, delete)
        return Response(status_code=204)

    async def _rotate_key(self, asked: HttpAsked, person: Person) -> Any:
        name = asked.path_params["name"]
        given = await read_body(asked, Rotation)
        _need_store(self._service)

        def rotate(store: KeyStore) -> dict[str, Any]:
            key, until = store.rotate(name, timedelta(hours=given.overlap_hours))
            return {"name": name, "key": key, "old_until": until}

        return await change_store(self._service, person, rotate)

    # --- what belongs to keys

    async def _list_teams(self, asked: HttpAsked, person: Person) -> Any:
        teams = await asyncio.to_thread(_need_store(self._service).teams)
        keys = await self._read_keys(person)
        counts = {team.id: sum(key.team == team.id for key in keys) for team in teams}
        shown = [
            {"name": team.id, "budget_usd_month": team.budget_usd_month, "keys": counts[team.id]}
            for team in teams
            if person.team in (None, team.id)
        ]
        return _page(shown, asked)

    async def _put_team(self, asked: HttpAsked, person: Person) -> Any:
        name = asked.path_params["name"]
        given = await read_body(asked, TeamFields)
        text = given.budget_usd_month
        budget = None if text is None else read_money(text)
        _need_store(self._service)
        await change_store(self._service, person, lambda store: store.set_team(name, budget))
        return {"name": name, "budget_usd_month": budget}

    async def _delete_team(self, asked: HttpAsked, person: Person) -> Any:
        name = asked.path_params["name"]
        _need_store(self._service)

        def delete(store: KeyStore) -> None:
            with contextlib.suppress(LookupError):  # another request has deleted it
                store.delete_team(name)

        await change_store(self._service, person, delete)
        return Response(status_code=204)

    async def _list_users(self, asked: HttpAsked, person: Person) -> Any:
        owned: dict[str, list[Key]] = {}
        for key in await self._read_keys(person):
            if key.user is not None:
                owned.setdefault(key.user, []).append(key)
        withdrawn = _need_store(self._service).withdrawn
        if person.team is None:
            owned |= {user: [] for user in withdrawn if user not in owned}
        shown = [
            {
                "name": user,
                "keys": [key.id for key in keys],
                "teams": sorted({key.team for key in keys if key.team is not None}),
                "withdrawn": user in withdrawn,
            }
            for user, keys in sorted(owned.items())
        ]
        return _page(shown, asked)

    async def _put_user(self, asked: HttpAsked, person: Person) -> Any:
        if person.team is not None:
            raise AuthenticationError("only an admin withdraws the access of users", status=403)
        user = asked.path_params["name"]
        given = await read_body(asked, UserFields)
        _need_store(self._service)

        def put(store: KeyStore) -> Sequence[str]:
            if given.withdrawn:
                return store.withdraw(user)
            with contextlib.suppress(LookupError):  # an earlier request has done it
                store.admit(user)
            return ()

        deleted = await change_store(self._service, person, put)
        return {"name": user, "withdrawn": given.withdrawn, "deleted_keys": deleted}

    async def _list_budgets(self, asked: HttpAsked, person: Person) -> Any:
        own = {key.id for key in await self._read_keys(person)} if person.team else None
        found = await self._service.read_budgets()
        shown = [
            {
                "name": f"{budget.account}:{budget.period}",
                "account": budget.account,
                "period": budget.period,
                "limit_usd": budget.limit,
                "left_usd": budget.left,
                "ends_at": budget.ends,
            }
            for budget in found
            if own is None or budget.account in own or budget.account == f"team:{person.team}"
        ]
        return _page(sorted(shown, key=lambda each: each["name"]), asked)

    async def _put_budget(self, asked: HttpAsked, person: Person) -> Any:
        account, period = read_name(asked.path_params["name"])
        usd = read_money((await read_body(asked, BudgetFields)).usd)
        _need_store(self._service)

        def put(store: KeyStore) -> None:
            store.set_budget(account, period, usd)

        await change_store(self._service, person, put)
        return {"name": f"{account}:{period}", "limit_usd": usd}

    async def _delete_budget(self, asked: HttpAsked, person: Person) -> Any:
        account, period = read_name(asked.path_params["name"])
        _need_store(self._service)

        def delete(store: KeyStore) -> None:
            with contextlib.suppress(LookupError):  # its key was revoked
                store.set_budget(account, period, None)

        await change_store(self._service, person, delete)
        return Response(status_code=204)

    async def _reset_budget(self, asked: HttpAsked, person: Person) -> Any:
        account, period = read_name(asked.path_params["name"])
        _need_store(self._service)

        def reset(store: KeyStore) -> datetime:
            return store.reset_budget(account, period)

        began = await change_store(self._service, person, reset)
        return {"name": f"{account}:{period}", "began_at": began}

    async def _list_models(self, asked: HttpAsked, person: Person) -> Any:
        models = self._service.models
        shown = [
            {"name": name, **msgspec.to_builtins(models.list_model(name))}
            for name in models.names()
        ]
        return _page(shown, asked)

    async def _list_changes(self, asked: HttpAsked, person: Person) -> Any:
        if person.team is not None:
            raise AuthenticationError("only admins and viewers read the changes", status=403)
        size = read_size(asked)
        subject = asked.query_params.get("subject")
        before = read_number(asked, "before", 0, 2**53)
        records = await asyncio.to_thread(
            _need_store(self._service).audit, subject, size + 1, before
        )
        more = len(records) > size
        return {"data": records[:size], "next": records[size - 1].seq if more else None}


def _need_store(service: Service) -> KeyStore:
    """Return the key database; raise an error if the keys are in a file."""
    store = find_store(service)
    if store is None:
        raise InvalidRequestError(
            "the keys of this gateway are in a file; its operator can move them to a database",
            status=404,
        )
    return store


async def _describe(service: Service, keys: Sequence[Key]) -> list[dict[str, Any]]:
    """Return the fields of keys, and the names of their budgets of which nothing is left."""
    exhausted = await service.find_exhausted(keys)
    return [{**_show(key), "exhausted": exhausted.get(key.id, [])} for key in keys]


def _show(key: Key) -> dict[str, Any]:
    shown = show_key(key)
    shown["name"] = shown.pop("id")
    return {**shown, "blocked": key.expires is not None and key.expires < date.today()}


def _page(rows: Sequence[Mapping[str, Any]], asked: HttpAsked) -> dict[str, Any]:
    """Return the rows behind ``after``, a name, and the name after which the next page begins."""
    size = read_size(asked)
    after = asked.query_params.get("after", "")
    if len(after) > 2 * MAX_NAME:
        raise InvalidRequestError(f"after: must be at most {2 * MAX_NAME} characters")
    left = sorted([row for row in rows if row["name"] > after], key=lambda row: row["name"])
    more = len(left) > size
    return {"data": left[:size], "next": left[size - 1]["name"] if more else None}
