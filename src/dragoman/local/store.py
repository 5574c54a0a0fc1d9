"""The folder of model files, and proof that a file in it is still the one that was put there.

Next to each file lies a receipt, ``FILE.json``: name, source, sha256, size and modification time. A file is hashed
when it arrives. Before use, size and time are compared with the receipt; where they differ, it is hashed again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many bytes of it are done and how many there are (0: unknown)."""

BLOCK = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class WeightsError(RuntimeError):
    """A model's file could not be fetched, or is not what it should be."""


class Receipt(Struct, frozen=True):
    """What is known about a file since it was hashed."""

    name: str
    source: str
    sha256: str
    size: int
    mtime_ns: int


def models_folder() -> Path:
    """Return the folder of models, in ``$DRAGOMAN_CACHE`` or else in the platform's cache folder."""
    if chosen := os.environ.get("DRAGOMAN_CACHE"):
        return Path(chosen) / "models"
    import platformdirs  # only where it is needed

    return platformdirs.user_cache_path("dragoman") / "models"


def check_name(name: str) -> str:
    """Return ``name`` if a file can be named after it."""
    if not _NAME.fullmatch(name):
        raise WeightsError(f"{name!r} cannot be a model's name: use letters, digits, dots, dashes and underscores")
    return name


def read_receipt(path: Path) -> Receipt | None:
    """Return the receipt of a file, or ``None`` if there is none that can be read."""
    try:
        return msgspec.json.decode(_receipt_path(path).read_bytes(), type=Receipt)
    except (OSError, msgspec.DecodeError):
        return None


def receipts() -> dict[str, tuple[Path, Receipt]]:
    """Return the files in the folder that have a receipt, by name."""
    found: dict[str, tuple[Path, Receipt]] = {}
    for path in sorted(models_folder().glob("*.gguf")):
        receipt = read_receipt(path)
        if receipt is not None:
            found[receipt.name] = (path, receipt)
    return found


def is_intact(path: Path, name: str, source: str, sha256: str, progress: Progress | None = None) -> bool:
    """Return whether ``path`` holds the file with this digest; hash it only if the receipt does not fit."""
    if not path.is_file():
        return False
    facts, receipt = path.stat(), read_receipt(path)
    fits = receipt is not None and (receipt.size, receipt.mtime_ns) == (facts.st_size, facts.st_mtime_ns)
    if receipt is not None and fits and receipt.sha256 == sha256:
        return True
    if hash_file(path, progress) != sha256:
        return False
    _write_receipt(path, name, source, sha256)
    return True


def keep(arrived: Path, path: Path, name: str, source: str, sha256: str, progress: Progress | None = None) -> Path:
    """Move a file to its place if it has the digest; otherwise delete it and raise."""
    found = hash_file(arrived, progress)
    with arrived.open("rb") as file:
        magic = file.read(4)
    if found != sha256 or magic != b"GGUF":
        arrived.unlink()
        if found != sha256:
            raise WeightsError(f"{path.name} is not the file it should be: its sha256 is {found}, not {sha256}")
        raise WeightsError(f"{path.name} is not a GGUF file")
    _receipt_path(path).unlink(missing_ok=True)
    arrived.chmod(0o644)  # temporary files are for their owner alone
    arrived.replace(path)
    _write_receipt(path, name, source, sha256)
    return path


def remove(path: Path) -> bool:
    """Delete a file and its receipt; return whether there was one."""
    existed = path.exists()
    path.unlink(missing_ok=True)
    _receipt_path(path).unlink(missing_ok=True)
    return existed


def make_room(folder: Path, size: int) -> None:
    """Make the folder, and raise if ``size`` bytes do not fit on its disk."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < size:
        raise WeightsError(f"{size / 1e6:,.0f} MB are needed in {folder}, and {free / 1e6:,.0f} MB are free")


def hash_file(path: Path, progress: Progress | None = None) -> str:
    """Return the sha256 of a file as hexadecimal digits."""
    digest, total, done = hashlib.sha256(), path.stat().st_size, 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress("checking", done, total)
    return digest.hexdigest()


def _receipt_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _write_receipt(path: Path, name: str, source: str, sha256: str) -> None:
    facts = path.stat()
    receipt = Receipt(name, source, sha256, facts.st_size, facts.st_mtime_ns)
    temporary = _receipt_path(path).with_suffix(f".{os.getpid()}.new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(receipt)))
    temporary.replace(_receipt_path(path))
