"""Bubblewrap, where it is installed: the workspace is writable, the rest of the disk is not, the network is gone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from msgspec import Struct

_PROGRAM = "bwrap"
# Readable by every program of the user, and nothing that a workspace's tests have any business with.
_PRIVATE = (".ssh", ".gnupg", ".aws", ".kube", ".docker", ".netrc", ".git-credentials", ".pypirc", ".npmrc",
            ".config/gh", ".config/gcloud", ".config/dragoman", ".local/share/keyrings", ".password-store")  # fmt: skip


_TEMPORARY = "/tmp"  # noqa: S108 - replaced by an empty one


class Sandbox(Struct, frozen=True):
    """How programs are confined. Without ``program`` they are not, and ``reason`` says why."""

    program: str | None
    reason: str

    @property
    def label(self) -> str:
        """For the record: ``bubblewrap``, or ``none`` and why."""
        return "bubblewrap" if self.program else f"none ({self.reason})"

    def wrap(self, argv: Sequence[str], workspace: Path, *, network: bool = False) -> list[str]:
        """The command that runs ``argv`` confined; ``argv`` itself where there is no sandbox."""
        if self.program is None:
            return list(argv)
        home = Path.home()
        hidden = [home / name for name in _PRIVATE]
        covers = [
            part
            for path in hidden
            if path.exists() and not workspace.is_relative_to(path)
            for part in (["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)])
        ]
        return [
            self.program, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", _TEMPORARY,
            *_interpreter(), *covers, "--bind", str(workspace), str(workspace), "--chdir", str(workspace),
            "--unshare-all", *(["--share-net"] if network else []), "--die-with-parent", "--new-session", "--", *argv,
        ]  # fmt: skip


def _interpreter() -> list[str]:
    """A Python installed among temporary files would be gone with them; it stays, and nobody can write there."""
    places = dict.fromkeys([sys.base_prefix, sys.prefix])
    return [part for place in places if Path(place).is_relative_to(_TEMPORARY) for part in ("--ro-bind", place, place)]


@cache
def find_sandbox() -> Sandbox:
    """Look for bubblewrap and try it once: some kernels and containers do not let it work."""
    program = shutil.which(_PROGRAM)
    if program is None:
        return Sandbox(None, "bubblewrap is not installed")
    probe = [program, "--ro-bind", "/", "/", "--unshare-all", "--die-with-parent", "--", "true"]
    try:
        done = subprocess.run(probe, capture_output=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return Sandbox(None, f"bubblewrap does not work here: {type(error).__name__}")
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        return Sandbox(None, f"bubblewrap does not work here: {said[:200]}")
    return Sandbox(program, "")
