"""The webhooks in ``models.yaml``: where a gateway sends alerts about budgets.

::

    webhooks:
      finance:
        url: https://finance.example.com/hooks/dragoman
        secret_env: DRAGOMAN_WEBHOOK_SECRET
        at: [80, 100]
      channel:
        format: slack
        url_file: /run/secrets/slack-url
"""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

from ..transport.connect import is_loopback
from ..validate.yaml import Section

_SHARES = (50, 80, 100)
_PREFIX = "whsec_"
# Standard Webhooks 1.0.0 (github.com/standard-webhooks, 2026-11-19): a secret has 24 to 64 bytes.
_LEAST = 24
_LONGEST = 64
_FORMATS = ("standard", "slack")


class Webhook(Struct, frozen=True, kw_only=True):
    """An address to which alerts are sent; ``at`` are the shares of a budget in percent.

    The format ``standard`` is signed with ``secret`` as Standard Webhooks describes it. The
    address of the format ``slack`` is a secret itself.
    """

    name: str
    url: str
    secret: bytes = b""
    format: Literal["standard", "slack"] = "standard"
    at: tuple[int, ...] = _SHARES

    def __repr__(self) -> str:
        return f"Webhook(name={self.name!r}, format={self.format!r}, at={self.at!r})"


def read_webhooks(root: Section) -> tuple[Webhook, ...]:
    """Read the ``webhooks:`` section; a webhook with mistakes is left out."""
    found = [_read_webhook(name, each) for name, each in root.section("webhooks").sections()]
    return tuple([each for each in found if each is not None])


def _read_webhook(name: str, section: Section) -> Webhook | None:
    section.allow("format", "url", "url_env", "url_file", "secret_env", "secret_file", "at")
    chosen = section.get("format", str, "standard")
    if chosen not in _FORMATS:
        section.complain(f"must be one of {', '.join(_FORMATS)}", "format")
        return None
    url = section.get("url", str) or _read_value(section, "url")
    if url is None:
        section.complain("needs one of url, url_env and url_file with a value", "url")
        return None
    problem = _find_problem(url, chosen)
    if problem is not None:
        section.complain(problem, "url")
        return None
    secret = b""
    if chosen == "standard":
        try:
            secret = _read_secret(_read_value(section, "secret"))
        except ValueError as error:
            section.complain(str(error))
            return None
    given = section.get("at", list)
    shares = _SHARES if given is None else tuple(given)
    if not shares or any(type(each) is not int or not 1 <= each <= 1000 for each in shares):
        section.complain("must be a list of percentages from 1 to 1000, such as [50, 80]", "at")
        return None
    return Webhook(name=name, url=url, secret=secret, format=chosen, at=tuple(sorted(set(shares))))


def _read_value(section: Section, name: str) -> str | None:
    """Return the value of the variable or the file that a setting names."""
    variable = section.get(f"{name}_env", str)
    if variable is not None:
        value = os.environ.get(variable)
        if value is None:
            section.complain(f"the variable {variable} is not set", f"{name}_env")
        return value
    path = section.get(f"{name}_file", str)
    if path is None:
        return None
    try:
        return (Path(section.path).parent / Path(path).expanduser()).read_text().strip()
    except (OSError, ValueError):
        section.complain(f"the file {path} cannot be read", f"{name}_file")
        return None


def _find_problem(url: str, chosen: str) -> str | None:
    """Return why alerts cannot be sent to an address; never the address, which may be a secret."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        host = None
        parts = urlsplit("")
    if not host or parts.scheme not in ("https", "http") or parts.username is not None:
        return "must be an address such as https://example.com/hook, without a user name"
    if chosen == "slack" and parts.scheme == "http" and not is_loopback(host):
        return "must begin with https://, since the address is a secret"
    return None


def _read_secret(text: str | None) -> bytes:
    """Return the bytes of a secret; raise ``ValueError`` without the secret if it is not one."""
    if text is None:
        raise ValueError("needs secret_env or secret_file, with which alerts are signed")
    try:
        secret = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not _LEAST <= len(secret) <= _LONGEST:
        raise ValueError(
            f"the secret must be {_PREFIX} and {_LEAST} to {_LONGEST} bytes in base64, as "
            f"`echo {_PREFIX}$(openssl rand -base64 32)` prints it"
        )
    return secret
