"""The rows in ``catalog/families`` are valid, and the most specific one decides."""

import datetime
import re
from typing import Any

import msgspec
import pytest

import dragoman as d
from dragoman.reasoning import ReasoningStyle, translate_reasoning
from dragoman.registry.vendors import load_vendor, vendor_names
from dragoman.wire import CODECS
from dragoman.wire import beliefs as module
from dragoman.wire.beliefs import Belief, Family, find_beliefs, read_families, vendor_of

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
    made = {
        "clever": Family(match="clever", rows=rows),
        "hosts": Family(match="", rows=hosts, strict={"strict": "a test"}),
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
    assert (believed.quirks.stream_usage, believed.quirks.any_model) == (False, True)
    stated: Any = connect(
        "clever-9", "http://a.test", {"stream_usage": True, "any_model": False}, d.Capabilities()
    )
    assert (stated.quirks.stream_usage, stated.quirks.any_model) == (True, False)
    taught = believed.taught("a lesson", any_model=False)
    assert (taught.quirks.stream_usage, taught.quirks.any_model) == (False, False)
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
