"""``awaited``: make a method's calls explain themselves where ``await`` was forgotten."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

_Method = TypeVar("_Method", bound=Callable[..., Coroutine[Any, Any, Any]])

# Python 3.12 and later can mark a function that returns a coroutine as a coroutine function.
_mark: Callable[[Any], Any] = getattr(inspect, "markcoroutinefunction", lambda function: function)


def awaited(method: _Method) -> _Method:
    """Return a coroutine method whose result raises a clear error if it is used without ``await``.

    Python's own error is ``'coroutine' object has no attribute 'text'``.
    """

    @functools.wraps(method)
    def call(*args: Any, **settings: Any) -> Any:
        return PendingCall(method(*args, **settings), method.__name__)

    marked: Any = _mark(call)
    return marked  # type: ignore[no-any-return]


class PendingCall(Coroutine[Any, Any, Any]):
    """The coroutine of a call. It can be awaited, or be run as a task; nothing else."""

    __slots__ = ("__weakref__", "_coroutine", "_name")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], name: str) -> None:
        self._coroutine = coroutine
        self._name = name

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __repr__(self) -> str:
        return f"<{self._name}() was not awaited; write await ...{self._name}(...)>"

    # Type checkers find these mistakes by themselves, if they do not see these methods.
    if not TYPE_CHECKING:

        def __getattr__(self, name):
            # asyncio and debuggers read the frame and the name of a task's coroutine
            if name.startswith(("cr_", "__")):
                return getattr(self._coroutine, name)
            raise AttributeError(
                f"{self._name}() was not awaited, so there is no {name!r} yet; "
                f"write (await ...{self._name}(...)).{name}"
            )

        def __getitem__(self, key):
            raise TypeError(f"{self._name}() was not awaited; write await ...{self._name}(...)")

        def __iter__(self):
            raise TypeError(f"{self._name}() was not awaited; write await ...{self._name}(...)")

        def __aiter__(self):
            raise TypeError(
                f"{self._name}() returns one result: await it; "
                "the events of a reply are yielded by stream()"
            )
