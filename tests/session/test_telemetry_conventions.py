"""Compare our spans and metrics with those that OpenTelemetry's own GenAI library makes.

``opentelemetry-util-genai`` is given the facts of the same run: an agent that calls a model, which
calls a tool; an embedding; and a failure of each. Names, kinds, types and buckets must agree. The
id of a chat reply (``gen_ai.response.id``, recommended) is not reported: our events do not have it.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.util.genai.handler import TelemetryHandler

import dragoman as d
from dragoman.events import Usage
from dragoman.session import Session, SessionTelemetry
from dragoman.sim import Answer, Call, ScriptedProvider, ScriptRule, SimServer
from tests.middleware.test_otel import Sdk

from .test_telemetry import look

MODEL = "sim"
USED = Usage(30, 7, cached_input_tokens=12, cache_creation_input_tokens=3, reasoning_tokens=2)
CONFIG = d.RuntimeConfig(
    temperature=0.5,
    max_tokens=100,
    top_p=0.9,
    seed=7,
    frequency_penalty=0.1,
    presence_penalty=0.2,
    stop_sequences=["END"],
    reasoning="low",
)
# A session streams its calls, and their library has no times of chunks.
OURS_ALONE = {
    "gen_ai.client.operation.time_to_first_chunk",
    "gen_ai.client.operation.time_per_output_chunk",
}


@pytest.fixture
def sdks() -> Iterator[tuple[Sdk, Sdk]]:
    made = Sdk(), Sdk()
    yield made
    for each in made:
        each.tracing.shutdown()
        each.metering.shutdown()


async def run_ours(sdk: Sdk, url: str, place: str) -> None:
    """Run an agent whose tool gets ``place``, and an embedder."""
    watch = SessionTelemetry(sdk.subscriber, agent="guide")
    async with d.Observe(d.connect(MODEL, base_url=url, retries=0), sdk.subscriber) as model:
        session: Session[Any] = Session(model, [look], config=CONFIG, on_record=watch)
        await asyncio.gather(session.run(f"Look {place}."), return_exceptions=True)
    at = "http://127.0.0.1:9/v1" if place == "nowhere" else url
    inner = d.connect_embedder(MODEL, base_url=at, retries=0)
    async with d.Observe(inner, sdk.subscriber) as embedder:
        await asyncio.gather(embedder.embed(["Hi"]), return_exceptions=True)


def run_theirs(sdk: Sdk, port: int, is_failed: bool) -> None:
    """Report the same calls to their library."""
    handler = TelemetryHandler(sdk.tracing, sdk.metering)
    server: dict[str, Any] = {"request_model": MODEL, "server_address": "127.0.0.1", "server_port": port}  # fmt: skip

    def end(span: Any) -> None:
        span.fail(ValueError("no")) if is_failed else span.stop()

    agent = handler.invoke_local_agent(
        request_model=MODEL, agent_name="guide", conversation_id="s"
    )
    chat = handler.inference("openai", **server, conversation_id="s")
    for name in ("temperature", "max_tokens", "top_p", "seed", "frequency_penalty",
                 "presence_penalty", "stop_sequences"):  # fmt: skip
        setattr(chat, name, getattr(CONFIG, name))
    chat.reasoning_level = "low"
    chat.request_stream = True
    if not is_failed:
        chat.response_model_name = MODEL
        chat.finish_reasons = ["stop"]
        chat.ttfc_seconds = 0.1
        agent.input_tokens = chat.input_tokens = USED.input_tokens
        agent.output_tokens = chat.output_tokens = USED.output_tokens
        chat.cache_read_input_tokens = 12
        chat.cache_write_input_tokens = 3
        chat.thinking_tokens = 2
    end(chat)
    tool = handler.tool("look", tool_type="function", agent_name="guide")
    tool.tool_call_id = "c"
    tool.tool_description = "Describe a place."
    end(tool)
    end(agent)
    embedding = handler.embedding("openai", **server)
    if not is_failed:
        embedding.response_model_name = MODEL
        embedding.input_tokens = 1
        embedding.dimension_count = 8
    end(embedding)


def find_types(attributes: Any) -> dict[str, type]:
    return {name: type(value) for name, value in dict(attributes or {}).items()}


def read_metrics(sdk: Sdk) -> dict[str, Any]:
    """Return each metric's kind, unit and buckets, and the types of its points' attributes."""
    data = sdk.reader.get_metrics_data()
    return {
        metric.name: (
            type(metric.data), metric.unit, [*metric.data.data_points[0].explicit_bounds],
            [find_types(point.attributes) for point in metric.data.data_points],
        )
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }  # fmt: skip


def index(spans: tuple[ReadableSpan, ...]) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans}


@pytest.mark.parametrize("is_failed", [False, True])
async def test_spans_and_metrics_agree_with_opentelemetrys_own_library(
    sdks: tuple[Sdk, Sdk], is_failed: bool
) -> None:
    mine, others = sdks
    place = "nowhere" if is_failed else "here"
    call = Answer(tool_calls=[Call("look", {"place": place})], usage=USED)
    rules = [ScriptRule(call, times=1)]
    rules += [] if is_failed else [ScriptRule(Answer("Green.", usage=USED))]
    with SimServer(ScriptedProvider(*rules), models=(MODEL,)) as server:
        url = server.base_urls["openai"]
        await run_ours(mine, url, place)
    run_theirs(others, int(url.rpartition(":")[2].partition("/")[0]), is_failed)
    ours = index(mine.spans)
    theirs = index(others.spans)
    assert set(ours) == set(theirs) == {
        "invoke_agent guide", f"chat {MODEL}", "execute_tool look", f"embeddings {MODEL}"
    }  # fmt: skip
    for name, span in theirs.items():
        found = find_types(ours[name].attributes)
        wanted = find_types(span.attributes)
        assert ours[name].kind == span.kind, name
        assert {each: found.get(each) for each in wanted} == wanted, name
        assert ours[name].status.status_code == span.status.status_code, name
    counted = read_metrics(mine)
    known = read_metrics(others)
    assert set(known) <= set(counted)
    assert is_failed or set(counted) - set(known) <= OURS_ALONE
    for name in set(counted) & set(known):
        assert counted[name][:3] == known[name][:3], name
        for wanted in known[name][3]:
            assert any(wanted.items() <= found.items() for found in counted[name][3]), name
