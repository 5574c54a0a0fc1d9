"""Kill a service of sessions at random times: what ran goes on at its next start, nothing runs twice."""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from dragoman.gateway.keys import hash_key
from dragoman.log import SqliteLog
from dragoman.sim import Answer, Call, RequestMatch, ScriptedProvider, ScriptRule, SimServer
from tests.gateway.test_serve import ask_health
from tests.ports import find_free_port
from tests.waiting import poll

from .serving import Client

GOALS = 4
TOOLS = '''
"""The tools of the agent: each appends a line to a file."""
from pathlib import Path
from dragoman.tools import ToolContext, tool

DONE = Path(__file__).with_name("done")


@tool(side_effect="write", on_resume="run")
async def file(name: str, context: ToolContext) -> str:
    """File a document under a name; the intent id is the idempotency key."""
    with DONE.open("a") as lines:
        lines.write(f"{name} {context.intent_id}\\n")
    return "filed"
'''
AGENTS = """
log: sessions.db
agents:
  main:
    model: up:sim
    tools: [company_tools:file]
    policy: policy.yaml
"""
POLICY = "rules: [{action: allow, side_effect: [write]}, {action: ask, tool: file, arguments: {name: 'goal 0*'}}]"
CONFIG = """
adapters:
  up: {{type: openai, base_url: '{url}', api_key: k}}
models:
  up:sim: {{adapter: up}}
"""


class Service:
    """``dragoman serve --sessions`` in a process that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = find_free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = [sys.executable, "-m", "dragoman", "serve", "--port", str(self._port)]
        command += ["--config", "models.yaml", "--auth", "keys.yaml", "--sessions", "agents.yaml"]
        with (self._folder / "printed").open("ab") as printed:
            self._process = await asyncio.create_subprocess_exec(
                *command, "--no-access-log", "--drain", "1", cwd=self._folder,
                stdout=printed, stderr=printed,
                env={**os.environ, "PYTHONPATH": str(self._folder)},
            )  # fmt: skip
        await poll(lambda: ask_health(self.url), lambda status: status == 200, "the service")

    async def kill(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def stop(self) -> int:
        """Stop the service as an operator does; return its exit code."""
        assert self._process is not None
        self._process.terminate()
        return await self._process.wait()


@asynccontextmanager
async def service_at(folder: Path, script: ScriptedProvider) -> AsyncIterator[Service]:
    with SimServer(script) as upstream:
        files = {
            "company_tools.py": TOOLS, "agents.yaml": AGENTS, "policy.yaml": POLICY,
            "models.yaml": CONFIG.format(url=upstream.base_urls["openai"]),
            "keys.yaml": f"keys:\n  one: {{hash: '{hash_key('one-key-0001')}'}}\n",
        }  # fmt: skip
        for name, text in files.items():
            (folder / name).write_text(text)
        service = Service(folder)
        await service.start()
        try:
            yield service
        finally:
            await service.kill()


def script() -> ScriptedProvider:
    """Return a model that files a document three times, under the goal, and then answers."""
    rules = [
        ScriptRule(
            Answer(tool_calls=[Call("file", {"name": f"goal {number}-{turn}"})], delay=0.05),
            RequestMatch(text=f"goal {number}", turn=turn),
        )
        for number in range(GOALS)
        for turn in (1, 2, 3)
    ]
    return ScriptedProvider(*rules, "Filed.")


async def drive(url: str, number: int) -> str:
    """Pursue a goal as a client that repeats each request until it gets an answer."""
    async with aiohttp.ClientSession(url) as http:
        client = Client(http, "one")
        while True:
            try:
                row = await client.start(f"goal {number}", key=f"k{number}")
                shown = await client.show(row["id"])
                for pending in shown["pending"]:
                    place = f"/sessions/{row['id']}/decisions/{pending['intent_id']}"
                    await client("POST", place, {"allowed": True})
                if shown["status"] == "completed":
                    return str(row["id"])
                assert shown["status"] in ("running", "waiting", "stopped"), shown
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("kills", [2, pytest.param(60, marks=pytest.mark.exhaustive)])
async def test_sessions_survive_kills_of_the_service(tmp_path: Path, kills: int) -> None:
    chance = random.Random(kills)
    async with service_at(tmp_path, script()) as service:
        driving = [asyncio.ensure_future(drive(service.url, number)) for number in range(GOALS)]
        for _ in range(kills):
            await asyncio.sleep(chance.random() * 0.5)
            await service.kill()
            await service.start()
        ids = await asyncio.gather(*driving)
        assert len({*ids}) == GOALS
        assert await service.stop() in (0, -15)
    filed = (tmp_path / "done").read_text().splitlines()
    # a call that was interrupted runs again under its key, and no other call runs twice
    names = {line.rpartition(" ")[0] for line in filed}
    assert len({*filed}) == len(names) == GOALS * 3
    with SqliteLog(tmp_path / "sessions.db", readonly=True) as log:
        assert log.verify().ok
        for session in ids:
            started = [
                record.data["intent_id"] for record in log.find("tool.started", session=session)
            ]
            assert len(started) == len({*started}) == 3


async def test_session_that_is_stopped_with_the_service_goes_on_at_its_next_start(
    tmp_path: Path,
) -> None:
    async with service_at(tmp_path, script()) as service:
        async with aiohttp.ClientSession(service.url) as http:
            client = Client(http, "one")
            row = await client.start("goal 0", key="k")
            waiting = await client.reach(row["id"], "waiting")
            await service.stop()
            await service.start()
            place = f"/sessions/{row['id']}/decisions/{waiting['pending'][0]['intent_id']}"
            await client("POST", place, {"allowed": True})
            again = await poll(
                lambda: client.show(row["id"]),
                lambda shown: shown["status"] == "waiting" and shown["seq"] > waiting["seq"],
                "the next question",
            )
        assert again["turns"] == 2
