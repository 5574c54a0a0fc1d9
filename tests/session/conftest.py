from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.log import SqliteLog

from .playing import ran


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    with SqliteLog(tmp_path / "log.db") as opened:
        yield opened
