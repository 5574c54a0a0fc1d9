"""``make chat`` passes its prompt verbatim, and never executes any part of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMAND = """\
#!{python}
import json, pathlib, sys
with pathlib.Path("calls.jsonl").open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
print("out"), print("progress", file=sys.stderr)
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder with the real Makefile and a ``dragoman`` that records its arguments."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("requirements/chat.lock", "pyproject.toml"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / ".venv" / "chat").touch()
    command = tmp_path / ".venv" / "bin" / "dragoman"
    command.write_text(COMMAND.format(python=sys.executable))
    command.chmod(0o755)
    return tmp_path


# Remove the variables that an outer ``make test`` passes to this test.
_OUTER_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")


def chat(
    clone: Path, *words: str, **variables: str
) -> tuple[list[list[str]], subprocess.CompletedProcess[str]]:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PROMPT", *_OUTER_MAKE)
    }
    done = subprocess.run(
        ["make", "chat", *words],
        cwd=clone,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    calls = (clone / "calls.jsonl").read_text().splitlines()
    return [json.loads(call) for call in calls], done


HOSTILE = [
    "Say hello",
    'Say "hello" and `touch harm`',
    "It's $(touch harm) and $$(touch harm)",
    "$(shell touch harm)",
    "${shell touch harm} costs $5 and $PATH",
    "'; touch harm; '",
    '"; touch harm; "',
    "a\nb && touch harm",
    "-x --system harm",
    "100 % of C:\\n #comment",
]


@pytest.mark.parametrize("prompt", HOSTILE)
def test_make_chat_passes_the_prompt_verbatim(clone: Path, prompt: str) -> None:
    before = {path.name for path in clone.iterdir()}
    calls, _ = chat(clone, f"PROMPT={prompt}")
    assert calls == [["chat", f"--prompt={prompt}"]]
    assert {path.name for path in clone.iterdir()} - before == {"calls.jsonl"}


def test_make_chat_reads_the_prompt_from_the_environment(clone: Path) -> None:
    calls, _ = chat(clone, PROMPT="`touch harm` $(shell touch harm)")
    assert calls == [["chat", "--prompt=`touch harm` $(shell touch harm)"]]
    assert not (clone / "harm").exists()


def test_make_chat_without_a_prompt_shows_progress(clone: Path) -> None:
    calls, done = chat(clone)
    assert calls == [["chat"]]
    assert (done.stdout, done.stderr) == ("out\n", "progress\n")
