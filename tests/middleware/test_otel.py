"""Test OpenTelemetry with its real SDK: spans and metrics are named as in its conventions."""

import asyncio
import json
import sys
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes, http_attributes, server_attributes
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.util.genai import _instruments

import dragoman as d
from dragoman.middleware import OpenTelemetry
from dragoman.middleware.otel import (
    NAMES,
    OPERATIONS,
    _read_provider_names,
    find_provider_name,
)
from dragoman.sim import ScriptedProvider, SimServer
from dragoman.validate import build_request
from tests.listed import Clock, Listed, collect, reply
from tests.sources import PACKAGE


class Sdk:
    """Hold OpenTelemetry providers whose exporters keep everything in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = TracerProvider()
        self.tracing.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.metering = MeterProvider([self.reader])
        self.subscriber = OpenTelemetry(self.tracing, self.metering)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        metrics = [
            metric
            for scope in data.resource_metrics
            for inner in scope.scope_metrics
            for metric in inner.metrics
        ]
        (metric,) = [metric for metric in metrics if metric.name == name]
        return [metric.unit, *metric.data.data_points]


@pytest.fixture
def sdk() -> Any:
    made = Sdk()
    yield made
    made.tracing.shutdown()
    made.metering.shutdown()


async def call(sdk: Sdk, provider: Listed, request: d.Request, **settings: Any) -> None:
    clock = Clock()
    observed = d.Observe(provider, sdk.subscriber, now=lambda: 1700000000.0, **settings)
    model = d.Retry(observed, clock=clock, sleep=clock.sleep)
    await collect(model.events(request))
    await model.close()


async def test_span_has_the_attributes_of_the_request_and_its_usage(sdk: Sdk) -> None:
    config = d.RuntimeConfig(
        temperature=0.5,
        max_tokens=100,
        top_p=0.9,
        seed=7,
        frequency_penalty=0.1,
        presence_penalty=0.2,
        stop_sequences=["END"],
        reasoning="low",
        extras={"private": 1},
    )
    request = replace(
        build_request("hello", None, config, model="m", stream=True), session_id="s1"
    )
    await call(
        sdk,
        Listed(
            reply(
                "x",
                usage=d.Usage(
                    20,
                    7,
                    cached_input_tokens=12,
                    cache_creation_input_tokens=3,
                    reasoning_tokens=2,
                ),
            )
        ),
        request,
    )
    (span,) = sdk.spans
    assert span.name == "chat m"
    assert span.kind == SpanKind.CLIENT
    assert span.status.status_code == StatusCode.UNSET
    said = dict(span.attributes or {})
    assert said.pop("gen_ai.response.time_to_first_chunk") >= 0  # type: ignore[operator]
    assert said == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "listed",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 7,
        "gen_ai.request.frequency_penalty": 0.1,
        "gen_ai.request.presence_penalty": 0.2,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.request.stream": True,
        "gen_ai.request.reasoning.level": "low",
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 12,
        "gen_ai.usage.cache_write.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "gen_ai.conversation.id": "s1",
        "dragoman.request_id": request.request_id,
        "dragoman.attempt": 0,
    }


# Names that are defined in the repository semantic-conventions-genai, but not yet in a release of
# the Python package.
NEWER = {"gen_ai.usage.cache_write.input_tokens", "gen_ai.request.reasoning.level"}


def test_attribute_names_follow_the_opentelemetry_conventions() -> None:
    modules = [
        gen_ai_attributes, gen_ai_metrics, error_attributes, http_attributes, server_attributes,
        _instruments,
    ]  # fmt: skip
    constants = {
        value for module in modules for value in vars(module).values() if isinstance(value, str)
    }
    ours = {name for name in NAMES.values() if not name.startswith("dragoman.")}
    assert ours - constants == NEWER
    operations = {each.value for each in gen_ai_attributes.GenAiOperationNameValues}
    assert set(OPERATIONS.values()) - operations == {"rerank"}
    assert {"invoke_agent", "execute_tool"} <= operations


async def test_times_of_chunks_are_metrics_of_streams(sdk: Sdk) -> None:
    async with d.Observe(ScriptedProvider("one two three four"), sdk.subscriber) as model:
        async with model.stream("Hi") as stream:
            events = [event async for event in stream]
        await model.complete("Hi")
    unit, first = sdk.points("gen_ai.client.operation.time_to_first_chunk")
    assert unit == "s"
    assert first.count == 1
    unit, pauses = sdk.points("gen_ai.client.operation.time_per_output_chunk")
    assert unit == "s"
    assert 0 < pauses.count < len(events)
    for point in (first, pauses):
        assert point.attributes["gen_ai.request.model"] == "sim"
        assert point.attributes["gen_ai.operation.name"] == "chat"


# The attributes that the conventions require of each span and metric, and those that they require
# under a condition which these calls fulfil. The Python package has names but no requirement levels.
REQUIRED = {
    gen_ai_attributes.GEN_AI_OPERATION_NAME: str, gen_ai_attributes.GEN_AI_PROVIDER_NAME: str,
    gen_ai_attributes.GEN_AI_REQUEST_MODEL: str, server_attributes.SERVER_ADDRESS: str,
    server_attributes.SERVER_PORT: int,
}  # fmt: skip
OF_FAILURES = REQUIRED | {error_attributes.ERROR_TYPE: str}
OF_TOKENS = REQUIRED | {gen_ai_attributes.GEN_AI_TOKEN_TYPE: str}


@pytest.mark.parametrize("operation", ["chat", "embed"])
async def test_spans_and_metrics_have_the_required_attributes(sdk: Sdk, operation: str) -> None:
    with SimServer(ScriptedProvider("Hello.")) as server:
        base_url = server.base_urls["openai"]
        for url in (base_url, "http://127.0.0.1:9/v1"):
            inner: Any = (d.connect if operation == "chat" else d.connect_embedder)(
                "m", base_url=url
            )
            async with d.Observe(inner, sdk.subscriber) as watched:
                work = watched.complete("Hi") if operation == "chat" else watched.embed(["Hi"])
                await asyncio.gather(work, return_exceptions=True)
    done, failed = sdk.spans
    duration = sdk.points("gen_ai.client.operation.duration")[1:]
    tokens = sdk.points("gen_ai.client.token.usage")[1:]
    assert len(duration) == 2
    for attributes, required in [
        (done.attributes, REQUIRED),
        (failed.attributes, OF_FAILURES),
        (duration[0].attributes, REQUIRED),
        (duration[1].attributes, OF_FAILURES),
        *[(each.attributes, OF_TOKENS) for each in tokens],
    ]:
        found = {name: type(value) for name, value in (attributes or {}).items()}
        assert {name: found.get(name) for name in required} == required
    named = done.attributes or {}
    assert f"http://{named['server.address']}:{named['server.port']}/v1" == base_url
    assert named["gen_ai.operation.name"] == {"chat": "chat", "embed": "embeddings"}[operation]


# Vendors that the conventions do not name.
UNNAMED = {
    "ai21", "alibaba", "baidu", "baseten", "cerebras", "cloudflare", "databricks", "deepinfra",
    "fireworks", "github", "huggingface", "hyperbolic", "inception", "jina", "litellm",
    "llamacpp", "lmstudio", "minimax", "moonshot", "nebius", "novita", "nvidia", "ollama",
    "ollama-cloud", "openrouter", "portkey", "reka", "requesty", "sambanova", "sglang", "siliconflow",
    "snowflake", "stepfun", "tei", "tencent", "together", "upstage", "venice", "vercel",
    "vllm", "volcengine", "voyage", "writer", "xiaomi", "zai",
}  # fmt: skip


def test_providers_have_the_names_of_the_opentelemetry_conventions() -> None:
    known = {each.value for each in gen_ai_attributes.GenAiProviderNameValues}
    vendors = {path.stem for path in (PACKAGE / "catalog").glob("*.yaml")}
    assert len(vendors) > 20
    assert {name for name in vendors if find_provider_name(name) not in known} == UNNAMED
    assert set(_read_provider_names()) <= vendors


async def test_span_has_the_conventions_name_of_the_provider(sdk: Sdk) -> None:
    with SimServer(ScriptedProvider("Hello.")) as server:
        inner = d.connect("m", base_url=server.base_urls["openai"], vendor="bedrock")
        async with d.Observe(inner, sdk.subscriber) as model:
            await model.complete("Hi")
    (span,) = sdk.spans
    assert (span.attributes or {})["gen_ai.provider.name"] == "aws.bedrock"


async def test_unknown_values_are_omitted_from_spans(
    sdk: Sdk, caplog: pytest.LogCaptureFixture
) -> None:
    await call(
        sdk, Listed(reply("x", usage=d.Usage(output_tokens=3))), build_request("hello", model="m")
    )
    (span,) = sdk.spans
    said = {name for name in span.attributes or {} if "usage" in name or "request." in name}
    assert said == {"gen_ai.request.model", "gen_ai.usage.output_tokens"}
    _, *points = sdk.points("gen_ai.client.token.usage")
    assert [point.attributes["gen_ai.token.type"] for point in points] == ["output"]
    assert caplog.text == ""


async def test_each_attempt_has_a_span_with_its_error(sdk: Sdk) -> None:
    failure = d.RateLimitError(
        "slow", status=429, provider_message="quota of jane@example.org, key sk-abcdefghijklmnop"
    )
    await call(sdk, Listed(failure, d.UnavailableError("down"), "ok"), build_request("hi"))
    spans = sdk.spans
    said = [dict(span.attributes or {}) for span in spans]
    assert [each["dragoman.attempt"] for each in said] == [0, 1, 2]
    assert [each.get("error.type") for each in said] == ["rate_limit", "server_error", None]
    assert [each.get("http.response.status_code") for each in said] == [429, None, None]
    assert [each.get("dragoman.retry_reason") for each in said] == [None, "transient", "transient"]
    failed = [span.status.status_code == StatusCode.ERROR for span in spans]
    assert failed == [True, True, False]
    description = spans[0].status.description or ""
    assert "slow" in description
    assert "jane@" not in description
    assert "sk-abc" not in description


async def test_span_has_the_time_and_the_parent_of_its_call(sdk: Sdk) -> None:
    clock = Clock()

    def slow(request: d.Request) -> Any:
        clock.now += 2.5
        return reply("x")(request)

    tracer = sdk.tracing.get_tracer("test")
    model = d.Observe(Listed(slow), sdk.subscriber, clock=clock, now=lambda: 1700000000.0)
    with tracer.start_as_current_span("parent") as parent:
        await model.complete("hi")
    await model.close()
    span = next(span for span in sdk.spans if span.name.startswith("chat"))
    assert span.start_time == 1700000000 * 10**9
    assert span.end_time == 1700000000 * 10**9 + 2_500_000_000
    assert span.parent is not None
    assert span.parent.span_id == parent.get_span_context().span_id


async def test_duration_and_token_metrics_are_recorded(sdk: Sdk) -> None:
    model = Listed(d.UnavailableError("down"), reply("x", usage=d.Usage(20, 7)))
    await call(sdk, model, build_request("hi", model="m"))
    unit, *points = sdk.points("gen_ai.client.token.usage")
    assert unit == "{token}"
    common = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "listed",
        "gen_ai.request.model": "m",
    }  # fmt: skip
    answered = {**common, "gen_ai.response.model": "m"}
    assert [(point.sum, point.count) for point in points] == [(20, 1), (7, 1)]
    attributes = [{**answered, "gen_ai.token.type": kind} for kind in ("input", "output")]
    assert [dict(point.attributes) for point in points] == attributes
    assert points[0].explicit_bounds[:4] == (1, 4, 16, 64)
    unit, *points = sdk.points("gen_ai.client.operation.duration")
    assert unit == "s"
    attributes = [{**common, "error.type": "server_error"}, answered]
    assert [dict(point.attributes) for point in points] == attributes
    assert points[0].explicit_bounds[-1] == pytest.approx(81.92)


async def test_spans_contain_message_content_only_if_it_is_enabled(sdk: Sdk) -> None:
    messages = [
        d.System("be private"),
        d.User([d.Text("a private question"), d.Image(d.Url("https://example.org/private.png"))]),
        d.Assistant([d.Thinking("private thought"), d.ToolCall("c", "add", {"private": 1})]),
        d.ToolResult("c", "private result"),
    ]
    request = build_request(messages, [d.Tool("add")])
    await call(sdk, Listed("private answer"), request)
    assert "private" not in sdk.spans[0].to_json()
    await call(sdk, Listed("private answer"), request, include_content=True)
    said = sdk.spans[1].attributes or {}

    def read(name: str) -> Any:
        return json.loads(str(said[f"gen_ai.{name}"]))

    assert read("system_instructions") == [{"type": "text", "content": "be private"}]
    assert read("input.messages") == [
        {"role": "user",
         "parts": [{"type": "text", "content": "a private question"}, {"type": "image"}]},
        {"role": "assistant", "parts": [{"type": "reasoning", "content": "private thought"},
                                        {"type": "tool_call", "id": "c", "name": "add",
                                         "arguments": {"private": 1}}]},
        {"role": "tool",
         "parts": [{"type": "tool_call_response", "id": "c", "response": "private result"}]},
    ]  # fmt: skip
    parts = [{"type": "text", "content": "private answer"}]
    answer = {"role": "assistant", "parts": parts, "finish_reason": "stop"}
    assert read("output.messages") == [answer]


async def test_span_of_a_failed_call_contains_the_prompt_if_content_is_included(sdk: Sdk) -> None:
    await call(sdk, Listed(ValueError("bug")), build_request("a question"), include_content=True)
    said = sdk.spans[0].attributes or {}
    assert json.loads(str(said["gen_ai.input.messages"]))[0]["parts"][0]["content"] == "a question"
    assert "gen_ai.output.messages" not in said


async def test_calls_work_if_no_opentelemetry_sdk_is_configured() -> None:
    model = d.Observe(Listed("x"), OpenTelemetry())
    assert (await model.complete("hi")).text == "x"
    await model.close()


def test_error_for_a_missing_extra_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match=r"dragoman\[otel\]"):
        OpenTelemetry()
