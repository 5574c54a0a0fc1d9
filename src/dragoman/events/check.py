"""Check whether a sequence of events follows the rules of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, get_args

import msgspec
from msgspec import Struct

from ..messages import AssistantBlock, Text, Thinking, ToolCall
from . import values as ev
from .intents import ToolIntent

_Rule: TypeAlias = Callable[[bool, str], None]

_REASONS = frozenset(get_args(ev.FinishReason))
_PROBLEMS = frozenset(get_args(ev.Problem))
# the problems that a call with incomplete arguments can have
_HALVES = frozenset({"cancelled", "interrupted", "malformed"})
_COUNTS = tuple(name for name in ev.Usage.__struct_fields__ if name.endswith("_tokens"))

_encoder = msgspec.json.Encoder(order="deterministic")


class StreamContractError(ValueError):
    """Raised when the event at position ``index`` of a sequence breaks a rule."""

    def __init__(self, index: int, rule: str) -> None:
        super().__init__(f"event {index}: {rule}")
        self.index = index
        self.rule = rule


def check_events(events: Iterable[ev.Event | ev.UnknownEvent]) -> None:
    """Raise ``StreamContractError`` at the first event that breaks a rule of event streams.

    An empty sequence is valid, since a call may fail before its first event. Events of unknown
    types are ignored.
    """
    checker = _Checker()
    last = -1
    for last, event in enumerate(events):
        if isinstance(event, ev.UnknownEvent):
            continue
        try:
            checker.check(last, event)
        # a field of the event has a value of a wrong type, such as None instead of a text
        except (AttributeError, TypeError) as error:
            raise StreamContractError(last, "a field of another type than the event's") from error
    if last >= 0 and not checker.complete:
        raise StreamContractError(last, "the stream does not end with message.complete")


class _Summary(Struct):
    """The content of one block, taken from its deltas or from the final message."""

    kind: type[AssistantBlock]
    text: str = ""  # the text of the block, or the id of a call
    mark: str | None = None  # the signature of a thinking block, or the tool name of a call
    arguments: bytes | None = None

    @property
    def is_delivered(self) -> bool:
        """Whether the stream must contain deltas for this block; an empty text has none."""
        return self.kind is ToolCall or bool(self.text or self.mark)


class _Checker:
    def __init__(self) -> None:
        self.started = self.complete = False
        self.message_id = self.request_id = ""
        self.unsound = False  # whether any call ended without an intent
        self.block = -1
        self.tool: ev.ToolUseStart | None = None
        self.fragments: list[str] = []
        self.seen: set[str] = set()  # the ids of all calls so far
        self.intents: set[str] = set()  # the ids of all intents so far
        self.blocks: list[_Summary] = []

    def check(self, index: int, event: ev.Event) -> None:
        def rule(holds: bool, text: str) -> None:
            if not holds:
                raise StreamContractError(index, text)

        rule(isinstance(event, ev.Event), "not an event")
        rule(not self.complete, "an event after message.complete")
        if isinstance(event, ev.MessageStart):
            rule(not self.started, "a second message.start")
            self.started = True
            self.message_id = event.message_id
            self.request_id = event.request_id
            return
        rule(self.started, "an event before message.start")
        rule(event.message_id == self.message_id, "a message_id that differs from message.start's")
        rule(event.request_id == self.request_id, "a request_id that differs from message.start's")
        if isinstance(event, ev.MessageComplete):
            self._end(event, rule)
            return
        rule(event.content_block_index >= max(self.block, 0), "content_block_index decreased")
        if self.tool is not None and not isinstance(event, ev.ToolUseInputDelta | ev.ToolUseEnd):
            rule(False, "another block while a tool call is open")
        fresh = event.content_block_index > self.block
        self.block = event.content_block_index
        if isinstance(event, ev.TextDelta | ev.ThinkingDelta):
            self._add(event, fresh, rule)
        elif isinstance(event, ev.ToolUseStart):
            rule(fresh, "a tool call in a block that had begun")
            rule(event.tool_use_id not in self.seen, "a tool_use_id used twice")
            self.seen.add(event.tool_use_id)
            self.tool = event
            self.fragments = []
        else:
            tool = self.tool
            if tool is None or event.tool_use_id != tool.tool_use_id or fresh:
                rule(False, "a tool call that is not open")
            elif isinstance(event, ev.ToolUseInputDelta):
                self.fragments.append(event.partial_json)
            else:
                self._end_tool(tool, event, rule)

    def _add(self, event: ev.TextDelta | ev.ThinkingDelta, fresh: bool, rule: _Rule) -> None:
        kind: type[AssistantBlock] = Text if isinstance(event, ev.TextDelta) else Thinking
        if fresh:
            self.blocks.append(_Summary(kind))
        shown = self.blocks[-1]
        rule(shown.kind is kind, "two kinds of delta in one block")
        shown.text += event.text
        if isinstance(event, ev.ThinkingDelta):
            shown.mark = event.signature or shown.mark

    def _end_tool(self, tool: ev.ToolUseStart, event: ev.ToolUseEnd, rule: _Rule) -> None:
        text = "".join(self.fragments)
        read = ev.read_object(text)
        final = _write(event.final_input)
        rule(
            isinstance(event.final_input, dict) and final is not None,
            "final_input is not a JSON object",
        )
        rule(event.problem is None or event.problem in _PROBLEMS, "an unknown problem")
        # A provider may send a call without fragments and set only final_input, which must be
        # complete.
        whole = not text and event.problem not in _HALVES
        rule(whole or final == _write(read or {}), "final_input is not the sum of the fragments")
        rule(
            (event.intent is None) != (event.problem is None),
            "tool.use_end needs an intent or a problem",
        )
        if event.intent is not None:
            rule(
                read is not None or not text.strip(),
                "an intent of arguments that are not a JSON object",
            )
            rule(_write(event.intent.input) == final, "intent and final_input differ")
            raw = event.intent.raw_input_text
            rule(raw == text or not text, "raw_input_text is not the sum of the fragments")
            rule(
                not raw.strip() or _write(ev.read_object(raw)) == final,
                "raw_input_text is not the input",
            )
            self._propose(tool, event.intent, rule)
        self.unsound = self.unsound or event.intent is None
        self.blocks.append(_Summary(ToolCall, tool.tool_use_id, tool.tool_name, final))
        self.tool = None

    def _propose(self, tool: ev.ToolUseStart, intent: ToolIntent, rule: _Rule) -> None:
        rule(intent.status == "proposed", "an intent that is not merely proposed")
        rule(intent.tool_name == tool.tool_name, "an intent that names another tool")
        rule(intent.source.request_id == self.request_id, "an intent of another request")
        rule(intent.id not in self.intents, "an intent's id used twice")
        self.intents.add(intent.id)
        # If the provider uses an id twice, the stream replaces the second id, but the intent keeps
        # the provider's id, which an earlier call has too. In this case the block index identifies
        # the call.
        foreign = (
            intent.provider_call_id != tool.tool_use_id and intent.provider_call_id in self.seen
        )
        here = intent.source.stream_index == tool.content_block_index
        rule(here or not foreign, "an intent that names another call")

    def _end(self, event: ev.MessageComplete, rule: _Rule) -> None:
        rule(event.finish_reason in _REASONS, "an unknown finish_reason")
        well = event.finish_reason in ("stop", "tool_calls")
        rule(
            not (well and self.unsound),
            "stop or tool_calls as the reason after a call that made no intent",
        )
        rule(self.tool is None, "message.complete while a tool call is open")
        rule(_is_usage(event.usage), "usage that is not counts of 0 or more")
        shown = _delivered(self.blocks)
        final = _delivered([_summarize(block) for block in event.final_content])
        rule(_sums(final) == _sums(shown), "final_content is not the sum of the deltas")
        rule(_tools(final) == _tools(shown), "final_content names another tool")
        rule(final == shown, "final_content has another signature than the deltas")
        self.complete = True


def _write(value: Any) -> bytes | None:
    """Return a value as JSON, or ``None`` if JSON cannot represent the value.

    Comparing JSON distinguishes ``True``, ``1`` and ``1.0``, which are equal in Python.
    """
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, RecursionError):
        return None


def _is_usage(usage: Any) -> bool:
    counts = [getattr(usage, name) for name in _COUNTS] if isinstance(usage, ev.Usage) else []
    return bool(counts) and all(
        count is None or (type(count) is int and count >= 0) for count in counts
    )


def _summarize(block: AssistantBlock) -> _Summary:
    if isinstance(block, ToolCall):
        return _Summary(ToolCall, block.id, block.name, _write(block.arguments or {}))
    if isinstance(block, Thinking):
        return _Summary(
            Thinking, block.text, (block.continuity and block.continuity.signature) or None
        )
    return _Summary(type(block), block.text if isinstance(block, Text) else "")


def _delivered(blocks: Iterable[_Summary]) -> list[_Summary]:
    return [block for block in blocks if block.is_delivered]


def _sums(blocks: Iterable[_Summary]) -> list[tuple[type, str, bytes | None]]:
    return [(block.kind, block.text, block.arguments) for block in blocks]


def _tools(blocks: Iterable[_Summary]) -> list[str | None]:
    return [block.mark for block in blocks if block.kind is ToolCall]
