"""Thinking that is sent back: what the models of this wire demand of it.

**An open turn** is what follows the last message of the user that has more than tool results.
While it is open, older models expect it whole: with ``thinking: enabled`` it must begin with the
thinking that led to its calls, and without, it must have none ("a final assistant message must
start with a thinking block", RooCodeInc/Roo-Code#11238, kilocode#5219; "when thinking is disabled,
an assistant message in the final position cannot contain thinking", tailcallhq/forgecode#1853).
If the thinking cannot be sent, because another model thought it or a client lost it, the turn is
finished without reasoning.

**Newer models bind thinking** to its prefix: the system prompt, the tools and all messages before
it. Context policies, changed tools and other models change the prefix. The server knows best
whether it did, so it is asked to drop such thinking (``block_binding``, which Anthropic, Vertex AI
and Amazon Bedrock have: zed-industries/zed#63571, pydantic/pydantic-ai#7989, vercel/ai#20728).
Digests of the prefix would need a place in every log and client, and would have to agree with the
server on what counts as a change. The price: for accounts created before 2026-08-31 the server
checks the prefix only if it is asked, so there the request loses thinking that was tolerated
before; the quirk ``binds_thinking: false`` keeps it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from ... import messages as m
from ..codec import Notes
from ..continuity import is_welcome
from ..json import dict_of
from ..request import RequestWriter
from .quirks import TurnQuirks

BINDING = "thinking-binding-controls-2026-08-01"  # the beta of the field ``block_binding``


def open_turn(messages: Sequence[m.Message]) -> int:
    """Return the index of the first message after the last message of the user.

    A message of the user next to tool results does not end the turn, as the wire joins them.
    """
    first = len(messages)
    while first > 0:
        group = first
        while group > 0 and not isinstance(messages[group - 1], m.Assistant):
            group -= 1
        if group < first and not any(
            isinstance(each, m.ToolResult) for each in messages[group:first]
        ):
            return first
        first = max(group - 1, 0)
    return first


def can_return(block: m.AssistantBlock, home: m.Issuer) -> bool:
    """Return whether a block is thinking that ``home`` accepts."""
    state = block.continuity
    if isinstance(block, m.RedactedThinking):
        return state is None or is_welcome(state, home)
    return isinstance(block, m.Thinking) and bool(
        state is not None and state.signature and is_welcome(state, home)
    )


def lacks_thinking(messages: Sequence[m.Message], home: m.Issuer) -> bool:
    """Return whether the open turn does not begin with its thinking, or cannot return a part.

    The server accepts messages without thinking later in the turn: a model that does not think
    between its calls produces them. Yet thinking that is dropped there shows that another model
    continued the turn.
    """
    turn = [each for each in messages[open_turn(messages) :] if isinstance(each, m.Assistant)]
    blocks = [block for message in turn for block in message.content]
    blocks = [block for block in blocks if not isinstance(block, m.Text) or block.text.strip()]
    kinds = m.Thinking | m.RedactedThinking
    return bool(blocks) and (
        not can_return(blocks[0], home)
        or any(isinstance(block, kinds) and not can_return(block, home) for block in blocks)
    )


class ThinkingWriter(RequestWriter):
    """Write the body of a request for a model of this wire, wherever it is served."""

    quirks: TurnQuirks
    root: ClassVar[str] = ""  # the object that has the field ``thinking``
    marks_cache = True

    @abstractmethod
    def reasoning_fields(self) -> Mapping[str, Any]:
        """Return the fields for the amount of reasoning that the call sets."""

    def inner(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields next to ``thinking``."""
        return dict_of(fields.get(self.root)) if self.root else fields

    def asked_thinking(self) -> dict[str, Any]:
        """Return the field ``thinking`` of the request; an empty object if nothing sets it."""
        notes, self.notes = self.notes, Notes()  # the fields are noted when they are written
        own = self.reasoning_fields()
        self.notes = notes
        native = self.request.native.get(self.home.wire, {})
        asked: dict[str, Any] = {}
        for fields in (own, self.config.extras, native):
            asked |= dict_of(self.inner(fields).get("thinking"))
        return asked

    def requests_thinking(self) -> bool:
        """Return whether the model thinks before it answers."""
        asked = self.asked_thinking()
        return asked.get("type") != "disabled" if asked else self.quirks.reasons_unasked

    def finish_turn(self) -> m.Request:
        """Return the request; without reasoning if the open turn lacks its thinking."""
        request = self.request
        if (
            not self.quirks.needs_thinking
            or self.asked_thinking().get("type") != "enabled"
            or not lacks_thinking(request.messages, self.home)
        ):
            return request
        why = (
            "the thinking before the calls of this turn cannot be sent, so the model finishes the "
            "turn without reasoning"
        )
        self.notes.rewrite("config.reasoning", "reasoning_off", why, loss=True)
        # A model that always reasons is not asked for an amount.
        style = self.quirks.reasoning
        amount = None if style is not None and style.off is None else "off"
        config = replace(
            self.config, reasoning=amount, extras=self._without_thinking(self.config.extras)
        )
        native = {
            wire: self._without_thinking(fields) if wire == self.home.wire else fields
            for wire, fields in request.native.items()
        }
        return replace(request, config=config, native=native)

    def _without_thinking(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        kept = {name: each for name, each in self.inner(fields).items() if name != "thinking"}
        if not self.root:
            return kept
        return {**fields, self.root: kept} if self.root in fields else dict(fields)

    def silent_from(self) -> int | None:
        """Return the index of the first message whose thinking the model rejects, if any."""
        if not self.quirks.needs_thinking:
            return None
        if self.asked_thinking().get("type") in ("enabled", "adaptive"):
            return None
        return open_turn(self.request.messages)

    def binds(self) -> bool:
        """Return whether the server is asked to drop thinking whose prefix has changed.

        A client of the gateway that sets ``thinking`` itself decides this too.
        """
        if not self.quirks.binds_thinking:
            return False
        asked = self.asked_thinking()
        kind = asked.get("type", "adaptive" if self.quirks.reasons_unasked else None)
        if kind not in ("adaptive", "enabled") or "block_binding" in asked:
            return False
        if "thinking" in self.inner(self.request.native.get(self.home.wire, {})):
            return False
        return any(
            can_return(block, self.home)
            for message in self.request.messages
            if isinstance(message, m.Assistant)
            for block in message.content
        )


def bind(fields: dict[str, Any], name: str = "prefix_mismatch_behavior") -> None:
    """Ask the server to drop thinking whose prefix has changed, in the field with this name."""
    asked = {"block_binding": {name: "drop_block"}}
    fields["thinking"] = {"type": "adaptive", **fields.get("thinking", {}), **asked}


def choose_display(fields: Mapping[str, Any], extras: Mapping[str, Any]) -> None:
    """Let the extras of a call choose ``thinking.display``, which an effort sets by itself."""
    thinking = dict_of(fields.get("thinking"))
    asked = dict_of(extras.get("thinking"))
    if "display" in thinking and "display" in asked:
        thinking["display"] = asked["display"]
