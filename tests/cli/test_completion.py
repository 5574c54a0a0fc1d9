"""Shell completion with the tab key."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import dragoman.cli.completion  # noqa: F401 - adds the completion of words with colons
from dragoman.cli import main


def complete(shell: str, words: list[str], current: str, config: Path) -> list[str]:
    """Return the completions that click prints for a shell."""
    variables = {
        "COMP_WORDS": "\n".join(["dragoman", *words, current]),
        "COMP_CWORD": str(len(words) + 1),
    }
    if shell == "fish":
        variables = {"COMP_WORDS": " ".join(["dragoman", *words, current]), "COMP_CWORD": current}
    done = CliRunner().invoke(
        main,
        prog_name="dragoman",
        env={
            **variables,
            "_DRAGOMAN_COMPLETE": f"{shell}_complete",
            "DRAGOMAN_CONFIG": str(config),
        },
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("config") / "models.yaml"
    file.write_text("models: {anthropic:claude-sonnet-4-6: {aliases: [sonnet]}}\n")
    return file


def test_shell_completion_completes_model_names(config: Path) -> None:
    first = complete("bash", ["ask"], "", config)
    assert {"plain,sonnet", "plain,local", "plain,anthropic:", "plain,groq:"} <= set(first)
    assert len(first) < 100, "the vendors, not their models"
    assert complete("bash", ["chat"], "son", config) == ["plain,sonnet"]
    assert "plain,local:qwen" in complete("fish", ["agent", "--model"], "local:", config)
    assert "plain,--base-url" in complete("bash", ["ask"], "--", config)
    assert complete("bash", ["ask", "--wire"], "an", config) == ["plain,anthropic"]
    assert complete("fish", ["ask"], "anthropic:claude-sonnet-4-6", config) == [
        "plain,anthropic:claude-sonnet-4-6"
    ]


def test_shell_completion_of_command_names_imports_no_command(config: Path) -> None:
    assert complete("bash", [], "con", config) == ["plain,config"]


def test_bash_completion_completes_names_with_colons(config: Path) -> None:
    """Bash splits words at colons and passes ``anthropic:claude-son`` as three words."""
    assert complete("bash", ["ask", "anthropic", ":"], "claude-sonnet-4-6", config) == [
        "plain,claude-sonnet-4-6"
    ]
    after = complete("bash", ["ask", "anthropic"], ":", config)
    assert "plain,claude-opus-4-7" in after
    assert not [line for line in after if "anthropic:" in line]


def test_invalid_models_file_does_not_break_shell_completion(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text("[")
    assert "plain,groq:" in complete("bash", ["ask"], "gr", tmp_path / "models.yaml")


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_shell_completion_works_in_a_real_bash(config: Path, tmp_path: Path) -> None:
    program = tmp_path / "dragoman"
    program.write_text(
        f"#!{sys.executable}\nfrom dragoman.cli import main\nmain(prog_name='dragoman')\n"
    )
    program.chmod(0o755)
    script = f"""
        eval "$(_DRAGOMAN_COMPLETE=bash_source {program})"
        COMP_WORDS=(dragoman ask anthropic : claude-opus-4-7)
        COMP_CWORD=4
        _dragoman_completion {program}
        echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False,
        env={**os.environ, "DRAGOMAN_CONFIG": str(config)},
    )  # fmt: skip
    assert done.stdout.split()[:1] == ["claude-opus-4-7"], done.stderr
