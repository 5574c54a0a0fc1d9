"""``dragoman ask`` against a real server: piped input, defaults, attachments and settings."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dragoman.cli import main
from dragoman.cli.ask import _first_block
from dragoman.cli.errors import EXIT_CODES
from tests.rows import read_table

from ..server import answering, replying
from ..test_sync import Background

FENCED = "Here:\n\n```python\nprint(1)\n```\n\nand\n\n```\nother\n```\n"


def run(*words: str, given: str | None = None, **variables: str) -> Result:
    return CliRunner().invoke(main, ["ask", *words], input=given, env=variables)


@pytest.fixture
def server() -> Iterator[Background]:
    with Background(answering("Hello")) as found:
        yield found


def sent(server: Background) -> Any:
    (request,) = server.requests
    return request.json


@pytest.mark.parametrize(
    ("words", "piped", "text"),
    [
        (["m", "Summarise"], "a report", "a report\n\nSummarise"),
        (["m"], "a report", "a report"),
        (["m", "-"], "a report", "a report"),
        (["m", "Hi"], "", "Hi"),
        (["m", "Hi"], None, "Hi"),
    ],
)
def test_piped_text_is_sent_with_the_prompt(
    words: list[str], piped: str | None, text: str, server: Background
) -> None:
    result = run(*words, "--base-url", server.base_url, given=piped)
    assert result.exit_code == 0, result.stderr
    assert sent(server)["messages"] == [{"role": "user", "content": text}]


@pytest.mark.parametrize("words", [["m"], ["m", "-"]])
def test_missing_prompt_is_a_usage_error(words: list[str], server: Background) -> None:
    result = run(*words, "--base-url", server.base_url, given="")
    assert result.exit_code == 2
    assert "PROMPT" in result.stderr
    assert server.requests == []


def configure(folder: Path, server: Background, default: str = "") -> str:
    path = folder / "models.yaml"
    path.write_text(
        f"{default}adapters: {{mine: {{type: openai, base_url: '{server.base_url}', api_key: "
        "k}}\nmodels: {mine:one: {aliases: [uno]}, mine:two: {}}\n"
    )
    return str(path)


@pytest.mark.parametrize(
    ("words", "default", "variable", "model", "text"),
    [
        (["Name a river."], "default: uno\n", "", "one", "Name a river."),
        (["Hi"], "default: mine:one\n", "", "one", "Hi"),
        (["Hi"], "default: uno\n", "mine:two", "two", "Hi"),
        (["uno", "Hi"], "default: mine:two\n", "", "one", "Hi"),
        (["mine:three", "Hi"], "", "", "three", "Hi"),
    ],
)
def test_ask_command_uses_the_default_model(
    words: list[str],
    default: str,
    variable: str,
    model: str,
    text: str,
    tmp_path: Path,
    server: Background,
) -> None:
    path = configure(tmp_path, server, default)
    result = run(*words, given="", DRAGOMAN_CONFIG=path, DRAGOMAN_MODEL=variable)
    assert result.exit_code == 0, result.stderr
    body = sent(server)
    assert body["model"] == model
    assert body["messages"][-1]["content"] == text


@pytest.mark.parametrize("word", ["uno", "openai:gpt-5", "gpt-5", "local"])
def test_model_without_prompt_is_an_error(word: str, tmp_path: Path, server: Background) -> None:
    result = run(
        word, given="", DRAGOMAN_CONFIG=configure(tmp_path, server), DRAGOMAN_MODEL="mine:one"
    )
    assert result.exit_code == 2
    assert "PROMPT" in result.stderr


def test_settings_given_as_options_are_sent(server: Background) -> None:
    result = run(
        "m", "Hi", "--base-url", server.base_url, "--no-stream", "--reasoning", "low",
        "-o", "top_p", "0.5", "-o", "seed", "7", "-o", "stop_sequences", "END", "-o", "top_k",
        "40", "-o", "user", "me",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    body = sent(server)
    assert body["top_p"] == 0.5
    assert body["seed"] == 7
    assert body["stop"] == ["END"]
    assert body["top_k"] == 40
    assert body["user"] == "me"
    assert body["reasoning_effort"] == "low"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-o", "temperatur", "0.5"], "did you mean temperature?"),
        (["-o", "seed", "soon"], "seed"),
        (["--reasoning", "enormous"], "reasoning"),
        (["-a", "nowhere.png"], "nowhere.png cannot be read"),
        (["-a", "http://x/film.mp4"], "only images and PDFs"),
        (["-a", sys.executable], "is not an image, a PDF or UTF-8 text"),
    ],
)
def test_invalid_settings_are_errors(words: list[str], complaint: str, server: Background) -> None:
    result = run("m", "Hi", "--base-url", server.base_url, *words)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert server.requests == []


def test_attached_files_are_sent(tmp_path: Path, server: Background) -> None:
    (tmp_path / "dot.png").write_bytes(b"\x89PNG")
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    (tmp_path / "notes.txt").write_text("seven\n")
    files = [
        part for name in ("dot.png", "a.pdf", "notes.txt") for part in ("-a", str(tmp_path / name))
    ]
    result = run(
        "m", "Look", "--base-url", server.base_url, *files, "-a", "https://example.org/b.jpg"
    )
    assert result.exit_code == 0, result.stderr
    blocks = sent(server)["messages"][0]["content"]
    assert [block["type"] for block in blocks] == [
        "text", "image_url", "file", "text", "image_url",
    ]  # fmt: skip
    assert blocks[3]["text"] == "notes.txt:\n\nseven\n"
    assert blocks[4]["image_url"]["url"] == "https://example.org/b.jpg"


def test_binary_standard_input_is_a_usage_error(server: Background) -> None:
    result = CliRunner().invoke(
        main, ["ask", "m", "Hi", "--base-url", server.base_url], input=b"\xff\xfe\0"
    )
    assert result.exit_code == 2
    assert "not UTF-8" in result.stderr


def test_the_first_code_block_can_be_extracted() -> None:
    with Background(answering(FENCED)) as server:
        assert run("m", "Hi", "-x", "--base-url", server.base_url).stdout == "print(1)\n"
        assert json.loads(
            run("m", "Hi", "-x", "--json", "--base-url", server.base_url).stdout
        ) == {"block": "print(1)"}
    with Background(answering("no block")) as server:
        assert run("m", "Hi", "-x", "--base-url", server.base_url).stdout == "no block\n"


def test_unstreamed_json_output_is_one_object(server: Background) -> None:
    reply = json.loads(
        run("m", "Hi", "--base-url", server.base_url, "--json", "--no-stream").stdout
    )
    assert reply["text"] == "Hello"
    assert reply["finish_reason"] == "stop"
    assert reply["usage"]["input_tokens"] is not None
    assert sent(server).get("stream") is not True


@pytest.mark.parametrize("words", [[], ["--no-stream"]])
def test_errors_are_printed_as_json_with_the_json_option(words: list[str]) -> None:
    with Background(replying(401, b'{"error": {"message": "no"}}')) as server:
        result = run("m", "Hi", "--base-url", server.base_url, "--json", *words)
    assert result.exit_code == EXIT_CODES["provider_authentication"]
    error = json.loads(result.stdout)["error"]
    assert error["category"] == "provider_authentication"
    assert error["status"] == 401
    assert error["model"] == "m"


@pytest.mark.parametrize(("retries", "calls"), [("0", 1), ("1", 2)])
def test_each_retry_is_printed(retries: str, calls: int) -> None:
    with Background(replying(500, b"{}", retry_after="0")) as server:
        result = run("m", "Hi", "--base-url", server.base_url, "--retries", retries)
        assert len(server.requests) == calls
    assert result.stderr.count("retrying in") == calls - 1
    assert result.exit_code == EXIT_CODES["provider_unavailable"]


@pytest.mark.parametrize(("text", "block"), read_table("first_complete_code_block_is_found"))
def test_first_complete_code_block_is_found(text: str, block: str) -> None:
    assert _first_block(text) == block
