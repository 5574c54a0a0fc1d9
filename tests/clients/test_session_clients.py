"""The clients of AG-UI and of the AI SDK run an agent of a service of sessions over a real socket."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.serving import serving
from tests.programs import require
from tests.service.serving import LOOK, PAY, make_agent, make_app
from tests.session.playing import ran

from .running import INSTALLED, find_program, in_full_run, run_program

pytestmark = [pytest.mark.exhaustive, in_full_run]

HERE = Path(__file__).parent


async def run_client(name: str, package: str, path: str, answer: str, where: Path) -> Any:
    """Run a client against the agent ``main``, which looks and pays; return what it printed."""
    find_program("node", "node_modules", *package.split("/"))
    node = require("node")
    ran.clear()
    async with serving(make_app({"main": make_agent(LOOK, PAY)})) as url:
        address = f"{url}/v1/agents/main/{path}"
        command = [str(node), str(HERE / name), str(INSTALLED / "node"), address, "one-key-0001"]
        status, printed = await run_program([*command, answer], where, {})
    assert status == 0, printed
    return json.loads(printed.strip().splitlines()[-1])


@pytest.mark.parametrize(("approved", "paid"), [(True, ["x", 7]), (False, ["x"])])
async def test_client_of_ag_ui_runs_an_agent_and_answers_its_interrupt(
    tmp_path: Path, approved: bool, paid: list[Any]
) -> None:
    answer = json.dumps({"approved": approved})
    found = await run_client("ag_ui.mjs", "@ag-ui/client", "ag-ui", answer, tmp_path)
    assert found["failures"] == []
    (interrupt,) = found["interrupts"]
    assert interrupt["reason"] == "tool_approval"
    assert interrupt["metadata"]["tool"] == "pay"
    assert found["left"] == []
    assert found["types"].count("RUN_FINISHED") == 2
    roles = [message["role"] for message in found["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert found["messages"][-1]["content"] == "Done."
    names = [
        call["function"]["name"]
        for message in found["messages"]
        for call in message.get("toolCalls") or ()
    ]
    assert names == ["look", "pay"]
    assert ran == paid


@pytest.mark.parametrize(("approved", "paid"), [("yes", ["x", 7]), ("no", ["x"])])
async def test_chat_of_the_ai_sdk_runs_an_agent_and_answers_its_approval(
    tmp_path: Path, approved: str, paid: list[Any]
) -> None:
    found = await run_client("ui_sessions.mjs", "ai-7", "ui-messages", approved, tmp_path)
    assert found["status"] == "ready", found
    assert found.get("error") is None
    assert found["reasons"] == ["tool-calls", "stop"]
    assert [part["type"] for part in found["asked"]] == ["tool-pay"]
    user, reply = found["messages"]
    assert user["role"] == "user"
    parts = {part["type"]: part for part in reply["parts"]}
    assert parts["tool-look"]["state"] == "output-available"
    assert parts["tool-look"]["output"] == "x: found"
    state = "output-available" if approved == "yes" else "output-denied"
    assert parts["tool-pay"]["state"] == state
    assert parts["text"]["text"] == "Done."
    assert reply["metadata"]["outcome"] == "completed"
    assert ran == paid
