"""Serve a model that does what the tests of a framework expect, for all of them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from dragoman.sim import SimServer

from .obliging import obliging

# sqlite-utils, which llm uses, would import pandas, which takes seconds.
with pytest.MonkeyPatch.context() as patch, suppress(ImportError):
    if "pandas" not in sys.modules:
        patch.setitem(sys.modules, "pandas", None)
    import sqlite_utils as sqlite_utils


@pytest.fixture(scope="session")
def server() -> Iterator[SimServer]:
    with SimServer(obliging(), models=("sim", "sim-1", "sim-2")) as served:
        yield served


@pytest.fixture
def benchmark() -> Callable[[Callable[[], Any]], Any]:
    """Call a function once: LangChain's suites request this fixture of pytest-benchmark."""
    return lambda function: function()


@pytest.fixture
def vcr() -> None:
    """Replace the fixture of pytest-recording: LangChain's suites request it for skipped tests."""


@pytest.fixture
def snapshot() -> None:
    """Replace the fixture of syrupy: LangChain's suites request it for skipped tests."""
