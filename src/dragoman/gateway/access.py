"""What every request of a gateway meets: its bounds, its keys, and the question who is asking."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from msgspec import Struct

from ..errors import AuthenticationError
from .keys import Key, KeyRing
from .ledger import Ledger, LedgerWriter
from .metrics import Metrics
from .models import Models


class Bounds(Struct, frozen=True):
    """What one process allows its clients: bytes, seconds and numbers of requests and connections.

    The fields from ``head_bytes`` on are kept by ``dragoman serve``; another ASGI server has its own.
    """

    body_bytes: int = 32 * 1024 * 1024
    body_seconds: float = 30.0
    reply_seconds: float = 900.0
    in_flight: int = 10_000
    head_bytes: int = 64 * 1024
    head_seconds: float = 15.0
    headers: int = 100
    trailer_bytes: int = 8 * 1024
    pipelined: int = 8  # requests that wait on one connection while another is answered
    write_seconds: float = 20.0  # in which a client must take 64 KiB of its reply, or the rest of it
    connections: int = 4096
    connections_per_peer: int = 2048


class Service:
    """What the routes share: the models, who may use them, and what has been used."""

    def __init__(
        self, models: Models, keys: KeyRing | None, ledger: Ledger, bounds: Bounds, *, counts: bool, check_host: bool
    ) -> None:
        self.models = models
        self.keys = keys
        self.ledger = LedgerWriter(ledger)
        self.counts = counts  # or each worker would count for itself
        self.bounds = bounds
        self.metrics = Metrics()
        self.draining = False
        self._check_host = check_host

    def identify(self, headers: Mapping[str, str], presented: str | None) -> Key | None:
        """Whose request this is; ``AuthenticationError`` if it may not be here at all."""
        if self.keys is not None:
            key = self.keys.find(presented)
            if key is None:
                raise AuthenticationError("no key, or one that is not known here")
            return key
        # Without keys only this machine is served, and not to web pages: a page's name can be made to mean this
        # address, and its scripts can post here, but its requests still say where they come from.
        if self._check_host and not is_loopback(_host_of(headers.get("host", ""))):
            raise AuthenticationError("this gateway has no keys and answers to its loopback address only", status=403)
        if self._check_host and "origin" in headers and not is_loopback(_host_of(headers["origin"])):
            raise AuthenticationError("this gateway has no keys and answers to no web page", status=403)
        return None


def _host_of(value: str) -> str:
    """The host in a ``Host`` or ``Origin`` header, without scheme and port."""
    host = value.rpartition("://")[2]
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Does this name or address mean the machine itself?"""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
