"""The size of the property tests: a fixed sample by default, more with
``HYPOTHESIS_PROFILE=exhaustive``.

The numbers that tests ``count`` are added up over all processes and printed at the end.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Derandomised: a run is red or green by the code alone, on every machine.
settings.register_profile(
    "default",
    derandomize=True,
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "exhaustive", settings.get_profile("default"), derandomize=False, max_examples=2000
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Keys that the developer has stored must not configure a vendor that a test expects without one.
os.environ["DRAGOMAN_KEYS"] = os.path.join(os.sep, "nonexistent", "keys.json")  # noqa: PTH118

# Nor may tests write what they observe into the developer's cache folder.
os.environ["DRAGOMAN_OBSERVED"] = "off"
os.environ["DRAGOMAN_CATALOG"] = os.path.join(os.sep, "nonexistent", "catalog.json")  # noqa: PTH118

# A shell that runs us in the background has interrupts ignored, and so would the programs that
# tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The commands keep their log and the history of chats in the data folder: never in the user's own.
_DATA = tempfile.TemporaryDirectory(prefix="dragoman-tests-")
os.environ["XDG_DATA_HOME"] = _DATA.name


@pytest.fixture
def count(request: pytest.FixtureRequest) -> Callable[[str, int], None]:
    """Count things done by a test, such as offsets cut at, for the summary."""
    return lambda what, number: request.node.user_properties.append(("counted", [what, number]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Exclude the exhaustive tests from coverage: they cover no lines that others do not."""
    for item in items:
        if item.get_closest_marker("exhaustive"):
            item.add_marker(pytest.mark.no_cover)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from scanning ten thousand collected tests."""
    gc.collect()
    gc.freeze()


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
