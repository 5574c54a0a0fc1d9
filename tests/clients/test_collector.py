"""Test traces with Phoenix, a real OTLP collector, which also converts them for its own views.

The traced agent is started as the documentation page shows, with ``opentelemetry-instrument`` and
the same settings.
"""

import asyncio
import base64
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..gateway.serving import serving
from ..pages import ROOT
from ..ports import find_free_port
from ..programs import require
from .running import find_program, in_full_run, run_program

pytestmark = [pytest.mark.exhaustive, in_full_run]

PROGRAM = Path(__file__).parent / "traced_agent.py"
PAGE = ROOT / "docs" / "recipes" / "opentelemetry.md"
# What the variables of each section send for these keys: the path of the spans, and headers.
KEYS = {"PUBLIC_KEY": "pk", "SECRET_KEY": "sk", "LOGFIRE_WRITE_TOKEN": "lf", "DD_API_KEY": "dd"}
SENT = {
    "Langfuse": (
        "/api/public/otel/v1/traces",
        {
            "authorization": f"Basic {base64.b64encode(b'pk:sk').decode()}",
            "x-langfuse-ingestion-version": "4",
        },
    ),
    "Logfire": ("/v1/traces", {"authorization": "lf"}),
    "Datadog": ("/v1/traces", {"dd-api-key": "dd", "dd-otlp-source": "llmobs"}),
}


def read_section(name: str) -> str:
    """Return the first block of commands in a section of the page."""
    text = PAGE.read_text().partition(f"## {name}\n")[2]
    return text.partition("```bash\n")[2].partition("```")[0]


@contextlib.asynccontextmanager
async def phoenix(where: Path) -> AsyncIterator[str]:
    """Run the Phoenix server and yield its address."""
    python = find_program("phoenix", "bin", "python")
    port = find_free_port()
    grpc_port = find_free_port()
    settings = {
        "PHOENIX_WORKING_DIR": str(where),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc_port),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    process = await asyncio.create_subprocess_exec(
        python, "-m", "phoenix.server.main", "serve",
        env={"PATH": os.environ["PATH"], "HOME": str(where), **settings},
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(240), httpx.AsyncClient() as client:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get(f"{url}/healthz")).status_code == 200:
                        break
                await asyncio.sleep(0.5)
        yield url
    finally:
        process.terminate()
        await process.wait()


async def read_spans(url: str, count: int) -> dict[str, Any]:
    """Wait until ``count`` spans were received; return them by name."""
    async with asyncio.timeout(60), httpx.AsyncClient() as client:
        while True:
            reply = await client.get(f"{url}/v1/projects/default/spans")
            found = reply.json()["data"] if reply.status_code == 200 else []
            if len(found) >= count:
                return {span["name"]: span for span in found}
            await asyncio.sleep(0.5)


@pytest.mark.parametrize("section", SENT)
async def test_variables_of_a_section_address_its_service(section: str, tmp_path: Path) -> None:
    block = read_section(section)
    seen: list[tuple[str, dict[str, str]]] = []

    async def receive_spans(scope: Any, receive: Any, send: Any) -> None:
        """Record the path and the headers of each request."""
        headers = {name.decode(): value.decode() for name, value in scope.get("headers", ())}
        if scope["type"] == "lifespan":
            for name in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{name}.complete"})
            return
        while (await receive()).get("more_body"):
            pass
        seen.append((scope["path"], headers))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    instrument = find_program("otel", "bin", "opentelemetry-instrument")
    python = find_program("otel", "bin", "python")
    extra = {**KEYS, "PYTHONPATH": os.pathsep.join([path for path in sys.path if path])}
    run = f"{instrument} --traces_exporter otlp --metrics_exporter none --logs_exporter none"
    async with serving(receive_spans) as url:
        script = re.sub(r"https://[^/\n]*", url, block)
        command = [str(require("bash")), "-c", f"{script}\n{run} {python} {PROGRAM}"]
        status, printed = await run_program(command, tmp_path, extra)
    assert status == 0, printed
    path, headers = SENT[section]
    assert {each for each, _ in seen} == {path}
    assert headers.items() <= seen[0][1].items()


async def test_agent_run_appears_as_a_trace_in_phoenix(tmp_path: Path) -> None:
    """The variables are those of the page, with another port."""
    instrument = find_program("phoenix", "bin", "opentelemetry-instrument")
    python = find_program("phoenix", "bin", "python")
    async with phoenix(tmp_path) as url:
        script = read_section("Phoenix").replace("http://127.0.0.1:6006", url)
        run = f"{instrument} --traces_exporter otlp --metrics_exporter none --logs_exporter none"
        command = [str(require("bash")), "-c", f"{script}\n{run} {python} {PROGRAM}"]
        extra = {"PYTHONPATH": os.pathsep.join([path for path in sys.path if path])}
        status, printed = await run_program(command, tmp_path, extra)
        assert status == 0, printed
        spans = await read_spans(url, 4)
    agent, call, used = (
        spans[name] for name in ("invoke_agent guide", "chat sim", "execute_tool look")
    )
    assert agent["span_kind"] == "AGENT"
    assert call["span_kind"] == "LLM"
    assert used["span_kind"] == "TOOL"
    assert call["parent_id"] == used["parent_id"] == agent["context"]["span_id"]
    shown = call["attributes"]  # Phoenix uses its own attribute names
    assert shown["llm.model_name"] == "sim"
    assert shown["llm.token_count.prompt"] == 20
    assert shown["llm.token_count.completion"] == 7
    assert shown["llm.token_count.prompt_details.cache_read"] == 12
    assert shown["llm.input_messages.0.message.role"] == "system"
    assert shown["llm.input_messages.1.message.content"] == "Look here."
    assert used["attributes"]["tool.name"] == "look"
    assert json.loads(used["attributes"]["gen_ai.tool.call.arguments"]) == {"place": "here"}
