"""Run lint and the tests as parallel processes; show their progress and one table of the results.

    python -m scripts.run_tests          lint, all tests, coverage and speed: ``make test``
    python -m scripts.run_tests check    lint of changed files, types and fast tests: ``make check``

Each pytest process loads ``scripts/pytest_report.py`` as a plugin, which appends one line of JSON
for each test to a file.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
AT_ONCE = 8  # more than there are processors, because tests often wait
EVERY_SECONDS = 30  # how often a log gets a line about each running part
SILENT_SECONDS = 60  # after which a part of the tests that reports nothing prints its stacks
SILENCES = 30  # how often a part prints its stacks before it is stopped

# What is covered to the last branch, by its own tests alone; tracing the others would double their
# time. These tests run in one process: worker processes would be traced twice.
COVERED = [
    *("events", "messages", "validate", "wire"),
    *("test_calls_api.py", "test_capabilities.py", "test_errors.py"),
    *("test_model_ends.py", "test_plugins.py"),
]
# The other tests run in parts of about equal length, each in one process: every worker of
# pytest-xdist would import all tests, which takes half a minute of CPU. What no part names is in
# the part "rest".
PARTS = {
    # These import the package mcp, which takes a second.
    "attacks": ["attacks", "batches", "conformance", "replay", "tools", "transport"],
    # These import Playwright and start a browser.
    "sessions": ["cli", "log", "session", "trace", "web"],
    # These import the clients of the vendors and frameworks, which takes seconds.
    "gateway": [
        *("clients", "gateway", "integrations", "real", "retrieval", "sim"),
        *("test_call_records.py", "test_comparison.py", "test_docs.py"),
    ],
}


class Part:
    """A process that runs a part of the tests, or one step of lint."""

    def __init__(self, name: str, *command: str | Path, accept: tuple[int, ...] = (0,)) -> None:
        self.name = name
        self.command = list(map(str, command))
        self._accept = accept
        self.total = self.passed = self.failed = 0
        self.skips: Counter[str] = Counter()
        self.failures: list[tuple[str, str]] = []
        self.seconds = self.cpu_seconds = 0.0
        self.is_done = False
        self._silences = 0  # how often the part has printed its stacks since its last report

    def start(self, folder: Path, environment: dict[str, str]) -> None:
        file = self.name.replace("/", "-")
        self._output = folder / f"{file}.log"
        self._began = self._heard = time.monotonic()
        report = folder / f"{file}.jsonl"
        report.touch()
        self._report: IO[str] = report.open(encoding="utf-8")
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env={**os.environ, **environment, "DRAGOMAN_TEST_REPORT": str(report)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, so that stop() reaches all of it
            )

    def update(self) -> None:
        """Read what the process has reported, and check whether it has ended."""
        before = count_cpu_seconds()
        ended = self.process.poll() is not None
        self.cpu_seconds += count_cpu_seconds() - before
        now = time.monotonic()
        while line := self._report.readline():
            self._heard = now
            self._silences = 0
            if not line.endswith("\n"):  # the rest of the line is not written yet
                self._report.seek(self._report.tell() - len(line.encode()))
                break
            self._read(json.loads(line))
        self.seconds = now - self._began
        if self.total and not ended and now > self._heard + SILENT_SECONDS:
            self._heard = now
            self._silences += 1
            if self._silences > SILENCES:
                self.stop(signal.SIGKILL)
            else:
                self.process.send_signal(signal.SIGUSR1)
        if ended and not self.is_done:
            self.is_done = True
            self._report.close()
            if self.process.returncode not in self._accept and not self.failures:
                self.failed += 1
                text = self._output.read_text(errors="replace")
                name = f"{self.name}: exit code {self.process.returncode}"
                self.failures.append((name, "\n".join(text.splitlines()[-100:])))

    def _read(self, event: dict[str, Any]) -> None:
        self.total += event.get("collected", 0)
        if event.get("outcome") == "passed":
            self.passed += 1
        elif event.get("outcome") == "skipped":
            self.skips[event["reason"]] += 1
        elif event.get("outcome") == "failed":
            self.failed += 1
            self.failures.append((event["name"], event["text"]))

    def stop(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def __str__(self) -> str:
        done = self.passed + self.failed + self.skips.total()
        counts = f"{done} of {self.total} tests" if self.total else "running"
        if self.is_done:
            counts = f"{self.passed} passed" if self.total else "failed" if self.failed else "ok"
        failed = f", {self.failed} failed" if self.failed and self.total else ""
        return f"{self.name:<14} {counts}{failed}, {self.seconds:.0f} s"


def count_cpu_seconds() -> float:
    """Return the CPU time of all processes that have ended and been polled, theirs included."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def find_memory(place: str = "/dev/shm") -> str | None:
    """Return the folder whose files are in memory, if it has room and programs can run in it.

    On a disk, every write of a log or a database waits, and costs time of the CPU as well.
    """
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    has_room = found.f_bavail * found.f_frsize > 4 << 30
    return place if has_room and not found.f_flag & os.ST_NOEXEC else None


