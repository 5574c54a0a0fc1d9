"""The user's folders, and how their files are written."""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Literal

# A running process notices a change of these environment variables at the next lookup.
_VARIABLES = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")


def user_folder(kind: Literal["config", "data", "cache"]) -> Path:
    """Return the user's folder for settings, data or caches. The folder may not exist."""
    return _find(kind, tuple([os.environ.get(name) for name in _VARIABLES]))


@lru_cache(maxsize=16)
def _find(kind: str, variables: tuple[str | None, ...]) -> Path:
    import platformdirs  # imported on first use, because the import is slow

    path: Path = getattr(platformdirs, f"user_{kind}_path")("dragoman")
    return path


def read_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return numbers that differ after a file was written or replaced; nothing if it is missing."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        # The path exists but cannot be examined; reading it will report the problem.
        return (-1, error.errno or 0, 0)
    return (facts.st_mtime_ns, facts.st_size, facts.st_ino)


def write_private(path: Path, data: bytes) -> None:
    """Replace a file atomically; only its owner can read the new file."""
    # the file has the mode 0600
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            file.write(data)
            file.close()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
