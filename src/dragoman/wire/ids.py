"""Pair tool results with tool calls, and choose the id that each pair is sent with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

from ..messages import Assistant, Message, ToolCall, ToolResult


class IdRule(Struct, frozen=True):
    """The rule for tool-call ids of a wire.

    An id has at most ``max_length`` characters (exactly that many if ``exact`` is set) from
    ``alphabet`` and ``also``, the first of which is not in ``never_first``, or any characters if
    ``any_character`` is set.
    """

    max_length: int
    exact: bool = False
    alphabet: str = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    also: str = ""
    any_character: bool = False
    never_first: str = ""

    def allows(self, call_id: str) -> bool:
        """Return whether a wire accepts an id unchanged."""
        size = len(call_id)
        fits = size == self.max_length if self.exact else 0 < size <= self.max_length
        if self.any_character:
            return fits and _is_text(call_id)
        if not fits or call_id[0] in self.never_first:
            return False
        return _characters(self.alphabet, self.also).issuperset(call_id)

    def fold(self, call_id: str, salt: int) -> str:
        """Return an id that the wire accepts: the digest of ``call_id`` in the wire's alphabet."""
        digest = hashlib.sha256(f"{salt}:{call_id}".encode("utf-8", "surrogatepass")).digest()
        number = int.from_bytes(digest, "big")
        letters = []
        for _ in range(self.max_length if self.exact else min(self.max_length, 32)):
            number, place = divmod(number, len(self.alphabet))
            letters.append(self.alphabet[place])
        return "".join(letters)


def _is_text(call_id: str) -> bool:
    try:
        call_id.encode()
    except UnicodeEncodeError:  # the id has a lone surrogate, which JSON cannot represent
        return False
    return True


@lru_cache
def _characters(alphabet: str, also: str) -> frozenset[str]:
    return frozenset(alphabet + also)


class NameRule(IdRule, frozen=True):
    """The rule for tool names of a wire."""

    also: str = "_-"

    def fold(self, call_id: str, salt: int) -> str:
        """Return a name that the wire accepts and that a model can read: ``a.b`` as ``a_b``."""
        kept = _characters(self.alphabet, self.also)
        name = "".join([letter if letter in kept else "_" for letter in call_id])
        if not name or name[0] in self.never_first:
            name = f"_{name}"
        # A digest ends a name that is cut, so that it does not depend on the other tools.
        is_cut = len(name) > self.max_length
        end = f"_{super().fold(call_id, salt)[:8]}" if salt or is_cut else ""
        return name[: self.max_length - len(end)] + end


class IdMap(dict[str, str]):
    """A deterministic mapping from a conversation's tool-call ids to ids that a wire accepts.

    Accepted ids stay unchanged. Every other id is replaced by its digest; if another call already
    has that id, the digest is computed with another salt. Different ids stay different, and a call
    and its result keep the same id.
    """

    def __init__(self, rule: IdRule | None, messages: Iterable[Message] = ()) -> None:
        super().__init__()
        if rule is not None:
            self.fill(rule, _ids(messages))

    def fill(self, rule: IdRule, found: Iterable[str]) -> None:
        """Map every id that the rule does not allow."""
        ids = list(dict.fromkeys(found))
        taken = {call_id for call_id in ids if rule.allows(call_id)}
        for call_id in ids:
            if not rule.allows(call_id):
                salt = 0
                while (projected := rule.fold(call_id, salt)) in taken:
                    salt += 1
                taken.add(projected)
                self[call_id] = projected

    def __missing__(self, call_id: str) -> str:
        return call_id


def _ids(messages: Iterable[Message]) -> Iterable[str]:
    for message in messages:
        if type(message) is Assistant:
            for block in message.content:
                if type(block) is ToolCall:
                    yield block.id
        elif type(message) is ToolResult:
            yield message.tool_call_id


class CallPosition(NamedTuple):
    """The position of a call in the conversation."""

    message: int
    block: int


class Pairs:
    """The pairs of tool calls and results in a conversation, and the id of each pair.

    Only calls whose arguments are a JSON object are paired. If two calls have the same id, a
    result belongs to the latest one without a result. Some servers number calls from zero in every
    reply, so ids repeat; each repeated id is replaced by a new one.
    """

    def __init__(self, messages: Sequence[Message], first: int, rule: IdRule | None) -> None:
        # maps the message index of each result to its call
        self.answers: dict[int, CallPosition] = {}
        self.results: dict[
            CallPosition, int
        ] = {}  # maps each call to the message index of its result
        self.ids: dict[CallPosition, str] = {}  # the id to send for each call that has a result
        names: dict[CallPosition, str] = {}
        waiting: dict[str, list[CallPosition]] = {}
        for at, message in enumerate(messages, first):
            if type(message) is Assistant:
                for index, block in enumerate(message.content):
                    if type(block) is ToolCall and isinstance(block.arguments, dict):
                        names[CallPosition(at, index)] = block.id
                        waiting.setdefault(block.id, []).append(CallPosition(at, index))
            elif type(message) is ToolResult and waiting.get(message.tool_call_id):
                call = waiting[message.tool_call_id].pop()
                self.answers[at] = call
                self.results[call] = at
        if self.results:
            answered = {call: name for call, name in names.items() if call in self.results}
            self._name(answered, rule, IdMap(rule, messages))

    def _name(self, names: dict[CallPosition, str], rule: IdRule | None, projected: IdMap) -> None:
        taken = {projected[name] for name in names.values()}
        used: set[str] = set()
        for call, name in names.items():
            sent = projected[name]
            salt = 0
            while sent in used or (salt and sent in taken):
                salt += 1
                sent = (rule or IdRule(64)).fold(name, salt)
            used.add(sent)
            self.ids[call] = sent
