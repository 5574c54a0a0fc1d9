"""The command line, run against a real server."""

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dragoman.cli import main
from dragoman.cli.errors import EXIT_CODES
from dragoman.errors import ProviderError

from .server import Connection, Seen, answering, completion, replying
from .test_sync import Background

KEY = "sk-canary-0123456789abcdef"


def run(*words: str, given: str | None = None, **variables: str) -> Result:
    return CliRunner().invoke(main, list(words), input=given, env=variables)


@pytest.fixture(scope="module")
def url() -> Any:
    with Background(answering("Hello")) as server:
        yield server.base_url


def test_ask_command_prints_text_events_and_raw_replies(url: str) -> None:
    for words in (["--stream"], ["--no-stream"]):
        result = run("ask", "m", "Hi", "--base-url", url, *words)
        assert result.stdout == "Hello\n"
        assert result.exit_code == 0
    assert run("ask", "m", "-", "--base-url", url, given="from a pipe").stdout == "Hello\n"
    lines = run("ask", "m", "Hi", "--base-url", url, "--json").stdout.splitlines()
    expected = ["message.start", "message.complete"]
    assert [json.loads(line)["type"] for line in lines][::6] == expected
    raw = json.loads(run("ask", "m", "Hi", "--base-url", url, "--no-stream", "--raw").stdout)
    assert raw["choices"][0]["message"]["content"] == "Hello"
    assert len(json.loads(run("ask", "m", "Hi", "--base-url", url, "--raw").stdout)["chunks"]) == 7


def test_ask_command_sends_the_settings_of_its_options(tmp_path: Path) -> None:
    (tmp_path / "tool.json").write_text('{"name": "f", "parameters": {"type": "object"}}')
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    (tmp_path / "dot.png").write_bytes(b"\x89PNG")
    with Background(answering("{}")) as server:
        result = run(
            "ask", "m", "Hi", "--base-url", server.base_url, "--system", "S", "--max-tokens", "9",
            "--temperature", "0.5", "--tool-schema", str(tmp_path / "tool.json"),
            "--schema", str(tmp_path / "schema.json"), "--image", str(tmp_path / "dot.png"),
            "--api-key-env", "MY_KEY", MY_KEY=KEY,
        )  # fmt: skip
        assert result.exit_code == 0, result.stderr
        seen = server.requests[0]
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.json["max_tokens"] == 9
    assert seen.json["temperature"] == 0.5
    assert seen.json["tools"][0]["function"]["name"] == "f"
    assert seen.json["response_format"]["type"] == "json_schema"
    assert seen.json["messages"][0] == {"role": "system", "content": "S"}
    assert (
        seen.json["messages"][1]["content"][1]["image_url"]["url"]
        == "data:image/png;base64,iVBORw=="
    )


@pytest.mark.parametrize("words", [["--stream"], ["--no-stream"]])
def test_tool_call_is_printed_and_not_run(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "tool.json").write_text('[{"name": "f", "parameters": {"type": "object"}}]')
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    body = json.dumps(
        {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    ).encode()

    with Background(replying(200, body)) as server:
        schema = ["--tool-schema", str(tmp_path / "tool.json")]
        result = run("ask", "m", "Hi", "--base-url", server.base_url, *schema, *words)
    assert 'proposed, not executed: f({"x": 1})' in result.stdout


@pytest.mark.parametrize(
    ("status", "body", "code", "words"),
    [
        (401, {"error": {"message": "no"}}, 10, "provider_authentication"),
        (404, {"error": {"code": "model_not_found"}}, 11, "provider_invalid_model"),
        (503, {"error": {"message": "Loading model"}}, 12, "provider_model_not_loaded"),
        (429, {}, 13, "wait 7 s"),
        (500, {}, 14, "provider_unavailable"),
        (400, {}, 15, "provider_invalid_request"),
        (
            400,
            {"error": {"message": "this model does not support image input"}},
            16,
            "content_block",
        ),
        (200, {}, 17, "provider_invalid_response"),
    ],
)
def test_exit_code_depends_on_the_error(status: int, body: Any, code: int, words: str) -> None:
    with Background(replying(status, json.dumps(body).encode(), retry_after="7")) as server:
        result = run(
            "ask", "m", "Hi", "--retries", "0", "--base-url", server.base_url, DRAGOMAN_API_KEY=KEY
        )
    assert result.exit_code == code
    assert words in result.stderr
    assert KEY not in result.output


def test_every_error_category_has_its_own_exit_code() -> None:
    def leaves(kind: type[ProviderError]) -> set[str]:
        return {kind.category}.union(*[leaves(each) for each in kind.__subclasses__()])

    categories = leaves(ProviderError)
    assert categories <= set(EXIT_CODES)
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)


def test_invalid_structured_output_is_reported(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "object"}')

    with Background(replying(200, completion("certainly!"))) as server:
        schema = ["--schema", str(tmp_path / "schema.json")]
        result = run("ask", "m", "Hi", "--base-url", server.base_url, *schema)
    assert result.exit_code == 18


