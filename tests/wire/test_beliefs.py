"""The rows in ``catalog/families`` are valid, and the most specific one decides."""

import datetime
import json
import re
from typing import Any

import msgspec
import pytest

import dragoman as d
from dragoman.registry.vendors import load_vendor, vendor_names
from dragoman.wire import CODECS
from dragoman.wire import beliefs as module
from dragoman.wire.beliefs import (
    Belief,
    Family,
    KnownFields,
    _read_families,
    find_beliefs,
    read_families,
    vendor_of,
)
from dragoman.wire.reasoning import ReasoningStyle, translate_reasoning

ROWS = [
    pytest.param(row, id=f"{name}-{at}")
    for name, family in read_families().items()
    for at, row in enumerate(family.rows)
]


@pytest.mark.parametrize("row", ROWS)
def test_belief_is_valid_on_each_of_its_wires(row: Belief) -> None:
    re.compile(row.models)
    datetime.date.fromisoformat(row.as_of)
    assert row.source
    assert set(row.wires) <= CODECS.keys()
    known: set[str] = set()
    for wire in row.wires:
        kind: Any = CODECS[wire].quirks_type  # type: ignore[attr-defined]
        types = {field.name: field.type for field in msgspec.structs.fields(kind)}
        for name in row.quirks.keys() & types.keys():
            msgspec.convert(row.quirks[name], types[name])
        known |= types.keys()
    assert row.quirks.keys() <= known


@pytest.mark.parametrize(
    "amount", ["off", "minimal", "low", "medium", "high", "xhigh", "max", 2048]
)
def test_every_model_family_accepts_every_amount_of_reasoning(amount: Any) -> None:
    for family in read_families().values():
        for row in family.rows:
            if row.quirks.get("reasoning") is not None:
                style = msgspec.convert(row.quirks["reasoning"], ReasoningStyle)
                fields, _ = translate_reasoning(amount, style, 60000)
                assert isinstance(fields, dict), row


def test_hosts_of_the_catalogue_belong_to_their_vendors() -> None:
    for name in vendor_names():
        vendor = load_vendor(name)
        if vendor.base_url and not vendor.local and "bedrock" not in vendor.base_url:
            assert vendor_of(vendor.base_url) in (name, None), name


