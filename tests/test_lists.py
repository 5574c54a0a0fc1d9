"""Public lists of models: their formats, rejected content, and updates by the user."""

import json
import runpy
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman import Capabilities, Registry, Usage, connect
from dragoman.cli import main
from dragoman.prices import Cost
from dragoman.registry import ListError, load_vendor, read_list
from dragoman.registry.lists import ListedModel
from tests.rows import read_table

from .server import Connection
from .test_sync import Background

LISTS = Path(__file__).parent / "lists"
ROOT = Path(__file__).parents[1]


def test_model_list_as_a_mapping_of_models_is_read() -> None:
    kind, found = read_list((LISTS / "by_key.json").read_bytes())
    assert kind == "by_key"
    assert set(found) == {"openai", "groq", "google", "bedrock"}
    assert set(found["openai"]) == {"gpt-5", "gpt-9-sample"}
    known = found["openai"]["gpt-5"]
    assert known.facts["context"] == 272_000
    assert known.facts["parallel_tools"] is True
    assert known.prices == {"input": "1.25", "output": "10", "cache_read": "0.125"}
    assert found["groq"]["llama-9-sample"].facts == {"context": 8192}
    # A model that answers with speech is omitted.
    assert list(found["google"]) == ["gemini-9-pro"]
    long = found["google"]["gemini-9-pro"]
    assert long.tiers == {200_000: {"input": "2.5", "output": "15"}}
    assert long.facts["streaming"] is True
    assert found["bedrock"]["us.sample.model-v1:0"].facts["tools"] is False


def test_model_list_as_a_mapping_of_vendors_or_as_an_array_is_read() -> None:
    kind, found = read_list((LISTS / "by_vendor.json").read_bytes())
    assert kind == "by_vendor"
    assert list(found) == ["anthropic"]
    assert found["anthropic"]["claude-sonnet-4-6"].prices["cache_write"] == "3.75"
    newer = found["anthropic"]["claude-sample-9"]
    assert newer.tiers == {200_000: {"input": "8", "output": "30"}}
    assert [newer.facts[fact] for fact in ("tools", "streaming_tools", "parallel_tools")] == [
        True, True, False,
    ]  # fmt: skip
    older = found["anthropic"]["claude-sample-1"]
    expected = (100_000, False, {}, {})
    assert (older.facts["context"], "output" in older.facts, older.prices, older.tiers) == expected
    kind, found = read_list((LISTS / "as_list.json").read_bytes())
    expected = ("as_list", ["sample/new-model", "sample/free:free", "sample/auto", "sample/bare"])
    assert (kind, list(found["openrouter"])) == expected
    # The price of a router depends on the model that it chooses, so it is unknown. A model without
    # a list of features has unknown features, not none.
    assert found["openrouter"]["sample/auto"].prices == {}
    assert found["openrouter"]["sample/bare"].facts == {"context": 8192}
    model = found["openrouter"]["sample/new-model"]
    expected = (True, False, "0.8")
    assert (model.facts["tools"], model.facts["thinking"], model.prices["output"]) == expected


def vary(**changes: Any) -> bytes:
    content = json.loads((LISTS / "by_key.json").read_text())
    content["gpt-5"].update(changes)
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", "is not JSON"),
        (b"[]", "no known format"),
        (b'{"a": 1}', "no known format"),
        (b'{"data": []}', "no chat model"),
        (vary(input_cost_per_token=-1), "input of -1000000 dollars"),
        (vary(output_cost_per_token=5), "output of 5000000 dollars"),
        (vary(max_input_tokens=10**12), "context of 1000000000000 tokens"),
        (b'{"a\\nb": {"mode": "chat", "x_provider": "openai"}}', "not the name of a model"),
    ],
)
def test_invalid_model_lists_are_rejected(data: bytes, problem: str) -> None:
    with pytest.raises(ListError, match=problem):
        read_list(data)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "data" / "catalog.json"
    monkeypatch.setenv("DRAGOMAN_CATALOG", str(path))
    return path


def update(*words: str) -> Any:
    return CliRunner().invoke(main, ["models", "update", *words])


