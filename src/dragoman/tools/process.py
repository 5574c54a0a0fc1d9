"""Programs as tools: no shell, a clean environment, and no process left running after the call."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ..log import SideEffect
from ..messages import Tool
from . import runtime
from .call_context import call_environment

# An allow-list, because a deny-list is never complete: the environment contains API keys.
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "TMPDIR", "TZ", "USER",
              "LOGNAME", "SHELL",
              "SYSTEMROOT", "VIRTUAL_ENV", "CONDA_PREFIX", "JAVA_HOME", "GOPATH", "CARGO_HOME",
              "NVM_DIR")  # fmt: skip
_GRACE = 0.5  # seconds that background programs have to write their last output
_LAST_RESORT = 10.0  # seconds after which a supervisor that does not exit is killed
_SUPERVISOR = Path(__file__).with_name("supervisor.py")
NEEDS_POSIX = "this needs Linux or macOS; on Windows, run Dragoman in WSL"
_CAN_SUPERVISE = sys.platform == "linux" and bool(sys.executable) and _SUPERVISOR.is_file()
# Python decodes each invalid UTF-8 byte to one of these surrogate characters.
_ESCAPED = re.compile("[\udc80-\udcff]")


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for a tool's program: only the variables that every program needs."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {"PATH": os.defpath, **kept, **(extra or {})}


class Finished(Struct, frozen=True):
    """A program that ended: its exit code and its output, possibly truncated."""

    exit_code: int
    stdout: str
    stderr: str
    stdout_bytes: int
    stderr_bytes: int
    truncated: bool
    replaced_bytes: int = 0


class KeptOutput:
    """Keep the beginning and the end of an output stream of any length."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        self.replaced = 0  # number of bytes that are not valid UTF-8

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._half - len(self._head)
        self._head += data[: max(room, 0)]
        self._tail += data[max(room, 0) :]
        if len(self._tail) > 2 * self._half + 65536:
            del self._tail[: len(self._tail) - self._half]

    @property
    def is_cut(self) -> bool:
        return self.total > 2 * self._half

    def text(self) -> str:
        if not self.is_cut:
            return self._decode(bytes(self._head + self._tail))
        head = bytes(self._head)
        tail = bytes(self._tail[-self._half :])
        # Drop a character that the truncation split, so that the output does not look damaged.
        head = re.sub(rb"[\xc0-\xff][\x80-\xbf]{0,2}\Z", b"", head)
        tail = re.sub(rb"\A[\x80-\xbf]{1,3}", b"", tail)
        missing = self.total - len(head) - len(tail)
        mark = f"\n[... {missing} of {self.total} bytes left out here: too long ...]\n"
        return self._decode(head) + mark + self._decode(tail)

    def _decode(self, data: bytes) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            self.replaced += len(_ESCAPED.findall(data.decode("utf-8", "surrogateescape")))
            return data.decode("utf-8", "replace")


async def run_process(
    argv: Sequence[str],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    limit: int = runtime.DEFAULT_OUTPUT_LIMIT,
    pass_fds: Sequence[int] = (),
    supervised: bool = True,
) -> Finished:
    """Run a program to completion. Neither it nor its descendants outlive the call.

    On Linux a supervisor process kills descendants that left the process group. A program that
    kills its own descendants, such as bubblewrap, needs no supervisor: ``supervised=False``.
    """
    check_platform()
    kept = KeptOutput(limit), KeptOutput(limit)
    async with contextlib.AsyncExitStack() as stack:
        # We open the pipes ourselves: asyncio would wait until every background program has closed
        # its pipes too.
        pipes = [await stack.enter_async_context(open_pipe(each)) for each in kept]
        own_end, other_end = stack.enter_context(_control(supervised=supervised))
        if other_end is not None:
            argv = supervise(argv, other_end.fileno())
            pass_fds = [*pass_fds, other_end.fileno()]
        process = await _start(argv, cwd, env, stdin, [pipe.write_end for pipe in pipes], pass_fds)
        for pipe in pipes:
            pipe.close_write_end()
        if other_end is not None:
            other_end.close()
        try:
            code = await _wait(process, own_end, argv)
            await asyncio.wait([pipe.ended for pipe in pipes], timeout=_GRACE)
        finally:
            if own_end is None:
                signal_group(process.pid, signal.SIGKILL)
            else:
                own_end.close()
                # SIGCONT resumes a supervisor that the command has stopped
                signal_group(process.pid, signal.SIGCONT)
            await asyncio.shield(end_process(process))
    out, err = kept
    texts = out.text(), err.text()
    return Finished(
        code, *texts, out.total, err.total, out.is_cut or err.is_cut, out.replaced + err.replaced
    )


