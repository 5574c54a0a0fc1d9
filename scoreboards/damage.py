"""A server whose replies arrive damaged, as the negative control of a suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Damaged:
    """Serve an application, and change the bytes of its replies.

    The length of a body is left out, because a damage may change it.
    """

    def __init__(self, app: Any, damage: Callable[[bytes], bytes]) -> None:
        self._app = app
        self._damage = damage

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def write(message: Any) -> None:
            if message["type"] == "http.response.start":
                kept = [
                    pair for pair in message["headers"] if pair[0].lower() != b"content-length"
                ]
                message = {**message, "headers": kept}
            elif body := message.get("body"):
                message = {**message, "body": self._damage(body)}
            await send(message)

        await self._app(scope, receive, write)
