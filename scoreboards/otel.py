"""OpenTelemetry: the names of its newest conventions that calls and a session record."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dragoman import Observe, RuntimeConfig, Session, Usage, connect_embedder
from dragoman.middleware import OpenTelemetry
from dragoman.session import SessionTelemetry
from dragoman.sim import Answer, Call, ScriptedProvider, SimServer
from dragoman.tools import tool

from .board import Board
from .install import install_python

TITLE = "OpenTelemetry"
PACKAGE = "opentelemetry-util-genai"
HERE = Path(__file__).parent
SERVERS = "recorded by servers of models"
DEPRECATED = "deprecated, or renamed"
AGENT = "an agent has a name only"
WORKFLOW = "a session is one agent, not a workflow"
JUDGED = "replies are not judged"
DOCUMENTS = "documents are not retrieved"
# The names that are not recorded, each with the reason, by patterns.
EXPECTED = {
    (name, "*"): why
    for why, names in {
        SERVERS: (
            "gen_ai.server.request.duration", "gen_ai.server.time_per_output_token",
            "gen_ai.server.time_to_first_token",
        ),
        DEPRECATED: (
            "gen_ai.completion", "gen_ai.openai.*", "gen_ai.prompt", "gen_ai.system",
            "gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.completion_tokens",
            "gen_ai.usage.prompt_tokens",
        ),
        AGENT: ("gen_ai.agent.description", "gen_ai.agent.id", "gen_ai.agent.version"),
        WORKFLOW: ("gen_ai.invoke_workflow.duration", "gen_ai.workflow.name"),
        JUDGED: ("gen_ai.evaluation.*",),
        DOCUMENTS: (
            "gen_ai.data_source.id", "gen_ai.retrieval.documents", "gen_ai.retrieval.query.text",
        ),
        "recorded of embeddings and rankings alone; of a chat reply, `raw` has it": ("gen_ai.response.id",),
        "a request does not name one": ("gen_ai.output.type",),
        "a template's name is not part of a request": ("gen_ai.prompt.name",),
        "a call has one choice": ("gen_ai.request.choice.count",),
        "a setting of the wire, not of the caller": ("gen_ai.request.encoding_formats",),
        "a request has it only as an extra": ("gen_ai.request.top_k",),
        "opt-in, and the event log has them": ("gen_ai.tool.definitions",),
    }.items()
    for name in names
}  # fmt: skip
SETTINGS = RuntimeConfig(
    temperature=0.5, max_tokens=100, top_p=0.9, seed=7, frequency_penalty=0.1,
    presence_penalty=0.2, stop_sequences=["END"], reasoning="low",
)  # fmt: skip
USAGE = Usage(20, 7, cached_input_tokens=12, cache_creation_input_tokens=3, reasoning_tokens=2)


@tool(side_effect="none")
def look(place: str) -> str:
    """Describe a place."""
    return f"{place} is green"


async def record() -> set[str]:
    """Return the names that a session with a tool, a stream and an embedding record."""
    spans = InMemorySpanExporter()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    reader = InMemoryMetricReader()
    metering = MeterProvider([reader])
    telemetry = OpenTelemetry(tracing, metering)
    script = ScriptedProvider(
        Answer("I look.", tool_calls=[Call("look", {"place": "here"})], usage=USAGE),
        Answer("It is green.", usage=USAGE),
    )
    async with Observe(script, telemetry, include_content=True) as model:
        watch = SessionTelemetry(telemetry, agent="guide", include_content=True)
        session = Session(model, [look], system="Be brief.", config=SETTINGS, on_record=watch)
        await session.run("Look here.")
    with SimServer(ScriptedProvider("Hi")) as server:
        connected = connect_embedder("m", base_url=server.base_urls["openai"])
        async with Observe(connected, telemetry) as embedder:
            await embedder.embed(["a"], dimensions=4)
    found = {name for span in spans.get_finished_spans() for name in span.attributes or {}}
    data = reader.get_metrics_data()
    for scope in [scope for each in data.resource_metrics for scope in each.scope_metrics]:
        for metric in scope.metrics:
            found |= {
                metric.name,
                *[name for at in metric.data.data_points for name in at.attributes],
            }
    tracing.shutdown()
    metering.shutdown()
    return found


def fill(board: Board, names: dict[str, str], recorded: set[str]) -> None:
    """Compare the names of the conventions with the recorded ones."""
    for name, kind in names.items():
        board.cells[name, kind] = "" if name in recorded else "not recorded"


def try_controls(names: dict[str, str], recorded: set[str]) -> dict[str, tuple[int, int]]:
    """Return for each kind how often a name that is recorded under another one was noticed."""
    found: dict[str, tuple[int, int]] = {}
    for name in sorted(recorded & names.keys()):
        board = Board("otel", TITLE, "", expected=EXPECTED)
        fill(board, names, recorded - {name} | {f"{name}_x"})
        control = f"{names[name]} recorded under another name"
        noticed, tried = found.get(control, (0, 0))
        is_noticed = board.surprises == [f"{name}, {names[name]}: not recorded"]
        found[control] = (noticed + is_noticed, tried + 1)
    return found


def run() -> Board:
    """Compare the names of the newest packages with those of a run."""
    python = install_python(PACKAGE)
    script = [python, str(HERE / "otel_names.py")]
    printed = json.loads(subprocess.run(script, check=True, capture_output=True).stdout)
    board = Board(
        "otel",
        TITLE,
        "The attributes and metrics of the conventions for generative AI in OpenTelemetry's own packages, and those\n"
        "that a session with a tool, its streams and an embedding record. Names alone are compared, not their values.",
        versions=printed["versions"],
        expected=EXPECTED,
    )
    recorded = asyncio.run(record())
    fill(board, printed["names"], recorded)
    board.controls = try_controls(printed["names"], recorded)
    return board
