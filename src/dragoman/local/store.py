"""The folder for model files, with a receipt for each file that shows whether it has changed.

Next to each file is a receipt, ``FILE.json``: name, source, sha256, size and modification time. A
file is hashed when it is stored. Before use, size and time are compared with the receipt; the file
is hashed again only if they differ.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .catalog import CatalogModel

Progress = Callable[[str, int, int], None]
"""A callback for progress, with the current step, its bytes so far and its total (0: unknown)."""

BLOCK = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class WeightsError(RuntimeError):
    """A model's file could not be downloaded, or has the wrong contents."""


class Receipt(Struct, frozen=True):
    """The properties of a file at the time it was hashed."""

    name: str
    source: str
    sha256: str
    size: int
    mtime_ns: int


class Found(NamedTuple):
    """The resolved model: its name, its file, and its catalogue entry if it has one.

    A file in the models folder is managed: it has a source, and a digest to verify.
    """

    name: str
    path: Path
    entry: CatalogModel | None = None
    is_managed: bool = True
    source: str = ""
    sha256: str = ""


def models_folder() -> Path:
    """Return the folder of models, in ``$DRAGOMAN_CACHE`` or in the platform's cache folder."""
    if chosen := os.environ.get("DRAGOMAN_CACHE"):
        return Path(chosen) / "models"
    import platformdirs  # lazy import: platformdirs is slow to import

    return platformdirs.user_cache_path("dragoman") / "models"


def check_name(name: str) -> str:
    """Return ``name`` if it is valid as a file name; raise an error otherwise."""
    if not _NAME.fullmatch(name):
        raise WeightsError(
            f"{name!r} cannot be a model's name: use letters, digits, dots, dashes and underscores"
        )
    return name


def read_receipt(path: Path) -> Receipt | None:
    """Return the receipt of a file, or ``None`` if it is missing or unreadable."""
    try:
        return msgspec.json.decode(_receipt_path(path).read_bytes(), type=Receipt)
    except (OSError, msgspec.DecodeError):
        return None


def receipts() -> dict[str, tuple[Path, Receipt]]:
    """Return the files in the folder that have a receipt, sorted by name."""
    found: dict[str, tuple[Path, Receipt]] = {}
    for path in sorted(models_folder().glob("*.gguf")):
        receipt = read_receipt(path)
        if receipt is not None:
            found[receipt.name] = (path, receipt)
    return found


def is_intact(found: Found, progress: Progress | None = None) -> bool:
    """Return whether a model's file has its digest.

    If the file has not changed since its receipt was written, it is not hashed again.
    """
    if not found.path.is_file():
        return False
    receipt = read_receipt(found.path)
    facts = _make_receipt(found)
    if receipt is not None and replace(facts, name=receipt.name, source=receipt.source) == receipt:
        return True
    if hash_file(found.path, progress) != found.sha256:
        return False
    _write_receipt(found)
    return True


def keep(arrived: Path, found: Found, progress: Progress | None = None) -> None:
    """Move a file to its final path if it has the digest, or delete it and raise an error."""
    digest = hash_file(arrived, progress)
    with arrived.open("rb") as file:
        magic = file.read(4)
    if digest != found.sha256 or magic != b"GGUF":
        arrived.unlink()
        problem = "is not a GGUF file"
        if digest != found.sha256:
            problem = f"has the wrong contents: its sha256 is {digest}, not {found.sha256}"
        raise WeightsError(f"{found.path.name} {problem}")
    _receipt_path(found.path).unlink(missing_ok=True)
    # a temporary file can be read only by its owner; other users may read this one
    arrived.chmod(0o644)
    arrived.replace(found.path)
    _write_receipt(found)


def remove(path: Path) -> bool:
    """Delete a file and its receipt; return whether it existed."""
    existed = path.exists()
    path.unlink(missing_ok=True)
    _receipt_path(path).unlink(missing_ok=True)
    return existed


def make_room(folder: Path, size: int) -> None:
    """Create the folder, and raise an error if its disk has less than ``size`` bytes free."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < size:
        raise WeightsError(
            f"{size / 1e6:,.0f} MB are needed in {folder}, but only {free / 1e6:,.0f} MB are free"
        )


def hash_file(path: Path, progress: Progress | None = None) -> str:
    """Return the sha256 of a file as hexadecimal digits."""
    digest = hashlib.sha256()
    total = path.stat().st_size
    done = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress("checking", done, total)
    return digest.hexdigest()


def _receipt_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _make_receipt(found: Found) -> Receipt:
    facts = found.path.stat()
    return Receipt(found.name, found.source, found.sha256, facts.st_size, facts.st_mtime_ns)


def _write_receipt(found: Found) -> None:
    temporary = _receipt_path(found.path).with_suffix(f".{os.getpid()}.new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(_make_receipt(found))))
    temporary.replace(_receipt_path(found.path))
