"""Test traces with Phoenix, a real OTLP collector, which also converts them for its own views.

The traced agent is started as the documentation page shows, with ``opentelemetry-instrument`` and
the same settings.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..ports import find_free_port
from .running import find_program, in_full_run, run_program

pytestmark = [pytest.mark.exhaustive, in_full_run]

PROGRAM = Path(__file__).parent / "traced_agent.py"


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


async def test_agent_run_appears_as_a_trace_in_phoenix(tmp_path: Path) -> None:
    instrument = find_program("phoenix", "bin", "opentelemetry-instrument")
    python = find_program("phoenix", "bin", "python")
    async with phoenix(tmp_path) as url:
        command = [
            instrument, "--traces_exporter", "otlp", "--metrics_exporter", "none",
            "--logs_exporter", "none",
        ]  # fmt: skip
        extra = {
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{url}/v1/traces",
            "PYTHONPATH": os.pathsep.join([path for path in sys.path if path]),
        }
        status, printed = await run_program([*command, python, str(PROGRAM)], tmp_path, extra)
        assert status == 0, printed
        spans = await read_spans(url, 4)
    agent, call, used = (
        spans[name] for name in ("invoke_agent guide", "chat sim", "execute_tool look")
    )
    assert (agent["span_kind"], call["span_kind"], used["span_kind"]) == ("AGENT", "LLM", "TOOL")
    assert call["parent_id"] == used["parent_id"] == agent["context"]["span_id"]
    shown = call["attributes"]  # Phoenix uses its own attribute names
    assert (shown["llm.model_name"], shown["llm.token_count.prompt"],
            shown["llm.token_count.completion"]) == (
        "sim", 20, 7,
    )  # fmt: skip
    assert shown["llm.token_count.prompt_details.cache_read"] == 12
    assert shown["llm.input_messages.0.message.role"] == "system"
    assert shown["llm.input_messages.1.message.content"] == "Look here."
    assert used["attributes"]["tool.name"] == "look"
    assert json.loads(used["attributes"]["gen_ai.tool.call.arguments"]) == {"place": "here"}
