"""Errors show the server's address and advice, and name options, not parameters."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import dragoman as d
from dragoman.cli import main
from dragoman.cli.errors import name_options
from dragoman.registry import load_vendor, vendor_names
from tests.rows import read_table


def run(*words: str, **variables: str) -> Result:
    return CliRunner().invoke(main, words, env={"DRAGOMAN_MODEL": "", **variables})


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (d.InvalidRequestError("config.max_tokens: required"), "--max-tokens: required"),
        (d.InvalidRequestError("config.top_p must be a finite number"),
         "-o top_p must be a finite number"),
        (d.TimedOutError("late"), "late. Try again, or allow more time with --timeout."),
        (d.StreamInterruptedError("cut"), "cut. Try again for a complete one."),
        (d.MalformedToolCallError("bad"), "bad. No intent was made of it."),
        (d.StructuredOutputError("not JSON"), "not JSON. Ask again, or with a simpler schema."),
        (d.NetworkError("gone"), "gone. Check the address (--base-url) and the network."),
        (d.NetworkError("gone", advice="Is it running?"), "gone. Is it running?"),
        (d.NetworkError("gone", advice=""), "gone"),
    ],
)  # fmt: skip
def test_errors_use_the_names_of_command_line_options(error: d.ProviderError, shown: str) -> None:
    assert str(name_options(error)).startswith(shown)
    assert "error." not in str(error)
    # Calling the function a second time does not change the text.
    assert str(name_options(error)).startswith(shown)


def test_error_names_a_stopped_local_server_and_gives_a_hint(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text("adapters: {}")
    config = str(tmp_path / "models.yaml")
    words = ["ask", "ollama:llama3", "Hi", "--retries", "0"]
    nowhere = {"DRAGOMAN_CONFIG": config, "OLLAMA_HOST": "127.0.0.1:1"}
    result = run(*words, **nowhere)
    assert result.exit_code == 14
    assert result.stderr.splitlines() == [
        "error: provider_unavailable",
        "  ollama/llama3: the server at http://127.0.0.1:1 cannot be reached.",
        "  Is `ollama serve` running? OLLAMA_HOST names another address."
        " The address comes from the environment variable OLLAMA_HOST.",
    ]
    as_json = run(*words, "--json", **nowhere)
    assert "http://127.0.0.1:1" in json.loads(as_json.stdout)["error"]["message"]


def test_error_names_a_server_by_its_address() -> None:
    result = run("ask", "m", "Hi", "--base-url", "http://127.0.0.1:1/v1", "--retries", "0")
    assert result.exit_code == 14
    assert "  127.0.0.1:1/m: the server at http://127.0.0.1:1 cannot be reached." in result.stderr
    assert "openai" not in result.stderr


@pytest.mark.parametrize(
    ("given", "address"),
    read_table("server_addresses"),
)
def test_server_address_is_read_from_the_servers_environment_variable(
    given: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", given)
    assert load_vendor("ollama").address() == address


def test_invalid_server_address_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text("adapters: {}")
    config = str(tmp_path / "models.yaml")
    result = run("ask", "ollama:llama3", "Hi", DRAGOMAN_CONFIG=config, OLLAMA_HOST="http://[box")
    assert result.exit_code == 2
    assert "base_url must be an http or https URL" in result.stderr


def test_vendors_of_local_servers_say_how_a_server_is_started() -> None:
    for vendor in map(load_vendor, vendor_names()):
        assert bool(vendor.hint) == vendor.local, vendor.id