def test_user_can_update_the_catalogue_from_a_list(kept: Path) -> None:
    before = Registry().find("openai:gpt-9-sample")
    assert before.capabilities.known("max_context_tokens") is None
    dry = update(str(LISTS / "by_key.json"), "--dry-run")
    assert dry.exit_code == 0
    assert "+ openai:gpt-9-sample context 500000" in dry.stdout
    assert "~ openai:gpt-5 context 400000 -> 272000" in dry.stdout
    assert not kept.exists()
    assert update(str(LISTS / "by_key.json")).exit_code == 0
    assert update(str(LISTS / "as_list.json")).exit_code == 0
    registry = Registry()
    entry = registry.find("openai:gpt-9-sample")
    fact = entry.capabilities.max_context_tokens
    assert fact.value == 500_000
    assert fact.source == "catalogue"
    assert bool(fact.by and fact.at) is True
    assert entry.priced_as.find_problem() is None
    assert "openai:gpt-9-sample" in registry.names()
    assert registry.find("openrouter:sample/free:free").priced_as.find_problem() is None
    priced = registry.find("google:gemini-9-pro").priced_as
    bills = [priced.cost(Usage(tokens, 0)) for tokens in (100_000, 300_000)]
    expected = [Decimal("0.125"), Decimal("0.75")]
    assert [bill.total for bill in bills if isinstance(bill, Cost)] == expected
    known = registry.find("openai:gpt-5").capabilities
    assert known.known("max_context_tokens") == 272_000
    assert (
        known.supports_prompt_caching.by
        == "https://platform.openai.com/docs/guides/prompt-caching"
    )
    kept.write_text("{")
    assert Registry().find("openai:gpt-5").capabilities.known("max_context_tokens") == 400_000


def test_suspicious_catalogue_changes_require_the_force_option(kept: Path, tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    file.write_bytes(vary(input_cost_per_token=1.25e-4))
    result = update(str(file))
    assert not kept.exists()
    assert result.exit_code == 2
    assert "! openai:gpt-5: input 1.25 -> 125 dollars" in result.stderr
    assert json.loads(update(str(file), "--json", "--dry-run", "--force").stdout)["odd"]
    assert update(str(file), "--force").exit_code == 0
    assert kept.exists()
    file.write_text("nonsense")
    assert "is not JSON" in update(str(file)).stderr
    assert update(str(tmp_path / "none.json")).exit_code == 2


def test_model_list_is_read_from_a_url(kept: Path) -> None:
    async def handle(connection: Connection) -> None:
        found = connection.seen.path == "/list.json"
        connection.reply(200 if found else 404, (LISTS / "as_list.json").read_bytes())

    with Background(handle) as server:
        root = server.base_url.removesuffix("/v1")
        assert update(f"{root}/list.json").exit_code == 0
        assert "HTTP 404" in update(f"{root}/other").stderr
    assert kept.exists()
    assert "only https" in update("http://example.org/list.json").stderr


def test_catalogue_scripts_print_a_diff_and_reject_invalid_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str, name: str = "build_catalog.py") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [name, *words])
        code: object = 0
        try:
            runpy.run_path(str(ROOT / "scripts" / name), run_name="__main__")
        except SystemExit as end:
            code = end.code
        return int(str(code or 0)), *capsys.readouterr()

    code, out, err = run(
        "--dry-run", "2026-11-15", str(LISTS / "by_key.json"), str(LISTS / "by_vendor.json")
    )
    assert code == 0, err
    assert "+ openai:gpt-9-sample" in out
    assert "+ anthropic:claude-sample-9" in out
    (tmp_path / "odd.json").write_bytes(vary(input_cost_per_token=1.25e-4))
    code, _, err = run("--dry-run", "2026-11-15", str(tmp_path / "odd.json"))
    assert code == 2
    assert "! openai:gpt-5" in err
    code, _, err = run("--list", str(LISTS / "by_key.json"), name="build_prices.py")
    assert code == 0, err
    code, _, err = run("--list", str(tmp_path / "odd.json"), name="build_prices.py")
    assert code == 2
    assert "! openai:gpt-5" in err


def test_new_models_are_added_to_the_catalogue_with_their_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = runpy.run_path(str(ROOT / "scripts" / "build_catalog.py"))
    rows = 'name: OpenAI\nas_of: 2026-05-21\nmodels:\n  "gpt-5": {context: 5}\n  # a note\n'
    (tmp_path / "openai.yaml").write_text(rows)
    monkeypatch.setitem(build["add_new"].__globals__, "CATALOG", tmp_path)
    records = {
        "gpt-5": {"context": 9},  # a known model, whose entry must not change
        "gpt-9": {"context": 9, "output": 9, "tools": True},
        "gpt-8": {"context": 9, "output": 3},
        "gpt-gone": {"context": 9},
        "gpt-old": {"context": 9},
        "gpt-empty": {},
    }
    listed = {"openai": {name: ListedModel(facts, {}) for name, facts in records.items()}}
    gone = tmp_path / "list.json"
    old = {"models": {"gpt-old": {"status": "deprecated"}, "gpt-8": {"status": "beta"}}}
    dated = {
        "openai/gpt-gone": {"deprecation_date": "2026-01-01"}, "gpt-9": {}, "spec": 5,
        "openai": old,
    }  # fmt: skip
    gone.write_text(json.dumps(dated))
    build["add_new"](
        listed, "a list", "2026-11-16", build["withdrawn_models"]([gone], "2026-11-16")
    )
    written = (tmp_path / "openai.yaml").read_text()
    assert 'as_of: 2026-05-21\nlisted: {source: "a list", as_of: 2026-11-16}\nmodels:\n' in written
    assert [line.split('"')[1] for line in written.splitlines() if line.startswith('  "')] == [
        "gpt-5", "gpt-8", "gpt-9",
    ]  # fmt: skip
    assert '"gpt-9": {context: 9, tools: true' in written
    assert written.endswith("  # a note\n")


