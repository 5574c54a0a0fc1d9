"""The table of blocks in ``docs/concepts/wires.md`` matches the wires and lists every kind of
block.
"""

from typing import Any, get_args

import pytest

from dragoman.messages import AssistantBlock, UserBlock
from dragoman.wire import CODECS

from .blocks import KINDS, MODELS, PAGE, REPLIES, WIRES, receive, send, with_table

READ = [(name, wire) for name, replies in REPLIES.items() for wire in replies]


def test_documented_block_table_matches_the_wires() -> None:
    assert PAGE.read_text() == with_table(PAGE.read_text()), "run: python -m tests.wire.blocks"


def test_block_table_has_every_kind_of_block_and_every_wire() -> None:
    assert set(WIRES) == set(CODECS)
    shown = {(type(kind.block), kind.path == MODELS) for kind in KINDS.values()}
    assert shown == {(each, False) for each in get_args(UserBlock)} | {
        (each, True) for each in get_args(AssistantBlock)
    }


@pytest.mark.parametrize(("name", "wire"), READ)
def test_each_kind_of_block_is_read_from_a_reply(name: str, wire: str) -> None:
    blocks = receive(wire, REPLIES[name][wire])
    found: Any = next(block for block in blocks if type(block) is type(KINDS[name].block))
    if name == "text with citations":
        assert found.citations
    if name.endswith("signed"):
        assert found.continuity.signature or found.continuity.opaque
        assert send(wire, name) == "sent"
