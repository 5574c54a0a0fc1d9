"""Record the conversations of ``ask`` and ``chat`` in the event log.

A separate thread writes the records while the model answers, through the journal of a session. The
log is open only while they are written, so that other commands can write to it too. A log that
cannot be written causes one note on standard error and never affects a reply.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import click
import platformdirs
from msgspec import Struct, field
from msgspec.structs import replace

from .. import log as logs
from .. import messages as m
from ..blocking import SyncProvider
from ..calls import CallStarted, redact
from ..errors import ProviderError, scrub
from ..events import Event, MessageComplete, Response, ToolUseEnd, Usage, make_response
from ..middleware.attempts import Attempt
from ..middleware.layer import Middleware, Wrapper
from ..provider import LayerCall, Provider
from ..session.journal import Journal
from ..session.records import make_message, new_message_id
from ..session.state import State, reduce_records
from .console import notify
from .log_place import open_log_at, open_patiently
from .options import ModelOptions, choose_model
from .sessions import find_session

_PATIENCE = 2.0  # how many seconds to wait for another process that writes the log
_GOAL = 2000  # maximum length of a session's title, which is the first question
_NOT_RUN = "shown, and not executed"


# --- turning the recording on and off ----------------------------------------------------------


def find_marker() -> Path:
    """Return the path of the marker file that turns logging off."""
    return platformdirs.user_data_path("dragoman") / "log.off"


def is_logging() -> bool:
    """Return whether ``ask`` and ``chat`` are logged by default."""
    return not find_marker().exists()


def set_logging(*, on: bool) -> None:
    """Turn the logging of ``ask`` and ``chat`` on or off, for this user."""
    marker = find_marker()
    if on:
        marker.unlink(missing_ok=True)
        return
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch(mode=0o600)


# --- sessions and their records ----------------------------------------------------------------


class WatchedProvider(Wrapper, Middleware):
    """Forward calls to a provider; note the reply and the events of each call in ``attempt``."""

    def __init__(self, provider: Provider) -> None:
        super().__init__(provider)
        self.attempt: Attempt | None = None
        self.ends: list[ToolUseEnd] = []  # the tool calls of the last call

    async def serve(
        self, request: m.Request, served: LayerCall
    ) -> AsyncGenerator[list[Event], None]:
        attempt = self.attempt or Attempt(self.inner, request)
        async with aclosing(self.inner.open(request)) as reply:
            served.reply = attempt.reply = reply
            while batch := await reply.next():
                attempt.hear(batch)
                self.ends += [event for event in batch if type(event) is ToolUseEnd]
                yield batch


class _Session(Struct):
    """A session in the log; ``call`` is the id of the record that began its last call."""

    id: str
    state: State = field(default_factory=State)
    call: str | None = None


class RecordedChat(Struct):
    """A recorded conversation that can be continued."""

    session: str
    messages: list[m.Message]
    metadata: dict[str, Any]
    state: State


class Transcript:
    """Record one conversation in the log, or nothing if no location is given.

    ``begin`` and ``end`` enclose each call to a model. ``close`` waits for the last record and
    reports a problem, if there was one.
    """

    def __init__(
        self,
        kind: Literal["chat", "ask"],
        place: str | Path | None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self._kind: Literal["chat", "ask"] = kind
        self._metadata = metadata or {}
        self._session: _Session | None = None
        self._is_resumed = False  # whether the session continues a recorded conversation
        self._turn = 0
        self._recorded = 0  # number of messages of the conversation that are in the log
        self._is_open = False
        self._routing: logs.Routing | None = None
        self._watched: WatchedProvider | None = None
        self._writer = _LogWriter(place) if place is not None else None

    def watch(self, provider: SyncProvider) -> SyncProvider:
        """Wrap a provider, so that its calls can be recorded."""
        if self._writer is None:
            return provider
        return SyncProvider(WatchedProvider(provider.provider))

    # --- recording one call

    def begin(
        self,
        provider: SyncProvider,
        messages: Sequence[m.Message],
        before: int,
        *,
        tools: Sequence[m.Tool] = (),
        config: m.RuntimeConfig | None = None,
        response_schema: dict[str, Any] | None = None,
        stream: bool = True,
    ) -> str:
        """Record a question, the messages from index ``before`` on; return the request's id."""
        config = config or m.RuntimeConfig()
        request = m.Request(
            (), tools=tuple(tools), config=config, response_schema=response_schema, stream=stream
        )
        watched = provider.provider
        if not isinstance(watched, WatchedProvider):
            return request.request_id
        self._watched = watched
        watched.attempt = Attempt(watched.inner, request)
        watched.ends = []
        target: dict[str, Any] = {"model": provider.model, "provider": provider.name}
        name = f"{provider.name}:{provider.model}"
        self._routing = self._routing or logs.Routing(
            mode="default", chosen=name, reason="the model named"
        )
        earlier = map(_record, messages[self._recorded : before])
        self._write(*self._open_session(messages[before:], target, tools), *earlier)
        self._turn += 1
        recorded = map(_record, messages[max(before, self._recorded) :])
        started = watched.attempt.start(_estimate(provider, messages, tools))
        self._write(logs.TurnStarted(self._turn, **target), *recorded, started, turn=True)
        return request.request_id

    def end(
        self,
        response: Response | None,
        error: ProviderError | None,
        *,
        kept: m.Assistant | None,
        count: int,
    ) -> None:
        """Record how a call ended; with neither a response nor an error, it was interrupted.

        ``kept`` is the part of the reply that the conversation keeps. ``count`` is the number of
        messages that the conversation has now.
        """
        self._recorded = count
        watched, self._watched = self._watched, None
        if watched is None or watched.attempt is None or self._routing is None:
            return
        attempt, watched.attempt = watched.attempt, None
        arrived = response or getattr(error, "response", None) or _rescue(attempt)
        attempt.answer = arrived
        attempt.stop(error or (asyncio.CancelledError() if arrived is None else None))
        payloads: list[logs.Payload] = []
        if arrived is not None:
            parts = attempt, arrived, watched.ends, self._routing
            message = make_message(*parts, in_context=kept is not None)
            if arrived.message.content:
                payloads.append(replace(message, message=kept or arrived.message))
            for intent in [each.intent for each in watched.ends if each.intent is not None]:
                payloads += intent, logs.ToolIntentClosed(intent.id, _NOT_RUN, intent.tool_name)
        *history, end = attempt.finish()
        self._write(*history, *payloads, end, turn=True, of_call=True)

    # --- recording the session

    def _open_session(
        self, question: Sequence[m.Message], target: dict[str, Any], tools: Sequence[m.Tool]
    ) -> Iterator[logs.Payload]:
        self._is_open = True
        if self._session is None:
            self._session = _Session(f"{self._kind}_{m.new_ulid()}")
            text = next((each.text for each in reversed(question) if isinstance(each, m.User)), "")
            names = tuple([tool.name for tool in tools])
            yield logs.SessionStarted(
                goal=text[:_GOAL] or None, **target, tools=names, metadata=self._metadata,
                kind=self._kind, definitions=tuple(tools),
            )  # fmt: skip
        elif self._is_resumed:
            self._is_resumed = False
            state = self._session.state
            reason = f"continued by {self._kind}"
            yield logs.SessionResumed(after=state.last_seq, reason=reason, epoch=state.epoch + 1)

    def resume(self, past: RecordedChat) -> None:
        """Continue a recorded conversation; write nothing until the next question."""
        self._is_resumed = True
        self._recorded = len(past.messages)
        self._turn = past.state.spent.turns
        self._session = _Session(past.session, past.state)

    def restart(self) -> None:
        """End the session; the next question begins a new session with all earlier messages."""
        self.finish("completed")
        self._session = None
        self._is_resumed = False
        self._turn = 0
        self._recorded = 0

    def swap(
        self, before: SyncProvider, now: SyncProvider, line: str, losses: Sequence[m.LossWarning]
    ) -> None:
        """Record that the user switched the conversation to another model by entering ``line``."""
        old = f"{before.name}:{before.model}"
        new = f"{now.name}:{now.model}"
        self._routing = logs.Routing(mode="manual", chosen=new, reason=line)
        self._metadata = _read_place(line)
        if self._is_open:
            self._write(logs.ModelSwapped(old, new, line, tuple(losses)))

    def finish(
        self,
        outcome: Literal["completed", "failed", "cancelled"] = "completed",
        detail: str | None = None,
    ) -> None:
        """Record the end of the session, if a question was asked in it."""
        if self._is_open:
            self._is_open = False
            self._write(logs.SessionFinished(outcome, detail, self._turn))

    def close(self) -> None:
        """Wait until all records are written, and report records that could not be written."""
        self.finish()
        if self._writer is not None:
            self._writer.close()

    def report(self) -> None:
        """Print once why the log could not be written, if there was a problem."""
        if self._writer is not None:
            self._writer.report()

    def _write(self, *payloads: logs.Payload, turn: bool = False, of_call: bool = False) -> None:
        session = self._session
        place = f"t{self._turn}" if turn else None
        if self._writer is not None and session is not None and payloads:
            entries = [_PendingRecord(session, each, place, of_call) for each in payloads]
            self._writer.write(entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if isinstance(error, ProviderError):
            self.finish("failed", redact(f"{error.kind}: {error}"[:_GOAL]))
        elif error is not None:
            self.finish("cancelled" if isinstance(error, KeyboardInterrupt) else "failed")
        self.close()


def open_transcript(
    kind: Literal["chat", "ask"], model: str, target: ModelOptions, *, off: bool
) -> Transcript:
    """Return the transcript of a command; ``--no-log`` and ``dragoman log off`` disable it."""
    place = logs.find_place() if is_logging() and not off else None
    return Transcript(kind, place, _make_metadata(model, target.base_url, target.wire))


def find_past(word: str | None, *kinds: str, system: str | None) -> RecordedChat | None:
    """Read the conversation that ``-c`` names, or the last one of these kinds, if any is named."""
    if word is None:
        return None
    with open_log_at(None) as log:
        past = read_past(log, find_session(log, word, *kinds))
    if system is not None:
        raise click.UsageError(
            "-c continues with the system prompt as it was; leave out the new one"
        )
    return past


def choose_target(
    model: str | None, target: ModelOptions, past: RecordedChat | None
) -> tuple[str, ModelOptions]:
    """Return the named, the recorded or the default model, and where it is served."""
    if model is None and past is not None and target.base_url is None:
        model = past.metadata.get("model")
        base_url = past.metadata.get("base_url")
        target = replace(target, base_url=base_url, wire=past.metadata.get("wire", target.wire))
    return model or choose_model(), target


def read_past(log: logs.EventLog, session: str) -> RecordedChat:
    """Read a recorded conversation; omit questions without an answer."""
    records = list(log.read(session))
    messages: list[m.Message] = []
    mark = 0
    is_answered = True
    metadata: dict[str, Any] = {}
    for payload in [record.payload for record in records]:
        if isinstance(payload, logs.TurnStarted):
            if not is_answered:
                del messages[mark:]
            mark = len(messages)
            is_answered = False
        elif isinstance(payload, logs.MessageRecorded) and payload.in_context:
            messages.append(payload.message)
            is_answered = is_answered or isinstance(payload.message, m.Assistant)
        elif isinstance(payload, logs.SessionStarted):
            metadata = payload.metadata
        elif isinstance(payload, logs.ModelSwapped):
            metadata = _read_place(payload.reason) or metadata
    if not is_answered:
        del messages[mark:]
    return RecordedChat(session, messages, metadata, reduce_records(records))


def _read_place(line: str) -> dict[str, Any]:
    """Return the model and the address in a line such as ``/model m http://127.0.0.1:8080/v1``."""
    words = line.split()
    if len(words) < 2 or words[0] != "/model":
        return {}
    return _make_metadata(words[1], words[2] if len(words) > 2 else None, "openai")


def _make_metadata(model: str, base_url: str | None, wire: str | None) -> dict[str, Any]:
    """Return the data with which ``chat --continue`` reopens the model.

    A URL that may contain a secret is omitted.
    """
    if base_url is None or "@" in base_url or "?" in base_url:
        return {"model": model}
    place = {"model": model, "base_url": base_url}
    return place if wire is None else {**place, "wire": wire}


def _estimate(
    provider: SyncProvider, messages: Sequence[m.Message], tools: Iterable[m.Tool]
) -> int | None:
    try:
        return provider.estimate_input_tokens(list(messages), list(tools) or None)
    except (ProviderError, ValueError):
        # not reported here, because the call to the model reports the same error
        return None


def _record(message: m.Message) -> logs.MessageRecorded:
    return logs.MessageRecorded(message=message, message_id=new_message_id())


def _rescue(attempt: Attempt) -> Response | None:
    """Return the received part of an interrupted reply; ``None`` if nothing was received."""
    if attempt.reply is not None and (closing := attempt.reply.cancel()):
        attempt.hear(closing)
    last = attempt.answer
    if not isinstance(last, MessageComplete) or (not last.final_content and last.usage == Usage()):
        return None
    return make_response(None, last)


# --- writing to the log ------------------------------------------------------------------------


class _PendingRecord(NamedTuple):
    session: _Session
    payload: logs.Payload
    turn: str | None
    of_call: bool


class _LogWriter:
    """Write entries to the log in order, in one thread; retry a failed entry before the next."""

    def __init__(self, place: str | Path) -> None:
        self._place = place
        self._waiting: deque[_PendingRecord] = deque()
        self._thread = ThreadPoolExecutor(1, "dragoman-log")
        self._last: Future[None] | None = None
        self._problem: Exception | None = None
        self._is_reported = False
        self._is_off = False

    def write(self, entries: list[_PendingRecord]) -> None:
        if not self._is_off:
            self._waiting.extend(entries)
            self._last = self._thread.submit(self._flush)

    def report(self) -> None:
        """Print once why the log is incomplete.

        A locked log may become free later, so a lock is reported only at the end.
        """
        problem = self._problem
        is_early = isinstance(problem, logs.LogLockedError) and not self._is_off
        if problem is not None and not self._is_reported and not is_early:
            self._is_reported = True
            notify(f"note: the log is not complete: {scrub(str(problem))}")

    def close(self) -> None:
        if self._last is not None:
            self._last.result()
        self._is_off = True
        self._thread.shutdown()
        self.report()

    def _flush(self) -> None:
        if not self._waiting or self._is_off:
            return
        try:
            # Wait only once for a locked log. After that, each new record causes one more attempt.
            seconds = 0.0 if isinstance(self._problem, logs.LogLockedError) else _PATIENCE
            with open_patiently(self._place, seconds=seconds) as log:
                # an invalid record stays out of the log; all others are written in the end
                if not isinstance(self._problem, logs.InvalidRecordError):
                    self._problem = None
                asyncio.run(self._append_all(log))
        except Exception as error:  # a problem with the log must never affect the reply
            self._problem = error
            self._is_off = isinstance(error, logs.LogConflictError)

    async def _append_all(self, log: logs.EventLog) -> None:
        while self._waiting:
            session, payload, turn, of_call = self._waiting[0]
            journal = Journal(log, session.id, session.state)
            parent = session.call if of_call else None
            try:
                record = await journal.write(payload, turn=turn, parent=parent)
                if isinstance(payload, CallStarted) and not of_call:
                    session.call = record.id
            # the record is invalid, for example because an attachment is too long
            except logs.InvalidRecordError as error:
                self._problem = error
            self._waiting.popleft()
