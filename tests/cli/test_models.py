"""``dragoman models``: known capabilities of each model and their sources."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from dragoman.capabilities import Capabilities
from dragoman.cli import main
from dragoman.prices import PriceTable

from ..server import Connection, replying
from ..test_sync import Background
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
        environment = {
            "DRAGOMAN_CONFIG": str(tmp_path / "models.yaml"), "DRAGOMAN_CACHE": str(tmp_path),
            "OLLAMA_HOST": "127.0.0.1:1", "MY_KEY": "k", "GROQ_API_KEY": "", **variables,
        }  # fmt: skip
        return CliRunner().invoke(main, ["models", *words], env=environment)

    return invoke


def test_models_command_gives_the_source_of_every_capability(run: Any) -> None:
    printed = run("--json").stdout
    listed = {entry["id"]: entry for entry in json.loads(printed)}
    assert len(listed) > 500
    five = listed["mine:five"]
    facts = five["capabilities"]
    assert list(facts) == list(Capabilities.__struct_fields__)
    assert facts["supports_images"]["source"] == "declared"
    assert facts["supports_images"]["value"] is False
    assert facts["supports_tools"] == {
        "value": True, "source": "catalogue", "at": "2026-05-21", "by": "catalog/openai.yaml",
    }  # fmt: skip
    assert facts["supports_streaming"]["value"] is True
    assert facts["supports_streaming"]["source"] == "catalogue"
    assert facts["supports_embeddings"] == {"value": None, "source": "unknown"}
    assert five["status"] == "configured"
    assert five["tier"] == "deep"
    assert five["aliases"] == ["five"]
    assert five["tokens"] == "o200k"
    assert five["price"]["input"] == "1.25"
    assert five["price"]["output"] == "10"
    assert five["price"]["pricing_version"] == PriceTable.bundled().version
    assert listed["box:tiny"]["price"]["free"] is True
    unpriced = [entry for entry in listed.values() if entry["price"] is None]
    assert unpriced
    assert all(entry["price_unknown"] for entry in unpriced)
    assert "sk-" not in printed


def test_models_command_marks_configured_models(run: Any) -> None:
    names = [
        entry["id"] for entry in json.loads(run("--json", "--configured", "--no-live").stdout)
    ]
    assert names == ["local", "mine:five", "box:tiny"]
    with_key = [
        entry["id"] for entry in json.loads(run("--json", "--configured", GROQ_API_KEY="k").stdout)
    ]
    assert "groq:llama-3.3-70b-versatile" in with_key
    assert json.loads(run("five", "--json", MY_KEY="").stdout)[0]["status"] == "not_configured"


def test_models_command_shows_the_capabilities_of_one_model(run: Any) -> None:
    shown = run("five").stdout
    assert shown.startswith("mine:five: configured\n")
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line}
    assert lines["supports_images"][:2] == ["no", "declared"]
    assert lines["supports_tools"][:3] == ["yes", "catalogue", "catalog/openai.yaml"]
    assert lines["supports_streaming"][:2] == ["yes", "catalogue"]
    assert "supports_embeddings" not in lines
    assert "input 1.25, output 10" in shown
    assert "price unknown" in run("groq:unheard-of").stdout
    assert "free" in run("box:tiny").stdout


def test_models_command_shows_the_end_of_a_model(run: Any) -> None:
    shown = run("groq:llama-3.3-70b-versatile").stdout
    assert (
        "  warning: The vendor switched groq:llama-3.3-70b-versatile off on 2026-08-16; it recommends "
        "openai/gpt-oss-120b\n"
    ) in shown
    table = {line.split()[0]: line for line in run("groq:*").stdout.splitlines() if line}
    assert table["MODEL"].split()[-1] == "ENDS"
    assert table["groq:llama-3.3-70b-versatile"].endswith("2026-08-16")
    (entry,) = json.loads(run("groq:llama-3.3-70b-versatile", "--json").stdout)
    assert entry["capabilities"]["end_date"]["value"] == "2026-08-16"
    assert entry["capabilities"]["successor"]["value"] == "openai/gpt-oss-120b"
    assert entry["end_notice"].startswith("The vendor switched groq:llama-3.3-70b-versatile off")
    (living,) = json.loads(run("groq:openai/gpt-oss-120b", "--json").stdout)
    assert living["end_notice"] is None


def test_models_command_filters_models_by_a_pattern(run: Any) -> None:
    for pattern in ("groq:*", "GROQ:"):
        table = run(pattern).stdout.splitlines()
        assert table[0].split()[:3] == ["MODEL", "USE", "CONTEXT"]
        assert all(line.startswith("groq:") for line in table[1:-4])
        assert table[-4].startswith("24 models, 0 can be used now (*)")
        assert table[-3:] == [
            "the others need GROQ_API_KEY; see dragoman keys",
            "7 have ended or end within 60 days; see ENDS",
            "2 that embed or transcribe are left out; --all lists them",
        ]
    nothing = run("zzzz")
    assert nothing.exit_code == 11
    near = run("fiv")
    assert near.exit_code == 0  # the model is found by a part of its name


def test_pattern_without_matches_is_reported(run: Any) -> None:
    result = run("ollama:*")
    assert result.stdout == ""
    assert result.exit_code == 11
    assert "no model that is listed fits 'ollama:*'" in result.stderr
    assert "ollama:any" in run("ollama:any").stdout


def test_models_are_shown_as_a_table_at_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(CONFIG)
    words = ["models", "--configured", "--no-live"]
    for variables in ({}, {"NO_COLOR": "1"}):
        with Terminal(
            *words, columns=150, DRAGOMAN_CONFIG=str(tmp_path / "models.yaml"), **variables
        ) as terminal:
            assert terminal.wait() == 0
        assert "box:tiny" in terminal.raw
        assert "\x1b[3" not in terminal.raw.replace("\x1b[3m", "")


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_model_names_in_the_table_are_never_wrapped(tmp_path: Path, columns: int) -> None:
    (tmp_path / "models.yaml").write_text(CONFIG)
    variables = {"DRAGOMAN_CONFIG": str(tmp_path / "models.yaml"), "PAGER": "cat"}
    with Terminal(
        "models", "--no-live", "openai:gpt-5*", columns=columns, **variables
    ) as terminal:
        assert terminal.wait() == 0
    lines = terminal.raw.replace("\r", "").splitlines()
    rows = [line for line in lines if line.startswith("openai:")]
    assert {"openai:gpt-5-mini", "openai:gpt-5.3-codex-spark"} <= {row.split()[0] for row in rows}
    assert all(len(line) <= columns for line in [lines[0], *rows])
    assert ("$ OUT" in lines[0]) == (columns > 60)


def test_long_model_lists_are_paged_at_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(CONFIG)
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\ncat > /dev/null\necho by-my-pager\n")
    pager.chmod(0o755)
    variables = {"DRAGOMAN_CONFIG": str(tmp_path / "models.yaml"), "PAGER": str(pager)}
    for words, is_paged in [
        (["openai:*"], True),
        (["openai:*", "--no-pager"], False),
        (["openai:gpt-5-*"], False),
        (["openai:*", "--json"], False),
    ]:
        with Terminal("models", "--no-live", *words, **variables) as terminal:
            assert terminal.wait() == 0
        assert ("by-my-pager" in terminal.raw) == is_paged, words
        assert ("openai:gpt-5-mini" in terminal.raw) == (not is_paged), words


def test_piped_model_list_is_not_paged(run: Any) -> None:
    assert "xai:grok" in run("--no-live", PAGER="false").stdout


def test_models_command_names_the_variable_for_the_api_key(run: Any) -> None:
    shown = run("groq:llama-3.3-70b-versatile").stdout.splitlines()
    assert shown[0].endswith(
        ": not configured; set GROQ_API_KEY, or: dragoman keys set GROQ_API_KEY"
    )
    assert "  key: GROQ_API_KEY" in shown
    assert (
        json.loads(run("groq:llama-3.3-70b-versatile", "--json").stdout)[0]["api_key_env"]
        == "GROQ_API_KEY"
    )


def test_models_command_marks_models_that_cannot_chat(run: Any) -> None:
    assert "mistral-embed" not in run("mistral:*").stdout
    assert "mistral-embed" in run("mistral:*", "--all").stdout
    assert "chats: no; it embeds or transcribes" in run("mistral:mistral-embed").stdout
    marked = [
        entry["id"]
        for entry in json.loads(run("--json", "--no-live").stdout)
        if not entry["chats"]
    ]
    assert {"mistral:mistral-embed", "cohere:embed-v4.0"} <= set(marked)
    assert not any("gpt-5" in name for name in marked)


def test_models_command_lists_downloaded_models(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF" + bytes(100))
    environment = {"DRAGOMAN_CACHE": str(tmp_path)}
    assert CliRunner().invoke(main, ["local", "pull", str(file)], env=environment).exit_code == 0
    found = json.loads(run("--json", "--no-live", "--configured").stdout)
    listed = {entry["id"]: entry for entry in found}
    assert list(listed)[:2] == ["local", "local:tiny"]
    assert listed["local"]["capabilities"]["supports_tools"]["value"] is False
    assert listed["local"]["price"]["free"] is True
    assert run("local").stdout.startswith("local: configured\n")


def test_models_command_lists_models_of_local_servers(run: Any, tmp_path: Path) -> None:
    async def handle(connection: Connection) -> None:
        served = b'{"object": "list", "data": [{"id": "llama3:8b"}, {"id": "bad\\nname"}, 7]}'
        connection.reply(200, served if connection.seen.path == "/v1/models" else b"{}")

    with Background(handle) as server:
        host = urlsplit(server.base_url).netloc
        result = run("--configured", OLLAMA_HOST=host)
        # An adapter in models.yaml takes precedence over an adapter in the catalogue.
        assert "box:llama3:8b" in result.stdout
        assert "ollama:llama3:8b" not in result.stdout
        assert "bad" not in result.stdout
        assert (
            result.stderr
            == "note: no list of models from mine (the server at http://127.0.0.1:9 cannot be"
            " reached)\n"
        )
        asked = len(server.requests)
        assert "llama3" not in run("--configured", "--no-live", OLLAMA_HOST=host).stdout
        assert run("openai:gpt-5", OLLAMA_HOST=host).stderr == ""
        assert len(server.requests) == asked
        (tmp_path / "models.yaml").write_text("adapters: {}")
        assert "ollama:llama3:8b" in run("ollama:*", OLLAMA_HOST=host).stdout


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [(404, b"{}", "HTTP 404"), (200, b"<html>", "cannot be read"), (200, b"[]", "cannot be read")],
)
def test_local_server_without_a_model_list_is_noted_once(
    run: Any, tmp_path: Path, status: int, body: bytes, problem: str
) -> None:
    (tmp_path / "models.yaml").write_text("adapters: {}")
    with Background(replying(status, body)) as server:
        result = run("--configured", OLLAMA_HOST=urlsplit(server.base_url).netloc)
    assert result.exit_code == 0
    [note] = result.stderr.splitlines()
    assert note.startswith("note: no list of models from ollama (")
    assert problem in note
