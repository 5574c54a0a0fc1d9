"""The loop of a session: begin, call the model, process the tool calls, and finish.

The state is derived from the log alone, so the loop continues after any record of it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Generic

import msgspec
from msgspec import Struct, to_builtins

from .. import errors
from .. import log as logs
from ..calls import redact
from ..events import Parsed, Response, ToolIntent, Usage
from ..log.writer import finish_writing
from ..messages import Assistant, System, Text, User
from ..middleware.attempts import Price
from ..permission import Policy
from ..prices import Unpriced
from ..provider import Provider
from ..tools import Toolbox
from ..validate.structured import convert_value, unwrap
from .answers import find_answered
from .budget import Budget, SharedBudget
from .closing import answer_calls, close_open
from .execution import Pipeline
from .journal import Journal
from .outcome import Ending, Outcome, SessionError, Step, StepKind, find_ending, make_outcome
from .parent import ParentCall
from .pending import Pending, describe_pending, list_pending
from .projector import Projector
from .records import record_message
from .state import RUNNABLE, State
from .supervisor import Supervisor
from .turn import Turn, TurnSettings

_FINAL = "Now give the final answer in the required form, as JSON alone."


class Goal(Struct, frozen=True):
    """A goal in the queue. A session pursues the goal of a key once."""

    message: User
    key: str | None = None


class Loop(Generic[Parsed]):
    """Advance a session turn by turn; ``Session`` has the methods for its users."""

    provider: Provider
    tools: Toolbox
    policy: Policy
    budget: Budget
    _account: SharedBudget  # what this session and its sub-sessions have spent
    _parent: ParentCall | None  # the call of another session that runs this one
    id: str
    log: logs.EventLog
    _system: str | None
    _settings: TurnSettings
    _metadata: dict[str, Any]
    _journal: Journal
    _projector: Projector
    _pipeline: Pipeline
    _routing: logs.Routing
    _supervisor: Supervisor
    _corrections: int
    _unusable = 0  # how many unusable replies there were in a row
    _queued: list[Goal]  # goals that are pursued after the current one
    _is_next = False  # whether the first of them follows the calls that are processed now
    _at: int | None = None  # the number of the record to continue after, if it is not the last one
    _final = False  # whether the next turn requests the structured answer
    _reply: Response | None = None  # the last reply whose calls are processed
    _proposed: tuple[ToolIntent, ...] = ()  # the calls of this reply
    _is_stepwise = False  # whether each run takes one decision
    _loaded = False  # whether the state was read from the log, and no run continued it yet
    _takeover = False

    @property
    def state(self) -> State:
        """The state derived from the records of this session."""
        return self._journal.state

    async def _drive(self, goal: str | User | None, key: str | None, *, once: bool) -> Step:
        begun = False
        self._is_stepwise = once
        try:
            recorded = await self._find_outcome(goal, key)
            if recorded is not None:
                return self._end_step(recorded)
            if key in self.state.keys:
                goal = None  # it was added before
            await finish_writing(self._begin(goal, key))
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
        """Process the calls of the last reply, or call the model, unless the session has ended.

        A stepwise run takes one decision about one of these calls.
        """
        opened = self._find_opened()
        if opened:
            return await self._process(opened)
        if self._queued and (self._is_next or self.state.has_answered):
            await finish_writing(self._take_queued())
        if self.state.has_answered:
            reason = self.state.messages[-1].finish_reason or "stop"
            if self._settings.output is None or reason != "stop":
                return self._end_step(await self._finish(*find_ending(reason)))
            await self._journal.write(record_message(User(_FINAL)), actor="system")
            self._final = True
        self._account.count(self.id, self.state.spent)
        excess = await self._account.admit()
        if excess is None:
            try:
                return await self._turn()
            finally:
                self._account.release(self.id, self.state.spent)
        await self._journal.write(excess)
        detail = excess.detail or f"the budget of {excess.limit} {excess.unit} is used up"
        return self._end_step(await self._finish("exhausted", detail))

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
            response, intents = await turn.run()
        except (errors.MalformedToolCallError, errors.StructuredOutputError) as error:
            self._count_unusable(error)
            await turn.correct(error)
            return Step(number, error.response)
        if intents and response.finish_reason in RUNNABLE:
            self._reply = response
            self._proposed = intents
            return Step(number, response, intents=intents)
        self._unusable = 0
        await close_open(self._journal, f"the reply ended with {response.finish_reason}")
        if response.is_paused or (
            self._queued and self.state.has_answered and response.finish_reason == "stop"
        ):
            return Step(number, response, intents=intents)
        if self._settings.output is not None and not final and response.finish_reason == "stop":
            # The session continues: the next turn requests the structured answer.
            return Step(number, response, intents=intents)
        ending = find_ending(response.finish_reason)
        outcome = await self._finish(*ending, parsed=response.parsed)
        return Step(number, response, intents=intents, outcome=outcome, kind="answer")

    def _find_opened(self) -> list[ToolIntent]:
        """Return the calls of the last reply that have not come to an end."""
        ids = self._pipeline.find_continuable(unasked=True)
        ids |= {intent.id for intent in self._proposed}
        return [kept.intent for kept in self.state.open_intents if kept.intent.id in ids]

    async def _process(self, intents: Sequence[ToolIntent]) -> Step:
        """Process open intents; if nothing but waiting is left, end the run."""
        number = self.state.spent.turns
        step = Step(number, None, intents=tuple(intents), kind="execution")
        if self._is_stepwise:
            taken = await self._pipeline.advance(intents)
            if taken is not None:
                kind, intent = taken
                step = Step(number, None, intents=(intent,), kind=kind)
                if self._find_opened():
                    return step
        else:
            await self._pipeline.process(intents)
        pending = await self._list_pending()
        if pending:
            return self._end_step(await self._finish("waiting", describe_pending(pending)))
        await answer_calls(self._journal)
        self._check_reply()
        await self._hand_off(intents)
        return step

    async def _hand_off(self, intents: Sequence[ToolIntent]) -> None:
        """Take the answer of a session that a call handed off to as the answer of this session."""
        for intent in intents:
            end = self.state.intents[intent.id].end
            if isinstance(end, logs.ToolObserved) and end.details.get("hands_off") is True:
                await self._journal.write(record_message(Assistant([Text(str(end.content))])))
                return

    def _check_reply(self) -> None:
        """Count the reply whose calls were processed as unusable if each was rejected."""
        ends = [self.state.intents[intent.id].end for intent in self._proposed]
        response = self._reply
        self._proposed = ()
        if response is not None and all(isinstance(end, logs.ToolIntentRejected) for end in ends):
            self._count_unusable(_reject(response, ends[0]))
        else:
            self._unusable = 0

    def _count_unusable(self, error: errors.ProviderError) -> None:
        """Count an unusable reply; raise the error if there were too many in a row."""
        self._unusable += 1
        if self._unusable > self._corrections:
            raise error

    def _end_step(self, outcome: Outcome[Parsed]) -> Step:
        kind: StepKind = "waiting" if outcome.outcome == "waiting" else "end"
        return Step(self.state.spent.turns, None, outcome=outcome, kind=kind)

    def _stays_open(self) -> bool:
        """Return whether what is open stays open for the next run.

        This is so if the task that pursues the goal of a key was cancelled. An engine that shuts
        down cancels its tasks, and repeats the job later; only ``cancel()`` ends such a goal. A
        sub-session follows the session that runs it.
        """
        if self._parent is not None:
            return self._parent.stays_open()
        return self._supervisor.is_interrupted and self.state.key is not None

    async def _wind_up(self) -> Step:
        if self._stays_open():
            self._loaded = True
            raise asyncio.CancelledError
        stop = self._supervisor.stop
        ending, reason = (
            (stop.ending, stop.reason)
            if stop
            else ("cancelled", "the task that ran it was cancelled")
        )
        over = self.state.finished  # the session may have ended while it was being stopped
        if over is not None:
            outcome = self._make_outcome(over.outcome, over.detail)
        elif self.state.root is not None:
            await close_open(self._journal, reason)
            if ending == "exhausted":
                await self._journal.write(self.budget.time_exceeded())
            outcome = await self._finish(ending, reason)
        else:
            outcome = self._make_outcome(ending, reason)
        if stop is None:
            raise asyncio.CancelledError
        return self._end_step(outcome)

    # --- starting and finishing the session -----------------------------------------------------

    def _recall(self, key: str | None) -> Outcome[Parsed] | None:
        """Return the recorded outcome of a goal that has ended."""
        end = self.state.keys.get(key or "")
        if end is None or end.finished.outcome == "waiting":
            return None
        finished = end.finished
        if finished.outcome == "failed" and key == self.state.key and not self.state.has_answered:
            return None  # an error of the provider ends a run, and the next one continues
        parsed: Any = None
        if finished.outcome == "completed":
            parsed = _read_output(end.text, self._settings.output)
        outcome = self._make_outcome(finished.outcome, finished.detail, parsed)
        return msgspec.structs.replace(outcome, text=end.text)

    async def _find_outcome(
        self, goal: str | User | None, key: str | None
    ) -> Outcome[Parsed] | None:
        """Return the outcome of a goal that has ended, or of a session that still waits."""
        if self._at is not None:
            return None
        recorded = self._recall(key)
        if recorded is not None:
            return recorded
        is_new = goal is not None and key not in self.state.keys
        finished = self.state.finished
        if finished is None or not await self._still_waits(is_new=is_new):
            return None
        return self._make_outcome("waiting", finished.detail)

    async def _still_waits(self, *, is_new: bool) -> bool:
        """Return whether the session waits, and no answer has arrived that it can continue with.

        Raise ``SessionError`` if it gets a new goal before that.
        """
        pending = await self._list_pending()
        if self.state.finished is None or self.state.finished.outcome != "waiting":
            return False
        if not self._pipeline.waits and any(each.kind == "decision" for each in pending):
            return False  # this process has an approver to ask
        arrived = await asyncio.to_thread(find_answered, self.log, pending)
        if is_new and len(arrived) < len(pending):
            raise SessionError(
                f"the session {describe_pending(pending)}; answer first, or call close_open_intents(), "
                "before it pursues another goal"
            )
        return bool(pending) and not arrived

    async def _begin(self, goal: str | User | None, key: str | None) -> None:
        """Start or continue the session, and add the goal."""
        is_queued = goal is None and bool(self._queued)
        if is_queued:
            goal = self._queued[0].message
            key = self._queued[0].key
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
        if self._pipeline.find_continuable(unasked=True):
            # The results of the calls that go on come before the goal.
            if goal is not None and not is_queued:
                self._queued.insert(0, Goal(read_goal(goal), key))
                self._is_next = True
            return
        if goal is None and not self.state.has_goal:
            goal = self.state.goal  # the session ended before its first message was written
        if goal is not None:
            if self._system and not self.state.messages:
                await self._journal.write(record_message(System(self._system)))
            await self._journal.write(record_message(read_goal(goal), key))
        if is_queued:
            self._queued.pop(0)

    async def _take_queued(self) -> None:
        """Add the next goal; one that could not be recorded stays in the queue."""
        goal = self._queued[0]
        await self._journal.write(record_message(goal.message, goal.key))
        self._queued.pop(0)
        self._is_next = False

    async def _start(self, goal: str | User | None) -> None:
        if goal is None:
            raise SessionError("a new session needs a goal; pass a text to run()")
        if next(iter(self.log.read(self.id)), None) is not None:
            raise SessionError(
                f"there is a session {self.id!r} in this log already; use Session.resume"
            )
        if self._account.limits_cost:
            _check_price(self.provider, self._settings.price)
        if self._parent is not None:
            await self._parent.link(self.id)
        message = read_goal(goal)
        metadata = {
            "budget": to_builtins(self.budget, enc_hook=str),
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
            called_by=None if self._parent is None else self._parent.reference,
            policy=_describe_policy(self.policy),
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
        policy = _describe_policy(self.policy)
        resumed = logs.SessionResumed(
            after=state.last_seq,
            open_intents=dangling,
            reason=reason,
            epoch=state.epoch + 1,
            takeover=self._takeover,
            changed_tools=changed,
            definitions=definitions,
            at=self._at,
            policy=None if policy.sha256 == state.policy_digest else policy,
        )
        await self._journal.write(resumed)
        continued: frozenset[str] = frozenset()
        if self._at is None:
            unasked = self._pipeline.waits or self._is_stepwise
            continued = self._pipeline.find_continuable(unasked=unasked)
        self._at = None
        self._takeover = False
        await close_open(
            self._journal, "the session ended before this came to an end", keep=continued
        )

    async def _finish(
        self, ending: Ending, detail: str | None = None, parsed: Any = None, left: str = ""
    ) -> Outcome[Parsed]:
        """Record how the run ended; with ``left``, first close what is open, for that reason."""
        if left:
            await close_open(self._journal, left)
        self._account.count(self.id, self.state.spent)
        await self._journal.write(logs.SessionFinished(ending, detail, self.state.spent.turns))
        self._final = False
        return self._make_outcome(ending, detail, parsed)

    def _make_outcome(
        self, ending: Ending, detail: str | None, parsed: Any = None
    ) -> Outcome[Parsed]:
        pending: tuple[Pending, ...] = ()
        if ending == "waiting":
            pending = list_pending(self.log, self.id, self.state, self.tools)
        return make_outcome(
            self.id, self.state, ending, detail,
            spent=self._account.spent, parsed=parsed, pending=pending,
        )  # fmt: skip

    async def _list_pending(self) -> tuple[Pending, ...]:
        return await asyncio.to_thread(list_pending, self.log, self.id, self.state, self.tools)


def name_model(provider: Provider) -> str:
    """Return ``provider:model``."""
    return f"{provider.name}:{provider.model}"


def read_goal(goal: str | User) -> User:
    """Return a goal as a message; raise ``ValueError`` if it is empty."""
    message = User(goal) if isinstance(goal, str) else goal
    if not message.content:
        raise ValueError("goal: is empty")
    return message


def _describe_policy(policy: Policy) -> logs.PolicyInForce:
    rules = policy.describe()
    digest = hashlib.sha256(msgspec.json.encode(rules, order="sorted")).hexdigest()
    return logs.PolicyInForce(rules, digest)


def _read_output(text: str, output: Any) -> Any:
    """Return the structured answer in a recorded reply, or ``None`` if there is none."""
    if output is None:
        return None
    try:
        value: Any = msgspec.json.decode(text)
        return (
            value if isinstance(output, Mapping) else convert_value(unwrap(value, output), output)
        )
    except ValueError:
        return None


def _check_price(provider: Provider, price: Price | None) -> None:
    """Raise ``ValueError`` if the price of the model is unknown."""
    nothing = Usage(input_tokens=0, output_tokens=0)
    found = (
        price(nothing, name_model(provider))
        if price is not None
        else provider.priced_as.cost(nothing)
    )
    if isinstance(found, Unpriced):
        raise ValueError(
            f"budget.cost_usd: the price of {name_model(provider)} is not known: {found.reason}"
        )


def _reject(response: Response, end: Any) -> errors.MalformedToolCallError:
    return errors.MalformedToolCallError(
        f"tool call ({errors.cut(end.tool_name)}): {end.detail or end.problem}",
        provider=response.provider,
        model=response.model,
        request_id=response.request_id,
        response=response,
    )
