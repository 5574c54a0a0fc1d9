"""Test ``dragoman serve`` as a real process, and the options with which it does not start."""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from click.testing import CliRunner

from dragoman.cli import main
from dragoman.cli.serve import _fit_open_files
from dragoman.gateway.app import SETTINGS, create_app_from_environment
from dragoman.gateway.keys import hash_key
from tests.pages import ROOT
from tests.server import Connection, completion, serve
from tests.waiting import PATIENCE, arrival, poll, until

from ..ports import find_free_port
from ..rows import read_table

KEY = "dg-key"
HASH = hash_key(KEY)
BODY: dict[str, Any] = {
    "model": "fast",
    "messages": [{"role": "user", "content": "a secret prompt"}],
}


def write_config(folder: Path, url: str) -> str:
    file = folder / "models.yaml"
    file.write_text(
        f"adapters:\n  up:\n    type: openai\n    base_url: {url}/v1\nmodels:\n  up:m:\n   "
        " adapter: up\n"
    )
    return str(file)


def write_keys(folder: Path, *lines: str) -> str:
    file = folder / "keys.yaml"
    file.write_text(
        "\n".join(["keys:", "  ann:", f"    hash: {HASH}", *[f"    {line}" for line in lines], ""])
    )
    return str(file)


@contextlib.asynccontextmanager
async def running(*options: str) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    port = find_free_port()
    command = [sys.executable, "-m", "dragoman", "serve", "--port", str(port), *options]
    process = await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.PIPE, env={**os.environ, "OPENAI_API_KEY": "sk-canary"}
    )
    url = f"http://127.0.0.1:{port}"
    try:
        status = await poll(
            lambda: ask_health(url),
            lambda status: status is not None or process.returncode is not None,
            "the gateway to listen",
        )
        assert status == 200
        yield url, process
    finally:
        if process.returncode is None:
            # Kill the workers too: they would outlive their parent and keep its standard error
            # open.
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        await process.wait()


async def ask_health(url: str) -> int | None:
    """Return the status of a gateway's reply, or ``None`` if it does not listen."""
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as reply:
            return reply.status
    except aiohttp.ClientConnectionError:
        return None


async def test_several_workers_share_the_limit_of_a_key(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def handler(connection: Connection) -> None:
        await go.wait()
        connection.reply(200, completion())

    async with serve(handler) as upstream:
        config = write_config(tmp_path, upstream.url)
        keys = write_keys(tmp_path, "models: [fast]", "max_concurrency: 3")
        options = ["--config", config, "--model", "fast=up:m", "--auth", keys]
        options += ["--state", str(tmp_path / "used.db"), "--workers", "2"]
        async with running(*options) as (url, process), aiohttp.ClientSession() as session:
            children = psutil.Process(process.pid).children(recursive=True)
            assert (
                len([child for child in children if "spawn_main" in " ".join(child.cmdline())])
                == 2
            )
            headers = {"authorization": f"Bearer {KEY}", "connection": "close"}

            async def ask() -> int:
                async with session.post(
                    f"{url}/v1/chat/completions", json=BODY, headers=headers
                ) as reply:
                    return reply.status

            held = [asyncio.ensure_future(ask()) for _ in range(3)]
            await until(lambda: len(upstream.requests) == 3, "three calls")
            found = [await ask() for _ in range(6)]
            go.set()
            found += await asyncio.gather(*held)
            process.send_signal(signal.SIGTERM)
            await arrival(process.wait(), "the end of the gateway")
    assert found == [429] * 6 + [200] * 3
    assert len(upstream.requests) == 3
    _, left = psutil.wait_procs(children, timeout=PATIENCE)
    assert [child for child in left if child.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ([], (4096, 2048)),
        (["--max-connections", "3", "--max-connections-per-peer", "9"], (3, 9)),
        (["--max-connections-per-peer", "3"], (4096, 3)),
    ],
)
def test_command_line_options_limit_connections(
    options: list[str], limits: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTINGS, "")
    monkeypatch.setattr("dragoman.gateway.supervisor.run", lambda *_: None)
    monkeypatch.setattr("dragoman.cli.serve._fit_open_files", lambda wanted: wanted)
    serve = ["serve", "--no-access-log", "--config", write_config(tmp_path, "http://127.0.0.1:1")]
    CliRunner().invoke(main, [*serve, *options], catch_exceptions=False)
    bounds = create_app_from_environment().state.service.bounds
    assert (bounds.connections, bounds.connections_per_peer) == limits


