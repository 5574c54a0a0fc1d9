"""Confine commands with bubblewrap: they can write only to the workspace.

Of the rest of the disk they see only the folders of installed programs, read-only and without the
sockets of services. The home folder, ``/run`` and the temporary folders are empty ones, which are
discarded afterwards. The network (by default), other processes, user namespaces and the system
calls that ``seccomp`` blocks are unavailable. ``.git`` is read-only, because its hooks and
settings could run programs later.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..permission import Withheld
from .runtime import ToolFailure
from .seccomp import build_filter

_PROGRAM = "bwrap"
# These options require bubblewrap 0.8 or later, installed without setuid.
_NO_USERNS = ("--unshare-user", "--disable-userns")
_EMPTY = ("/tmp", "/var/tmp", "/run")  # noqa: S108 - replaced by empty ones
# What programs need. In other folders services listen on sockets: in /var/lib, /opt, /nix/var ...
_SYSTEM = (
    "/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/sys",
    # on NixOS every program is found through a link in /run
    "/nix/store", "/gnu/store", "/run/current-system",
    "/var/lib/ca-certificates",  # on openSUSE a link in /etc leads here
)  # fmt: skip
# If the workspace is or contains the home folder, that folder cannot be hidden; then only these
# parts of the home are hidden.
_PRIVATE = (
    ".ssh", ".gnupg", ".aws", ".kube", ".docker", ".netrc", ".git-credentials", ".pypirc",
    ".npmrc",
    ".pgpass", ".config", ".local/share/keyrings", ".local/share/dragoman", ".password-store",
    ".vault-token", ".bash_history", ".mozilla", ".cargo/credentials.toml", ".claude", ".codex",
)  # fmt: skip
_MAX_WITHHELD = 500  # how many paths of a workspace rules may hide from commands
_ANY = "dragoman-any-name"
# How many folders to search for .git before a command runs, the nearest first: 0.6 s for 10,000.
_MAX_FOLDERS = 100_000


class Sandbox(Struct, frozen=True):
    """How commands are confined.

    ``program`` is the path of bubblewrap; if it is ``None``, commands are not confined, and
    ``reason`` explains why. ``options`` are further bubblewrap options that work on this machine;
    ``seccomp`` is whether the system call filter works.
    """

    program: str | None
    reason: str
    options: tuple[str, ...] = ()
    seccomp: bool = False

    @property
    def label(self) -> str:
        """The sandbox as named in the log: ``bubblewrap``, or ``none`` with the reason."""
        return "bubblewrap" if self.program else f"none ({self.reason})"

    def wrap(
        self,
        argv: Sequence[str],
        workspace: Path,
        *,
        network: bool = False,
        readable: Iterable[Path] = (),
        withheld: Withheld | None = None,
        seccomp_fd: int | None = None,
    ) -> list[str]:
        """Return the command that runs ``argv`` confined, or ``argv`` itself without a sandbox.

        ``readable`` lists further folders that the command may read, such as some below the user's
        home. Paths of the workspace that are ``withheld`` are empty, or read-only if only writing
        to them is. ``seccomp_fd`` is an inherited descriptor from which bubblewrap reads the
        system call filter; see ``open_filter``.
        """
        if self.program is None:
            return list(argv)
        # The prefix of /bin/python is / in some versions of Python.
        prefixes = [Path(each) for each in (sys.base_prefix, sys.prefix) if each != "/"]
        mounts = _list_mounts(workspace, [*prefixes, *readable], network=network)
        if withheld is not None:
            mounts += _withhold(workspace, withheld)
        # A mount hides what is below it, so parents come first.
        ordered = sorted(mounts, key=lambda mount: len(Path(mount[-1]).parts))
        if workspace != Path("/"):
            # bubblewrap starts with an empty folder as /, in which it makes the mount points
            ordered.append(("--remount-ro", "/"))
        optional = ["--share-net"] if network else []
        if seccomp_fd is not None:
            optional += ["--seccomp", str(seccomp_fd)]
        return [
            self.program, *[part for mount in ordered for part in mount],
            "--chdir", str(workspace), "--unshare-all", *optional, *self.options,
            "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--", *argv,
        ]  # fmt: skip

    @contextlib.contextmanager
    def open_filter(self) -> Iterator[int | None]:
        """Open a descriptor from which bubblewrap reads the system call filter for one command.

        The result is ``None`` if such filters do not work on this machine.
        """
        program = build_filter() if self.seccomp else None
        if program is None:
            yield None
            return
        read_end, write_end = os.pipe()
        try:
            # this write does not block, because the filter is smaller than any pipe buffer
            os.write(write_end, program)
            os.close(write_end)
            yield read_end
        finally:
            os.close(read_end)


_Mount = tuple[str, ...]  # bubblewrap options; the last one is the mount point


def _list_mounts(workspace: Path, readable: Sequence[Path], *, network: bool) -> list[_Mount]:
    homes = list_homes()
    covered = [home for home in homes if home.is_relative_to(workspace)]
    empty = [*_EMPTY, *[home for home in homes if home not in covered]]
    system = [Path(place) for place in _SYSTEM]
    kept = [*[place for place in system if not place.is_relative_to(workspace)], *readable]
    # Name resolution needs a file that is often below /run.
    kept += [Path("/etc/resolv.conf").resolve()] if network else []
    # A symbolic link in the workspace, such as .venv, cannot be a mount point, so the target of
    # the link is mounted.
    kept = [place.resolve() if place.is_relative_to(workspace) else place for place in kept]
    return [
        ("--dev", "/dev"),
        ("--proc", "/proc"),
        *[("--tmpfs", str(place)) for place in empty],
        *[("--ro-bind", str(place), str(place)) for place in dict.fromkeys(kept) if place.exists()],
        *_hide_sockets(kept, workspace),
        ("--bind", str(workspace), str(workspace)),
        *_hide_private(covered, workspace),
        *[("--ro-bind", str(place), str(place)) for place in find_version_control(workspace)],
    ]  # fmt: skip


def _hide_private(homes: Sequence[Path], workspace: Path) -> list[_Mount]:
    """Return the mounts that hide the private files and folders of homes in the workspace."""
    private = [home / name for home in homes for name in _PRIVATE]
    return [
        ("--tmpfs", str(place)) if place.is_dir() else ("--ro-bind", "/dev/null", str(place))
        for place in private
        if place.exists() and not place.is_symlink() and not workspace.is_relative_to(place)
    ]


def _hide_sockets(folders: Sequence[Path], workspace: Path) -> list[_Mount]:
    """Return the mounts that hide the sockets of services in visible folders."""
    opened = [socket for socket in list_sockets() if not socket.is_relative_to(workspace)]
    # A folder such as /bin may be a link, so a socket can be visible in several places.
    return [
        ("--ro-bind", "/dev/null", str(folder / socket.relative_to(target)))
        for folder, target in [(folder, folder.resolve()) for folder in folders]
        for socket in opened
        if socket.is_relative_to(target)
    ]


def _withhold(workspace: Path, withheld: Withheld) -> list[_Mount]:
    """Return the mounts that keep commands from the paths that rules of the policy deny."""
    mounts: list[_Mount] = []
    waiting = deque([""])
    looked = 0
    while waiting:
        folder = waiting.popleft()
        looked += 1
        if looked > _MAX_FOLDERS or len(mounts) > _MAX_WITHHELD:
            what = f"{_MAX_WITHHELD} paths" if looked <= _MAX_FOLDERS else f"{looked} folders"
            raise ToolFailure(
                "not_started",
                f"rules with a path would hide more than {what}, which the sandbox cannot do; deny "
                "a folder as FOLDER/**",
            )
        try:
            entries = list(os.scandir(workspace / folder))
        except OSError:
            continue
        for entry in entries:
            path = f"{folder}{entry.name}"
            is_folder = entry.is_dir(follow_symlinks=False)
            if _is_covered(path, withheld, is_folder=is_folder):
                mounts += _hide(entry.path, is_folder=is_folder)
            elif _is_covered(path, lambda it: withheld(it, "write"), is_folder=is_folder):
                mounts.append(("--ro-bind", entry.path, entry.path))
            elif is_folder:
                waiting.append(f"{path}/")
    return mounts


def _is_covered(path: str, withheld: Callable[[str], bool], *, is_folder: bool) -> bool:
    """Return whether a path is withheld, or a folder with everything that may be in it."""
    if withheld(path):
        return True
    # No rule names a file like this one, so a rule that matches it matches every name.
    return is_folder and withheld(f"{path}/{_ANY}") and withheld(f"{path}/{_ANY}/{_ANY}")


def _hide(path: str, *, is_folder: bool) -> list[_Mount]:
    if is_folder:
        return [("--tmpfs", path), ("--remount-ro", path)]
    return [] if Path(path).is_symlink() else [("--ro-bind", "/dev/null", path)]


def list_homes() -> list[Path]:
    """Return the home folders named by the environment and by the user database, if they exist."""
    found = [Path.home().resolve()]
    with contextlib.suppress(ImportError, KeyError):
        # In some containers the user database has no entry for the user, which is a KeyError.
        import pwd  # pwd is not available on every platform

        found.append(Path(pwd.getpwuid(os.getuid()).pw_dir).resolve())
    return [home for home in dict.fromkeys(found) if home.is_dir() and home != Path("/")]


def list_sockets() -> list[Path]:
    """Return the UNIX sockets on disk that a process of this machine has opened."""
    try:
        lines = os.fsdecode(Path("/proc/net/unix").read_bytes()).split("\n")
    except OSError:
        return []
    names = {name for line in lines for name in line.split(maxsplit=7)[7:]}
    return sorted(Path(os.path.realpath(name)) for name in names if _is_socket(name))


def _is_socket(name: str) -> bool:
    try:
        return name.startswith("/") and stat.S_ISSOCK(os.stat(name).st_mode)  # noqa: PTH116
    except OSError:  # it is in a folder of another user, so a command cannot open it either
        return False


def find_version_control(workspace: Path) -> list[Path]:
    """Return every ``.git`` file or folder, in any letter case and at any depth."""
    found: list[Path] = []
    waiting = deque([str(workspace)])
    looked = 0
    while waiting and looked < _MAX_FOLDERS:
        looked += 1
        try:
            entries = list(os.scandir(waiting.popleft()))
        except OSError:
            continue
        for entry in entries:
            if len(entry.name) == 4 and entry.name.casefold() == ".git":
                found.append(Path(entry.path).resolve())
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
    return [place for place in found if place.is_relative_to(workspace) and place.exists()]


@cache
def find_sandbox() -> Sandbox:
    """Find bubblewrap and try it once, since some kernels and containers block it."""
    program = shutil.which(_PROGRAM)
    if program is None:
        return Sandbox(None, "bubblewrap is not installed")
    reason = ""
    # Try the strongest options first. A version number does not show what the kernel allows.
    for options, seccomp in ((_NO_USERNS, True), (_NO_USERNS, False), ((), True), ((), False)):
        sandbox = Sandbox(program, "", options, seccomp)
        if not (problem := _try(sandbox)):
            return sandbox
        reason = problem
    return Sandbox(None, f"bubblewrap does not work here: {reason}")


def _try(sandbox: Sandbox) -> str | None:
    """Try to run a program in the sandbox; return the error, or ``None`` if it works."""
    with sandbox.open_filter() as descriptor:
        argv = sandbox.wrap(["true"], Path(sandbox.program or "/").parent, seccomp_fd=descriptor)
        passed = [descriptor] if descriptor is not None else []
        if sandbox.seccomp and not passed:
            return "no filter is available for this architecture"
        try:
            settings: dict[str, Any] = {"capture_output": True, "timeout": 10, "pass_fds": passed}
            done = subprocess.run(argv, check=False, **settings)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            return type(error).__name__
    reason = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
    return (reason or f"exit code {done.returncode}")[:200] if done.returncode else None
