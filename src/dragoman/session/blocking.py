"""Sessions whose methods block: ``dragoman.sync.Session``.

The session runs in the event loop of the portal. What it reports and asks, ``on_event``,
``on_record`` and ``approve``, runs in the thread that waits for it, where ``input()`` may block
and other blocking calls may be made.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeAlias, cast

from ..blocking import SyncProvider, run
from ..events import Event, Parsed
from ..log import EventLog
from ..messages import Message, RuntimeConfig, ToolChoice, User
from ..middleware.attempts import Price
from ..permission import Approver, Decision, Policy, Proposal, Verdict
from ..provider import Provider
from ..tools import Observation, Tools
from ..validate import ResponseSchema
from ..validate.arguments import ConfigRecord
from ..validate.fields import accept_other_names
from ..wire import SwapPlan
from .budget import Budget, SharedBudget
from .context import ContextPolicy
from .journal import Watcher
from .outcome import Outcome, Step
from .session import HINTS, OTHER_NAMES, Session
from .state import State

log = logging.getLogger("dragoman")

Callback: TypeAlias = Callable[[], object]


class SessionStream(Generic[Parsed]):
    """A run of a session as a stream of the model's events, to iterate with ``for``.

    ``outcome`` is how the run ended. Leaving the ``with`` block earlier cancels the run.
    """

    def __init__(self, session: SyncSession[Parsed]) -> None:
        self._session = session
        self._items: asyncio.Queue[Event | Callback | None] = asyncio.Queue()
        self._outcome: Outcome[Parsed] | None = None
        self._task: asyncio.Task[Outcome[Parsed]]

    @property
    def outcome(self) -> Outcome[Parsed]:
        """How the run ended; raise ``RuntimeError`` while it is running."""
        if self._outcome is None:
            raise RuntimeError("the session has not ended; read its events first")
        return self._outcome

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        while self._outcome is None:
            item = run(self._items.get())
            if item is None:
                # the end is there for other threads too, and for a call after a failure
                run(self._items.put(None))
                self._outcome = run(_wait(self._task))
            elif callable(item):
                item()
            else:
                return item
        raise StopIteration

    def close(self) -> None:
        """Cancel the run, if it has not ended."""
        if not self._task.done():
            self._session.cancel("the caller stopped reading the session's events")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, work: Coroutine[Any, Any, Outcome[Parsed]]) -> Self:
        """Start the run in the portal."""
        self._task = run(self._begin(work))
        return self

    def put(self, item: Event | Callback) -> None:
        """Send an event, or a function to call, to the thread that reads this stream."""
        self._items.put_nowait(item)

    async def _begin(
        self, work: Coroutine[Any, Any, Outcome[Parsed]]
    ) -> asyncio.Task[Outcome[Parsed]]:
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._items.put_nowait(None))
        return task


class SyncSession(Generic[Parsed]):
    """Run an agent, as ``dragoman.Session`` does, with methods that block.

    ::

        with dragoman.sync.connect("openai:gpt-6-sol") as model:
            session = dragoman.sync.Session(model, [weather], approve=ask_me)
            print(session.run("What will the weather be in Basel?").text)

    ``stream`` runs it and yields the model's events. The arguments are those of
    ``dragoman.Session``. ``approve``, ``on_event`` and ``on_record`` run in the thread that waits,
    so they may block; a coroutine function as ``approve`` runs in the event loop.
    """

    _stream: SessionStream[Any] | None = None

    @accept_other_names(OTHER_NAMES, HINTS)
    def __init__(
        self,
        provider: SyncProvider | Provider,
        tools: Tools = None,
        policy: Policy | None = None,
        log: EventLog | str | Path | None = None,
        *,
        session_id: str | None = None,
        system: str | None = None,
        config: RuntimeConfig | ConfigRecord | None = None,
        tool_choice: ToolChoice | None = None,
        budget: Budget | SharedBudget | None = None,
        approve: Approver | Literal["wait"] | None = None,
        on_record: Watcher | None = None,
        on_event: Callable[[Event], object] | None = None,
        price: Price | None = None,
        metadata: dict[str, Any] | None = None,
        keep_raw: bool = False,
        output: ResponseSchema[Parsed] | None = None,
        corrections: int = 2,
        context: ContextPolicy | Sequence[ContextPolicy] | None = None,
    ) -> None:
        settings = self._prepare(
            session_id=session_id, system=system, config=config, tool_choice=tool_choice,
            budget=budget, approve=approve, on_record=on_record, on_event=on_event, price=price,
            metadata=metadata, keep_raw=keep_raw, output=output, corrections=corrections,
            context=context,
        )  # fmt: skip
        self.session: Session[Parsed] = Session(_unwrap(provider), tools, policy, log, **settings)
        """The asynchronous session; its methods must run in the portal's event loop."""

    @classmethod
    def resume(
        cls,
        provider: SyncProvider | Provider,
        tools: Tools,
        policy: Policy | None,
        log: EventLog | str | Path,
        session_id: str,
        **settings: Any,
    ) -> SyncSession[Any]:
        """Continue a session from its log; see ``dragoman.Session.resume``."""
        return cls._open(Session.resume, provider, tools, policy, log, session_id, **settings)

    @classmethod
    def open(
        cls,
        provider: SyncProvider | Provider,
        tools: Tools,
        policy: Policy | None,
        log: EventLog | str | Path,
        session_id: str,
        **settings: Any,
    ) -> SyncSession[Any]:
        """Resume the session with this id, or begin it; see ``dragoman.Session.open``."""
        return cls._open(Session.open, provider, tools, policy, log, session_id, **settings)

    @classmethod
    def fork(
        cls,
        provider: SyncProvider | Provider,
        tools: Tools,
        policy: Policy | None,
        log: EventLog | str | Path,
        session_id: str,
        **settings: Any,
    ) -> SyncSession[Any]:
        """Begin a session with the conversation of another; see ``dragoman.Session.fork``."""
        return cls._open(Session.fork, provider, tools, policy, log, session_id, **settings)

    @property
    def id(self) -> str:
        """The id of the session in its log."""
        return self.session.id

    @property
    def log(self) -> EventLog:
        """The log that the session writes."""
        return self.session.log

    @property
    def state(self) -> State:
        """The state derived from the records of this session."""
        return self.session.state

    @property
    def messages(self) -> list[Message]:
        """The conversation as it would be sent to the current provider."""
        return self.session.messages

    def run(self, goal: str | User | None = None, *, key: str | None = None) -> Outcome[Parsed]:
        """Pursue a goal until the run ends; see ``dragoman.Session.run``."""
        return _read(self.stream(goal, key=key))

    def stream(
        self, goal: str | User | None = None, *, key: str | None = None
    ) -> SessionStream[Parsed]:
        """Pursue a goal, and return the model's events as they arrive; ``outcome`` is the end."""
        # the session may send its first event before start() returns
        stream: SessionStream[Parsed] = SessionStream(self)
        self._stream = stream
        return stream.start(self.session.run(goal, key=key))

    def step(self, goal: str | User | None = None, *, key: str | None = None) -> Step:
        """Take one step: call the model, or decide about one call, or run it."""
        work: Any = self.session.step(goal, key=key)
        stream: SessionStream[Any] = SessionStream(self)
        self._stream = stream
        step: Any = _read(stream.start(work))
        return step  # type: ignore[no-any-return]

    def follow_up(self, goal: str | User) -> None:
        """Queue a goal to pursue after the current one."""
        self.session.follow_up(goal)

    def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Stop a run that another thread waits for; see ``dragoman.Session.cancel``."""
        return run(self.session.cancel(reason))

    def swap(
        self,
        provider: SyncProvider | Provider,
        reason: str = "",
        *,
        config: RuntimeConfig | None = None,
    ) -> SwapPlan:
        """Continue with another model; see ``dragoman.Session.swap``."""
        return run(self.session.swap(_unwrap(provider), reason, config=config))

    def answer(self, intent_id: str, decision: Decision) -> Decision:
        """Decide about a call that this session waits for; see ``dragoman.Session.answer``."""
        return run(self.session.answer(intent_id, decision))

    def observe(self, intent_id: str, content: Any, is_error: bool = False) -> Observation:
        """Give the result of a call that runs elsewhere; see ``dragoman.Session.observe``."""
        return run(self.session.observe(intent_id, content, is_error))

    def close(self) -> None:
        """Close the log, if the session opened it."""
        run(self.session.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sync {self.session!r}>"

    # --- callbacks in the thread that waits

    @classmethod
    def _open(
        cls,
        opener: Callable[..., Awaitable[Session[Any]]],
        provider: SyncProvider | Provider,
        *arguments: Any,
        **settings: Any,
    ) -> SyncSession[Any]:
        made: SyncSession[Any] = cls.__new__(cls)
        prepared = made._prepare(**settings)

        async def open_session() -> Session[Any]:
            return await opener(_unwrap(provider), *arguments, **prepared)

        made.session = run(open_session())
        return made

    def _prepare(self, **settings: Any) -> dict[str, Any]:
        """Return the settings of a session whose callbacks run in the thread that waits."""
        self._on_event: Callable[[Event], object] | None = settings.get("on_event")
        watch = settings.get("on_record")
        approve = settings.get("approve")
        prepared = {**settings, "on_event": self._send_event}
        if watch is not None:
            prepared["on_record"] = lambda record: self._send(lambda: _call(watch, record))
        if callable(approve) and not inspect.iscoroutinefunction(approve):
            prepared["approve"] = self._ask_in_thread(cast("Approver", approve))
        return prepared

    def _send(self, callback: Callback) -> None:
        if self._stream is not None:
            self._stream.put(callback)

    def _send_event(self, event: Event) -> None:
        if self._stream is None:
            return
        told = self._on_event
        if told is not None:
            self._stream.put(lambda: _call(told, event))
        self._stream.put(event)

    def _ask_in_thread(self, approve: Approver) -> Approver:
        async def ask(proposal: Proposal, verdict: Verdict) -> bool | Decision:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

            def decide() -> None:
                try:
                    decided = approve(proposal, verdict)
                except Exception as error:
                    run(_fail(answer, error))
                else:
                    run(_resolve(answer, decided))

            self._send(decide)
            decision = await answer
            if inspect.isawaitable(decision):
                decision = await decision
            return decision  # type: ignore[no-any-return]

        return ask


def _unwrap(provider: Any) -> Any:
    return provider.provider if isinstance(provider, SyncProvider) else provider


def _read(stream: SessionStream[Parsed]) -> Outcome[Parsed]:
    """Read a run to its end, and return its outcome."""
    with stream:
        for _ in stream:
            pass
    return stream.outcome


def _call(callback: Callable[..., object], *arguments: Any) -> None:
    """Call a function of the caller; the session goes on if it fails."""
    try:
        callback(*arguments)
    except Exception:
        log.warning("a callback of the session failed; the session goes on", exc_info=True)


async def _wait(task: asyncio.Task[Any]) -> Any:
    return await asyncio.shield(task)


async def _resolve(answer: asyncio.Future[Any], value: Any) -> None:
    if not answer.done():
        answer.set_result(value)


async def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
