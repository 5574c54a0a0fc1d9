"""A provider that answers from a log, to repeat a run without a model.

::

    provider = ReplayProvider(log, "fix-tests")
    reply = await provider.complete(messages)  # the recorded reply, or ReplayMismatch

This provider runs no tools; whether a tool runs again is the caller's decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from .. import errors
from .. import log as logs
from ..events import Event, RecordedAssembler, ToolIntent, Usage
from ..messages import Assistant, Message, Request, System, ToolCall
from ..provider import AssembledReply, Reply, ReplyProvider
from ..validate import Expectation
from .diff import Difference, find_differences

_OfCall: TypeAlias = logs.MessageRecorded | logs.CallStarted | logs.CallCompleted | logs.CallFailed
_KINDS: dict[str, type[errors.ProviderError]] = {
    "auth": errors.AuthenticationError,
    "rate_limit": errors.RateLimitError,
    "network": errors.NetworkError,
    "server_error": errors.UnavailableError,
    "invalid_request": errors.InvalidRequestError,
    "context_overflow": errors.ContextOverflowError,
    "other": errors.InvalidResponseError,
}


class ReplayMismatch(LookupError):  # noqa: N818 - nothing failed: this is another run
    """The new run diverges from the log; ``difference`` is the first difference."""

    def __init__(
        self, session: str, call: int, why: str, difference: Difference | None = None
    ) -> None:
        super().__init__(f"session {session!r}, call {call}: {why}")
        self.session = session
        self.call = call
        self.difference = difference


class _Call:
    """One call of a recorded run: its conversation, the part that was sent, and how it ended."""

    def __init__(self, conversation: logs.Conversation) -> None:
        # These lists only grow, so their current lengths are enough to restore this state. Any
        # other change of the conversation creates new lists.
        self._messages = conversation.messages
        self._count = len(conversation.messages)
        self._entries = conversation.entries
        self._sent = len(conversation.entries)
        self.reply: logs.MessageRecorded | None = None
        self.completed: logs.CallCompleted | None = None
        self.failure: logs.CallFailed | None = None

    @property
    def complete(self) -> list[Message]:
        """The complete conversation at the time of the call."""
        return [entry.message for entry in self._messages[: self._count]]

    @property
    def sent(self) -> list[Message]:
        """The messages that were sent to the model in this call."""
        return [entry.message for entry in self._entries[: self._sent]]


class ReplayProvider(ReplyProvider):
    """Answer each call with the model's reply in the run ``session``, in order.

    A call whose conversation differs from the recorded one raises ``ReplayMismatch`` with the
    first difference, and so does an additional call. A call whose last attempt failed fails
    again; retried attempts, and calls that were cancelled or interrupted by a crash, are skipped.
    Intents keep their ids. Nothing is sent.
    """

    def __init__(self, log: logs.EventLog, session: str) -> None:
        self.session = session
        self._read(log.read(session))
        self._varying: set[str] = set()  # the tools that changed during the run
        for record in log.find("tools.changed", session=session):
            if isinstance(record.payload, logs.ToolsChanged):
                self._varying |= {*record.payload.tool_digests, *record.payload.removed}
        self._asked = 0

    @property
    def system(self) -> str | None:
        """The system prompt of the run, to pass to a session that repeats it."""
        for recorded in self._conversation.messages:
            if isinstance(recorded.message, System):
                return recorded.message.content
        return None

    @property
    def remaining(self) -> int:
        """The number of recorded calls that have not been used yet."""
        return len(self._recorded) - self._asked

    def _read(self, records: Iterable[logs.LogRecord]) -> None:
        calls: dict[str, _Call] = {}
        interrupted = False
        # Internal calls of the session, such as those that write a summary, are not replayed.
        workers: set[str] = set()
        self._conversation = logs.Conversation()
        self._intents: dict[str, ToolIntent] = {}
        self._started: logs.SessionStarted | None = None
        for record in records:
            payload = record.payload
            if isinstance(payload, logs.SessionStarted):
                self.name = payload.provider or ""
                self.model = payload.model or ""
                self._started = payload
            elif isinstance(payload, ToolIntent):
                self._intents[payload.id] = payload
            elif isinstance(payload, logs.SessionResumed | logs.TurnStarted):
                interrupted = isinstance(payload, logs.SessionResumed)
            elif isinstance(payload, logs.SessionFinished):
                _forget_cut(calls, payload)
            elif isinstance(payload, logs.CallFailed) and (
                interrupted or payload.error_class == "cancelled"
            ):
                # a call that was cancelled from outside has no reply
                calls.pop(payload.request_id or "", None)
            elif isinstance(payload, _OfCall):
                if isinstance(payload, logs.CallStarted) and payload.is_worker:
                    workers.add(payload.request_id or "")
                if payload.request_id not in workers:
                    self._read_call(payload, calls)
            self._conversation.apply(record, payload)
        # A call that was started and neither answered nor failed was interrupted by a crash.
        self._recorded = [
            call for call in calls.values() if call.reply is not None or call.failure is not None
        ]

    def _read_call(self, payload: _OfCall, calls: dict[str, _Call]) -> None:
        if isinstance(payload, logs.MessageRecorded) and not isinstance(
            payload.message, Assistant
        ):
            return
        if not payload.request_id:
            return
        call = calls.get(payload.request_id) or _Call(self._conversation)
        calls[payload.request_id] = call
        if isinstance(payload, logs.MessageRecorded):
            call.reply = payload
        elif isinstance(payload, logs.CallCompleted):
            call.completed = payload
            call.failure = None
        elif isinstance(payload, logs.CallFailed):
            call.failure = payload

    def open(self, request: Request) -> Reply:
        return _RecordedReply(self, request)

    def take(
        self, request: Request
    ) -> tuple[RecordedAssembler | None, errors.ProviderError | None]:
        """Return the reply of the next recorded call, which must match, and its error."""
        call = self._match(request)
        self._asked += 1
        error = None if call.failure is None else _to_error(call.failure, request)
        if call.reply is None:
            return None, error
        out = _assemble(call, call.reply, error, request, self._intents)
        return out, out.error

    def _match(self, request: Request) -> _Call:
        number = self._asked + 1
        if number > len(self._recorded):
            made = len(self._recorded)
            why = f"the log holds {made} call{'s' * (made != 1)} and this is one more"
            raise ReplayMismatch(self.session, number, why)
        call = self._recorded[self._asked]
        asked: dict[str, Any] = {"messages": _to_plain(request.messages)}
        # A repeated run may send the complete conversation where the recorded one was shortened.
        complete = _to_plain(call.complete)
        sent = complete if asked["messages"] == complete else _to_plain(call.sent)
        recorded: dict[str, Any] = {"messages": sent}
        if self._started is not None and self._started.tools:
            # Which deferred tools are offered depends on the provider and on what was found, and
            # recorded tools are offered from the first call on, even if they came later.
            left_out = {tool.name for tool in self._started.definitions if tool.deferred}
            left_out |= self._varying
            recorded["tools"] = sorted({*self._started.tools} - left_out)
            asked["tools"] = sorted({tool.name for tool in request.tools} - left_out)
        difference = next(find_differences(recorded, asked), None)
        if difference is not None:
            what = "the first difference between what was recorded and what is asked"
            why = f"{what} is at {difference}"
            raise ReplayMismatch(self.session, number, why, difference)
        return call


def _forget_cut(calls: dict[str, _Call], end: logs.SessionFinished) -> None:
    """Drop the last call if it failed only because the session was stopped."""
    last = next(reversed(calls), "")
    is_stopped = end.outcome in ("cancelled", "exhausted")
    if is_stopped and last in calls and calls[last].failure is not None:
        del calls[last]


def _to_plain(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the conversation as plain data, with every call id replaced by the call's number.

    The ids themselves are not compared, since a session may change them for a provider that
    repeats ids.
    """
    # Messages are converted to JSON and back, as the recorded ones were: tuples become lists.
    plain: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(messages))
    waiting: list[tuple[str, str]] = []
    count = 0
    for message in plain:
        if message["role"] == "assistant":
            for block in [block for block in message["content"] if block["type"] == "tool_call"]:
                count += 1
                waiting.append((block["id"], f"call {count}"))
                block["id"] = f"call {count}"
        elif message["role"] == "tool":
            found = next((pair for pair in waiting if pair[0] == message["tool_call_id"]), None)
            if found is not None:
                waiting.remove(found)
                message["tool_call_id"] = found[1]
    return plain


