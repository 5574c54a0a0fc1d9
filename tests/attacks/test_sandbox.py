"""Commands cannot escape the sandbox or their process group, nor read the memory of the agent."""

import asyncio
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman.cli import main
from dragoman.tools import Sandbox, Toolbox, ToolFailure, find_sandbox, workspace_tools
from dragoman.tools import sandbox as sandbox_module
from dragoman.tools.process import run_process
from dragoman.tools.seccomp import BLOCKED

from ..programs import list_sleeping, require
from ..tools.sandboxes import needs_sandbox
from ..waiting import PATIENCE, until, virtual_time

SECRET = "QSECRETQ"
NONE = Sandbox(None, "for the test")
PROGRAMS = ("/usr", "/etc", "/bin", "/lib", "/lib64")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / "work"
    folder.mkdir(parents=True)
    return folder


async def bash(root: Path, command: str, sandbox: Sandbox | None = None, **settings: Any) -> str:
    box = Toolbox(workspace_tools(root, sandbox=sandbox, timeout=PATIENCE, **settings))
    return str((await box.execute("bash", {"command": command})).content)


def mounts(argv: list[str]) -> list[tuple[str, str]]:
    """Return the mounts in the command line of a sandbox in order, as (option, mount point)."""
    taken = {"--tmpfs": 1, "--bind": 2, "--ro-bind": 2, "--dev": 1, "--proc": 1, "--remount-ro": 1}
    head = argv[: argv.index("--chdir")]
    return [(part, head[at + taken[part]]) for at, part in enumerate(head) if part in taken]


# --- arguments of the sandbox; these tests run on every system ---------------------------------


