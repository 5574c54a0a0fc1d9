"""The beginning of a long conversation, kept as it was written: the next turn then costs what it adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import is_
from typing import Any

from msgspec import Struct

from ..messages import Assistant, Message, ToolCall, ToolResult
from .projection import sorted_json, to_bytes

LONG = 16
"""A conversation of fewer messages is written as fast as it is looked up."""


class Prefix(Struct, frozen=True):
    """Messages, and the last request that had them: a JSON object whose last field they are."""

    messages: tuple[Message, ...] = ()
    body: bytes = b""
    begin: int = 0  # of their array
    arguments: tuple[tuple[dict[str, Any], bytes], ...] = ()

    def begins(self, messages: Sequence[Message]) -> bool:
        """Do these very messages begin with ours, all as they were?"""
        mine = self.messages
        return (
            len(mine) <= len(messages)
            and mine[-1] is messages[len(mine) - 1]
            and all(map(is_, mine, messages))
            # A message is frozen, and yet somebody may have changed the arguments of a call in their place.
            and all(bytes(sorted_json(value)) == was for value, was in self.arguments)
        )

    def extended(self, head: dict[str, Any], added: list[Any]) -> tuple[bytes, int]:
        """A request of other fields, our messages and some after them; and where their array begins.

        Memory is written once: a mebibyte of history costs more to copy than anything else here.
        """
        start = to_bytes(head)[:-1] + b',"messages":'
        if not self.messages:
            return to_bytes({**head, "messages": added}), len(start)
        ours = memoryview(self.body)[self.begin : -len(b"]}")]
        more = memoryview(to_bytes(added))[1:]
        return b"".join([start, ours, b"," if added else b"", more, b"}"]), len(start)


class Prefixes:
    """A few long conversations as they were last sent. Only for wires that write each message by itself."""

    def __init__(self, conversations: int = 8, size: int = 16 * 1024 * 1024) -> None:
        self._conversations = conversations
        self._size = size
        self._kept: list[Prefix] = []  # the one used last at the end

    def find(self, messages: Sequence[Message]) -> Prefix:
        """What is kept of the beginning of a conversation; empty if nothing is."""
        for prefix in reversed(self._kept):
            if prefix.begins(messages):
                return prefix
        return _NOTHING

    def keep(self, messages: Sequence[Message], body: bytes, begin: int, instead: Prefix) -> None:
        """Keep a conversation in the place of the beginning that was found of it."""
        if len(messages) == len(instead.messages) or len(body) > self._size:
            return
        kept = [prefix for prefix in self._kept if prefix is not instead]
        added = _arguments(messages[len(instead.messages) :])
        kept.append(Prefix(tuple(messages), body, begin, (*instead.arguments, *added)))
        while len(kept) > self._conversations or sum([len(prefix.body) for prefix in kept]) > self._size:
            del kept[0]
        self._kept = kept


_NOTHING = Prefix()


def _arguments(messages: Sequence[Message]) -> Iterator[tuple[dict[str, Any], bytes]]:
    if ToolResult not in set(map(type, messages)):
        return  # no calls either: a conversation with one that is not answered is not kept
    for message in messages:
        if type(message) is Assistant:
            for block in message.content:
                if type(block) is ToolCall and block.arguments:
                    yield block.arguments, bytes(sorted_json(block.arguments))
