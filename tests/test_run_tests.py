"""The script behind ``make test`` runs all tests, counts them, and stops on an interrupt."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripts import run_tests
from scripts.run_hard import make_parts
from scripts.run_tests import Part, list_tests, print_results, pytest_part, run_parts

from .conftest import _shuffle

ROOT = Path(__file__).parents[1]
EXAMPLES = """
import pytest
def test_good(): pass
def test_bad(): print("shown"); assert 1 == 2
def test_left_out(): pytest.skip("ship is not installed")
@pytest.mark.xfail
def test_expected(): assert False
@pytest.fixture
def broken():
    yield
    raise ValueError("teardown")
def test_torn_down(broken): pass
"""

SILENT = """
import os, signal
def test_silent():
    signal.pause()  # until the runner asks for the stacks
    os._exit(3)
"""


def test_each_test_file_belongs_to_exactly_one_part() -> None:
    parts = [path for paths in list_tests().values() for path in paths]
    found = [
        file
        for path in parts
        for file in ([ROOT / path] if path.suffix else (ROOT / path).rglob("test_*.py"))
    ]
    assert sorted(found) == sorted((ROOT / "tests").rglob("test_*.py"))


def test_results_count_the_tests_and_end_with_the_names_of_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "test_examples.py"
    file.write_text(EXAMPLES)
    alone = ["-c", os.devnull, "--disable-plugin-autoload", "-p", "no:cacheprovider"]
    part = pytest_part("part", *alone, file)
    run_parts([part])
    assert print_results([part]) == 1
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines()]
    assert rows.index(["exit", "code", "1"]) == len(rows) - 2
    assert ["part", "3", "2", "1"] in [row[:4] for row in rows]
    assert "skipped, 1 tests:\n      1  ship is not installed\n" in shown
    tracebacks, _, names = shown.partition("\nfailed:\n")
    assert "ValueError: teardown" in tracebacks
    assert [line.partition("::")[2] for line in names.splitlines()] == [
        "test_bad", "test_torn_down", "", "", "",
    ]  # fmt: skip
    assert shown.endswith("\n3 passed, 2 failed, 1 skipped\n")


def test_hanging_tests_print_their_stacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tests, "SILENT_SECONDS", 0)
    file = tmp_path / "test_silent.py"
    file.write_text(SILENT)
    part = pytest_part("part", "-c", os.devnull, "--disable-plugin-autoload", file)
    run_parts([part])
    assert print_results([part]) == 1
    assert f'File "{file}", line 4 in test_silent' in capsys.readouterr().out


def test_step_that_fails_or_hangs_is_shown_with_its_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tests, "SILENT_SECONDS", 0)
    monkeypatch.setattr(run_tests, "SILENCES", 0)
    parts = [
        Part("good", sys.executable, "-c", ""),
        Part("bad", sys.executable, "-c", "print('the reason'); raise SystemExit(3)"),
        Part("hung", sys.executable, "-c", "import threading; threading.Event().wait()"),
    ]
    parts[2].total = 1  # it has collected a test, and reports nothing afterwards
    run_parts(parts)
    assert print_results(parts) == 1
    shown = capsys.readouterr().out
    assert "--- bad: exit code 3 ---\nthe reason\n" in shown
    failed = "failed:\n  bad: exit code 3\n  hung: exit code -9\n"
    assert shown.endswith(f"{failed}\nexit code 1\n0 passed, 2 failed\n")


CHILD = """
import pathlib, sys, threading
pipe = pathlib.Path(sys.argv[1]).open("wb", 0)
pipe.write(b".")
threading.Event().wait()
"""
RUNNER = """
import sys
from scripts.run_tests import Part, interruptible, run_parts
parts = [Part(name, sys.executable, "-c", *sys.argv[1:]) for name in "ab"]
sys.exit(interruptible(lambda: run_parts(parts)))
"""


def test_interrupt_stops_all_processes(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, CHILD, str(fifo)], cwd=ROOT, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    with fifo.open("rb", 0) as pipe:
        began = b""
        while len(began) < 2:
            began += pipe.read(1)
        runner.send_signal(signal.SIGINT)
        assert pipe.read() == b"", "the pipe ends when both processes have ended"
    assert b"all processes were stopped" in runner.communicate()[1]
    assert runner.returncode == 130


def test_alone_runs_each_file_in_a_process_of_its_own() -> None:
    names = [part.name for part in make_parts("alone", ["tests/events", "tests/wire/test_sse.py"])]
    assert "tests/wire/test_sse.py" in names
    assert names == sorted(set(names))
    assert len(names) == 1 + len(list((ROOT / "tests/events").glob("test_*.py")))


def test_shuffling_keeps_files_together_and_depends_only_on_the_seed() -> None:
    items: list[Any] = [SimpleNamespace(path=path, at=at) for path in "abc" for at in range(9)]
    shuffled = [list(items), list(items), list(items)]
    for each, seed in zip(shuffled, ("1", "1", "2"), strict=True):
        _shuffle(each, random.Random(seed))
    assert shuffled[0] == shuffled[1] != shuffled[2]
    assert len({"".join([item.path for item in each]) for each in shuffled}) == 2
    for each in shuffled:
        assert sorted([(item.path, item.at) for item in each]) == [
            (item.path, item.at) for item in items
        ]
        assert [item.path for item in each[::9]] == [item.path for item in each[8::9]]
        assert all([item.at for item in each[at : at + 9]] != [*range(9)] for at in (0, 9, 18))
