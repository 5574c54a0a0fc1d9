"""Kill workers and supervisors of a busy gateway at random moments.

A supervisor is started again on the same port, as a service manager does. Every call that was
answered is in the ledger, and no call is counted twice.
"""

import asyncio
import contextlib
import os
import random
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from ..ports import find_free_port
from ..server import answering, serve
from ..waiting import PATIENCE, poll, until
from .test_app import BODY, bearer, post
from .test_ledger import tables
from .test_serve import KEY, ask_health, write_keys

EXHAUSTIVE = os.environ.get("DRAGOMAN_EXHAUSTIVE") == "1"
KILLS = 100 if EXHAUSTIVE else 6
CLIENTS = 4
# Python prints this in a worker whose supervisor was killed before it could pass on what to run.
ORPHAN = re.compile(r"Traceback .*\n(?:  .*\n)*EOFError: Ran out of input\n")
BACK_SECONDS = 2.0
"""The time after the kill of one worker within which the gateway answers again."""
CONFIG = """
adapters:
  up: {{type: openai, base_url: '{url}/v1', api_key: k}}
models:
  up:m: {{adapter: up, priced_as: 'openai:gpt-5-mini'}}
"""


class Gateway:
    """A gateway of two workers that is started again after its supervisor was killed."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = find_free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.printed = folder / "printed"
        self._options = options
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = [sys.executable, "-m", "dragoman", "serve", "--port", str(self.port)]
        with self.printed.open("ab") as printed:
            self._process = await asyncio.create_subprocess_exec(
                *command, "--workers", "2", *self._options, stdout=printed, stderr=printed
            )
        await poll(lambda: ask_health(self.url), lambda status: status == 200, "the gateway")

    def workers(self) -> list[psutil.Process]:
        assert self._process is not None
        found = []
        for each in psutil.Process(self._process.pid).children():
            with contextlib.suppress(psutil.Error):  # a worker that was killed just now
                if "spawn_main" in " ".join(each.cmdline()):
                    found.append(each)
        return found

    async def kill_supervisor(self) -> None:
        """Kill the supervisor, wait for the end of its workers, and start another one."""
        assert self._process is not None
        children = self.workers()
        self._process.kill()
        await self._process.wait()
        await asyncio.to_thread(psutil.wait_procs, children, PATIENCE)
        await self.start()

    async def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        await asyncio.wait_for(self._process.wait(), PATIENCE)

    async def kill(self) -> None:
        """Kill what is left of the gateway."""
        if self._process is not None and self._process.returncode is None:
            for each in psutil.Process(self._process.pid).children(recursive=True):
                each.kill()
            self._process.kill()
            await self._process.wait()


class Clients:
    """Clients that call the gateway all the time, and count what is answered."""

    def __init__(self, url: str) -> None:
        self._path = f"{url}/v1/chat/completions"
        self._is_over = False
        self.answered = 0
        self.strange: set[int] = set()

    async def run(self) -> None:
        while not self._is_over:
            try:
                status, _, _ = await post(self._path, BODY, bearer(KEY))
            except aiohttp.ClientError:
                await asyncio.sleep(0.01)
                continue
            if status == 200:
                self.answered += 1
            elif status != 503:
                self.strange.add(status)

    def stop(self) -> None:
        self._is_over = True

    async def wait_for_answer(self) -> float:
        """Return the seconds until another call is answered."""
        began = time.monotonic()
        before = self.answered
        await until(lambda: self.answered > before, "an answer")
        return time.monotonic() - began


@contextlib.asynccontextmanager
async def calling(url: str) -> AsyncIterator[Clients]:
    clients = Clients(url)
    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(clients.run())
        yield clients
        clients.stop()


@pytest.mark.exhaustive
@pytest.mark.skipif("sys.platform == 'win32'", reason="Windows has no SIGKILL")
async def test_kills_at_random_moments_lose_no_answered_call(tmp_path: Path) -> None:
    draw = random.Random(58)
    gaps: list[float] = []
    ledger = tmp_path / "used.db"
    async with serve(answering()) as upstream:
        config = tmp_path / "models.yaml"
        config.write_text(CONFIG.format(url=upstream.url))
        keys = write_keys(tmp_path, "models: [fast]", "budget_usd: 1000")
        gateway = Gateway(
            tmp_path, "--config", str(config), "--model", "fast=up:m", "--auth", keys, "--state",
            str(ledger),
        )  # fmt: skip
        try:
            await gateway.start()
            status, _, body = await post(f"{gateway.url}/v1/chat/completions", BODY, bearer(KEY))
            assert status == 200, body
            price = tables(ledger)[2]
            assert price > 0
            async with calling(gateway.url) as clients:
                for at in range(KILLS):
                    # the moment is random; nothing is waited for
                    await asyncio.sleep(draw.uniform(0.05, 0.8))  # waits
                    if at % 5 == 4:
                        await gateway.kill_supervisor()
                        await clients.wait_for_answer()
                    else:
                        # a supervisor needs a moment to replace the workers that were killed
                        await until(gateway.workers, "a worker")
                        workers = gateway.workers()
                        draw.choice(workers).kill()
                        # if both workers have just been killed, another one has to start first
                        seconds = await clients.wait_for_answer()
                        if len(workers) == 2:
                            gaps.append(seconds)
            await gateway.stop()
        finally:
            await gateway.kill()
    assert clients.strange == set()
    # a short run may meet a busy machine, so that it only shows that the gateway answers again
    assert not EXHAUSTIVE or statistics.median(gaps) < BACK_SECONDS
    _, _, spent = tables(ledger)
    counted, rest = divmod(spent, price)
    assert rest == 0
    assert clients.answered + 1 <= counted <= len(upstream.requests)
    printed = gateway.printed.read_text(encoding="utf-8")
    assert printed.count("Traceback") == len(ORPHAN.findall(printed))
