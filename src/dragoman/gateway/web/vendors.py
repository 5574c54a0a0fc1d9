"""Store the API key of a vendor from the page of ``dragoman ui``, and open the vendor's models.

Only ``dragoman ui`` offers this: it sets ``Service.registry``. A key is accepted from this machine
alone, with the page's own key, and no reply contains it.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request

from ...errors import InvalidRequestError
from ...registry import Registry, load_vendor, store_key, stored_keys, vendor_names
from ...registry.keys import open_keyring
from ...transport.connect import is_loopback
from ..access import Service
from ..models import open_configured


class NewKey(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that stores a vendor's key."""

    vendor: str
    key: str


async def list_vendors(service: Service, request: Request) -> dict[str, Any]:
    """Return the vendors that need a key, where the key of each comes from, and where one goes."""

    def read() -> dict[str, Any]:
        stored = stored_keys()
        vendors = []
        for name in vendor_names():
            vendor = load_vendor(name)
            variable = vendor.api_key_env
            if variable is None or not vendor.chats:
                continue
            source = "environment" if os.environ.get(variable) else stored.get(variable)
            vendors.append(
                {"id": name, "name": vendor.name, "variable": variable, "source": source}
            )
        place = "file" if open_keyring() is None else "keyring"
        return {"vendors": vendors, "place": place}

    return await asyncio.to_thread(read)


async def store_vendor_key(service: Service, request: Request) -> dict[str, Any]:
    """Store a key, and offer the vendor's models in the playground from now on."""
    registry = service.registry
    assert registry is not None
    if request.client is None or not is_loopback(request.client.host):
        raise InvalidRequestError("keys are stored from this machine only")
    try:
        given = msgspec.json.decode(await request.body(), type=NewKey)
    except msgspec.DecodeError:
        raise InvalidRequestError("the request must have a vendor and a key") from None
    if given.vendor not in vendor_names():
        raise InvalidRequestError("no vendor has this name")
    variable = load_vendor(given.vendor).api_key_env
    if variable is None:
        raise InvalidRequestError("this vendor needs no key")
    return await asyncio.to_thread(_store, service, registry, given, variable)


def _store(service: Service, registry: Registry, given: NewKey, variable: str) -> dict[str, Any]:
    place = store_key(variable, given.key.strip())
    names = [name for name in registry.names() if name.startswith(f"{given.vendor}:")]
    opened = open_configured(registry, names)
    service.models.add(opened)
    return {
        "variable": variable,
        "place": place,
        "overridden": bool(os.environ.get(variable)),
        "models": list(opened),
    }
