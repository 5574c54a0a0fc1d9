"""Parse the limits in ``models.yaml``: rate limits, deadlines, retries and connections."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from ..middleware import Thresholds
from ..transport import Timeouts
from ..transport.clock import MAX_SECONDS
from ..validate.yaml import Section
from .pools import Connection

_TIMEOUTS = Timeouts.__struct_fields__

_Rate: TypeAlias = Annotated[
    float | None, Meta(ge=0.001, le=1e12, description="a positive number")
]

Retries: TypeAlias = Annotated[int, Meta(ge=0, le=100, description="between 0 and 100")]


class RateLimits(Struct, frozen=True):
    """Rate limits per minute and the limit of concurrent calls; ``None`` means unlimited."""

    requests_per_minute: _Rate = None
    tokens_per_minute: _Rate = None
    max_concurrency: Annotated[
        int | None, Meta(ge=1, le=1e12, description="a positive number")
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the limits that are set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def read_rate_limit(section: Section) -> RateLimits | None:
    """Read the ``rate_limit:`` section."""
    inner = section.inner("rate_limit")
    if inner is None:
        return None
    found = inner.values(RateLimits)
    if not inner.data:
        section.complain(
            "needs one of requests_per_minute, tokens_per_minute, max_concurrency", "rate_limit"
        )
    return RateLimits(**found) if found else None


def read_timeouts(section: Section) -> dict[str, float | None] | None:
    """Read ``timeouts:``: a mapping of the four deadlines, or a number, which sets ``total``."""
    given = section.take("timeouts")
    if given is None:
        return None
    if isinstance(given, int | float) and not isinstance(given, bool):
        return {"total": _check_seconds(section, "timeouts", given)}
    inner = section.enter("timeouts", given)
    inner.allow(*_TIMEOUTS)
    found: dict[str, float | None] = {}
    for name in _TIMEOUTS:
        if inner.data.get(name) == "none":
            found[name] = None
            continue
        value = inner.get(name, (int, float))
        if value is not None:
            found[name] = _check_seconds(inner, name, value)
    return found


def _check_seconds(section: Section, name: str, value: float) -> float | None:
    if not 0 < value <= MAX_SECONDS:
        problem = f"must be a positive number of seconds up to {MAX_SECONDS:g}, or none"
        section.complain(problem, name)
        return None
    return float(value)


def read_thresholds(root: Section) -> Thresholds:
    """Read the ``availability:`` section: the thresholds of the circuit breaker."""
    section = root.section("availability")
    found = Thresholds()
    for name, value in section.values(Thresholds).items():
        try:
            found = replace(found, **{name: value})
        except ValueError as error:
            section.complain(str(error).partition(f"{name} ")[2], name)
    return found


def read_connection(section: Section) -> Connection:
    """Read ``proxy:``, ``ca:`` and ``client_cert:``.

    Relative paths start at the folder of ``models.yaml``.
    """
    proxy = section.get("proxy", str, "env")
    ca = _read_path(section, "ca")
    given = section.take("client_cert")
    cert = key = None
    if isinstance(given, str | None):
        cert = _read_path(section, "client_cert")
    else:
        inner = section.enter("client_cert", given)
        inner.allow("cert", "key")
        cert = _read_path(inner, "cert")
        key = _read_path(inner, "key")
        if cert is None and "cert" not in inner.data:
            section.complain("needs cert", "client_cert")
    connection = Connection(proxy, ca, cert, key)
    _try_connection(section, connection)
    return connection


def _read_path(section: Section, name: str) -> str | None:
    given = section.get(name, str)
    if given is None:
        return None
    path = Path(section.path).parent / Path(given).expanduser()
    if not path.is_file():
        section.complain(f"the file {path} does not exist", name)
        return None
    return str(path)


def _try_connection(section: Section, connection: Connection) -> None:
    """Report an unusable proxy or certificate when ``models.yaml`` is read, before any call."""
    if connection == Connection():
        return
    try:
        if connection.ca is not None:
            ssl.create_default_context(cafile=connection.ca)
        connection.make_transport()
    except (ssl.SSLError, OSError) as error:
        reason = (
            getattr(error, "reason", None)
            or getattr(error, "strerror", None)
            or type(error).__name__
        )
        wrong = "ca" if "ca" in section.data and connection.client_cert is None else "client_cert"
        section.complain(f"cannot be used: {reason}", wrong)
    except ValueError as error:
        section.complain(str(error).removeprefix("proxy: "), "proxy")
