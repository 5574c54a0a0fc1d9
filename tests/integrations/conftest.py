"""Serve a model that does what the tests of a framework expect, for all of them."""

import sys
from collections.abc import Iterator

import pytest

from dragoman.sim import SimServer

from .obliging import obliging

# sqlite-utils, which llm uses, would import pandas, which takes seconds.
sys.modules.setdefault("pandas", None)


@pytest.fixture(scope="session")
def server() -> Iterator[SimServer]:
    with SimServer(obliging(), models=("sim", "sim-1", "sim-2")) as served:
        yield served
