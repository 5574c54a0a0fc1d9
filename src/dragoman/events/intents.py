"""Intents: the tool calls that a model proposes, and where they came from."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class IntentSource(Struct, frozen=True):
    """Where an intent came from: the provider, the model, the request and the block."""

    provider: str
    model: str
    request_id: str
    stream_index: int


class AssembledFrom(Struct, frozen=True):
    """How an intent was assembled: the number of its fragments and their byte offsets.

    ``first_offset`` is the byte position at which the call began, which on some wires is before
    its first fragment. ``last_offset`` is the byte position of its last fragment.
    """

    event_count: int
    first_offset: int
    last_offset: int


class ToolIntent(Struct, frozen=True, kw_only=True):
    """A tool call that the model proposes, complete and parsed. It has not been executed."""

    id: str
    provider_call_id: str
    tool_name: str
    input: dict[str, Any]
    raw_input_text: str
    source: IntentSource
    assembled_from: AssembledFrom
    status: Literal["proposed"] = "proposed"
