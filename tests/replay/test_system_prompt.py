"""Test that a run with a system prompt can be repeated as the documentation shows."""

import pytest

from dragoman import ReplayProvider, Session, recorded_tools
from dragoman.log import MemoryLog

from ..listed import Listed


@pytest.mark.parametrize("system", ["Be brief.", None])
async def test_run_is_repeated_with_its_system_prompt(system: str | None) -> None:
    log = MemoryLog()
    first = Session(Listed("Hi."), [], None, log, session_id="s1", system=system)
    await first.run("Go.")
    model = ReplayProvider(log, "s1")
    assert model.system == system
    again = Session(model, recorded_tools(log, "s1"), None, MemoryLog(), system=model.system)
    assert (await again.run("Go.")).text == "Hi."
