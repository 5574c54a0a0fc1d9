"""Known capabilities change requests, and capabilities that replies reveal are stored."""

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman import UnsupportedFeatureError, connect
from dragoman.messages import Text, Tool, User
from dragoman.registry import Registry
from dragoman.registry.observed import ObservedFacts, observed_path
from dragoman.validate import build_request

from .server import Connection, replying, serve

TOOLS = [
    Tool("f", "", parameters={"type": "object", "properties": {}}),
    Tool("g", "", parameters={"type": "object", "properties": {}}),
]


def said(*calls: str, cached: int = 0) -> bytes:
    made = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for at, name in enumerate(calls)
    ]
    message = {
        "role": "assistant",
        "content": None if calls else "Hi",
        **({"tool_calls": made} if calls else {}),
    }
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


@pytest.mark.parametrize(
    ("wire", "found"),
    [
        ("openai", {"parallel_tool_calls": False}),
        ("responses", {"parallel_tool_calls": False}),
        ("anthropic", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
        ("gemini", {}),
        ("ollama", {}),
        ("cohere", {}),
        ("bedrock", {}),
    ],
)
def test_model_without_parallel_tool_calls_is_limited_to_one_call(
    wire: str, found: dict[str, Any]
) -> None:
    known = {"supports_parallel_tool_calls": False, "max_output_tokens": 100}
    model: Any = connect("m", base_url="http://a", wire=wire, capabilities=known)
    body = json.loads(model.codec.encode(build_request("Hi", tools=TOOLS)).http.body)
    for name, value in found.items():
        assert body[name] == value
    plain = json.loads(model.codec.encode(build_request("Hi")).http.body)
    assert not set(found) & set(plain)
    if wire == "anthropic":
        forced = json.loads(
            model.codec.encode(build_request("Hi", tools=TOOLS, tool_choice="required")).http.body
        )
        assert forced["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
        none = json.loads(
            model.codec.encode(build_request("Hi", tools=TOOLS, tool_choice="none")).http.body
        )
        assert none["tool_choice"] == {"type": "none"}


async def test_max_tokens_above_the_limit_is_reduced_or_rejected() -> None:
    async with serve(replying(200, said())) as server:
        known = {"max_output_tokens": 50}
        async with connect("m", base_url=server.base_url, capabilities=known) as model:
            reply = await model.complete("Hi", max_tokens=500)
            assert [(warning.code, warning.path) for warning in reply.warnings] == [
                ("max_tokens_clamped", "config.max_tokens")
            ]
            assert not (await model.complete("Hi", max_tokens=50)).warnings
        async with connect(
            "m", base_url=server.base_url, capabilities=known, on_loss="reject"
        ) as model:
            with pytest.raises(UnsupportedFeatureError, match="500 is more than the model's 50"):
                await model.complete("Hi", max_tokens=500)
    assert [seen.json["max_tokens"] for seen in server.requests] == [50, 50]


async def test_tool_calls_that_a_server_cannot_stream_are_buffered() -> None:
    async def answer(connection: Connection) -> None:
        connection.reply(200, said("f") if "tools" in connection.seen.json else said())

    async with serve(answer) as server:
        known = {"supports_streaming_tool_calls": False}
        async with connect("m", base_url=server.base_url, capabilities=known) as model:
            async with model.stream("Hi", tools=TOOLS) as stream:
                kinds = [event.type async for event in stream]
            assert kinds[0] == "message.start"
            assert "tool.use_end" in kinds
            async with model.stream("Hi") as stream:
                async for _ in stream:
                    pass
    assert [seen.json.get("stream", False) for seen in server.requests] == [False, True]


@pytest.mark.parametrize("marked", [True, False])
async def test_cache_marks_for_a_model_without_prompt_caching_are_reported(marked: bool) -> None:
    reply = {
        "type": "message", "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn",
        "usage": {},
    }  # fmt: skip

    async with serve(replying(200, json.dumps(reply).encode())) as server:
        for known in ({"supports_prompt_caching": False}, {}):
            model = connect("m", base_url=server.url, wire="anthropic", capabilities=known)
            async with model:
                if marked:
                    response = await model.complete(
                        [User((Text("Hi", cache=True),))], max_tokens=5
                    )
                else:
                    response = await model.complete("Hi", max_tokens=5, cache="auto")
            codes = [warning.code for warning in response.warnings]
            assert codes == (["cache_dropped"] if known else [])
    without, with_marks = [seen.body for seen in server.requests]
    assert b"cache_control" not in without
    assert b"cache_control" in with_marks


@pytest.fixture
def observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache" / "observed.json"
    monkeypatch.setenv("DRAGOMAN_OBSERVED", str(path))
    return path


async def test_observed_capabilities_are_stored_and_user_settings_override_them(
    tmp_path: Path, observed: Path
) -> None:
    answers = [said(), said("f"), said("f", "g", cached=5), said("f", "g")]

    async def answer(connection: Connection) -> None:
        connection.reply(200, answers[len(server.requests) - 1])

    file = tmp_path / "models.yaml"
    async with serve(answer) as server:
        declared = "models: {a:m: {capabilities: {supports_tools: false}}}\n"
        adapter = f"adapters: {{a: {{type: openai-compatible, base_url: {server.base_url}}}}}\n"
        file.write_text(adapter)
        async with Registry.load(file) as registry:
            model = registry.open("a:m")
            await model.complete("Hi")
            assert not observed.exists()
            await model.complete("Hi", tools=TOOLS)
            await model.complete("Hi", tools=TOOLS)
            written = observed.stat().st_mtime_ns
            await model.complete("Hi", tools=TOOLS)
            # Nothing new was observed, so the file is not written.
            assert observed.stat().st_mtime_ns == written
        known = Registry.load(file).find("a:m").capabilities
        for fact in ("supports_tools", "supports_parallel_tool_calls", "supports_prompt_caching"):
            assert known.known(fact) is True
            assert getattr(known, fact).source == "observed"
        assert known.known("supports_thinking") is None
        file.write_text(adapter + declared)
        assert Registry.load(file).find("a:m").capabilities.supports_tools.source == "declared"
        file.write_text(adapter + "observed: false\n")
        assert Registry.load(file).find("a:m").capabilities.known("supports_tools") is None


async def test_rejection_of_structured_output_is_stored(tmp_path: Path, observed: Path) -> None:
    async def answer(connection: Connection) -> None:
        if "response_format" in connection.seen.json:
            connection.reply(400, b'{"error": {"message": "response_format is not supported"}}')
        else:
            text = {"role": "assistant", "content": "{}"}
            body = {"choices": [{"index": 0, "message": text, "finish_reason": "stop"}]}
            connection.reply(200, json.dumps(body).encode())

    file = tmp_path / "models.yaml"
    async with serve(answer) as server:
        file.write_text(
            f"adapters: {{a: {{type: openai-compatible, base_url: {server.base_url}}}}}\n"
        )
        for _ in range(2):
            async with Registry.load(file) as registry:
                await registry.open("a:m").complete(
                    "Hi", response_schema={"type": "object", "properties": {}}
                )
        fact = Registry.load(file).find("a:m").capabilities.supports_structured_output
    assert fact.value is False
    assert fact.source == "observed"
    # The second process has read the file, so it sends one request fewer.
    assert len(server.requests) == 3


def test_damaged_capability_file_and_unwritable_folder_are_tolerated(
    observed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    observed.parent.mkdir()
    observed.write_text("{")
    facts = ObservedFacts(observed)
    assert facts.find("http://a", "m").known("supports_tools") is None
    observed.write_text(
        '{"http://a m": {"supports_tools": {"value": true, "source": "declared"}, "nonsense": {}}}'
    )
    assert ObservedFacts(observed).find("http://a", "m").known("supports_tools") is None
    ObservedFacts(observed / "below" / "x.json").add("http://a", "m", {"supports_tools": True})
    assert "cannot be read" in caplog.text
    assert "could not be written" in caplog.text


def test_storing_observed_capabilities_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_OBSERVED", "off")
    assert observed_path() is None
    assert (
        ObservedFacts(None).watch("http://a", "m", Registry().find("openai:gpt-5").capabilities)
        is None
    )
    monkeypatch.delenv("DRAGOMAN_OBSERVED")
    found = observed_path()
    assert found.name == "observed.json"
