"""``dragoman clients`` prints what the page about coding agents shows."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from dragoman.cli.clients import command, write_hint
from dragoman.gateway.clients import ADDRESS, read_clients
from tests.pages import ROOT, read_blocks

PAGE = ROOT / "docs" / "recipes" / "coding-agents.md"


def read_sections() -> dict[str, str]:
    """Return the sections of the page by title, in lower case with hyphens."""
    parts = re.split(r"^## (.*)\n", PAGE.read_text(), flags=re.MULTILINE)[1:]
    titles = [title.lower().replace(" ", "-").removesuffix("-cli") for title in parts[::2]]
    return dict(zip(titles, parts[1::2], strict=True))


@pytest.mark.parametrize("name", read_clients())
def test_page_and_command_agree(name: str, tmp_path: Path) -> None:
    client = read_clients()[name]
    section = read_sections()[name.removesuffix("-cli")]
    page = tmp_path / "section.md"
    page.write_text(section)
    assert [block.text for block in read_blocks(page)] == [
        step.text or step.run for step in client.steps
    ]
    files = re.findall(r"^In `(.*)`:$", section, flags=re.MULTILINE)
    assert files == [step.file for step in client.steps if step.file]
    assert bool(client.seen) != bool(client.checked)
    assert client.trial in section
    shown = CliRunner().invoke(command, [name])
    assert shown.exit_code == 0
    printed = shown.output
    for step in client.steps:
        assert (step.text or step.run) in printed
        assert step.file in printed


def test_page_has_no_client_that_the_table_lacks() -> None:
    sections = {title for title, text in read_sections().items() if "```" in text}
    assert sections == {name.removesuffix("-cli") for name in read_clients()}


@pytest.mark.parametrize("name", read_clients())
def test_address_and_model_are_replaced(name: str) -> None:
    options = ["--url", "https://gateway.test/", "--model", "mine"]
    shown = CliRunner().invoke(command, [name, *options])
    assert shown.exit_code == 0
    assert "https://gateway.test" in shown.output
    assert "mine" in shown.output
    assert ADDRESS not in shown.output
    assert "clever" not in shown.output


@pytest.mark.parametrize(
    ("options", "window", "longest", "prompt", "part"),
    [
        ((), 200_000, 64_000, 136_000, "0.129"),
        (("--window", "1000000"), 1_000_000, 64_000, 936_000, "0.892"),
        (("--window", "32000"), 32_000, 16_000, 16_000, "0.015"),
        (("--window", "400000", "--longest-reply", "128000"), 400_000, 128_000, 272_000, "0.259"),
        (("--window", "4000", "--longest-reply", "8000"), 4_000, 8_000, 1, "0.001"),
        (("--window", "10000000"), 10_000_000, 64_000, 9_936_000, "1.000"),
    ],
)
def test_sizes_are_those_of_the_model(
    options: tuple[str, ...], window: int, longest: int, prompt: int, part: str
) -> None:
    def show(name: str) -> str:
        shown = CliRunner().invoke(command, [name, *options])
        assert shown.exit_code == 0, shown.output
        return shown.output

    assert f"model_context_window = {window}\n" in show("codex")
    assert f'{{"context": {window}, "output": {longest}}}' in show("opencode")
    assert f'"maxInputTokens": {prompt},' in show("vs-code")
    assert f'"contextWindowSize": {window}}}' in show("qwen-code")
    # The program takes every model for one of 1,048,576 tokens.
    assert f'"compressionThreshold": {part}}}' in show("gemini-cli")


def test_name_of_a_model_is_not_replaced_twice() -> None:
    shown = CliRunner().invoke(command, ["aider", "--model", "cleverer-64000"])
    assert "--model openai/cleverer-64000\n" in shown.output


@pytest.mark.parametrize(
    ("url", "models", "expected"),
    [
        (ADDRESS, [], "dragoman clients NAME"),
        (ADDRESS, ["claude-*"], "dragoman clients NAME"),
        ("https://gw:8100", ["claude-*", "a b"],
         "dragoman clients NAME --url https://gw:8100 --model 'a b'"),
    ],
)  # fmt: skip
def test_gateway_prints_the_command_for_its_address_and_model(
    url: str, models: list[str], expected: str
) -> None:
    first, second = write_hint(url, models).splitlines()
    assert first == f"settings of a client: {expected}"
    assert second == f"NAME is {', '.join(read_clients())}"
    assert second in (ROOT / "docs" / "howto" / "serve.md").read_text()
    words = shlex.split(expected.replace("NAME", "codex"))[2:]
    shown = CliRunner().invoke(command, words)
    assert shown.exit_code == 0
    assert f"{url}/v1" in shown.output


def test_programs_are_listed_and_an_unknown_one_is_refused() -> None:
    listed = CliRunner().invoke(command, [])
    assert [line.split()[0] for line in listed.output.splitlines()] == list(read_clients())
    refused = CliRunner().invoke(command, ["vim"])
    assert refused.exit_code == 2
    assert "aider" in refused.output
