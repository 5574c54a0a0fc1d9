"""List the models that local servers currently serve."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from ..capabilities import Capabilities
from ..errors import ProviderError
from ..events import read_json
from ..transport import HttpTransport, Secret, Timeouts
from ..wire import CODECS, HttpRequest
from ..wire.urls import join_url, root_of
from .adapters import Adapter

_MAX_NAME = 200


class ServedModels(Struct, frozen=True):
    """The models that an adapter's server lists, or the reason why it lists none."""

    adapter: Adapter
    models: tuple[str, ...] = ()
    problem: str | None = None


async def list_served(adapters: Iterable[Adapter], seconds: float = 1.0) -> list[ServedModels]:
    """Query the servers of all adapters concurrently for their models, for at most ``seconds``."""
    transport = HttpTransport()
    try:
        return list(
            await asyncio.gather(*[_ask(adapter, transport, seconds) for adapter in adapters])
        )
    finally:
        await transport.close()


async def _ask(adapter: Adapter, transport: HttpTransport, seconds: float) -> ServedModels:
    base_url = adapter.base_url or ""
    try:
        codec = CODECS[adapter.wire].connect("m", base_url, None, Capabilities())
        own = getattr(codec, "common_list_path", "")
        url = root_of(base_url) + own if own else join_url(base_url, "/models", default="/v1")
        key = adapter.key()
        credentials = (
            {name: Secret(value) for name, value in codec.authorise(key).items()} if key else {}
        )
        request = HttpRequest("GET", url, {"accept": "application/json"})
        async with asyncio.timeout(seconds):
            reply = await transport.exchange(
                request, credentials, Timeouts(seconds, seconds, seconds, seconds)
            )
        if reply.status != 200:
            return ServedModels(adapter, problem=f"HTTP {reply.status}")
        return ServedModels(adapter, tuple(_names(read_json(reply.body))))
    except ProviderError as error:
        return ServedModels(adapter, problem=error.message)
    except TimeoutError:
        return ServedModels(adapter, problem=f"no response within {seconds:g} s")
    except ValueError:
        return ServedModels(adapter, problem="its list of models cannot be read")


def _names(data: Any) -> list[str]:
    """Return the names in a model list: each ``id`` in ``data``, or ``name`` in ``models``."""
    listed = data.get("data", data.get("models")) if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise ValueError("not a list of models")
    names = [each.get("id") or each.get("name") for each in listed if isinstance(each, dict)]
    return [
        name
        for name in names
        if isinstance(name, str) and name.isprintable() and 0 < len(name) <= _MAX_NAME
    ]
