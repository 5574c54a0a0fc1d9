"""``Sessions``: the service as a part of a gateway, which gives it its keys, its limits and its pages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from starlette.routing import BaseRoute

from .. import log as logs
from ..errors import InvalidModelError, ProviderError, scrub
from ..gateway.access import Service
from ..gateway.operations import Operation
from ..gateway.people import Person
from ..provider import Provider
from ..registry import Registry
from .agents import Agent, check_agents, check_at_once
from .callers import describe_person
from .charged import ChargedModel, find_caller
from .chats import Chats
from .handlers import Handlers
from .operations import CHATS, OPERATIONS
from .page import answer_page, read_page
from .rows import Origin, Rows
from .runner import Runner

log = logging.getLogger("dragoman")

_SWEEP_SECONDS = 2.0  # between two looks for answers that another process gave


class Sessions:
    """Agents, and the log with their sessions, for ``create_app(..., sessions=...)``.

    ::

        sessions = Sessions({"support": Agent("fast", [refund], policy)}, SqliteLog("sessions.db"))
        app = create_app({"fast": model}, keys=keys, sessions=sessions)

    ``log`` is open for writing, and only this process writes to a log in SQLite. ``at_once`` is
    how many sessions run at the same time; those that wait do not count. When the application
    starts, the sessions go on that ran when it ended. An application that is mounted in another
    one begins with its first request, since no server starts it: ``async with sessions`` in the
    other one's lifespan begins at once.
    """

    operations: Sequence[Operation] = (*OPERATIONS, *CHATS)

    def __init__(
        self, agents: Mapping[str, Agent], log: logs.EventLog, *, at_once: int = 100
    ) -> None:
        check_agents(agents)
        check_at_once(at_once)
        self.agents = dict(agents)
        self.log = log
        self._at_once = at_once
        self._rows = Rows(log)
        self._service: Service | None = None
        self._handlers: Handlers | None = None
        self._runner: Runner | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._registry: Registry | None = None
        self._opened: dict[str, Provider] = {}

    # --- what the gateway uses

    def routes(self, service: Service) -> list[BaseRoute]:
        """Return the routes of the service in a gateway."""
        self._service = service
        self._runner = Runner(self.agents, self.log, self._rows, self._open_model, self._at_once)
        self._handlers = Handlers(
            service, self.agents, self.log, self._rows, self._runner, self.start
        )
        return [*self._handlers.routes(), *Chats(self._handlers).routes()]

    async def start(self) -> None:
        """Continue what ran when the service ended, unless that was done."""
        if self._sweeper is None and self._runner is not None:
            self._sweeper = asyncio.create_task(self._sweep(self._runner))
            await self._runner.resume_all()

    async def stop(self) -> None:
        """Stop the sessions that run; they go on at the next start."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._runner is not None:
            await self._runner.stop()
        opened = list(self._opened.values())
        self._opened.clear()
        for model in opened:
            with contextlib.suppress(ProviderError):
                await model.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the service until the end of the block."""
        await self.start()
        try:
            yield
        finally:
            await self.stop()

    async def read_page(self, person: Person | None, query: Mapping[str, str]) -> Any:
        """Return the queue of questions for the web page."""
        assert self._handlers is not None
        return await read_page(self._handlers, describe_person(person), query)

    async def answer_page(self, person: Person | None, body: bytes) -> Any:
        """Record an answer that was given on the web page."""
        assert self._handlers is not None
        return await answer_page(self._handlers, describe_person(person), body)

    # --- the models of sessions

    def _open_model(self, origin: Origin) -> Provider:
        """Return the model of a session, whose calls are charged to the key that started it."""
        service = self._service
        assert service is not None
        caller = find_caller(service, origin.owner)
        caller.check_model(origin.model)
        provider = self._find_model(service, origin)
        served = service.models.resolve(origin.model)
        provider = service.models.guard(provider, served, caller.key)
        return ChargedModel(
            provider, service, origin.model, lambda: find_caller(service, origin.owner)
        )

    def _find_model(self, service: Service, origin: Origin) -> Provider:
        agent = self.agents[origin.agent]
        if isinstance(agent.model, Provider) and origin.model == agent.model_name:
            return agent.model
        name = origin.model
        with contextlib.suppress(InvalidModelError):
            return service.models.find(service.models.resolve(name))
        if name not in self._opened:
            if self._registry is None:
                self._registry = Registry.load(service.config)
            self._opened[name] = self._registry.provider(name)
        return self._opened[name]

    async def _sweep(self, runner: Runner) -> None:
        """Continue sessions whose answers were given by other processes, in the log."""
        stamp = self._read_stamp()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            with contextlib.suppress(logs.LogError):
                latest = await asyncio.to_thread(self._read_stamp)
                if latest != stamp or latest is None:
                    stamp = latest
                    await runner.resume_all()

    def _read_stamp(self) -> object:
        """Return what changes when an answer is stored next to the log; ``None`` if that is unknown."""
        if not isinstance(self.log, logs.SqliteLog):
            return None
        files = [f"{self.log.path.name}.answers{end}" for end in ("", "-wal")]
        found = [self.log.path.with_name(name) for name in files]
        stats = [path.stat() if path.exists() else None for path in found]
        return [None if each is None else (each.st_mtime_ns, each.st_size) for each in stats]

    def __repr__(self) -> str:
        return f"<Sessions of {scrub(', '.join(sorted(self.agents)))}>"
