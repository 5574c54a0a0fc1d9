"""Open providers for frameworks whose code manages neither event loops nor connections."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import cached_property
from typing import Any, Generic, Self, TypeVar
from weakref import WeakKeyDictionary

from ..blocking import SyncProvider, close_soon
from ..provider import Model, Provider, connect

ModelT = TypeVar("ModelT", bound=Model)
BlockingT = TypeVar("BlockingT")


class Opened(Generic[ModelT, BlockingT]):
    """A provider or an embedder that is opened for each event loop, and once for blocking calls.

    The connections of a model belong to the loop that opened them, and are closed when the loop
    shuts down. Frameworks call the same model from several loops, for example by ``asyncio.run``
    once per request. The caller's ``own`` model is used as it is.
    """

    def __init__(
        self,
        open_model: Callable[[], ModelT],
        block: Callable[[ModelT], BlockingT],
        own: ModelT | None = None,
    ) -> None:
        self._open = open_model
        self._block = block
        self._own = own
        self._opened: WeakKeyDictionary[asyncio.AbstractEventLoop, ModelT] = WeakKeyDictionary()
        self._held: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None]] = (
            WeakKeyDictionary()
        )

    def __deepcopy__(self, memo: object) -> Self:
        """Share the connections: frameworks copy what refers to a model, such as a DSPy program."""
        return self

    async def get(self) -> ModelT:
        """Return the model that belongs to the running event loop."""
        if self._own is not None:
            return self._own
        loop = asyncio.get_running_loop()
        if loop not in self._opened:
            self._opened[loop] = model = self._open()
            # ``asyncio.run`` closes open asynchronous generators at its end, and closing this
            # generator closes the model.
            self._held[loop] = held = _close_at_the_end(model)
            await anext(held)
        return self._opened[loop]

    @cached_property
    def blocking(self) -> BlockingT:
        """The model for blocking calls; its connections are closed when it is garbage-collected."""
        if self._own is not None:
            return self._block(self._own)
        model = self._open()
        blocking = self._block(model)
        weakref.finalize(blocking, close_soon, model).atexit = False
        return blocking


async def _close_at_the_end(model: Model) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await model.close()


def open_named(
    model: str | Provider, connection: Mapping[str, Any]
) -> tuple[str, Opened[Provider, SyncProvider]]:
    """Return a model and its name; open the model if the caller gave only a name."""
    if isinstance(model, Provider):
        return model.model, Opened(lambda: model, SyncProvider, model)
    return model, Opened(lambda: connect(model, **connection), SyncProvider)