def test_serving_is_announced_only_if_the_port_can_be_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(config: Any, listener: Any, bound: socket.socket) -> None:
        socket.create_connection(bound.getsockname()).close()  # clients may connect at once

    monkeypatch.setenv(SETTINGS, "")
    monkeypatch.setattr("dragoman.gateway.supervisor.run", connect)
    serve = ["serve", "--config", write_config(tmp_path, "http://127.0.0.1:1"), "--port"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = CliRunner().invoke(main, [*serve, port])
    assert refused.exit_code == 2
    assert f"--port {port}: Address already in use" in refused.stderr
    assert "serving" not in refused.stderr
    done = CliRunner().invoke(main, [*serve, port], catch_exceptions=False)
    assert done.exit_code == 0
    assert f"at http://127.0.0.1:{port}" in done.stderr


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "fits", "raised"),
    [
        (1024, 65536, 4096, 4096, 8320),
        (1024, 2048, 4096, 960, 2048),
        (100000, 100000, 4096, 4096, None),
        (256, -1, 100, 100, 328),
        (10, 10, 4096, 1, 10),
    ],
)
def test_connection_limit_stays_below_the_open_file_limit(
    soft: int,
    hard: int,
    wanted: int,
    fits: int,
    raised: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed: list[int] = []
    monkeypatch.setattr("resource.getrlimit", lambda what: (soft, hard))
    monkeypatch.setattr("resource.setrlimit", lambda what, limits: changed.append(limits[0]))
    assert _fit_open_files(wanted) == fits
    assert changed == ([] if raised is None else [raised])


REFUSED: list[tuple[list[str], str]] = read_table("refused_serve_options")


@pytest.mark.parametrize(("options", "complaint"), REFUSED)
def test_gateway_does_not_start_with_invalid_options(
    options: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dragoman.gateway.supervisor.run", lambda *args, **kwargs: pytest.fail("it listens")
    )
    broken = tmp_path / "broken.yaml"
    broken.write_text("keys:\n  a:\n    hash: x\n")
    (tmp_path / "places").mkdir()
    places = write_keys(tmp_path / "places", "max_concurrency: 3")
    files = {
        "KEYS": write_keys(tmp_path, "budget_usd: 1"),
        "PLACES": places,
        "BROKEN": str(broken),
    }
    config = write_config(tmp_path, "http://127.0.0.1:9")
    said = CliRunner().invoke(
        main, ["serve", "--config", config, *[files.get(each, each) for each in options]]
    )
    assert said.exit_code == 2
    assert complaint in said.output


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--model", "m=openai:*"], "so the name needs a *, too"),
        (["--model", "m/*=openai:gpt-none-*"], "no model is listed whose name matches"),
        ([], "models.yaml lists no models"),
    ],
)
def test_gateway_does_not_start_without_models(
    options: list[str], complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("adapters:\n  openai: {type: openai, api_key: k1}\n")
    said = CliRunner().invoke(main, ["serve", "--config", str(path), *options])
    assert said.exit_code == 2
    assert complaint in said.output


def test_new_key_is_shown_once_and_stored_as_a_hash() -> None:
    said = CliRunner().invoke(main, ["serve", "--new-key", "ann", "--json"])
    made = json.loads(said.output)
    assert made["hash"] == hash_key(made["key"])
    assert made["key"] not in made["hash"]
    plain = CliRunner().invoke(main, ["serve", "--new-key", "ann"])
    assert plain.exit_code == 0
    assert "hash: sha256:" in plain.output


def test_documented_command_for_opentelemetry_passes_its_options_to_the_gateway() -> None:
    """The parser below has the options of ``opentelemetry-instrument`` that begin alike."""
    page = (ROOT / "docs/howto/operate.md").read_text()
    command = next(
        each for each in page.split("`") if each.startswith("opentelemetry-instrument ")
    )
    parser = argparse.ArgumentParser(exit_on_error=False)
    for name in ("--config_file", "--configurator"):
        parser.add_argument(name)
    parser.add_argument("command")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    started = parser.parse_args(command.split()[1:])
    assert started.command == "dragoman"
    assert started.arguments[:2] == ["serve", "--otel"]
    assert "--config" in started.arguments
