"""The rules of a stream, held against any sequence of events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..messages import Text, Thinking, ToolCall
from .values import (
    Event,
    MessageComplete,
    MessageStart,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UnknownEvent,
    read_object,
)

__all__ = ["StreamContractError", "check_events"]


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
        if not isinstance(event, UnknownEvent):
            checker.check(last, event)
    if last >= 0 and not checker.complete:
        raise StreamContractError(last, "the stream does not end with message.complete")


class _Checker:
    def __init__(self) -> None:
        self.started = self.complete = False
        self.message_id = self.request_id = ""
        self.unsound = False  # was there a call that made no intent?
        self.block = -1
        self.tool: ToolUseStart | None = None
        self.fragments: list[str] = []
        self.seen: set[str] = set()
        self.said: list[list[Any]] = []  # [kind, block index, text or call id, arguments]

    def check(self, index: int, event: Event) -> None:
        def rule(holds: bool, text: str) -> None:
            if not holds:
                raise StreamContractError(index, text)

        rule(not self.complete, "an event after message.complete")
        if isinstance(event, MessageStart):
            rule(not self.started, "a second message.start")
            self.started, self.message_id, self.request_id = True, event.message_id, event.request_id
            return
        rule(self.started, "an event before message.start")
        rule(event.message_id == self.message_id, "a message_id that differs from message.start's")
        rule(event.request_id == self.request_id, "a request_id that differs from message.start's")
        if isinstance(event, MessageComplete):
            well = event.finish_reason == "tool_calls"
            rule(not (well and self.unsound), "tool_calls as the reason after a call that made no intent")
            rule(self.tool is None, "message.complete while a tool call is open")
            rule(self._adds_up(event), "final_content is not the sum of the deltas")
            self.complete = True
            return
        rule(event.content_block_index >= max(self.block, 0), "content_block_index decreased")
        if self.tool is not None and not isinstance(event, ToolUseInputDelta | ToolUseEnd):
            rule(False, "another block while a tool call is open")
        fresh, self.block = event.content_block_index > self.block, event.content_block_index
        if isinstance(event, TextDelta | ThinkingDelta):
            kind: type = Text if isinstance(event, TextDelta) else Thinking
            if fresh:
                self.said.append([kind, event.text, None])
            else:
                rule(self.said[-1][0] is kind, "two kinds of delta in one block")
                self.said[-1][1] += event.text
        elif isinstance(event, ToolUseStart):
            rule(fresh, "a tool call in a block that had begun")
            rule(event.tool_use_id not in self.seen, "a tool_use_id used twice")
            self.seen.add(event.tool_use_id)
            self.tool, self.fragments = event, []
        else:
            same = self.tool is not None and event.tool_use_id == self.tool.tool_use_id and not fresh
            rule(same, "a tool call that is not open")
            if isinstance(event, ToolUseInputDelta):
                self.fragments.append(event.partial_json)
            else:
                self._end_tool(event, rule)

    def _end_tool(self, event: ToolUseEnd, rule: Callable[[bool, str], None]) -> None:
        text = "".join(self.fragments)
        read, intent = read_object(text), event.intent
        rule(event.final_input == (read or {}), "final_input is not the sum of the fragments")
        rule((intent is None) != (event.problem is None), "tool.use_end needs an intent or a problem")
        if intent is not None and self.tool is not None:
            rule(read is not None or not text.strip(), "an intent of arguments that are not a JSON object")
            rule(intent.input == event.final_input, "intent and final_input differ")
            rule(intent.tool_name == self.tool.tool_name, "an intent that names another tool")
            # Not the same as tool_use_id where a provider used an id again: the second call got one of ours.
            rule(intent.provider_call_id in self.seen, "an intent that names another call")
        self.unsound = self.unsound or intent is None
        self.said.append([ToolCall, event.tool_use_id, event.final_input])
        self.tool = None

    def _adds_up(self, event: MessageComplete) -> bool:
        final: list[list[Any]] = []
        for block in event.final_content:
            if isinstance(block, Text | Thinking):
                if block.text:
                    final.append([type(block), block.text, None])
            elif isinstance(block, ToolCall):
                final.append([ToolCall, block.id, block.arguments or {}])
        return final == [said for said in self.said if said[0] is ToolCall or said[1]]
