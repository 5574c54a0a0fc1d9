"""Process an intent: validate, get permission, execute, observe; each step is a separate record.

No tool runs before its ``tool.started`` record is on disk, and after a crash only that record
shows that it ran.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

import msgspec
from msgspec.structs import replace

from .. import log as logs
from ..blocking import run_in_thread
from ..events import ToolIntent
from ..log.writer import finish_writing
from ..permission import Decision, Gate, Proposal, Verdict
from ..tools import (
    DEFAULT_OUTPUT_LIMIT,
    CallWaits,
    ExecutableTool,
    Observation,
    RecordedTool,
    SearchTools,
    Toolbox,
    ToolContext,
    ToolFailure,
    limit_output,
    make_observation,
)
from .answers import Answers, is_machine, make_decision, read_answers
from .budget import SharedBudget
from .journal import Journal
from .outcome import StepKind
from .parent import PARENT, ParentCall
from .progress import ProgressWriter
from .state import IntentState

MAX_AT_ONCE = 32
"""How many calls of a reply run at once."""


@dataclass(eq=False, kw_only=True)
class Pipeline:
    """Process the intents of one reply, from the last record of each.

    With ``waits``, the approver is not asked: an intent that needs a decision stays open. ``deps``
    are passed to tools with a context. ``depth`` is the number of sessions in whose tool calls
    this one runs. ``stays_open`` returns whether a call that is cancelled stays open for the next
    run.
    """

    tools: Toolbox
    gate: Gate
    journal: Journal
    account: SharedBudget
    stays_open: Callable[[], bool]
    waits: bool = False
    depth: int = 0
    deps: Any = None
    linked: set[str] = field(default_factory=set)

    async def refresh_tools(self) -> None:
        """Take changed tools from their sources; record which differ from the recorded ones."""
        if not await self.tools.refresh():
            return
        known = self.journal.state.tool_digests
        digests = {it.name: it.digest for it in self.tools}
        differing = {name: new for name, new in digests.items() if known.get(name) != new}
        removed = tuple([name for name in known if name not in digests])
        if differing or removed:
            tools = tuple([self.tools.find(name).description for name in differing])
            await self.journal.write(logs.ToolsChanged(tools, differing, removed))

    def find_continuable(self, *, unasked: bool) -> frozenset[str]:
        """Return the ids of the open intents that this session can continue.

        ``unasked`` is that of ``State.find_continuable``.
        """
        return self.journal.state.find_continuable(self._can_restart, unasked=unasked)

    def _can_restart(self, kept: IntentState) -> bool:
        return any(
            tool.name == kept.intent.tool_name and tool.if_interrupted is not None
            for tool in self.tools
        )

    async def read_answers(self) -> Answers:
        """Return the answers that other processes have given to this session."""
        return await asyncio.to_thread(read_answers, self.journal.log, self.journal.session)

    async def process(self, intents: Sequence[ToolIntent]) -> None:
        """Validate every intent, get permission for it, and run it if it is allowed.

        Intents run concurrently, up to 32 at once, if all their tools are read-only, otherwise in
        order: nothing runs here before what is in front of it has ended. Calls that run elsewhere
        are handed out together.
        """
        runs = await self._open_runs(intents)
        if len(intents) > 1 and self._may_overlap(intents):
            try:
                at_once = asyncio.Semaphore(MAX_AT_ONCE)
                async with asyncio.TaskGroup() as group:
                    for run in runs:
                        group.create_task(_process_within(at_once, run))
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None
            return
        if self.waits:  # ask all questions before the run ends
            for run in runs:
                await run.settle()
        is_blocked = False
        for run in runs:
            await run.settle()
            if run.kept.waits_for == "decision" or (is_blocked and not run.is_external):
                return
            await run.execute()
            is_blocked = is_blocked or run.kept.is_open

    async def advance(self, intents: Sequence[ToolIntent]) -> tuple[StepKind, ToolIntent] | None:
        """Take the next decision about the intents, or run the next one, as ``process`` would.

        Return what was done, and with which intent; ``None`` if nothing can be done before an
        answer arrives.
        """
        runs = await self._open_runs(intents)
        if self.waits:
            for run in runs:
                if await run.settle():
                    return "permission", run.intent
        is_blocked = False
        overlaps = self._may_overlap(intents)
        for run in runs:
            if await run.settle():
                return "permission", run.intent
            if not overlaps and (
                run.kept.waits_for == "decision" or (is_blocked and not run.is_external)
            ):
                return None
            if (kind := await run.execute()) is not None:
                return kind, run.intent
            is_blocked = is_blocked or run.kept.is_open
        return None

    async def _open_runs(self, intents: Sequence[ToolIntent]) -> list[_IntentRun]:
        kept = [self.journal.state.intents[intent.id] for intent in intents]
        has_waited = any(each.waits_for is not None for each in kept)
        answers = await self.read_answers() if has_waited else Answers()
        return [_IntentRun(each, self, answers) for each in kept]

    def _may_overlap(self, intents: Sequence[ToolIntent]) -> bool:
        return self.tools.may_overlap([intent.tool_name for intent in intents])


async def _process_within(at_once: asyncio.Semaphore, run: _IntentRun) -> None:
    async with at_once:
        await run.process()


class _IntentRun:
    """Process one intent. The parent of each of its records is the record before it."""

    def __init__(self, kept: IntentState, pipeline: Pipeline, answers: Answers) -> None:
        self.kept = kept
        self.intent = kept.intent
        self.tools = pipeline.tools
        self.gate = pipeline.gate
        self.journal = pipeline.journal
        self._pipeline = pipeline
        self._waits = pipeline.waits
        self._deps = pipeline.deps
        self._answers = answers
        self._permitted: Proposal | None = None

    @property
    def is_external(self) -> bool:
        """Whether the call runs outside of this session."""
        return self.kept.external or self.tools.find(self.intent.tool_name).external

    async def process(self) -> None:
        """Validate the intent, get permission for it, and run it if it is allowed."""
        await self.settle()
        await self.execute()

    async def settle(self) -> bool:
        """Validate the intent and get permission for it, unless that was done.

        Return whether something was recorded.
        """
        before = self.kept.record
        is_open = self.kept.is_open and self.kept.waits_for != "result"
        if is_open and self._permitted is None:
            await self._settle()
        return self.kept.record != before

    async def _settle(self) -> None:
        intent = self.intent
        rejection = self.tools.validate(intent.tool_name, self.kept.input)
        if rejection is not None:
            await self._reject(*rejection)
            return
        tool = self.tools.find(intent.tool_name)
        proposal = self._propose(tool, self.kept.input)
        if self.kept.started:
            await self._settle_again(tool, proposal)
            return
        if self.kept.side_effect is None:
            await self._write(
                logs.ToolIntentValidated(intent.id, tool.name, tool.side_effect, proposal.paths)
            )
        if not self.kept.granted:
            self._permitted = await self._permit(tool, proposal)
        elif self.gate.policy.judge(proposal).action == "deny":
            await self._close("it was allowed before a rule of the policy denied it")
        else:
            self._permitted = proposal

    async def _settle_again(self, tool: ExecutableTool, proposal: Proposal) -> None:
        """Decide whether a call that was interrupted runs again, or find out what it did."""
        if self.gate.policy.judge(proposal).action == "deny":
            await self._close("it was allowed before a rule of the policy denied it")
            return
        asked = self.kept.asked
        is_asked = asked is not None and asked.attempt > self.kept.attempt
        plan: object = "ask" if is_asked else tool.if_interrupted
        if callable(plan):
            plan = await self._reconcile(tool, plan)
        if plan == "run" or (is_asked and self.kept.granted):
            self._permitted = proposal
        elif plan == "ask":
            self._permitted = await self._permit_again(tool, proposal)

    async def _reconcile(
        self, tool: ExecutableTool, find: Callable[[ToolIntent], Any]
    ) -> Literal["ask", "run"] | None:
        """Ask the tool's function what an interrupted call did; record what it found.

        Return what to do if it found no result and the call has not come to an end.
        """
        intent = replace(self.intent, input=self.kept.input)
        try:
            async with asyncio.timeout(tool.timeout):
                found = await run_in_thread(partial(find, intent), "dragoman-tool")
                if inspect.isawaitable(found):
                    found = await found
            if found in ("ask", "run"):
                return cast("Literal['ask', 'run']", found)
            seen = None if found is None else make_observation(found)
        except Exception as error:
            name = type(error).__name__
            await self._close(f"what it did could not be found out: {name}: {error}")
            return None
        if seen is None:
            await self._close("the session ended while it ran")
        else:
            await self._observe(limit_output(seen, tool.output_limit))
        return None

    async def execute(self) -> StepKind | None:
        """Run the intent if it is permitted, or record the result of one that runs elsewhere.

        Return which of them was done, if any.
        """
        if self.kept.waits_for == "result":
            return "observation" if await self._receive() else None
        if self._permitted is None:
            return None
        is_done = await self._run(self.tools.find(self.intent.tool_name), self._permitted)
        return "execution" if is_done else None

    async def _reject(
        self, problem: Literal["unknown_tool", "invalid_arguments"], why: str
    ) -> None:
        if self.kept.side_effect is not None:  # the tool changed after the intent was validated
            await self._close(f"it cannot be run any more: {why}")
            return
        rejected = logs.ToolIntentRejected(self.intent.id, self.intent.tool_name, problem, why)
        await self._write(rejected)

    async def _close(self, reason: str) -> None:
        closed = logs.ToolIntentClosed(
            self.intent.id, reason, self.intent.tool_name, started=self.kept.started
        )
        await self._write(closed)

    async def _receive(self) -> bool:
        """Record the result of a call that runs elsewhere; return whether there is one."""
        result = self._answers.results.get(self.intent.id)
        if result is None:
            return False
        seen = Observation(result.content, is_error=result.is_error)
        limit = DEFAULT_OUTPUT_LIMIT
        if any(tool.name == self.intent.tool_name for tool in self.tools):
            limit = self.tools.find(self.intent.tool_name).output_limit
        await self._observe(limit_output(seen, limit))
        return True

    async def _write(self, payload: logs.Payload, actor: logs.Actor | None = None) -> None:
        await self.journal.write(
            payload, parent=self.kept.record, turn=self.kept.turn, actor=actor
        )

    def _propose(self, tool: ExecutableTool, given: dict[str, Any]) -> Proposal:
        return Proposal(
            tool_name=tool.name,
            input=given,
            side_effect=tool.side_effect,
            paths=tool.locate(given),
            intent_id=self.intent.id,
            session=self.journal.session,
            attempt=self.kept.attempt + self.kept.started,
        )

    async def _permit(self, tool: ExecutableTool, proposal: Proposal) -> Proposal | None:
        """Return the permitted call, or ``None`` if the call is denied or waits for a decision."""
        intent = self.intent
        decision = await self._decide(tool, proposal)
        if decision is None:
            return None
        if decision.allowed is True and isinstance(tool, RecordedTool):
            decision = tool.decisions.get(intent.id, decision)
        if decision.allowed is True and decision.input is not None:
            proposal, decision = self._edit(tool, proposal, decision)
        is_granted = False
        try:
            is_granted = await self._record(decision)
        finally:
            if not is_granted:  # a denial, or no record, covers no later call
                self.gate.forget(intent.id)
        return proposal if is_granted else None

    async def _permit_again(self, tool: ExecutableTool, proposal: Proposal) -> Proposal | None:
        """Return the call if it may run again, or ``None`` if not, or if it waits for a decision."""
        why = "it was interrupted, and what it did is not known"
        decision: Decision | None = None
        answered = self._answers.decisions.get((self.intent.id, proposal.attempt))
        if answered is not None:
            decision = make_decision(answered)
        else:
            await self._request(proposal, Verdict("ask", None, why))
            if not self._waits:
                decision = await self.gate.ask(proposal, Verdict("ask", None, why), once=True)
        if decision is None:
            return None
        if decision.allowed is True and decision.input not in (None, proposal.input):
            decision = _refuse_edit(decision, "a call runs again with the same input")
        return proposal if await self._record(replace(decision, input=None)) else None

    async def _request(self, proposal: Proposal, verdict: Verdict) -> None:
        """Record that a decision is needed, unless it was recorded before."""
        asked = self.kept.asked
        if asked is not None and asked.attempt == proposal.attempt:
            return
        requested = logs.PermissionRequested(
            intent_id=self.intent.id,
            tool_name=proposal.tool_name,
            reason=verdict.reason,
            rule=verdict.rule,
            attempt=proposal.attempt,
        )
        await self._write(requested)

    async def _record(self, decision: Decision) -> bool:
        """Record a decision, and return whether it allows the call."""
        intent = self.intent
        actor: logs.Actor = "system" if is_machine(decision.by) else "user"
        made: dict[str, Any] = {
            "intent_id": intent.id,
            "tool_name": intent.tool_name,
            "by": decision.by,
            "rule": decision.rule,
            "reason": decision.reason,
        }
        if decision.allowed is not True:
            await self._write(logs.PermissionDenied(**made), actor)
            return False
        granted = logs.PermissionGranted(
            **made,
            scope=decision.scope,
            prefix=decision.prefix,
            input=decision.input,
            rests_on=decision.rests_on,
        )
        await self._write(granted, actor)
        return True

    async def _decide(self, tool: ExecutableTool, proposal: Proposal) -> Decision | None:
        """Return the decision about a call, or ``None`` if it must come from another process."""
        verdict, decision = self.gate.settle(proposal)
        if isinstance(tool, SearchTools) and verdict.action == "ask":
            decision = decision or Decision(
                True, "policy", reason="it reads only the list of tools"
            )
        answered = self._answers.decisions.get((self.intent.id, proposal.attempt))
        if answered is not None and verdict.action != "deny":
            decision = replace(make_decision(answered), rule=verdict.rule)
            self.gate.remember(decision, proposal)
        if decision is not None:
            return decision
        await self._request(proposal, verdict)
        return None if self._waits else await self.gate.ask(proposal, verdict)

    def _edit(
        self, tool: ExecutableTool, proposal: Proposal, decision: Decision
    ) -> tuple[Proposal, Decision]:
        """Replace the proposed input with the input in the decision.

        If that input is invalid or a rule denies it, return the unchanged proposal and a denial.
        """
        if decision.input == proposal.input:
            return proposal, replace(decision, input=None)
        try:
            given: dict[str, Any] = msgspec.json.decode(
                msgspec.json.encode(decision.input), type=dict
            )
        except (TypeError, ValueError, RecursionError) as error:
            return proposal, _refuse_edit(decision, f"it is not JSON: {error}")
        rejection = self.tools.validate(proposal.tool_name, given)
        if rejection is not None:
            return proposal, _refuse_edit(decision, rejection[1])
        edited = self._propose(tool, given)
        verdict = self.gate.policy.judge(edited)
        if verdict.action == "deny":
            denied = _refuse_edit(decision, verdict.reason or "a rule denies it")
            return proposal, replace(denied, rule=verdict.rule)
        return edited, replace(decision, input=given)

    async def _run(self, tool: ExecutableTool, proposal: Proposal) -> bool:
        """Run a call, and record it; return ``False`` if it waits for something from outside."""
        intent = self.intent
        if not self.kept.started:
            excess = self._pipeline.account.take_call(self.journal.session)
            if excess is not None:
                await self._close(f"the budget of {excess.limit} tool calls is used up")
                return True
        context = {
            "side_effect": tool.side_effect,
            "timeout": tool.timeout,
            "output_limit": tool.output_limit,
            **tool.context(),
        }
        if tool.external:
            context = {"side_effect": tool.side_effect, "external": True}
        if self.kept.started:
            started: logs.Payload = logs.ToolRestarted(
                intent_id=intent.id,
                tool_name=tool.name,
                attempt=proposal.attempt,
                input=proposal.input,
                context=context,
            )
        else:
            started = logs.ToolStarted(intent.id, tool.name, proposal.input, context)
        await self._write(started)
        if tool.external:
            return True
        try:
            observation = await self._execute(tool, proposal)
        except CallWaits:
            return False
        except ToolFailure as failure:
            failed = logs.ToolFailed(
                intent_id=intent.id,
                tool_name=tool.name,
                kind=failure.kind,
                message=failure.message,
                duration_ms=failure.duration_ms,
            )
            await self._write(failed)
        except asyncio.CancelledError:
            if self._pipeline.stays_open():
                raise
            left = (
                "was stopped"
                if tool.interruptible
                else "cannot be interrupted and may still be running"
            )
            message = f"cancelled while it ran: it {left}, and what it did is not known"
            await self._write(
                logs.ToolFailed(
                    intent_id=intent.id, tool_name=tool.name, kind="cancelled", message=message
                )
            )
            raise
        else:
            await self._observe(observation)
        return True

    async def _execute(self, tool: ExecutableTool, proposal: Proposal) -> Observation:
        withheld = self.gate.policy.withheld(proposal)
        ask = partial(self._ask, tool)
        progress = ProgressWriter(self._record_progress)
        context: ToolContext[Any] = ToolContext(
            self.intent.id,
            self.journal.session,
            self.kept.attempt,
            self._deps,
            report=progress.report,
        )
        parent = ParentCall(
            kept=self.kept,
            journal=self.journal,
            gate=self.gate,
            account=self._pipeline.account,
            waits=self._waits,
            depth=self._pipeline.depth,
            linked=self._pipeline.linked,
            stays_open=self._pipeline.stays_open,
            deps=self._deps,
        )
        token = PARENT.set(parent)
        try:
            return await self.tools.execute(tool.name, proposal.input, withheld, ask, context)
        except BaseException:
            context.cancel()
            raise
        finally:
            PARENT.reset(token)
            await finish_writing(progress.close())

    async def _record_progress(self, progress: Any) -> None:
        await self._write(logs.ToolProgress(self.intent.id, self.intent.tool_name, progress))

    async def _ask(self, tool: ExecutableTool, question: dict[str, Any]) -> Decision:
        """Decide about a question of the running tool. A rule may deny it, but not answer it."""
        # An answer from another process to the call itself must not answer the question.
        proposal = Proposal(
            tool_name=tool.name,
            input=question,
            side_effect=tool.side_effect,
            paths=(),
            intent_id=f"{self.intent.id}.question",
            session=self.journal.session,
        )
        verdict = self.gate.policy.judge(proposal)
        if verdict.action == "deny":
            return Decision(False, "policy", reason=verdict.reason, rule=verdict.rule)
        return await self.gate.ask(proposal, verdict, once=True)

    async def _observe(self, seen: Observation) -> None:
        observed = logs.ToolObserved(
            intent_id=self.intent.id,
            tool_name=self.intent.tool_name,
            content=seen.content,
            is_error=seen.is_error,
            truncated=seen.truncated,
            exit_code=seen.exit_code,
            duration_ms=seen.duration_ms,
            details=seen.details,
        )
        try:
            await self._write(observed)
        except logs.InvalidRecordError as error:
            failed = logs.ToolFailed(
                intent_id=self.intent.id,
                tool_name=self.intent.tool_name,
                kind="unreadable",
                message=f"it ran, and what it gave back cannot be recorded: {error}",
                duration_ms=seen.duration_ms,
            )
            await self._write(failed)


def _refuse_edit(decision: Decision, why: str) -> Decision:
    return Decision(False, decision.by, reason=f"the edited input cannot be used: {why}")