def _to_error(failure: logs.CallFailed, request: Request) -> errors.ProviderError:
    where = f"{failure.provider}/{failure.model}: "
    words = failure.error_message_redacted
    placed = words.startswith(where)
    words = words.removeprefix(where)
    kind = _find_kind(failure.error_class, words)
    if kind.advice and words.endswith(kind.advice):
        words = words.removesuffix(kind.advice).rstrip().removesuffix(".")
    words = words.removesuffix(f" (HTTP {failure.status})")
    error = kind(words, status=failure.status, request_id=request.request_id)
    if placed:
        error.provider = failure.provider
        error.model = failure.model
    return error


def _find_kind(error_class: str, words: str) -> type[errors.ProviderError]:
    """Return the exception class of a recorded error.

    The record names only the family of the class; the advice at the end of the message identifies
    the class.
    """
    family = [kind for kind in _walk(errors.ProviderError) if kind.error_class == error_class]
    advised = [kind for kind in family if kind.advice and words.endswith(kind.advice)]
    return advised[0] if advised else _KINDS.get(error_class, errors.InvalidResponseError)


def _walk(kind: type[errors.ProviderError]) -> Iterator[type[errors.ProviderError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _walk(each)


# --- emitting a recorded reply as events -------------------------------------------------------


class _RecordedReply(AssembledReply):
    """A recorded reply that is delivered at once, followed by its error if the call failed."""

    def __init__(self, provider: ReplayProvider, request: Request) -> None:
        super().__init__(request, provider.name, provider.model)
        self._provider = provider
        self._error: errors.ProviderError | None = None

    async def next(self) -> list[Event]:
        if self.out is None:
            self.out, self._error = self._provider.take(self.request)
            if self.out is not None:
                return self.out.take()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return []

    async def aclose(self) -> None:
        pass


def _assemble(
    call: _Call,
    reply: logs.MessageRecorded,
    error: errors.ProviderError | None,
    request: Request,
    intents: dict[str, ToolIntent],
) -> RecordedAssembler:
    out = RecordedAssembler(
        request_id=request.request_id,
        model=reply.model or request.model,
        provider=reply.provider or "",
        expected=Expectation(request),
        structured_path="native" if request.response_schema is not None else None,
    )
    out.begin(reply.message_id)
    assert isinstance(reply.message, Assistant)
    for block in reply.message.content:
        if isinstance(block, ToolCall):
            intent = _find_intent(reply, block, intents)
            is_ended = reply.finish_reason in ("stop", "tool_calls", None)
            is_whole = is_ended and block.arguments is not None
            out.call(block, _literal_arguments(block, intent), intent, is_whole=is_whole)
        else:
            out.block(block)
    usage = reply.usage or (call.completed.usage if call.completed else Usage())
    finish = reply.finish_reason or "stop"
    out.end(finish, usage, reply.warnings, error, paused=reply.paused)
    return out


def _find_intent(
    reply: logs.MessageRecorded, block: ToolCall, intents: dict[str, ToolIntent]
) -> ToolIntent | None:
    """Return the intent of a call.

    The id map of the recorded message has priority, because a provider may repeat ids within a
    reply.
    """
    wanted = reply.tool_ids.get(block.id)
    if wanted is not None:
        return intents.get(wanted)
    named = [intent for intent in intents.values() if intent.provider_call_id == block.id]
    return next((intent for intent in named if intent.source.request_id == reply.request_id), None)


def _literal_arguments(block: ToolCall, intent: ToolIntent | None) -> str:
    """Return the arguments as the model wrote them.

    If the log omitted or masked a part of that text, return them as JSON.
    """
    if block.arguments is None:
        return ""
    text = intent.raw_input_text if intent is not None else ""
    with suppress(msgspec.DecodeError):
        if msgspec.json.decode(text) == block.arguments:
            return text
    return msgspec.json.encode(block.arguments).decode()
