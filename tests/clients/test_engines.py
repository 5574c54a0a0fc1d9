"""Sessions run on workflow engines, whose workers and servers are killed again and again.

The programs are those of ``examples/engines``. Their tools pay invoices at a bank, which does nothing
twice for the same key. Kills follow requests that the bank receives, so that many of them fall between
an effect and its record.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import psutil
import pytest

from dragoman.log import EventLog, PostgresLog
from dragoman.messages import Request, User
from dragoman.permission import Decision
from dragoman.session import answer, find_questions
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule, SimServer
from tests.databases import OwnDatabase, own_postgres, server  # noqa: F401 - fixtures
from tests.pages import ROOT
from tests.ports import find_free_port
from tests.server import Connection, serve
from tests.waiting import PATIENCE, until

from .running import find_program, in_full_run

pytestmark = [pytest.mark.exhaustive, in_full_run]
EXAMPLES = ROOT / "examples" / "engines"
KILLS = int(os.environ.get("DRAGOMAN_ENGINE_KILLS", "100"))
SESSIONS = 4
"""How many sessions run at once; when they have ended and kills are left, others begin."""
INVOICES = 8
GOAL = "Pay all invoices, then close the account of"


def act(request: Request) -> Answer:
    """Return the next calls of the model: two invoices, then one by one, then the account."""
    goal = next(each.text for each in request.messages if isinstance(each, User))
    name = goal.split()[-1]
    turn = sum(each.role == "assistant" for each in request.messages)
    if turn == 0:
        return Answer(tool_calls=[Call("pay", {"invoice": number}) for number in (0, 1)])
    if turn < INVOICES - 1:
        return Answer(tool_calls=[Call("pay", {"invoice": turn + 1})])
    if turn == INVOICES - 1:
        return Answer(tool_calls=[Call("close_account", {"customer": name})])
    return Answer("All paid.")


class Bank:
    """A bank that records each key once and then takes a while to answer."""

    def __init__(self) -> None:
        self.paid: dict[str, str] = {}  # what was done, by key
        self.requests = 0

    async def handle(self, connection: Connection) -> None:
        key = connection.seen.headers["idempotency-key"]
        self.paid.setdefault(key, connection.seen.path)
        self.requests += 1
        await asyncio.sleep(0.05)  # most kills come here, after the effect and before its record
        connection.reply(200, self.paid[key].encode(), "text/plain", connection="close")


class Engine:
    """A workflow engine with its processes: a worker, sometimes a server, and a client."""

    victims: tuple[str, ...] = ("worker", "worker", "worker", "server")

    def __init__(self, folder: Path, environment: dict[str, str], database: OwnDatabase) -> None:
        self.folder = folder
        self.environment = environment
        self.database = database
        self.running: dict[str, asyncio.subprocess.Process] = {}

    async def launch(self, name: str, *command: str) -> asyncio.subprocess.Process:
        """Start a program, whose output goes to the file with its name."""
        with (self.folder / f"{name}.txt").open("ab") as printed:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=EXAMPLES, env=self.environment, stdin=asyncio.subprocess.DEVNULL,
                stdout=printed, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.running[name] = process
        return process

    async def end(self, name: str) -> None:
        """Kill a program and its children."""
        process = self.running.pop(name, None)
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    async def start(self) -> None:
        """Start the server and the worker."""

    async def begin(self, names: list[str]) -> None:
        """Hand over sessions to the engine."""

    async def finish(self, names: list[str]) -> dict[str, str]:
        """Wait until the engine has the results of the sessions; return them."""
        raise NotImplementedError

    async def kill(self, victim: str) -> None:
        """Kill the worker or the server, and start it again."""
        raise NotImplementedError

    async def stop(self) -> None:
        for name in [*self.running]:
            await self.end(name)

    def print(self) -> str:
        """Return the last lines that the programs printed."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text()[-3000:]}" for path in self.folder.glob("*.txt")
        )


async def is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def listening(port: int, what: str) -> None:
    for _ in range(int(PATIENCE / 0.05)):
        if await is_listening(port):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"waited {PATIENCE:.0f} s for {what}")


class ProgramEngine(Engine):
    """An engine whose worker is the program that also starts the sessions and prints the results."""

    program = ""

    async def begin(self, names: list[str]) -> None:
        self.names = names
        await self.launch("worker", self.environment["PYTHON"], self.program, GOAL, *names)

    async def finish(self, names: list[str]) -> dict[str, str]:
        while True:
            worker = self.running["worker"]
            if await worker.wait() == 0:
                break
            if self.running["worker"] is worker:  # it was not killed
                raise AssertionError(self.print())
            await asyncio.sleep(0.05)
        printed = (self.folder / "worker.txt").read_text()
        return dict(re.findall(rf"^({'|'.join(names)}) (.*)$", printed, re.MULTILINE))


