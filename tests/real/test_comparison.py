"""Test ``dragoman.compare`` with two real models: the embedded one, and one with random weights."""

import os
from pathlib import Path

import pytest

from dragoman import Session, compare, connect
from dragoman.log import SqliteLog

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


@pytest.mark.exhaustive
async def test_two_real_models_are_compared(tiny: Path, tmp_path: Path) -> None:
    if "DRAGOMAN_EXHAUSTIVE" not in os.environ:
        pytest.skip("runs two models; make test-exhaustive does it")
    config = {"temperature": 0.0, "max_tokens": 60, "seed": 1}
    with SqliteLog(tmp_path / "log.db") as log:
        async with connect("local") as model:
            for word in ("the sky", "grass", "blood"):
                session = Session(model, [], None, log, output=SCHEMA, config=config)
                await session.run(f"What is the colour of {word}? Answer as JSON.")
            await Session(model, [], None, log, config=config).run(
                "What is the capital of France?"
            )
        found = await compare(log, ["local", f"local:{tiny}"], tmp_path / "out", concurrency=1)
    same, other = found.targets
    assert found.cases == 4
    assert same.answered == 4
    assert other.answered == 4
    # At temperature 0 a model agrees with itself; random weights write another text.
    assert same.rates["structured"].count == 3
    assert same.rates["text"].count == 1
    assert other.rates["text"].count == 0
    assert other.rates["structured"].total == 3
