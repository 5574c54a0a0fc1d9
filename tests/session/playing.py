"""Replies that propose, and a log in memory's stead: what the tests of the session share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dragoman.events import Assembler
from dragoman.log import Record
from dragoman.messages import Request

from ..listed import speak

Answer = Callable[[Request], list[Any]]


def call(name: str, *, call_id: str = "call_1", pieces: int = 2, **arguments: Any) -> Callable[[Assembler], None]:
    """Say a call, its arguments in pieces."""

    def say(out: Assembler) -> None:
        text = msgspec.json.encode(arguments).decode()
        out.tool_start(call_id, call_id, name)
        size = -(-len(text) // pieces)
        for at in range(0, len(text), size):
            out.tool_input(call_id, text[at : at + size])
        out.block_end(call_id)

    return say


def text(words: str) -> Callable[[Assembler], None]:
    return lambda out: out.text(words)


def propose(*calls: Callable[[Assembler], None], words: str = "", **facts: Any) -> Answer:
    """A reply that proposes these calls, after some words."""
    return speak(*([text(words)] if words else []), *calls, finish="tool_calls", **facts)


def types(records: Sequence[Record]) -> list[str]:
    return [record.type for record in records]


def of(records: Sequence[Record], kind: str) -> list[Any]:
    """The payloads of one type."""
    return [record.payload for record in records if record.type == kind]
