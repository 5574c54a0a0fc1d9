"""What is known of a model, and how we know, on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dragoman.capabilities import Capabilities
from dragoman.cli import main
from dragoman.prices import PriceTable

from .terminal import Terminal

CONFIG = """\
adapters:
  mine: {type: openai, api_key_env: MY_KEY, base_url: "http://127.0.0.1:9/v1"}
  box: {type: ollama}
models:
  mine:five: {wire_name: gpt-5, tier: deep, aliases: [five], capabilities: {supports_images: false}}
  box:tiny: {}
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    (tmp_path / "models.yaml").write_text(CONFIG)

    def invoke(*words: str, **variables: str) -> Result:
        environment = {"DRAGOMAN_CONFIG": str(tmp_path / "models.yaml"), "MY_KEY": "k", "GROQ_API_KEY": "", **variables}
        return CliRunner().invoke(main, ["models", *words], env=environment)

    return invoke


def test_every_fact_has_a_source(run: Any) -> None:
    listed = {entry["id"]: entry for entry in json.loads(run("--json").stdout)}
    assert len(listed) > 500
    five = listed["mine:five"]
    facts = five["capabilities"]
    assert list(facts) == list(Capabilities.__struct_fields__)
    assert facts["supports_images"]["source"] == "declared"
    assert facts["supports_images"]["value"] is False
    assert facts["supports_tools"] == {
        "value": True, "source": "catalogue", "at": "2026-05-21", "by": "catalog/openai.yaml",
    }  # fmt: skip
    assert facts["supports_streaming"] == {"value": None, "source": "unknown"}
    assert (five["status"], five["tier"], five["aliases"], five["tokens"]) == ("configured", "deep", ["five"], "o200k")
    assert (five["price"]["input"], five["price"]["output"]) == ("1.25", "10")
    assert five["price"]["pricing_version"] == PriceTable.bundled().version
    assert listed["box:tiny"]["price"]["free"] is True
    unpriced = [entry for entry in listed.values() if entry["price"] is None]
    assert unpriced
    assert all(entry["price_unknown"] for entry in unpriced)
    assert "sk-" not in run("--json").stdout


def test_which_can_be_used(run: Any) -> None:
    names = [entry["id"] for entry in json.loads(run("--json", "--configured").stdout)]
    assert names == ["mine:five", "box:tiny"]
    with_key = [entry["id"] for entry in json.loads(run("--json", "--configured", GROQ_API_KEY="k").stdout)]
    assert "groq:llama-3.3-70b-versatile" in with_key
    assert json.loads(run("five", "--json", MY_KEY="").stdout)[0]["status"] == "not_configured"


def test_one_model(run: Any) -> None:
    shown = run("five").stdout
    assert shown.startswith("mine:five: configured\n")
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line}
    assert lines["supports_images"][:2] == ["no", "declared"]
    assert lines["supports_tools"][:3] == ["yes", "catalogue", "catalog/openai.yaml"]
    assert lines["supports_streaming"] == ["?", "unknown"]
    assert "input 1.25, output 10" in shown
    assert "price unknown" in run("groq:unheard-of").stdout
    assert "free" in run("box:tiny").stdout


def test_a_pattern(run: Any) -> None:
    for pattern in ("groq:*", "GROQ:"):
        table = run(pattern).stdout.splitlines()
        assert table[0].split()[:3] == ["MODEL", "STATUS", "CONTEXT"]
        assert all(line.startswith("groq:") for line in table[1:-1])
        assert "25 models, 0 of them configured" in table[-1]
    nothing = run("zzzz")
    assert nothing.exit_code == 11
    near = run("fiv")
    assert near.exit_code == 0  # part of a name is a pattern


def test_a_pattern_that_fits_nothing_is_no_name(run: Any) -> None:
    result = run("ollama:*")
    assert (result.exit_code, result.stdout) == (11, "")
    assert "no model that is listed fits 'ollama:*'" in result.stderr
    assert "ollama:any" in run("ollama:any").stdout


def test_a_bad_file_is_one_line_and_exit_code_2(run: Any, tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text("adapters: [1]")
    result = run()
    assert result.exit_code == 2
    assert "models.yaml:1: adapters: must be a mapping, not a list" in result.stderr
    assert result.stdout == ""


def test_at_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(CONFIG)
    words = ["models", "--configured"]
    for variables in ({}, {"NO_COLOR": "1"}):
        with Terminal(*words, columns=150, DRAGOMAN_CONFIG=str(tmp_path / "models.yaml"), **variables) as terminal:
            assert terminal.wait() == 0
        assert "box:tiny" in terminal.raw
        assert "\x1b[3" not in terminal.raw.replace("\x1b[3m", "")
