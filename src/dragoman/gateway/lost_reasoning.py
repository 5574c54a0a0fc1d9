"""Detect clients that do not send back the reasoning before their calls, and report the remedy.

The loss is in a header, which no agent shows, so the operator reads it in the log, once for each
client and model, and on the overview.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
from collections.abc import Sequence
from pathlib import Path

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
_DIGEST = 8  # bytes
# Each reply with calls and state has one slot, by its digest. Later replies take the slots of
# earlier ones: of the last 20,000 replies, at most one in thirteen is forgotten.
_SLOTS = 1 << 18
_MAX_CLIENTS = 1000  # how many clients and models are named in the log
_START = "start the gateway with --store PLACE, which keeps the reasoning"
_ADVICE = (
    f"The client did not send back the reasoning before its calls; {_START}, or switch the "
    "reasoning of this client off."
)


class ReasoningWatch:
    """The replies that had state, and the clients that have lost some.

    Workers that are given the same folder share both, since the requests of a client may reach any
    of them.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._replies = _open_slots(folder)
        self._is_used = folder is not None  # without replies, no request is examined
        self._named: set[tuple[str, ...]] = set()

    def note_reply(self, owner: str, model: str, content: Sequence[AssistantBlock]) -> None:
        """Remember a reply that has calls and the state of the reasoning before them."""
        calls = [block for block in content if isinstance(block, ToolCall)]
        if calls and returns_state(Assistant(content)):
            digest = _digest(owner, model, calls)
            self._replies[_slot(digest)] = digest
            self._is_used = True

    def find_loss(
        self, owner: str, wire: str, request: Request, *, is_kept: bool
    ) -> tuple[LossWarning, ...]:
        """Return a warning if calls of the open turn came back without their reasoning.

        ``is_kept`` is whether the gateway has a store.
        """
        if not self._is_used or not self._is_lost(owner, request):
            return ()
        if self._is_first(owner, wire, request.model):
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
                digest = _digest(owner, request.model, message.tool_calls)
                if self._replies[_slot(digest)] == digest:
                    return True
        return False

    def _is_first(self, *client: str) -> bool:
        """Return whether no process of this gateway has named a client of a model in the log."""
        if client in self._named or len(self._named) >= _MAX_CLIENTS:
            return False
        self._named.add(client)
        if self._folder is not None:
            mark = hashlib.blake2b(msgspec.json.encode(client), digest_size=16).hexdigest()
            try:
                (self._folder / f"named-{mark}").touch(exist_ok=False)
            except FileExistsError:
                return False
            except OSError:
                return True  # a second line is better than none
        return True


def advise(error: ProviderError) -> None:
    """Add what to set at the gateway to a refusal by the model's rule about reasoning."""
    if refuses_lost_state(error):
        said = error.provider_message or error.message
        error.provider_message = f"{said.rstrip('. ')}. {_ADVICE}"


def _open_slots(folder: Path | None) -> mmap.mmap:
    """Return the memory for the digests of replies, in a file if workers share it."""
    size = _SLOTS * _DIGEST
    if folder is None:
        return mmap.mmap(-1, size)
    with (folder / "replies").open("ab+") as file:
        file.truncate(size)
        return mmap.mmap(file.fileno(), size)


def _slot(digest: bytes) -> slice:
    at = int.from_bytes(digest, "big") % _SLOTS * _DIGEST
    return slice(at, at + _DIGEST)


def _digest(owner: str, model: str, calls: Sequence[ToolCall]) -> bytes:
    facts = [owner, model, [[call.name, call.arguments] for call in calls]]
    return hashlib.blake2b(
        msgspec.json.encode(facts, order="sorted"), digest_size=_DIGEST
    ).digest()