def run_parts(
    parts: Sequence[Part], at_once: int = AT_ONCE, environment: dict[str, str] | None = None
) -> None:
    """Run the parts, at most ``at_once`` at a time; stop all of them on an interrupt."""
    waiting = list(parts)
    running = list[Part]()
    screen = Screen()
    memory = find_memory()
    with tempfile.TemporaryDirectory(
        prefix="run-", dir=memory, ignore_cleanup_errors=True
    ) as folder:
        Path(folder).chmod(0o755)  # some tests run PostgreSQL as another user
        if memory:
            environment = {"TMPDIR": folder, **(environment or {})}
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    running.append(waiting.pop(0))
                    running[-1].start(Path(folder), environment or {})
                    screen.note(f"{running[-1].name:<14} started")
                time.sleep(0.2)
                for part in running:
                    part.update()
                screen.show(running)
                running = [part for part in running if not part.is_done]
        finally:
            for number in (signal.SIGINT, signal.SIGKILL):
                for part in running:
                    part.stop(number)
                until = time.monotonic() + 10
                while time.monotonic() < until and None in [p.process.poll() for p in running]:
                    time.sleep(0.1)


class Screen:
    """Show one line for each part: updated in place on a terminal, now and then in a log."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._lines = 0  # how many lines of running parts stand at the end of the terminal
        self._next = time.monotonic() + EVERY_SECONDS

    def note(self, text: str) -> None:
        if not self._is_terminal:
            print(text, flush=True)

    def show(self, running: list[Part]) -> None:
        shown = sorted(running, key=lambda part: not part.is_done)  # lines that stay come first
        if not self._is_terminal:
            is_due = time.monotonic() >= self._next
            self._next += EVERY_SECONDS if is_due else 0
            shown = [part for part in shown if part.is_done or is_due]
            print("".join([f"{part}\n" for part in shown]), end="", flush=True)
            return
        width = shutil.get_terminal_size().columns - 1
        up = f"\x1b[{self._lines}A" if self._lines else ""
        text = "".join([f"{str(part)[:width]}\x1b[K\n" for part in shown])
        print(f"{up}\r{text}\x1b[J", end="", flush=True)
        self._lines = len([part for part in shown if not part.is_done])


def print_results(parts: Sequence[Part]) -> int:
    """Print the table, the skipped tests, the failures and the sums; return the exit code."""
    width = max([14, *[len(part.name) for part in parts]])
    titles = f"{'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8} {'CPU':>6}"
    print(f"\n{'part':<{width}} {titles}")
    for part in parts:
        result = str(part.passed) if part.total else "no" if part.failed else "ok"
        skipped = part.skips.total() or ""
        row = f"{part.name:<{width}} {result:>7} {part.failed or '':>7} {skipped:>8}"
        print(f"{row} {part.seconds:>8.0f} {part.cpu_seconds:>6.0f}")
    print(f"{'all':<{width}} {count_cpu_seconds():>{len(titles)}.0f}")
    skips = sum([part.skips for part in parts], Counter[str]())
    if skips:
        print(f"\nskipped, {skips.total()} tests:")
        for reason, number in skips.most_common():
            print(f"{number:>7}  {reason}")
    failures = [failure for part in parts for failure in part.failures]
    for name, text in failures:
        print(f"\n--- {name} ---\n{text}")
    if failures:
        print("\nfailed:")
        for name, _ in failures:
            print(f"  {name}")
    passed = sum([part.passed for part in parts])
    failed = sum([part.failed for part in parts])
    code = 1 if failed else 0
    print(f"\nexit code {code}")
    print(f"{passed} passed, {failed} failed" + (f", {skips.total()} skipped" if skips else ""))
    return code


# --- the parts ---------------------------------------------------------------------------------


def pytest_part(name: str, *arguments: str | Path, accept: tuple[int, ...] = (0,)) -> Part:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "scripts.pytest_report"]
    # pytest would start and end a thread for each test, which takes milliseconds on a busy machine.
    command += ["-o", "faulthandler_timeout=0"]
    # Leave the processors to lint and the covered tests, which take longest.
    nice = [] if name == "covered" else ["nice", "-n", "3"]
    return Part(name, *nice, *command, *arguments, accept=accept)


def list_tests() -> dict[str, list[Path]]:
    """Return the folders and files under ``tests`` for each part."""
    tests = Path("tests")
    named = {name: [tests / path for path in paths] for name, paths in PARTS.items()}
    named = {"covered": [tests / path for path in COVERED], **named}
    known = {path for paths in named.values() for path in paths}
    files = {path.relative_to(ROOT) for path in (ROOT / tests).glob("test_*.py")}
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / tests).glob("*/test_*.py")}
    return {**named, "rest": sorted((files | folders) - known)}


def lint_parts(files: Sequence[str] = (), pages: Sequence[str] = ()) -> list[Part]:
    """Return the quick steps of lint, for these Python files and pages or for all."""
    everything = not files and not pages
    parts = [Part("prose", sys.executable, "scripts/prose.py", *files, *pages)]
    if files or everything:
        parts += [Part("ruff check", BIN / "ruff", "check", *(files or ["."]))]
        parts += [Part("ruff format", BIN / "ruff", "format", "--check", *(files or ["."]))]
    return parts


def run_all() -> int:
    # Hypothesis keeps a table of all characters in the checkout, which takes seconds to make.
    # Without these lines, each part of the tests would make its own, and compile the package and
    # the packages that nearly all parts import.
    table = "from hypothesis.internal import charmap; charmap.intervals_from_codec('utf-8'); "
    table += "import aiohttp, prompt_toolkit, psycopg, pytest, pytest_asyncio.plugin, rich.console"
    table += ", starlette.applications, uvicorn.config, xdist.plugin"
    subprocess.run([sys.executable, "-c", table], cwd=ROOT, check=True)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "src"], cwd=ROOT, check=True)
    tests = list_tests()
    covered = pytest_part("covered", "--cov", "--cov-report=", *tests.pop("covered"))
    # What a user's editor sees of the package. ``make lint`` checks the package itself as well,
    # which takes a minute of CPU and adds little to mypy.
    types = Part("basedpyright", BIN / "basedpyright", "--level", "error", "tests/typing")
    core = Part("box core", "nice", "-n", "3", sys.executable, "-m", "scripts.run_box", "core")
    parts = [Part("mypy", BIN / "mypy"), types, covered, core]
    parts += [pytest_part(name, *paths) for name, paths in tests.items()]
    parts += lint_parts()
    run_parts(parts)
    # Measure the speed while nothing else runs.
    last = [Part("coverage", BIN / "coverage", "report", "--fail-under=100")]
    last += [Part("speed", sys.executable, "-m", "bench.guard")]
    run_parts(last, at_once=1)
    return print_results([*parts, *last])


# --- the fast half, before a commit ------------------------------------------------------------

# These start hardly any process, and are more than half of all tests.
FAST = {
    "wire": ["wire"],
    "values": [
        *[path for path in COVERED if path != "wire"],
        *("conformance", "replay", "retrieval", "sim"),
        *("test_exports.py", "test_layers.py", "test_lists.py", "test_shape.py"),
    ],
}


def list_changed() -> list[str]:
    """Return the files that differ from the last commit, and new files."""
    changed = ["git", "diff", "--name-only", "--diff-filter=d", "HEAD"]
    new = ["git", "ls-files", "--others", "--exclude-standard"]
    found = [subprocess.check_output(each, cwd=ROOT, text=True) for each in (changed, new)]
    return "".join(found).splitlines()


def run_check() -> int:
    changed = list_changed()
    files = [path for path in changed if path.endswith(".py")]
    pages = [path for path in changed if path.endswith(".md") and "cases" not in path]
    parts = lint_parts(files, pages) if files or pages else []
    parts += [Part("mypy", BIN / "mypy")]
    for name, paths in FAST.items():
        parts += [pytest_part(name, *[Path("tests") / path for path in paths])]
    run_parts(parts, environment={"HYPOTHESIS_PROFILE": "quick"})
    return print_results(parts)


def interruptible(run: Callable[[], int]) -> int:
    """Return the exit code of ``run``, or 130 if it is interrupted or terminated."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run()
    except KeyboardInterrupt:
        print("\ninterrupted; all processes were stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(interruptible(run_check if sys.argv[1:] == ["check"] else run_all))
