"""``dragoman config``: checks and prints the user's models.yaml."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dragoman.cli import main
from dragoman.validate.yaml import MAX_BYTES


def run(*words: str, **variables: str) -> Result:
    return CliRunner().invoke(main, ["config", *words], env=variables)


def test_valid_configuration_file_passes_the_check(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(
        "adapters: {a: {type: openai, api_key_env: K}, b: {type: azure, api_key_env: K}, c: {type:"
        " vllm}}\nmodels: {a:m: {aliases: [x, y]}}\n"
    )
    result = run("check", str(file), K="")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[1] == ["a", "openai", "openai", "not_configured", "set", "K"]
    assert lines[2] == ["b", "azure", "openai", "not_configured", "set", "base_url"]
    assert lines[3] == ["c", "vllm", "openai", "configured"]
    assert "3 adapters, 1 models, 2 aliases" in result.stdout
    data = json.loads(run("check", "--json", DRAGOMAN_CONFIG=str(file), K="k").stdout)
    assert data["ok"] is True
    assert data["errors"] == []
    assert data["models"] == ["a:m"]
    expected = ["configured", "not_configured", "configured"]
    assert [each["status"] for each in data["adapters"]] == expected


def test_every_configuration_mistake_is_reported_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(
        "adapters:\n  a:\n    type: openia\n    api_key: sk-canary-1\n    options: {x: 1}\n"
        "models:\n  a:m: {tier: [1]}\n"
    )
    result = run("check", str(file))
    assert result.exit_code == 2
    assert (
        f"error: {file}:3: adapters.a.type: no such type 'openia'; did you mean openai?"
        in result.stderr
    )
    assert f"error: {file}:7: models.a:m.tier: must be a string, not a list" in result.stderr
    assert f"remark: {file}:5: adapters.a.options.x: no adapter" in result.stderr
    assert (
        f"remark: {file}:4: adapters.a.api_key: the key is in the file as plain text"
        in result.stderr
    )
    data = json.loads(run("check", str(file), "--json").stdout)
    assert [(each["line"], data["ok"]) for each in data["errors"]] == [(3, False), (7, False)]
    assert "canary" not in result.output


def bad_files(folder: Path) -> dict[str, Any]:
    loop = folder / "loop"
    loop.symlink_to(loop)
    (folder / "large").write_bytes(b"#" * (MAX_BYTES + 1))
    (folder / "tabs").write_text("adapters:\n\ta: {}\n")
    (folder / "twice").write_text("models: {}\nmodels: {}\n")
    (folder / "latin").write_bytes(b"\xff\xfe\xfa")
    (folder / "broken").write_text("adapters: {a: [\n")
    (folder / "itself").write_text("adapters: &a {x: *a}")
    (folder / "deep").write_text("models: " + "[" * 200_000)
    (folder / "nul").write_bytes(b"adapters: \x00\n")
    return {
        "loop": "cannot be read", "large": "larger than 4 MiB",
        "tabs": ":2: a tab cannot indent a line; use spaces",
        "twice": ":2: 'models' is there twice, first on line 1", "latin": "not UTF-8",
        "broken": ":2: did not find", "nul": ":1: ", "itself": ":1: the alias *a stands inside",
        "deep": ":1: nested more than 100 deep", "none": "cannot be read: No such file",
        ".": "cannot be read: Is a directory",
    }  # fmt: skip


def test_every_command_reports_an_invalid_configuration_in_one_line(tmp_path: Path) -> None:
    for name, words in bad_files(tmp_path).items():
        file = tmp_path / name
        checked = run("check", str(file))
        assert checked.stdout == "", name
        assert checked.exit_code == 2, name
        assert words in checked.stderr
        assert len(checked.stderr.splitlines()) == 1
        if name == "none":
            continue
        for command in (["models"], ["ask", "openai:gpt-5", "Hi"], ["serve"]):
            used = CliRunner().invoke(main, command, env={"DRAGOMAN_CONFIG": str(file)})
            assert used.stdout == "", (name, command)
            assert used.exit_code == 2, (name, command)
            assert words in used.stderr
            assert len(used.stderr.splitlines()) == 1, used.stderr


def test_huge_configuration_file_is_rejected_without_reading_it(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    with file.open("wb") as sparse:
        sparse.truncate(50 * 1024 * 1024)
    assert "larger than" in run("check", str(file)).stderr


def test_missing_default_configuration_file_is_not_an_error(tmp_path: Path) -> None:
    elsewhere = {"DRAGOMAN_CONFIG": "", "XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    result = run("check", **elsewhere)
    assert "none is needed" in result.stdout
    assert result.exit_code == 0
    assert json.loads(run("check", "--json", **elsewhere).stdout)["ok"] is True


@pytest.mark.parametrize("words", [["config", "check"], ["ask", "openai:gpt-5", "Hi"], ["models"]])
def test_missing_file_is_an_error_if_it_was_named(words: list[str], tmp_path: Path) -> None:
    nowhere = str(tmp_path / "models.yaml")
    result = CliRunner().invoke(main, words, env={"DRAGOMAN_CONFIG": nowhere})
    assert result.exit_code == 2
    assert nowhere in result.stderr


@pytest.mark.parametrize("exists", [True, False])
def test_path_of_the_configuration_file_is_printed(exists: bool, tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    if exists:
        file.write_text("")
    result = run("path", DRAGOMAN_CONFIG=str(file))
    assert result.stdout == f"{file}\n"
    assert result.exit_code == 0
    expected = {"path": str(file), "exists": exists}
    assert json.loads(run("path", "--json", DRAGOMAN_CONFIG=str(file)).stdout) == expected


def test_explain_command_prints_the_provider_layers_of_a_model(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(
        "adapters: {a: {type: openai, api_key_env: [K1, K2], rate_limit: {max_concurrency: 2},"
        " proxy: 'http://me:canary@10.0.0.1:3128'}}\n"
        "models: {a:gpt-5: {aliases: [mine]}}\n"
        "groups: {fast: {strategy: weighted, candidates: [{model: a:gpt-5, timeouts: 9}]}}\n"
    )
    known = {"DRAGOMAN_CONFIG": str(file), "K1": "sk-canary-1", "K2": ""}
    result = run("explain", "fast", **known)
    assert result.exit_code == 0
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[0] == "Fallback(name='fast', strategy='weighted', weights=[1.0])"
    for line in (
        "1. RateLimit(max_concurrency=2)",
        "HttpProvider a:gpt-5",
        "keys: K1 (set), K2 (not set)",
        "timeouts: connect 10.0, first_event 300.0, idle 120.0, total 9.0",
        "proxy: http://10.0.0.1:3128",
        "priced as: openai:gpt-5",
    ):
        assert line in lines
    assert "canary" not in result.output
    data = json.loads(run("explain", "mine", "--json", **known).stdout)
    assert data["stack"].splitlines()[0] == "Retry(max_retries=2)"
    assert data["models"][0]["wire"] == "openai"
    assert run("explain", "local", **known).exit_code == 0
    wrong = run("explain", "fsat", **known)
    assert "did you mean" in wrong.stderr
    assert wrong.exit_code == 11
