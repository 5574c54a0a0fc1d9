"""Test that the gateways of the compose file run as real processes, and that a gateway can serve
TLS.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from click.testing import CliRunner

from dragoman.cli import main
from dragoman.gateway.app import SETTINGS
from dragoman.gateway.keys import hash_key
from dragoman.log import PostgresLog
from dragoman.messages import Request
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule, SimServer

from ..gateway.test_serve import BODY, running, write_config
from ..pages import ROOT, read_blocks
from ..ports import find_free_port
from ..server import Connection, completion, serve
from ..transport.certificates import Authority
from ..waiting import arrival, until
from .compose import DOCKERFILE, ENV, read_compose

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


async def test_recipe_of_the_container_ends_in_a_call_of_a_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the page and the command of the image run without Docker."""
    page = ROOT / "docs" / "recipes" / "docker.md"
    config = tmp_path / "config"
    config.mkdir()
    for block in read_blocks(page):
        named = re.match(r"# (\w+\.yaml)\n", block.text)
        if named and not (config / named[1]).exists():  # the page has a second models.yaml
            (config / named[1]).write_text(block.text)
    (client,) = re.findall(r"`OPENAI_BASE_URL=(\S+)`", page.read_text())
    command = json.loads(DOCKERFILE.rpartition("CMD ")[2])
    # The container has other folders and ports, and a network of its own.
    places = {"/config/": f"{config}/", "/state/": f"{tmp_path}/", "0.0.0.0": "127.0.0.1"}
    places["8101"] = str(find_free_port())
    for inside, outside in places.items():
        command = [word.replace(inside, outside) for word in command]

    def call(request: Request) -> Answer:
        return Answer(tool_calls=[Call(request.tools[0].name, {"city": "Paris"})])

    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    models = ("gpt-6-luna", "claude-sonnet-4-6")
    with SimServer(ScriptedProvider(ScriptRule(call)), models=models) as upstream:
        monkeypatch.setenv("OPENAI_BASE_URL", upstream.base_urls["responses"])
        monkeypatch.setenv("ANTHROPIC_BASE_URL", upstream.base_urls["anthropic"])
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary")
        async with running(*command[1:]) as (url, _):
            address = client.replace("http://127.0.0.1:8100", url)
            # The hash on the page is that of the key "test".
            async with openai.AsyncOpenAI(api_key="test", base_url=address) as program:
                for name in ("fast", "clever"):
                    made = await program.chat.completions.create(
                        model=name, messages=[{"role": "user", "content": "Hi"}], tools=[tool]
                    )
                    (asked,) = made.choices[0].message.tool_calls or ()
                    assert asked.type == "function"
                    assert json.loads(asked.function.arguments) == {"city": "Paris"}


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
    assert configs[0].ssl_certfile == cert
    assert configs[0].ssl_keyfile == key


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
