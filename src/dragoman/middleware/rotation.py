"""Key rotation: if a key is rejected or rate limited, the call is sent with the next key."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from ..errors import AuthenticationError, ProviderError, RateLimitError
from ..events import Event
from ..messages import Request
from ..provider import LayerCall, Provider
from .attempts import Attempt
from .layer import Middleware, Wrapper

log = logging.getLogger("dragoman")

REFUSED_SECONDS = 300.0
"""Cool-down of a key after the server rejected it (401, 402, 403), in seconds."""
LIMITED_SECONDS = 30.0
"""Cool-down of a key after a 429 without Retry-After, in seconds."""


class KeyRotation(Wrapper[Provider], Middleware[Provider]):
    """Several providers for the same model that differ only in their keys.

    A call uses the key that served the previous call. If the server replies with 401, 402, 403 or
    429 before the first event, the call is sent with the next key; each key is used at most once
    per call. A key that failed is not used again until its ``retry_after`` has passed. This is not
    a retry, since each attempt uses another key. If all keys fail, the last error is raised.
    """

    def __init__(
        self, providers: Sequence[Provider], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not providers:
            raise ValueError("KeyRotation: providers is empty; give one for each key")
        if len({(each.name, each.model) for each in providers}) > 1:
            raise ValueError("KeyRotation: providers must be of one name and model")
        super().__init__(providers[0])
        self._providers = tuple(providers)
        self._clock = clock
        self._current = 0
        self._until = [0.0] * len(self._providers)

    def parts(self) -> tuple[Provider, ...]:
        return self._providers

    def settings(self) -> Mapping[str, Any]:
        return {"keys": len(self._providers)}

    async def serve(
        self, request: Request, served: LayerCall
    ) -> AsyncGenerator[list[Event], None]:
        order = self._order()
        for number in order:
            provider = self._providers[number]
            visible = False
            attempt = Attempt(provider, request)
            if number != order[0]:
                served.record(None, attempt.start())
            served.reply = attempt.reply = reply = provider.open(request)
            try:
                async with aclosing(reply):
                    while batch := await reply.next():
                        visible = True
                        yield batch
                self._current = number
                return
            except (AuthenticationError, RateLimitError) as error:
                if visible:
                    raise
                self._rest(number, error)
                if number == order[-1]:
                    raise
                served.record(reply, attempt.fail(error))

    async def ready(self) -> None:
        await self._providers[self._order()[0]].ready()

    async def close(self) -> None:
        for provider in self._providers:
            await provider.close()

    # --- private methods of the key rotation

    def _order(self) -> list[int]:
        """Return the indices of the usable keys, the current key first.

        If all keys are cooling down, return only the key that becomes usable first.
        """
        count = len(self._providers)
        now = self._clock()
        turned = [(self._current + step) % count for step in range(count)]
        usable = [number for number in turned if self._until[number] <= now]
        return usable or [min(turned, key=lambda number: self._until[number])]

    def _rest(self, number: int, error: ProviderError) -> None:
        seconds = REFUSED_SECONDS
        if isinstance(error, RateLimitError):
            seconds = LIMITED_SECONDS if error.retry_after is None else max(0.0, error.retry_after)
        self._until[number] = self._clock() + seconds
        log.warning(
            "%s/%s: key %d of %d is not used for %.0f s (%s)",
            self.name, self.model, number + 1, len(self._providers), seconds, error.error_class,
        )  # fmt: skip
