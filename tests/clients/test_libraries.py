"""Test a list of features with each client library through the gateway, over every wire."""

import json
from pathlib import Path

import pytest

from dragoman.sim import Answer, Call
from tests.gateway.upstream import WIRES

from .results import record_outcomes
from .running import INSTALLED, NODE, find_program, gateway, in_full_run, run_program
from .scripted import script

pytestmark = [pytest.mark.exhaustive, in_full_run]

PLUGIN = Answer(tool_calls=[Call("w-weather", {"city": "Paris"})])
"""A call of Semantic Kernel's function ``weather`` in its plugin ``w``."""
LISTS = Path(__file__).parent / "lists"
LIBRARIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "litellm": ("litellm", ("openai", "responses", "anthropic", "gemini", "ollama")),
    "pydantic_ai": ("pydantic_ai", ("openai", "responses", "anthropic", "google")),
    "instructor": ("agents", ("openai", "anthropic", "gemini")),
    "openai_agents": ("agents", ("chat", "responses")),
    "llm": ("agents", ("chat",)),
    "adk": ("adk", ("gemini", "anthropic", "litellm")),
    "agno": ("agno", ("openai", "anthropic", "ollama")),
    "autogen": ("autogen", ("openai", "anthropic", "ollama")),
    "crewai": ("crewai", ("openai", "anthropic")),
    "dspy": ("dspy", ("openai", "anthropic")),
    "haystack": ("haystack", ("openai", "responses", "anthropic", "google", "ollama")),
    "langchain_js": ("@langchain/core", ("openai", "responses", "anthropic", "google", "ollama")),
    "llama_index": ("llama_index", ("openai", "ollama")),
    "mastra": ("@mastra/core", ("own", "anthropic")),
    "openai_agents_js": ("@openai/agents", ("chat", "responses")),
    "semantic_kernel": ("semantic_kernel", ("openai", "google")),
    "smolagents": ("smolagents", ("openai",)),
    "strands": ("strands", ("openai", "anthropic", "ollama")),
    "Vercel AI SDK": ("ai", ("compatible", "chat", "responses", "anthropic", "google")),
}
"""For each library, the name of its environment, or its package for Node.js, and the APIs that
it is tested with."""
ROUTES = [(name, side) for name, (_, sides) in LIBRARIES.items() for side in sides]


def find_list(name: str) -> list[str]:
    """Return the command that tests the features of a library; skip if it is not installed."""
    file = LISTS / f"{name.lower().replace(' ', '_')}_list"
    place, _ = LIBRARIES[name]
    if file.with_suffix(".mjs").exists():
        find_program("node", "node_modules", place)
        return [str(NODE / "node"), f"{file}.mjs", str(INSTALLED / "node")]
    return [find_program(place, "bin", "python"), f"{file}.py"]


async def run_list(url: str, name: str, side: str, wire: str, where: Path) -> dict[str, str]:
    """Test each listed feature with a client library; return the outcomes by feature."""
    quiet = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "CREWAI_DISABLE_TELEMETRY": "true",
        "OTEL_SDK_DISABLED": "true",
    }
    status, printed = await run_program([*find_list(name), url, side, wire], where, quiet)
    last = printed.strip().splitlines()[-1] if printed.strip() else ""
    assert status == 0, printed[-3000:]
    assert last[:1] == "{", printed[-3000:]
    found: dict[str, str] = json.loads(last)
    return found


@pytest.mark.parametrize(("name", "side"), ROUTES)
async def test_every_feature_of_a_client_library_works_through_the_gateway(
    name: str, side: str, tmp_path: Path
) -> None:
    where = tmp_path / "work"
    where.mkdir()
    failed = {}
    async with gateway(script(PLUGIN=PLUGIN), tmp_path) as url:
        for wire in WIRES:
            found = await run_list(url, name, side, wire, where)
            record_outcomes(f"{name}, {side}", wire, found)
            failed |= {
                f"{wire} {feature}": what
                for feature, what in found.items()
                if what not in ("yes", "–")
            }
    assert failed == {}
