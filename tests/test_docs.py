"""What the documents say is true: blocks run, commands are documented, links lead somewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import click
import pytest

from dragoman.cli import main
from dragoman.local import LocalServer

from .real.tiny import write_model

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks(ROOT / "README.md")
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    words = capsys.readouterr().out
    assert "stop" in words or "length" in words


def test_the_codec_by_hand_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks(ROOT / "docs/howto/codec-by-hand.md")
    scope: dict[str, Any] = {"__name__": "howto"}
    exec(compile(example, "codec-by-hand.md", "exec"), scope)
    server = LocalServer(write_model(tmp_path / "tiny.gguf"))
    try:
        scope["ask"](server.start(), server.key)
    finally:
        server.stop()
    assert capsys.readouterr().out.splitlines()[0] == "message.start"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages(page: Path) -> None:
    text = page.read_text()
    for block in blocks(page):
        ast.parse(block)
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (page.parent / target).exists(), target


def test_the_vendor_example_runs() -> None:
    (example,) = blocks(ROOT / "docs/adding-a-vendor.md")
    scope: dict[str, Any] = {}
    exec(compile(example, "adding-a-vendor.md", "exec"), scope)
    assert scope["model"].capabilities.known("max_context_tokens") == 32768


def test_every_command_is_documented() -> None:
    reference = (ROOT / "docs/reference/cli.md").read_text()
    context = click.Context(main, info_name="dragoman")
    for name in main.list_commands(context):
        assert f"## dragoman {name}" in reference
    assert reference == _reference(), "run: python -m tests.test_docs"


def test_short_enough_to_be_read() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 30


def _reference() -> str:
    """The command's own help, as a page."""
    context = _context(main, "dragoman", None)
    pages = ["# The command\n\nWritten from `--help` itself. Exit codes: 0 fine, 1 a bug, 2 wrong usage,"]
    pages[0] += " 10–18 one per category of error, 130 interrupted.\n"
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        pages.append(_help(command, context, name))
        if isinstance(command, click.Group):
            inner = _context(command, name, context)
            pages += [_help(command.commands[each], inner, f"{name} {each}") for each in sorted(command.commands)]
    return "\n".join(pages)


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    """As the command line makes it: the settings that name the help option come along."""
    return click.Context(
        command, info_name=name, parent=parent, terminal_width=100, max_content_width=100, **command.context_settings
    )


def _help(command: click.Command, parent: click.Context, name: str) -> str:
    own = _context(command, name.split()[-1], parent)
    return f"## dragoman {name}\n\n```text\n{command.get_help(own)}\n```\n"


if __name__ == "__main__":
    (ROOT / "docs/reference").mkdir(parents=True, exist_ok=True)
    (ROOT / "docs/reference/cli.md").write_text(_reference())
