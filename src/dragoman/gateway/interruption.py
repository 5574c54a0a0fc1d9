"""Cancel the task of a request when its client disconnects or a timeout passes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ..errors import OverloadedError, ProviderError, TimedOutError
from ..transport.clock import Alarm

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Notify = Callable[[Callable[[], None] | None], None]

DISCONNECT = "dragoman.disconnect"
"""The ASGI extension of the gateway's own server: register a function to call on disconnection."""
DRAIN = "dragoman.drain"
"""The same for a WebSocket: register a function to call when the server shuts down."""


class GoneError(Exception):
    """Raised when the client has disconnected, so that no reply can be sent."""


class Interruption:
    """What may interrupt the current task: a client that disconnects, or a timeout.

    The task receives a ``CancelledError``; ``undo`` returns whether this object caused it.
    """

    _is_gone = False  # whether the client has disconnected
    _is_late = False  # whether the timeout has passed
    _watcher: asyncio.Future[None] | None = None

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive) -> None:
        self._task = asyncio.current_task()
        self._notify: Notify | None = scope.get("extensions", {}).get(DISCONNECT)
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._loop)

    def set_timeout(self, seconds: float) -> None:
        """Interrupt the task after some seconds, unless ``clear_timeout`` is called."""
        self._alarm.set(self._loop.time() + seconds, self._expire)

    def clear_timeout(self) -> None:
        """Remove the timeout."""
        self._alarm.release()

    def watch(self, seconds: float) -> None:
        """Interrupt the task when the client disconnects, or after some seconds.

        The gateway's own server calls a function then. With another server, a task waits for the
        message of a disconnection: this takes a sixth of the CPU time of a request.
        """
        if self._notify is not None:
            self._notify(self._leave)
        else:
            self._watcher = asyncio.ensure_future(self._wait())
        self.set_timeout(seconds)

    def stop(self) -> None:
        """Remove the timeout, and stop waiting for the client to disconnect."""
        self._alarm.release()
        if self._notify is not None:
            self._notify(None)
        if self._watcher is not None:
            self._watcher.cancel()

    def undo(self) -> bool:
        """Undo the cancellation of the task; return ``False`` if the server cancelled the task."""
        if self._task is None or not (self._is_gone or self._is_late):
            return False
        self._task.uncancel()
        return True

    def explain(self) -> ProviderError:
        """Undo the cancellation of a call; return its reason, or raise ``GoneError``."""
        if not self.undo():
            return OverloadedError("the gateway is shutting down", retry_after=1)
        if self._is_gone:
            raise GoneError
        return TimedOutError("the reply took longer than this gateway allows", which="total")

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        self._is_gone = True
        if self._task is not None:
            self._task.cancel()

    def _expire(self) -> None:
        self._is_late = True
        if self._task is not None:
            self._task.cancel()
