"""Detect clients that do not send back the reasoning before their calls, and report the remedy.

The loss is in a header, which no agent shows, so the operator reads it in the log, once for each
client and model, and on the overview.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from ..errors import ProviderError
from ..messages import (
    Assistant,
    AssistantBlock,
    LossWarning,
    Request,
    ToolCall,
    User,
)
from ..wire.continuity import refuses_lost_state
from ..wire.sealed_message import returns_state

log = logging.getLogger("dragoman")

LOST = "reasoning_lost"
_WARNING = LossWarning(
    LOST, "messages", "the client did not send back the reasoning before its calls"
)
_MAX_CALLS = 20_000  # how many replies with calls and state are remembered
_MAX_CLIENTS = 1000  # how many clients and models are named in the log
_START = "start the gateway with --store PLACE, which keeps the reasoning"
_ADVICE = (
    f"The client did not send back the reasoning before its calls; {_START}, or switch the "
    "reasoning of this client off."
)


class ReasoningWatch:
    """The replies of this process that had state, and the clients that have lost some."""

    def __init__(self) -> None:
        self._replies: OrderedDict[tuple[str, str, int], None] = OrderedDict()
        self._named: set[tuple[str, str, str]] = set()

    def note_reply(self, owner: str, model: str, content: Sequence[AssistantBlock]) -> None:
        """Remember a reply that has calls and the state of the reasoning before them."""
        calls = [block for block in content if isinstance(block, ToolCall)]
        if calls and returns_state(Assistant(content)):
            self._replies[owner, model, _digest(calls)] = None
            if len(self._replies) > _MAX_CALLS:
                self._replies.popitem(last=False)

    def find_loss(
        self, owner: str, wire: str, request: Request, *, is_kept: bool
    ) -> tuple[LossWarning, ...]:
        """Return a warning if calls of the open turn came back without their reasoning.

        ``is_kept`` is whether the gateway has a store.
        """
        if not self._replies or not self._is_lost(owner, request):
            return ()
        client = (owner, wire, request.model)
        if client not in self._named and len(self._named) < _MAX_CLIENTS:
            self._named.add(client)
            remedy = (
                "the calls that it sends back differ from those that it got"
                if is_kept
                else f"{_START}, or use a client of an API that has a place for it"
            )
            log.warning(
                "clients of the %s API%s do not send back the reasoning of %r before their calls, "
                "so the model continues without it: %s",
                wire, f" with the key {owner!r}" if owner else "", request.model, remedy,
            )  # fmt: skip
        return (_WARNING,)

    def _is_lost(self, owner: str, request: Request) -> bool:
        for message in reversed(request.messages):
            if isinstance(message, User):
                return False
            if not isinstance(message, Assistant) or not message.tool_calls:
                continue
            # A client may send the thinking back, as Ollama's clients do, but not its state.
            if not returns_state(message):
                found = (owner, request.model, _digest(message.tool_calls))
                if found in self._replies:
                    return True
        return False


def advise(error: ProviderError) -> None:
    """Add what to set at the gateway to a refusal by the model's rule about reasoning."""
    if refuses_lost_state(error):
        said = error.provider_message or error.message
        error.provider_message = f"{said.rstrip('. ')}. {_ADVICE}"


def _digest(calls: Sequence[ToolCall]) -> int:
    return hash(
        msgspec.json.encode([[call.name, call.arguments] for call in calls], order="sorted")
    )
