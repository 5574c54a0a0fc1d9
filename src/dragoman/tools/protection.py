"""Report which protections work on this machine, by trying each of them."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from .process import clean_environment, run_process
from .sandbox import Sandbox, find_sandbox, find_version_control, list_homes, list_sockets

_PR_GET_DUMPABLE = 3
_PR_SET_DUMPABLE = 4
_INSTALL = "install bubblewrap (Debian and Ubuntu: apt install bubblewrap)"


class Protection(Struct, frozen=True):
    """One protection against harmful commands: whether it is active, and how to enable it.

    ``detail`` is what the test of the protection found.
    """

    name: str
    active: bool
    detail: str
    advice: str = ""


def hide_memory() -> bool:
    """Hide this process's memory and environment from the user's other processes (Linux).

    The file ``/proc/PID/environ`` contains API keys. Return whether it is hidden, which is never
    the case if this process runs as root.
    """
    if sys.platform != "linux":
        return False
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    return os.geteuid() != 0 and prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 0


async def list_protections(workspace: Path) -> list[Protection]:
    """Try every protection for commands in a workspace, and return the results.

    As a side effect, the memory of this process is hidden from other processes, and stays so.
    """
    sandbox = find_sandbox()
    found = await asyncio.to_thread(_confinement, sandbox, workspace)
    return [*found, *await _process_protections(sandbox)]


async def _process_protections(sandbox: Sandbox) -> list[Protection]:
    ordinary = "run the agent as an ordinary user"
    hidden = hide_memory()
    root = sys.platform != "win32" and os.geteuid() == 0
    reason = "a process of root can read every other" if root else "needs Linux"
    ended = sandbox.program is not None or await _ends_daemons()
    return [
        Protection("agent memory hidden", hidden,
                   "its keys cannot be read from /proc" if hidden else reason, ordinary),
        Protection("descendants ended", ended,
                   "daemons do not outlive their command" if ended else "needs Linux", _INSTALL),
        Protection("ordinary user", not root, "root" if root else "not root", ordinary),
    ]  # fmt: skip


async def _ends_daemons() -> bool:
    """Return whether a daemon that a command starts is killed when the call ends."""
    if sys.platform != "linux":
        return False
    done = await run_process(["sh", "-c", "setsid sleep 30 >/dev/null 2>&1 & echo $!"])
    try:
        os.kill(int(done.stdout), 0)
    except ProcessLookupError:
        return True
    except (ValueError, OSError):
        pass
    return False


# This program runs inside the sandbox and prints what it can reach, as JSON.
_PROBE = """
import ctypes, json, os, socket, stat, sys
homes, repositories, sockets = json.loads(sys.argv[1])
def names(place):
    try: return os.listdir(place)
    except OSError: return []
def is_socket(place):
    try: return stat.S_ISSOCK(os.lstat(place).st_mode)
    except OSError: return False
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "read_only": all(os.statvfs(place).f_flag & os.ST_RDONLY for place in ("/", "/etc", "/usr")),
    "homes": {home: names(home) for home in homes},
    "sockets": [place for place in sockets if is_socket(place)],
    "repositories": [place for place in repositories if os.access(place, os.W_OK)],
    "interfaces": [name for _, name in socket.if_nameindex()],
    "processes": len([name for name in names("/proc") if name.isdigit()]),
    "seccomp": status.get("Seccomp", "0").strip() == "2",
    "namespaces": ctypes.CDLL(None).unshare(0x10000000) == 0,
}))
"""


def _confinement(sandbox: Sandbox, workspace: Path) -> list[Protection]:
    workspace = workspace.resolve()
    names = ["disk read-only", "home hidden", "services hidden", "version control read-only",
             "no network", "other processes hidden", "user namespaces off",
             "system calls filtered"]  # fmt: skip
    found = _probe(sandbox, workspace) if sandbox.program is not None else sandbox.reason
    if isinstance(found, str):
        return [Protection(name, False, found, _INSTALL) for name in ["commands confined", *names]]
    outside = [name for name in found["interfaces"] if name != "lo"]
    homes = _visible(found["homes"], workspace)
    bug = "report this as a bug"
    facts: list[tuple[bool, str, str]] = [
        (found["read_only"], "but for the workspace",
         "check the mount options of /, /etc and /usr"),
        (not homes,
         f"visible: {', '.join(homes)}" if homes else "but for the workspace and the interpreter",
         "choose a workspace below the home, not the home itself"),
        (not found["sockets"], f"visible: {', '.join(found['sockets']) or 'none'}", bug), (not
        found["repositories"], f"writable: {', '.join(found['repositories']) or 'none'}", bug),
        (not outside, f"interfaces: {', '.join(outside) or 'only lo'}", "do not use --network"),
        (found["processes"] < 10, f"{found['processes']} processes visible", bug), (not
        found["namespaces"], "a command cannot become root in a namespace of its own",
         "install bubblewrap 0.8 or later"),
        (found["seccomp"], "ptrace, mount, keyctl, bpf and others return EPERM" if found["seccomp"]
         else "no filter for this kernel or architecture", "use Linux on x86_64 or aarch64"),
    ]  # fmt: skip
    confined = Protection("commands confined", True, f"by {sandbox.program}")
    rest = [Protection(name, *fact) for name, fact in zip(names, facts, strict=True)]
    return [confined, *rest]


def _visible(homes: dict[str, list[str]], workspace: Path) -> list[str]:
    """Return the files and folders in home folders that a command in the sandbox can see.

    Folders that contain the workspace or the interpreter are left out.
    """
    kept = [workspace, Path(sys.prefix), Path(sys.base_prefix)]
    return [
        f"{home}/{name}"
        for home, names in homes.items()
        for name in sorted(names)
        if not any(place.is_relative_to(Path(home, name)) for place in kept)
    ]


def _probe(sandbox: Sandbox, workspace: Path) -> dict[str, Any] | str:
    """Return what a command in the sandbox can reach, or the reason why the probe failed."""
    services = [place for place in list_sockets() if not place.is_relative_to(workspace)]
    looked_at = list_homes(), find_version_control(workspace), services
    places = [[str(each) for each in found] for found in looked_at]
    argv = [sys.executable, "-I", "-S", "-c", _PROBE, json.dumps(places)]
    with sandbox.open_filter() as descriptor:
        command = sandbox.wrap(argv, workspace, seccomp_fd=descriptor)
        passed = [descriptor] if descriptor is not None else []
        try:
            done = subprocess.run(  # noqa: S603
                command,
                capture_output=True,
                timeout=20,
                check=True,
                pass_fds=passed,
                env=clean_environment(),
            )
            return msgspec.json.decode(done.stdout, type=dict[str, Any])
        except subprocess.CalledProcessError as error:
            reason = error.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
            return (
                f"the sandbox cannot be tried: {reason[:200] or f'exit code {error.returncode}'}"
            )
        except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
            return f"the sandbox cannot be tried: {type(error).__name__}"