class Dbos(ProgramEngine):
    program = "on_dbos.py"

    async def kill(self, victim: str) -> None:
        if victim == "server":  # the engine is a library; what it depends on is its database
            await asyncio.to_thread(self.database.cut)
            return
        await self.end("worker")
        await self.begin(self.names)


class Ray(ProgramEngine):
    program = "on_ray.py"

    async def kill(self, victim: str) -> None:
        tasks = [
            each
            for each in psutil.process_iter(["cmdline"])
            if "ray::agent" in " ".join(each.info["cmdline"] or ())
        ]
        if victim == "worker" and tasks:
            with contextlib.suppress(psutil.NoSuchProcess):
                random.choice(tasks).kill()
            return
        children = psutil.Process(self.running["worker"].pid).children(recursive=True)
        await self.end("worker")
        for each in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        await asyncio.to_thread(psutil.wait_procs, children, PATIENCE)
        await self.begin(self.names)


class Restate(Engine):
    async def start(self) -> None:
        self.ports = [find_free_port() for _ in range(4)]
        await self._start_server()
        await self._start_worker()
        async with aiohttp.ClientSession() as client:
            url = f"http://127.0.0.1:{self.ports[1]}/deployments"
            made = {"uri": f"http://127.0.0.1:{self.ports[3]}"}
            async with client.post(url, json=made) as reply:
                assert reply.status < 300, await reply.text()

    async def _start_server(self) -> None:
        ingress, admin, node, _ = self.ports
        settings = {
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
            "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{node}",
            "RESTATE_ADMIN__QUERY_ENGINE__PGSQL_BIND_ADDRESS": f"127.0.0.1:{find_free_port()}",
            "RESTATE_ROCKSDB_TOTAL_MEMORY_SIZE": "256MB",
            "RESTATE_DISABLE_TELEMETRY": "true",
        }
        self.environment |= settings
        # the package's own binary: npm's wrapper would be killed in its place
        binary = find_program(
            "node", "node_modules", "@restatedev", "restate-server-linux-x64", "bin",
            "restate-server",
        )  # fmt: skip
        base = str(self.folder / "restate-data")
        await self.launch("server", binary, "--base-dir", base, "--node-name", "one")
        await listening(ingress, "the ingress of Restate")
        await listening(admin, "the admin API of Restate")

    async def _start_worker(self) -> None:
        bind = f"127.0.0.1:{self.ports[3]}"
        python = self.environment["PYTHON"]
        await self.launch("worker", python, "-m", "hypercorn", "--bind", bind, "on_restate:app")
        await listening(self.ports[3], "the worker")

    async def _post(self, name: str, path: str) -> str:
        url = f"http://127.0.0.1:{self.ports[0]}/agent/{name}/{path}"
        async with aiohttp.ClientSession() as client:
            while True:
                try:
                    async with client.post(url, json=f"{GOAL} {name}") as reply:
                        if reply.status < 300:
                            return str(await reply.json())
                        assert reply.status >= 500, await reply.text()
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)  # the server starts again

    async def begin(self, names: list[str]) -> None:
        for name in names:
            await self._post(name, "run/send")

    async def finish(self, names: list[str]) -> dict[str, str]:
        texts = await asyncio.gather(*[self._post(name, "run") for name in names])
        return dict(zip(names, texts, strict=True))

    async def kill(self, victim: str) -> None:
        await self.end(victim)
        await (self._start_server() if victim == "server" else self._start_worker())


class Temporal(Engine):
    async def start(self) -> None:
        self.port = find_free_port()
        self.environment |= {"TEMPORAL": f"127.0.0.1:{self.port}", "STEP_SECONDS": "3"}
        await self._start_server()
        await self._start_worker()

    async def _start_server(self) -> None:
        await self.launch(
            "server", find_program("engines", "bin", "temporal"), "server", "start-dev",
            "--headless", "--port", str(self.port), "--db-filename", str(self.folder / "temporal"),
        )  # fmt: skip
        await listening(self.port, "Temporal")

    async def _start_worker(self) -> None:
        await self.launch("worker", self.environment["PYTHON"], "on_temporal.py")

    async def _run(self, *names: str) -> None:
        """Run the client again until it has the results: it gives up if the server is away."""
        while True:
            client = await self.launch(
                "client", self.environment["PYTHON"], "on_temporal.py", GOAL, *names
            )
            if await client.wait() == 0:
                return
            await asyncio.sleep(0.2)

    async def begin(self, names: list[str]) -> None:
        self.client = asyncio.create_task(self._run(*names))

    async def finish(self, names: list[str]) -> dict[str, str]:
        await self.client
        printed = (self.folder / "client.txt").read_text()
        return dict(re.findall(rf"^({'|'.join(names)}) (.*)$", printed, re.MULTILINE))

    async def kill(self, victim: str) -> None:
        await self.end(victim)
        if victim == "server":
            await self._start_server()
            return
        await self._start_worker()

    async def stop(self) -> None:
        self.client.cancel()
        await super().stop()


