"""Settings for all tests: the number of examples in property tests, and counters for a summary.

Property tests use a fixed sample by default, more examples with ``HYPOTHESIS_PROFILE=exhaustive``
and fewer with ``HYPOTHESIS_PROFILE=quick``, as in ``make check``. The numbers that tests pass to
``count`` are added up over all processes and printed at the end.
"""

import datetime
import gc
import importlib
import os
import pkgutil
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import dragoman.capabilities
import dragoman.events
import dragoman.validate
import dragoman.wire
from tests import waiting
from tests.distributions import built, files  # noqa: F401 - fixtures

# Collecting garbage while thousands of tests are collected takes a sixth of that time.
gc.disable()

# Derandomise hypothesis, so that the result of a run depends only on the code.
settings.register_profile(
    "default", derandomize=True, deadline=None, max_examples=20,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.register_profile(
    "exhaustive", settings.get_profile("default"), derandomize=False, max_examples=2000
)
settings.register_profile("quick", settings.get_profile("default"), max_examples=5)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Do not read the developer's stored API keys, because some tests need a vendor without a key.
os.environ["DRAGOMAN_KEYS"] = os.path.join(os.sep, "nonexistent", "keys.json")  # noqa: PTH118

# Do not store observed capabilities in the developer's cache folder.
os.environ["DRAGOMAN_OBSERVED"] = "off"
os.environ["DRAGOMAN_CATALOG"] = os.path.join(os.sep, "nonexistent", "catalog.json")  # noqa: PTH118

# The ends of models are compared with this day, not with the day of the test run.
dragoman.capabilities._read_today = lambda: datetime.date(2026, 9, 1)  # noqa: SLF001

# A shell starts background jobs with interrupts ignored, and programs started by the tests would
# inherit that. Some tests interrupt these programs, so restore the default handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The commands keep their log and chat history in the data folder. Use a temporary folder, so that
# tests do not write to the developer's own.
_DATA = tempfile.TemporaryDirectory(prefix="dragoman-tests-")
os.environ["XDG_DATA_HOME"] = _DATA.name


@pytest.fixture
async def virtual_time() -> AsyncIterator[None]:
    """Run the test in virtual time, see ``waiting.virtual_time``."""
    with waiting.virtual_time():
        yield


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Do not collect garbage during the test."""
    gc.freeze()  # leave the objects of other tests out of the count, and of later collections
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def count(request: pytest.FixtureRequest) -> Callable[[str, int], None]:
    """Return a function that adds a number to a named counter in the summary of the test run."""
    return lambda what, number: request.node.user_properties.append(("counted", [what, number]))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of recordings if there are none; shuffle the tests if a seed is set.

    Exclude exhaustive tests and property tests from coverage: tracing doubles their time, and what
    only a random example reaches is not covered. They run last then, because a cache that one of
    them fills would leave the code that fills it untraced.
    """
    if "DRAGOMAN_RECORDINGS" not in os.environ:
        recorded = [item for item in items if item.get_closest_marker("recordings")]
        config.hook.pytest_deselected(items=recorded)
        items[:] = [item for item in items if not item.get_closest_marker("recordings")]
    if "DRAGOMAN_SHUFFLE" in os.environ:
        _shuffle(items, random.Random(os.environ["DRAGOMAN_SHUFFLE"]))
    for item in items:
        is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        if is_property or item.get_closest_marker("exhaustive"):
            item.add_marker(pytest.mark.no_cover)
    if config.pluginmanager.hasplugin("_cov"):
        items.sort(key=lambda item: item.get_closest_marker("no_cover") is not None)


def _shuffle(items: list[pytest.Item], draw: random.Random) -> None:
    """Shuffle the files, and the tests in each; a file stays together, as its fixtures require."""
    by_file: dict[Path, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.path, []).append(item)
    shuffled = draw.sample(list(by_file.values()), len(by_file))
    items[:] = [item for tests in shuffled for item in draw.sample(tests, len(tests))]


_tracer: Any = None  # that of coverage, if it is measured


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Trace the import of the covered modules, then only tests: tracing doubles the time."""
    global _tracer
    if session.config.pluginmanager.hasplugin("_cov"):
        for package in (dragoman.events, dragoman.validate, dragoman.wire):
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                importlib.import_module(module.name)
        _tracer = sys.gettrace()
        sys.settrace(None)


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but never the ten thousand collected tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Trace a test that is measured, and nothing else."""
    if _tracer is None:
        return (yield)
    sys.settrace(None if item.get_closest_marker("no_cover") else _tracer)
    try:
        return (yield)
    finally:
        sys.settrace(None)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counted: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties if report.when == "call" else ():
            if name == "counted":
                counted[value[0]] += value[1]
    if counted:
        terminalreporter.write_sep("=", "counted")
        for what, number in sorted(counted.items()):
            terminalreporter.write_line(f"{number:>9,} {what}")
