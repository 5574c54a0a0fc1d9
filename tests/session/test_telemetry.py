"""Test a session as OpenTelemetry spans with the real SDK: agent, calls and tools form one tree."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from opentelemetry import baggage, context
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from dragoman import RateLimitError
from dragoman.events import Usage
from dragoman.middleware import Observe, OpenTelemetry
from dragoman.session import Session, SessionTelemetry
from dragoman.sim import Answer, Call, ScriptedProvider
from dragoman.tools import tool

PAGE = Path(__file__).parents[2] / "docs" / "recipes" / "opentelemetry.md"


@tool(side_effect="none")
def look(place: str) -> str:
    """Describe a place."""
    if place == "nowhere":
        raise ValueError("no such place")
    return f"{place} is green"


@tool(side_effect="execute")
def remove(place: str) -> str:
    """Delete a place from the map."""
    return "gone"


class Watched:
    """Hold a session with telemetry, and its exported spans."""

    def __init__(self, *script: Any, **settings: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = TracerProvider()
        self.tracing.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        telemetry = OpenTelemetry(self.tracing, MeterProvider([self.reader]))
        self.model = Observe(ScriptedProvider(*script), telemetry)
        self.watch = SessionTelemetry(telemetry, **settings)
        self.session: Session[Any] = Session(self.model, [look, remove], on_record=self.watch)

    async def spans(self) -> dict[str, ReadableSpan]:
        await self.model.close()
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def watched() -> Iterator[Any]:
    made: list[Watched] = []

    def watch(*script: Any, **settings: Any) -> Watched:
        made.append(Watched(*script, **settings))
        return made[-1]

    yield watch
    for each in made:
        each.tracing.shutdown()


def calling(*calls: Call) -> Answer:
    return Answer(tool_calls=list(calls), usage=Usage(10, 5))


async def test_spans_of_agent_calls_and_tools_form_one_tree(watched: Any) -> None:
    run = watched(
        calling(Call("look", {"place": "here"}, id="c1")),
        Answer("Green.", usage=Usage(20, 2)),
        agent="guide",
    )
    with run.tracing.get_tracer("app").start_as_current_span("request") as outer:
        await run.session.run("Look here.")
    spans = await run.spans()
    assert set(spans) == {"invoke_agent guide", "chat sim", "execute_tool look", "request"}
    agent = spans["invoke_agent guide"]
    used = spans["execute_tool look"]
    assert agent.parent == outer.get_span_context()
    assert [spans[name].parent.span_id for name in ("chat sim", "execute_tool look")] == [
        agent.context.span_id
    ] * 2
    assert {span.context.trace_id for span in spans.values()} == {
        outer.get_span_context().trace_id
    }
    assert agent.kind == SpanKind.INTERNAL
    assert used.kind == SpanKind.INTERNAL
    assert agent.status.status_code == StatusCode.UNSET
    assert dict(agent.attributes) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "guide",
        "gen_ai.conversation.id": run.session.id,
        "gen_ai.provider.name": "sim",
        "gen_ai.request.model": "sim",
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 7,
        "dragoman.outcome": "completed",
    }
    (intent,) = run.session.state.intents
    assert dict(used.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Describe a place.",
        "gen_ai.tool.call.id": intent,
        "gen_ai.agent.name": "guide",
        "gen_ai.conversation.id": run.session.id,
    }
    assert agent.start_time <= used.start_time <= used.end_time <= agent.end_time


async def test_durations_of_tools_and_agents_are_metrics(watched: Any) -> None:
    run = watched(
        calling(Call("look", {"place": "here"}, id="c1")),
        calling(Call("look", {"place": "nowhere"}, id="c2")),
        "Green.",
        agent="guide",
    )
    await run.session.run("Look here.")
    spans = await run.spans()
    points = {
        metric.name: metric.data.data_points
        for scope in run.reader.get_metrics_data().resource_metrics
        for inner in scope.scope_metrics
        for metric in inner.metrics
    }
    tool = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "gen_ai.agent.name": "guide",
    }
    assert [dict(each.attributes) for each in points["gen_ai.execute_tool.duration"]] == [
        tool, tool | {"error.type": "tool_error"},
    ]  # fmt: skip
    (agent,) = points["gen_ai.invoke_agent.duration"]
    assert dict(agent.attributes) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "guide",
        "gen_ai.provider.name": "sim",
        "gen_ai.request.model": "sim",
    }
    span = spans["invoke_agent guide"]
    assert agent.sum == pytest.approx((span.end_time - span.start_time) / 1e9, abs=1e-4)


async def test_each_run_has_a_span_of_its_own(watched: Any) -> None:
    run = watched("One.", "Two.")
    await run.session.run("First.")
    await run.session.run("Second.")
    await run.model.close()
    assert [span.name for span in run.exporter.get_finished_spans()].count("invoke_agent") == 2


async def test_spans_contain_tool_input_and_output_only_on_request(watched: Any) -> None:
    call = Call("look", {"place": "a secret"})
    spans = await finish(watched(calling(call), "Done."))
    assert "secret" not in str([dict(span.attributes) for span in spans.values()])
    spans = await finish(watched(calling(call), "Done.", include_content=True))
    found = spans["execute_tool look"].attributes
    assert json.loads(found["gen_ai.tool.call.arguments"]) == {"place": "a secret"}
    assert json.loads(found["gen_ai.tool.call.result"]) == "a secret is green"


async def finish(run: Watched) -> dict[str, ReadableSpan]:
    await run.session.run("Look.")
    return await run.spans()


async def test_failures_set_the_error_status_of_their_spans(watched: Any) -> None:
    spans = await finish(watched(calling(Call("look", {"place": "nowhere"})), "Sorry."))
    used = spans["execute_tool look"]
    assert used.status.status_code == StatusCode.ERROR
    assert used.attributes["error.type"]
    assert spans["invoke_agent"].status.status_code == StatusCode.UNSET

    run = watched(
        RateLimitError("slow down, the key is sk-abcdefghijklmnopqrstuvwxyz0123", status=429)
    )
    with pytest.raises(RateLimitError):
        await run.session.run("Look.")
    agent = (await run.spans())["invoke_agent"]
    assert agent.status.status_code == StatusCode.ERROR
    assert agent.attributes["dragoman.outcome"] == "failed"
    assert "sk-abc" not in agent.status.description


async def test_a_call_that_was_denied_has_no_span(watched: Any) -> None:
    spans = await finish(watched(calling(Call("remove", {"place": "here"})), "Not allowed."))
    assert set(spans) == {"invoke_agent", "chat sim"}
    assert spans["invoke_agent"].attributes["dragoman.outcome"] == "completed"


async def test_telemetry_keeps_a_limited_number_of_parent_spans() -> None:
    telemetry = OpenTelemetry(TracerProvider())
    for number in range(1002):
        telemetry.adopt(str(number), Context())
    telemetry.adopt("2", Context())
    assert len(telemetry._parents) == 1000  # noqa: SLF001 - the limit has no other effect
    assert "1" not in telemetry._parents  # noqa: SLF001


async def test_code_of_the_page_puts_session_and_user_on_every_span(watched: Any) -> None:
    """Langfuse 4 reads both from every span, not from the root alone."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (code,) = [block for block in blocks if "set_baggage" in block]
    used = watched(Answer(tool_calls=[Call("look", {"place": "here"})]), Answer("Done."))
    token = context.attach(context.get_current())
    try:
        with mock.patch("opentelemetry.sdk.trace.TracerProvider", return_value=used.tracing):
            exec(code, {})
        known = dict(baggage.get_all())
        await used.session.run("Look here.")
        spans = await used.spans()
    finally:
        context.detach(token)
    assert known.keys() == {"session.id", "user.id"}
    assert set(spans) == {"invoke_agent", "chat sim", "execute_tool look"}
    for name, span in spans.items():
        assert known.items() <= span.attributes.items(), name
