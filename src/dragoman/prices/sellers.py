"""Find the vendor that sells a model at an address."""

from __future__ import annotations

import pkgutil
from functools import cache, lru_cache
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from .billing import PricedAs


@lru_cache(maxsize=256)
def find_seller(base_url: str, model: str) -> PricedAs:
    """Return how a model at an address is priced: by the vendor that the host belongs to.

    Any other host may be a server of your own, which is free, or a proxy, which is not. Its calls
    have no price unless a table has rows for this host, or the caller sets ``priced_as``.
    """
    host = (urlsplit(base_url).hostname or "unknown").lower().replace(":", ".")
    seller = _read_hosts().get(host)
    if seller is not None:
        return PricedAs(f"{seller}:{model}")
    problem = f"{model} at {host} has no known seller; set priced_as to free, or to vendor:model"
    return PricedAs(f"{host}:{model}", unknown=problem)


def name_host(base_url: str) -> str:
    """Return the vendor that an address belongs to; if unknown, return the host and port."""
    parts = urlsplit(base_url)
    return _read_hosts().get(parts.hostname or "") or parts.netloc.rpartition("@")[2].lower()


def find_server(base_url: str) -> str | None:
    """Return the host and port of an address, without credentials; ``None`` if it has no host."""
    parts = urlsplit(base_url)
    if not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or (80 if parts.scheme == 'http' else 443)}"


class _Address(Struct):
    base_url: str | None = None
    local: bool = False


class _Listed(Struct):
    content: _Address


@cache
def _read_hosts() -> dict[str, str]:
    """Map each host in the catalogue to its vendor; leave out local servers."""
    # Avoid importlib.resources: importing it takes a tenth of the time before the first call.
    data = pkgutil.get_data("dragoman", "catalog/compiled.json") or b""
    listed = msgspec.json.decode(data, type=dict[str, _Listed]).items()
    urls = [(vendor, each.content.base_url) for vendor, each in listed if not each.content.local]
    return {host: vendor for vendor, url in urls if url and (host := urlsplit(url).hostname)}
