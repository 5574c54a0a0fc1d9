"""Run the sessions of a service: start, continue and cancel them, and resume them after a kill.

A session that waits is not in memory: its answers arrive in the log, and its next run reads them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from weakref import WeakSet

from msgspec import to_builtins

from .. import log as logs
from ..errors import OverloadedError, ProviderError, scrub
from ..events import Event
from ..messages import User
from ..provider import Provider
from ..session import Session, SessionError, cancel_waiting
from ..session.answers import find_answered
from .agents import Agent
from .rows import ORIGIN, STOPPED, Origin, Rows

log = logging.getLogger("dragoman")

_PAUSE_SECONDS = 0.02

Happening: TypeAlias = logs.LogRecord | Event
"""What happens in a session that this process runs: a record, or an event of its model."""


class Feed:
    """What happens in a session from now on, in order, as a queue that its reader empties.

    ``None`` in the queue means that a run has ended. ``since`` is the number of the last record
    before; ``None`` if this process does not run the session.
    """

    def __init__(self, since: int | None) -> None:
        self.since = since
        self.queue: asyncio.Queue[Happening | None] = asyncio.Queue()


class _Run:
    """A session that this process runs.

    ``began`` is resolved once its goal, which has a ``key``, is recorded; ``session`` is set once
    it is opened. ``is_called`` is set if an answer arrives: if it ``waits``, it looks for the
    answer.
    """

    is_called = False
    waits = False
    last = 0  # the number of the last record

    def __init__(self, key: str | None) -> None:
        self.key = key
        self.session: Session[Any] | None = None
        self.task: asyncio.Task[None] | None = None
        self.began: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Runner:
    """Run sessions in tasks of this event loop, at most ``at_once``.

    ``open_model`` returns the provider for a session.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent],
        events: logs.EventLog,
        rows: Rows,
        open_model: Callable[[Origin], Provider],
        at_once: int,
    ) -> None:
        self._agents = agents
        self._log = events
        self._rows = rows
        self._open_model = open_model
        self._at_once = at_once
        self._slots = asyncio.Semaphore(at_once)
        self._runs: dict[str, _Run] = {}
        self._feeds: dict[str, WeakSet[Feed]] = {}
        self._is_stopping = False

    def is_running(self, session: str) -> bool:
        """Return whether this process runs a session."""
        return session in self._runs

    def follow(self, session: str) -> Feed:
        """Return a feed of what happens in a session, until the caller drops it."""
        run = self._runs.get(session)
        feed = Feed(None if run is None else run.last)
        self._feeds.setdefault(session, WeakSet()).add(feed)
        return feed

    # --- starting and continuing sessions

    async def start(self, session: str, origin: Origin, goal: User, key: str | None) -> None:
        """Start a session, or give it another goal; return once the goal is recorded.

        Raise ``OverloadedError`` if too many sessions run, and ``SessionError`` if the session
        runs, or waits for something else.
        """
        known = self._runs.get(session)
        if known is not None and key is not None and known.key == key:
            await self.join(session)  # the client repeats its request
            return
        if known is not None:
            raise SessionError("the session is running; wait for its end, or cancel it")
        if len(self._runs) >= self._at_once or self._is_stopping:
            raise OverloadedError(f"{self._at_once} sessions are running", retry_after=5)
        run = self._launch(session, origin, goal, key)
        assert run.task is not None
        await asyncio.wait({run.task, run.began}, return_when=asyncio.FIRST_COMPLETED)
        if not run.began.done():
            run.task.result()  # raises the error, unless there was nothing to do

    def resume(self, session: str, origin: Origin) -> None:
        """Continue a session in the background; one that runs looks for answers before its end."""
        run = self._runs.get(session)
        if run is not None:
            run.is_called = True
        elif not self._is_stopping:
            self._launch(session, origin, None, None)

    async def join(self, session: str) -> None:
        """Wait until the goal of a session that is being started is recorded."""
        run = self._runs.get(session)
        if run is not None and run.task is not None:
            await asyncio.wait({run.task, run.began}, return_when=asyncio.FIRST_COMPLETED)

    async def cancel(self, session: str, by: str) -> bool:
        """End the current goal of a session; return whether there was one.

        Raise ``LogLockedError`` if another process runs the session.
        """
        reason = f"cancelled by {by}"
        run = self._runs.get(session)
        if run is not None and await _halt(run, reason):
            return True
        if not await asyncio.to_thread(self._rows.has, session):
            return True  # it had no record yet
        return await cancel_waiting(self._log, session, reason)

    async def stop(self) -> None:
        """Stop all sessions; ``resume_all`` continues them at the next start."""
        self._is_stopping = True
        runs = list(self._runs.values())
        await asyncio.gather(*[_halt(run, STOPPED) for run in runs], return_exceptions=True)

    async def resume_all(self) -> None:
        """Continue what ran when the service ended, and what got an answer since."""
        for session in await asyncio.to_thread(self._find_resumable):
            self.resume(session, await asyncio.to_thread(self._rows.find_origin, session))

    def _find_resumable(self) -> list[str]:
        found: list[str] = []
        for session in self._rows.list_ids():
            if session in self._runs:
                continue
            try:
                row = self._rows.find(session)
            except (LookupError, logs.LogError) as error:
                log.warning("the session %s cannot be read: %s", session, scrub(str(error)))
                continue
            if row.agent not in self._agents:
                continue
            if row.status in ("running", "stopped") or (
                row.status == "waiting" and self._has_answer(session, row.agent)
            ):
                found.append(session)
        return found

    def _has_answer(self, session: str, agent: str) -> bool:
        details = self._rows.show(session, self._agents[agent].tools)
        return bool(find_answered(self._log, details.pending))

    # --- the task of a session

    def _launch(self, session: str, origin: Origin, goal: User | None, key: str | None) -> _Run:
        run = self._runs[session] = _Run(key)
        work = self._work(run, session, origin, goal, key)
        run.task = asyncio.create_task(work, name=f"session {session}")
        run.task.add_done_callback(lambda task: self._end(session, origin, task))
        return run

    async def _work(
        self, run: _Run, name: str, origin: Origin, goal: User | None, key: str | None
    ) -> None:
        async with self._slots:
            session = await self._open(run, name, origin)
            if goal is None and session.state.root is not None and not session.state.has_goal:
                # The process was killed after the first record, before the message of the goal.
                goal = User(session.state.goal or "")
                key = origin.key
            run.session = session
            run.last = max(run.last, session.state.last_seq)
            if self._is_stopping:
                return
            outcome = await session.run(goal, key=key)
            # An answer may have arrived after the session looked for it, and before its end.
            while outcome.outcome == "waiting" and not self._is_stopping:
                run.is_called = False
                run.waits = True
                if not await asyncio.to_thread(find_answered, self._log, outcome.pending):
                    return
                run.waits = False
                outcome = await session.run()

    async def _open(self, run: _Run, name: str, origin: Origin) -> Session[Any]:
        agent = self._agents[origin.agent]

        def note(record: logs.LogRecord) -> None:
            run.last = record.seq
            payload = record.payload
            is_goal = isinstance(payload, logs.MessageRecorded) and record.actor == "user"
            if is_goal and not run.began.done():
                run.began.set_result(None)
            self._tell(name, record)

        return await Session.open(
            self._open_model(origin),
            agent.tools,
            agent.policy,
            self._log,
            name,
            system=agent.system,
            budget=agent.limit(origin.limits),
            approve="wait",
            on_record=note,
            on_event=lambda event: self._tell(name, event),
            metadata={ORIGIN: to_builtins(origin)},
            **agent.settings,
        )

    def _end(self, session: str, origin: Origin, task: asyncio.Task[None]) -> None:
        run = self._runs.pop(session)
        self._tell(session, None)
        if not self._feeds.get(session):
            self._feeds.pop(session, None)
        if run.is_called and run.waits:
            self.resume(session, origin)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ProviderError | SessionError | logs.LogLockedError):
            log.info("the session %s stopped: %s", session, scrub(str(error)))
        elif error is not None:
            log.error("the session %s stopped", session, exc_info=error)

    def _tell(self, session: str, news: Happening | None) -> None:
        for feed in self._feeds.get(session, ()):
            feed.queue.put_nowait(news)


async def _halt(run: _Run, reason: str) -> bool:
    """Stop a run, and wait for its end; return whether the session recorded that it was cancelled."""
    assert run.task is not None
    while not run.task.done():
        if run.session is None:
            run.task.cancel()  # it waits for its turn
        elif await run.session.cancel(reason):
            await asyncio.wait({run.task})
            return True
        # A run that is about to begin, or to end, cannot be cancelled at this moment.
        await asyncio.wait({run.task}, timeout=_PAUSE_SECONDS)
    return False
