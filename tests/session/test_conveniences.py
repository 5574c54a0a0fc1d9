"""Test sessions without a log or policy, and sessions with structured output."""

from typing import Any

import msgspec
import pydantic
import pytest

import dragoman as d
from dragoman.log import MemoryLog, SqliteLog
from dragoman.session import SessionError
from dragoman.sim import Answer, Call, ScriptedProvider
from dragoman.tools import tool


@tool(side_effect="none")
def length(river: str) -> int:
    """Return the length of a river in km."""
    return 1230 if river == "Rhine" else 0


CALL = Answer(tool_calls=[Call("length", {"river": "Rhine"})])


class River(msgspec.Struct):
    name: str
    km: int


class Long(pydantic.BaseModel):
    km: int

    @pydantic.field_validator("km")
    @classmethod
    def check(cls, km: int) -> int:
        if km < 100:
            raise ValueError("that is not long")
        return km


async def test_session_needs_only_a_provider_and_tools() -> None:
    model = ScriptedProvider(CALL, "1230 km.")
    session = d.Session(model, [length])
    outcome = await session.run("How long is the Rhine?")
    assert outcome.outcome == "completed"
    assert outcome.text == "1230 km."
    assert isinstance(session.log, MemoryLog)
    assert "log in memory" in repr(session)
    assert session.log.verify(session.id).ok
    assert next(session.log.read(session.id)).type == "session.started"
    result = model.requests[1].messages[-1]
    assert isinstance(result, d.ToolResult)
    assert result.text == "1230"
    assert result.is_error is False


@pytest.mark.parametrize("policy", [d.Policy(), d.Policy([])])
async def test_custom_permission_policy_is_not_extended_with_default_rules(
    policy: d.Policy,
) -> None:
    model = ScriptedProvider(CALL, "I may not.")
    await d.Session(model, [length], policy).run("How long is the Rhine?")
    result = model.requests[1].messages[-1]
    assert isinstance(result, d.ToolResult)
    assert result.text.startswith("Not run: permission denied")


async def test_session_with_a_log_path_writes_a_file(tmp_path: Any) -> None:
    async with d.Session(ScriptedProvider("Hello."), log=tmp_path / "log.db") as session:
        assert isinstance(session.log, SqliteLog)
        assert "memory" not in repr(session)


# --- structured output of a session ------------------------------------------------------------


async def test_output_schema_is_sent_in_the_first_request_if_there_are_no_tools() -> None:
    model = ScriptedProvider('{"name": "Rhine", "km": 1230}')
    outcome = await d.Session(model, output=River).run("The longest river in Germany?")
    assert outcome.output == River("Rhine", 1230)
    assert len(model.requests) == 1
    assert model.requests[0].response_schema is not None


async def test_output_schema_is_sent_only_in_the_final_turn_if_there_are_tools() -> None:
    model = ScriptedProvider(CALL, "It is 1230 km.", '{"name": "Rhine", "km": 1230}')
    session = d.Session(model, [length], output=River)
    outcome = await session.run("How long is the Rhine?")
    assert outcome.outcome == "completed"
    assert outcome.output == River("Rhine", 1230)
    schemas = [request.response_schema is not None for request in model.requests]
    assert schemas == [False, False, True]
    assert model.requests[-1].tool_choice == "none"
    assert [tool.name for tool in model.requests[-1].tools] == ["length"]
    assert session.log.verify(session.id).ok


async def test_model_is_asked_again_after_invalid_structured_output() -> None:
    model = ScriptedProvider('{"km": "far"}', '{"km": 3}', '{"km": 1230}')
    outcome = await d.Session(model, output=Long).run("How long is the Rhine?")
    assert outcome.output == Long(km=1230)
    last = model.requests[-1].messages
    assert [type(each) for each in last] == [d.User, d.Assistant] * 2 + [d.User]
    assert "that is not long" in last[-1].text  # type: ignore[union-attr]


async def test_session_ends_if_its_output_is_repeatedly_invalid() -> None:
    model = ScriptedProvider('{"km": 3}')
    with pytest.raises(d.StructuredOutputError, match="that is not long"):
        await d.Session(model, output=Long).run("How long is the Rhine?")
    assert len(model.requests) == 3
    outcome = await d.Session(model, output=Long, budget=d.Budget(steps=2)).run("How long?")
    assert outcome.outcome == "exhausted"
    with pytest.raises(
        SessionError, match="exhausted without a structured answer: the budget of 2 turns"
    ):
        assert outcome.output


async def test_second_goal_of_a_session_gets_its_own_structured_output() -> None:
    model = ScriptedProvider(
        "Well.", '{"name": "Rhine", "km": 1230}', "Well.", '{"name": "Elbe", "km": 1094}'
    )
    session = d.Session(model, [length], output=River)
    assert (await session.run("The Rhine?")).output == River("Rhine", 1230)
    assert (await session.run("The Elbe?")).output == River("Elbe", 1094)
    schemas = [request.response_schema is not None for request in model.requests]
    assert schemas == [False, True, False, True]


async def test_output_of_a_session_is_none_without_a_schema() -> None:
    outcome = await d.Session(ScriptedProvider("Hello.")).run("Hi")
    with pytest.raises(SessionError, match="was not given output="):
        assert outcome.output
