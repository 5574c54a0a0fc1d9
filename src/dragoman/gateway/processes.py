"""Check whether other gateway processes on this machine are alive."""

from __future__ import annotations

import os
import sys

__all__ = ["is_alive"]


def is_alive(pid: int) -> bool:
    """Return whether the process with this id is alive; on Windows, always return true."""
    if sys.platform == "win32":
        # On Windows os.kill(pid, 0) terminates the process.
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the process is alive and belongs to another user
        pass
    return True
