"""Provide logs for the sessions under attack: SQLite files, and a real PostgreSQL server."""

from pathlib import Path

import pytest

from ..databases import server
from ..log.conftest import conninfo, open_store

__all__ = ["conninfo", "open_store", "place", "server"]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of a log that several processes can open."""
    if request.param == "postgres":
        found: str = request.getfixturevalue("conninfo")
        return found
    return str(tmp_path / "log.db")
