"""``dragoman cost``: prices token counts, replies, events and logs."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from dragoman import Assistant, Response, Usage
from dragoman.cli import main
from dragoman.prices import PriceTable
from tests.rows import read_table

from ..server import answering
from ..test_sync import Background

VERSION = PriceTable.bundled().version


def run(*words: str, given: str | None = None, **variables: str) -> Result:
    return CliRunner().invoke(
        main, ["cost", *words], input=given, env={"DRAGOMAN_CONFIG": "", **variables}
    )


def bill(*words: str, given: str | None = None, **variables: str) -> Any:
    result = run(*words, "--json", given=given, **variables)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_cost_command_prices_token_counts() -> None:
    counts = ["--model", "openai:gpt-5", "--input", "1000", "--cached", "400", "--output", "50"]
    made = bill(*counts, "--reasoning", "20")
    assert made["pricing_version"] == VERSION
    assert made["parts"] == {
        "input": "0.00075", "cached_input": "0.00005", "cache_write": "0", "output": "0.0003",
        "reasoning": "0.0002",
    }  # fmt: skip
    assert Decimal(made["total"]) == sum(Decimal(part) for part in made["parts"].values())
    shown = run(*counts).stdout
    assert shown.splitlines()[0] == "openai:gpt-5"
    assert f"total: 0.0013 (prices {VERSION})" in shown


SHAPES = {
    "usage": {"input_tokens": 1000, "output_tokens": 10},
    "reply": {
        "usage": {"input_tokens": 1000, "output_tokens": 10},
        "provider": "openai",
        "model": "gpt-5",
    },
    "list": [
        {
            "usage": {"input_tokens": 1000, "output_tokens": 10},
            "provider": "openai",
            "model": "gpt-5",
        }
    ],
    "openai body": {"usage": {"prompt_tokens": 1000, "completion_tokens": 10}, "model": "gpt-5"},
    "record": {
        "type": "llm.call_completed",
        "timestamp": "2026-11-01T00:00:00.000000Z",
        "payload": {
            "provider": "openai",
            "model": "gpt-5",
            "input_tokens": 1000,
            "output_tokens": 10,
        },
    },
    "observed": {
        "type": "llm.call_completed",
        "provider": "openai",
        "model": "gpt-5",
        "at": 1793500000.5,
        "input_tokens": 1000,
        "output_tokens": 10,
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_cost_command_reads_every_reply_format(shape: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps(SHAPES[shape], indent=2))
    words = ["--model", "openai:gpt-5"] if shape in ("usage", "openai body") else []
    assert bill(str(file), *words)["total"] == "0.00135"
    assert bill("-", *words, given=json.dumps(SHAPES[shape]))["total"] == "0.00135"


def test_cached_tokens_are_billed_once_on_every_wire() -> None:
    ours = {
        "input_tokens": 1000, "cached_input_tokens": 900, "cache_creation_input_tokens": 50,
        "output_tokens": 1,
    }  # fmt: skip
    theirs = {
        "input_tokens": 50, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 50,
        "output_tokens": 1,
    }  # fmt: skip
    totals = [
        bill("-", "--model", "anthropic:claude-sonnet-4-6", given=json.dumps(usage))["total"]
        for usage in (ours, theirs, {"usage": theirs})
    ]
    assert set(totals) == {"0.0006225"}
    chat = {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 900}}
    responses = {"input_tokens": 1000, "input_tokens_details": {"cached_tokens": 900}}
    for other in ({**chat, "completion_tokens": 0}, {**responses, "output_tokens": 0}):
        parts = bill("-", "--model", "openai:gpt-5", given=json.dumps(other))["parts"]
        assert parts["cached_input"] == "0.0001125"


def test_cost_command_prices_a_reply_that_this_library_saved_as_json() -> None:
    reply = Response(
        Assistant("x"), "stop", usage=Usage(1000, 10), model="gpt-5", provider="openai"
    )
    assert bill("-", given=msgspec.json.encode(reply).decode())["total"] == "0.00135"


def test_cost_command_prices_the_events_that_ask_prints(tmp_path: Path) -> None:
    with Background(answering("Hello")) as server:
        (tmp_path / "models.yaml").write_text(
            f"adapters: {{mine: {{type: openai, api_key: k, base_url: '{server.base_url}'}}}}\n"
            "models: {mine:m: {wire_name: gpt-5}}\n"
        )
        variables = {"DRAGOMAN_CONFIG": str(tmp_path / "models.yaml")}
        events = CliRunner().invoke(main, ["ask", "mine:m", "Hi", "--json"], env=variables).stdout
    made = bill("-", given=events, **variables)
    assert made["calls"] == 1
    assert made["total"] == "0.00002375"
    assert made["models"][0]["model"] == "openai:gpt-5"


def test_costs_of_many_calls_are_summed_and_unknown_prices_reported() -> None:
    usage = {"input_tokens": 1000, "output_tokens": 0}
    calls: list[dict[str, Any]] = [
        *[{"provider": "openai", "model": "gpt-5", "usage": usage}] * 2,
        {"provider": "acme", "model": "x", "usage": {"input_tokens": 1, "output_tokens": 1}},
        {"provider": "local", "model": "x", "usage": {"output_tokens": 1}},
        {"type": "session.started", "payload": {}},
    ]
    lines = "\n".join(json.dumps(call) for call in calls)
    made = bill("-", given=lines)
    assert made["calls"] == 4
    assert made["total"] == "0.0025"
    assert [(each["model"], each["total"]) for each in made["models"]] == [
        ("openai:gpt-5", "0.0025"), ("acme:x", None), ("local:x", "0"),
    ]  # fmt: skip
    assert "no price for acme:x" in next(iter(made["unpriced"]))
    shown = run("-", given=lines).stdout
    assert "total: 0.0025 and more" in shown
    assert "price unknown, 1 of 4: no price for acme:x" in shown


def test_price_table_and_date_given_as_options_are_used(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        'rows: [{provider: openai, match: {equals: [gpt-5]}, input: "2", output: "2", valid_from: '
        "2026-07-01}]"
    )
    words = ["--model", "openai:gpt-5", "--input", "1000000", "--output", "0"]
    mine = ["--prices", str(tmp_path / "p.yaml")]
    assert bill(*words)["total"] == "1.25"
    assert bill(*words, *mine)["total"] == "2"
    assert bill(*words, *mine)["pricing_version"].startswith(f"{VERSION}+")
    assert bill(*words, *mine, "--at", "2026-06-30")["total"] == "1.25"
    (tmp_path / "p.yaml").write_text(
        "rows: [{provider: openai, match: {equals: [x]}, input: -1, output: 1}]"
    )
    wrong = run(*words, *mine)
    assert "p.yaml:1: rows[0]: input" in wrong.stderr
    assert wrong.exit_code == 2


@pytest.mark.parametrize(("words", "given", "said"), read_table("invalid_cost_input"))
def test_invalid_input_is_reported(words: list[str], given: str | None, said: str) -> None:
    result = run(*words, given=given)
    assert result.stdout == ""
    assert result.exit_code == 2
    assert said in result.stderr


def test_unknown_model_name_is_reported() -> None:
    result = run("--model", "gpt5", "--input", "1", "--output", "1")
    assert result.exit_code == 11
    assert "did you mean" in result.stderr
