"""Process an intent: validate, get permission, execute, observe; each step is a separate record.

No tool runs before its ``tool.started`` record is on disk, and after a crash only that record
shows that it ran.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from .. import log as logs
from ..events import ToolIntent
from ..messages import Text, UserBlock
from ..permission import Decision, Gate, Proposal
from ..tools import (
    ExecutableTool,
    Observation,
    RecordedTool,
    SearchTools,
    Toolbox,
    ToolFailure,
)
from .journal import Journal
from .remote_approval import is_machine
from .state import IntentState


@dataclass(eq=False)
class Pipeline:
    """Process the intents of one reply."""

    tools: Toolbox
    gate: Gate
    journal: Journal

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

    async def process(self, intents: Sequence[ToolIntent], turn: str) -> None:
        """Validate every intent, get permission for it, and run it if it is allowed.

        Intents run concurrently if all their tools are read-only, otherwise in order.
        """
        runs = [_IntentRun(each, turn, self.tools, self.gate, self.journal) for each in intents]
        if len(intents) > 1 and self.tools.may_overlap([intent.tool_name for intent in intents]):
            try:
                async with asyncio.TaskGroup() as group:
                    for run in runs:
                        group.create_task(run.process())
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None
            return
        for run in runs:
            await run.process()


@dataclass(eq=False)
class _IntentRun:
    """Process one intent. The parent of each of its records is the record before it."""

    intent: ToolIntent
    turn: str
    tools: Toolbox
    gate: Gate
    journal: Journal

    def __post_init__(self) -> None:
        self._parent = self.journal.state.intents[self.intent.id].record

    async def process(self) -> None:
        """Validate the intent, get permission for it, and run it if it is allowed."""
        intent = self.intent
        rejection = self.tools.validate(intent.tool_name, intent.input)
        if rejection is not None:
            await self._write(logs.ToolIntentRejected(intent.id, intent.tool_name, *rejection))
            return
        tool = self.tools.find(intent.tool_name)
        proposal = self._propose(tool, intent.input)
        await self._write(
            logs.ToolIntentValidated(intent.id, tool.name, tool.side_effect, proposal.paths)
        )
        granted = await self._permit(tool, proposal)
        if granted is not None:
            await self._run(tool, granted)

    async def _write(self, payload: logs.Payload, actor: logs.Actor | None = None) -> None:
        record = await self.journal.write(
            payload, parent=self._parent, turn=self.turn, actor=actor
        )
        self._parent = record.id

    def _propose(self, tool: ExecutableTool, given: dict[str, Any]) -> Proposal:
        return Proposal(
            tool_name=tool.name,
            input=given,
            side_effect=tool.side_effect,
            paths=tool.locate(given),
            intent_id=self.intent.id,
            session=self.journal.session,
        )

    async def _permit(self, tool: ExecutableTool, proposal: Proposal) -> Proposal | None:
        """Return the permitted call, or ``None`` if the call is denied."""
        intent = self.intent
        verdict, decision = self.gate.settle(proposal)
        if decision is None and isinstance(tool, SearchTools):
            decision = Decision(True, "policy", reason="it reads only the list of tools")
        if decision is None:
            facts = intent.id, proposal.tool_name, verdict.reason, verdict.rule
            await self._write(logs.PermissionRequested(*facts))
            decision = await self.gate.ask(proposal, verdict)
        if decision.allowed is True and isinstance(tool, RecordedTool):
            decision = tool.decisions.get(intent.id, decision)
        if decision.allowed is True and decision.input is not None:
            proposal, decision = self._edit(tool, proposal, decision)
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
            return None
        granted = logs.PermissionGranted(
            **made, scope=decision.scope, prefix=decision.prefix, input=decision.input
        )
        await self._write(granted, actor)
        return proposal

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

    async def _run(self, tool: ExecutableTool, proposal: Proposal) -> None:
        intent = self.intent
        context = {
            "side_effect": tool.side_effect,
            "timeout": tool.timeout,
            "output_limit": tool.output_limit,
            **tool.context(),
        }
        await self._write(logs.ToolStarted(intent.id, tool.name, proposal.input, context))
        try:
            withheld = self.gate.policy.withheld(proposal)
            ask = partial(self._ask, tool)
            observation = await self.tools.execute(tool.name, proposal.input, withheld, ask)
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


def describe_end(kept: IntentState | None) -> tuple[object, bool]:
    """Return the tool result for a call, and whether it is an error.

    If the call ran with a different input than the model proposed, a note with that input comes
    first.
    """
    content, is_error = _describe_end(kept)
    if kept is None or kept.edited is None or not kept.started:
        return content, is_error
    note = (
        "[The user changed the input of this call; it ran with "
        f"{msgspec.json.encode(kept.edited).decode()}]"
    )
    if isinstance(content, str):
        return f"{note}\n{content}", is_error
    return (Text(note), *cast("tuple[UserBlock, ...]", content)), is_error


def _describe_end(kept: IntentState | None) -> tuple[object, bool]:
    end = kept.end if kept is not None else None
    if isinstance(end, logs.ToolObserved):
        return end.content, end.is_error
    if isinstance(end, logs.ToolFailed):
        return f"The tool did not come to an end ({end.kind}): {end.message}", True
    if isinstance(end, logs.PermissionDenied):
        why = f": {end.reason}" if end.reason else ""
        return f"Not run: permission denied by {end.by}{why}", False
    if isinstance(end, logs.ToolIntentRejected):
        return f"Not run: {end.detail or end.problem}", True
    if isinstance(end, logs.ToolIntentClosed):
        return describe_stop(kept, end.reason), True
    return "Not run: the call could not be used", True


def describe_stop(kept: IntentState | None, reason: str) -> str:
    """Return the tool result for a call that was stopped, or never started."""
    began = kept is not None and kept.started
    return f"{'Interrupted, and what it did is not known' if began else 'Not run'}: {reason}"
