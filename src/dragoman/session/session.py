"""The session: the agent loop.

The loop calls the model, records and checks each proposed action, gets permission, runs the
action, records the observation and sends it to the model. Every step is in the log before the next
begins, and the state is derived from the log. ``supervisor`` runs and stops the loop, ``turn`` is
one pass of the loop, and ``closing`` ends open calls and intents when the session stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, Self, cast

import msgspec
from msgspec import to_builtins

from .. import errors
from .. import log as logs
from ..calls import redact
from ..events import Event, Parsed, Response, Usage
from ..messages import LossWarning, Message, RuntimeConfig, System, ToolChoice, User, new_ulid
from ..messages.display import Display, Displayed
from ..middleware.attempts import Price
from ..permission import Approver, Decision, Gate, Policy, Proposal, Rule, Verdict
from ..prices import Unpriced
from ..provider import Provider
from ..tools import ExecutableTool, Toolbox, add_search, gather_tools
from ..validate import ResponseSchema, parse_config
from ..validate.arguments import ConfigRecord
from ..wire import SwapPlan
from .budget import Budget
from .closing import close_open
from .context import ContextPolicy
from .display import describe_session
from .execution import Pipeline
from .fork import write_fork
from .journal import Journal, Watcher, finish_writing
from .outcome import Ending, Outcome, SessionError, Step, find_ending, make_outcome
from .projector import Projector
from .records import record_message
from .state import State, reduce_records
from .supervisor import Supervisor
from .turn import RUNNABLE, Turn, TurnSettings

log = logging.getLogger("dragoman")

_HARMLESS = Rule("allow", side_effect=("none", "read"), name="tools that change nothing")
_FINAL = "Now give the final answer in the required form, as JSON alone."


class Session(Displayed, Generic[Parsed]):
    """Run an agent: a provider and tools, usually with a policy and a log.

    ::

        async with SqliteLog("log.db") as log:
            session = Session(provider, workspace_tools("."), policy, log, approve=ask_me)
            outcome = await session.run("Find out why the tests fail and fix them.")

    Without a log the records are kept in memory, in ``session.log``, and are lost with the
    process. Without a policy only tools with ``side_effect="none"`` or ``"read"`` run without
    asking; ``outcome.denied`` has the calls that were denied. A rule with a path about tools that never name paths is a ``ValueError``.

    ``run`` loops until the model answers without a tool call, a budget is exhausted, or ``cancel``
    is called; ``step`` runs one turn. A provider's error is recorded and raised, and the session
    can be run again. With ``output``, a type, the model is asked at the end for a structured
    answer, and asked again if the answer is invalid; ``outcome.output`` is the instance.
    ``approve`` decides when the policy asks; without it, nothing that needs approval runs.
    ``on_record`` receives every record once it is stored, and ``on_event`` receives the model's
    events as they arrive: print the text of ``TextDelta`` to stream from a session. An invalid
    call is rejected, and the model receives the reason; after ``corrections`` unusable replies in
    a row, the next one raises an error. ``context`` is one or more policies that shorten a long
    conversation; without it everything is sent. With ``keep_raw`` the log also stores every reply
    as the provider's own JSON. The session closes neither provider nor log, except a log it opened
    by path.
    """

    def __init__(
        self,
        provider: Provider,
        tools: Iterable[ExecutableTool | Callable[..., Any]] | Toolbox | None = None,
        policy: Policy | None = None,
        log: logs.EventLog | str | Path | None = None,
        *,
        session_id: str | None = None,
        system: str | None = None,
        config: RuntimeConfig | ConfigRecord | None = None,
        tool_choice: ToolChoice | None = None,
        budget: Budget | None = None,
        approve: Approver | None = None,
        on_record: Watcher | None = None,
        on_event: Callable[[Event], object] | None = None,
        price: Price | None = None,
        metadata: dict[str, Any] | None = None,
        keep_raw: bool = False,
        output: ResponseSchema[Parsed] | None = None,
        corrections: int = 2,
        context: ContextPolicy | Sequence[ContextPolicy] | None = None,
    ) -> None:
        self.provider = provider
        own = gather_tools(tools)
        self.tools = add_search(own)
        self.policy = Policy([_HARMLESS]) if policy is None else policy
        _check_rules(self.policy, own)
        self.budget = budget or Budget()
        self.id = session_id or f"session_{new_ulid()}"
        self._owned = logs.open_log(log) if isinstance(log, str | Path) else None
        self.log: logs.EventLog = self._owned or (
            log if isinstance(log, logs.EventLog) else logs.MemoryLog()
        )
        self._system = system
        texts = {key: value for key, value in (metadata or {}).items() if isinstance(value, str)}
        self._settings = TurnSettings(
            parse_config(config), tool_choice, price, keep_raw, on_event, texts, output
        )
        self._metadata = dict(metadata or {})
        self._journal = Journal(self.log, self.id, State(), on_record)
        policies = (context,) if isinstance(context, ContextPolicy) else tuple(context or ())
        self._projector = Projector(policies, self._journal, self._settings.config, price)
        gate = Gate(self.policy, _deny if policy is None and approve is None else approve)
        self._pipeline = Pipeline(self.tools, gate, self._journal)
        self._routing = logs.Routing(
            mode="default",
            chosen=_name(self.provider),
            reason="the provider the session was given",
        )
        self._loaded = False
        self._takeover = False
        self._supervisor = Supervisor(self.id)
        self._corrections = corrections
        self._unusable = 0  # how many unusable replies there were in a row
        self._queued: list[User] = []  # goals that are pursued after the current one
        # The number of the record to continue after, if it is not the last one.
        self._at: int | None = None
        self._final = False  # whether the next turn requests the structured answer

    @classmethod
    async def resume(
        cls,
        provider: Provider,
        tools: Iterable[ExecutableTool | Callable[..., Any]] | Toolbox | None,
        policy: Policy | None,
        log: logs.EventLog | str | Path,
        session_id: str,
        *,
        takeover: bool = False,
        at: int | None = None,
        **settings: Any,
    ) -> Session[Any]:
        """Continue a session from its log, however the session ended.

        With ``at`` the conversation continues after that record: later messages stay in the log
        and are not sent.

        Nothing runs again. The next ``run`` or ``step`` closes the open intents, each with its own
        record, and the model receives a result for each. Raise ``LogLockedError`` if another
        process still runs the session. With ``takeover`` the session is continued anyway: the
        other process gets ``LogConflictError`` at its next record and stops. The outcome of a tool
        that it is running then is unknown.
        """
        session = cls(provider, tools, policy, log, session_id=session_id, **settings)
        session._takeover = takeover
        try:
            async with session.log.hold(session_id, takeover=takeover):
                session._journal.state = await asyncio.to_thread(_load, session.log, session_id)
        except BaseException:
            await session.close()
            raise
        session._loaded = True
        if at is not None and not 1 <= at <= session.state.last_seq:
            await session.close()
            raise SessionError(f"session {session_id!r} has no record {at}")
        session._at = at
        known = session.state.model
        if known is not None and known != _name(session.provider):
            session._routing = logs.Routing(
                mode="manual",
                chosen=_name(session.provider),
                reason=f"resumed with another provider than {known}",
            )
        return session

    @classmethod
    async def fork(
        cls,
        provider: Provider,
        tools: Iterable[ExecutableTool | Callable[..., Any]] | Toolbox | None,
        policy: Policy | None,
        log: logs.EventLog | str | Path,
        session_id: str,
        *,
        at: int | None = None,
        new_id: str | None = None,
        **settings: Any,
    ) -> Session[Any]:
        """Begin a new session with the conversation of another session up to record ``at``.

        By default, ``at`` is the last record.

        The other session is not changed and may still run. The first record of the new session
        refers to it, and the new session has its own budget. Tool calls that the other session
        proposed do not run in the new one.
        """
        owned = logs.open_log(log) if isinstance(log, str | Path) else None
        name = new_id or f"session_{new_ulid()}"
        try:
            await write_fork(owned or cast("logs.EventLog", log), session_id, at, name)
        finally:
            if owned is not None:
                await asyncio.to_thread(owned.close)
        return await cls.resume(provider, tools, policy, log, name, **settings)

    @property
    def state(self) -> State:
        """The state derived from the records of this session."""
        return self._journal.state

    @property
    def messages(self) -> list[Message]:
        """The conversation as it would be sent to the current provider."""
        return self.state.project(self.provider.name)

    # --- running the session --------------------------------------------------------------------

    async def run(self, goal: str | User | None = None) -> Outcome[Parsed]:
        """Pursue a goal until the run ends. Without a goal, continue with the current one."""
        step = await self._supervise(goal, once=False)
        assert step.outcome is not None
        return step.outcome

    async def step(self, goal: str | User | None = None) -> Step:
        """Run one turn: call the model, and process every tool call in its reply."""
        return await self._supervise(goal, once=True)

    def follow_up(self, goal: str | User) -> None:
        """Queue a goal to pursue after the current one; a run in progress continues with it."""
        self._queued.append(_as_user(goal))

    async def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Stop the run and wait until that is recorded; return ``False`` if nothing is running."""
        return await self._supervisor.cancel(reason)

    async def swap(
        self, provider: Provider, reason: str = "", *, config: RuntimeConfig | None = None
    ) -> SwapPlan:
        """Continue with another model, and return a plan of what the conversation loses.

        With ``config``, continue with these settings, also with the same model. Nothing is sent.

        Raise ``InvalidRequestError`` if the other model cannot accept the conversation at all.
        """
        self._supervisor.refuse_running()
        before = _name(self.provider)
        messages = self.state.project(provider.name)
        plan = (
            provider.plan(messages)
            if messages
            else SwapPlan(target=f"{provider.name}:{provider.model}", items=())
        )
        if plan.refused is not None or (plan.fits is False and self._projector.keeps_all):
            problem = (
                plan.refused
                or f"about {plan.estimated_tokens} tokens do not fit its window of {plan.context_tokens}"
            )
            raise errors.InvalidRequestError(
                f"swap to {plan.target}: {problem}", provider=provider.name, model=provider.model
            )
        losses = tuple([LossWarning(item.rule, item.path, item.reason) for item in plan.losses])
        why = reason or "swapped by the caller"
        swapped = logs.ModelSwapped(before, _name(provider), why, losses)

        async def replace() -> None:
            if self.state.root is not None and provider is not self.provider:
                await self._journal.write(swapped)
            self.provider = provider
            self._routing = logs.Routing(mode="manual", chosen=_name(provider), reason=why)
            if config is not None:
                self._settings = msgspec.structs.replace(self._settings, config=config)
                self._projector.use_config(config)

        await finish_writing(replace())
        return plan

    async def close_open_intents(self, reason: str) -> tuple[str, ...]:
        """Close every open intent, and add a result for each to the conversation.

        Return the ids of the closed intents. Nothing runs.
        """
        self._supervisor.refuse_running()
        return await close_open(self._journal, reason)

    async def close(self) -> None:
        """Close the log, if the session opened it."""
        if self._owned is not None:
            await asyncio.to_thread(self._owned.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        where = ", log in memory" if isinstance(self.log, logs.MemoryLog) else ""
        return f"<Session {self.id} {_name(self.provider)}{where}>"

    def _display(self) -> Display:
        return describe_session(self.id, self.provider, self.state)

    # --- the agent loop -------------------------------------------------------------------------

    async def _supervise(self, goal: str | User | None, *, once: bool) -> Step:
        """Run the session in its own task, while this process holds the session's lease."""
        self._supervisor.refuse_running()
        async with self.log.hold(self.id, takeover=self._takeover):
            return await self._supervisor.run(self._drive(goal, once=once), self.budget.seconds)

    async def _drive(self, goal: str | User | None, *, once: bool) -> Step:
        begun = False
        try:
            await finish_writing(self._begin(goal))
            begun = True
            step = await self._advance()
            while not once and step.outcome is None:
                step = await self._advance()
        except asyncio.CancelledError:
            return await finish_writing(self._wind_up())
        except logs.LogError:
            raise  # the log failed or another process took over, so nothing more can be written
        except Exception as error:
            if begun:
                word = (
                    error.kind if isinstance(error, errors.ProviderError) else type(error).__name__
                )
                detail = redact(f"{word}: {error}"[:2000])
                left = "the session failed before it came to this"
                try:
                    await finish_writing(self._finish("failed", detail, left=left))
                except asyncio.CancelledError:
                    # After ``cancel()``, which came too late, ``run()`` raises the error. A task
                    # that is cancelled must raise its cancellation.
                    if self._supervisor.stop is None:
                        raise
            raise
        return step

    async def _advance(self) -> Step:
        """Run one turn, unless the session has ended."""
        if self._queued and self.state.has_answered:

            async def take() -> None:  # a goal that could not be recorded stays in the queue
                await self._journal.write(record_message(self._queued[0]))
                self._queued.pop(0)

            await finish_writing(take())
        if self.state.has_answered:
            reason = self.state.messages[-1].finish_reason or "stop"
            if self._settings.output is None or reason != "stop":
                return Step(
                    self.state.spent.turns, None, (), await self._finish(*find_ending(reason))
                )
            await self._journal.write(record_message(User(_FINAL)), actor="system")
            self._final = True
        excess = self.budget.find_excess(self.state.spent)
        if excess is None:
            return await self._turn()
        await self._journal.write(excess)
        detail = excess.detail or f"the budget of {excess.limit} {excess.unit} is used up"
        return Step(self.state.spent.turns, None, (), await self._finish("exhausted", detail))

    async def _turn(self) -> Step:
        await self._pipeline.refresh_tools()
        number = self.state.spent.turns + 1
        final = self._settings.output is not None and (self._final or not self.tools.describe())
        turn = Turn(
            number, self.provider, self._routing, self.tools, self._journal, self._projector,
            self._settings,
            final=final,
        )  # fmt: skip
        try:
            response, intents = await turn.run(self._pipeline)
        except (errors.MalformedToolCallError, errors.StructuredOutputError) as error:
            self._unusable += 1
            if self._unusable > self._corrections:
                raise
            if isinstance(error, errors.StructuredOutputError):
                await turn.correct_output(error)
            else:
                await turn.correct(error)
            return Step(number, error.response)
        rejected = [self.state.intents[intent.id].end for intent in intents]
        if rejected and all(isinstance(end, logs.ToolIntentRejected) for end in rejected):
            self._unusable += 1
            if self._unusable > self._corrections:
                raise _reject(response, rejected[0])
        else:
            self._unusable = 0
        if intents and response.finish_reason in RUNNABLE:
            return Step(number, response, intents)
        await close_open(self._journal, f"the reply ended with {response.finish_reason}")
        if response.is_paused or (
            self._queued and self.state.has_answered and response.finish_reason == "stop"
        ):
            return Step(number, response, intents)
        if self._settings.output is not None and not final and response.finish_reason == "stop":
            # The session continues: the next turn requests the structured answer.
            return Step(number, response, intents)
        ending = find_ending(response.finish_reason)
        return Step(number, response, intents, await self._finish(*ending, parsed=response.parsed))

    async def _wind_up(self) -> Step:
        stop = self._supervisor.stop
        ending, reason = (
            (stop.ending, stop.reason)
            if stop
            else ("cancelled", "the task that ran it was cancelled")
        )
        over = self.state.finished  # the session may have ended while it was being stopped
        if over is not None:
            outcome = make_outcome(self.id, self.state, over.outcome, over.detail)
        elif self.state.root is not None:
            await close_open(self._journal, reason)
            if ending == "exhausted":
                await self._journal.write(self.budget.time_exceeded())
            outcome = await self._finish(ending, reason)
        else:
            outcome = make_outcome(self.id, self.state, ending, reason)
        if stop is None:
            raise asyncio.CancelledError
        return Step(self.state.spent.turns, None, (), outcome)

    # --- starting and finishing the session -----------------------------------------------------

    async def _begin(self, goal: str | User | None) -> None:
        is_queued = goal is None and bool(self._queued)
        if is_queued:
            goal = self._queued[0]
        if self.state.root is None:
            await self._start(goal)
        elif (
            self._at is None
            and goal is None
            and self.state.finished is not None
            and self.state.has_answered
        ):
            raise SessionError("the model has answered; give the session another goal")
        elif self._loaded or self.state.finished is not None:
            await self._continue("another goal" if goal is not None else "to go on")
            self._loaded = False
        if goal is None and not any(
            isinstance(entry.message, User) for entry in self.state.messages
        ):
            goal = self.state.goal  # the session ended before its first message was written
        if goal is not None:
            message = _as_user(goal)
            if self._system and not self.state.messages:
                await self._journal.write(record_message(System(self._system)))
            await self._journal.write(record_message(message))
        if is_queued:
            self._queued.pop(0)

    async def _start(self, goal: str | User | None) -> None:
        if goal is None:
            raise SessionError("a new session needs a goal; pass a text to run()")
        if next(iter(self.log.read(self.id)), None) is not None:
            raise SessionError(
                f"there is a session {self.id!r} in this log already; use Session.resume"
            )
        _check_price(self.provider, self.budget, self._settings.price)
        message = _as_user(goal)
        metadata = {
            "budget": to_builtins(self.budget, enc_hook=str),
            "policy": repr(self.policy),
            **self._metadata,
        }
        digests = {tool.name: tool.digest for tool in self.tools}
        started = logs.SessionStarted(
            goal=message.text,
            model=self.provider.model,
            provider=self.provider.name,
            tools=tuple(digests),
            metadata=metadata,
            tool_digests=digests,
            definitions=self.tools.describe(),
        )
        await self._journal.write(started)

    async def _continue(self, why: str) -> None:
        """Record that the session is resumed; close the call and the intents left open."""
        state = self.state
        dangling = tuple([kept.intent.id for kept in state.open_intents])
        ended = state.finished.outcome if state.finished is not None else "interrupted"
        reason = f"{why}; it was {ended}"
        digests = {tool.name: tool.digest for tool in self.tools}
        changed = {
            name: new for name, new in digests.items() if state.tool_digests.get(name, new) != new
        }
        known = state.tool_digests
        definitions = tuple(
            [tool.description for tool in self.tools if known.get(tool.name) != digests[tool.name]]
        )
        resumed = logs.SessionResumed(
            after=state.last_seq,
            open_intents=dangling,
            reason=reason,
            epoch=state.epoch + 1,
            takeover=self._takeover,
            changed_tools=changed,
            definitions=definitions,
            at=self._at,
        )
        await self._journal.write(resumed)
        self._at = None
        self._takeover = False
        await close_open(self._journal, "the session ended before this came to an end")

    async def _finish(
        self, ending: Ending, detail: str | None = None, parsed: Any = None, left: str = ""
    ) -> Outcome[Parsed]:
        """Record how the run ended; with ``left``, first close what is open, for that reason."""
        if left:
            await close_open(self._journal, left)
        await self._journal.write(logs.SessionFinished(ending, detail, self.state.spent.turns))
        self._final = False
        return make_outcome(self.id, self.state, ending, detail, parsed)


def _name(provider: Provider) -> str:
    return f"{provider.name}:{provider.model}"


def _as_user(goal: str | User) -> User:
    message = User(goal) if isinstance(goal, str) else goal
    if not message.content:
        raise ValueError("goal: is empty")
    return message


def _check_price(provider: Provider, budget: Budget, price: Price | None) -> None:
    """Raise ``ValueError`` if the cost is limited and the price of the model is unknown."""
    if budget.cost_usd is None:
        return
    nothing = Usage(input_tokens=0, output_tokens=0)
    found = (
        price(nothing, _name(provider)) if price is not None else provider.priced_as.cost(nothing)
    )
    if isinstance(found, Unpriced):
        raise ValueError(
            f"budget.cost_usd: the price of {_name(provider)} is not known: {found.reason}"
        )


def _reject(response: Response, end: Any) -> errors.MalformedToolCallError:
    return errors.MalformedToolCallError(
        f"tool call ({errors.cut(end.tool_name)}): {end.detail or end.problem}",
        provider=response.provider,
        model=response.model,
        request_id=response.request_id,
        response=response,
    )


def _load(log: logs.EventLog, session: str) -> State:
    """Return the state of a session; raise ``LogCorruptError`` unless its hash chain is intact."""
    report = log.verify(session)
    if not report.ok:
        raise logs.LogCorruptError(f"cannot resume session {session!r}: {report}")
    state = reduce_records(log.read(session))
    if state.root is None:
        raise SessionError(f"there is no session {session!r} in this log")
    return state


def _deny(proposal: Proposal, verdict: Verdict) -> Decision:
    log.warning(
        "the call of %s was denied: the session has no policy= that allows it, and no approve= "
        "to ask",
        proposal.tool_name,
    )
    return Decision(
        False, "nobody", reason="there is no policy that allows it, and no approver to ask"
    )


def _check_rules(policy: Policy, tools: Toolbox) -> None:
    """Raise ``ValueError`` for a rule that would not stop the calls that it is about."""
    for rule in policy.find_idle(
        [(tool.name, tool.side_effect, tool.names_paths) for tool in tools]
    ):
        about = [tool.name for tool in tools if rule.is_about(tool.name, tool.side_effect)]
        if about:
            raise ValueError(
                f"the rule {rule.label!r} has a path, but {', '.join(about)} never names paths; "
                "use arguments instead"
            )
