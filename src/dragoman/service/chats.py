"""Serve the protocols of user interfaces: a thread of a client is a session, and a run is a stream.

A request has a goal, or the answers to what the session waits for; its reply is the stream of the
run. If the client disconnects, the session goes on, and the client can read the run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from .. import log as logs
from ..gateway.pages import read_body
from ..messages import User
from ..session import Pending, SessionError
from ..trace.approval import GivenDecision
from .ag_ui import RunEvents, RunInput, read_resumed
from .bodies import GivenResult, NewGoal
from .callers import Asker
from .following import HEADERS, HEARTBEAT, MEDIA_TYPE
from .handlers import Handlers
from .narration import Narrator, RunEnded, Told
from .operations import CHATS
from .rows import Origin, Row, make_id
from .runner import Feed, Happening
from .ui_messages import ChatInput, SessionChunks

_UI_HEADERS = {**HEADERS, "x-vercel-ai-ui-message-stream": "v1"}
_POLL_SECONDS = 1.0  # between two looks at a session that another process runs
_HEARTBEAT_SECONDS = 15.0

Answer = GivenDecision | GivenResult


class RunWriter(Protocol):
    """How a protocol writes a run: its first objects, those of what happens, and the last ones."""

    def start(self) -> list[dict[str, Any]]:
        """Return the objects that begin the run."""
        ...

    def convert(self, told: Told) -> Iterator[dict[str, Any]]:
        """Yield the objects for what happened."""
        ...

    def finish(self, ended: RunEnded, pending: Sequence[Pending]) -> Iterator[dict[str, Any]]:
        """Yield the objects that end the run."""
        ...


class Chats:
    """The handlers of AG-UI and of UI message streams."""

    def __init__(self, handlers: Handlers) -> None:
        self._its = handlers

    def routes(self) -> list[Route]:
        """Return the routes of the protocols."""
        most = self._its.service.bounds.body_bytes
        return [
            Route(
                each.path,
                self._its.answering(getattr(self, f"_{each.handler}")),
                methods=[each.method],
                max_body_size=most,
            )
            for each in CHATS
        ]

    async def _run_ag_ui(self, asked: Request, asker: Asker) -> Response:
        given: RunInput = await read_body(asked, RunInput)
        asker.check_content()
        agent = asked.path_params["name"]
        run = _Run(self._its, asker, agent, f"ag-ui {given.thread_id}")
        if given.resume:
            entries = {entry.interrupt_id: entry for entry in given.resume}

            def find(pending: Pending) -> Answer | None:
                entry = entries.get(pending.intent_id)
                return None if entry is None else read_resumed(entry, pending)

            await run.answer(find)
        else:
            await run.pursue(*given.find_goal())
        events = RunEvents(given.thread_id, given.run_id)
        return StreamingResponse(run.send(events), headers=HEADERS, media_type=MEDIA_TYPE)

    async def _run_chat(self, asked: Request, asker: Asker) -> Response:
        given: ChatInput = await read_body(asked, ChatInput)
        asker.check_content()
        run = _Run(self._its, asker, asked.path_params["name"], f"chat {given.id}")
        message = None
        if given.is_answer:
            await run.answer(given.find_answer)
        else:
            goal, key = given.find_goal()
            await run.pursue(goal, key)
            message = f"{key}-reply"
        chunks = SessionChunks(run.session, message)
        body = run.send(chunks, b"data: [DONE]\n\n")
        return StreamingResponse(body, headers=_UI_HEADERS, media_type=MEDIA_TYPE)

    async def _resume_chat(self, asked: Request, asker: Asker) -> Response:
        """Send the run that is in progress from its beginning; without one, the status 204."""
        asker.check_content()
        chat = asked.path_params["chat"]
        run = _Run(self._its, asker, asked.path_params["name"], f"chat {chat}")
        if not self._its.runner.is_running(run.session):
            return Response(status_code=204)
        key = await run.go_back()
        chunks = SessionChunks(run.session, f"{key}-reply")
        body = run.send(chunks, b"data: [DONE]\n\n")
        return StreamingResponse(body, headers=_UI_HEADERS, media_type=MEDIA_TYPE)


class _Run:
    """A run of the session of a thread, and the stream of what happens in it."""

    def __init__(self, handlers: Handlers, asker: Asker, agent: str, thread: str) -> None:
        self._its = handlers
        self._asker = asker
        self._agent = agent
        self.session = make_id(asker.owner or asker.name, f"{agent} {thread}")
        self._after = 0  # the number of the last record before the run
        self._feed: Feed | None = None

    async def pursue(self, goal: str, key: str) -> None:
        """Begin the run of a goal; the goal of a key that was given before is shown again."""
        its = self._its
        agent = its.find_agent(self._agent)
        model = agent.choose_model(None)
        self._asker.caller.check_model(model)
        await its.runner.join(self.session)
        row = await self._open()
        if row is None:
            origin = Origin(
                agent=self._agent, model=model, by=self._asker.name,
                owner=self._asker.owner or "", user=self._asker.user,
                team=self._asker.caller.team, key=key,
            )  # fmt: skip
            await its.runner.start(self.session, origin, User(goal), key)
        elif await self.go_back() != key:
            self._after = row.seq
            await its.pursue(row, NewGoal(goal=goal, key=key))

    async def answer(self, find: Callable[[Pending], Answer | None]) -> None:
        """Record the answers that ``find`` returns; raise ``SessionError`` if there are none."""
        its = self._its
        row = await self._open()
        if row is None:
            raise LookupError(f"the agent {self._agent!r} has no such thread")
        pending = await asyncio.to_thread(its.questions.list_pending, row)
        answers = [(each, find(each)) for each in pending]
        given = [(each, found) for each, found in answers if found is not None]
        if not given:
            raise SessionError("the session does not wait for any of these answers")
        for each, found in given:
            name = self._asker.name
            await asyncio.to_thread(its.record, row, each.intent_id, found, name)
        await its.go_on(row)

    async def go_back(self) -> str | None:
        """Show the run from its goal on; return the key of the goal."""
        if self._feed is None:
            await self._open()

        def find() -> tuple[int, str | None]:
            goal: tuple[int, str | None] = (0, None)
            for record in self._its.log.find("message.recorded", session=self.session):
                payload = record.payload
                if isinstance(payload, logs.MessageRecorded) and record.actor == "user":
                    goal = record.seq, payload.key
            return goal

        self._after, key = await asyncio.to_thread(find)
        return key

    async def _open(self) -> Row | None:
        """Follow the session from now on; return its row, if the thread has a session."""
        its = self._its
        self._feed = its.runner.follow(self.session)
        if not await asyncio.to_thread(its.rows.has, self.session):
            return None
        row = await asyncio.to_thread(its.rows.find, self.session)
        if self._feed.since is None:
            self._feed.since = row.seq
        self._after = row.seq
        return row

    async def send(self, protocol: RunWriter, end: bytes = b"") -> AsyncIterator[bytes]:
        """Yield the run as server-sent events, in the form of a protocol."""
        narrator = Narrator()
        yield _write(protocol.start())
        async for news in self._read():
            if news is None:
                yield HEARTBEAT
                continue
            for told in narrator.narrate(news):
                if not isinstance(told, RunEnded):
                    yield _write(protocol.convert(told))
                    continue
                pending = await asyncio.to_thread(self._list_pending, told)
                yield _write(protocol.finish(told, pending)) + end
                return

    def _list_pending(self, ended: RunEnded) -> list[Pending]:
        if ended.outcome != "waiting":
            return []
        return self._its.questions.list_pending(self._its.rows.find(self.session), answered=True)

    async def _read(self) -> AsyncIterator[Happening | None]:
        """Yield what happens, each record once and in order, and ``None`` now and then.

        What was before the feed is read from the log, and so is what another process writes.
        """
        feed = self._feed
        assert feed is not None
        last = self._after
        for record in await asyncio.to_thread(self._read_log, last, feed.since or 0):
            yield record
            last = record.seq
        idle = 0.0
        while not self._its.service.leaving:
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    news = await feed.queue.get()
            except TimeoutError:
                idle += _POLL_SECONDS
                news = None
            found: list[Happening] = []
            if isinstance(news, logs.LogRecord):
                found = [] if news.seq <= last else [news]
                if news.seq > last + 1:
                    found = [*await asyncio.to_thread(self._read_log, last, news.seq)]
            elif news is not None:
                found = [news]
            elif not self._its.runner.is_running(self.session):
                found = [*await asyncio.to_thread(self._read_log, last, None)]
            for each in found:
                yield each
                last = each.seq if isinstance(each, logs.LogRecord) else last
                idle = 0.0
            if idle >= _HEARTBEAT_SECONDS:
                yield None
                idle = 0.0

    def _read_log(self, after: int, until: int | None) -> list[logs.LogRecord]:
        most = None if until is None else max(until - after, 0)
        return list(islice(self._its.log.read(self.session, after), most))


def _write(objects: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join([b"data: " + msgspec.json.encode(each) + b"\n\n" for each in objects])
