"""Mutated requests, replies, logs, policies and configuration cause no traceback and no unexpected
error, and never block the event loop.

``make test`` runs some hundred cases, ``make test-exhaustive`` 100,000 requests and as many
replies; ``DRAGOMAN_FUZZ=1000000`` sets another number. Inputs that once failed are kept in
``corpus/`` and run each time.
"""

import asyncio
import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.conformance.retrieval import find_retrieval_cases
from dragoman.errors import ProviderError
from dragoman.log import SqliteLog
from tests.log.samples import WRITABLE
from tests.wire.cases import find_cases

from .. import cpu
from . import fuzzers
from .fuzzers import CASES, CORPUS, Broken, Fuzzer
from .hold import MOST, HeldError, check_held, run_watched, watching

# How many requests and how many replies a long run tests. It also loads files, a twentieth of this
# number for each kind of file.
FUZZ = int(
    os.environ.get("DRAGOMAN_FUZZ", "100000" if os.environ.get("DRAGOMAN_EXHAUSTIVE") else "0")
)
SEED = int(os.environ.get("DRAGOMAN_FUZZ_SEED", "1"))
EVERY = 1 if FUZZ else 8  # of the conformance cases, a short run tests one of this number
BATCH = 200  # number of cases in one run of the event loop


async def run_cases(fuzzer: Fuzzer, seeds: range) -> Counter[str]:
    ends: Counter[str] = Counter()
    for seed in seeds:
        rng = random.Random(seed)
        began = time.thread_time()
        ends[await fuzzer(rng)] += 1
        check_held(time.thread_time() - began, f"{fuzzer.__name__}, seed {seed}")
    return ends


def fuzz(fuzzer: Fuzzer, cases: int, first: int) -> Counter[str]:
    ends: Counter[str] = Counter()
    for start in range(first, first + cases, BATCH):
        seeds = range(start, min(start + BATCH, first + cases))
        try:
            ends += run_watched(run_cases(fuzzer, seeds))
        except HeldError:
            # Try again: a garbage collection may slow down one run, but not two.
            ends += run_watched(run_cases(fuzzer, seeds))
    return ends


# The fuzzers, the number of cases of a short run, and how many outcomes these must have at least.
FUZZERS: dict[Fuzzer, tuple[int, int]] = {
    fuzzers.fuzz_request: (150, 5),
    fuzzers.fuzz_reply: (150, 5),
    fuzzers.fuzz_passed_request: (60, len(CASES)),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(16 if FUZZ else 1))
@pytest.mark.parametrize("fuzzer", FUZZERS, ids=["requests", "replies", "passed"])
def test_mutated_requests_and_replies_cause_no_error(
    fuzzer: Fuzzer, part: int, count: Callable[[str, int], None]
) -> None:
    short, outcomes = FUZZERS[fuzzer]
    cases = FUZZ // 16 or short
    assert len(fuzz(fuzzer, cases, SEED * 10**9 + part * cases)) >= outcomes
    count(f"cases of {fuzzer.__name__}", cases)


# --- fuzzing files -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return an export of a log with every type of record."""
    folder = tmp_path_factory.mktemp("log")

    async def write() -> None:
        with SqliteLog(folder / "log.db") as log:
            for number, payload in enumerate(WRITABLE[:60]):
                await log.append(f"session-{number % 3}", payload)
            log.export(folder / "log.jsonl")

    asyncio.run(write())
    return (folder / "log.jsonl").read_bytes()


def fuzz_files(kind: str, cases: int, first: int, exported: bytes, folder: Path) -> Counter[str]:
    """Load mutated files of one kind and count the outcomes; fail if loading blocks the event
    loop.
    """

    def run(seed: int) -> str:
        rng = random.Random(seed)
        return (
            fuzzers.fuzz_log(rng, exported, folder)
            if kind == "log"
            else fuzzers.fuzz_file(kind, rng, folder)
        )

    run(first)  # the first run is not measured, because it imports modules and loads the catalogue
    ends: Counter[str] = Counter()
    for seed in range(first, first + cases):
        for is_last in (False, True):
            began = time.thread_time()
            end = run(seed)
            try:
                check_held(time.thread_time() - began, f"a file, seed {seed}")
            # The CPU time depends on other processes, so only a repeated excess is an error.
            except HeldError:
                if is_last:
                    raise
            else:
                ends[end] += 1
                break
    return ends


