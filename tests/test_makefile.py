"""``make chat`` passes its prompt verbatim, and never executes any part of it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rows import read_table

from .waiting import PATIENCE

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
    """Return a folder with the real Makefile, and programs that record their arguments."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    locks = [f"requirements/{name}.lock" for name in ("chat", "dev", "installer")]
    for name in ("pyproject.toml", *locks):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1, 1))
    for name in ("chat", "dev"):
        (tmp_path / ".venv" / name).touch()
    for name in ("dragoman", "python"):
        command = tmp_path / ".venv" / "bin" / name
        command.write_text(COMMAND.format(python=sys.executable))
        command.chmod(0o755)
    return tmp_path


# Remove the variables that an outer ``make test`` passes to this test.
_OUTER_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "ONLY", "PROMPT", "RECORDINGS")


def make(
    clone: Path, *words: str, **variables: str
) -> tuple[list[list[str]], subprocess.CompletedProcess[str]]:
    """Run make; return the arguments of each program that it started, and its output."""
    environment = {name: value for name, value in os.environ.items() if name not in _OUTER_MAKE}
    done = subprocess.run(
        ["make", *words], cwd=clone, env={**environment, **variables}, capture_output=True,
        text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    calls = clone / "calls.jsonl"
    lines = calls.read_text().splitlines() if calls.exists() else []
    return [json.loads(line) for line in lines], done


HOSTILE = read_table("make_chat_passes_the_prompt_verbatim")


@pytest.mark.parametrize("prompt", HOSTILE)
def test_make_chat_passes_the_prompt_verbatim(clone: Path, prompt: str) -> None:
    before = {path.name for path in clone.iterdir()}
    calls, _ = make(clone, "chat", f"PROMPT={prompt}")
    assert calls == [["chat", f"--prompt={prompt}"]]
    assert {path.name for path in clone.iterdir()} - before == {"calls.jsonl"}


def test_make_chat_reads_the_prompt_from_the_environment(clone: Path) -> None:
    calls, _ = make(clone, "chat", PROMPT="`touch harm` $(shell touch harm)")
    assert calls == [["chat", "--prompt=`touch harm` $(shell touch harm)"]]
    assert not (clone / "harm").exists()


def test_make_chat_without_a_prompt_shows_progress(clone: Path) -> None:
    calls, done = make(clone, "chat")
    assert calls == [["chat"]]
    assert done.stdout == "out\n"
    assert done.stderr == "progress\n"


def test_make_chat_installs_quietly_with_one_line(clone: Path) -> None:
    (clone / "requirements" / "chat.lock").write_text("a==1 \\\n    --hash=x\n# a==1\nb==2\n")
    (clone / ".venv" / "chat").unlink()
    calls, done = make(clone, "chat", PYTHON=str(clone / ".venv" / "bin" / "python"))
    line = "setting up .venv with 2 packages; this happens once ... "
    assert done.stdout.startswith(line)
    assert done.stdout.splitlines()[1:] == ["out", "out", "done", "out"]  # of the programs too
    installs = [call for call in calls if "pip" in call]
    assert len(installs) == 2
    assert all("--quiet" in call for call in installs)


def test_recordings_are_tested_only_if_there_are_some(clone: Path) -> None:
    calls, done = make(clone, "test-recordings")
    assert calls == []
    assert done.stdout == "there are no recordings in ../shared/corpus; no test was run\n"
    (clone / "my recordings").mkdir()
    (clone / "my recordings" / "recorded.jsonl.gz").touch()
    [call], _ = make(clone, "test-recordings", "RECORDINGS=my recordings")
    assert call[:5] == ["-m", "pytest", "-q", "-m", "recordings"]


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (["check"], ["-m", "scripts.run_tests", "check"]),
        (["test", "BOX=core"], ["-m", "scripts.run_box", "core"]),
        (["test-hard"], ["-m", "scripts.run_hard"]),
        (["test-hard", "ONLY=pinned"], ["-m", "scripts.run_hard", "pinned"]),
    ],
)
def test_targets_start_the_test_scripts(clone: Path, words: list[str], call: list[str]) -> None:
    (clone / "scripts").mkdir()
    (clone / "scripts" / "install_system.sh").touch()
    calls, _ = make(clone, *words)
    assert calls == [call]


def test_exhaustive_run_includes_each_file_that_is_sampled_otherwise() -> None:
    """A test that reads the variable without the mark is never run whole by the make target."""
    left_out = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        is_marked = "mark.exhaustive" in text or "mark.recordings" in text
        if "EXHAUSTIVE" in text and not is_marked:
            left_out.append(path.name)
    assert left_out == []
