"""For pytest: the fixture ``dragoman_cassette``, which records a test's calls once and plays them ever after.

::

    async def test_river(dragoman_cassette):
        async with dragoman_cassette(connect("llama3", base_url="http://127.0.0.1:8080/v1")) as model:
            assert "Rhine" in (await model.complete("Name a river.")).text

The cassette is ``cassettes/<module>/<test>.jsonl`` beside the test. ``--dragoman-cassettes=record`` makes
new takes, ``replay`` never asks anybody (for machines that must not), ``off`` neither records nor plays.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .middleware.record import MODES, Record
from .provider import Provider

__all__ = ["cassette_path", "dragoman_cassette", "pytest_addoption"]

_UNSAFE = re.compile(r"[^\w.\-\[\]=,+]+")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says whether cassettes are recorded or played."""
    parser.getgroup("dragoman").addoption(
        "--dragoman-cassettes",
        choices=MODES,
        default="once",
        help="replay, record, once (record what has no cassette yet) or off; default: once",
    )


@pytest.fixture
def dragoman_cassette(request: pytest.FixtureRequest) -> Callable[..., Record]:
    """Wrap a provider so that this test's calls are on a cassette; a second one needs a ``name``."""
    mode = request.config.getoption("--dragoman-cassettes")
    taken: set[str] = set()

    def wrap(provider: Provider, name: str = "", *, replay_timing: bool = False) -> Record:
        if name in taken:
            raise ValueError(f"dragoman_cassette: name {name!r} is used twice in this test; give each cassette its own")
        taken.add(name)
        return Record(provider, cassette_path(request.path, request.node.name, name), mode, replay_timing=replay_timing)

    return wrap


def cassette_path(test_file: Path, test: str, name: str = "") -> Path:
    """Where the cassette of a test lies. Names that no file can have are made safe, and stay apart."""
    wanted = f"{test}.{name}" if name else test
    safe = _UNSAFE.sub("-", wanted)[:150]
    if safe != wanted:
        safe += "-" + hashlib.sha256(wanted.encode()).hexdigest()[:8]
    return test_file.parent / "cassettes" / test_file.stem / f"{safe}.jsonl"
