"""Read the model calls of a log as cases: what was sent, and what the model answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict

from ..calls import STOP_REASONS, CallCompleted, CallFailed, CallStarted
from ..events import read_json
from ..log import (
    Conversation,
    EventLog,
    LogRecord,
    MessageRecorded,
    SessionResumed,
    SessionStarted,
    ToolsChanged,
)
from ..messages import NO_CONFIG, Assistant, Message, RuntimeConfig, Tool, ToolChoice

_FAILED = "the call failed"
_UNDEFINED = "the definitions of its tools are not in the log"

Calls: TypeAlias = tuple[tuple[str, Any], ...]


class ModelAnswer(Struct, frozen=True, kw_only=True):
    """What a model answered, or the error of the call; an unknown ``cost_usd`` is ``None``."""

    text: str = ""
    calls: Calls = ()
    finish_reason: str | None = None
    cost_usd: Decimal | None = None
    latency_ms: float | None = None
    error: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_refusal(self) -> bool:
        """Whether the provider ended the answer because of its content filter."""
        return self.finish_reason == "content_filter"

    def read_value(self) -> Any:
        """Return the structured answer: the JSON object or list in the text, or ``None``."""
        text = self.text.strip()
        if self.calls or text[:1] not in ("{", "["):
            return None
        try:
            return read_json(text)
        except ValueError:
            return None


class Case(Struct, frozen=True, kw_only=True):
    """One recorded call: the part of its request that the log has, and the recorded answer."""

    id: str
    model: str
    messages: tuple[Message, ...]
    answer: ModelAnswer
    tools: tuple[Tool, ...] = ()
    config: RuntimeConfig = NO_CONFIG
    response_schema: dict[str, Any] | None = None
    tool_choice: ToolChoice | None = None

    def to_row(self) -> dict[str, Any]:
        """Return the request as a row of a batch."""
        config = asdict(self.config).items()
        optional = {
            "tools": list(self.tools),
            "response_schema": self.response_schema,
            "tool_choice": self.tool_choice,
        }
        return {
            "id": self.id,
            "messages": list(self.messages),
            "config": {name: it for name, it in config if it != getattr(NO_CONFIG, name)},
            "check_calls": False,
            **{name: it for name, it in optional.items() if it},
        }


def read_cases(log: EventLog, *sessions: str) -> tuple[list[Case], Counter[str]]:
    """Return the calls of a log that can be repeated, and the reasons why others cannot.

    Without ``sessions``, all sessions of the log are read, in the order of their names.
    """
    cases: list[Case] = []
    skipped: Counter[str] = Counter()
    for session in sessions or [entry.session for entry in log.sessions()]:
        reader = _SessionReader()
        for record in log.read(session):
            for found in reader.read(record):
                if isinstance(found, Case):
                    cases.append(found)
                else:
                    skipped[found] += 1
        skipped.update(reader.finish())
    return cases, skipped


class _SessionReader:
    """Read the cases of one session, record by record."""

    def __init__(self) -> None:
        self._conversation = Conversation()
        self._tools: dict[str, Tool | None] = {}
        # the calls without an answer so far, by request
        self._open: dict[str | None, CallStarted | CallFailed] = {}
        self._is_gateway = False
        # the messages of the gateway's calls, by request
        self._sent: dict[str | None, list[MessageRecorded]] = {}
        # the starts of the gateway's calls, by request, and the tools that they offer, by digest
        self._starts: dict[str | None, CallStarted] = {}
        self._lists: dict[str | None, tuple[Tool, ...]] = {}

    def _read_tools(self, payload: SessionStarted | SessionResumed | ToolsChanged) -> None:
        if isinstance(payload, SessionStarted):
            self._tools |= dict.fromkeys(payload.tools)
        self._tools |= {tool.name: tool for tool in payload.definitions}
        if isinstance(payload, ToolsChanged):
            for name in payload.removed:
                self._tools.pop(name, None)

    def read(self, record: LogRecord) -> Iterator[Case | str]:
        """Process a record; yield a case, or the reason why a call cannot be repeated."""
        payload = record.payload
        if isinstance(payload, SessionStarted | SessionResumed | ToolsChanged):
            self._read_tools(payload)
            self._is_gateway = self._is_gateway or getattr(payload, "kind", "") == "gateway"
        elif self._is_gateway and isinstance(payload, CallStarted):
            self._starts[payload.request_id] = payload
            if payload.definitions:
                self._lists[payload.tools_digest] = payload.definitions
        elif isinstance(payload, CallStarted) or (
            self._is_gateway and isinstance(payload, CallFailed)
        ):
            self._open[payload.request_id] = payload
        elif self._is_gateway and isinstance(payload, MessageRecorded):
            self._sent.setdefault(payload.request_id, []).append(payload)
        elif self._is_gateway and isinstance(payload, CallCompleted):
            self._open.pop(payload.request_id, None)
            yield self._read_gateway(record, payload)
        elif isinstance(payload, MessageRecorded) and payload.request_id in self._open:
            # In a fork, copied messages have no request id, so only the original is a case.
            yield self._read_reply(record, payload, self._open.pop(payload.request_id))
        if not self._is_gateway:
            self._conversation.apply(record, payload)

    def finish(self) -> Iterator[str]:
        """Yield the reason for each call that has no answer in the log."""
        for call in self._open.values():
            is_worker = isinstance(call, CallStarted) and call.is_worker
            yield "an auxiliary call, such as a summary" if is_worker else _FAILED

    def _read_reply(self, record: LogRecord, reply: MessageRecorded, asked: Any) -> Case | str:
        sent = [entry.message for entry in self._conversation.entries]
        if reply.finish_reason not in STOP_REASONS or not isinstance(reply.message, Assistant):
            return _FAILED
        if not sent or isinstance(sent[-1], Assistant):
            return "the reply continues an earlier one"
        if None in self._tools.values():
            return _UNDEFINED
        return _make_case(
            record, reply, [*sent, reply.message], config=asked.config,
            tools=tuple([tool for tool in self._tools.values() if tool is not None]),
            response_schema=asked.response_schema,
            tool_choice=asked.tool_choice if self._tools else None,
        )  # fmt: skip

    def _read_gateway(self, record: LogRecord, call: CallCompleted) -> Case | str:
        messages = [each.message for each in self._sent.pop(call.request_id, ())]
        start = self._starts.pop(call.request_id, None)
        tools = self._lists.get(start.tools_digest, ()) if start is not None else ()
        if call.operation != "chat":
            return "the call is not a chat"
        if not messages or not isinstance(messages[-1], Assistant):
            return "the log has no content of the call (dragoman serve --log-content records it)"
        is_called = any(isinstance(each, Assistant) and each.tool_calls for each in messages)
        if not tools and (is_called or getattr(start, "tools_digest", None)):
            return _UNDEFINED
        return _make_case(
            record, call, messages, config=call.config, tools=tools,
            response_schema=getattr(start, "response_schema", None),
            tool_choice=getattr(start, "tool_choice", None),
        )  # fmt: skip


def _make_case(
    record: LogRecord,
    end: MessageRecorded | CallCompleted,
    messages: Sequence[Message],
    **request: Any,
) -> Case:
    """Return a case; the last message is the answer."""
    *sent, reply = messages
    assert isinstance(reply, Assistant)
    answer = ModelAnswer(
        text=reply.text,
        calls=tuple([(call.name, call.arguments) for call in reply.tool_calls]),
        finish_reason=end.finish_reason,
        cost_usd=end.cost_usd,
        latency_ms=end.latency_ms,
    )
    name = f"{record.session}/{record.seq}"
    model = f"{end.provider}:{end.model}"
    return Case(id=name, model=model, messages=tuple(sent), answer=answer, **request)
