"""Pair tool results with tool calls, and choose the id that each pair is sent with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..messages import Assistant, Message, ToolCall, ToolResult
from .ids import IdMap, IdRule


class Call(NamedTuple):
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
        self.answers: dict[int, Call] = {}
        self.results: dict[Call, int] = {}  # maps each call to the message index of its result
        self.ids: dict[Call, str] = {}  # the id to send for each call that has a result
        names: dict[Call, str] = {}
        waiting: dict[str, list[Call]] = {}
        for at, message in enumerate(messages, first):
            if type(message) is Assistant:
                for index, block in enumerate(message.content):
                    if type(block) is ToolCall and isinstance(block.arguments, dict):
                        names[Call(at, index)] = block.id
                        waiting.setdefault(block.id, []).append(Call(at, index))
            elif type(message) is ToolResult and waiting.get(message.tool_call_id):
                call = waiting[message.tool_call_id].pop()
                self.answers[at], self.results[call] = call, at
        self._name(
            {call: name for call, name in names.items() if call in self.results},
            rule,
            IdMap(rule, messages),
        )

    def _name(self, names: dict[Call, str], rule: IdRule | None, projected: IdMap) -> None:
        taken = {projected[name] for name in names.values()}
        used: set[str] = set()
        for call, name in names.items():
            sent, salt = projected[name], 0
            while sent in used or (salt and sent in taken):
                salt += 1
                sent = (rule or IdRule(64)).fold(name, salt)
            used.add(sent)
            self.ids[call] = sent