KINDS = ["log", *fuzzers.FILES]


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(4 if FUZZ else 1))
@pytest.mark.parametrize("kind", KINDS)
def test_mutated_files_raise_only_expected_errors(
    kind: str, part: int, exported: bytes, tmp_path: Path, count: Callable[[str, int], None]
) -> None:
    cases = FUZZ // 80 or 40
    ends = fuzz_files(kind, cases, SEED * 10**9 + part * cases, exported, tmp_path)
    assert sum(ends.values()) == cases
    assert len([end for end, times in ends.items() if times > 2]) >= 2
    count(f"mutated files: {kind}", cases)


@pytest.mark.parametrize("kind", fuzzers.FILES)
def test_unchanged_fuzz_input_files_can_be_loaded(kind: str, tmp_path: Path) -> None:
    assert fuzzers.use_file(kind, fuzzers.FILES[kind][0], tmp_path) == "loaded"


# --- bugs that fuzzing found earlier -----------------------------------------------------------

FOUND: list[dict[str, Any]] = [
    json.loads(line)
    for path in sorted(CORPUS.glob("*.jsonl"))
    for line in path.read_text().splitlines()
    if line.strip()
]


@pytest.mark.parametrize("case", FOUND, ids=[case["name"] for case in FOUND])
def test_bugs_that_fuzzing_found_earlier_stay_fixed(case: dict[str, Any], tmp_path: Path) -> None:
    """Each case in the corpus has a ``body`` that once caused a failure. In the body, ``@@``
    stands for the text ``unit``, repeated ``times`` times.
    """
    body = (
        case["body"]
        .replace("@@", case.get("unit", "") * case.get("times", 1))
        .encode("utf-8", "surrogatepass")
    )
    for tries_left in (2, 1, 0):
        try:
            _run_found(case, body, tmp_path)
        # The CPU time depends on other processes, so only a repeated excess is an error.
        except HeldError:
            if not tries_left:
                raise
        else:
            return


def _run_found(case: dict[str, Any], body: bytes, folder: Path) -> None:
    if case["kind"] in fuzzers.FILES:
        assert fuzzers.use_file(case["kind"], body, folder) == case["end"]
        return
    if case["kind"] == "request":
        for upstream in (None, *CASES):
            run_watched(fuzzers.send_request(case["wire"], body, upstream=upstream))
        return
    like = next(one for one in CASES[case["wire"]] if one.options.status == 200)
    status = case.get("status", 200)
    for stream in (False, True):
        run_watched(fuzzers.read_reply(like, status, {}, [body], stream=stream))


def test_fuzzer_detects_a_blocked_event_loop() -> None:
    async def spin() -> None:
        until = time.thread_time() + MOST * cpu.measure_unit()
        while time.thread_time() < until:
            pass

    with pytest.raises(HeldError):
        run_watched(spin(), MOST / 2)


def test_fuzzer_detects_an_unexpected_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("x")

    monkeypatch.setattr(fuzzers, "post", fail)
    with pytest.raises(Broken, match="KeyError left the application"):
        run_watched(fuzzers.fuzz_request(random.Random(1)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("wire", sorted(CASES))
def test_no_conformance_case_blocks_the_event_loop(wire: str) -> None:
    """Run conformance replies through a provider and requests through a gateway."""

    async def run(case: Any) -> None:
        for stream in (False, True) if case.reply else ():
            await fuzzers.read_reply(
                case, case.options.status, case.options.headers, [case.reply], stream=stream
            )
        if not case.reply:  # a case without a reply tests only the request
            with contextlib.suppress(ProviderError):
                case.codec().encode(case.request)

    for case in find_cases(wire)[::EVERY]:
        run_watched(run(case))
    if wire not in fuzzers.PATHS:  # the gateway does not serve clients of this wire
        return
    sent = fuzzers.request_seeds(wire)
    assert len(sent) > len(find_cases(wire)) * 0.8
    for body in sent[::EVERY]:
        run_watched(fuzzers.send_request(wire, body))


def test_no_retrieval_case_blocks_the_event_loop() -> None:
    cases = find_retrieval_cases()
    assert len(cases) > 50
    for case in cases:
        with watching():
            case.run()
