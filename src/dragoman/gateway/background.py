"""Background responses: the client receives an id at once and fetches the answer later."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec

from ..errors import OverloadedError, RateLimitError
from .store import ResponseStore
from .stored_responses import RESPONSE, new_id, new_response

log = logging.getLogger("dragoman")

MAX_RUNNING = 100
"""The maximum number of background responses per key in one process."""
PAUSE_SECONDS = 2.0
"""The pause before the end of a response is stored again."""

Serve = Callable[
    [MutableMapping[str, Any], Callable[..., Any], Callable[..., Any], str], Awaitable[None]
]


def is_background(fields: Mapping[str, Any]) -> bool:
    """Return whether a request asks for a response that is generated in the background."""
    return fields.get("background") is True and fields.get("stream") is not True


class Background:
    """Generate responses in background tasks, so that clients need not stay connected."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._stopped: set[str] = set()

    async def start(
        self, scope: Mapping[str, Any], fields: Mapping[str, Any], owner: str, serve: Serve
    ) -> dict[str, Any]:
        """Start to generate a response; return a response object that has an id but no answer."""
        if sum([key[0] == owner for key in self._tasks]) >= MAX_RUNNING:
            raise RateLimitError(
                f"{MAX_RUNNING} responses are under way in the background", retry_after=5
            )
        made = new_response(new_id("resp"), fields, "queued")
        await self._put(owner, made)
        key = (owner, made["id"])
        # the extensions of the server concern the connection, which may end before the response
        absent = {**scope, "extensions": {}}
        self._tasks[key] = asyncio.ensure_future(
            self._run(absent, dict(fields), owner, made, serve)
        )
        self._tasks[key].add_done_callback(lambda _: self._tasks.pop(key, None))
        return made

    async def cancel(self, owner: str, response_id: str) -> None:
        """Stop generating a response, if this process generates it."""
        task = self._tasks.get((owner, response_id))
        if task is not None:
            self._stopped.add(response_id)
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        """Stop all background responses, and store each of them as cancelled."""
        tasks = list(self._tasks.values())
        self._stopped.update([name for _, name in self._tasks])
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=10)

    async def _run(
        self,
        scope: dict[str, Any],
        fields: dict[str, Any],
        owner: str,
        made: dict[str, Any],
        serve: Serve,
    ) -> None:
        del fields["background"]
        client = _Absent(msgspec.json.encode(fields))
        try:
            await serve(scope, client.receive, client.send, made["id"])
            # a cancelled request replies with an error status, like a failed one
            if client.status != 200 and made["id"] in self._stopped:
                await self._end(owner, {**made, "status": "cancelled"})
            elif client.status != 200:
                await self._end(owner, {**made, "status": "failed", "error": client.read_error()})
        except asyncio.CancelledError:
            with contextlib.suppress(OverloadedError):
                await self._put(owner, {**made, "status": "cancelled"})
            raise
        except Exception:
            log.exception("a response in the background failed")
            # otherwise its client would ask for the end of the response for ever
            await self._end(owner, {**made, "status": "failed", "error": client.read_error()})
        finally:
            self._stopped.discard(made["id"])

    async def _end(self, owner: str, response: dict[str, Any]) -> None:
        """Store how a response ended; repeat this while the store cannot be used."""
        while True:
            try:
                return await self._put(owner, response)
            except OverloadedError as error:
                log.warning("the end of %s is not stored yet: %s", response["id"], error)
                await asyncio.sleep(PAUSE_SECONDS)

    async def _put(self, owner: str, response: dict[str, Any]) -> None:
        record = {"response": response, "input": []}
        await self._store.put(owner, [(RESPONSE, response["id"], record)])


class _Absent:
    """Act as the client of a background request: provide the body, and stay connected."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._reply: list[bytes] = []
        self.status = 0

    async def receive(self) -> dict[str, Any]:
        """Return the request body on the first call; block on every later call."""
        body, self._body = self._body, None
        if body is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Mapping[str, Any]) -> None:
        """Collect a part of the reply that the application sends."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self._reply.append(message.get("body", b""))

    def read_error(self) -> dict[str, Any]:
        """Return the error that the collected reply contains."""
        try:
            record = msgspec.json.decode(b"".join(self._reply))["error"]
            return {"code": "server_error", "message": str(record["message"])}
        except (msgspec.DecodeError, KeyError, TypeError):
            return {"code": "server_error", "message": "the response could not be made"}
