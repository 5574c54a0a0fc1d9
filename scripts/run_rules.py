"""Break each rule of the specifications, and check that its test notices: ``make test-rules``.

    python -m scripts.run_rules                    all rules; half an hour on two cores
    python -m scripts.run_rules spec contract.7    the rules of a document, and a rule
    python -m scripts.run_rules -v spec.7          with what the test prints

A row of ``tests/tables/rules_*.jsonl`` has a mutation: a patch of one place. It is applied to a copy
of the repository, in which the tests of the row must fail; without it, they must pass. Each run of
pytest is a process that is forked from this one, so that it does not import the packages of others
again. The run fails if a mutation is not noticed, or cannot be applied any more; rules without a
mutation are listed.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.run_tests import ROOT, find_memory
from tests.specified import Mutation, Specified, find_place, find_tests, read_rules

COPIED = (
    *("src", "tests", "scripts", "docs", "examples", "deploy", "bench", "scoreboards", "changes"),
    *("conftest.py", "pyproject.toml", "Makefile", "README.md", "CHANGELOG.md", "AGENTS.md"),
    *("CONTRIBUTING.md", "LICENSE", "SECURITY.md", "zensical.toml", "requirements"),
)
AT_ONCE = 50  # tests in one run without a mutation
SECOND = 10**9  # in nanoseconds
SECONDS = 300  # for one run; a test that hangs has not noticed the mutation
SOUND = "without a mutation"
FAILED = 1  # pytest's exit code if tests failed; others mean that no test could run
# What most tests import, so that a forked process has it already.
PACKAGES = (
    *("aiohttp", "hypothesis", "hypothesis.internal.charmap", "jsonschema", "msgspec", "pytest"),
    *("prompt_toolkit", "pytest_asyncio.plugin", "pytest_cov.plugin", "rich.console", "yaml"),
    *("starlette.applications", "uvicorn.config", "xdist.plugin", "_hypothesis_pytestplugin"),
)


class Job(NamedTuple):
    """One run of tests: with a mutation, or without one."""

    name: str
    tests: tuple[str, ...]
    mutation: Mutation | None

    @property
    def expected(self) -> int:
        return FAILED if self.mutation else 0


class Result(NamedTuple):
    job: Job
    code: int | None  # the exit code of pytest; None if it took too long, or never began
    seconds: float
    output: str


def find_file(root: Path, mutation: Mutation) -> Path:
    """Return the file that a mutation patches, even if it has moved within the package."""
    package = root / "src/dragoman"
    for place in (package / mutation.file, root / mutation.file):
        if place.is_file() and place.read_text(encoding="utf-8").count(mutation.before) == 1:
            return place
    found = [
        place
        for place in package.rglob("*.py")
        if place.read_text(encoding="utf-8").count(mutation.before) == 1
    ]
    if len(found) != 1:
        raise LookupError(f"{len(found)} files have the text once: {mutation.before!r}")
    return found[0]


class Tree:
    """A copy of the repository in which one job runs at a time."""

    def __init__(self, folder: Path, source: Path = ROOT) -> None:
        self.folder = folder
        skip = shutil.ignore_patterns(".*_cache")  # compiled modules are copied
        for name in COPIED:
            if (source / name).is_dir():
                shutil.copytree(source / name, folder / name, ignore=skip)
            elif (source / name).exists():
                shutil.copy2(source / name, folder / name)
        self._mutations = 0
        self._job: Job | None = None
        self._restore: tuple[Path, bytes, os.stat_result] | None = None

    def start(self, job: Job) -> None:
        """Apply the mutation of a job, and start its tests."""
        self._job = job
        self._began = time.monotonic()
        if job.mutation is not None:
            place = find_file(self.folder, job.mutation)
            facts = place.stat()
            self._restore = place, place.read_bytes(), facts
            text = place.read_text(encoding="utf-8")
            place.write_text(
                text.replace(job.mutation.before, job.mutation.after), encoding="utf-8"
            )
            # Python takes a compiled module for current if seconds and size agree, so no two mutations
            # have the same second: programs that tests start may have compiled the one before.
            self._mutations += 1
            changed = facts.st_mtime_ns + self._mutations * SECOND
            os.utime(place, ns=(facts.st_atime_ns, changed))
        self._output = self.folder / "output.txt"
        sys.stdout.flush()
        self._process = os.fork()
        if not self._process:
            run_pytest(self.folder, self._output, job)

    def poll(self) -> Result | None:
        """Return the result of the job if it has ended; stop it if it takes too long."""
        assert self._job is not None
        seconds = time.monotonic() - self._began
        ended, status = os.waitpid(self._process, os.WNOHANG)
        code: int | None = None
        if ended:
            code = os.waitstatus_to_exitcode(status)
        elif seconds < SECONDS:
            return None
        self.stop()
        if self._restore is not None:
            place, data, before = self._restore
            place.write_bytes(data)
            os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
            self._restore = None
        return Result(self._job, code, seconds, self._output.read_text(errors="replace"))

    def stop(self) -> None:
        """End the process and those that it started."""
        try:
            os.killpg(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def run_pytest(folder: Path, output: Path, job: Job) -> None:
    """Run the tests of a copy in this process, and end it with pytest's exit code."""
    code = 70
    try:
        os.setsid()
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(file, number)
        os.chdir(folder)
        places = [str(folder / "src"), str(folder)]
        sys.path[:] = [*places, *[each for each in sys.path if each not in ("", str(ROOT))]]
        for name in list(sys.modules):
            if name.partition(".")[0] in ("dragoman", "scripts", "tests"):
                del sys.modules[name]
        os.environ["PYTHONPATH"] = os.pathsep.join(places)
        if job.mutation is not None:  # the sound module must not be read from a broken one's
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        options = ["-q", "--tb=short", "-p", "no:cacheprovider", "--rootdir", str(folder)]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        options += ["-x"] if job.mutation is not None else []
        code = int(importlib.import_module("pytest").main([*options, *job.tests]))
        sys.stdout.flush()
    finally:
        os._exit(code)


