"""The whole programs of the documentation run against the simulator, and their types are right.

Each program is written to the file that its first line names, and runs in a process of its own, as
a reader runs it: the addresses of the vendors are those of the simulator.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from mypy import api

from dragoman import OverloadedError
from dragoman.sim import Answer, Call, ScriptedProvider, SimServer, serve

from .pages import PAGES as ALL_PAGES
from .pages import ROOT, Block, read_blocks
from .waiting import PATIENCE

PROGRAMS = ROOT / "docs/programs"
PAGES = sorted(page for page in PROGRAMS.glob("*.md") if page.stem != "index")

# The command of each program in place of ``python FILE``.
COMMANDS = {
    "images": ["look.py", "photo.png", "report.pdf"],
    # the plugins of other packages take most of the time of a start
    "tests": ["-m", "pytest", "-q", "--disable-plugin-autoload", "-p", "pytest_asyncio.plugin",
              "-p", "dragoman.testing", "test_program.py"],
    "web-chat": ["-c", "import web; from fastapi.testclient import TestClient\n"
                 "with TestClient(web.app) as client:\n"
                 "    print(client.get('/').text, client.post('/ask?prompt=Hi').text)"],
}  # fmt: skip
TYPED = {"approval": "n\ny\n", "chat": "Hi\n\n"}
INVOICE = (
    '{"vendor": "ACME Corp", "day": "2026-03-02", "total": 129.5, "currency": "USD",'
    ' "items": [{"name": "anvil", "quantity": 3}]}'
)
PICTURE = '{"title": "A boat", "objects": ["lake"], "text_in_picture": ""}'
WRITE = Call("write_note", {"name": "rivers2.txt", "text": "Elbe"})
SCRIPTS: dict[str, list[Any]] = {
    "approval": [
        Answer(tool_calls=[Call("read_note", {"name": "rivers.txt"})]),
        Answer(tool_calls=[WRITE]),
        Answer(tool_calls=[WRITE]),
        "Sorted.",
    ],
    "extraction": ['{"vendor": "ACME Corp"}', INVOICE],
    "fallback": [
        OverloadedError("busy"),
        OverloadedError("busy"),
        OverloadedError("busy"),
        "Long.",
    ],
    "from-openai": [Answer(tool_calls=[Call("depth", {"river": "Rhine"})]), "The Elbe."] * 2,
    "images": [PICTURE, "Three sentences."],
    "many-rows": ['{"kind": "delivery"}'],
}
PRINTED = {
    "approval": ["write_note {'name': 'rivers2.txt'", "completed Sorted."],
    "chat": ["> The Rhine."],
    "costs": ["openai:gpt-6-luna", "0 unknown"],
    "debugging": ["dragoman DEBUG", "The Rhine.", "setting_refused"],
    "extraction": ["ACME Corp 129.5 USD", "3 anvil"],
    "fallback": [
        "RoutingSwitched",
        "gpt-6-sol Long. spent 0.",
        "claude-sonnet-4-6 Long. spent 0.",
    ],
    "from-litellm": ["The Rhine. 0.0", "The Rhine. 0.0"],
    "from-openai": ["depth {'river': 'Rhine'}", "The Elbe."],
    "images": ["photo.png A boat ['lake']", "report.pdf Three sentences."],
    "many-rows": ["20 rows, 0 failed", "[('delivery', 20)]"],
    "proxy": ["The Rhine. 0.0"],
    "rag": ["The Rhine."],
    "several-models": ["openai:gpt-6-luna: ", "anthropic:claude-sonnet-4-6: ", "USD\nThe Rhine."],
    "tests": ["5 passed"],
    "web-chat": ["<form>", '"type":"text.delta"', "The Rhine."],
}


def write_programs(page: Path, folder: Path) -> list[Path]:
    """Write each Python block of a page to the file that its first line names."""
    files = []
    for block in read_blocks(page):
        if block.language == "python":
            named = re.match(r"# (\w+\.py)\n", block.text)
            assert named, f"{page.name}:{block.line}: the first line names no file"
            files.append(folder / named[1])
            files[-1].write_text(block.text)
    return files


def environment(sim: SimServer) -> dict[str, str]:
    """Return variables that send the vendors' calls to the simulator."""
    return {
        **os.environ,
        "OPENAI_BASE_URL": sim.base_urls["openai"],
        "OPENAI_API_KEY": "k",
        "ANTHROPIC_BASE_URL": sim.base_urls["anthropic"],
        "ANTHROPIC_API_KEY": "k",
        "COMPANY_GATEWAY": sim.base_urls["anthropic"],
        "COMPANY_KEY": "k",
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_program_runs_against_the_simulator(page: Path, tmp_path: Path) -> None:
    files = write_programs(page, tmp_path)
    assert files
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "report.pdf").write_bytes(b"%PDF-1.7")
    commands = [COMMANDS[page.stem]] if page.stem in COMMANDS else [[file.name] for file in files]
    with serve(ScriptedProvider(*SCRIPTS.get(page.stem, ["The Rhine."]))) as sim:
        shown = ""
        for command in commands:
            done = subprocess.run(
                [sys.executable, *command], cwd=tmp_path, input=TYPED.get(page.stem, ""),
                capture_output=True, text=True, timeout=PATIENCE, check=False,
                env=environment(sim),
            )  # fmt: skip
            shown += done.stdout + done.stderr
            assert done.returncode == 0, shown
    missing = [text for text in PRINTED[page.stem] if text not in shown]
    assert missing == [], shown


def check_types(folder: Path) -> str:
    """Check the files of a folder as strictly as the package; return the errors.

    It shares the cache of ``make lint``, because reading the modules of other packages takes a
    minute.
    """
    with mock.patch.dict(os.environ, {"MYPYPATH": str(folder)}):
        found, problems, _ = api.run(
            ["--config-file", str(ROOT / "pyproject.toml"),
             "--cache-dir", str(ROOT / ".mypy_cache"), "--no-error-summary",
             *map(str, sorted(folder.glob("*.py")))]
        )  # fmt: skip
    return found + problems


def name_file(page: Path, block: Block) -> str:
    """Return the name of the example that a block is, the name that its first line states, or one
    of the page and line.
    """
    for example in sorted((ROOT / "examples").rglob("*.py")):
        if example.read_text(encoding="utf-8").strip() == block.text.strip():
            return example.name
    named = re.match(r"# (\w+\.py)\n", block.text)
    place = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
    return named[1] if named else f"{place}_{block.line}.py"


def test_types_of_all_examples_are_right(tmp_path: Path) -> None:
    count = 0
    for page in ALL_PAGES:
        for block in read_blocks(page):
            if block.language == "python":
                (tmp_path / name_file(page, block)).write_text(block.text)
                count += 1
    assert len(list(tmp_path.iterdir())) == count, "two files of this name"
    assert count > 190
    assert check_types(tmp_path) == ""


def test_a_wrong_type_in_an_example_is_found(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "from dragoman import Embedder, ToolResult\n"
        "async def run(e: Embedder) -> None:\n    await e.embed(5)\n    ToolResult('id')\n"
    )
    found = check_types(tmp_path)
    assert "wrong.py:3: error" in found
    assert "wrong.py:4: error" in found
