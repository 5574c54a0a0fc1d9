"""Providers for code that manages neither an event loop nor connections, as frameworks expect of a model."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable
from weakref import WeakKeyDictionary

from ..provider import Provider
from ..sync import SyncProvider, close_soon


class PerLoop:
    """Opens a provider for each event loop that calls it, and closes it when the loop shuts down.

    The connections of a provider belong to the loop that opened them. Frameworks call the same model from several
    loops, for example by ``asyncio.run`` once per request.
    """

    def __init__(self, open_provider: Callable[[], Provider]) -> None:
        self._open = open_provider
        self._opened: WeakKeyDictionary[asyncio.AbstractEventLoop, Provider] = WeakKeyDictionary()
        self._held: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None]] = WeakKeyDictionary()

    async def get(self) -> Provider:
        """Return the provider of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._opened:
            self._opened[loop] = provider = self._open()
            # ``asyncio.run`` closes open asynchronous generators when it ends; closing this one
            # closes the provider.
            self._held[loop] = held = _close_at_the_end(provider)
            await anext(held)
        return self._opened[loop]


async def _close_at_the_end(provider: Provider) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await provider.close()


def open_blocking(provider: Provider) -> SyncProvider:
    """Return a provider whose calls block, and that is closed when it is garbage-collected."""
    blocking = SyncProvider(provider)
    weakref.finalize(blocking, close_soon, provider).atexit = False
    return blocking
