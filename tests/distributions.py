"""The wheel and the sdist, which are built once for all tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .programs import require

ROOT = Path(__file__).parents[1]
BUILD = """
import functools, gzip, sys, time
time.time = lambda: float(sys.argv[2])
gzip.GzipFile = functools.partial(gzip.GzipFile, compresslevel=1)  # the best takes two seconds
import hatchling.build
hatchling.build.build_wheel(sys.argv[1])
hatchling.build.build_sdist(sys.argv[1])
"""


def build(files: dict[str, bytes], folder: Path, clock: int) -> tuple[Path, Path]:
    """Build the wheel and the sdist from a copy of the files at another time; return both."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (clock, clock))
    out = folder.parent / f"{folder.name}-out"
    out.mkdir()
    settings = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    subprocess.run(
        [sys.executable, "-c", BUILD, str(out), str(clock)], cwd=folder, check=True, env=settings
    )
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of the repository that git does not ignore, by their names.

    An empty git folder lists them all, and works in a copy without the history too.
    """
    folder = tmp_path_factory.mktemp("git")
    git = [require("git"), f"--git-dir={folder}", f"--work-tree={ROOT}"]
    subprocess.run([git[0], "init", "--quiet", "--bare", str(folder)], check=True)
    command = [*git, "ls-files", "-z", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {name: (ROOT / name).read_bytes() for name in listed.stdout.split("\0") if name}


@pytest.fixture(scope="session")
def built(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(files, tmp_path_factory.mktemp("first") / "repository", 1_700_000_000)
