"""Find out which files of a folder a command has changed."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any, TypeAlias

# What a command cannot change without a change of one of these: status, content, size, file.
_Mark: TypeAlias = tuple[int, int, int, int]

_MAX_FILES = 20_000
_SHOWN = 100  # paths to record of each kind
# The folders of version control, of caches and of installed packages are left out.
SKIPPED = {
    ".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", ".mypy_cache", ".ruff_cache",
}  # fmt: skip


def take_snapshot(root: Path) -> dict[str, _Mark] | None:
    """Return a mark for each file below a folder; ``None`` if there are more than 20,000."""
    marks: dict[str, _Mark] = {}
    waiting = deque([""])
    while waiting:
        folder = waiting.popleft()
        try:
            entries = list(os.scandir(root / folder))
        except OSError:
            continue
        for entry in entries:
            path = f"{folder}{entry.name}"
            try:
                facts = entry.stat(follow_symlinks=False)
                is_folder = entry.is_dir(follow_symlinks=False)
            except OSError:  # it was removed in the meantime
                continue
            if not is_folder:
                marks[path] = facts.st_ctime_ns, facts.st_mtime_ns, facts.st_size, facts.st_ino
            elif entry.name not in SKIPPED:
                waiting.append(f"{path}/")
        if len(marks) > _MAX_FILES:
            return None
    return marks


def find_changes(
    before: dict[str, _Mark] | None, after: dict[str, _Mark] | None
) -> dict[str, Any]:
    """Return the paths that were created, changed and deleted, as the details of an observation."""
    if before is None or after is None:
        return {"files": f"not compared: the folder has more than {_MAX_FILES} files"}
    changed = [path for path, mark in after.items() if before.get(path, mark) != mark]
    found = {
        "created": sorted(after.keys() - before.keys()),
        "changed": sorted(changed),
        "deleted": sorted(before.keys() - after.keys()),
    }
    details: dict[str, Any] = {}
    for kind, paths in found.items():
        if paths:
            more = len(paths) - _SHOWN
            details[kind] = paths[:_SHOWN] + ([f"and {more} more"] if more > 0 else [])
    return {"files": details}
