"""The record of who read the content of a gateway's log on the pages."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import msgspec
from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from ...errors import scrub
from ..access import Service
from ..administration import change_store, find_store
from ..people import Person
from .keys import PERSON

log = logging.getLogger("dragoman")
access = logging.getLogger("dragoman.access")

_AGAIN_SECONDS = 3600.0
_MOST = 10_000  # readings that a process remembers
_LONGEST = 200  # characters of a session in a record

Check = Callable[[Scope], tuple[int, str] | None]


class NotedReading:
    """Add an audit record before a person reads the records of a session, once in an hour.

    ``check`` returns why a request is refused, and finds the person. Without a database of keys,
    the access log gets a line. If a record cannot be written, ``refuse`` answers the request.
    """

    def __init__(
        self,
        service: Service,
        viewer: ASGIApp,
        check: Check,
        refuse: Callable[[int, str], ASGIApp],
    ) -> None:
        self._service = service
        self._viewer = viewer
        self._check = check
        self._refuse = refuse
        self._noted: dict[tuple[str, str], float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._viewer
        is_allowed = scope["type"] == "http" and self._check(scope) is None
        person = scope.get(PERSON)
        for session in QueryParams(scope.get("query_string", b"")).getlist("session"):
            if is_allowed and isinstance(person, Person):
                try:
                    await self._note(person, session[:_LONGEST])
                except (
                    Exception
                ) as error:  # the SQLite and PostgreSQL drivers raise different ones
                    log.warning("a reading cannot be recorded: %s", scrub(str(error)))
                    answer = self._refuse(
                        503, "it cannot be recorded that you read this; try later"
                    )
        await answer(scope, receive, send)

    async def _note(self, person: Person, session: str) -> None:
        now = time.monotonic()
        key = person.name, session
        if now - self._noted.get(key, -math.inf) < _AGAIN_SECONDS or not session.isprintable():
            return
        if find_store(self._service) is None:
            line = {"type": "gateway.read", "person": person.name, "session": session}
            access.info("%s", msgspec.json.encode(line).decode())
        else:
            await change_store(self._service, person, lambda store: store.note_reading(session))
        if len(self._noted) >= _MOST:
            self._noted.clear()
        self._noted[key] = now
