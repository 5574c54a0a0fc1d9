"""Programs as tools: no shell, a clean environment, and nothing left running behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ..log import SideEffect
from ..messages import Tool
from .runtime import DEFAULT_OUTPUT_LIMIT, DEFAULT_TIMEOUT, ExecutableTool, Observation, ToolFailure

# A list of what may be inherited, because a list of secrets is never complete: keys of providers live here.
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "TMPDIR", "TZ", "USER", "LOGNAME", "SHELL",
              "SYSTEMROOT", "VIRTUAL_ENV", "CONDA_PREFIX", "JAVA_HOME", "GOPATH", "CARGO_HOME", "NVM_DIR")  # fmt: skip
_GRACE = 0.5  # seconds between asking a program to end and ending it, and for its last output
_ESCAPED = re.compile("[\udc80-\udcff]")  # how Python writes bytes that are no UTF-8, one for each


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment a tool's program gets: none of ours but what every program needs."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {"PATH": os.defpath, **kept, **(extra or {})}


class Finished(Struct, frozen=True):
    """A program that ended: its code and its output, as much of it as was kept."""

    exit_code: int
    stdout: str
    stderr: str
    stdout_bytes: int
    stderr_bytes: int
    truncated: bool
    replaced_bytes: int = 0


class _Kept:
    """The beginning and the end of a stream, however long it is."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        self.replaced = 0  # bytes of the text that are no UTF-8

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
        head, tail = bytes(self._head), bytes(self._tail[-self._half :])
        # Not to invent damage where the cut went through a character.
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
    limit: int = DEFAULT_OUTPUT_LIMIT,
) -> Finished:
    """Run a program to its end, in a process group of its own that does not outlive it or the call."""
    kept = _Kept(limit), _Kept(limit)
    async with contextlib.AsyncExitStack() as stack:
        # Pipes of ours: of its own, asyncio would wait until every program in the background closed them too.
        pipes = [await stack.enter_async_context(_pipe(each)) for each in kept]
        process = await _start(argv, cwd, env, stdin, [pipe.write_end for pipe in pipes])
        for pipe in pipes:
            pipe.close_write_end()
        try:
            code = await process.wait()
            await asyncio.wait([pipe.ended for pipe in pipes], timeout=_GRACE)
        finally:
            _kill_group(process.pid)
            if process.returncode is None:
                await asyncio.shield(process.wait())
    out, err = kept
    texts = out.text(), err.text()
    return Finished(code, *texts, out.total, err.total, out.is_cut or err.is_cut, out.replaced + err.replaced)


async def _start(
    argv: Sequence[str],
    cwd: str | Path | None,
    env: Mapping[str, str] | None,
    stdin: bytes | None,
    outputs: Sequence[int],
) -> asyncio.subprocess.Process:
    with tempfile.TemporaryFile() as given:  # a file, because a program may read as late as it likes
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
            )
        except (OSError, ValueError) as error:
            raise ToolFailure("not_started", f"{argv[0]}: {getattr(error, 'strerror', None) or error}") from error


class _Pipe(asyncio.Protocol):
    """The end of a pipe that we read."""

    def __init__(self, kept: _Kept, write_end: int) -> None:
        self.write_end = write_end
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kept = kept
        self._open = True

    def data_received(self, data: bytes) -> None:
        self._kept.add(data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def close_write_end(self) -> None:
        if self._open:
            self._open = False
            os.close(self.write_end)


@contextlib.asynccontextmanager
async def _pipe(kept: _Kept) -> AsyncIterator[_Pipe]:
    read_end, write_end = os.pipe()
    pipe = _Pipe(kept, write_end)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: pipe, os.fdopen(read_end, "rb", 0))
    try:
        yield pipe
    finally:
        pipe.close_write_end()
        transport.close()


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def observe_process(done: Finished) -> Observation:
    """What a program did, for the model to read: its code, its output, its complaints."""
    parts = [f"exit code: {done.exit_code}"]
    parts += [f"--- stdout\n{done.stdout}"] if done.stdout else []
    parts += [f"--- stderr\n{done.stderr}"] if done.stderr else []
    details = {"stdout_bytes": done.stdout_bytes, "stderr_bytes": done.stderr_bytes}
    if done.replaced_bytes:
        details["replaced_bytes"] = done.replaced_bytes
    return Observation("\n".join(parts), done.exit_code != 0, done.truncated, done.exit_code, details=details)


_PLACE = re.compile(r"\{(\w+)\}")


class ProcessTool(ExecutableTool):
    """A program as a tool: ``ProcessTool(Tool("lint", ..., schema), ["ruff", "check", "{path}"])``.

    Each ``{name}`` in an argument of the command is replaced by that argument of the call; no shell is
    involved. A value that begins with a dash would be read as an option and is refused, unless
    ``options`` allows it. With ``stdin="json"`` the program gets the whole input on standard input.
    """

    def __init__(
        self,
        description: Tool,
        command: Sequence[str],
        *,
        side_effect: SideEffect = "execute",
        timeout: float | None = DEFAULT_TIMEOUT,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Literal["json"] | None = None,
        options: bool = False,
    ) -> None:
        super().__init__(description, side_effect=side_effect, timeout=timeout, output_limit=output_limit)
        if isinstance(command, str) or not command:
            raise ValueError("command: must be a list of the program and its arguments, not one text")
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
                    return f"{name}: is needed"
                text = _as_text(arguments[name])
                if "\0" in text:
                    return f"{name}: must not contain a NUL"
                if part.startswith("{") and text.startswith("-") and not self._options:
                    return f"{name}: must not begin with a dash"
        return None

    def context(self) -> dict[str, Any]:
        return {"command": list(self._command), "cwd": str(self._cwd or Path.cwd())}

    async def execute(self, arguments: Mapping[str, Any]) -> Observation:
        fill = lambda found: _as_text(arguments[found[1]])
        argv = [_PLACE.sub(fill, part) for part in self._command]
        stdin = msgspec.json.encode(arguments) if self._stdin == "json" else None
        done = await run_process(
            argv, cwd=self._cwd, env=clean_environment(self._env), stdin=stdin, limit=self.output_limit // 2 - 50
        )
        return observe_process(done)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
