"""Killed without warning at random points: nothing acknowledged is lost, and no tool runs twice."""

from __future__ import annotations

import collections
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dragoman
from dragoman.log import LogRecord, SqliteLog
from dragoman.session import reduce_records

from .playing import check_evidence, of, types

KILLS = 200 if os.environ.get("DRAGOMAN_EXHAUSTIVE") else 20
PROGRAM = Path(__file__).with_name("living_process.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(dragoman.__file__).parents[1])}


class Lives:
    """The process that starts the sessions, and what they acknowledged."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.acknowledged: list[tuple[str, int, str]] = []

    def live(self, session: str, draw: random.Random | None) -> bool:
        """Run a session until it ends, or kill it somewhere; was it killed?"""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{session}\n")
        self._process.stdin.flush()
        word, pid = self._read().split()
        assert word == "ready"
        patience = draw.randrange(0, 40) if draw is not None else -1
        while True:
            if draw is not None and patience == 0:
                time.sleep(draw.uniform(0, 0.003))  # somewhere within what the record leads to
                os.kill(int(pid), signal.SIGKILL)
            line = self._read()
            patience -= 1
            if line.startswith("end "):
                assert line in ("end 0", "end -9")
                return line == "end -9"
            seq, digest = line.split()
            self.acknowledged.append((session, int(seq), digest))

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "it ended by itself"
        return line.strip()


@contextmanager
def start(folder: Path) -> Iterator[Lives]:
    command = [sys.executable, str(PROGRAM), str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=ENVIRONMENT) as process:
        yield Lives(process)
        assert process.stdin is not None
        process.stdin.close()


def check(folder: Path, lives: Lives, names: list[str], *, over: bool) -> None:
    path = folder / "effects"
    effects = collections.Counter(path.read_text().split() if path.exists() else [])
    assert set(effects.values()) <= {1}, "a tool ran twice"
    held: dict[str, list[LogRecord]] = {}
    with SqliteLog(folder / "log.db", readonly=True) as log:
        assert log.verify().ok, str(log.verify())
        held = {name: list(log.read(name)) for name in names}
    digests = {(name, record.seq): record.hash for name in names for record in held[name]}
    for name, seq, digest in lives.acknowledged:
        assert digests[name, seq] == digest, "an acknowledged record is lost"
    started = {payload.input["token"] for name in names for payload in of(held[name], "tool.started")}
    assert set(effects) <= started, "something ran that the log does not know of"
    for name in names:
        check_evidence(held[name], finished=over)
        observed = [payload.content.split()[-1] for payload in of(held[name], "tool.observed")]
        assert set(observed) <= set(effects), "something is said to have run that did not"


@pytest.mark.exhaustive
def test_killed_at_random_points(tmp_path: Path) -> None:
    draw = random.Random(KILLS)
    kills = 0
    names = ["s0"]
    with start(tmp_path) as lives:
        while kills < KILLS:
            if lives.live(names[-1], draw):
                kills += 1
                if kills % 10 == 0 or KILLS <= 20:
                    check(tmp_path, lives, names, over=False)
            else:
                names.append(f"s{len(names)}")
        lives.live(names[-1], None)  # it may be unfinished, or never have begun
        check(tmp_path, lives, names, over=True)
    with SqliteLog(tmp_path / "log.db", readonly=True) as log:
        resumed = closed = 0
        for name in names:
            records = list(log.read(name))
            assert reduce_records(records).finished is not None
            resumed += types(records).count("session.resumed")
            closed += types(records).count("tool_intent.closed")
    assert resumed > KILLS // 2
    assert closed > 0
    print(f"{kills} kills, {len(names)} sessions, {resumed} times taken up, {closed} intents closed")
