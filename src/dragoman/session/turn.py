"""One turn: call the model, record its reply, and process its intents."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from .. import events as ev
from ..calls import STOP_REASONS, TURN, CallStarted
from ..errors import (
    ContextOverflowError,
    MalformedToolCallError,
    ProviderError,
    StructuredOutputError,
)
from ..log import (
    ContextSummarised,
    InvalidRecordError,
    LlmExchangeKept,
    LogRecord,
    Payload,
    Routing,
    TurnStarted,
)
from ..log.writer import finish_writing
from ..messages import (
    Assistant,
    ForceTool,
    Message,
    Request,
    RuntimeConfig,
    Tool,
    ToolChoice,
    User,
    new_ulid,
)
from ..middleware.attempts import Attempt, Price
from ..provider import EventStream, Provider, Reply
from ..tools import Toolbox
from ..validate.structured import response_schema_of
from .closing import answer_calls, close_intents
from .journal import Journal
from .projector import Projector
from .records import is_repeatable, make_message, record_message

log = logging.getLogger("dragoman")

_PLACE = re.compile(r"messages\[(\d+)\](.*)", re.DOTALL)


class TurnSettings(Struct, frozen=True):
    """The settings shared by all turns of a session."""

    config: RuntimeConfig = RuntimeConfig()
    tool_choice: ToolChoice | None = None
    price: Price | None = None
    keep_raw: bool = False
    on_event: Callable[[ev.Event], object] | None = None
    metadata: dict[str, str] = {}
    output: Any = None


@dataclass(eq=False)
class Turn:
    """One turn of a session, with the provider that it calls and the reason for that choice."""

    number: int
    provider: Provider
    routing: Routing
    tools: Toolbox
    journal: Journal
    projector: Projector
    settings: TurnSettings
    _: KW_ONLY
    final: bool = False  # whether the reply is the session's structured answer

    def __post_init__(self) -> None:
        self._id = f"t{self.number}"
        self._ends: list[ev.ToolUseEnd] = []
        # the tool call that is currently being received
        self._begun: ev.ToolUseStart | None = None
        self._written: list[str] = []  # the arguments of the current tool call so far
        self._recorded = 0  # number of the call's history records already in the log
        self._estimate = 0  # estimated input tokens of the call
        self._begun_by = ""  # the id of the record that the starts of attempts follow from
        self._started = ""  # the id of the start of the current attempt

    async def run(self) -> tuple[ev.Response, tuple[ev.ToolIntent, ...]]:
        """Call the model; return its reply and the intents, none of which has been processed."""
        record = await self._write(
            TurnStarted(self.number, self.provider.model, self.provider.name)
        )
        paused_by = self.journal.state.paused_by
        # another provider cannot continue a paused reply
        if paused_by is not None and paused_by != self.provider.name:
            await self._tell("Continue.")
        response = await self._call(record.id)
        return response, tuple([end.intent for end in self._ends if end.intent is not None])

    async def correct(self, error: MalformedToolCallError | StructuredOutputError) -> None:
        """Report to the model what is wrong with its reply. No call of that reply runs."""
        if isinstance(error, StructuredOutputError):
            await self._tell(
                f"This answer cannot be used: {error.error_message or error.message}. Answer "
                "again, as JSON alone."
            )
            return
        await close_intents(self.journal, "another call of the same reply could not be used")
        problem = f"Not run: {error.message}"
        if self.journal.state.unanswered():
            await answer_calls(self.journal, problem)
            return
        await self._tell(
            f"{problem}. Propose it again with arguments that fit the tool's schema, or answer "
            "without it."
        )

    async def _tell(self, text: str) -> None:
        """Add a message of the session itself to the conversation."""
        await self._write(record_message(User(text)), actor="system")

    # --- calling the model in a turn ------------------------------------------------------------

    async def _call(self, parent: str) -> ev.Response:
        """Call the model; if the conversation does not fit, shorten it and call once more."""
        place = parent, self._id
        await self.projector.unload(self.provider, self._offer(), self._list_loaded(), *place)
        messages, estimate = await self.projector.fit(self.provider, self._offer(), *place)
        try:
            return await self._ask(messages, estimate, parent)
        except ContextOverflowError:
            if self._ends:
                raise
            loaded = self._list_loaded()
            is_shorter = await self.projector.unload(
                self.provider, self._offer(), loaded, *place, reason="overflow"
            )
            is_shorter |= await self.projector.shrink(self.provider, self._offer(), *place)
            if not is_shorter:
                raise
        self._recorded = 0
        messages, estimate = await self.projector.fit(self.provider, self._offer(), *place)
        return await self._ask(messages, estimate, parent)

    def _list_loaded(self) -> list[str]:
        """Return the deferred tools that are offered, the least recently used first.

        Those that the last reply called, or its searches found, are not in the list.
        """
        if self.provider.searches_tools:
            return []
        state = self.journal.state
        deferred = {tool.name for tool in self.tools.describe() if tool.deferred}
        newest = max(
            [
                each.seq
                for each in state.conversation.entries
                if isinstance(each.message, Assistant)
            ],
            default=0,
        )
        loaded = [name for name in state.found if name in deferred and state.used[name] < newest]
        return sorted(loaded, key=lambda name: state.used[name])

    def _offer(self) -> Sequence[Tool] | None:
        choice = self.settings.tool_choice
        found = self.journal.state.found
        if isinstance(choice, ForceTool):
            found = {choice.name: None, **found}  # offer the tool that the model must call
        return self.tools.offer(found, searched=self.provider.searches_tools) or None

    async def _ask(self, messages: list[Message], estimate: int, parent: str) -> ev.Response:
        """Call the model once.

        Its intents are recorded as they arrive, before any of them can run.
        """
        provider = self.provider
        config = self.settings.config
        tools = self._offer()
        if extras := self.projector.compaction(provider):
            config = replace(config, extras={**extras, **config.extras})
        # Some servers reject a conversation with tool calls unless tools are sent: send them, with
        # tool_choice none.
        schema = None
        choice = self.settings.tool_choice
        if self.final:
            schema = self.settings.output
            choice = "none" if tools else None
        request = Request(
            messages,
            tools=tools or (),
            config=config,
            response_schema=_write_schema(schema),
            tool_choice=choice,
            model=provider.model,
            stream=True,
            session_id=self.journal.session,
            metadata={**self.settings.metadata, TURN: self._id},
        )
        request = provider.add_defaults(request)
        attempt = Attempt(provider, request, price=self.settings.price)
        self._estimate = estimate
        self._begun_by = parent
        self._started = (await self._write(attempt.start(estimate), parent)).id
        rejected = False
        stream: EventStream | None = None
        try:
            stream = provider.stream(
                messages, tools, config, schema, choice, request_id=request.request_id,
                session_id=request.session_id, metadata=request.metadata,
                check_calls=False, continues=self.journal.state.paused_by is not None,
            )  # fmt: skip
            attempt.reply = stream.reply
            async with stream:
                await self._read(stream, attempt)
        except (asyncio.CancelledError, ProviderError) as error:
            if stream is None or not self._is_usable(error):
                await finish_writing(self._record_failure(attempt, stream, error))
                raise
            rejected = True
        response = stream.response
        if rejected and response.finish_reason == "error":
            response = replace(response, finish_reason="tool_calls")
        await finish_writing(self._record_reply(attempt, response))
        return response

    def _is_usable(self, error: BaseException) -> bool:
        """Return whether a reply can be used although the provider found an invalid call in it."""
        intents = [end.intent for end in self._ends]
        return isinstance(error, MalformedToolCallError) and bool(intents) and None not in intents

    async def _read(self, stream: EventStream, attempt: Attempt) -> None:
        try:
            async for event in stream:
                attempt.hear((event,))
                if isinstance(event, ev.MessageStart):
                    await finish_writing(self._write_history(stream.reply))
                    self._report_losses(stream)
                if self.settings.on_event is not None:
                    self.journal.notify(self.settings.on_event, event)
                if isinstance(event, ev.ToolUseStart):
                    self._begun = event
                    self._written = []
                elif isinstance(event, ev.ToolUseInputDelta):
                    self._written.append(event.partial_json)
                elif isinstance(event, ev.ToolUseEnd):
                    await self._record_end(event)
        except asyncio.CancelledError:
            # Close the message, so that the partial reply is recorded.
            await stream.cancel()
            async for _ in stream:
                pass
            raise

    async def _record_end(self, end: ev.ToolUseEnd) -> None:
        """Record the intent of a finished call.

        An intent id that was used before, as in a replay, is replaced. A provider that validates
        calls itself may report a readable call as invalid and create no intent for it; the session
        then creates the intent.
        """
        if (
            end.intent is None
            and end.problem in ("unknown_tool", "invalid_arguments")
            and self._begun is not None
        ):
            served = self.provider.name, self.provider.model
            end = replace(
                end, intent=ev.make_intent(self._begun, "".join(self._written), end, *served)
            )
        if end.intent is not None and end.intent.id in self.journal.state.intents:
            end = replace(end, intent=replace(end.intent, id=f"tu_{new_ulid()}"))
        self._ends.append(end)
        if end.intent is not None:
            await self._write(end.intent, self._started)

    def _report_losses(self, stream: EventStream) -> None:
        """Log what the wire of a provider cannot express, once for each message."""
        reply = stream.reply
        entries = self.journal.state.conversation.entries
        for warning in reply.warnings:
            found = _PLACE.match(warning.path)
            at, part = (int(found[1]), found[2]) if found else (-1, warning.path)
            message = entries[at].recorded.message_id if 0 <= at < len(entries) else None
            key = reply.provider, reply.model, message, part, warning.code
            if key not in self.journal.reported:
                self.journal.reported.add(key)
                log.warning(
                    "%s/%s %s %s: %s", reply.provider, reply.model, self.journal.session,
                    message or stream.request_id, warning,
                )  # fmt: skip

    # --- recording the reply or failure of a turn -----------------------------------------------

    async def _record_reply(self, attempt: Attempt, response: ev.Response) -> None:
        # An empty reply, and one that ended as an error, cannot be sent back to a model.
        usable = bool(response.message.content) and response.finish_reason in STOP_REASONS
        attempt.answer = response
        attempt.stop()
        message = make_message(attempt, response, self._ends, self.routing, in_context=usable)
        await self._write_history(attempt.reply)
        replaced = self.projector.list_replaced(self.provider)
        await self._write(message, self._started)
        if replaced and replaced[0] not in self.projector.list_replaced(self.provider):
            provider, model = attempt.find_served()
            compacted = ContextSummarised(
                text="",
                first=min(replaced),
                last=max(replaced),
                messages=len(replaced),
                provider=provider,
                model=model,
                request_id=response.request_id or "",
                native=True,
            )
            await self._write(compacted, self._started)
        await self._keep_raw(response)
        await self._write(attempt.end(), self._started)

    async def _record_failure(
        self, attempt: Attempt, stream: EventStream | None, error: BaseException
    ) -> None:
        """Store the received events as evidence, and record how the call ended."""
        arrived = stream.response if stream is not None and stream.ended else None
        partial: ev.Response | None = arrived or getattr(error, "response", None)
        attempt.answer = partial
        attempt.stop(error)
        await self._write_history(attempt.reply)
        if partial is not None and stream is not None:
            again = isinstance(error, MalformedToolCallError) and is_repeatable(partial)
            again = again or (
                isinstance(error, StructuredOutputError) and bool(partial.message.content)
            )
            message = make_message(attempt, partial, self._ends, self.routing, in_context=again)
            if partial.message.content:
                await self._write(message, self._started)
            await self._keep_raw(partial)
        if not attempt.is_ended:
            await self._write(attempt.end(), self._started)

    async def _keep_raw(self, response: ev.Response) -> None:
        """Record the provider's own JSON, if it was received and the session has ``keep_raw``."""
        if not self.settings.keep_raw or response.raw is None:
            return
        exchange = LlmExchangeKept(
            request_id=response.request_id or "",
            provider=response.provider or self.provider.name,
            model=response.model or self.provider.model,
        )
        try:
            await self._write(replace(exchange, reply=response.raw), self._started)
        except InvalidRecordError as error:
            await self._write(replace(exchange, problem=str(error)), self._started)

    async def _write_history(self, reply: Reply | None) -> None:
        """Record the failed attempts, and the changes of routing and availability.

        The parent of each end is the start of its own attempt.
        """
        records = [*reply.history[self._recorded :]] if reply is not None else []
        for record in records:
            if isinstance(record, CallStarted):
                record = replace(record, estimated_input_tokens=self._estimate)
                self._started = (await self._write(record, self._begun_by)).id
            else:
                await self._write(record, self._started)
            self._recorded += 1

    async def _write(self, payload: Payload, parent: str | None = None, **place: Any) -> LogRecord:
        return await self.journal.write(payload, parent=parent, turn=self._id, **place)


def _write_schema(output: Any) -> dict[str, Any] | None:
    """Return the JSON Schema of a structured answer, which is given as a type or a mapping."""
    if output is None or isinstance(output, Mapping):
        return None if output is None else dict(output)
    return response_schema_of(output)
