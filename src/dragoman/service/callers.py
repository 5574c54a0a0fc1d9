"""Who asks for sessions, and which of them they may see and change: the rights of keys and people."""

from __future__ import annotations

import getpass

from msgspec import Struct
from starlette.requests import Request

from ..errors import AuthenticationError
from ..gateway.access import Caller, Service, read_headers
from ..gateway.people import Person
from ..gateway.unknown_paths import find_codec
from .rows import Row

_NOT_YOURS = "your role does not allow this"


class Asker(Struct, frozen=True, kw_only=True):
    """Who sent a request, and what they may see.

    ``name`` is the name in records. ``owner`` is the id of the key whose sessions are shown, and
    ``None`` for people, who see those of all keys, or of their ``team``. A person other than an
    admin sees no content.
    """

    name: str
    caller: Caller
    owner: str | None = None
    team: str | None = None
    user: str = ""
    sees_content: bool = True

    def sees(self, row: Row) -> bool:
        """Return whether a session is listed."""
        return self.owner in (None, row.owner) and self.team in (None, row.team)

    def check_content(self) -> None:
        """Raise ``AuthenticationError`` if content is not for this role, nor are changes."""
        if not self.sees_content:
            raise AuthenticationError(_NOT_YOURS, status=403)


def find_asker(service: Service, asked: Request) -> Asker:
    """Return who sent a request; raise ``AuthenticationError`` if access is denied."""
    headers = read_headers(asked.scope)
    person = service.find_person(headers)
    if person is not None:
        return describe_person(person)
    front = find_codec(asked.url.path, asked.headers)
    caller = service.identify(asked.scope, headers, front)
    if caller.key is None:
        return Asker(name=f"{getpass.getuser()} on this machine", caller=caller, owner="")
    name = caller.user or f"key {caller.owner}"
    return Asker(name=name, caller=caller, owner=caller.owner, user=caller.user)


def describe_person(person: Person | None) -> Asker:
    """Return a person of the administration; without one, who sits at this machine."""
    nobody = Caller({}, None)
    if person is None:
        return Asker(name=f"{getpass.getuser()} on this machine", caller=nobody)
    own = person.own
    if person.role == "self" and own is not None:  # a person who logged in
        return Asker(
            name=person.name, caller=Caller({}, own), owner=own.id, user=own.user or person.name
        )
    return Asker(
        name=person.name, caller=nobody, team=person.team, user=person.name,
        sees_content=person.role == "admin",
    )  # fmt: skip
