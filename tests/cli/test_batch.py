"""``dragoman batch`` against a real server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dragoman.cli import main
from dragoman.cli.errors import EXIT_CODES

from ..server import answering, replying
from ..test_sync import Background


@pytest.fixture
def server() -> Iterator[Background]:
    with Background(answering("Hello")) as found:
        yield found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text('{"id": "a", "prompt": "Hi"}\n{"id": "b", "prompt": "Ho"}\nbad\n')
    return tmp_path


def run(server: Background | None, *words: str, source: str = "in.jsonl") -> Result:
    where = [] if server is None else ["--base-url", server.base_url]
    return CliRunner().invoke(main, ["batch", source, "out.jsonl", "--model", "m", *where, *words])


def results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]


def test_batch_command_writes_results_and_a_summary(server: Background) -> None:
    done = run(server, "--priced-as", "openai:gpt-5")
    assert done.exit_code == 0, done.output
    assert "3 rows in out.jsonl; 1 failed; 1 of them could not be read; $0.0000" in done.stdout
    assert "line 3: is not JSON" in done.stderr
    assert [row.get("text") for row in results()] == ["Hello", "Hello", None]
    again = run(server, "--priced-as", "openai:gpt-5")
    assert "3 were there before" in again.stdout
    assert len(server.requests) == 2


def test_batch_report_can_be_printed_as_json(server: Background) -> None:
    report = json.loads(run(server, "--json").stdout)
    assert report["rows"] == 3
    assert report["failed"] == 1
    assert report["bad"] == 1
    assert report["stopped"] is None


def test_batch_options_are_sent_to_the_provider(server: Background) -> None:
    Path("words.csv").write_text("word\nHaus\n")
    Path("schema.json").write_text('{"type": "object", "properties": {"n": {"type": "integer"}}}')
    Path("tool.json").write_text('{"name": "add"}')
    words = ["--template", "Translate: {word}", "--system", "Be terse.", "--max-tokens", "7"]
    words += ["--temperature", "0.5", "-o", "top_p", "0.9", "--order", "completed"]
    words += ["--tool-schema", "tool.json", "--schema", "schema.json"]
    run(server, *words, source="words.csv")
    (request,) = server.requests
    sent = request.json
    assert [message["content"] for message in sent["messages"]] == ["Be terse.", "Translate: Haus"]
    assert sent["max_tokens"] == 7
    assert sent["temperature"] == 0.5
    assert sent["top_p"] == 0.9
    assert sent["tools"][0]["function"]["name"] == "add"
    assert "response_format" in sent


def test_budget_stops_the_batch_with_its_own_exit_code(server: Background) -> None:
    done = run(server, "--budget", "rows=1")
    assert done.exit_code == EXIT_CODES["session_exhausted"]
    assert "the budget is used up" in done.stderr
    assert len(results()) == 1


def test_batch_command_finds_model_names_in_models_yaml(
    server: Background, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    Path("models.yaml").write_text(
        f"adapters:\n  here: {{type: openai, base_url: {server.base_url}}}\n"
        "models:\n  small: {adapter: here, wire_name: m}\n"
    )
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(folder / "models.yaml"))
    done = CliRunner().invoke(main, ["batch", "in.jsonl", "out.jsonl", "--model", "small"])
    assert done.exit_code == 0, done.output
    assert [row.get("text") for row in results()] == ["Hello", "Hello", None]


WRONG = [
    (["--strict"], 2, "line 3: is not JSON"),
    (["--budget", "eur=1"], 2, "budget"),
    (["--budget", "usd=1"], 1, "cannot hold"),
    (["--template", "{"], 2, "template"),
    (["--template", "x", "--template-file", "in.jsonl"], 2, "not both"),
    (["--concurrency", "0"], 2, "concurrency"),
]


@pytest.mark.parametrize(("words", "code", "text"), WRONG)
def test_invalid_options_of_the_batch_command_are_reported(
    server: Background, words: list[str], code: int, text: str
) -> None:
    done = run(server, *words)
    assert server.requests == []
    assert done.exit_code == code
    assert text in done.stderr
    assert not Path("out.jsonl").exists()


def test_output_of_another_program_is_rejected(server: Background) -> None:
    Path("out.jsonl").write_text("precious\n")
    done = run(server)
    assert done.exit_code == 2
    assert "is not the output of a batch" in done.stderr
    assert run(server, "--fresh").exit_code == 2
    assert Path("out.jsonl").read_text() == "precious\n"


def test_embedding_options_apply_to_embedded_rows(tmp_path: Path) -> None:
    Path("words.csv").write_text("word\nHaus\n")
    data = [{"index": 0, "embedding": [1, 2]}]
    reply = json.dumps({"data": data, "model": "m", "usage": {"prompt_tokens": 3}}).encode()

    options = ["--dimensions", "2", "--input-type", "query", "--encoding-format", "base64"]
    with Background(replying(200, reply)) as server:
        done = run(server, "--embed", "--template", "{word}", *options, source="words.csv")
        assert done.exit_code == 0, done.output
        sent = server.requests[0]
    assert sent.path == "/v1/embeddings"
    assert sent.json["input"] == ["Haus"]
    assert sent.json["dimensions"] == 2
    row = results()[0]
    assert row["embedding"] == "AACAPwAAAEA="
    assert "input_type" in row["warnings"][0]


def test_chat_settings_in_an_embedding_batch_are_usage_errors(server: Background) -> None:
    done = run(server, "--embed", "--temperature", "0")
    assert done.exit_code == 2
    assert "temperature: is a setting of chats, and this batch embeds" in done.stderr
