"""The section ``pass`` of models.yaml: APIs that a gateway passes requests on to as they are."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from msgspec import Struct

from ..transport import Timeouts
from ..validate.yaml import Section
from .limits import read_timeouts

Method: TypeAlias = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
METHODS: tuple[Method, ...] = get_args(Method)
PREFIX = "pass/"
"""The prefix of the names by which keys allow these APIs, such as ``pass/eleven``."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADER = re.compile(r"[a-z0-9-]{1,64}")
_PATTERN = re.compile(r"(?:/(?:[A-Za-z0-9._~!$&'()+,;=:@-]+|\*))*(?:/\*\*)?")
# Headers that frame a message, concern one connection, or identify the client. A vendor may need
# none of them.
_NEVER = frozenset([
    "authorization", "connection", "content-encoding", "content-length", "cookie", "expect", "host",
    "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
    "upgrade", "via", "x-api-key", "x-goog-api-key",
])  # fmt: skip
_MOST_USD = Decimal(10**6)


class Allowed(Struct, frozen=True):
    """A method and a pattern of paths; ``*`` stands for one segment, a last ``**`` for the rest."""

    method: Method
    path: str

    def matches(self, method: str, path: str) -> bool:
        """Return whether a request may be passed on."""
        if method != self.method:
            return False
        wanted = self.path.split("/")
        given = path.split("/")
        if wanted[-1] == "**":
            wanted.pop()
            if len(given) <= len(wanted):
                return False
            given = given[: len(wanted)]
        if len(wanted) != len(given):
            return False
        return all(
            one == other or (one == "*" and other)
            for one, other in zip(wanted, given, strict=True)
        )


class PassThrough(Struct, frozen=True, kw_only=True):
    """An API that requests are passed on to: its address and key, what is allowed, and its price.

    A reply costs ``usd_per_request``, and ``usd_per_unit`` for each unit that the number at
    ``usage_path`` in the reply states.
    """

    name: str
    base_url: str
    allow: tuple[Allowed, ...] = ()
    api_key: str | None = None
    api_key_env: str | None = None
    key_header: str = "authorization"
    send_headers: tuple[str, ...] = ()
    extra_headers: dict[str, str] = {}
    usd_per_request: Decimal | None = None
    usage_path: str | None = None
    usd_per_unit: Decimal | None = None
    timeouts: Timeouts = Timeouts()

    def __repr__(self) -> str:
        return f"PassThrough({self.name!r}, base_url={self.base_url!r})"

    @property
    def is_priced(self) -> bool:
        """Whether the cost of a request is known, so that a key's budget can be kept."""
        return self.usd_per_request is not None or self.usd_per_unit is not None

    def find_key(self) -> str | None:
        """Return the API key, if it is set."""
        if self.api_key is not None or self.api_key_env is None:
            return self.api_key
        return os.environ.get(self.api_key_env) or None

    def allows(self, method: str, path: str) -> bool:
        """Return whether a request may be passed on; the path is that of the URL, undecoded."""
        return any(each.matches(method, path) for each in self.allow)


def read_passes(root: Section) -> tuple[PassThrough, ...]:
    """Read the section ``pass``, and report mistakes by line."""
    found = []
    for name, section in root.section("pass").sections():
        if not _NAME.fullmatch(name):
            section.complain("the name must be 1 to 64 letters, digits, dots, - or _")
        found.append(_read(name, section))
    return tuple(found)


def _read(name: str, section: Section) -> PassThrough:
    section.allow(
        "base_url", "allow", "api_key", "api_key_env", "key_header", "send_headers",
        "extra_headers", "usd_per_request", "usage_path", "usd_per_unit", "timeouts",
    )  # fmt: skip
    base_url = section.get("base_url", str, "")
    if not _is_address(base_url):
        problem = "must be an http:// or https:// URL without a user, a query and a fragment"
        section.complain(problem, "base_url")
    extra = section.section("extra_headers").plain()
    header = section.get("key_header", str, "authorization").lower()
    if not _HEADER.fullmatch(header):
        section.complain("must be the name of a header", "key_header")
    usage_path = section.get("usage_path", str)
    per_unit = _read_price(section, "usd_per_unit")
    if (usage_path is None) != (per_unit is None):
        section.complain("usage_path and usd_per_unit must be given together", "usage_path")
    return PassThrough(
        name=name,
        base_url=base_url.rstrip("/"),
        allow=_read_allowed(section),
        api_key=section.get("api_key", str),
        api_key_env=section.get("api_key_env", str),
        key_header=header,
        send_headers=_read_headers(section, section.texts("send_headers") or (), "send_headers"),
        extra_headers={
            each: str(extra[each]) for each in _read_headers(section, [*extra], "extra_headers")
        },
        usd_per_request=_read_price(section, "usd_per_request"),
        usage_path=usage_path,
        usd_per_unit=per_unit,
        timeouts=Timeouts(**(read_timeouts(section) or {})),
    )


def _read_allowed(section: Section) -> tuple[Allowed, ...]:
    found = []
    texts = section.texts("allow")
    for text in texts or ():
        method, _, path = text.partition(" ")
        known: Method | None = next((each for each in METHODS if each == method), None)
        if known is None or not path or not _PATTERN.fullmatch(path) or _climbs(path):
            problem = (
                f"{text!r} must be a method ({', '.join(METHODS)}) and a path such as "
                "/v1/voices/*; * stands for one segment, and ** at the end for the rest"
            )
            section.complain(problem, "allow")
            continue
        found.append(Allowed(known, path))
    if not texts:
        section.complain("must list what is passed on, such as POST /v1/speech", "allow")
    return tuple(found)


def _climbs(path: str) -> bool:
    return any(segment in (".", "..") for segment in path.split("/"))


def _read_headers(section: Section, names: Sequence[str], setting: str) -> tuple[str, ...]:
    lower = [name.lower() for name in names]
    for name in lower:
        if not _HEADER.fullmatch(name) or name in _NEVER:
            section.complain(f"{name!r} is not a header that can be passed on", setting)
    return tuple(
        [
            name if setting == "send_headers" else given
            for name, given in zip(lower, names, strict=True)
        ]
    )


def _read_price(section: Section, name: str) -> Decimal | None:
    value = section.get(name, (int, float, str))
    if value is None:
        return None
    try:
        price = Decimal(str(value))
    except InvalidOperation:
        price = Decimal(-1)
    if not (price.is_finite() and 0 <= price <= _MOST_USD):
        section.complain(f"must be an amount in US dollars from 0 to {_MOST_USD}", name)
        return None
    return price


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    rest = (parts.query, parts.fragment, parts.username, parts.password)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not any(rest)
