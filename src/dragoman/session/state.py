"""The state of a session, derived from its records alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from .. import log as logs
from ..errors import InvalidRequestError
from ..events import ToolIntent
from ..messages import Assistant, AssistantBlock, Message, Opaque, Text, ToolCall, ToolResult, User
from ..tools.runtime import SEARCH_TOOLS
from ..tools.search import read_found
from ..validate.content import check_depth
from .budget import Spending
from .ids import ToolIds

RUNNABLE = ("tool_calls", "stop", "length")  # finish reasons after which tool calls are run

IntentEnd: TypeAlias = (
    logs.ToolObserved
    | logs.ToolFailed
    | logs.PermissionDenied
    | logs.ToolIntentRejected
    | logs.ToolIntentClosed
)


# the records that change the state of an intent
_IntentChange: TypeAlias = (
    logs.ToolIntentValidated
    | logs.PermissionRequested
    | logs.PermissionGranted
    | logs.ToolStarted
    | logs.ToolRestarted
    | IntentEnd
)


class IntentState(Struct, kw_only=True):
    """An intent and what became of it; ``record`` is the id of its last record, ``since`` its time.

    ``asked`` is the last request for permission, if there was one, and ``granted`` whether the
    call may run, or run again. An ``external`` intent that has started runs outside of the
    session, which waits for its result. ``attempt`` is how often the call was to run. ``children``
    are the sessions that the call has run.
    """

    intent: ToolIntent
    record: str
    turn: str | None
    since: datetime
    started: bool = False
    attempt: int = 1
    external: bool = False
    side_effect: logs.SideEffect | None = None
    paths: tuple[str, ...] = ()
    asked: logs.PermissionRequested | None = None
    granted: bool = False
    edited: dict[str, Any] | None = None
    children: tuple[str, ...] = ()
    end: IntentEnd | None = None

    @property
    def is_open(self) -> bool:
        """Whether this intent has no recorded end yet."""
        return self.end is None

    @property
    def waits_for(self) -> Literal["decision", "result"] | None:
        """What must come from outside before this intent continues, if anything."""
        if self.end is not None:
            return None
        if self.started and self.external:
            return "result"
        return "decision" if self.asked is not None and not self.granted else None

    @property
    def input(self) -> dict[str, Any]:
        """The input to run with: the proposed one, or the one that a decision replaced it by."""
        return self.intent.input if self.edited is None else self.edited


class OpenCall(Struct):
    """A call to a model without a recorded end."""

    started: logs.CallStarted
    record: str
    turn: str | None
    reply: logs.MessageRecorded | None = None


class GoalEnd(Struct, frozen=True):
    """How the run of a goal ended, and the last text of the model."""

    finished: logs.SessionFinished
    text: str


class State:
    """The state derived from a session's records, in order."""

    def __init__(self) -> None:
        self.goal: str | None = None
        self.root: str | None = None
        self.last_seq = 0
        self.epoch = 0
        self.turn: str | None = None
        self.conversation = logs.Conversation()
        self.intents: dict[str, IntentState] = {}
        self.call: OpenCall | None = None
        self.spent = Spending()
        self.finished: logs.SessionFinished | None = None
        # the goals that have a key, each with its end; ``key`` is that of the current goal
        self.keys: dict[str, GoalEnd | None] = {}
        self.key: str | None = None
        self.model: str | None = None
        self.tool_digests: dict[str, str] = {}
        self.policy_digest: str | None = None
        self.ids = ToolIds()
        # the tools that were called or that a search found, in this order
        self.found: dict[str, None] = {}
        # the number of the record that found or called each of them last
        self.used: dict[str, int] = {}
        self._searches: set[str] = set()
        self._open: dict[str, IntentState] = {}

    @property
    def messages(self) -> list[logs.MessageRecorded]:
        """All recorded messages, including those that are no longer sent."""
        return self.conversation.messages

    def apply(self, record: logs.LogRecord) -> None:
        """Update the state with the next record; ignore types that do not affect the state."""
        self.last_seq = record.seq
        payload = record.payload
        self.conversation.apply(record, payload)
        if isinstance(payload, logs.MessageRecorded):
            self._hear(payload)
            if record.actor == "user" and isinstance(payload.message, User):
                self._set_key(payload.key)
        elif isinstance(payload, ToolIntent):
            kept = IntentState(
                intent=payload, record=record.id, turn=record.turn, since=record.timestamp
            )
            self.intents[payload.id] = self._open[payload.id] = kept
        elif isinstance(payload, logs.CallStarted | logs.CallCompleted | logs.CallFailed):
            self._follow_call(record, payload)
        elif isinstance(payload, logs.SessionStarted):
            self.goal = payload.goal
            self.root = record.id
            self.epoch = 1
            self.model = f"{payload.provider}:{payload.model}"
            self.tool_digests = dict(payload.tool_digests)
            self._set_policy(payload.policy)
        elif isinstance(payload, logs.TurnStarted):
            self.spent.turns = payload.number
            self.turn = record.turn
            self.finished = None
            if self.key is not None:
                self.keys[self.key] = None
        elif isinstance(payload, logs.SessionResumed):
            self.epoch += 1
            self.finished = None
            self.tool_digests |= payload.changed_tools
            self._set_policy(payload.policy)
        elif isinstance(payload, logs.SessionFinished):
            self._finish(payload)
        elif isinstance(payload, logs.ModelSwapped):
            self.model = payload.to
        elif isinstance(payload, logs.ToolsChanged):
            self._follow_tools(payload)
        else:
            self._follow_intent(record, payload)

    def _set_policy(self, policy: logs.PolicyInForce | None) -> None:
        if policy is not None:
            self.policy_digest = policy.sha256

    def _set_key(self, key: str | None) -> None:
        self.key = key
        if key is not None:
            self.keys[key] = None

    def _finish(self, finished: logs.SessionFinished) -> None:
        self.finished = finished
        if self.key is not None:
            last = self.messages[-1].message if self.messages else None
            text = last.text if isinstance(last, Assistant) else ""
            self.keys[self.key] = GoalEnd(finished, text)

    def _hear(self, recorded: logs.MessageRecorded) -> None:
        message = recorded.message
        if isinstance(message, ToolResult) and message.tool_call_id in self._searches:
            self._use(read_found(message.content))
        if isinstance(message, Assistant):
            self._use([call.name for call in message.tool_calls])
            for call in message.tool_calls:
                if call.name == SEARCH_TOOLS:
                    self._searches.add(call.id)
            if self.call is not None and recorded.request_id == self.call.started.request_id:
                self.call.reply = recorded
            routing = recorded.routing
            asked = None if routing is None else _provider_of(routing.asked or routing.chosen)
            for call_id, intent_id in recorded.tool_ids.items():
                for name in {asked, recorded.provider} - {None}:
                    self.ids.issue(name or "", call_id, intent_id)

    def _use(self, names: Iterable[str]) -> None:
        for name in names:
            self.found[name] = None
            self.used[name] = self.last_seq

    def _follow_call(
        self,
        record: logs.LogRecord,
        payload: logs.CallStarted | logs.CallCompleted | logs.CallFailed,
    ) -> None:
        if isinstance(payload, logs.CallStarted):
            self.call = OpenCall(payload, record.id, record.turn)
            return
        guess = self.call.started.estimated_input_tokens if self.call is not None else None
        self.call = None
        self.spent.add_call(payload, guess or 0)

    def _follow_tools(self, changed: logs.ToolsChanged) -> None:
        self.tool_digests |= changed.tool_digests
        for name in changed.removed:
            self.tool_digests.pop(name, None)

    def _follow_intent(self, record: logs.LogRecord, payload: object) -> None:
        if isinstance(payload, logs.ContextProjected):
            for name in payload.tools:
                self.found.pop(name, None)
        kept = self.intents.get(getattr(payload, "intent_id", ""))
        if kept is not None and isinstance(payload, logs.SessionDelegated):
            kept.children = (*kept.children, payload.session)
        if kept is None or not isinstance(payload, _IntentChange):
            return
        kept.record = record.id
        kept.since = record.timestamp
        if isinstance(payload, logs.ToolIntentValidated):
            kept.side_effect = payload.side_effect
            kept.paths = payload.paths
        elif isinstance(payload, logs.PermissionRequested):
            kept.asked = payload
            kept.granted = False
        elif isinstance(payload, logs.PermissionGranted):
            kept.granted = True
            if not kept.started:
                kept.edited = payload.input
        elif isinstance(payload, logs.ToolStarted):
            kept.started = True
            self.spent.tool_calls += 1
            kept.external = payload.context.get("external") is True
        elif isinstance(payload, logs.ToolRestarted):
            kept.attempt = payload.attempt
        else:
            kept.end = payload
            self._open.pop(kept.intent.id, None)

    # --- facts derived from the records

    @property
    def has_answered(self) -> bool:
        """Whether the conversation ends with a reply of the model without tool calls."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.paused or not isinstance(last.message, Assistant):
            return False
        return not last.message.tool_calls

    @property
    def has_goal(self) -> bool:
        """Whether a goal was recorded as a message."""
        return any(isinstance(entry.message, User) for entry in self.messages)

    @property
    def paused_by(self) -> str | None:
        """The provider that paused the last reply of the conversation, if any."""
        last = self.messages[-1] if self.messages else None
        return last.provider or "" if last is not None and last.paused else None

    @property
    def open_intents(self) -> list[IntentState]:
        """The intents without a recorded end, in the order they were proposed."""
        return list(self._open.values())

    def find_continuable(
        self, resumable: Callable[[IntentState], bool], *, unasked: bool
    ) -> frozenset[str]:
        """Return the ids of the open intents that a resumed session can continue.

        They belong to the last reply, and they did not start here, so that the effect of none is
        unknown, or they are ``resumable``. With ``unasked``, all of these are returned, otherwise
        only if the session asked about one of them, handed one out or started one.
        """
        called = [self.intents.get(intent or "") for _, intent in self.unanswered()]
        replies = [each for each in self.messages if isinstance(each.message, Assistant)]
        if None in called or not replies or replies[-1].finish_reason not in RUNNABLE:
            return frozenset()
        left = [
            kept
            for kept in called
            if kept is not None
            and kept.is_open
            and (kept.external or not kept.started or resumable(kept))
        ]
        if not unasked and not any(kept.asked or kept.started for kept in left):
            return frozenset()
        return frozenset([kept.intent.id for kept in left])

    def list_children(self) -> list[str]:
        """Return the ids of the sessions that the calls of this session have run."""
        return [child for kept in self.intents.values() for child in kept.children]

    def unanswered(self) -> list[tuple[ToolCall, str | None]]:
        """Return the calls of the last reply that have no result yet, with their intents."""
        results: set[str] = set()
        for recorded in reversed(self.messages):
            if isinstance(recorded.message, ToolResult):
                results.add(recorded.message.tool_call_id)
            elif isinstance(recorded.message, Assistant):
                calls = [call for call in recorded.message.tool_calls if call.id not in results]
                return [(call, recorded.tool_ids.get(call.id)) for call in calls]
            else:
                return []
        return []

    def project(self, provider: str) -> list[Message]:
        """Return the messages to send, with the call ids that this provider expects."""
        return [self._rename(entry, provider) for entry in self.conversation.entries]

    def _rename(self, entry: logs.Sent, provider: str) -> Message:
        recorded = entry.recorded
        message = _flatten(entry.message)
        if not recorded.tool_ids:
            return message
        names = {
            call_id: self.ids.to_provider(provider, intent)
            for call_id, intent in recorded.tool_ids.items()
        }
        if isinstance(message, ToolResult):
            return replace(
                message, tool_call_id=names.get(message.tool_call_id, message.tool_call_id)
            )
        if not isinstance(message, Assistant) or all(old == new for old, new in names.items()):
            return message
        return Assistant(
            [
                replace(block, id=names.get(block.id, block.id))
                if isinstance(block, ToolCall)
                else block
                for block in message.content
            ]
        )


def _flatten(message: Message) -> Message:
    """Replace arguments and blocks that are nested too deeply for a request by a text."""
    if not isinstance(message, Assistant):
        return message
    blocks = [_flatten_block(block) for block in message.content]
    changed = any(new is not old for new, old in zip(blocks, message.content, strict=True))
    return Assistant(blocks) if changed else message


def _flatten_block(block: AssistantBlock) -> AssistantBlock:
    try:
        if isinstance(block, ToolCall):
            check_depth(block.arguments, "the value")
        elif isinstance(block, Opaque):
            check_depth(block.data, "the value")
    except InvalidRequestError as error:
        note = f"[left out: {error.message}]"
        if isinstance(block, ToolCall):
            return replace(block, arguments={"note": note})
        return Text(note)
    return block


_PROVIDER = re.compile(r"(?:\[[^\]]*\]|[^:]*)(?::\d+(?=:))?")


def _provider_of(target: str) -> str:
    """Return the provider's name in ``provider:model``.

    If the provider is named after its host, the name may include a port.
    """
    found = _PROVIDER.match(target)
    return found[0] if found else ""


def reduce_records(records: Iterable[logs.LogRecord]) -> State:
    """Return the state derived from a session's records."""
    state = State()
    for record in records:
        state.apply(record)
    return state
