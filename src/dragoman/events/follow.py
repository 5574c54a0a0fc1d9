"""Assemblers for messages that come from a custom provider's events or from a recording."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from .. import messages as m
from ..errors import ProviderError, StructuredOutputError
from . import values as ev
from .assembler import Assembler
from .blocks import Block
from .intents import AssembledFrom, IntentSource, ToolIntent


class Follower(Assembler):
    """Record the events of a stream, so that ``cut`` can end the message after any event.

    Token usage is only in the last event, so a message that was cut lacks it.
    """

    def follow(self, event: ev.Event) -> None:
        """Record a delivered event; ignore events of unknown types."""
        if isinstance(event, ev.TextDelta):
            block = self._blocks.follow(m.Text, event.content_block_index)
            block.content.append(event.text)
            block.continuity = event.continuity or block.continuity
        elif isinstance(event, ev.ThinkingDelta):
            self._follow_thought(event)
        elif isinstance(event, ev.ToolUseStart):
            block = self._blocks.follow(m.ToolCall, event.content_block_index)
            block.name = event.tool_name
            block.call_id = event.tool_use_id
            block.continuity = event.continuity
        elif isinstance(event, ev.ToolUseInputDelta):
            self._last_call().content.append(event.partial_json)
        elif isinstance(event, ev.ToolUseEnd):
            self._follow_end(event)
        elif isinstance(event, ev.MessageStart):
            self.opening = event
            self.started = True
            self._blocks.message_id = event.message_id
            self._blocks.request_id = event.request_id
            self.model = event.model
            self.provider = event.provider
            self.native = event.native
        elif isinstance(event, ev.MessageComplete):
            self.complete = event
            self.reported = event.usage
            self.kept = event.kept
            self.warnings = event.warnings

    def _follow_thought(self, event: ev.ThinkingDelta) -> None:
        if event.redacted is not None:
            block = self._blocks.follow(m.RedactedThinking, event.content_block_index)
            block.complete = m.RedactedThinking(event.redacted)
            block.continuity = event.continuity
            return
        block = self._blocks.follow(m.Thinking, event.content_block_index)
        block.content.append(event.text)
        block.continuity = event.continuity or block.continuity
        if event.signature is not None:
            block.signatures.append(event.signature)
            block.continuity = event.continuity or m.Continuity(event.signature)

    def _last_call(self) -> Block:
        """Return the last block if it is a tool call, else a new block outside the message."""
        blocks = self._blocks.all
        return blocks[-1] if blocks and blocks[-1].kind is m.ToolCall else Block(m.ToolCall, 0)

    def _follow_end(self, end: ev.ToolUseEnd) -> None:
        block = self._last_call()
        unread = end.problem in ("malformed", "cancelled", "interrupted")
        block.value = ev.read_object(block.text) if unread else end.final_input
        block.ended = True
        self._blocks.skip()


class RecordedAssembler(Assembler):
    """Create the events of a recorded message, block by block, including its recorded end."""

    def begin(self, message_id: str | None) -> None:
        """Begin the message with its recorded id; without one, create an id."""
        self._begin(message_id or "msg_" + self._new_id())

    def block(
        self, recorded: m.Text | m.Thinking | m.RedactedThinking | m.Opaque | m.Audio | m.Image
    ) -> None:
        """Add a recorded block that is not a tool call."""
        block = self._open(type(recorded))
        block.continuity = recorded.continuity
        if not isinstance(recorded, m.Text | m.Thinking):
            block.complete = recorded
        elif recorded.text:
            self._blocks.add(block, recorded.text, self.offset)
        self.block_end()

    def call(
        self, recorded: m.ToolCall, text: str, intent: ToolIntent | None, *, is_whole: bool
    ) -> None:
        """Add a recorded tool call with its literal arguments and its intent.

        If the call is complete but was recorded without an intent, a new intent is created.
        """
        block = self._open(m.ToolCall)
        block.name = recorded.name
        block.call_id = recorded.id
        block.provider_id = recorded.id
        block.continuity = recorded.continuity
        self._close_ended()
        if text:
            self._blocks.add(block, text, self.offset)
        if intent is not None:
            intent = replace(
                intent,
                raw_input_text=text or intent.raw_input_text,
                source=replace(intent.source, request_id=self._blocks.request_id),
            )
        elif is_whole:
            block.value = recorded.arguments
            intent = block.intent(
                "tu_" + self._new_id(), text, self.provider, self.model, self._blocks.request_id
            )
        if intent is None:
            block.problem = ("interrupted", "the recorded call was not complete")
        block.value = recorded.arguments
        block.ended = True
        self._blocks.emit_end(block, intent)
        self._blocks.skip()

    def end(
        self,
        reason: ev.FinishReason,
        usage: ev.Usage,
        warnings: Sequence[m.LossWarning],
        error: ProviderError | None,
        *,
        paused: bool = False,
    ) -> None:
        """End the message as it was recorded; ``error`` is raised after the last event.

        A structured answer is read again, so that its error has all its facts.
        """
        self.reported = usage
        self.warnings = tuple(warnings)
        self.error = error
        parsed, unfit = self._read_answer(reason)
        if unfit is not None or isinstance(error, StructuredOutputError):
            self.error = unfit
        self._complete(reason, "pause_turn" if paused else None, None, parsed)


def make_intent(
    start: ev.ToolUseStart, text: str, end: ev.ToolUseEnd, provider: str, model: str
) -> ToolIntent:
    """Return a tool call's intent, made from its events, which have no byte offsets."""
    return ToolIntent(
        id=f"tu_{m.new_ulid()}",
        provider_call_id=end.tool_use_id,
        tool_name=start.tool_name,
        input=end.final_input,
        raw_input_text=text,
        source=IntentSource(provider, model, end.request_id, end.content_block_index),
        assembled_from=AssembledFrom(1 if text else 0, 0, 0),
    )