@pytest.mark.parametrize(
    ("base_url", "vendor"),
    [
        ("https://api.deepseek.com/v1", "deepseek"),
        ("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "alibaba"),
        ("https://aliyuncs.com.example.com/v1", None),
        ("https://proxy.example.com/v1", None),
        ("http://", None),
    ],
)
def test_vendor_is_found_by_the_host_of_an_address(base_url: str, vendor: str | None) -> None:
    assert vendor_of(base_url) == vendor


def row(quirks: dict[str, Any], **fields: Any) -> Belief:
    return Belief(wires=("openai",), quirks=quirks, source="a test", as_of="2026-11-18", **fields)


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the families by two small ones."""
    rows = (
        row({"reasons_unasked": True, "stream_usage": False}, models="clever-9"),
        row({"cache_key": True}, models="clever"),
        row({"any_model": True}, vendors=("strict",), models="clever"),
    )
    hosts = (
        row({"stream_usage": True}, vendors=("own",)),
        row({"stream_usage": True, "any_model": True}),
    )
    fields = KnownFields(names=("model",), source="a test", rejects="a test", as_of="2026-11-19")
    made = {
        "clever": Family(match="clever", rows=rows),
        "hosts": Family(match="", rows=hosts, fields={"strict": fields}),
    }
    monkeypatch.setattr(module, "read_families", lambda: made)
    caches = (module.find_beliefs, module.strict_vendors)
    for each in caches:
        each.cache_clear()
    yield  # type: ignore[misc]
    for each in caches:
        each.cache_clear()


@pytest.mark.usefixtures("families")
@pytest.mark.parametrize(
    ("vendor", "model", "quirks"),
    [
        (None, "Clever-9", {
            "reasons_unasked": True, "stream_usage": False, "cache_key": True, "any_model": True,
        }),
        (None, "clever-10", {"cache_key": True, "stream_usage": True, "any_model": True}),
        (None, "other", {"stream_usage": True, "any_model": True}),
        ("own", "clever-9", {
            "stream_usage": True, "reasons_unasked": True, "cache_key": True, "any_model": True,
        }),
        ("strict", "clever-9", {"any_model": True, "reasons_unasked": True}),
    ],
)  # fmt: skip
def test_most_specific_belief_decides(
    vendor: str | None, model: str, quirks: dict[str, Any]
) -> None:
    assert dict(find_beliefs("openai", vendor, model)) == quirks
    assert find_beliefs("anthropic", vendor, model) == {}


@pytest.mark.usefixtures("families")
def test_stated_quirks_and_lessons_precede_beliefs() -> None:
    connect = CODECS["openai"].connect
    believed: Any = connect("clever-9", "http://a.test", None, d.Capabilities())
    assert believed.quirks.stream_usage is False
    assert believed.quirks.any_model is True
    stated: Any = connect(
        "clever-9", "http://a.test", {"stream_usage": True, "any_model": False}, d.Capabilities()
    )
    assert stated.quirks.stream_usage is True
    assert stated.quirks.any_model is False
    taught = believed.taught("a lesson", any_model=False)
    assert taught.quirks.stream_usage is False
    assert taught.quirks.any_model is False
    other = d.Request([d.User("Hi")], model="other")
    assert believed.quirks_for(other).stream_usage is True
    assert taught.quirks_for(other).any_model is False


SETTINGS = {"temperature": 0.5, "top_p": 1, "stop_sequences": ()}


@pytest.mark.parametrize("wire", sorted(CODECS))
@pytest.mark.parametrize("when", ["refused_settings", "refused_while_reasoning"])
def test_refused_settings_are_not_sent_and_reported_unless_default(wire: str, when: str) -> None:
    quirks = {
        when: {"temperature": 1, "top_p": 1, "stop_sequences": None}, "reasons_unasked": True
    }  # fmt: skip
    codec = CODECS[wire].connect("m", "http://a.test", quirks, d.Capabilities())
    plain = d.RuntimeConfig(max_tokens=9)
    config = msgspec.structs.replace(plain, temperature=0.5, top_p=1.0)
    encoded = codec.encode(d.Request([d.User("Hi")], config=config))
    assert encoded.http.body == codec.encode(d.Request([d.User("Hi")], config=plain)).http.body
    assert [(each.code, each.path) for each in encoded.warnings] == [
        ("setting_refused", "config.temperature")
    ]


@pytest.mark.parametrize("wire", sorted(CODECS))
def test_settings_refused_while_reasoning_are_sent_if_the_model_does_not_reason(wire: str) -> None:
    quirks = {"refused_while_reasoning": {"temperature": 1}}
    codec = CODECS[wire].connect("m", "http://a.test", quirks, d.Capabilities())
    config = d.RuntimeConfig(max_tokens=9, temperature=0.5)
    encoded = codec.encode(d.Request([d.User("Hi")], config=config))
    assert b"0.5" in encoded.http.body
    assert encoded.warnings == ()


# What clients send with every request: Copilot CLI (github/copilot-cli#4950) and VS Code
# (microsoft/vscode#323110).
COPILOT = {"temperature": 0, "top_p": 0.95, "frequency_penalty": 0, "presence_penalty": 0}
EDITOR = {"temperature": 0.1, "stop_sequences": ["END"]}
SAMPLING: list[tuple[str, str | None, str, dict[str, Any], set[str], set[str]]] = [
    # wire, vendor, model, settings, fields that are sent, settings that are reported as lost
    ("openai", "openai", "gpt-6-astra", COPILOT, set(), {"temperature", "top_p"}),
    ("openai", "openai", "gpt-5.6-sol", EDITOR, set(), {"temperature", "stop_sequences"}),
    ("openai", None, "o4-mini", EDITOR, set(), {"temperature", "stop_sequences"}),
    ("openai", "openai", "gpt-5", {"temperature": 1, "top_p": 1.0}, set(), set()),
    ("openai", "openai", "gpt-5.4", EDITOR, {"temperature", "stop"}, set()),
    ("openai", "openai", "gpt-5.4", {**EDITOR, "reasoning": "low"}, {"reasoning_effort"},
     {"temperature", "stop_sequences"}),
    ("openai", "openai", "gpt-5.6-sol", {**EDITOR, "reasoning": "off"},
     {"temperature", "stop", "reasoning_effort"}, set()),
    ("openai", "openai", "gpt-4.1", EDITOR, {"temperature", "stop"}, set()),
    ("openai", "openai", "gpt-5.3-chat-latest", EDITOR, {"temperature", "stop"}, set()),
    ("openai", "openai", "gpt-6-sol", {"extras": {"logprobs": True, "top_logprobs": 2}}, set(),
     {"logprobs", "top_logprobs"}),
    ("openai", "openai", "gpt-6-sol", {"extras": {"logprobs": False}}, set(), set()),
    ("openai", "xai", "grok-4.6", COPILOT, {"temperature", "top_p"}, set()),
    ("openai", None, "grok-4.6", EDITOR, {"temperature"}, {"stop_sequences"}),
    ("openai", "xai", "grok-4.3", {**EDITOR, "reasoning": "off"},
     {"temperature", "stop", "reasoning_effort"}, set()),
    ("openai", "xai", "grok-4.20-0309-non-reasoning", EDITOR, {"temperature", "stop"}, set()),
    ("responses", "xai", "grok-4.6", COPILOT, {"temperature", "top_p"}, set()),
    ("responses", "openai", "gpt-6.1-sol", COPILOT, set(), {"temperature", "top_p"}),
    ("responses", "azure", "gpt-6-sol", {"temperature": 0.1, "reasoning": "off"},
     {"temperature", "reasoning"}, set()),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "vendor", "model", "settings", "sent", "lost"), SAMPLING)
def test_sampling_settings_are_not_sent_to_a_model_that_refuses_them(
    wire: str,
    vendor: str | None,
    model: str,
    settings: dict[str, Any],
    sent: set[str],
    lost: set[str],
) -> None:
    codec = CODECS[wire].connect(model, "http://a.test", None, d.Capabilities(), vendor=vendor)
    bodies = []
    for config in (d.RuntimeConfig(), d.RuntimeConfig(**settings)):
        encoded = codec.encode(d.Request([d.User("Hi")], config=config))
        bodies.append(msgspec.json.decode(encoded.http.body))
    assert bodies[1].keys() - bodies[0].keys() == sent
    refused = {each.path for each in encoded.warnings if each.code == "setting_refused"}
    places = {name if name in settings else f"extras[{name!r}]" for name in lost}
    assert refused == {f"config.{place}" for place in places}


TOOL = d.Tool("look")


@pytest.mark.parametrize(
    ("model", "reasoning", "sent"),
    [
        ("gpt-5.4", None, None),
        ("gpt-5.4", "low", "none"),
        ("gpt-5.5", None, "none"),
        ("gpt-5.6-sol", "off", "none"),
        ("gpt-6-sol", "high", "none"),
        ("gpt-5.2", "high", "high"),
        ("gpt-5", None, None),
    ],
)
@pytest.mark.parametrize("vendor", ["openai", "azure"])
def test_tools_turn_reasoning_off_if_the_server_refuses_both(
    vendor: str, model: str, reasoning: Any, sent: str | None
) -> None:
    codec = CODECS["openai"].connect(model, "http://a.test", None, d.Capabilities(), vendor=vendor)
    config = d.RuntimeConfig(reasoning=reasoning)
    encoded = codec.encode(d.Request([d.User("Hi")], tools=[TOOL], config=config))
    assert msgspec.json.decode(encoded.http.body).get("reasoning_effort") == sent
    is_lost = sent == "none" and reasoning != "off"
    assert [each.code for each in encoded.warnings] == ["reasoning_off"] * is_lost


@pytest.mark.parametrize("model", ["gpt-6-astra", "gpt-6.1-sol", "gpt-7"])
def test_model_that_always_reasons_needs_the_other_wire_for_tools(model: str) -> None:
    codec = CODECS["openai"].connect(model, "https://api.openai.com/v1", None, d.Capabilities())
    with pytest.raises(d.UnsupportedFeatureError, match='wire="responses"'):
        codec.encode(d.Request([d.User("Hi")], tools=[TOOL]))
    codec.encode(d.Request([d.User("Hi")]))


def test_computer_tool_has_the_form_of_the_model() -> None:
    forms = []
    for model in ("gpt-5.3", "computer-use-preview", "gpt-5.4", "gpt-6.1-sol"):
        codec = CODECS["responses"].connect(model, "http://a.test", None, d.Capabilities())
        request = d.Request([d.User("Hi")], server_tools=(d.ServerTool("computer_use"),))
        forms.append(msgspec.json.decode(codec.encode(request).http.body)["tools"])
    old = [{"type": "computer_use_preview"}]
    assert forms == [old, old, [{"type": "computer"}], [{"type": "computer"}]]


@pytest.mark.parametrize(
    "item", [None, {"type": "additional_tools", "role": "developer", "tools": [{"type": "x"}]}]
)
def test_tool_choice_stays_if_the_conversation_has_the_tools(item: Any) -> None:
    quirks = {"additional_tools": True}
    codec = CODECS["responses"].connect("m", "http://a.test", quirks, d.Capabilities())
    items = [{"type": "message", "role": "user", "content": "Hi"}, *([item] if item else [])]
    native = {"responses": {"input": items, "tool_choice": "auto"}}
    encoded = codec.encode(d.Request([d.User("Hi")], native=native))
    assert (b"tool_choice" in encoded.http.body) is (item is not None)
    assert [note.code for note in encoded.notes] == ["tool_choice_omitted"] * (item is None)


def test_families_are_named_after_their_files() -> None:
    again = _read_families.__wrapped__()
    assert again == read_families()
    assert {"claude", "gpt"} <= again.keys()


ENABLED = {"thinking": {"type": "enabled"}}
DISABLED = {"thinking": {"type": "disabled"}}
# The vendor, the model, the amount of reasoning, and the fields that are sent; the sources are in
# the rows of catalog/families/hosts.json.
AMOUNTS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("volcengine", "doubao-seed-2-1-pro-260628", "off", DISABLED),
    ("volcengine", "doubao-seed-2-1-pro-260628", "low", {**ENABLED, "reasoning_effort": "low"}),
    ("siliconflow", "Qwen/Qwen3-32B", "off", {"enable_thinking": False}),
    ("nvidia", "qwen/qwen3.5-397b-a17b", "off", {}),
    ("nvidia", "deepseek-ai/deepseek-v4-pro", "off", DISABLED),
    ("baseten", "zai-org/GLM-5.3", "off", {"reasoning_effort": "low"}),
    ("baseten", "zai-org/GLM-5.2", "high",
     {"reasoning_effort": "high", "chat_template_args": {"enable_thinking": True}}),
    ("baseten", "moonshotai/Kimi-K3", "off", {"reasoning_effort": "none"}),
    ("huggingface", "Qwen/Qwen3-32B", "minimal", {"reasoning_effort": "low"}),
    ("deepinfra", "Qwen/Qwen3.6-27B", "off", {"reasoning_effort": "none"}),
    ("novita", "zai-org/glm-4.5", "off", {"enable_thinking": False}),
    ("upstage", "solar-pro3", "off", {"reasoning_effort": "low"}),
    ("inception", "mercury-2.5", "off", {"reasoning_effort": "low"}),
    ("ollama-cloud", "gpt-oss:120b", "off", {"reasoning_effort": "low"}),
    ("ollama-cloud", "glm-5.3", "max", {"reasoning_effort": "max"}),
    ("vercel", "anthropic/claude-sonnet-4.6", "off", {"reasoning": {"effort": "none"}}),
    ("cerebras", "qwen-3.8-27b", "off", {"reasoning_effort": "none"}),
    ("lmstudio", "glm-4.7-flash", "off", {"reasoning_effort": "none"}),
    ("mistral", "zai-glm-5-3", "off", {"reasoning_effort": "low"}),
    ("mistral", "ministral-14b-2512", "off", {}),
    ("alibaba", "qwen3.6-plus", "off", {"enable_thinking": False}),
    ("zai", "glm-5.3", "off", {"reasoning_effort": "low"}),
]  # fmt: skip


# langchain-ai/langchain-google#1897 (2026-07), livekit/agents#7178 (2026-09); seen 2026-11-19.
@pytest.mark.parametrize(
    ("model", "is_fixed"),
    [
        ("gemini-3.5-flash", False),
        ("gemini-3.1-pro-preview", False),
        ("gemini-3.5-flash-lite", True),
        ("gemini-3.6-flash", True),
        ("gemini-flash-latest", True),
        ("gemini-4-argon", True),
    ],
)
def test_newer_gemini_models_get_neither_sampling_settings_nor_an_open_message(
    model: str, is_fixed: bool
) -> None:
    config = d.RuntimeConfig(temperature=0.5, top_p=0.9, extras={"topK": 40})
    request = d.Request([d.User("Hi"), d.Assistant("{")], config=config, continues=True)
    sent = d.connect(f"google:{model}", api_key="k").preview(request)
    body = json.loads(sent.http.body)
    codes = [each.code for each in sent.warnings]
    if is_fixed:
        assert "generationConfig" not in body
        assert codes == ["prefill_rewritten", *["setting_refused"] * 3]
    else:
        assert body["generationConfig"] == {"temperature": 0.5, "topP": 0.9, "topK": 40}
        assert codes == []
    assert body["contents"][-1]["role"] == ("user" if is_fixed else "model")


@pytest.mark.parametrize(("vendor", "model", "amount", "sent"), AMOUNTS)
def test_amount_of_reasoning_is_sent_as_the_host_of_the_model_expects(
    vendor: str, model: str, amount: Any, sent: dict[str, Any]
) -> None:
    provider = d.connect(f"{vendor}:{model}", api_key="k")
    body = json.loads(provider.preview(request_for(amount)).http.body)
    assert {name: body[name] for name in body.keys() - {"model", "messages"}} == sent


def request_for(amount: Any) -> d.Request:
    return d.Request([d.User("Hi")], config=d.RuntimeConfig(reasoning=amount))


@pytest.mark.parametrize("place", ["extras", "native"])
def test_reasoning_that_the_caller_turned_off_by_field_is_known(place: str) -> None:
    codec = CODECS["openai"].connect(
        "deepseek-v4-pro", "http://a.test", None, d.Capabilities(), vendor="deepseek"
    )
    off = {"thinking": {"type": "disabled"}}
    config = d.RuntimeConfig(extras=off if place == "extras" else {})
    native: dict[str, Any] = {"openai": off} if place == "native" else {}
    request = d.Request(
        [d.User("Hi")], tools=[TOOL], config=config, tool_choice="required", native=native
    )
    encoded = codec.encode(request)
    assert msgspec.json.decode(encoded.http.body)["thinking"] == {"type": "disabled"}
    assert encoded.warnings == ()