def test_sandbox_hides_the_home_folder_and_sockets(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = root.parent
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(sys, "prefix", str(home / "venv"))
    for name in ("venv", "cargo", "other"):
        (home / name).mkdir()
    argv = Sandbox("bwrap", "", ("--disable-userns",)).wrap(
        ["ls"], root, readable=[home / "cargo"], seccomp_fd=9
    )
    found = mounts(argv)
    for place in ("/tmp", "/run", str(home)):
        assert ("--tmpfs", place) in found
    assert found.index(("--tmpfs", str(home))) < found.index(("--bind", str(root)))
    assert found.index(("--tmpfs", str(home))) < found.index(("--ro-bind", str(home / "venv")))
    assert ("--ro-bind", str(home / "cargo")) in found
    assert str(home / "other") not in argv
    assert argv[argv.index("--seccomp") + 1] == "9"
    for option in (
        "--disable-userns",
        "--unshare-all",
        "--cap-drop",
        "--die-with-parent",
        "--new-session",
    ):
        assert option in argv
    assert "--seccomp" not in Sandbox("bwrap", "").wrap(["ls"], root)


def test_private_folders_are_hidden_if_the_workspace_is_the_home_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = root.parent
    (home / ".ssh").mkdir()
    (home / ".netrc").write_text(SECRET)
    monkeypatch.setenv("HOME", str(home))
    found = mounts(Sandbox("bwrap", "").wrap(["ls"], home))
    assert ("--tmpfs", str(home)) not in found
    assert found.index(("--bind", str(home))) < found.index(("--tmpfs", str(home / ".ssh")))
    assert ("--ro-bind", str(home / ".netrc")) in found


def link_venv(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the interpreter's folder a symbolic link in the workspace; return its target."""
    target = root.parent / "venvs" / "x"
    target.mkdir(parents=True)
    (root / ".venv").symlink_to(target)
    monkeypatch.setenv("HOME", str(root.parent))
    monkeypatch.setattr(sys, "prefix", str(root / ".venv"))
    return target


def test_symbolic_link_in_the_workspace_is_not_a_mount_point(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = link_venv(root, monkeypatch)
    found = mounts(Sandbox("bwrap", "").wrap(["ls"], root))
    assert ("--ro-bind", str(target)) in found
    assert str(root / ".venv") not in [place for _, place in found]


def test_name_resolution_works_if_the_network_is_allowed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = root.parent.parent / "run" / "stub-resolv.conf"
    file.parent.mkdir()
    file.write_text("nameserver 127.0.0.53\n")
    monkeypatch.setattr(sandbox_module, "_EMPTY", (str(file.parent),))
    monkeypatch.setattr(
        Path, "resolve", lambda self: file if self == Path("/etc/resolv.conf") else self
    )
    assert ("--ro-bind", str(file)) in mounts(
        Sandbox("bwrap", "").wrap(["ls"], root, network=True)
    )
    assert ("--ro-bind", str(file)) not in mounts(Sandbox("bwrap", "").wrap(["ls"], root))


@pytest.mark.parametrize(
    "name",
    [
        *(".git", ".GIT", "sub/.git", "sub/deep/.Git", "a/b/c/d/e/.git"),
        *("node_modules/x/.git", ".venv/src/x/.git"),
    ],
)
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_git_folder_is_mounted_read_only_in_the_sandbox(root: Path, name: str, kind: str) -> None:
    place = root / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.mkdir() if kind == "folder" else place.write_text("gitdir: elsewhere\n")
    found = mounts(Sandbox("bwrap", "").wrap(["ls"], root))
    assert found[-2:] == [("--ro-bind", str(place)), ("--remount-ro", "/")]


def test_symbolic_link_named_git_does_not_escape_the_workspace(root: Path) -> None:
    (root / "real").mkdir()
    (root / "sub").mkdir()
    (root / ".git").symlink_to(root / "real")
    (root / "sub" / ".git").symlink_to(root.parent)
    assert mounts(Sandbox("bwrap", "").wrap(["ls"], root))[-2] == ("--ro-bind", str(root / "real"))


def test_only_folders_of_programs_are_visible_beside_the_workspace(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", "/")
    monkeypatch.setattr(sys, "base_prefix", "/")
    argv = Sandbox("bwrap", "").wrap(["ls"], root)
    visible = {place for option, place in mounts(argv) if option == "--ro-bind"}
    places = {"/", "/home", "/mnt", "/nix", "/opt", "/root", "/srv", "/var", "/var/lib"}
    assert not places & visible
    assert {"/usr", "/etc"} <= visible
    everything = mounts(Sandbox("bwrap", "").wrap(["ls"], Path("/")))
    assert ("--bind", "/") in everything
    assert ("--remount-ro", "/") not in everything


# --- commands that run in the sandbox ----------------------------------------------------------


@needs_sandbox
async def test_commands_run_if_the_interpreter_is_behind_a_symbolic_link(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (link_venv(root, monkeypatch) / "pyvenv.cfg").write_text("it is here")
    assert "it is here" in await bash(root, "cat .venv/pyvenv.cfg")


@needs_sandbox
@pytest.mark.parametrize("visible", ["nowhere", "readable", "linked"])
async def test_sandboxed_command_cannot_reach_services(
    root: Path, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    folder = root.parent.parent / "service"
    folder.mkdir()
    (folder / "notes").write_text("it is here")
    # An empty /tmp would hide the service: this one is in a folder of which the sandbox knows
    # nothing, as /srv is.
    monkeypatch.setattr(sandbox_module, "_EMPTY", ())
    readable = [folder] if visible == "readable" else []
    seen = folder
    if visible == "linked":
        seen = root.parent.parent / "link"
        seen.symlink_to(folder)
        monkeypatch.setattr(sandbox_module, "_SYSTEM", (*PROGRAMS, str(seen)))
    place = folder / "a service.sock"
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(place))
        service.listen()
        service.settimeout(PATIENCE)
        threading.Thread(target=_serve, args=(service, heard), daemon=True).start()
        connect = (
            f'{sys.executable} -c "import socket; '
            f"socket.socket(socket.AF_UNIX).connect('{seen}/{place.name}')\""
        )
        try:
            said = await bash(root, f"cat {seen}/notes; {connect}", readable=readable)
            is_hidden = visible == "nowhere"
            assert ("FileNotFoundError" if is_hidden else "ConnectionRefusedError") in said
            assert ("it is here" in said) is not is_hidden
            assert heard == []
            # Without a sandbox the service can be reached.
            assert "exit code: 0" in await bash(root, connect, NONE)
        finally:
            place.unlink()


def _serve(service: socket.socket, heard: list[bytes]) -> None:
    try:
        while True:
            service.accept()[0].close()
            heard.append(b"x")
    except OSError:
        pass


@needs_sandbox
async def test_sandboxed_command_cannot_read_files_in_the_home_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = root.parent
    for name in (
        ".pgpass",
        ".vault-token",
        ".bash_history",
        ".ssh/id",
        ".local/share/dragoman/log.db",
        "notes.txt",
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(SECRET)
    (home / "tools").mkdir()
    (home / "tools" / "list").write_text("readable")
    (root / "own.txt").write_text("mine")
    monkeypatch.setenv("HOME", str(home))
    said = await bash(
        root,
        "grep -rs QSECRET .. $HOME; cat own.txt ~/tools/list; echo x > ~/x; echo; ls -A ~",
        readable=[home / "tools"],
    )
    assert SECRET not in said
    assert "minereadable" in said
    assert not (home / "x").exists()
    # The home folder is temporary and contains nothing else.
    assert sorted(said.splitlines()[-3:]) == ["tools", "work", "x"]


@needs_sandbox
@pytest.mark.parametrize("name", [".git", ".GIT", "sub/.git"])
async def test_sandboxed_command_cannot_write_to_the_git_folder(root: Path, name: str) -> None:
    git = root / name
    (git / "hooks").mkdir(parents=True)
    (git / "config").write_text("[core]\n")
    (root / "file").mkdir()
    (root / "file" / ".git").write_text("gitdir: ../real\n")
    before = _tree(root)
    await bash(
        root,
        f"echo evil > {name}/hooks/post-checkout; echo evil >> {name}/config; echo ../evil > "
        f"{name}/commondir;mv {name} gone; rm -rf {name}; mv {name}/config x; rm file/.git; echo "
        "gitdir: evil > file/.git;mv file/.git y; echo z > z; mv z file/.git; rm -rf x y z",
    )
    assert _tree(root) == before


def _tree(root: Path) -> dict[str, str | None]:
    return {
        str(path): path.read_text() if path.is_file() else None for path in sorted(root.rglob("*"))
    }


# Each entry: the name and arguments of a system call. The filter must reject all of them, and not
# because of a missing privilege.
_CALLS = """
import ctypes, errno, fcntl, os, platform
from ctypes import c_long
numbers = {"x86_64": 0, "aarch64": 1}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
def name(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(c_long(number), *[c_long(each) for each in arguments])
    return errno.errorcode.get(ctypes.get_errno(), result)
for call, (number, arguments) in CALLS.items():
    print(call, name(number, *arguments))
print("clone3", name(435, 0, 0))
print("clone", name((56, 220)[numbers], 0x10000011, 0, 0, 0, 0))
try: fcntl.ioctl(0, 0x5412, b"x")
except OSError as error: print("TIOCSTI", errno.errorcode[error.errno])
"""


@pytest.mark.skipif(not find_sandbox().seccomp, reason="this kernel or architecture has no filter")
@needs_sandbox
async def test_seccomp_filter_is_loaded(root: Path) -> None:
    column = os.uname().machine == "aarch64"
    calls = {name: (numbers[column], (0, 0, 0, 0, 0)) for name, numbers in BLOCKED.items()}
    (root / "calls.py").write_text(f"CALLS = {calls!r}\n{_CALLS}")
    said = await bash(root, f"grep ^Seccomp: /proc/self/status; {sys.executable} calls.py")
    lines = dict(
        line.split() for line in said.splitlines() if len(line.split()) == 2 and "-" not in line
    )
    assert lines.pop("Seccomp:") == "2"
    assert lines.pop("clone3") == "ENOSYS"
    assert set(lines) == {*BLOCKED, "clone", "TIOCSTI"}
    assert set(lines.values()) == {"EPERM"}, lines


@needs_sandbox
async def test_ordinary_commands_work_in_the_sandbox(root: Path) -> None:
    program = (
        "import subprocess, threading; t = threading.Thread(target=print, args=('thread',)); "
        "t.start(); t.join()"
    )
    (root / "work.py").write_text(
        f"{program}\nprint(subprocess.check_output(['echo', 'child'], text=True))\n"
    )
    said = await bash(
        root,
        f"{sys.executable} work.py && (sleep 0.01 & wait) && mktemp && ls /proc/self/fd | wc -l",
    )
    assert "exit code: 0" in said
    assert "thread\nchild" in said


@needs_sandbox
async def test_sandboxed_command_cannot_access_other_processes_and_namespaces(root: Path) -> None:
    said = await bash(
        root,
        f"ls -d /proc/[0-9]* | wc -l; test -e /proc/{os.getpid()}/environ && echo seen; grep "
        "CapEff /proc/self/status",
    )
    assert "seen" not in said or os.getpid() < 10
    assert int(said.splitlines()[2]) < 10
    assert "CapEff:\t0000000000000000" in said
    offered = subprocess.run(
        [str(find_sandbox().program), "--help"], capture_output=True, text=True, check=False
    )
    if "--disable-userns" in offered.stdout:
        unshare = "import ctypes; print('namespace', ctypes.CDLL(None).unshare(0x10000000))"
        (root / "unshare.py").write_text(unshare)
        # Use the same sandbox without the seccomp filter.
        bare = Sandbox(find_sandbox().program, "", find_sandbox().options)
        assert "namespace -1" in await bash(root, f"{sys.executable} unshare.py", bare)


# --- commands that run without bubblewrap ------------------------------------------------------

DAEMONS = {
    "background": "sleep 3{n} & echo started",
    "setsid": "setsid sleep 3{n} >/dev/null 2>&1 & echo started",
    "double fork": "(setsid sh -c 'sleep 3{n}' >/dev/null 2>&1 &); echo started",
    "nohup": "nohup sleep 3{n} >/dev/null 2>&1 & disown; echo started",
    "daemon": (
        'python3 -c "import os\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n'
        "  os.execvp('sleep', ['sleep', '3{n}'])\"; echo started"
    ),
}


@pytest.fixture
def number() -> Iterator[str]:
    """Yield a unique number of seconds for ``sleep``, by which a test finds its own processes;
    kill the remaining processes afterwards.
    """
    chosen = f"{os.getpid()}{threading.get_native_id() % 97}"
    yield chosen
    for process in list_sleeping(f"3{chosen}"):
        process.kill()


@LINUX
@pytest.mark.parametrize("kind", DAEMONS)
async def test_background_processes_do_not_outlive_the_tool_call(
    root: Path, kind: str, number: str
) -> None:
    said = await bash(root, DAEMONS[kind].replace("{n}", number), NONE)
    assert said == "exit code: 0\n--- stdout\nstarted\n"
    assert list_sleeping(f"3{number}") == []


@LINUX
@pytest.mark.parametrize("way", ["timeout", "cancelled", "stopped"])
async def test_background_processes_do_not_outlive_a_cancelled_tool_call(
    root: Path, way: str, number: str
) -> None:
    box = Toolbox(workspace_tools(root, sandbox=NONE, timeout=PATIENCE))
    # The parent of the command is the supervisor.
    stop = "kill -STOP $PPID;" if way == "stopped" else ""
    nap = f"sleep 3{number}"
    command = f"{stop} trap '' TERM INT HUP; setsid {nap} & (setsid {nap} &); echo x > up; {nap}"
    call = asyncio.create_task(box.execute("bash", {"command": command}))
    await until((root / "up").exists, "the command to begin")
    assert len(list_sleeping(f"3{number}")) >= 1
    if way == "cancelled":
        call.cancel()
    else:
        with virtual_time():
            await asyncio.sleep(PATIENCE)
    with pytest.raises((ToolFailure, asyncio.CancelledError)):
        await call
    assert list_sleeping(f"3{number}") == []


@LINUX
async def test_background_processes_do_not_outlive_a_killed_agent(root: Path, number: str) -> None:
    program = (
        "import asyncio; from dragoman.tools.process import run_process;"
        f"asyncio.run(run_process(['sh', '-c', 'setsid sleep 3{number} & sleep 3{number}']))"
    )
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"]},
    )
    await until(
        lambda: agent.returncode is not None or len(list_sleeping(f"3{number}")) == 2,
        "the processes of the agent",
    )
    assert agent.returncode is None
    agent.kill()
    await agent.wait()
    await until(lambda: not list_sleeping(f"3{number}"), "the end of the background processes")


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], -9),
        (["sh", "-c", "kill -PIPE $$"], -13),
        (["true"], 0),
    ],
)
async def test_exit_codes_and_signals_of_commands_are_reported_unchanged(
    argv: list[str], code: int
) -> None:
    for supervised in (True, False):
        assert (await run_process(argv, supervised=supervised)).exit_code == code


@pytest.mark.parametrize("supervised", [True, False])
async def test_error_names_a_program_that_cannot_be_started(
    tmp_path: Path, supervised: bool
) -> None:
    (tmp_path / "file").write_text("no program")
    for program, reason in (
        ("/no/such", "No such file or directory"),
        (str(tmp_path / "file"), "Permission denied"),
    ):
        with pytest.raises(ToolFailure, match=f"^{program}: {reason}$"):
            await run_process([program, "x"], supervised=supervised)


_AGENT = """
import subprocess, sys
from dragoman.tools import hide_memory
if sys.argv[1] == "hide":
    hide_memory()
tried = "tr '\\\\0' '\\\\n' < /proc/$PPID/environ; head -c 1 /proc/$PPID/mem; cat /proc/$PPID/maps"
print(subprocess.run(["sh", "-c", tried], capture_output=True, text=True, env={}).stdout)
"""


@LINUX
def test_other_processes_cannot_read_the_memory_of_the_agent(tmp_path: Path) -> None:
    # Root can read every process. Without its capabilities it is like any other user.
    drop = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"] if os.geteuid() == 0 else []
    if drop:
        require(drop[0])
    seen = {}
    for mode in ("show", "hide"):
        done = subprocess.run(
            [*drop, sys.executable, "-c", _AGENT, mode],
            env={"PYTHONPATH": ":".join(sys.path), "MY_KEY": SECRET},
            capture_output=True,
            text=True,
            check=True,
        )
        seen[mode] = done.stdout.strip()
    assert f"MY_KEY={SECRET}" in seen["show"]
    assert seen["hide"] == ""


@LINUX
def test_agent_makes_its_memory_unreadable_at_start() -> None:
    prctl = ctypes.CDLL(None).prctl
    prctl(4, 1, 0, 0, 0)
    try:
        assert CliRunner().invoke(main, ["agent"]).exit_code == 2
        assert prctl(3, 0, 0, 0, 0) == 0
    finally:
        prctl(4, 1, 0, 0, 0)


# --- dragoman agent doctor, the command --------------------------------------------------------

NAMES = [
    "commands confined", "disk read-only", "home hidden", "services hidden",
    "version control read-only", "no network",
    "other processes hidden", "user namespaces off", "system calls filtered",
    "agent memory hidden",
    "descendants ended", "ordinary user",
]  # fmt: skip


@pytest.fixture
def without_bubblewrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "sleep", "setsid"):
        (programs / name).symlink_to(shutil.which(name) or "/bin/false")
    monkeypatch.setenv("PATH", str(programs))
    find_sandbox.cache_clear()
    yield
    find_sandbox.cache_clear()


