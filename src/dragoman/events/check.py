"""The rules of a stream, held against any sequence of events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, get_args

import msgspec
from msgspec import Struct

from ..messages import AssistantBlock, Text, Thinking, ToolCall
from .values import (
    Event,
    FinishReason,
    MessageComplete,
    MessageStart,
    Problem,
    TextDelta,
    ThinkingDelta,
    ToolIntent,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UnknownEvent,
    Usage,
    read_object,
)

_Rule: TypeAlias = Callable[[bool, str], None]

_REASONS = frozenset(get_args(FinishReason))
_PROBLEMS = frozenset(get_args(Problem))
_HALVES = frozenset({"cancelled", "interrupted", "malformed"})  # problems of calls whose arguments are not whole
_COUNTS = tuple(name for name in Usage.__struct_fields__ if name.endswith("_tokens"))

_encoder = msgspec.json.Encoder(order="deterministic")


class StreamContractError(ValueError):
    """A sequence of events breaks a rule of the stream; ``index`` says where, ``rule`` which."""

    def __init__(self, index: int, rule: str) -> None:
        super().__init__(f"event {index}: {rule}")
        self.index = index
        self.rule = rule


def check_events(events: Iterable[Event | UnknownEvent]) -> None:
    """Raise ``StreamContractError`` at the first event that breaks a rule of the stream.

    No events at all are fine: a call that failed before its first event says so by its exception.
    Events of unknown types are passed over.
    """
    checker = _Checker()
    last = -1
    for last, event in enumerate(events):
        if isinstance(event, UnknownEvent):
            continue
        try:
            checker.check(last, event)
        except (AttributeError, TypeError) as error:  # an event holds what its fields do not allow, such as no text
            raise StreamContractError(last, "a field of another type than the event's") from error
    if last >= 0 and not checker.complete:
        raise StreamContractError(last, "the stream does not end with message.complete")


class _Said(Struct):
    """What a stream said of one block, or its end does."""

    kind: type[AssistantBlock]
    text: str = ""  # of a call: its id
    mark: str | None = None  # of a thought: its signature; of a call: the name of its tool
    arguments: bytes | None = None

    @property
    def is_heard(self) -> bool:
        """Do events have to speak of it? Not of an empty text."""
        return self.kind is ToolCall or bool(self.text or self.mark)


class _Checker:
    def __init__(self) -> None:
        self.started = self.complete = False
        self.message_id = self.request_id = ""
        self.unsound = False  # was there a call that made no intent?
        self.block = -1
        self.tool: ToolUseStart | None = None
        self.fragments: list[str] = []
        self.seen: set[str] = set()  # ids of calls
        self.intents: set[str] = set()  # and of intents
        self.said: list[_Said] = []

    def check(self, index: int, event: Event) -> None:
        def rule(holds: bool, text: str) -> None:
            if not holds:
                raise StreamContractError(index, text)

        rule(isinstance(event, Event), "not an event")
        rule(not self.complete, "an event after message.complete")
        if isinstance(event, MessageStart):
            rule(not self.started, "a second message.start")
            self.started, self.message_id, self.request_id = True, event.message_id, event.request_id
            return
        rule(self.started, "an event before message.start")
        rule(event.message_id == self.message_id, "a message_id that differs from message.start's")
        rule(event.request_id == self.request_id, "a request_id that differs from message.start's")
        if isinstance(event, MessageComplete):
            self._end(event, rule)
            return
        rule(event.content_block_index >= max(self.block, 0), "content_block_index decreased")
        if self.tool is not None and not isinstance(event, ToolUseInputDelta | ToolUseEnd):
            rule(False, "another block while a tool call is open")
        fresh, self.block = event.content_block_index > self.block, event.content_block_index
        if isinstance(event, TextDelta | ThinkingDelta):
            self._add(event, fresh, rule)
        elif isinstance(event, ToolUseStart):
            rule(fresh, "a tool call in a block that had begun")
            rule(event.tool_use_id not in self.seen, "a tool_use_id used twice")
            self.seen.add(event.tool_use_id)
            self.tool, self.fragments = event, []
        else:
            tool = self.tool
            if tool is None or event.tool_use_id != tool.tool_use_id or fresh:
                rule(False, "a tool call that is not open")
            elif isinstance(event, ToolUseInputDelta):
                self.fragments.append(event.partial_json)
            else:
                self._end_tool(tool, event, rule)

    def _add(self, event: TextDelta | ThinkingDelta, fresh: bool, rule: _Rule) -> None:
        kind: type[AssistantBlock] = Text if isinstance(event, TextDelta) else Thinking
        if fresh:
            self.said.append(_Said(kind))
        said = self.said[-1]
        rule(said.kind is kind, "two kinds of delta in one block")
        said.text += event.text
        if isinstance(event, ThinkingDelta):
            said.mark = event.signature or said.mark

    def _end_tool(self, tool: ToolUseStart, event: ToolUseEnd, rule: _Rule) -> None:
        text = "".join(self.fragments)
        read, final = read_object(text), _write(event.final_input)
        rule(isinstance(event.final_input, dict) and final is not None, "final_input is not a JSON object")
        rule(event.problem is None or event.problem in _PROBLEMS, "an unknown problem")
        # Whoever has no fragments to give may have the input itself, but then the whole of it.
        whole = not text and event.problem not in _HALVES
        rule(whole or final == _write(read or {}), "final_input is not the sum of the fragments")
        rule((event.intent is None) != (event.problem is None), "tool.use_end needs an intent or a problem")
        if event.intent is not None:
            rule(read is not None or not text.strip(), "an intent of arguments that are not a JSON object")
            rule(_write(event.intent.input) == final, "intent and final_input differ")
            raw = event.intent.raw_input_text
            rule(raw == text or not text, "raw_input_text is not the sum of the fragments")
            rule(not raw.strip() or _write(read_object(raw)) == final, "raw_input_text is not the input")
            self._propose(tool, event.intent, rule)
        self.unsound = self.unsound or event.intent is None
        self.said.append(_Said(ToolCall, tool.tool_use_id, tool.tool_name, final))
        self.tool = None

    def _propose(self, tool: ToolUseStart, intent: ToolIntent, rule: _Rule) -> None:
        rule(intent.status == "proposed", "an intent that is not merely proposed")
        rule(intent.tool_name == tool.tool_name, "an intent that names another tool")
        rule(intent.source.request_id == self.request_id, "an intent of another request")
        rule(intent.id not in self.intents, "an intent's id used twice")
        self.intents.add(intent.id)
        # An id may be the provider's while the stream has one of its own. Where a provider used an id again, it is
        # even that of an earlier call: then its place in the stream says whose intent this is.
        foreign = intent.provider_call_id != tool.tool_use_id and intent.provider_call_id in self.seen
        here = intent.source.stream_index == tool.content_block_index
        rule(here or not foreign, "an intent that names another call")

    def _end(self, event: MessageComplete, rule: _Rule) -> None:
        rule(event.finish_reason in _REASONS, "an unknown finish_reason")
        well = event.finish_reason in ("stop", "tool_calls")
        rule(not (well and self.unsound), "stop or tool_calls as the reason after a call that made no intent")
        rule(self.tool is None, "message.complete while a tool call is open")
        rule(_is_usage(event.usage), "usage that is not counts of 0 or more")
        said, final = _heard(self.said), _heard([_restate(block) for block in event.final_content])
        rule(_sums(final) == _sums(said), "final_content is not the sum of the deltas")
        rule(_tools(final) == _tools(said), "final_content names another tool")
        rule(final == said, "final_content has another signature than the deltas")
        self.complete = True


def _write(value: Any) -> bytes | None:
    """A value as JSON, in which ``True`` is not ``1`` and ``1.0`` is not either; ``None`` if it is no such value."""
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, RecursionError):
        return None


def _is_usage(usage: Any) -> bool:
    counts = [getattr(usage, name) for name in _COUNTS] if isinstance(usage, Usage) else []
    return bool(counts) and all(count is None or (type(count) is int and count >= 0) for count in counts)


def _restate(block: AssistantBlock) -> _Said:
    if isinstance(block, ToolCall):
        return _Said(ToolCall, block.id, block.name, _write(block.arguments or {}))
    if isinstance(block, Thinking):
        return _Said(Thinking, block.text, (block.continuity and block.continuity.signature) or None)
    return _Said(type(block), block.text if isinstance(block, Text) else "")


def _heard(blocks: Iterable[_Said]) -> list[_Said]:
    return [block for block in blocks if block.is_heard]


def _sums(blocks: Iterable[_Said]) -> list[tuple[type, str, bytes | None]]:
    return [(block.kind, block.text, block.arguments) for block in blocks]


def _tools(blocks: Iterable[_Said]) -> list[str | None]:
    return [block.mark for block in blocks if block.kind is ToolCall]
