"""Sessions whose processes are killed, paused or started twice lose no record and repeat no
payment.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from .hostile_lives import Tally

EXHAUSTIVE = bool(os.environ.get("DRAGOMAN_EXHAUSTIVE"))
# The number of kills; ``DRAGOMAN_SESSION_KILLS`` can set a larger number, for a longer run.
KILLS = int(os.environ.get("DRAGOMAN_SESSION_KILLS", "400" if EXHAUSTIVE else "3"))
Count = Callable[[str, int], None]


def attack(
    place: str, folder: Path, count: Count, *, sessions: int, kills: int, runners: int
) -> Tally:
    numbers = [str(number) for number in (17, sessions, kills, runners)]
    command = [sys.executable, "-m", "tests.attacks.hostile_lives", place, str(folder), *numbers]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    tally = msgspec.json.decode(done.stdout, type=Tally)
    assert tally.problems == [], done.stderr[-2000:]
    assert tally.lost == []
    assert tally.paid_twice == []
    assert tally.unrecorded == []
    store = "PostgreSQL" if "host=" in place else "SQLite"
    for name, number in msgspec.structs.asdict(tally).items():
        if isinstance(number, int) and number:
            count(f"{name.replace('_', ' ')}, {runners} at once, {store}", number)
    return tally


@pytest.mark.exhaustive
def test_session_killed_at_random_moments_loses_no_record(
    place: str, tmp_path: Path, count: Count
) -> None:
    tally = attack(place, tmp_path, count, sessions=2, kills=KILLS, runners=1)
    assert tally.kills >= KILLS
    assert min(tally.projections, tally.summaries, tally.edits, tally.rejections) > 0
    if KILLS >= 100:  # with fewer kills, some of these cases may not occur
        # Some context projections only drop tool results and write no summary.
        assert tally.projections > tally.summaries
        assert tally.unknown_outcomes > 0


@pytest.mark.exhaustive
def test_two_processes_cannot_run_one_session(place: str, tmp_path: Path, count: Count) -> None:
    sessions = 200 if EXHAUSTIVE else 1
    tally = attack(place, tmp_path, count, sessions=sessions, kills=100 * sessions, runners=2)
    assert tally.refused + tally.fenced > 0
    if EXHAUSTIVE:  # with fewer sessions, some of these cases may not occur
        assert min(tally.refused, tally.fenced, tally.kills, tally.pauses) > 0
