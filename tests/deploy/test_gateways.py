"""Test that the gateways of the compose file run as real processes, and that a gateway can serve
TLS.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from dragoman.cli import main
from dragoman.gateway.app import SETTINGS
from dragoman.gateway.keys import hash_key
from dragoman.log import PostgresLog

from ..gateway.test_serve import BODY, running, write_config
from ..ports import find_free_port
from ..server import Connection, completion, serve
from ..transport.certificates import Authority
from ..waiting import arrival, until
from .compose import ENV, read_compose

COMMAND: list[str] = read_compose(ENV)["services"]["gateway1"]["command"]


async def test_gateways_of_the_compose_file_share_keys_limits_and_log(
    tmp_path: Path, postgres_url: str, redis_url: str
) -> None:
    log = postgres_url
    words = ["keys", "gateway", "new", "ann", "--max-concurrency", "3", "--budget", "5", "--json"]
    go = asyncio.Event()

    async def handler(connection: Connection) -> None:
        if connection.seen.method == "GET":
            connection.reply(200, b'{"data": [{"id": "m"}]}')
            return
        await go.wait()
        connection.reply(200, completion())

    made = CliRunner().invoke(main, [*words, "--auth", log])
    key = json.loads(made.stdout)["key"]
    async with serve(handler) as upstream:
        config = write_config(tmp_path, upstream.url)
        Path(config).write_text(Path(config).read_text() + "    priced_as: openai:gpt-5-mini\n")
        places = {
            "--host": "127.0.0.1", "--config": config, "--auth": log, "--state": log, "--log": log,
        }  # fmt: skip
        places |= {"--redis": redis_url, "--admin": str(tmp_path / "admin.hash")}
        (tmp_path / "admin.hash").write_text(hash_key("the admin's key"))
        options = [each.partition("=") for each in COMMAND[1:]]
        command = [f"{name}{equals}{places.get(name, value)}" for name, equals, value in options]
        command += ["--model=fast=up:m", "--drain-delay=0", "--ready-port"]
        ready = [find_free_port(), find_free_port()]
        async with (
            running(*command, str(ready[0])) as (one, first),
            running(*command, str(ready[1])) as (two, second),
        ):
            async with aiohttp.ClientSession() as session:
                for port in ready:
                    async with session.get(f"http://127.0.0.1:{port}/ready") as reply:
                        assert reply.status == 200

                async def ask(url: str) -> int:
                    headers = {"authorization": f"Bearer {key}"}
                    path = f"{url}/v1/chat/completions"
                    async with session.post(path, json=BODY, headers=headers) as reply:
                        return reply.status

                held = [asyncio.ensure_future(ask(url)) for url in (one, two, one)]
                await until(lambda: upstream.in_flight == 3, "three calls")
                statuses = [await ask(two)]
                go.set()
                statuses += await asyncio.gather(*held)
            # Records are written in the background; terminating the processes waits until all are
            # written.
            for process in (first, second):
                process.terminate()
                await arrival(process.wait(), "the end of a gateway")
    assert statuses == [429, 200, 200, 200]
    with PostgresLog(log, readonly=True) as recorded:
        calls = [
            record for session in recorded.sessions() for record in recorded.read(session.session)
        ]
    assert sum(type(record.payload).__name__ == "CallCompleted" for record in calls) == 3


# --- serving over TLS --------------------------------------------------------------------------


def test_gateway_can_serve_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gets the certificate; ``tests/attacks/test_tls.py`` uses such a server."""
    configs: list[Any] = []
    monkeypatch.setenv(SETTINGS, "")
    monkeypatch.setattr("dragoman.gateway.supervisor.run", lambda *given: configs.append(given[0]))
    cert, key = Authority(tmp_path).issue("127.0.0.1")
    config = write_config(tmp_path, "http://127.0.0.1:1")
    done = CliRunner().invoke(
        main, ["serve", "--config", config, "--tls-cert", cert, "--tls-key", key]
    )
    assert "at https://127.0.0.1:" in done.stderr
    assert (configs[0].ssl_certfile, configs[0].ssl_keyfile) == (cert, key)


def test_mismatched_certificate_and_key_are_rejected(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, _ = authority.issue("127.0.0.1")
    _, other = authority.issue("127.0.0.1")
    for words, text in (
        (["--tls-cert", cert], "go together"),
        (["--tls-key", other], "go together"),
        (["--tls-cert", cert, "--tls-key", other], "--tls-cert, --tls-key"),
    ):
        done = CliRunner().invoke(main, ["serve", "--model", "x", *words])
        assert done.exit_code == 2
        assert text in done.stderr
