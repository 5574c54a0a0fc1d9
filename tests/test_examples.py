"""The programs in ``examples/`` run without a network and are short."""

import ast
import asyncio
import json
import signal
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

import dragoman
from dragoman.sim import Answer, Call, ScriptedProvider
from dragoman.testing import forbid_network

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(ROOT))

from examples import agent, api, batch, chat, cost, extraction  # noqa: E402
from examples.test_agent import *  # noqa: E402, F403 - its tests are run as tests of this module

# The maximum number of code lines of each example, without blank lines, imports and docstrings.
MOST_LINES = {
    "agent": 11,  # similar libraries need 8 lines for this
    "extraction": 10,  # similar libraries need 8 lines for this
    "chat": 20,  # similar libraries need 15 lines for this
    "batch": 18,  # similar libraries need 15 lines for this
    "api": 9,  # similar libraries need 15 lines for this
    "cost": 20,  # similar libraries need 15 lines for this
}


@pytest.fixture(autouse=True)
def offline() -> Any:
    with forbid_network():
        yield


def count_code(path: Path) -> int:
    tree = ast.parse(path.read_text())
    skipped: set[int] = set()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = path.read_text().splitlines()
    main = next(
        (at for at, line in enumerate(lines, 1) if line.startswith("async def main")),
        len(lines) + 1,
    )
    return sum(
        bool(line.strip()) for at, line in enumerate(lines, 1) if at not in skipped and at < main
    )


@pytest.mark.parametrize(("name", "most"), MOST_LINES.items())
def test_example_programs_are_short(name: str, most: int) -> None:
    assert count_code(EXAMPLES / f"{name}.py") <= most


@pytest.mark.parametrize("name", ["payments", "on_dbos", "on_restate", "on_temporal", "on_ray"])
def test_pages_of_engines_print_the_programs_that_run_on_them(name: str) -> None:
    page = "index" if name == "payments" else name.removeprefix("on_")
    program = (EXAMPLES / "engines" / f"{name}.py").read_text()
    assert f"```python\n{program}```" in (ROOT / f"docs/engines/{page}.md").read_text()


async def test_agent_example_runs() -> None:
    model = ScriptedProvider(
        Answer(tool_calls=[Call("days_until", {"day": "2030-01-01"})]), "Some years."
    )
    assert await agent.run(model, "How many days is it until 2030-01-01?") == "Some years."
    assert "Not run" not in model.requests[-1].messages[-1].text  # type: ignore[union-attr]


async def test_extraction_example_runs() -> None:
    model = ScriptedProvider('{"vendor": "ACME", "total": 129.5, "items": ["anvil"]}')
    invoice = await extraction.extract(model, "ACME: 1 anvil, 129.50 USD.")
    assert invoice == extraction.Invoice(vendor="ACME", total=129.5, items=["anvil"])


async def test_chat_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    history: list[dragoman.Message] = [dragoman.User("Hi")]
    await chat.answer(ScriptedProvider("Hello there."), history)
    assert capsys.readouterr().out == "Hello there.\n[stop]\n"
    assert history[1] == dragoman.Assistant("Hello there.")


async def test_chat_example_stops_on_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    history: list[dragoman.Message] = [dragoman.User("Hi")]
    model = ScriptedProvider(Answer("one two three four", pace=0.3))
    asyncio.get_running_loop().call_later(0.1, signal.raise_signal, signal.SIGINT)
    await chat.answer(model, history)
    assert capsys.readouterr().out.endswith("[cancelled]\n")
    assert "four" not in history[1].text


async def test_batch_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedProvider(dragoman.RateLimitError("slow down", retry_after=0.01), "Un.")
    good, tokens = await batch.translate(model, 50)
    assert good == 50
    assert tokens > 0
    assert len(model.requests) == 51
    assert capsys.readouterr().out == ""


async def post(prompt: str) -> tuple[int, str]:
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        reply = await client.post("/ask", params={"prompt": prompt})
    return reply.status_code, reply.text


async def test_api_example_runs() -> None:
    api.app.state.model = ScriptedProvider("Hello there.")
    status, text = await post("Hi")
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line]
    assert status == 200
    assert "".join(event.get("text", "") for event in events) == "Hello there."
    assert events[-1]["type"] == "message.complete"
    assert events[-1]["finish_reason"] == "stop"
    api.app.state.model = ScriptedProvider(dragoman.RateLimitError("slow down", status=429))
    status, text = await post("Hi")
    assert status == 429
    assert "slow down" in text


async def test_api_example_opens_the_configured_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL", "openai:gpt-5")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-key-of-nobody")
    async with api.lifespan(api.app):
        assert isinstance(api.app.state.model, dragoman.Provider)


async def test_cost_example_runs() -> None:
    known = ScriptedProvider("Hello.", name="openai", model="gpt-5")
    unknown = ScriptedProvider("Hello.", name="lab", model="x")
    spent, reasons = await cost.spend([known, known, unknown], "Hello?")
    assert spent.keys() == {"gpt-5"}
    assert spent["gpt-5"] > Decimal(0)
    assert sum(reasons.values()) == 1
