"""The session: the agent loop.

The loop calls the model, records and checks each proposed action, gets permission, runs the
action, records the observation and sends it to the model. Every step is in the log before the next
begins, and the state is derived from the log. ``supervisor`` runs and stops the loop, ``turn`` is
one pass of the loop, and ``closing`` ends open calls and intents when the session stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Self, cast

import msgspec

from .. import errors
from .. import log as logs
from ..events import Event, Parsed
from ..log.writer import finish_writing
from ..messages import (
    Assistant,
    LossWarning,
    Message,
    RuntimeConfig,
    ToolChoice,
    ToolResult,
    User,
    new_ulid,
)
from ..messages.display import Display, Displayed
from ..middleware.attempts import Price
from ..permission import Approver, Decision, Gate, Policy, Proposal, Rule, Verdict
from ..provider import Provider
from ..provider.awaited import awaited
from ..tools import Observation, Toolbox, Tools, add_search, gather_tools
from ..validate import ResponseSchema, parse_config
from ..validate.arguments import ConfigRecord
from ..validate.fields import accept_other_names
from ..wire import SwapPlan
from .answers import answer, observe
from .budget import Budget, SharedBudget
from .closing import close_open
from .context import ContextPolicy
from .display import describe_session
from .execution import Pipeline
from .fork import write_fork
from .journal import Journal, Watcher
from .loop import Goal, Loop, name_model, read_goal
from .outcome import Outcome, SessionError, Step
from .parent import PARENT, ParentCall
from .projector import Projector
from .state import State, reduce_records
from .supervisor import Supervisor
from .turn import TurnSettings

log = logging.getLogger("dragoman")

# Settings that have other names in other libraries.
OTHER_NAMES = {"approver": "approve", "output_type": "output", "response_schema": "output"}
HINTS = {
    "system_prompt": "write system=",
    "instructions": "write system=",
    "model": "the provider is the first argument",
    "temperature": 'write config={"temperature": ...}',
    "max_tokens": 'write config={"max_tokens": ...}',
    "max_steps": "write budget=Budget(steps=...)",
}

_HARMLESS = Rule("allow", side_effect=("none", "read"), name="tools that change nothing")


class Session(Displayed, Loop[Parsed]):
    """Run an agent: a provider and tools, usually with a policy and a log.

    ::

        async with SqliteLog("log.db") as log:
            session = Session(provider, workspace_tools("."), policy, log, approve=ask_me)
            outcome = await session.run("Find out why the tests fail and fix them.")

    Without a log the records are kept in memory, in ``session.log``, and are lost with the
    process. Without a policy only tools with ``side_effect="none"`` or ``"read"`` run without
    asking; ``outcome.denied`` has the calls that were denied. If a rule has a path but no tool
    that it is about names one, a ``ValueError`` is raised.

    ``run`` loops until the model answers without a tool call, a budget is exhausted, or ``cancel``
    is called; ``step`` takes one step of this loop. A provider's error is recorded and raised, and
    the session can be run again. With ``output``, a type, the model is asked at the end for a
    structured answer, and asked again if the answer is invalid; ``outcome.output`` is the
    instance. ``approve`` decides when the policy asks; without it, nothing that needs approval
    runs. With ``approve="wait"`` the run ends with the outcome ``waiting`` instead, and continues
    after ``answer``, which any process can call. ``on_record`` receives every record once it is
    stored, and ``on_event`` receives the model's events as they arrive: print the text of
    ``TextDelta`` to stream from a session. An invalid call is rejected, and the model receives the
    reason; after ``corrections`` unusable replies in a row, the next one raises an error.
    ``context`` is one or more policies that shorten a long conversation; without it everything is
    sent. With ``keep_raw`` the log also stores every reply as the provider's own JSON. Tools with
    a ``ToolContext`` receive ``deps`` in it. The session closes neither provider nor log, except a
    log it opened by path.
    """

    @accept_other_names(OTHER_NAMES, HINTS)
    def __init__(
        self,
        provider: Provider,
        tools: Tools = None,
        policy: Policy | None = None,
        log: logs.EventLog | str | Path | None = None,
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
        deps: Any = None,
    ) -> None:
        if not isinstance(provider, Provider):
            raise TypeError(_explain_provider(provider))
        self.provider = provider
        own = gather_tools(tools)
        self.tools = add_search(own)
        self.policy = Policy([_HARMLESS]) if policy is None else policy
        _check_rules(self.policy, own)
        parent = self._parent = PARENT.get()
        if parent is not None:  # this session runs in a tool call of another one
            parent.check_depth()
            self.policy = self.policy.narrow(parent.gate.policy)
        self.budget, self._account = _open_account(budget, parent)
        self.id = session_id or f"session_{new_ulid()}"
        self._owned = logs.open_log(log) if isinstance(log, str | Path) else None
        if log is None and parent is not None:
            log = parent.journal.log
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
        self._pipeline = self._make_pipeline(approve, policy, deps)
        self._routing = _choose(provider, "the provider the session was given", "default")
        self._supervisor = Supervisor(self.id)
        self._corrections = corrections
        self._queued: list[Goal] = []  # goals that are pursued after the current one

    def _make_pipeline(self, approve: object, policy: Policy | None, deps: Any) -> Pipeline:
        waits = approve == "wait"
        depth = 0
        parent = self._parent
        if parent is not None:
            depth = parent.depth + 1
            deps = parent.deps if deps is None else deps
            if approve is None:
                approve = parent.ask
                waits = parent.waits
        gate = Gate(self.policy, _find_approver(approve, policy))
        return Pipeline(
            tools=self.tools, gate=gate, journal=self._journal, account=self._account,
            waits=waits, depth=depth, deps=deps, stays_open=self._stays_open,
        )  # fmt: skip

    @classmethod
    async def resume(
        cls,
        provider: Provider,
        tools: Tools,
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

        The next ``run`` or ``step`` closes the open intents, each with its own record, and the
        model receives a result for each. Only calls whose ``on_resume`` allows it, or that only
        read, run again. Raise ``LogLockedError`` if another process still runs the session. With
        ``takeover`` the session is continued anyway: the other process gets ``LogConflictError``
        at its next record and stops. The outcome of a tool that it is running then is unknown.
        """
        session = cls(provider, tools, policy, log, session_id=session_id, **settings)
        await session._read_log(takeover)
        if at is not None and not 1 <= at <= session.state.last_seq:
            await session.close()
            raise SessionError(f"session {session_id!r} has no record {at}")
        session._at = at
        return session

    @classmethod
    async def open(
        cls,
        provider: Provider,
        tools: Tools,
        policy: Policy | None,
        log: logs.EventLog | str | Path,
        session_id: str,
        *,
        takeover: bool = False,
        **settings: Any,
    ) -> Session[Any]:
        """Return the session with this id: resume it if the log has it, otherwise begin it.

        ``(await Session.open(...)).run(goal, key="...")`` can thus be repeated after any crash.
        The errors are those of ``resume``.
        """
        session = cls(provider, tools, policy, log, session_id=session_id, **settings)
        known = await asyncio.to_thread(lambda: next(session.log.read(session_id), None))
        if known is not None:
            await session._read_log(takeover)
        return session

    async def _read_log(self, takeover: bool) -> None:
        """Take the state from the log; close the session if that fails."""
        try:
            async with self.log.hold(self.id, takeover=takeover):
                self._journal.state = await asyncio.to_thread(_load, self.log, self.id)
        except BaseException:
            await self.close()
            raise
        self._takeover = takeover
        self._loaded = True
        await asyncio.to_thread(count_spent, self._account, self.log, self.id, self.state)
        known = self.state.model
        if known is not None and known != name_model(self.provider):
            self._routing = _choose(self.provider, f"resumed with another provider than {known}")

    @classmethod
    async def fork(
        cls,
        provider: Provider,
        tools: Tools,
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
    def messages(self) -> list[Message]:
        """The conversation as it would be sent to the current provider."""
        return self.state.project(self.provider.name)

    # --- running the session --------------------------------------------------------------------

    @awaited
    async def run(
        self, goal: str | User | None = None, *, key: str | None = None
    ) -> Outcome[Parsed]:
        """Pursue a goal until the run ends. Without a goal, continue with the current one.

        The goal of a ``key`` is added once, so that the call can be repeated after a crash: it
        continues, and after the end it returns the recorded outcome. Without a key and a goal,
        raise ``SessionError`` if the model has answered, since there is nothing to continue.
        """
        step = await self._supervise(goal, key, once=False)
        assert step.outcome is not None
        return step.outcome

    async def step(self, goal: str | User | None = None, *, key: str | None = None) -> Step:
        """Take one step: call the model, or decide about one call, or run it.

        The step is in the log when this returns. It can thus be repeated after a crash, and steps
        can be taken by several processes, one after the other: a session that is resumed by
        ``step`` keeps the calls open that did not start.
        """
        return await self._supervise(goal, key, once=True)

    def follow_up(self, goal: str | User) -> None:
        """Queue a goal to pursue after the current one; a run in progress continues with it."""
        self._queued.append(Goal(read_goal(goal)))

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
        before = name_model(self.provider)
        plan = self._plan(provider)
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
        swapped = logs.ModelSwapped(before, name_model(provider), why, losses)

        async def replace() -> None:
            if self.state.root is not None and provider is not self.provider:
                await self._journal.write(swapped)
            self.provider = provider
            self._routing = _choose(provider, why)
            if config is not None:
                self._settings = msgspec.structs.replace(self._settings, config=config)
                self._projector.use_config(config)

        await finish_writing(replace())
        return plan

    def _plan(self, provider: Provider) -> SwapPlan:
        """Return what the next request to a model loses of the conversation.

        That request also has the results of open calls, or a message of the user. Without these
        messages, the plan would drop the calls and ask the model to continue its own text.
        """
        messages = self.state.project(provider.name)
        if not messages:
            return SwapPlan(target=f"{provider.name}:{provider.model}", items=())
        expected = _expect(self.state, provider.name)
        plan = provider.plan([*messages, *expected])
        end = len(messages) + len(expected)
        paths = tuple([f"messages[{at}]" for at in range(len(messages), end)])
        kept = tuple([item for item in plan.items if not item.path.startswith(paths)])
        return msgspec.structs.replace(plan, items=kept)

    async def close_open_intents(self, reason: str) -> tuple[str, ...]:
        """Close every open intent, and add a result for each to the conversation.

        Return the ids of the closed intents. Nothing runs.
        """
        self._supervisor.refuse_running()
        return await close_open(self._journal, reason)

    async def answer(self, intent_id: str, decision: Decision) -> Decision:
        """Decide about a call that this session waits for; return the decision that counts.

        ``dragoman.session.answer`` does this with the log alone. The next ``run`` continues.
        """
        session = await self._find_asking(intent_id)
        return await asyncio.to_thread(answer, self.log, session, intent_id, decision)

    async def observe(self, intent_id: str, content: Any, is_error: bool = False) -> Observation:
        """Give the result of a call that runs elsewhere; return the result that counts.

        ``dragoman.session.observe`` does this with the log alone. The next ``run`` continues.
        """
        session = await self._find_asking(intent_id)
        return await asyncio.to_thread(observe, self.log, session, intent_id, content, is_error)

    async def _find_asking(self, intent_id: str) -> str:
        """Return the id of the session that waits for an intent: this one, or one that it runs."""
        found = [each for each in await self._list_pending() if each.intent_id == intent_id]
        return found[0].session if found else self.id

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
        return f"<Session {self.id} {name_model(self.provider)}{where}>"

    def _display(self) -> Display:
        return describe_session(self.id, self.provider, self.state)

    # --- the agent loop -------------------------------------------------------------------------

    async def _supervise(self, goal: str | User | None, key: str | None, *, once: bool) -> Step:
        """Run the session in its own task, while this process holds the session's lease."""
        _check_key(goal, key)
        self._supervisor.refuse_running()
        async with self.log.hold(self.id, takeover=self._takeover):
            return await self._supervisor.run(
                self._drive(goal, key, once=once), self.budget.seconds
            )


def _check_key(goal: object, key: object) -> None:
    if key is None:
        return
    if not isinstance(key, str) or not 0 < len(key) <= 255 or not key.isprintable():
        raise ValueError("key: must be 1 to 255 printable characters")
    if goal is None:
        raise ValueError("key: belongs to a goal; give both")


def _choose(
    provider: Provider, reason: str, mode: Literal["default", "manual"] = "manual"
) -> logs.Routing:
    return logs.Routing(mode=mode, chosen=name_model(provider), reason=reason)


def _expect(state: State, provider: str) -> list[Message]:
    """Return messages in place of those that the next request adds to the conversation."""
    results: list[Message] = []
    for call, intent in state.unanswered():
        call_id = call.id if intent is None else state.ids.to_provider(provider, intent)
        results.append(ToolResult(call_id, "..."))
    last = state.messages[-1] if state.messages else None
    if results or last is None or not isinstance(last.message, Assistant):
        return results
    return [] if state.paused_by == provider else [User("...")]


def _load(log: logs.EventLog, session: str) -> State:
    """Return the state of a session; raise ``LogCorruptError`` unless its hash chain is intact."""
    report = log.verify(session)
    if not report.ok:
        raise logs.LogCorruptError(f"cannot resume session {session!r}: {report}")
    if report.erased:
        raise SessionError(
            f"cannot resume session {session!r}: the content of {report.erased} of its records was "
            "erased"
        )
    state = reduce_records(log.read(session))
    if state.root is None:
        raise SessionError(f"there is no session {session!r} in this log")
    return state


def _open_account(
    budget: Budget | SharedBudget | None, parent: ParentCall | None
) -> tuple[Budget, SharedBudget]:
    """Return the limits of a session, and the count of what it spends, also for those above it."""
    inherited = [] if parent is None else [parent.account]
    if isinstance(budget, SharedBudget):
        return budget.limits, SharedBudget(Budget(), [budget, *inherited])
    limits = budget or Budget()
    return limits, SharedBudget(limits, inherited)


def count_spent(account: SharedBudget, log: logs.EventLog, session: str, state: State) -> None:
    """Count what a session, and the sessions that its calls have run, spent before."""
    account.count(session, state.spent)
    for child in state.list_children():
        count_spent(account, log, child, reduce_records(log.read(child)))


def _find_approver(approve: object, policy: Policy | None) -> Approver | None:
    """Return the function to ask in this process."""
    if isinstance(approve, str) and approve != "wait":
        raise ValueError(f"approve: must be a function, 'wait' or None, not {approve!r}")
    if approve is None and policy is None:
        return _deny
    return cast("Approver", approve) if callable(approve) else None


def _deny(proposal: Proposal, verdict: Verdict) -> Decision:
    log.warning(
        "the call of %s was denied: the session has no policy= that allows it, and no approve= "
        "to ask",
        proposal.tool_name,
    )
    return Decision(
        False, "nobody", reason="there is no policy that allows it, and no approver to ask"
    )


def _explain_provider(given: object) -> str:
    if hasattr(given, "provider") and hasattr(given, "complete"):
        return (
            "Session: the provider is synchronous; use dragoman.sync.Session, or dragoman.connect"
        )
    if isinstance(given, str):
        return f"Session: the provider is a string; write Session(connect({errors.quote(given)}), ...)"
    return f"Session: the provider must be a Provider, not {type(given).__name__}"


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
