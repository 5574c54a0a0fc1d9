"""``dragoman check --vendor``: a server that enforces the beliefs confirms each, and a lenient one
contradicts those about refusals. The key is in no report.
"""

import json
from typing import Any

import pytest
from click.testing import CliRunner

import dragoman as d
from dragoman.cli import main
from dragoman.conformance import BeliefCheck, BeliefReport, write_beliefs
from dragoman.registry import load_vendor
from dragoman.sim import ScriptedProvider, SimServer

from ..server import replying, serve

KEY = "battery.staple.0123456789"
MODELS = [
    ("anthropic", "claude-opus-5-5", "anthropic"),
    ("anthropic", "claude-sonnet-4-6", "anthropic"),
    ("deepseek", "deepseek-v4-pro", "openai"),
    ("google", "gemini-3.7-flash", "gemini"),
    ("groq", "openai/gpt-oss-120b", "openai"),
    ("mistral", "mistral-medium-latest", "openai"),
    ("moonshot", "kimi-k3", "openai"),
    ("openai", "gpt-6-sol", "responses"),
    ("xai", "grok-4.6", "openai"),
]


def serve_vendor(vendor: str, *, strict: bool) -> SimServer:
    return SimServer(ScriptedProvider("Hello.", strict=strict, vendor=vendor))


async def check(vendor: str, model: str, wire: str, *, strict: bool) -> BeliefReport:
    with serve_vendor(vendor, strict=strict) as sim:
        return await BeliefCheck(vendor, model, wire, base_url=sim.url, api_key=KEY).run()


@pytest.mark.parametrize("vendor", ["moonshot", "portkey", "perplexity"])
def test_beliefs_are_printed_without_a_key(vendor: str) -> None:
    """Nothing is sent, and the message names the variable that the key is missing in."""
    variable = load_vendor(vendor).api_key_env
    result = CliRunner().invoke(main, ["check", "--vendor", vendor, "--model", "kimi-k3"])
    assert result.exit_code == 0, result.output
    assert "not asked" in result.stdout
    assert f"set the environment variable {variable}" in result.stderr


def test_asking_without_a_key_is_an_error() -> None:
    arguments = ["check", "--vendor", "moonshot", "--model", "kimi-k3", "--yes"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code != 0
    assert "MOONSHOT_API_KEY" in result.output


@pytest.mark.parametrize(("vendor", "model", "wire"), MODELS)
async def test_server_that_enforces_the_beliefs_confirms_each(
    vendor: str, model: str, wire: str
) -> None:
    report = await check(vendor, model, wire, strict=True)
    wrong = [each for each in report.outcomes if each.verdict not in ("holds", "not_asked")]
    assert wrong == []
    assert report.counts["holds"] >= 5
    assert not report.contradicted


@pytest.mark.parametrize(("vendor", "model", "wire"), MODELS)
async def test_server_that_accepts_everything_contradicts_each_refusal(
    vendor: str, model: str, wire: str
) -> None:
    report = await check(vendor, model, wire, strict=False)
    for each in report.outcomes:
        if each.expected is not None:
            wanted = "contradicted" if each.expected == "refused" else "holds"
            assert each.verdict == wanted, each
    assert report.contradicted


async def test_belief_has_its_source_and_the_reply_of_the_server() -> None:
    report = await check("mistral", "mistral-medium-latest", "openai", strict=True)
    found = {each.asks: each for each in report.outcomes}
    refused = found["seed=7"]
    assert refused.status == 400
    assert "seed" in refused.detail
    assert "langchain-azure#82" in refused.source
    assert refused.as_of == "2026-11-19"
    assert found["random_seed=7"].status == 200


async def test_busy_server_shows_nothing() -> None:
    async with serve(replying(503, b'{"error": {"message": "busy"}}')) as server:
        report = await BeliefCheck("groq", "openai/gpt-oss-120b", base_url=server.url).run()
    assert {each.verdict for each in report.outcomes} == {"unclear", "not_asked"}


async def test_server_that_cannot_be_reached_shows_nothing() -> None:
    check = BeliefCheck("groq", "openai/gpt-oss-120b", base_url="http://127.0.0.1:9")
    report = await check.run()
    unclear = next(each for each in report.outcomes if each.verdict == "unclear")
    assert unclear.status is None
    assert "NetworkError" in unclear.detail


async def test_rejected_key_ends_the_check_and_is_not_shown() -> None:
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}).encode()
    async with serve(replying(401, body)) as server:
        check = BeliefCheck("groq", "openai/gpt-oss-120b", base_url=server.url, api_key=KEY)
        with pytest.raises(d.AuthenticationError) as caught:
            await check.run()
        assert len(server.requests) == 1
    assert KEY not in str(caught.value)


def test_price_is_known_before_anything_is_sent() -> None:
    check = BeliefCheck("groq", "openai/gpt-oss-120b", api_key=KEY)
    price = check.estimate()
    assert price is not None
    assert 0 < price < 1
    assert check.calls == sum(len(each.questions) for each in check.believed)
    unknown = BeliefCheck("groq", "a-model-of-tomorrow", api_key=KEY)
    assert unknown.estimate() is None


def run(*options: str, text: str | None = None) -> Any:
    return CliRunner().invoke(main, ["check", *options], text)


def test_command_prints_the_beliefs_and_sends_nothing_without_consent() -> None:
    with serve_vendor("mistral", strict=True) as sim:
        result = run(sim.url, "--vendor", "mistral", "--model", "mistral-medium-latest")
        assert sim.requests == []
    assert result.exit_code == 0
    assert 'seed_field: "random_seed"' in result.output
    assert "not asked: random_seed=7" in result.output
    assert "calls of mistral:mistral-medium-latest, at most $0.0" in result.output
    assert "nothing has been sent" in result.output


@pytest.mark.parametrize(("strict", "code"), [(True, 0), (False, 30)])
def test_command_writes_a_report_without_the_key(
    strict: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_API_KEY", KEY)
    model = ("--vendor", "mistral", "--model", "mistral-medium-latest")
    with serve_vendor("mistral", strict=strict) as sim:
        result = run(sim.url, *model, "--yes", "--json")
        text = run(sim.url, *model, "--yes")
    assert result.exit_code == code
    assert text.exit_code == code
    report = json.loads(result.stdout)
    assert report["vendor"] == "mistral"
    assert report["counts"]["contradicted"] == (0 if strict else 4)
    assert KEY not in result.output + text.output
    word = "holds: seed=7 should be refused, and got 400"
    assert (word in text.output) is strict


def test_command_needs_a_server_or_a_vendor() -> None:
    result = run()
    assert result.exit_code == 2
    assert "--vendor" in result.output


def test_report_names_what_contradicts() -> None:
    check = BeliefCheck("mistral", "mistral-medium-latest", api_key=KEY)
    text = write_beliefs(check.describe())
    assert text.startswith("mistral:mistral-medium-latest (openai)")
    assert text.endswith(
        f"0 holds, 0 contradicted, 0 unclear, {len(check.describe().outcomes)} not asked"
    )