def doctor(root: Path, *more: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["agent", "doctor", "--workspace", str(root), *more])
    return result.exit_code, result.stdout


@pytest.mark.usefixtures("without_bubblewrap")
def test_doctor_command_names_missing_parts_and_how_to_install_them(root: Path) -> None:
    code, said = doctor(root)
    assert code == 1
    assert (
        "missing  home hidden                 bubblewrap is not installed; install bubblewrap "
        "(Debian" in said
    )
    assert ("active   descendants ended" in said) is (sys.platform == "linux")
    assert len(said.splitlines()) == len(NAMES)
    code, said = doctor(root, "--json")
    found = json.loads(said)
    assert code == 1
    assert found["complete"] is False
    assert [each["name"] for each in found["protections"]] == NAMES
    assert all(each["advice"] for each in found["protections"] if not each["active"])


@needs_sandbox
def test_doctor_command_tries_to_start_the_sandbox(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / ".git").mkdir()
    (root.parent / "secret").write_text(SECRET)
    monkeypatch.setenv("HOME", str(root.parent))
    code, said = doctor(root, "--json")
    active = {each["name"]: each["active"] for each in json.loads(said)["protections"]}
    strong = find_sandbox().seccomp and bool(find_sandbox().options)
    assert [name for name in NAMES[:7] if not active[name]] == (
        [] if strong else ["user namespaces off"]
    )
    assert active["ordinary user"] is (os.geteuid() != 0)
    assert code == (0 if all(active.values()) else 1)
    # Turn some protections off. The command must notice this, because it tests each protection
    # instead of trusting the options of the sandbox.
    place = root.parent / "service.sock"
    monkeypatch.setattr(sandbox_module, "_SYSTEM", (*PROGRAMS, str(root.parent)))
    monkeypatch.setattr(sandbox_module, "list_homes", list)
    monkeypatch.setattr(sandbox_module, "list_sockets", list)
    monkeypatch.setattr(sandbox_module, "find_version_control", lambda _: [])
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(place))
        _, said = doctor(root, "--json")
    found = {each["name"]: each for each in json.loads(said)["protections"]}
    assert not found["services hidden"]["active"]
    assert found["services hidden"]["detail"] == f"visible: {place}"
    assert not found["home hidden"]["active"]
    assert f"{root.parent}/secret" in found["home hidden"]["detail"]
    assert not found["version control read-only"]["active"]


@needs_sandbox
def test_doctor_command_reports_why_the_sandbox_does_not_start(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_sandbox()  # it is found once; with the next line, that would fail
    monkeypatch.setattr(sandbox_module, "find_version_control", lambda _: [Path("/nowhere/.git")])
    code, said = doctor(root)
    assert code == 1
    reason = "the sandbox cannot be tried: bwrap: Can't find source path /nowhere"
    assert f"missing  commands confined           {reason}" in said


def test_goal_that_starts_with_doctor_is_not_the_doctor_command() -> None:
    result = CliRunner().invoke(main, ["agent", "doctor the tests", "--budget", "x"])
    assert "--budget x: must be one of" in result.output