def test_catalogue_models_name_the_list_they_come_from() -> None:
    models = load_vendor("openai").models
    assert models["gpt-5"].max_context_tokens.by == "catalog/openai.yaml"
    found = models["gpt-5-2025-08-07"].max_context_tokens
    assert (found.by or "").startswith("LiteLLM")
    assert found.at is not None


# The other capabilities concern embedding and reranking.
CONTRACT = Capabilities.__struct_fields__[:13]


@pytest.mark.parametrize(
    "name",
    ["openai:gpt-5", "openai:gpt-5-mini", "openai:gpt-5-pro", "openai:gpt-5.5-pro",
     "anthropic:claude-sonnet-4-6",
     "google:gemini-2.5-pro", "google:gemini-2.5-flash", "google:gemini-2.5-flash-lite"],
)  # fmt: skip
def test_every_capability_of_a_well_known_model_has_a_source_and_a_date(name: str) -> None:
    known = Registry().find(name).capabilities
    facts = {fact: getattr(known, fact) for fact in CONTRACT}
    unknown = [
        fact
        for fact, found in facts.items()
        if found.value is None or found.source != "catalogue" or not found.by or not found.at
    ]
    assert unknown == []


@pytest.mark.parametrize(
    ("name", "fact", "value"),
    read_table("documented_capabilities"),
)
def test_capabilities_match_the_vendors_documentation(name: str, fact: str, value: Any) -> None:
    known = Registry().find(name).capabilities.known(fact)
    assert known == (tuple(value) if isinstance(value, list) else value)


def test_model_that_answers_with_speech_is_not_listed_as_a_chat_model() -> None:
    vendor = load_vendor("google")
    assert {"gemini-2.5-pro-preview-tts", "lyria-3.5"} <= vendor.not_chat


def test_model_that_supports_one_wire_is_opened_over_that_wire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    file = tmp_path / "models.yaml"
    file.write_text(
        "adapters:\n"
        "  chat: {type: openai, wire: openai}\n"
        "  proxy: {type: openai, base_url: http://127.0.0.1:9/v1, api_key: k}\n"
        "  work: {type: azure, base_url: https://r.openai.azure.com/openai/v1, api_key: k}\n"
    )
    monkeypatch.setenv("XAI_API_KEY", "k")
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(file))

    def wire_of(name: str, **settings: Any) -> str:
        model: Any = connect(name, retries=0, **settings)
        return str(model.codec.wire)

    assert [
        wire_of(f"openai:{name}") for name in ("gpt-5-pro", "gpt-5.2-pro-2025-12-11", "o3-pro")
    ] == ["responses"] * 3
    assert [wire_of(f"openai:{name}") for name in ("gpt-5", "gpt-5-mini", "o3")] == ["openai"] * 3
    assert wire_of("work:gpt-5-codex") == "responses"
    # Chat Completions refuses tools for these models while they reason.
    newer = [
        "gpt-5.4",
        "gpt-5.5-2026-04-23",
        "gpt-5.6-sol",
        "gpt-6-astra",
        "gpt-6.1-sol",
        "gpt-10",
    ]
    older = ["gpt-5.3", "gpt-5.4-chat-latest", "gpt-6-search-api", "gpt-4.1", "gpt-35-turbo"]
    for adapter in ("openai", "work"):
        found = [wire_of(f"{adapter}:{name}") for name in [*newer, *older]]
        assert found == ["responses"] * len(newer) + ["openai"] * len(older)
    assert wire_of("openai:gpt-6-sol", wire="openai") == "openai"
    groks = ["grok-4.3", "grok-4.20-multi-agent", "grok-4.20-0309-reasoning", "grok-4.6", "grok-5"]
    others = ["grok-4.20-0309-non-reasoning", "grok-3", "grok-code-fast-1"]
    assert [wire_of(f"xai:{name}") for name in groks] == ["responses"] * len(groks)
    assert [wire_of(f"xai:{name}") for name in others] == ["openai"] * len(others)
    assert wire_of("proxy:gpt-6-sol") == "openai"
    # The chat wire is used if the user sets it, and for a server other than the vendor's, because
    # such a server may not support the Responses wire.
    assert (
        wire_of("chat:gpt-5-pro")
        == wire_of("proxy:gpt-5-pro")
        == wire_of("openai:gpt-5-pro", wire="openai")
        == "openai"
    )
    assert (
        "wire: responses"
        in CliRunner().invoke(main, ["config", "explain", "openai:gpt-5-pro"]).stdout
    )
