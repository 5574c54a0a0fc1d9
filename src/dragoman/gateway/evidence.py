"""Records of calls, from which the ledger, the access log and the event log get their figures.

A record is an instance of a class of the module ``dragoman.calls``. Each failed attempt before the
last has one ``CallFailed``; the last attempt has one ``CallCompleted`` or ``CallFailed``. Each
record has ``inbound``, which describes the client's request. The tokens and the cost in the ledger
are the sums of these records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from ..calls import CallFailed, Inbound
from ..errors import CallCancelledError, ProviderError
from ..events import MessageComplete, Usage
from ..log import EventLog, LogError, MessageRecorded, Payload, SessionFinished, SessionStarted
from ..messages import Assistant, Request, new_ulid
from ..middleware.attempts import Attempt, CallEnd
from ..prices.results import EXACT
from ..provider import Provider, Reply
from .routing import find_switches

log = logging.getLogger("dragoman")

# A body with more bytes than this is parsed in a thread, and its tokens are estimated only
# roughly.
LARGE = 256 * 1024


class GatewayCall(Struct, kw_only=True):
    """One call to a model for a client, complete or interrupted.

    Durations are in seconds; ``at`` is a Unix time.
    """

    provider: Provider
    request: Request
    reply: Reply
    inbound: Inbound
    at: float
    seconds: float
    first: float | None = None
    complete: MessageComplete | None = None
    error: ProviderError | None = None
    body_bytes: int = 0

    def record(self) -> list[CallEnd]:
        """Return one record for each attempt of the call, in order."""
        earlier = [replace(each, inbound=self.inbound) for each in self._find_failed()]
        return [*earlier, self._record_end()]

    def count_tokens(self) -> Usage:
        """Return the total tokens of all attempts, without computing their price."""
        usage, failed = self._find_usage(), self._find_failed()
        return Usage(
            sum([each.input_tokens or 0 for each in failed], usage.input_tokens or 0),
            sum([each.output_tokens or 0 for each in failed], usage.output_tokens or 0),
        )

    def _find_failed(self) -> list[CallFailed]:
        """Return the records of the attempts that failed before the last one."""
        return [each for each in self.reply.history if isinstance(each, CallFailed)]

    def _record_end(self) -> CallEnd:
        attempt = Attempt(self.provider, self.request, at=round(self.at, 6))
        attempt.reply, attempt.answer = self.reply, self.complete
        attempt.began, attempt.first, attempt.ended = 0.0, self.first, self.seconds
        attempt.usage, attempt.error = self._find_usage(), self.error
        if self.error is None and self.complete is None:
            attempt.error = CallCancelledError("the client hung up", advice="")
        return attempt.end(inbound=self.inbound)

    def _find_usage(self) -> Usage:
        """Return the reply's token usage, or an estimate if the provider did not report it."""
        usage, request = self.reply.usage, self.request
        if self.first is None or (
            usage.input_tokens is not None and usage.output_tokens is not None
        ):
            return usage
        asked = usage.input_tokens
        # for long requests assume four bytes per token, since a better estimate takes seconds
        if asked is None:
            is_long = self.body_bytes > LARGE
            estimate = self.provider.estimate_input_tokens
            asked = self.body_bytes // 4 if is_long else estimate(request.messages, request.tools)
        written = max(usage.output_tokens or 0, self.inbound.bytes // 100)
        return replace(
            usage, input_tokens=asked, output_tokens=written, total_tokens=None, estimated=True
        )


def hide_messages(records: Sequence[CallEnd]) -> list[CallEnd]:
    """Return the records without error messages, which may repeat parts of the conversation."""
    return [
        replace(record, error_message_redacted="(not logged)")
        if isinstance(record, CallFailed)
        else record
        for record in records
    ]


def add_up(records: Sequence[CallEnd]) -> tuple[Usage, Decimal]:
    """Return the total token usage and the total cost of some call records."""
    asked = sum([record.input_tokens or 0 for record in records])
    written = sum([record.output_tokens or 0 for record in records])
    money = Decimal(0)
    for record in records:
        money = EXACT.add(money, record.cost_usd or Decimal(0))
    return Usage(asked, written), money


class CallLog:
    """Write the records of calls to an event log, as one session per run of a gateway process.

    Records are written in the background; ``close`` waits for the pending ones. The conversation
    and error messages are written only with ``include_content``.
    """

    def __init__(self, events: EventLog, *, include_content: bool = False) -> None:
        self._include_content = include_content
        self._log = events
        self._session: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, call: GatewayCall, records: Sequence[CallEnd]) -> None:
        """Write the records of a call; with ``include_content``, write its messages too."""
        payloads: list[Payload] = [*find_switches(call.reply)]
        payloads += records if self._include_content else hide_messages(records)
        request_id = call.request.request_id
        if self._include_content:
            messages = [*call.request.messages]
            if call.complete is not None and call.complete.final_content:
                messages.append(Assistant(call.complete.final_content))
            payloads = [
                *[MessageRecorded(message, request_id=request_id) for message in messages],
                *payloads,
            ]
        self._put(payloads, request_id)

    @property
    def include_content(self) -> bool:
        """Whether messages, texts and documents are written to the log too."""
        return self._include_content

    def put_records(self, records: Sequence[CallEnd], request_id: str) -> None:
        """Write the records of an embedding or reranking call, which has no messages."""
        self._put([*(records if self._include_content else hide_messages(records))], request_id)

    def _put(self, payloads: list[Payload], request_id: str) -> None:
        if self._session is None:
            self._session = f"gateway_{new_ulid()}"
            payloads.insert(0, SessionStarted(kind="gateway"))
        task = asyncio.get_running_loop().create_task(
            self._write(self._session, payloads, request_id)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait until all records are written, and record the end of the session."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        session, self._session = self._session, None
        if session is not None:
            await self._write(session, [SessionFinished("completed")], None)

    async def _write(self, session: str, payloads: Sequence[Payload], turn: str | None) -> None:
        for payload in payloads:
            try:
                await self._log.append(session, payload, turn=turn)
            except LogError as error:
                log.warning("a record of the call %s could not be logged: %s", turn, error)
