"""Choose models by needs, price and tier, with a reason for each excluded model."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman import InvalidModelError, Registry
from dragoman.cli import main

FILE = """\
adapters:
  lab: {type: openai-compatible, base_url: 'http://127.0.0.1:9/v1'}
models:
  lab:all:
    tier: fast
    priced_as: openai:gpt-5-mini
    capabilities: {supports_tools: true, supports_images: true, max_context_tokens: 200000, max_output_tokens: 8000}
  lab:dear:
    tier: deep
    priced_as: openai:gpt-5
    capabilities: {supports_tools: true, supports_images: true, max_context_tokens: 400000, max_output_tokens: 8000}
  lab:blind:
    tier: fast
    priced_as: openai:gpt-5-nano
    capabilities: {supports_tools: true, supports_images: false, max_context_tokens: 8000}
  lab:unknown: {priced_as: free}
groups:
  both: {candidates: [lab:all, lab:dear]}
"""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    (tmp_path / "models.yaml").write_text(FILE)
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(tmp_path / "models.yaml"))
    return Registry.load()


OWN = ("lab:all", "lab:dear", "lab:blind", "lab:unknown")


@pytest.mark.parametrize(
    "needs",
    [
        "tools,images,context=200k",
        ["tools", "vision", "max_context_tokens=0.2m"],
        {"supports_tools": True, "images": True, "context": 200000, "documents": False},
    ],
)
def test_models_are_chosen_by_needs_and_others_get_reasons(registry: Registry, needs: Any) -> None:
    choice = registry.choose(needs=needs, among=OWN)
    assert [entry.id for entry in choice.models] == ["lab:all", "lab:dear"]
    assert choice.best.id == "lab:all"  # the cheaper one of two models that meet the needs
    assert choice.excluded == {
        "lab:blind": ("no_vision_support", "exceeds_context_window"),
        "lab:unknown": (
            "unknown_supports_tools",
            "unknown_supports_images",
            "unknown_max_context_tokens",
        ),
    }


def test_models_are_chosen_by_price_and_tier(registry: Registry) -> None:
    expected = ["lab:blind", "lab:all"]
    assert [entry.id for entry in registry.choose(among=OWN, tier="fast").models] == expected
    cheap = registry.choose("tools", among=OWN, max_input_price=1, max_output_price="2")
    assert [entry.id for entry in cheap.models] == ["lab:blind", "lab:all"]
    assert cheap.excluded["lab:dear"] == ("exceeds_max_input_price", "exceeds_max_output_price")


def test_models_without_a_key_are_chosen_only_on_request(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    choice = registry.choose("images,output=4k")
    assert choice.excluded["openai:gpt-5"] == ("not_configured",)
    assert not any(entry.group for entry in choice.models)
    assert "openai:gpt-5" in [
        entry.id for entry in registry.choose("images", configured=False).models
    ]
    with pytest.raises(
        InvalidModelError, match=r"no model fits; 4 are excluded: .*no_vision_support \(1\)"
    ):
        _ = registry.choose("images,context=3m", among=OWN).best


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"needs": "tols"}, "needs: 'tols' is not one of images"),
        ({"needs": "tools=3"}, "needs: 'tools' is not one of"),
        (
            {"needs": "context=much"},
            "needs: context must be a number of tokens such as context=200k, not 'much'",
        ),
        ({"needs": "context"}, "needs: context must be a number"),
        ({"max_input_price": "cheap"}, "max_input_price must be US dollars"),
        ({"max_output_price": -1}, "max_output_price must be US dollars"),
    ],
)
def test_invalid_needs_are_rejected(registry: Registry, settings: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        registry.choose(**settings)


def run(*words: str) -> Any:
    return CliRunner().invoke(main, ["models", *words, "--no-live"])


def test_choose_command_prints_models_and_reasons(registry: Registry) -> None:
    words = [
        "lab:*", "--needs", "tools,images,context=200k", "--max-input-price", "1", "--tier",
        "fast",
    ]  # fmt: skip
    result = run(*words)
    assert result.stdout.splitlines()[1].startswith("lab:all ")
    assert "1 models fit, cheapest first; 3 are excluded: " in result.stdout
    assert "exceeds_max_input_price 1" in result.stdout
    listed = run(*words, "--excluded").stdout
    assert any(
        line.split()[:1] == ["lab:dear"] and "other_tier" in line for line in listed.splitlines()
    )
    data = json.loads(run(*words, "--json").stdout)
    assert [entry["id"] for entry in data["models"]] == ["lab:all"]
    assert data["excluded"]["lab:dear"] == ["other_tier", "exceeds_max_input_price"]
    wrong = run("--needs", "tols")
    assert "--needs: 'tols' is not one of" in wrong.stderr
    assert wrong.exit_code == 2
    wrong = run("--max-input-price", "x")
    assert "--max-input-price: must be US dollars" in wrong.stderr
    assert wrong.exit_code == 2
