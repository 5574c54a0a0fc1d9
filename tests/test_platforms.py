"""Code that only POSIX systems can run is listed on a page, and guarded elsewhere.

Faking ``sys.platform`` proves which branch is taken and that nothing is imported that Windows
lacks. It does not prove that Windows runs the rest.
"""

import ast
import asyncio
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.approval import InputLines
from dragoman.gateway import keystore
from dragoman.gateway.processes import is_alive
from dragoman.tools.mcp_stdio import open_program
from dragoman.tools.process import run_process
from dragoman.tools.runtime import ToolFailure
from dragoman.tools.workspace import Workspace
from dragoman.transport import HttpTransport

from .sources import PACKAGE as SOURCE
from .sources import read_package

ROOT = Path(__file__).parents[1]

PAGE = ROOT / "docs/reference/platforms.md"
MODULES = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "termios", "tty", "uvloop"}
NAMES = {
    *("fchmod", "fork", "geteuid", "getuid", "killpg", "waitpid", "WNOHANG", "sched_getaffinity"),
    *("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "AF_UNIX", "SO_REUSEPORT", "set_wakeup_fd"),
    *("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "SIGWINCH"),
}
LOOP = {"add_reader", "add_signal_handler", "create_unix_connection", "create_unix_server"}
ARGUMENTS = {"dir_fd", "pass_fds", "preexec_fn", "start_new_session"}


def find_posix(nodes: list[ast.AST]) -> set[str]:
    """Return the names in a module that only POSIX systems have."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} & MODULES
        elif isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            is_own = owner not in ("os", "signal", "socket") and node.attr not in LOOP
            found |= set() if is_own else {node.attr} & (NAMES | LOOP)
        elif isinstance(node, ast.keyword):
            found |= {node.arg or ""} & ARGUMENTS
        elif isinstance(node, ast.Constant) and str(node.value).startswith("/proc"):
            found.add("/proc")
    return found


def test_page_lists_each_file_that_uses_posix_only_features() -> None:
    using = {source.path.as_posix() for source in read_package() if find_posix(source.nodes)}
    assert {name for name in PAGE.read_text().split("`") if name.endswith(".py")} == using


def test_every_module_can_be_imported_without_posix_only_features() -> None:
    """The standard library and other packages are loaded before the platform is faked."""
    program = f"""
import importlib, os, pathlib, signal, socket, sys, types
names = []
for path in sorted(pathlib.Path({str(SOURCE)!r}).rglob("*.py")):
    name = ".".join(path.relative_to({str(SOURCE.parent)!r}).with_suffix("").parts)
    # Programs: the supervisor is started on Linux only. Frameworks take seconds to import.
    if name.startswith(("dragoman.__main__", "dragoman.tools.supervisor", "dragoman.integrations")):
        continue
    try:
        importlib.import_module(name)
        names.append(name)
    except ModuleNotFoundError as error:
        assert not error.name.startswith("dragoman"), error
for name in [*sys.modules]:
    if name.partition(".")[0] == "dragoman":
        del sys.modules[name]
for name in {sorted(MODULES)}:
    sys.modules[name] = None
for module in (os, signal, socket):
    for name in {sorted(NAMES)}:
        vars(module).pop(name, None)
sys.platform, sys.modules["msvcrt"] = "win32", types.ModuleType("msvcrt")
for name in names:
    importlib.import_module(name)
print(len(names))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")


@pytest.mark.usefixtures("windows")
async def test_features_missing_on_windows_are_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="in WSL"):
        Workspace(tmp_path)
    with pytest.raises(ToolFailure, match="in WSL"):
        await run_process(["true"])
    with pytest.raises(ToolFailure, match="in WSL"):
        async with open_program(["true"], {}, None, 2):
            pass
    with pytest.raises(ValueError, match="no Unix sockets on Windows"):
        HttpTransport(uds="/run/model.sock")
    assert is_alive(1)


def test_user_without_a_name_is_audited(windows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise ImportError("pwd")

    monkeypatch.setattr("getpass.getuser", fail)
    assert keystore._find_actor().startswith("unknown@")  # noqa: SLF001 - what audit records have


async def test_line_can_be_read_from_a_console(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(console := io.BytesIO(b"yes\n")))
    monkeypatch.setattr(console, "fileno", lambda: 0, raising=False)
    assert await InputLines().read() == "yes\n"
