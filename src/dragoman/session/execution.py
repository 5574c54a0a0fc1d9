"""Process an intent: validate, get permission, execute, observe; each step is a separate record.

No tool runs before its ``tool.started`` record is on disk, and after a crash only that record
shows that it ran.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from .. import log as logs
from ..events import ToolIntent
from ..messages import Text, UserBlock
from ..permission import Decision, Gate, Proposal
from ..tools import ExecutableTool, Observation, RecordedTool, Toolbox, ToolFailure
from .answers import is_machine
from .journal import Journal
from .state import IntentState


class Pipeline:
    """Process the intents of one reply."""

    def __init__(self, tools: Toolbox, gate: Gate, journal: Journal) -> None:
        self._tools = tools
        self._gate = gate
        self._journal = journal

    async def process(self, intents: Sequence[ToolIntent], turn: str) -> None:
        """Validate every intent, get permission for it, and run it if it is allowed.

        Intents run concurrently if all their tools are read-only, otherwise in order.
        """
        if len(intents) > 1 and self._tools.may_overlap([intent.tool_name for intent in intents]):
            await self._process_together(intents, turn)
            return
        for intent in intents:
            await self._process_one(intent, turn)

    async def _process_together(self, intents: Sequence[ToolIntent], turn: str) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for intent in intents:
                    group.create_task(self._process_one(intent, turn))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _process_one(self, intent: ToolIntent, turn: str) -> None:
        parent = self._journal.state.intents[intent.id].record
        rejection = self._tools.validate(intent.tool_name, intent.input)
        if rejection is not None:
            rejected = logs.ToolIntentRejected(intent.id, intent.tool_name, *rejection)
            await self._journal.write(rejected, parent=parent, turn=turn)
            return
        tool = self._tools.find(intent.tool_name)
        paths = tool.locate(intent.input)
        validated = logs.ToolIntentValidated(intent.id, tool.name, tool.side_effect, paths)
        record = await self._journal.write(validated, parent=parent, turn=turn)
        proposal = self._propose(intent, tool, intent.input, paths)
        granted = await self._permit(intent, tool, proposal, record.id, turn)
        if granted is not None:
            await self._run(intent, tool, *granted, turn)

    def _propose(
        self,
        intent: ToolIntent,
        tool: ExecutableTool,
        given: dict[str, Any],
        paths: tuple[str, ...],
    ) -> Proposal:
        return Proposal(
            tool.name, given, tool.side_effect, paths, intent.id, self._journal.session
        )

    async def _permit(
        self,
        intent: ToolIntent,
        tool: ExecutableTool,
        proposal: Proposal,
        parent: str,
        turn: str,
    ) -> tuple[Proposal, str] | None:
        """Return the permitted call and the id of the record that permits it.

        The result is ``None`` if the call is denied.
        """
        verdict, decision = self._gate.settle(proposal)
        if decision is None:
            asked = logs.PermissionRequested(
                intent.id, proposal.tool_name, verdict.reason, verdict.rule
            )
            parent = (await self._journal.write(asked, parent=parent, turn=turn)).id
            decision = await self._gate.ask(proposal, verdict)
        if decision.allowed is True and isinstance(tool, RecordedTool):
            decision = tool.decisions.get(intent.id, decision)
        if decision.allowed is True and decision.input is not None:
            proposal, decision = self._edit(intent, proposal, decision)
        record = await self._record_decision(intent, decision, parent, turn)
        return (proposal, record) if record is not None else None

    def _edit(
        self, intent: ToolIntent, proposal: Proposal, decision: Decision
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
        rejection = self._tools.validate(proposal.tool_name, given)
        if rejection is not None:
            return proposal, _refuse_edit(decision, rejection[1])
        tool = self._tools.find(proposal.tool_name)
        edited = self._propose(intent, tool, given, tool.locate(given))
        verdict = self._gate.policy.judge(edited)
        if verdict.action == "deny":
            return proposal, replace(
                _refuse_edit(decision, verdict.reason or "a rule denies it"), rule=verdict.rule
            )
        return edited, replace(decision, input=given)

    async def _record_decision(
        self, intent: ToolIntent, decision: Decision, parent: str, turn: str
    ) -> str | None:
        actor = "system" if is_machine(decision.by) else "user"
        facts = (intent.id, intent.tool_name, decision.by, decision.rule, decision.reason)
        if decision.allowed is not True:
            denied = logs.PermissionDenied(*facts)
            await self._journal.write(denied, parent=parent, turn=turn, actor=actor)  # type: ignore[arg-type]
            return None
        granted = logs.PermissionGranted(*facts, decision.scope, decision.prefix, decision.input)
        return (await self._journal.write(granted, parent=parent, turn=turn, actor=actor)).id  # type: ignore[arg-type]

    async def _run(
        self, intent: ToolIntent, tool: ExecutableTool, proposal: Proposal, parent: str, turn: str
    ) -> None:
        context = {
            "side_effect": tool.side_effect,
            "timeout": tool.timeout,
            "output_limit": tool.output_limit,
        }
        started = logs.ToolStarted(
            intent.id, tool.name, proposal.input, {**context, **tool.context()}
        )
        parent = (await self._journal.write(started, parent=parent, turn=turn)).id
        try:
            withheld = self._gate.policy.withheld(proposal)
            observation = await self._tools.execute(tool.name, proposal.input, withheld)
        except ToolFailure as failure:
            failed = logs.ToolFailed(
                intent.id, tool.name, failure.kind, failure.message, failure.duration_ms
            )
            await self._journal.write(failed, parent=parent, turn=turn)
        except asyncio.CancelledError:
            left = (
                "was stopped"
                if tool.interruptible
                else "cannot be interrupted and may still be running"
            )
            message = f"cancelled while it ran: it {left}, and what it did is not known"
            await self._journal.write(
                logs.ToolFailed(intent.id, tool.name, "cancelled", message),
                parent=parent,
                turn=turn,
            )
            raise
        else:
            await self._observe(intent, observation, parent, turn)

    async def _observe(
        self, intent: ToolIntent, seen: Observation, parent: str, turn: str
    ) -> None:
        observed = logs.ToolObserved(
            intent.id, intent.tool_name, seen.content, seen.is_error, seen.truncated,
            seen.exit_code,
            seen.duration_ms, seen.details,
        )  # fmt: skip
        try:
            await self._journal.write(observed, parent=parent, turn=turn)
        except logs.InvalidRecordError as error:
            message = f"it ran, and what it gave back cannot be recorded: {error}"
            failed = logs.ToolFailed(
                intent.id, intent.tool_name, "unreadable", message, seen.duration_ms
            )
            await self._journal.write(failed, parent=parent, turn=turn)


def _refuse_edit(decision: Decision, why: str) -> Decision:
    return Decision(False, decision.by, f"the edited input cannot be used: {why}")


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
