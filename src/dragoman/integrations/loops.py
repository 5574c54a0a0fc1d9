"""Open providers for frameworks whose code manages neither event loops nor connections."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from ..provider import Model
from ..sync import close_soon

ModelT = TypeVar("ModelT", bound=Model)
BlockingT = TypeVar("BlockingT")


class PerLoop(Generic[ModelT]):
    """Open a provider or an embedder for each event loop, and close it when the loop shuts down.

    The connections of a model belong to the loop that opened them. Frameworks call the same model
    from several loops, for example by ``asyncio.run`` once per request.
    """

    def __init__(self, open_model: Callable[[], ModelT]) -> None:
        self._open = open_model
        self._opened: WeakKeyDictionary[asyncio.AbstractEventLoop, ModelT] = WeakKeyDictionary()
        self._held: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None]] = (
            WeakKeyDictionary()
        )

    async def get(self) -> ModelT:
        """Return the model that belongs to the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._opened:
            self._opened[loop] = model = self._open()
            # ``asyncio.run`` closes open asynchronous generators at its end, and closing this
            # generator closes the model.
            self._held[loop] = held = _close_at_the_end(model)
            await anext(held)
        return self._opened[loop]


async def _close_at_the_end(model: Model) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await model.close()


def open_blocking(model: ModelT, kind: Callable[[ModelT], BlockingT]) -> BlockingT:
    """Wrap a model for blocking calls; close it when the wrapper is garbage-collected."""
    blocking = kind(model)
    weakref.finalize(blocking, close_soon, model).atexit = False
    return blocking
