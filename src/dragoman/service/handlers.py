"""Answer the requests of a service of sessions, with the rights of the gateway's keys and people."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, get_args

from msgspec import to_builtins
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from .. import log as logs
from ..errors import InvalidRequestError, UnavailableError, scrub
from ..gateway.access import Service
from ..gateway.pages import ConflictError, answer_json, read_body, read_size, write_json
from ..messages import User
from ..permission import Decision
from ..session import SessionError, answer, observe
from ..tools import Observation
from ..trace.approval import GivenDecision
from .agents import Agent
from .bodies import GivenResult, NewGoal, NewSession
from .callers import Asker, find_asker
from .following import HEADERS, MEDIA_TYPE, is_over, read_position, send_records
from .operations import OPERATIONS
from .questions import OpenQuestion, Questions
from .rows import Origin, Row, Rows, Status, make_id
from .runner import Runner

_STATES = ("open", "answered")
_UNFINISHED = ("running", "waiting", "stopped")
_HIDDEN = ("goal", "detail", "labels")  # content, which only admins see of the sessions of others


class Handlers:
    """The handlers of the operations of a service of sessions."""

    def __init__(
        self,
        service: Service,
        agents: dict[str, Agent],
        log: logs.EventLog,
        rows: Rows,
        runner: Runner,
        ready: Callable[[], Awaitable[None]],
    ) -> None:
        self.service = service
        self.agents = agents
        self.log = log
        self.rows = rows
        self.runner = runner
        self.questions = Questions(log, rows, agents)
        self._ready = ready

    def routes(self) -> list[Route]:
        """Return the routes of all operations."""
        most = self.service.bounds.body_bytes
        return [
            Route(
                each.path,
                self.answering(getattr(self, f"_{each.handler}")),
                methods=[each.method],
                max_body_size=most,
            )
            for each in OPERATIONS
        ]

    def answering(
        self, handle: Callable[[Request, Asker], Awaitable[Any]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that checks who asks, and reports errors in the form of the gateway."""

        async def make(asked: Request) -> Any:
            asker = find_asker(self.service, asked)
            await self._ready()
            try:
                return await handle(asked, asker)
            except (SessionError, logs.LogLockedError) as error:
                raise ConflictError(str(error)) from error
            except logs.LogError as error:
                raise UnavailableError(scrub(f"the log cannot be used: {error}")) from error

        async def reply(asked: Request) -> Response:
            return await answer_json(asked, lambda: make(asked))

        return reply

    # --- agents and sessions

    async def _list_agents(self, asked: Request, asker: Asker) -> Any:
        return {
            "data": [
                {
                    "name": name,
                    "description": agent.description,
                    "models": [agent.model_name, *agent.models],
                    "tools": [
                        {"name": tool.name, "side_effect": tool.side_effect}
                        for tool in agent.tools
                    ],
                    "limits": agent.budget,
                }
                for name, agent in sorted(self.agents.items())
                if asker.caller.may_use(agent.model_name)
            ]
        }

    async def _start(self, asked: Request, asker: Asker) -> Any:
        given = await read_body(asked, NewSession)
        asker.check_content()
        session, is_new = await self.begin(given, asker)
        row = await asyncio.to_thread(self.rows.find, session)
        return write_json(row, 201 if is_new else 200)

    async def begin(self, given: NewSession, asker: Asker) -> tuple[str, bool]:
        """Start a session unless its key did that before; return its id, and whether it is new.

        Raise ``InvalidRequestError`` if the key belongs to another goal.
        """
        agent = self.find_agent(given.agent)
        model = agent.choose_model(given.model)
        asker.caller.check_model(model)
        limits = to_builtins(given.limits)
        agent.limit(limits)
        origin = Origin(
            agent=given.agent, model=model, by=asker.name, owner=asker.owner or "",
            user=asker.user, team=asker.caller.team, key=given.key, limits=limits,
            labels=given.labels,
        )  # fmt: skip
        session = make_id(origin.owner, given.key)
        await self.runner.join(session)
        if await asyncio.to_thread(self.rows.has, session):
            row = await asyncio.to_thread(self.rows.find, session)
            if (row.agent, row.goal) != (given.agent, given.goal):
                problem = f"key: {given.key!r} started a session with another goal or agent"
                raise ConflictError(problem)
            return session, False
        await self.runner.start(session, origin, User(given.goal), given.key)
        return session, True

    def find_agent(self, name: str) -> Agent:
        """Return the agent with a name; raise ``LookupError`` if there is none."""
        agent = self.agents.get(name)
        if agent is None:
            raise LookupError(f"there is no agent {name!r}; GET /v1/agents lists them")
        return agent

    async def find_row(self, asked: Request, asker: Asker) -> Row:
        """Return the session that a path names; raise ``LookupError`` if the caller has no such."""
        session = asked.path_params["name"]
        row = await asyncio.to_thread(self.rows.find, session)
        if not asker.sees(row):
            raise LookupError(f"there is no session {session!r}")
        return row

    async def _list_sessions(self, asked: Request, asker: Asker) -> Any:
        query = asked.query_params
        size = read_size(asked)
        wanted = {name: query[name] for name in ("status", "agent", "owner") if name in query}
        if wanted.get("status") not in (None, *get_args(Status)):
            raise InvalidRequestError(f"status: must be one of {', '.join(get_args(Status))}")
        after = query.get("after")

        def read() -> list[Row]:
            ids = self.rows.list_ids()
            if after is not None and after not in ids:
                raise InvalidRequestError("after: must be the id of a session in the list")
            found: list[Row] = []
            for session in ids[0 if after is None else ids.index(after) + 1 :]:
                row = self.rows.find(session)
                fits = all(getattr(row, name) == value for name, value in wanted.items())
                if fits and asker.sees(row):
                    found.append(row)
                if len(found) > size:
                    break
            return found

        rows = await asyncio.to_thread(read)
        shown = [show_row(row, asker) for row in rows[:size]]
        return {"data": shown, "next": shown[-1]["id"] if len(rows) > size else None}

    async def _show(self, asked: Request, asker: Asker) -> Any:
        row = await self.find_row(asked, asker)
        if not asker.sees_content:
            return show_row(row, asker)
        agent = self.agents.get(row.agent)
        tools = Agent("").tools if agent is None else agent.tools
        return await asyncio.to_thread(self.rows.show, row.id, tools)

    async def _add_goal(self, asked: Request, asker: Asker) -> Any:
        given = await read_body(asked, NewGoal)
        row = await self.find_row(asked, asker)
        asker.check_content()
        await self.pursue(row, given)
        return write_json(await asyncio.to_thread(self.rows.find, row.id), 202)

    async def pursue(self, row: Row, given: NewGoal) -> None:
        """Give a session a further goal; return once it is recorded."""
        self.find_agent(row.agent)
        origin = await asyncio.to_thread(self.rows.find_origin, row.id)
        await self.runner.start(row.id, origin, User(given.goal), given.key)

    async def _send_events(self, asked: Request, asker: Asker) -> Any:
        row = await self.find_row(asked, asker)
        asker.check_content()
        after = read_position(
            asked.headers.get("last-event-id") or asked.query_params.get("after") or "0"
        )
        follow = asked.query_params.get("follow", "false")
        if follow not in ("true", "false"):
            raise InvalidRequestError("follow: must be true or false")
        if follow == "false" and await is_over(self.log, self.runner, row.id, after):
            # Browsers (EventSource) connect again after the end of a stream, unless they get 204.
            return Response(status_code=204)
        body = send_records(
            self.log, self.runner, row.id, after,
            follow=follow == "true", is_leaving=lambda: self.service.leaving,
        )  # fmt: skip
        return StreamingResponse(body, headers=HEADERS, media_type=MEDIA_TYPE)

    # --- questions and answers

    async def _list_questions(self, asked: Request, asker: Asker) -> Any:
        state = asked.query_params.get("state", "open")
        if state not in _STATES:
            raise InvalidRequestError(f"state: must be one of {', '.join(_STATES)}")
        return await self.list_questions(
            asker, state, asked.query_params.get("after"), read_size(asked)
        )

    async def list_questions(
        self, asker: Asker, state: str, after: str | None, size: int
    ) -> dict[str, Any]:
        """Return a page of the open or of the answered questions that a caller may see."""
        read: Any = self.questions.list_open if state == "open" else self.questions.list_answered
        found = await asyncio.to_thread(read, asker.sees)
        ids = [each.id for each in found]
        if after is not None and after not in ids:
            raise InvalidRequestError("after: must be the id of a question in the list")
        left = found[0 if after is None else ids.index(after) + 1 :]
        shown = [_show_question(each, asker) for each in left[:size]]
        return {"data": shown, "next": left[size - 1].id if len(left) > size else None}

    async def _decide(self, asked: Request, asker: Asker) -> Any:
        given = await read_body(asked, GivenDecision)
        row = await self.find_row(asked, asker)
        asker.check_content()
        return await self.take_answer(row, asked.path_params["intent"], given, asker.name)

    async def _observe(self, asked: Request, asker: Asker) -> Any:
        given = await read_body(asked, GivenResult)
        row = await self.find_row(asked, asker)
        asker.check_content()
        counted = await self.take_answer(row, asked.path_params["intent"], given, asker.name)
        return {"content": counted.content, "is_error": counted.is_error}

    async def take_answer(
        self, row: Row, intent_id: str, given: GivenDecision | GivenResult, by: str
    ) -> Any:
        """Record an answer about a call of a session, and continue the session.

        Return the decision or the result that counts.
        """
        counted = await asyncio.to_thread(self.record, row, intent_id, given, by)
        await self.go_on(row)
        return counted

    def record(
        self, row: Row, intent_id: str, given: GivenDecision | GivenResult, by: str
    ) -> Decision | Observation:
        """Record an answer about a call of a session; block until it is on disk."""
        asking = self._find_asking(row, intent_id)
        if isinstance(given, GivenDecision):
            return answer(self.log, asking, intent_id, given.decide(by))
        return observe(self.log, asking, intent_id, given.content, given.is_error, by=by)

    async def go_on(self, row: Row) -> None:
        """Continue a session that got an answer, unless it has ended."""
        is_open = (await asyncio.to_thread(self.rows.find, row.id)).status in _UNFINISHED
        if row.agent in self.agents and is_open:
            origin = await asyncio.to_thread(self.rows.find_origin, row.id)
            self.runner.resume(row.id, origin)

    def _find_asking(self, row: Row, intent_id: str) -> str:
        """Return the session that asks: this one, or one that a call of it runs."""
        pending = self.questions.list_pending(row, answered=True)
        return next((each.session for each in pending if each.intent_id == intent_id), row.id)

    async def _cancel(self, asked: Request, asker: Asker) -> Any:
        row = await self.find_row(asked, asker)
        asker.check_content()
        await self.runner.cancel(row.id, asker.name)
        return await asyncio.to_thread(self.rows.find, row.id)


def show_row(row: Row, asker: Asker) -> dict[str, Any]:
    """Return a session for a list, without content if the caller may not see it."""
    shown: dict[str, Any] = to_builtins(row)
    if not asker.sees_content:
        shown |= dict.fromkeys(_HIDDEN)
    return shown


def _show_question(question: Any, asker: Asker) -> dict[str, Any]:
    shown: dict[str, Any] = to_builtins(question)
    if not asker.sees_content and isinstance(question, OpenQuestion):
        pending = question.pending
        shown["pending"] = {
            "kind": pending.kind,
            "tool_name": pending.tool_name,
            "since": pending.since,
        }
    elif not asker.sees_content:
        shown["reason"] = ""
    return shown