async def decide(log: EventLog) -> None:
    """Allow what sessions ask about, as a person with access to the log alone does."""
    while True:
        with contextlib.suppress(Exception):  # the database is away
            for question in await asyncio.to_thread(find_questions, log):
                who = Decision(True, by="ann")
                await asyncio.to_thread(answer, log, question.session, question.intent_id, who)
        await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def running(
    kind: type[Engine], folder: Path, database: OwnDatabase
) -> AsyncIterator[tuple[Engine, Bank]]:
    bank = Bank()
    model = ScriptedProvider(ScriptRule(act), model="payer")
    python = find_program("engines", "bin", "python")
    with SimServer(model, models=("payer",)) as simulated:
        async with serve(bank.handle) as shop:
            environment = {
                "PATH": os.environ["PATH"], "HOME": str(folder), "PYTHON": python,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1",
                "LOG": database.url, "DBOS_DATABASE": database.url, "BANK": shop.url,
                "MODEL": "openai:payer", "OPENAI_BASE_URL": simulated.base_urls["openai"],
                "OPENAI_API_KEY": "k", "PAUSE": "0.3", "RAY_USAGE_STATS_ENABLED": "0",
            }  # fmt: skip
            engine = kind(folder, environment, database)
            try:
                await engine.start()
                yield engine, bank
            finally:
                await engine.stop()


async def strike(
    engine: Engine, bank: Bank, dice: random.Random, ended: Callable[[], bool]
) -> str | None:
    """After a few requests of the bank kill a part of the engine; return which, if any."""
    wanted = bank.requests + dice.randint(1, 4)
    await until(lambda: bank.requests >= wanted or ended(), f"request {wanted} of the bank")
    if ended():
        return None
    victim = dice.choice(engine.victims)
    await engine.kill(victim)
    return victim


def audit(log: EventLog, names: list[str], bank: Bank) -> Counter[str]:
    """Check the evidence of sessions; return how often calls ran again."""
    restarted: Counter[str] = Counter()
    for name in names:
        records = list(log.read(name))
        assert log.verify(name).ok
        started = Counter(
            each.data["intent_id"] for each in records if each.type == "tool.started"
        )
        observed = Counter(
            each.data["intent_id"] for each in records if each.type == "tool.observed"
        )
        assert set(started.values()) == {1}, "an intent started twice"
        assert observed == started
        assert len(started) == INVOICES + 1
        done = Counter(bank.paid[intent] for intent in started)
        paths = [f"/invoices/{number}" for number in range(INVOICES)] + [f"/closed/{name}"]
        assert done == Counter(paths)
        ends = [each.data["outcome"] for each in records if each.type == "session.finished"]
        assert ends[-1] == "completed"  # before it waited
        restarted[name] = sum(each.type == "tool.restarted" for each in records)
    return restarted


@pytest.mark.parametrize("kind", [Dbos, Restate, Temporal, Ray])
async def test_session_on_an_engine_has_each_effect_once_after_kills(
    kind: type[Engine],
    own_postgres: OwnDatabase,  # noqa: F811
    tmp_path: Path,
    count: Callable[[str, int], None],
) -> None:
    dice = random.Random(kind.__name__)
    kills: Counter[str] = Counter()
    every: list[str] = []
    async with running(kind, tmp_path, own_postgres) as (engine, bank):
        with PostgresLog(own_postgres.url) as log:
            person = asyncio.create_task(decide(log))
            while sum(kills.values()) < KILLS:
                names = [f"s{len(every) + number}" for number in range(SESSIONS)]
                every += names
                await engine.begin(names)
                closed = lambda: {f"/closed/{name}" for name in names} <= set(bank.paid.values())  # noqa: B023
                while sum(kills.values()) < KILLS and not closed():
                    victim = await strike(engine, bank, dice, closed)
                    if victim is not None:
                        kills[victim] += 1
                results = await asyncio.wait_for(engine.finish(names), PATIENCE)
                assert results == dict.fromkeys(names, "All paid."), engine.print()
            person.cancel()
            restarted = audit(log, every, bank)
    effects = len(bank.paid)
    assert effects == len(every) * (INVOICES + 1)  # no effect was had under two keys
    print(
        kind.__name__,
        dict(kills),
        "sessions",
        len(every),
        "effects",
        effects,
        "requests",
        bank.requests,
        "calls run again",
        restarted.total(),
    )
    count(f"kills of {kind.__name__}", kills.total())