def test_ready_command_reports_a_ready_model(url: str) -> None:
    assert run("ready", "m", "--base-url", url).stdout == "m is ready\n"
    expected = {"ready": True, "model": "m"}
    assert json.loads(run("ready", "m", "--base-url", url, "--json").stdout) == expected
    missing = run("ready", "other", "--base-url", url, "--json")
    assert missing.exit_code == 11
    assert json.loads(missing.stdout)["category"] == "provider_invalid_model"
    assert run("ready", "other", "--base-url", url).exit_code == 11


def test_ready_command_needs_a_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "models.yaml").touch()
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(tmp_path / "models.yaml"))
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    result = run("ready", "groq:m", "--json")
    assert result.stderr == ""
    assert result.exit_code == 10
    told = json.loads(result.stdout)
    expected = (False, "provider_authentication", None)
    assert (told["ready"], told["category"], told["status"]) == expected
    assert "GROQ_API_KEY" in told["message"]
    plain = run("ready", "groq:m")
    assert plain.stdout == ""
    assert plain.exit_code == 10


def list_contents(requests: list[Seen]) -> list[list[str]]:
    return [[message["content"] for message in seen.json["messages"]] for seen in requests]


def test_chat_command_keeps_the_conversation(url: str) -> None:
    once = run("chat", "m", "--base-url", url, "--prompt", "Hi")
    assert once.stdout == "Hello\n"
    assert once.exit_code == 0
    with Background(answering("Hello")) as server:
        typed = "one\n/help\ntwo\n/reset\nthree\n/exit\n"
        talk = run("chat", "m", "--base-url", server.base_url, "--system", "S", given=typed)
        sent = list_contents(server.requests)
    assert talk.exit_code == 0
    assert sent == [["S", "one"], ["S", "one", "Hello", "two"], ["S", "three"]]


def test_chat_command_continues_after_an_error() -> None:
    async def moody(connection: Connection) -> None:
        if list_contents([connection.seen]) == [["one"]]:
            connection.reply(500, b"{}")
        else:
            await answering("Hello")(connection)

    with Background(moody) as server:
        talk = run("chat", "m", "--base-url", server.base_url, given="one\ntwo\n")
        sent = list_contents(server.requests)
    assert "attempt 2 failed (provider_unavailable); retrying in" in talk.stderr
    assert sent == [["one"], ["one"], ["one"], ["two"]]
    # Input is piped, so the script learns about the error from the exit code.
    assert talk.exit_code == EXIT_CODES["provider_unavailable"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("ask m Hi --base-url http://x --wire morse", 2, "unknown wire"),
        ("ask m Hi --base-url http://x --schema nowhere.json", 2, "does not exist"),
        ("nonsense", 2, "No such command"),
        ("ask m Hi", 11, "alias or adapter:model"),
        ("ask anthropic:claude-sonnet-4-6 Hi", 10, "ANTHROPIC_API_KEY"),
    ],
)
def test_invalid_command_line_is_reported(words: str, code: int, said: str) -> None:
    result = run(*words.split(), ANTHROPIC_API_KEY="")
    assert result.exit_code == code
    assert said in result.stderr


def test_plan_command_prints_losses(tmp_path: Path) -> None:
    talk = tmp_path / "talk.json"
    talk.write_text(json.dumps({"messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "thinking", "text": "hm"},
                                          {"type": "text", "text": "Hello"}]},
        {"role": "user", "content": "Bye"},
    ]}))  # fmt: skip
    result = run("plan", str(talk), "--to", "openai:gpt-5.2")
    assert result.exit_code == EXIT_CODES["plan_loses"], result.output
    assert "thinking_dropped" in result.stdout
    assert "3 kept, 0 rewritten, 1 dropped" in result.stdout
    assert "it fits" in result.stdout
    everything = run("plan", str(talk), "--to", "m", "--base-url", "http://x", "--all")
    assert everything.stdout.count("kept ") >= 3
    planned = json.loads(
        run("plan", str(talk), "--to", "m", "--base-url", "http://x", "--json").stdout
    )
    assert planned["fits"] is None
    assert [item["outcome"] for item in planned["items"]] == ["kept", "dropped", "kept", "kept"]


@pytest.mark.parametrize("words", [["ask", "m", "Hi", "--schema"], ["plan", "--to", "m"]])
def test_file_that_is_not_json_is_reported(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    result = run(*words, str(tmp_path / "bad.json"), "--base-url", "http://x")
    assert "is not JSON" in result.stderr
    assert result.exit_code == 2


def test_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "--version"], capture_output=True, text=True,
        env=os.environ, check=False,
    )  # fmt: skip
    assert f"version {version('dragoman')}" in done.stdout


INTERRUPTED = """
import sys
from importlib.abc import MetaPathFinder

class Interrupt(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from dragoman.__main__ import main
main()
"""


def test_interrupt_while_the_commands_are_imported_ends_like_a_later_one() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stdout == ""
    assert done.stderr == "interrupted\n"
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"dragoman": "dragoman.__main__:main"}


@pytest.mark.parametrize("words", [["--verbose", "ask"], ["ask", "--verbose"]])
def test_verbose_prints_the_call(words: list[str], url: str) -> None:
    command = [*words, "m", "Hi", "--base-url", url, "--no-stream"]
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", *command], capture_output=True, text=True
    )
    assert done.stdout == "Hello\n"
    assert "/chat/completions {" in done.stderr
    assert ": 200, " in done.stderr
