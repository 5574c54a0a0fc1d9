"""A turn reaches the model whichever clients send its requests, as the documentation page says."""

from itertools import product

import pytest

from .turn_pairs import (
    CLIENTS,
    HEAD,
    MODELS,
    PAGE,
    SAME,
    SECOND,
    Turn,
    open_rig,
    read_page,
    run_turn,
)
from .upstream import EXHAUSTIVE

TURNS = [
    Turn(*each)
    for at, each in enumerate(product(CLIENTS, MODELS, (False, True), (False, True)))
    # A sample has each client, each model, both forms, and runs with and without a store.
    if EXHAUSTIVE or at % 27 == 0
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: "-".join(map(str, turn)))
async def test_page_says_what_came_back_in_a_run(turn: Turn) -> None:
    with open_rig() as rig:
        found = await run_turn(rig, turn)
    stated = read_page(PAGE.read_text())
    for second in SECOND:
        given = SAME if second == turn.first else second
        if (turn.first, second) == ("openai, plain", "openai"):
            given = SAME
        words = ("yes", "store") if turn.is_kept else ("yes",)
        cell = stated[turn.model, turn.first, second]
        word = cell.rpartition("streamed: ")[2] if turn.stream else cell.partition(";")[0]
        assert found[given] == (word in words), (turn, second, cell)


def test_page_has_every_combination() -> None:
    page = PAGE.read_text()
    assert set(read_page(page)) == set(product(MODELS, CLIENTS, SECOND))
    # One client of Chat Completions may be followed by the other, which is one more combination.
    count = 2 * len(MODELS) * (len(CLIENTS) * len(SECOND) + 1)
    assert page.startswith(HEAD.replace("COUNT", str(count)))