def check_platform() -> None:
    """Raise ``ToolFailure`` on Windows, where programs cannot be ended with their descendants."""
    if sys.platform == "win32":
        raise runtime.ToolFailure("not_started", NEEDS_POSIX)


def supervise(argv: Sequence[str], control: int | None = None) -> list[str]:
    """Return the command that runs ``argv`` under a supervisor, where the platform supports one.

    ``control`` is the descriptor of the supervisor's control socket. Without this socket,
    descendants are killed when the command ends or the thread that started it ends.
    """
    if not _CAN_SUPERVISE:
        return list(argv)
    return [
        sys.executable,
        "-I",
        "-S",
        str(_SUPERVISOR),
        str(-os.getpid() if control is None else control),
        *argv,
    ]


@contextlib.contextmanager
def _control(
    *, supervised: bool
) -> Iterator[tuple[socket.socket, socket.socket] | tuple[None, None]]:
    """Open a socket pair to a supervisor; yield this process's end and the supervisor's end.

    Both are ``None`` if no supervisor is used.
    """
    if not (supervised and _CAN_SUPERVISE):
        yield None, None
        return
    own_end, other_end = socket.socketpair()
    own_end.setblocking(False)
    with own_end, other_end:
        yield own_end, other_end


async def _wait(
    process: asyncio.subprocess.Process, control: socket.socket | None, argv: Sequence[str]
) -> int:
    """Wait for a program to end, or for its supervisor's report."""
    if control is None:
        return await process.wait()
    report, _, number = (
        (await asyncio.get_running_loop().sock_recv(control, 64)).decode().partition(" ")
    )
    if report == "failed":
        raise runtime.ToolFailure("not_started", f"{argv[5]}: {os.strerror(int(number))}")
    # A missing report means that the supervisor was killed.
    return int(number) if report else await process.wait()


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Wait for a process that was asked to exit, and kill it if it does not."""
    try:
        async with asyncio.timeout(_LAST_RESORT):
            await process.wait()
    except TimeoutError:
        signal_group(process.pid, signal.SIGKILL)
        await process.wait()


async def _start(
    argv: Sequence[str],
    cwd: str | Path | None,
    env: Mapping[str, str] | None,
    stdin: bytes | None,
    outputs: Sequence[int],
    pass_fds: Sequence[int],
) -> asyncio.subprocess.Process:
    # standard input is a file and not a pipe, because a program may read it late
    with tempfile.TemporaryFile() as given:
        given.write(stdin or b"")
        given.seek(0)
        try:
            return await asyncio.create_subprocess_exec(
                *argv,
                cwd=cwd,
                env=dict(env if env is not None else clean_environment()),
                stdin=given if stdin is not None else asyncio.subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
                start_new_session=True,
                pass_fds=pass_fds,
            )
        except (OSError, ValueError) as error:
            raise runtime.ToolFailure(
                "not_started", f"{argv[0]}: {getattr(error, 'strerror', None) or error}"
            ) from error


class _Pipe(asyncio.Protocol):
    """Collect the bytes that arrive at the read end of a pipe."""

    def __init__(self, kept: KeptOutput, write_end: int) -> None:
        self.write_end = write_end
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kept = kept
        self._open = True

    def data_received(self, data: bytes) -> None:
        self._kept.add(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def close_write_end(self) -> None:
        if self._open:
            self._open = False
            os.close(self.write_end)


@contextlib.asynccontextmanager
async def open_pipe(kept: KeptOutput) -> AsyncIterator[_Pipe]:
    """Open a pipe for the output of a program, and collect the output in ``kept``."""
    read_end, write_end = os.pipe()
    pipe = _Pipe(kept, write_end)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: pipe, os.fdopen(read_end, "rb", 0)
    )
    try:
        yield pipe
    finally:
        pipe.close_write_end()
        transport.close()


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process group, unless it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def observe_process(done: Finished) -> runtime.Observation:
    """Return the result of a program as text for the model: exit code, stdout and stderr."""
    parts = [f"exit code: {done.exit_code}"]
    parts += [f"--- stdout\n{done.stdout}"] if done.stdout else []
    parts += [f"--- stderr\n{done.stderr}"] if done.stderr else []
    details = {"stdout_bytes": done.stdout_bytes, "stderr_bytes": done.stderr_bytes}
    if done.replaced_bytes:
        details["replaced_bytes"] = done.replaced_bytes
    return runtime.Observation(
        "\n".join(parts),
        is_error=done.exit_code != 0,
        truncated=done.truncated,
        exit_code=done.exit_code,
        details=details,
    )


_PLACE = re.compile(r"\{(\w+)\}")


class ProcessTool(runtime.ExecutableTool):
    """A program as a tool: ``ProcessTool(Tool("lint", ...), ["ruff", "check", "{path}"])``.

    Each ``{name}`` in the command is replaced by that argument of the call; no shell is involved.
    A value that begins with a dash would be parsed as an option and is rejected, unless
    ``options`` allows it. With ``stdin="json"`` the program receives the complete input on
    standard input.
    """

    def __init__(
        self,
        description: Tool,
        command: Sequence[str],
        *,
        side_effect: SideEffect = "execute",
        timeout: float | None = runtime.DEFAULT_TIMEOUT,
        output_limit: int = runtime.DEFAULT_OUTPUT_LIMIT,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Literal["json"] | None = None,
        options: bool = False,
    ) -> None:
        super().__init__(
            description, side_effect=side_effect, timeout=timeout, output_limit=output_limit
        )
        if isinstance(command, str) or not command:
            raise ValueError(
                "command: must be a list of the program and its arguments, not a string"
            )
        known = description.parameters.get("properties", {})
        for name in [name for part in command for name in _PLACE.findall(part)]:
            if name not in known:
                raise ValueError(f"command: {{{name}}} is not a parameter of {description.name!r}")
        self._command = tuple(command)
        self._cwd = cwd
        self._env = dict(env or {})
        self._stdin = stdin
        self._options = options

    def check(self, arguments: Mapping[str, Any]) -> str | None:
        for part in self._command[1:]:
            for name in _PLACE.findall(part):
                if name not in arguments:
                    return f"{name}: is required"
                text = _as_text(arguments[name])
                if "\0" in text:
                    return f"{name}: must not contain a NUL"
                if part.startswith("{") and text.startswith("-") and not self._options:
                    return f"{name}: must not begin with a dash"
        return None

    def context(self) -> dict[str, Any]:
        return {"command": list(self._command), "cwd": str(self._cwd or Path.cwd())}

    async def execute(self, arguments: Mapping[str, Any]) -> runtime.Observation:
        fill = lambda found: _as_text(arguments[found[1]])
        argv = [_PLACE.sub(fill, part) for part in self._command]
        stdin = msgspec.json.encode(arguments) if self._stdin == "json" else None
        done = await run_process(
            argv,
            cwd=self._cwd,
            env=clean_environment({**self._env, **call_environment()}),
            stdin=stdin,
            limit=self.output_limit // 2 - 50,
        )
        return observe_process(done)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
