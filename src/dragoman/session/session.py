"""The session: the only loop there is.

Ask the model, record what it proposes, check it, have it allowed, run it, record what came back, show that
to the model, and so on. Every step is in the log before the next begins; the state is what the log says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ..calls import STOP_REASONS, CallStarted, ProviderRecovered, ProviderUnavailable, RoutingSwitched, redact
from ..errors import InvalidRequestError, MalformedToolCallError, ProviderError
from ..events import Event, Response, ToolIntent, ToolUseEnd, Usage
from ..log import (
    EventLog,
    InvalidRecordError,
    LlmExchangeKept,
    LogCorruptError,
    LogError,
    LogRecord,
    MessageRecorded,
    ModelSwapped,
    Payload,
    Routing,
    SessionFinished,
    SessionResumed,
    SessionStarted,
    ToolIntentClosed,
    TurnStarted,
    open_log,
)
from ..messages import Assistant, LossWarning, Message, RuntimeConfig, System, ToolChoice, ToolResult, User, new_ulid
from ..middleware.layer import ATTEMPTS
from ..permission import Approver, Gate, Policy
from ..prices import Unpriced
from ..prices import cost as price_of
from ..provider import EventStream, Provider
from ..tools import ExecutableTool, Toolbox, gather_tools
from ..wire import SwapPlan
from .budget import Budget, Spending
from .execution import Pipeline, describe_end
from .journal import Journal, Watcher
from .records import Price, can_be_said, make_message, new_message_id, record_completed, record_failed
from .state import OpenCall, State, reduce_records

log = logging.getLogger("dragoman")

Ending: TypeAlias = Literal["completed", "failed", "cancelled", "exhausted"]
_Heard: TypeAlias = list[ToolUseEnd]
_RUNNABLE = ("tool_calls", "stop", "length")  # not what was filtered, nor what ended as an error
_MAX_REASKS = 2  # a model that cannot make a sound call in three attempts will not make one in four


class SessionError(RuntimeError):
    """The session cannot do what was asked of it now."""


class Outcome(Struct, frozen=True):
    """How a session ended: ``text`` is the model's last word, ``exhausted`` means that a budget ended it."""

    session: str
    outcome: Ending
    text: str
    detail: str | None
    spent: Spending


class Step(Struct, frozen=True):
    """One turn: the model's reply, what it proposed, and the outcome if it was the last."""

    number: int
    response: Response | None
    intents: tuple[ToolIntent, ...] = ()
    outcome: Outcome | None = None


class _Stop(Struct, frozen=True):
    """Why a running session is to stop, when it is the session itself that was asked."""

    ending: Ending
    reason: str


