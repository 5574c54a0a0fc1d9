"""The people who operate a gateway: the keys with which they open the pages, and their roles.

The file of ``--admin`` has one hash, or a line for each person: a name, a role, the team of a
``lead``, and the hash of the person's key::

    ann    admin              sha256:9f86d081...
    bob    viewer             sha256:60303ae2...
    carla  lead    research   sha256:fd61a03a...

- ``admin`` sees and changes everything.
- ``viewer`` reads figures, keys and the bill, but no content, and changes nothing.
- ``lead`` reads the keys and the bill of a team, and creates, limits, rotates and blocks its keys.

People who log in at an identity provider (``dragoman.gateway.login``) have a role too. Most have
``self``: they see and renew their own keys, their own spending and their own limits.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

from .keys import MAX_NAME, Key, hash_key, is_hash

Role: TypeAlias = Literal["admin", "viewer", "lead", "self"]
ROLES: tuple[Role, ...] = get_args(Role)
OPERATORS: frozenset[Role] = frozenset({"admin", "viewer", "lead"})
"""The roles that a line of the file can have: those that see keys of others."""
_ROLES_BY_NAME: dict[str, Role] = {role: role for role in OPERATORS}
CHANGERS: frozenset[Role] = frozenset({"admin", "lead"})
"""The roles that change keys."""
READERS: frozenset[Role] = frozenset({"admin", "viewer"})
"""The roles that read the figures of all keys."""
_WRONG = "must have one line, sha256: and 64 hexadecimal digits, or NAME ROLE [TEAM] HASH on each"


class Person(Struct, frozen=True):
    """A person who may open the pages: a name for audit records, a role, and a lead's team.

    ``own`` is what a person who logged in may do as a caller: the key for which a token stands.
    """

    name: str
    role: Role
    hash: str
    team: str | None = None
    own: Key | None = None

    def sees(self, model: str) -> bool:
        """Return whether the pages show a model; with the role ``self``, those that may be called."""
        return self.role != "self" or self.own is None or self.own.allows(model)


class People:
    """The people of a gateway; ``text`` is the content of the file of ``--admin``."""

    def __init__(self, text: str) -> None:
        lines = [line for line in text.splitlines() if line.strip() and line.lstrip()[0] != "#"]
        self._people = tuple([_read_person(line) for line in lines])
        if not self._people:
            raise ValueError(_WRONG)
        for field in ("name", "hash"):
            values = [getattr(person, field) for person in self._people]
            if len({*values}) < len(values):
                raise ValueError(f"two people have the same {field}")

    def find(self, headers: Mapping[str, str]) -> Person | None:
        """Return the person whose key a request has.

        Only a bearer token counts: a browser repeats a password (Basic) by itself.
        """
        kind, _, value = headers.get("authorization", "").partition(" ")
        digest = hash_key(value.strip())
        found = None
        for person in self._people:
            if hmac.compare_digest(digest, person.hash) and kind.lower() == "bearer":
                found = person
        return found


def _read_person(line: str) -> Person:
    """Return the person of a line; raise ``ValueError`` without the line, which may be a key."""
    *words, digest = line.split()
    if not is_hash(digest):
        raise ValueError(_WRONG)
    if not words:
        return Person("admin", "admin", digest)
    name = words[0]
    role = _ROLES_BY_NAME.get(words[1]) if len(words) > 1 else None
    if role is None or len(name) > MAX_NAME:
        raise ValueError(_WRONG)
    team = words[2] if len(words) == 3 else None
    if len(words) > 3 or (role == "lead") is not (team is not None):
        raise ValueError("only the line of a lead names a team, and it must do so")
    return Person(name, role, digest, team)
