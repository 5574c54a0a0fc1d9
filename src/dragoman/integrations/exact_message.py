"""Send a reply of an earlier turn back as the provider sent it, with reasoning signatures."""

from __future__ import annotations

from typing import Any

import msgspec

from ..messages import Assistant

KEPT = "dragoman_message"
"""The key under which a framework's reply keeps its exact Dragoman message."""


def show(message: Assistant) -> bytes:
    """Return what a framework shows of a reply: equal for two replies that differ in state only."""
    calls = [(call.id, call.name, call.arguments) for call in message.tool_calls]
    return msgspec.json.encode((message.text, calls))


def restore(rebuilt: Assistant, kept: Any) -> Assistant:
    """Return the exact message of a reply, unless the framework's reply was edited."""
    exact = rebuilt if kept is None else msgspec.convert(kept, Assistant)
    return exact if show(exact) == show(rebuilt) else rebuilt