class Session:
    """A provider, tools, a policy and a log.

    ::

        async with SqliteLog("log.db") as log:
            session = Session(provider, workspace_tools("."), policy, log, approve=ask_me)
            outcome = await session.run("Find out why the tests fail and fix them.")

    ``run`` loops until the model answers without proposing anything, a budget is used up, or somebody
    calls ``cancel``; ``step`` does one turn of that. An error of the provider is recorded and raised, and
    the session can be run again. ``approve`` is asked where the policy says so; without it nothing that
    must be asked about runs. ``on_record`` hears every record once it is on disk, ``on_event`` the model's
    stream as it comes. With ``keep_raw`` the log also gets every reply as the provider's own JSON. Neither
    provider nor log is closed by the session, except a log it opened by path.
    """

    def __init__(
        self,
        provider: Provider,
        tools: Iterable[ExecutableTool | Callable[..., Any]] | Toolbox | None = None,
        policy: Policy | None = None,
        log: EventLog | str | Path | None = None,
        *,
        session_id: str | None = None,
        system: str | None = None,
        config: RuntimeConfig | None = None,
        tool_choice: ToolChoice | None = None,
        budget: Budget | None = None,
        approve: Approver | None = None,
        on_record: Watcher | None = None,
        on_event: Callable[[Event], object] | None = None,
        price: Price = price_of,
        metadata: dict[str, Any] | None = None,
        keep_raw: bool = False,
    ) -> None:
        if log is None:
            raise ValueError("log: a session without a log has no evidence; give an EventLog, or a path")
        self.provider = provider
        self.tools = gather_tools(tools)
        self.policy = policy or Policy()
        self.budget = budget or Budget()
        self.id = session_id or f"session_{new_ulid()}"
        self._owned = open_log(log) if isinstance(log, str | Path) else None
        self.log: EventLog = log if self._owned is None else self._owned  # type: ignore[assignment]
        self._system = system
        self._config = config or RuntimeConfig()
        self._tool_choice = tool_choice
        self._price = price
        self._metadata = dict(metadata or {})
        self._keep_raw = keep_raw
        self._on_event = on_event
        self._journal = Journal(self.log, self.id, State(), on_record)
        self._pipeline = Pipeline(self.tools, Gate(self.policy, approve), self._journal)
        self._routing = Routing("default", self._target(), "the provider the session was given")
        self._told: list[Payload] = []
        self._attempts = [0]
        self._loaded = False
        self._task: asyncio.Task[Step] | None = None
        self._stop: _Stop | None = None
        self._reasks = 0

    @classmethod
    async def resume(
        cls,
        provider: Provider,
        tools: Iterable[ExecutableTool | Callable[..., Any]] | Toolbox | None,
        policy: Policy | None,
        log: EventLog | str | Path,
        session_id: str,
        **settings: Any,
    ) -> Session:
        """Take up a session from its log, after whatever ended it.

        Nothing is run again. What was proposed and not brought to an end is closed by the next ``run``
        or ``step``, explicitly, and the model is told.
        """
        session = cls(provider, tools, policy, log, session_id=session_id, **settings)
        try:
            session._journal.state = await asyncio.to_thread(_load, session.log, session_id)
        except BaseException:
            await session.close()
            raise
        session._loaded = True
        known = session.state.model
        if known is not None and known != session._target():
            session._routing = Routing("manual", session._target(), f"resumed with another provider than {known}")
        return session

    @property
    def state(self) -> State:
        """What the log says of this session."""
        return self._journal.state

    @property
    def messages(self) -> list[Message]:
        """The conversation as the present provider would be sent it."""
        return self.state.project(self.provider.name)

    # --- driving ------------------------------------------------------------------------------------

    async def run(self, goal: str | User | None = None) -> Outcome:
        """Pursue a goal to an end. Without a goal, go on with what the session was about."""
        step = await self._supervise(self._drive(goal, once=False))
        assert step.outcome is not None
        return step.outcome

    async def step(self, goal: str | User | None = None) -> Step:
        """Do one turn: ask the model once, and bring every intent of its reply to an end."""
        return await self._supervise(self._drive(goal, once=True))

    async def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Stop what is running, wherever it is, and wait until that is recorded; ``False`` if nothing was."""
        task = self._task
        if task is None or self._stop is not None:
            return False
        self._halt(_Stop("cancelled", reason))
        await asyncio.wait([task])
        return True

    async def swap(self, provider: Provider, reason: str = "") -> SwapPlan:
        """Go on with another model, and return what the conversation loses by it; nothing is sent yet.

        ``InvalidRequestError`` if the other model cannot take the conversation at all.
        """
        self._refuse_running()
        before, messages = self._target(), self.state.project(provider.name)
        plan = provider.plan(messages) if messages else SwapPlan(f"{provider.name}:{provider.model}", ())
        if plan.refused is not None or plan.fits is False:
            why = plan.refused or f"about {plan.estimated_tokens} tokens do not fit its window of {plan.context_tokens}"
            raise InvalidRequestError(f"swap to {plan.target}: {why}", provider=provider.name, model=provider.model)
        losses = tuple([LossWarning(item.rule, item.path, item.reason) for item in plan.losses])
        self.provider = provider
        self._routing = Routing("manual", self._target(), reason or "swapped by the caller")
        if self.state.root is not None:
            await self._write(ModelSwapped(before, self._target(), reason or "swapped by the caller", losses))
        return plan

    async def close_open_intents(self, reason: str) -> tuple[str, ...]:
        """Close every intent that has come to no end, and tell the model; return their ids. Nothing runs."""
        self._refuse_running()
        return await self._close_open(reason)

    def note(self, event: Struct) -> None:
        """Take down a change of route that a middleware told of: ``Fallback(..., on_event=session.note)``."""
        if not isinstance(event, RoutingSwitched | ProviderUnavailable | ProviderRecovered):
            raise ValueError(f"event: {type(event).__name__} is no change of route; the session records its own calls")
        self._told.append(event)

    async def close(self) -> None:
        """Close the log, if the session opened it."""
        if self._owned is not None:
            await asyncio.to_thread(self._owned.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Session {self.id} {self._target()}>"

    # --- supervision --------------------------------------------------------------------------------

    async def _supervise(self, work: Coroutine[Any, Any, Step]) -> Step:
        """Run in a task of our own, so that a cancellation from anywhere is recorded before it is felt."""
        if self._task is not None:
            work.close()
            raise SessionError("the session is running already")
        self._stop = None
        task = self._task = asyncio.create_task(work)
        timer: asyncio.TimerHandle | None = None
        if self.budget.seconds is not None:
            stop = _Stop("exhausted", f"the time of {self.budget.seconds:g} s is used up")
            timer = asyncio.get_running_loop().call_later(self.budget.seconds, self._halt, stop)
        try:
            await self._wait_for(task)
        finally:
            self._task = None
            if timer is not None:
                timer.cancel()
        return task.result()

    async def _wait_for(self, task: asyncio.Task[Step]) -> None:
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                if cancelled is None:  # a second one does not hurry the recording of the first
                    task.cancel()
                cancelled = error
        if cancelled is not None:
            if not task.cancelled() and task.exception() is not None:
                log.warning("session %s: failed while it was cancelled", self.id, exc_info=task.exception())
            raise cancelled

    def _halt(self, stop: _Stop) -> None:
        if self._task is not None and self._stop is None:
            self._stop = stop
            self._task.cancel()

    async def _drive(self, goal: str | User | None, *, once: bool) -> Step:
        begun = False
        try:
            await self._begin(goal)
            begun = True
            step = await self._advance()
            while not once and step.outcome is None:
                step = await self._advance()
        except asyncio.CancelledError:
            return await self._wind_up()
        except LogError:
            raise  # and nothing more can be written
        except Exception as error:
            if begun:
                word = error.kind if isinstance(error, ProviderError) else type(error).__name__
                await self._close_open("the session failed before it came to this")
                await self._finish("failed", redact(f"{word}: {error}"[:2000]))
            raise
        return step

    async def _advance(self) -> Step:
        """Do one turn, unless the session is at its end."""
        if self._has_answered():
            said = self.state.messages[-1].finish_reason or "stop"
            return Step(self.state.spent.turns, None, (), await self._conclude(said))
        excess = self.budget.find_excess(self.state.spent)
        if excess is None:
            return await self._turn()
        await self._write(excess)
        detail = excess.detail or f"the budget of {excess.limit} {excess.unit} is used up"
        return Step(self.state.spent.turns, None, (), await self._finish("exhausted", detail))

    async def _wind_up(self) -> Step:
        stop = self._stop
        ending, reason = (stop.ending, stop.reason) if stop else ("cancelled", "the task that ran it was cancelled")
        over = self.state.finished  # it may have come to its end while it was being stopped
        if over is not None:
            outcome = self._outcome(over.outcome, over.detail)
        elif self.state.root is not None:
            await self._close_open(reason)
            if ending == "exhausted":
                await self._write(self.budget.time_exceeded())
            outcome = await self._finish(ending, reason)
        else:
            outcome = self._outcome(ending, reason)
        if stop is None:
            raise asyncio.CancelledError
        return Step(self.state.spent.turns, None, (), outcome)

    def _refuse_running(self) -> None:
        if self._task is not None:
            raise SessionError("the session is running; cancel() it first")

    # --- beginning and end --------------------------------------------------------------------------

    async def _begin(self, goal: str | User | None) -> None:
        if self.state.root is None:
            await self._start(goal)
            return
        if goal is None and self.state.finished is not None and self._has_answered():
            raise SessionError("the model has answered; give the session another goal")
        if self._loaded or self.state.finished is not None:
            self._loaded = False
            await self._take_up("another goal" if goal is not None else "to go on")
        if goal is None and not any(isinstance(said.message, User) for said in self.state.messages):
            goal = self.state.goal  # it ended before its first message was written
        if goal is not None:
            await self._open_conversation(_as_user(goal))

    def _has_answered(self) -> bool:
        last = self.state.messages[-1].message if self.state.messages else None
        return isinstance(last, Assistant) and not last.tool_calls

    async def _start(self, goal: str | User | None) -> None:
        if goal is None:
            raise SessionError("a new session needs a goal")
        if next(iter(self.log.read(self.id)), None) is not None:
            raise SessionError(f"there is a session {self.id!r} in this log already; use Session.resume")
        self._check_price()
        message = _as_user(goal)
        metadata = {"budget": to_builtins(self.budget, enc_hook=str), "policy": repr(self.policy), **self._metadata}
        names = tuple([tool.name for tool in self.tools])
        await self._write(SessionStarted(message.text, self.provider.model, self.provider.name, names, metadata))
        await self._open_conversation(message)

    async def _open_conversation(self, message: User) -> None:
        if self._system and not self.state.messages:
            await self._write(MessageRecorded(System(self._system), message_id=new_message_id()))
        await self._write(MessageRecorded(message, message_id=new_message_id()))

    def _check_price(self) -> None:
        if self.budget.cost_usd is None:
            return
        found = self._price(Usage(input_tokens=0, output_tokens=0), self._target())
        if isinstance(found, Unpriced):
            raise ValueError(f"budget.cost_usd: the price of {self._target()} is not known: {found.reason}")

    async def _take_up(self, why: str) -> None:
        """Go on after an end, whether one was recorded or not."""
        state = self.state
        dangling = tuple([kept.intent.id for kept in state.open_intents])
        ended = state.finished.outcome if state.finished is not None else "interrupted"
        await self._write(SessionResumed(state.last_seq, dangling, f"{why}; it was {ended}"))
        await self._close_open("the session ended before this came to an end")

    async def _close_call(self, call: OpenCall, reason: str) -> None:
        """Say what is known of a call to the model during which the session was stopped."""
        said = call.reply
        if said is not None and said.finish_reason in STOP_REASONS:
            await self._write(record_completed(said), parent=call.record, turn=call.turn)
            return
        failed = record_failed(call.started, None, f"its end was not recorded: {reason}")
        await self._write(failed, parent=call.record, turn=call.turn)

    async def _close_open(self, reason: str) -> tuple[str, ...]:
        if self.state.call is not None:
            await self._close_call(self.state.call, reason)
        found = self.state.open_intents
        for kept in found:
            closed = ToolIntentClosed(kept.intent.id, reason, kept.intent.tool_name)
            await self._write(closed, parent=kept.record, turn=kept.turn)
        await self._answer_calls()
        return tuple([kept.intent.id for kept in found])

    async def _finish(self, ending: Ending, detail: str | None = None) -> Outcome:
        await self._write(SessionFinished(ending, detail, self.state.spent.turns))
        return self._outcome(ending, detail)

    def _outcome(self, ending: Ending, detail: str | None) -> Outcome:
        last = self.state.messages[-1].message if self.state.messages else None
        text = last.text if isinstance(last, Assistant) else ""
        return Outcome(self.id, ending, text, detail, replace(self.state.spent))

    # --- one turn -----------------------------------------------------------------------------------

    async def _turn(self) -> Step:
        number = self.state.spent.turns + 1
        turn = f"t{number}"
        started = TurnStarted(number, self.provider.model, self.provider.name)
        record = await self._write(started, turn=turn)
        try:
            response, intents = await self._ask(turn, record.id)
        except MalformedToolCallError as error:
            if self._reasks >= _MAX_REASKS:
                raise
            self._reasks += 1
            await self._correct(error, turn)
            return Step(number, error.response)
        self._reasks = 0
        if intents and response.finish_reason in _RUNNABLE:
            await self._pipeline.process(intents, turn)
            await self._answer_calls()
            return Step(number, response, tuple(intents))
        await self._close_open(f"the reply ended with {response.finish_reason}")
        return Step(number, response, tuple(intents), await self._conclude(response.finish_reason))

    async def _conclude(self, finish_reason: str) -> Outcome:
        if finish_reason == "stop":
            return await self._finish("completed")
        if finish_reason == "length":
            return await self._finish("exhausted", "the model's reply was cut off at its token limit")
        return await self._finish("failed", f"the reply ended with {finish_reason}")

    async def _ask(self, turn: str, parent: str) -> tuple[Response, list[ToolIntent]]:
        """Call the model once. Its intents are recorded as they come, before anybody can act on them."""
        messages, tools = self.messages, self.tools.describe()
        request_id = new_ulid()
        call = CallStarted(
            model=self.provider.model,
            provider=self.provider.name,
            request_id=request_id,
            estimated_input_tokens=self.provider.estimate_input_tokens(messages, tools or None),
            stream=True,
            config=replace(self._config, extras={}),
        )
        record = await self._write(call, parent=parent, turn=turn)
        heard: list[ToolUseEnd] = []
        stream: EventStream | None = None
        self._attempts = [0]
        token = ATTEMPTS.set(self._attempts)
        try:
            stream = self.provider.stream(
                messages, tools or None, self._config, None, self._tool_choice, request_id=request_id
            )
            async with stream:
                await self._listen(stream, heard, record.id, turn)
        except asyncio.CancelledError:
            await self._record_failure(call, stream, record, heard, None)
            raise
        except ProviderError as error:
            await self._record_failure(call, stream, record, heard, error)
            raise
        finally:
            ATTEMPTS.reset(token)
        assert stream is not None
        assert stream.response is not None
        await self._record_reply(call, stream.response, record, heard)
        return stream.response, [end.intent for end in heard if end.intent is not None]

    async def _listen(self, stream: EventStream, heard: list[ToolUseEnd], parent: str, turn: str) -> None:
        try:
            async for event in stream:
                self._tell(event)
                if isinstance(event, ToolUseEnd):
                    heard.append(self._with_own_id(event))
                    if (intent := heard[-1].intent) is not None:
                        await self._write(intent, parent=parent, turn=turn)
        except asyncio.CancelledError:
            # End it well: what had arrived is evidence too.
            await stream.cancel()
            async for _ in stream:
                pass
            raise

    def _with_own_id(self, end: ToolUseEnd) -> ToolUseEnd:
        """An intent's id is ours: one that a provider made and made before, as a replayed one does, is renewed."""
        if end.intent is None or end.intent.id not in self.state.intents:
            return end
        return replace(end, intent=replace(end.intent, id=f"tu_{new_ulid()}"))

    # --- what was said ------------------------------------------------------------------------------

    async def _record_reply(self, started: CallStarted, response: Response, call: LogRecord, heard: _Heard) -> None:
        asked = self.provider.name, self.provider.model
        # Silence, and a reply that its provider calls an error, cannot be shown to anybody again.
        whole = bool(response.message.content) and response.finish_reason in STOP_REASONS
        said = make_message(response, heard, self._routing, asked, self._price, in_context=whole)
        switched = await self._write_told(call)
        if said.provider != self.provider.name and not switched:
            switch = RoutingSwitched(
                self._target(), f"{said.provider}:{said.model}", "the reply came from another provider",
                request_id=response.request_id,
            )  # fmt: skip
            await self._write(switch, parent=call.id, turn=call.turn)
        await self._write(said, parent=call.id, turn=call.turn)
        await self._keep(response, call)
        end: Payload
        if said.finish_reason in STOP_REASONS:
            end = record_completed(said, self._attempts[-1], response.stop_sequence)
        else:
            why = f"the reply ended with {response.finish_reason}"
            end = record_failed(started, response, why, self._attempts[-1])
        await self._write(end, parent=call.id, turn=call.turn)

    async def _record_failure(
        self,
        started: CallStarted,
        stream: EventStream | None,
        call: LogRecord,
        heard: _Heard,
        error: ProviderError | None,
    ) -> None:
        """Keep what had arrived as evidence, and say how the call ended."""
        partial = (stream.response if stream is not None else None) or getattr(error, "response", None)
        await self._write_told(call)
        if partial is not None and partial.message.content:
            again = isinstance(error, MalformedToolCallError) and can_be_said(partial)
            asked = self.provider.name, self.provider.model
            said = make_message(partial, heard, self._routing, asked, self._price, in_context=again)
            await self._write(said, parent=call.id, turn=call.turn)
        if partial is not None:
            await self._keep(partial, call)
        failed = record_failed(started, partial, error, self._attempts[-1])
        await self._write(failed, parent=call.id, turn=call.turn)

    async def _keep(self, response: Response, call: LogRecord) -> None:
        """Write the provider's own JSON down, if that is wanted and there is any."""
        if not self._keep_raw or response.raw is None:
            return
        facts = (
            response.request_id or "",
            response.provider or self.provider.name,
            response.model or self.provider.model,
        )
        try:
            await self._write(LlmExchangeKept(*facts, response.raw), parent=call.id, turn=call.turn)
        except InvalidRecordError as error:
            await self._write(LlmExchangeKept(*facts, problem=str(error)), parent=call.id, turn=call.turn)

    async def _correct(self, error: MalformedToolCallError, turn: str) -> None:
        """Tell the model that its proposal was none; nothing of that reply is run."""
        for kept in self.state.open_intents:
            reason = "another call of the same reply could not be used"
            await self._write(
                ToolIntentClosed(kept.intent.id, reason, kept.intent.tool_name), parent=kept.record, turn=turn
            )
        problem = f"Not run: {error.message}"
        if self.state.unanswered():
            await self._answer_calls(problem)
            return
        text = f"{problem}. Propose it again with arguments that fit the tool's schema, or answer without it."
        await self._write(MessageRecorded(User(text), message_id=new_message_id()), turn=turn, actor="system")

    async def _answer_calls(self, problem: str | None = None) -> None:
        """Show the model what became of its calls, in their order. One that is still open is left alone."""
        for call, intent_id in self.state.unanswered():
            kept = self.state.intents.get(intent_id or "")
            if kept is not None and kept.is_open:
                continue
            content, is_error = describe_end(kept) if kept is not None or problem is None else (problem, True)
            message = ToolResult(call.id, content, is_error)  # type: ignore[arg-type]
            said = MessageRecorded(
                message, message_id=new_message_id(), tool_ids={call.id: intent_id} if intent_id else {}
            )  # fmt: skip
            await self._write(said, parent=kept.record if kept else None, turn=self.state.turn)

    # --- writing ------------------------------------------------------------------------------------

    async def _write(self, payload: Payload, **place: Any) -> LogRecord:
        place.setdefault("parent", self.state.root)
        if place["parent"] is None:
            place["parent"] = self.state.root
        return await self._journal.write(payload, **place)

    async def _write_told(self, call: LogRecord) -> bool:
        """Write what middleware told during a call; was a change of route among it?"""
        told, self._told = self._told, []
        for payload in told:
            await self._write(payload, parent=call.id, turn=call.turn)
        return any(isinstance(payload, RoutingSwitched) for payload in told)

    def _tell(self, event: Event) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            log.warning("a listener of session %s failed", self.id, exc_info=True)

    def _target(self) -> str:
        return f"{self.provider.name}:{self.provider.model}"


def _as_user(goal: str | User) -> User:
    message = User(goal) if isinstance(goal, str) else goal
    if not message.content:
        raise ValueError("goal: is empty")
    return message


def _load(log: EventLog, session: str) -> State:
    """The state of a session whose chain is whole; of any other nothing is believed."""
    report = log.verify(session)
    if not report.ok:
        raise LogCorruptError(f"session {session!r} is not taken up: {report}")
    state = reduce_records(log.read(session))
    if state.root is None:
        raise SessionError(f"there is no session {session!r} in this log")
    return state
