"""Test ``dragoman check`` against a real llama.cpp server and a model with random weights."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dragoman.capabilities import Capabilities
from dragoman.cli import main
from dragoman.local import LocalServer

# What llama.cpp's server does with any model here: it has no vision, accepts every model name and
# empty message lists, and ignores a forced tool choice.
FOUND = {
    "ready.answers": "pass", "usage.reported": "pass", "limits.max_tokens": "pass",
    "limits.context": "pass", "sampling.seed": "pass", "sampling.logprobs": "pass",
    "stream.rules": "pass", "stream.end_mark": "pass", "stream.usage": "pass",
    "tools.forced": "fail", "images.inline": "unsupported", "errors.unknown_model": "fail",
    "errors.malformed": "pass", "errors.no_messages": "fail", "errors.key": "pass",
    "concurrency.four": "pass", "cancel.stops": "pass",
}  # fmt: skip


def test_documented_check_report_matches_a_real_server(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = LocalServer(tiny, alias="tiny")
    facts = tmp_path / "facts.json"
    try:
        url = server.start()
        monkeypatch.setenv("DRAGOMAN_API_KEY", server.key)
        result = CliRunner().invoke(
            main, ["check", url, "--json", "--max-tokens", "16", "--save", str(facts)]
        )
    finally:
        server.stop()
    report = json.loads(result.stdout)
    found = {outcome["name"]: outcome["status"] for outcome in report["outcomes"]}
    assert {name: found[name] for name in FOUND} == FOUND
    assert result.exit_code == 30
    assert server.key not in result.output + facts.read_text()
    known = Capabilities.read(facts)
    assert known.max_context_tokens.value == 4096
    assert known.supports_images.value is False
    assert known.supports_streaming.value is True
