"""Sessions whose processes are killed, paused or started twice lose no record and repeat no
payment.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from .hostile_lives import Tally

EXHAUSTIVE = bool(os.environ.get("DRAGOMAN_EXHAUSTIVE"))
# The number of kills; ``DRAGOMAN_SESSION_KILLS`` can set a larger number, for a longer run.
KILLS = int(os.environ.get("DRAGOMAN_SESSION_KILLS", "400" if EXHAUSTIVE else "3"))
Attack = Callable[[int, int, int], Tally]


@pytest.fixture(scope="module")
def program() -> Iterator[subprocess.Popen[str]]:
    """Start the process from which those of the sessions are forked."""
    command = [sys.executable, "-m", "tests.attacks.hostile_lives"]
    pipe = subprocess.PIPE
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=root) as started:
        yield started
        started.communicate()


@pytest.fixture
def attack(
    program: subprocess.Popen[str],
    place: str,
    tmp_path: Path,
    count: Callable[[str, int], None],
) -> Attack:
    """Return a function that attacks a number of sessions, and returns what it has counted."""

    def run(sessions: int, kills: int, runners: int) -> Tally:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(
            json.dumps([place, str(tmp_path), 17, sessions, kills, runners]) + "\n"
        )
        program.stdin.flush()
        tally = msgspec.json.decode(program.stdout.readline(), type=Tally)
        found = (tally.problems, tally.lost, tally.paid_twice, tally.unrecorded)
        assert found == ([], [], [], [])
        store = "PostgreSQL" if "host=" in place else "SQLite"
        for name, number in msgspec.structs.asdict(tally).items():
            if isinstance(number, int) and number:
                count(f"{name.replace('_', ' ')}, {runners} at once, {store}", number)
        return tally

    return run


@pytest.mark.exhaustive
def test_session_killed_at_random_moments_loses_no_record(attack: Attack) -> None:
    tally = attack(2, KILLS, 1)
    assert tally.kills >= KILLS
    assert min(tally.projections, tally.summaries, tally.edits, tally.rejections) > 0
    if KILLS >= 100:  # with fewer kills, some of these cases may not occur
        # Some context projections only drop tool results and write no summary.
        assert tally.projections > tally.summaries
        assert tally.unknown_outcomes > 0


@pytest.mark.exhaustive
def test_two_processes_cannot_run_one_session(attack: Attack) -> None:
    sessions = 200 if EXHAUSTIVE else 1
    tally = attack(sessions, 100 * sessions, 2)
    assert tally.refused + tally.fenced > 0
    if EXHAUSTIVE:  # with fewer sessions, some of these cases may not occur
        assert min(tally.refused, tally.fenced, tally.kills, tally.pauses) > 0