def run_jobs(jobs: Sequence[Job], trees: Sequence[Tree]) -> Iterator[Result]:
    """Run all jobs, one at a time in each tree; yield each result."""
    waiting = list(jobs)
    idle = list(trees)
    busy = list[Tree]()
    try:
        while waiting or busy:
            while waiting and idle:
                job = waiting.pop(0)
                tree = idle.pop()
                try:
                    tree.start(job)
                except LookupError as error:
                    idle.append(tree)
                    yield Result(job, None, 0, str(error))
                    continue
                busy.append(tree)
            time.sleep(0.01)
            for tree in list(busy):
                result = tree.poll()
                if result is not None:
                    busy.remove(tree)
                    idle.append(tree)
                    yield result
    finally:
        for tree in busy:
            tree.stop()


def run_everything(
    sound: Sequence[Job], broken: Sequence[Job], source: Path = ROOT
) -> Iterator[Result]:
    """Run the tests without a mutation in one tree, then the mutations in copies of it."""
    for package in PACKAGES:
        importlib.import_module(package)
    with tempfile.TemporaryDirectory(
        prefix="rules-", dir=find_memory(), ignore_cleanup_errors=True
    ) as folder:
        first = Tree(Path(folder) / "0", source)
        yield from run_jobs(sound, [first])
        count = min(os.cpu_count() or 1, len(broken))
        others = [Tree(Path(folder) / str(number), first.folder) for number in range(1, count)]
        yield from run_jobs(broken, [first, *others])


def make_jobs(rules: Sequence[Specified]) -> tuple[list[Job], list[Job]]:
    """Return the runs without a mutation, each of several tests, and those with one."""
    places = find_tests()
    broken = [
        Job(rule.number, tuple([find_place(test, places) for test in rule.tests]), rule.mutation)
        for rule in rules
        if rule.mutation is not None
    ]
    tests = sorted({test for job in broken for test in job.tests})
    chunks = [tuple(tests[at : at + AT_ONCE]) for at in range(0, len(tests), AT_ONCE)]
    return [Job(SOUND, chunk, None) for chunk in chunks], broken


def describe(result: Result) -> str:
    """Return why a result is not the expected one."""
    if result.code is None:
        return f"took {SECONDS} s" if result.seconds else result.output
    if result.job.mutation is None:
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", result.output, re.MULTILINE)
        return f"fails without a mutation: {', '.join(failed) or 'no test ran'}"
    return "was not noticed" if not result.code else "no test ran"


def check(sound: Sequence[Job], broken: Sequence[Job], source: Path, *, verbose: bool) -> int:
    """Run the jobs; print what is wrong, and return the exit code."""
    failures: list[str] = []
    for result in run_everything(sound, broken, source):
        job, code, seconds, output = result
        if verbose or code != job.expected:
            print(f"--- {job.name}: {code}, {seconds:.1f} s\n{output}", flush=True)
        if code != job.expected:
            tests = f" ({', '.join(job.tests)})" if job.mutation is not None else ""
            failures.append(f"{job.name}: {describe(result)}{tests}")
    print("\n".join(failures))
    missed = len([each for each in failures if not each.startswith(SOUND)])
    print(f"{len(broken)} mutations, {len(broken) - missed} noticed; {len(failures)} failures")
    return 1 if failures else 0


def main(arguments: Sequence[str]) -> int:
    verbose = "-v" in arguments
    chosen = [each for each in arguments if each != "-v"]
    rules = [
        rule
        for rule in read_rules()
        if not chosen or rule.number in chosen or rule.number.partition(".")[0] in chosen
    ]
    code = check(*make_jobs(rules), ROOT, verbose=verbose)
    without = [rule.number for rule in rules if rule.mutation is None]
    print(f"{len(rules)} rules, {len(without)} without a mutation: {', '.join(without)}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
