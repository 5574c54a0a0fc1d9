"""Walk through the README of ``deploy``: run its commands, then use what they have started.

    python -m tests.deploy.walk FOLDER

runs in a network of its own, in which the names and ports of all services are free. It prints what
it saw as JSON; ``test_walk.py`` judges it.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import ssl
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest
import yaml

from ..server import Connection, completion, serve
from ..waiting import poll, until
from .compose import COMMANDS, read_env, render
from .standin import POD, Installation

# The model of the README at an address of this walk, and a group whose first candidate fails.
MODELS = """
adapters:
  openai: {{type: openai, base_url: "{url}/v1", api_key_env: OPENAI_API_KEY}}
models:
  openai:gpt-5-mini: {{aliases: [fast], priced_as: openai:gpt-5-mini}}
  openai:broken: {{priced_as: openai:gpt-5-mini}}
  openai:unpriced: {{}}
groups:
  careful: {{candidates: [openai:broken, openai:gpt-5-mini]}}
availability: {{failures: 1000}}
"""
DOCKER = '#!/bin/sh\nexec "{python}" -m tests.deploy.standin "{folder}" "$@"\n'
REQUEST: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}


async def answer(connection: Connection) -> None:
    """Answer as the server of a vendor; the model ``broken`` fails."""
    if connection.seen.method == "GET":
        connection.reply(200, b'{"data": [{"id": "gpt-5-mini"}]}')
    elif connection.seen.json["model"] == "broken":
        connection.reply(500, b'{"error": {"message": "broken"}}')
    else:
        usage = {"prompt_tokens": 3000, "completion_tokens": 200, "total_tokens": 3200}
        usage["prompt_tokens_details"] = {"cached_tokens": 1000}  # type: ignore[assignment]
        connection.reply(200, completion("Hello", usage=usage))


class Walk:
    """Run the README's commands in a folder, and collect what happens."""

    def __init__(self, folder: Path, session: aiohttp.ClientSession) -> None:
        self._folder = folder
        self._session = session
        self.seen: dict[str, Any] = {}

    async def follow_readme(self, upstream: str) -> None:
        """Run the blocks of the README in one shell, with our models in the place of a vendor's."""
        shim = self._folder / "bin" / "docker"
        shim.parent.mkdir()
        shim.write_text(DOCKER.format(python=sys.executable, folder=self._folder))
        shim.chmod(0o755)
        (self._folder / "models.yaml").write_text(MODELS.format(url=upstream))
        first, *others = COMMANDS
        mine = [
            "cp ../models.yaml config/",
            "docker compose run --rm -T gateway1 keys gateway new",
        ]
        mine[1] += " bob --requests-per-minute 1 | sed -n 's/^key: //p' > ../bob.key"
        script = "\n".join(["set -euo pipefail", first, *mine, *others]).replace(
            "rm ann.key", "mv ann.key .."
        )
        path = f"{shim.parent}:{os.environ['PATH']}"
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", script, cwd=self._folder, stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(Path.cwd())},
        )  # fmt: skip
        printed, _ = await process.communicate()  # the stand-in limits each start
        self.seen["exit code"] = process.returncode
        self.seen["curl"] = json.loads(printed.decode().splitlines()[-1])
        self.installation = Installation(self._folder)
        self._keys = {
            "ann": re.findall("^key: (.*)$", (self._folder / "ann.key").read_text(), re.M)[0],
            "bob": (self._folder / "bob.key").read_text().strip(),
        }
        self._trusted = ssl.create_default_context(cafile=self._folder / "deploy" / "root.crt")

    async def ask(
        self, key: str | None, model: str = "fast", url: str = "https://localhost", **more: Any
    ) -> int:
        """Send a request, by default through the proxy; return the status of the reply."""
        headers = {} if key is None else {"authorization": f"Bearer {self._keys[key]}"}
        body = {**REQUEST, "model": model, **more}
        path = f"{url}/v1/chat/completions"
        async with self._session.post(
            path, json=body, headers=headers, ssl=self._trusted
        ) as reply:
            await reply.read()
            return reply.status

    async def send_traffic(self) -> list[int]:
        """Cause one of everything that the dashboard shows, on both gateways."""
        statuses = [await self.ask("ann", "fast") for _ in range(4)]
        statuses += [await self.ask("ann", "careful") for _ in range(4)]
        statuses += [await self.ask("ann", "fast", logprobs=True, top_k=3) for _ in range(2)]
        statuses += [await self.ask("bob", "openai:unpriced") for _ in range(4)]
        return [*statuses, await self.ask(None)]

    async def query(self, path: str, **values: str) -> Any:
        """Ask Prometheus."""
        url = f"http://{self.installation.addresses['prometheus']}:9090/api/v1/{path}"
        async with self._session.get(f"{url}?{urlencode(values)}") as reply:
            return (await reply.json())["data"]

    async def await_scrapes(self) -> None:
        """Wait until Prometheus has scraped both gateways again, from the begin to the end."""

        async def count() -> list[int]:
            query = 'count_over_time(up{job="dragoman"}[1h])'
            found = (await self.query("query", query=query))["result"]
            return sorted([int(each["value"][1]) for each in found])

        before = (await count() or [0])[-1]
        # a scrape may be under way
        await poll(count, lambda now: len(now) == 2 and now[0] >= before + 2, "two scrapes")

    async def look(self) -> None:
        """Collect the health of the services, and the answers to the dashboard's queries."""
        self.seen["health"] = [
            self.installation.check_health(name) for name in ("gateway1", "gateway2")
        ]
        # A rate needs a counter that grows between two scrapes. In three rounds, one of the two
        # gateways gets each kind of request at least twice.
        self.seen["statuses"] = []
        for _ in range(3):
            self.seen["statuses"].append(await self.send_traffic())
            await self.await_scrapes()
        targets = (await self.query("targets"))["activeTargets"]
        self.seen["targets"] = {each["labels"]["instance"]: each["health"] for each in targets}
        self.seen["rules"] = [
            [rule["name"], rule["health"]]
            for group in (await self.query("rules"))["groups"]
            for rule in group["rules"]
        ]
        dashboard = json.loads((self._folder / "deploy/grafana/gateway.json").read_text())
        self.seen["panels"] = {}
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                found = await self.query("query", query=target["expr"])
                name = f"{panel['title']} {target['refId']}"
                self.seen["panels"][name] = [each["value"][1] for each in found["result"]]

    async def start_pod(self) -> None:
        """Start the chart's pod with traces, next to the gateways, and send it a request."""
        spans = bytearray()

        async def collect(connection: Connection) -> None:
            spans.extend(connection.seen.body)
            connection.reply(200, b"")

        deploy = self._folder / "deploy"
        async with serve(collect) as collector:
            values = {
                "image": {"repository": "dragoman"},
                "stores": {
                    "postgresql": "postgresql://dragoman@postgres/dragoman",
                    "redis": "redis://redis:6379/0",
                },
                "modelsYaml": yaml.safe_load((self._folder / "models.yaml").read_text()),
                "adminHash": (deploy / "config" / "admin.hash").read_text().strip(),
                "otel": {"enabled": True, "endpoint": collector.url},
            }
            found = {each["kind"]: each for each in render(values)}
            (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
            secret = read_env((deploy / "vendors.env").read_text())
            secret["PGPASSWORD"] = read_env((deploy / ".env").read_text())["POSTGRES_PASSWORD"]
            pod = self.installation.start_pod(container, found["ConfigMap"]["data"], secret)
            ports = {each["name"]: each["containerPort"] for each in container["ports"]}
            probe = container["readinessProbe"]["httpGet"]
            url = f"http://{POD}:{ports[probe['port']]}{probe['path']}"

            async def is_ready() -> bool:
                assert pod.poll() is None
                with contextlib.suppress(aiohttp.ClientConnectionError):
                    async with self._session.get(url) as reply:
                        return reply.status == 200
                return False

            await poll(is_ready, bool, "the pod to be ready")
            status = await self.ask("ann", url=f"http://{POD}:{ports['http']}")
            await until(lambda: b"dragoman.request_id" in spans, "the span of the request")
            self.seen["pod"] = {"status": status, "spans of": b"gw" in spans}

    async def restart_gateways(self) -> None:
        """Terminate one gateway while clients send requests; no request may fail."""
        pid = int((self._folder / "logs" / "gateway1.pid").read_text())
        os.killpg(pid, signal.SIGTERM)
        statuses = []
        while Path(f"/proc/{pid}").exists():
            statuses.append(await self.ask("ann"))
        statuses.append(await self.ask("ann"))
        self.seen["during a stop"] = sorted(set(statuses))


async def main(folder: Path) -> None:
    """Walk, and print what was seen."""
    async with serve(answer) as upstream, aiohttp.ClientSession() as session:
        walk = Walk(folder, session)
        await walk.follow_readme(upstream.url)
        await walk.look()
        with contextlib.suppress(pytest.skip.Exception):  # not every platform has Helm
            await walk.start_pod()
        await walk.restart_gateways()
    print(json.dumps(walk.seen))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
