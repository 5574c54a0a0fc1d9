"""Keep the state of a model's reasoning for clients that do not send it back.

Chat Completions, Ollama and Cohere have no place for the state of a turn, and some clients remove
thoughts from the history. With a store, the gateway keeps the thinking and the state of each reply
with calls, and puts them back into the next request that repeats these calls. They are known by
their ids, names and arguments, or by the conversation before them, since some clients drop the ids
(Ollama's SDK for Python 0.6.3, seen on 2026-11-19).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ..errors import ProviderError
from ..events import MessageComplete
from ..messages import (
    Assistant,
    LossWarning,
    Message,
    Request,
    System,
    ToolCall,
    User,
)
from ..wire import Asked, ServerCodec
from ..wire.sealed_message import restore_message, returns_state, seal_message
from .lost_reasoning import ReasoningWatch
from .store import ResponseStore

log = logging.getLogger("dragoman")

TURN = "turn"
MAX_TURNS = 1000
"""The maximum number of messages of a request whose state is looked up, from the end."""
_NOT_KEPT = LossWarning("state_not_kept", "messages", "the store cannot be used at the moment")


class KeptState:
    """The state of the replies in one conversation, by the calls that the client repeats.

    Without a store, nothing is kept.
    """

    def __init__(
        self,
        store: ResponseStore | None,
        owner: str,
        front: ServerCodec,
        watch: ReasoningWatch | None = None,
    ) -> None:
        self._store = store
        self._owner = owner
        self._front = front
        self._watch = watch
        self.lost: tuple[LossWarning, ...] = ()  # what is lost although ``recall`` was called

    async def recall(self, asked: Asked) -> Asked:
        """Return a request with the state of its earlier calls, and report what is still lost."""
        made = await self._restore(asked)
        if self._watch is not None:
            self.lost += self._watch.find_loss(
                self._owner, self._front.wire, made.request, is_kept=self._store is not None
            )
        return made

    async def _restore(self, asked: Asked) -> Asked:
        """Return a request with the stored state of its earlier calls.

        Clients of wires that have a place for state may remove it from earlier turns on purpose,
        so there it is added to the turn that is not finished, which the client may have begun over
        another wire.
        """
        if self._store is None:
            return asked
        messages = list(asked.request.messages)
        first = _find_open_turn(messages) if self._front.returns_state else 0
        named = [
            each
            for each in _name_turns(messages)
            if each[0] >= first and not returns_state(messages[each[0]])
        ]
        names = dict(named[-MAX_TURNS:])
        if not names:
            return asked
        wanted = [name for each in names.values() for name in each]
        try:
            kept = await self._store.get(self._owner, TURN, wanted)
        except ProviderError as error:
            log.warning("the state of earlier calls is not known: %s", error)
            self.lost = (_NOT_KEPT,)
            return asked
        for at, each in names.items():
            found = [kept[name] for name in each if name in kept]
            message = messages[at]
            if found and isinstance(message, Assistant):
                messages[at] = restore_message(message, found[0])
        return replace(asked, request=replace(asked.request, messages=messages))

    async def keep(
        self, request: Request, complete: MessageComplete | None
    ) -> tuple[LossWarning, ...]:
        """Store the state of a reply with calls; return a warning if that fails."""
        content = () if complete is None else complete.final_content
        if self._watch is not None:
            self._watch.note_reply(self._owner, request.model, content)
        if self._store is None or not any(isinstance(block, ToolCall) for block in content):
            return ()
        tokens = seal_message(content)
        if not tokens:
            return ()
        [*_, (_, names)] = _name_turns([*request.messages, Assistant(content)])
        try:
            await self._store.put(self._owner, [(TURN, name, tokens) for name in names])
        except ProviderError as error:
            log.warning("the state of a reply was not kept: %s", error)
            return (_NOT_KEPT,)
        return ()


def _name_turns(messages: Sequence[Message]) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the index and the names of each message that has calls.

    The first name is made of the ids of its calls, the second of the conversation up to it.
    """
    before = hashlib.sha256()
    for at, message in enumerate(messages):
        facts = _describe(message)
        before.update(msgspec.json.encode(facts))
        if isinstance(message, Assistant) and message.tool_calls:
            ids = [call.id for call in message.tool_calls]
            by_ids = hashlib.sha256(msgspec.json.encode([ids, facts]))
            yield at, (by_ids.hexdigest(), before.hexdigest())


def _find_open_turn(messages: Sequence[Message]) -> int:
    """Return the index after the last message of the user."""
    asked = [at for at, message in enumerate(messages) if isinstance(message, User)]
    return asked[-1] + 1 if asked else 0


def _describe(message: Message) -> Any:
    """Return what a client repeats of a message, in one form for each meaning.

    Clients change white space, and may leave out the text next to calls. Agents write the time
    into their system prompt.
    """
    if isinstance(message, System):
        return None
    if not isinstance(message, Assistant):
        return message.text.strip()
    return [[call.name, _canonical(call.arguments)] for call in message.tool_calls]


def _canonical(value: Any) -> Any:
    """Return arguments in one form: JavaScript writes the number 1.0 as 1, and may sort names."""
    if isinstance(value, dict):
        return [[name, _canonical(value[name])] for name in sorted(value)]
    if isinstance(value, list):
        return [_canonical(each) for each in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
