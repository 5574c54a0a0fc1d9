"""A folder and five tools confined to it: read_file, list_files, search, edit_file, bash.

A path is opened folder by folder without following links, so that neither ``..`` nor a symbolic
link escapes, even if a folder is moved during the call. ``bash`` is confined by bubblewrap if it
is installed; without bubblewrap, a command can do whatever the user can. The log records for every
run whether it was confined.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from msgspec.structs import replace

from ..messages import Tool, new_ulid
from .call_context import call_environment
from .changes import SKIPPED, find_changes, take_snapshot
from .function import FunctionTool
from .process import NEEDS_POSIX, clean_environment, observe_process, run_process
from .runtime import DEFAULT_OUTPUT_LIMIT, DEFAULT_TIMEOUT, WITHHELD, ExecutableTool, Observation
from .sandbox import Sandbox, find_sandbox

MAX_FILE = 4 * 1024 * 1024
MAX_FILES = 2000
MAX_MATCHES = 200
MAX_LINES = 2000
MAX_LINE = 300  # characters of a matching line to show
MAX_DEPTH = 2000  # largest depth of nested folders


class PathError(ValueError):
    """A path that leaves the workspace, goes through a link, or is not a regular file."""


class Workspace:
    """A folder; paths that lead out of it are rejected."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise ValueError(f"workspace: {root} is not a folder")
        if sys.platform == "win32":  # paths could be followed through links, which no flag forbids
            raise ValueError(f"workspace: {NEEDS_POSIX}")

    def locate(self, path: str) -> str:
        """Return the path relative to the root, with ``/``; raise ``PathError`` if it is invalid.

        An absolute path is accepted if it begins with the root, since models often write such
        paths.
        """
        if not isinstance(path, str) or "\0" in path:
            raise PathError("must be a string without a NUL")
        parts = path.replace(os.sep, "/").split("/")
        if ".." in parts:
            raise PathError(f"{path}: '..' is not allowed")
        if path.startswith("/") or Path(path).is_absolute():
            try:
                parts = list(Path(path).relative_to(self.root).parts)
            except ValueError:
                raise PathError(f"{path}: is outside the workspace") from None
        return "/".join([part for part in parts if part not in ("", ".")]) or "."

    def check(self, path: str) -> None:
        """Raise ``PathError`` if an existing part of the path is a link."""
        here = self.root
        for part in self.locate(path).split("/"):
            here = here / part
            if here.is_symlink():
                raise PathError(f"{path}: goes through a symbolic link, which is not followed")

    @contextlib.contextmanager
    def folder(self, path: str, *, create: bool = False) -> Iterator[int]:
        """Open a folder from the root down, one component at a time."""
        opened = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in self.locate(path).split("/"):
                if part != ".":
                    opened = self._descend(opened, part, path, create)
            yield opened
        finally:
            os.close(opened)

    def _descend(self, above: int, part: str, path: str, create: bool) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=above)
            below = os.open(part, flags, dir_fd=above)
        except OSError as error:
            raise _explain(path, error) from None
        os.close(above)
        return below

    def count_names(self, path: str) -> int:
        """Return a file's number of hard links, some of which may be outside the workspace."""
        where, _, name = self.locate(path).rpartition("/")
        with self.folder(where or ".") as above, _open_regular(name, above, path) as file:
            return os.fstat(file).st_nlink

    def read(self, path: str) -> bytes:
        """Return the bytes of a regular file."""
        where, _, name = self.locate(path).rpartition("/")
        with self.folder(where or ".") as above, _open_regular(name, above, path) as file:
            size = os.fstat(file).st_size
            if size > MAX_FILE:
                raise PathError(f"{path}: {size} bytes; the limit is {MAX_FILE}")
            return _read_all(file, MAX_FILE)

    def write(self, path: str, data: bytes, *, new: bool) -> None:
        """Replace a file atomically; with ``new``, create a file that must not exist yet."""
        where, _, name = self.locate(path).rpartition("/")
        with self.folder(where or ".", create=new) as above:
            # Keep only the permissions of the old mode: new content must not inherit setuid and
            # setgid.
            mode = 0o644
            if not new:
                mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode & 0o777
            draft = f".dragoman-{new_ulid()}"
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                file = os.open(draft, flags, mode, dir_fd=above)
                with os.fdopen(file, "wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fchmod(stream.fileno(), mode)
                    os.fsync(stream.fileno())
                if new:
                    os.link(draft, name, src_dir_fd=above, dst_dir_fd=above, follow_symlinks=False)
                    os.unlink(draft, dir_fd=above)
                else:
                    os.rename(draft, name, src_dir_fd=above, dst_dir_fd=above)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.unlink(draft, dir_fd=above)
                raise _explain(path, error) from None

    def walk(
        self, path: str, withheld: Callable[[str], bool] | None = None
    ) -> Iterator[tuple[str, str]]:
        """Yield every path below a folder, sorted, as (path, kind).

        Links are not followed. Folders of version control and caches, folders nested beyond
        ``MAX_DEPTH`` and paths for which ``withheld`` returns true are yielded but not entered;
        the kind of the latter is ``withheld``.
        """
        ahead = self._entries(self.locate(path))
        while ahead:
            name, kind = ahead.pop()
            if withheld is not None and withheld(name):
                kind = "withheld"
            yield name, kind
            if kind == "folder" and is_entered(name):
                # the folder was deleted or replaced in the meantime
                with contextlib.suppress(PathError):
                    ahead += self._entries(name)

    def _entries(self, path: str) -> list[tuple[str, str]]:
        """Return the entries of a folder as (path, kind), in reverse order."""
        prefix = "" if path == "." else f"{path}/"
        with self.folder(path) as opened, os.scandir(opened) as entries:
            return sorted([(prefix + entry.name, _kind(entry)) for entry in entries], reverse=True)


def is_entered(folder: str) -> bool:
    """Return whether ``walk`` enters a folder with this path."""
    return folder.rpartition("/")[2] not in SKIPPED and folder.count("/") < MAX_DEPTH


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


@contextlib.contextmanager
def _open_regular(name: str, above: int, path: str) -> Iterator[int]:
    try:
        # Without O_NONBLOCK, opening a named pipe would block forever.
        file = os.open(
            name or ".", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above
        )
    except OSError as error:
        raise _explain(path, error) from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise PathError(f"{path}: is not an ordinary file")
        yield file
    finally:
        os.close(file)


def _read_all(file: int, limit: int) -> bytes:
    pieces: list[bytes] = []
    while limit > 0 and (piece := os.read(file, min(limit, 1 << 20))):
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)


def _explain(path: str, error: OSError) -> PathError:
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return PathError(f"{path}: goes through a symbolic link, which is not followed")
    if error.errno == errno.ENOTDIR:
        return PathError(
            f"{path}: goes through something that is not a folder, or a symbolic link"
        )
    return PathError(f"{path}: {error.strerror}")


# --- the tools that a workspace offers ---------------------------------------------------------


class _Files:
    """The four tools that read, list, search and edit files."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def read_file(
        self,
        path: Annotated[str, "The file, relative to the workspace."],
        first_line: Annotated[int, "Where to begin, counted from 1."] = 1,
        lines: Annotated[int, "How many lines at most."] = MAX_LINES,
    ) -> Observation:
        """Read a text file. Each line is given with its number."""
        text = _decode(path, self._workspace.read(path))
        every = _split_lines(text)
        begin = max(first_line, 1)
        chosen = every[begin - 1 : begin - 1 + max(lines, 1)]
        shown = "\n".join([f"{number:6}\t{line}" for number, line in enumerate(chosen, begin)])
        details = {"lines": len(every), "bytes": len(text.encode())}
        last = begin + len(chosen) - 1
        if begin > 1 or last < len(every):
            shown += f"\n[lines {begin} to {last} of {len(every)}]"
        # The result counts as truncated if the default limit cut the file, not if the model asked
        # for fewer lines.
        return Observation(
            shown, truncated=last < len(every) and lines >= MAX_LINES, details=details
        )

    def list_files(
        self,
        path: Annotated[str, "The folder, relative to the workspace."] = ".",
        pattern: Annotated[str, "Only names like this, such as *.py."] = "*",
    ) -> Observation:
        """List the files below a folder, without those of version control and caches."""
        found: list[str] = []
        withheld = 0
        for name, kind in self._workspace.walk(path, WITHHELD.get()):
            if kind == "withheld":
                withheld += 1
            elif kind == "folder":
                found += [] if is_entered(name) else [f"{name}/ (not entered)"]
            elif fnmatchcase(name.rpartition("/")[2], pattern):
                found.append(f"{name} (link, not followed)" if kind == "link" else name)
            if len(found) > MAX_FILES:
                found[-1] = f"[more than {MAX_FILES}: list a folder, or a pattern]"
                return _report(found, withheld, truncated=True)
        return _report(found, withheld)

    def search(
        self,
        text: Annotated[str, "What to look for, literally: not a regular expression."],
        path: Annotated[str, "The folder or file, relative to the workspace."] = ".",
        pattern: Annotated[str, "Only in files with names like this, such as *.py."] = "*",
        ignore_case: Annotated[bool, "Take A and a for the same."] = False,
    ) -> Observation:
        """Find the lines in text files that contain the given text."""
        if not text:
            return Observation("text: is empty", is_error=True)
        found: list[str] = []
        skipped = cut = withheld = 0
        for name, kind in self._searched(path):
            withheld += kind == "withheld"
            if kind != "file" or not fnmatchcase(name.rpartition("/")[2], pattern):
                continue
            try:
                lines = _split_lines(self._workspace.read(name).decode("utf-8"))
            except (PathError, UnicodeDecodeError):  # the file is too large, or not text
                skipped += 1
                continue
            for number, line in enumerate(lines, 1):
                at = line.casefold().find(text.casefold()) if ignore_case else line.find(text)
                if at >= 0:
                    found.append(f"{name}:{number}: {_cut_line(line, at)}")
                    cut += len(line) > MAX_LINE
            if len(found) > MAX_MATCHES:
                found[MAX_MATCHES:] = [
                    f"[more than {MAX_MATCHES} lines: look for something rarer]"
                ]
                cut += 1
                break
        details = {"skipped_files": skipped} if skipped else {}
        return _report(found, withheld, truncated=bool(cut), details=details)

    def _searched(self, path: str) -> Iterator[tuple[str, str]]:
        try:
            yield from self._workspace.walk(path, WITHHELD.get())
        except PathError:
            # Reading raises an error if the path is neither a folder nor a file.
            self._workspace.read(path)
            yield self._workspace.locate(path), "file"

    def edit_file(
        self,
        path: Annotated[str, "The file, relative to the workspace."],
        old: Annotated[
            str, "The text to replace: it must occur exactly once. Empty to make a new file."
        ],
        new: Annotated[str, "What to put in its place."],
    ) -> Observation:
        """Replace one passage in a text file, or create a new file."""
        if not old:
            self._workspace.write(path, new.encode(), new=True)
            return Observation(f"made {self._workspace.locate(path)}: {len(new.encode())} bytes")
        before = _decode(path, self._workspace.read(path))
        names = self._workspace.count_names(path)
        count = before.count(old)
        if count != 1:
            return Observation(
                f"{path}: nothing was changed, because the old text occurs {count} times",
                is_error=True,
            )
        after = before.replace(old, new)
        self._workspace.write(path, after.encode(), new=False)
        shown = f"a/{path}", f"b/{path}"
        diff = [
            *difflib.unified_diff(_split_lines(before), _split_lines(after), *shown, lineterm="")
        ]
        if names == 1:
            return Observation("\n".join(diff))
        diff.append(f"[the file had {names} names (hard links): only this one has the new text]")
        return Observation("\n".join(diff), details={"hard_links": names})


def _report(
    found: list[str],
    withheld: int,
    *,
    truncated: bool = False,
    details: dict[str, Any] | None = None,
) -> Observation:
    """Return the found lines as an observation, with a note on the paths that a rule withheld."""
    details = dict(details or {})
    if withheld:
        found.append(
            f"[{withheld} paths left out: a rule denies them, or asks when they are named]"
        )
        details["withheld_paths"] = withheld
    return Observation("\n".join(found) or "(none)", truncated=truncated, details=details)


def _split_lines(text: str) -> list[str]:
    """Split a text at line feeds only, as editors do; ``splitlines`` splits at more characters."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _cut_line(line: str, at: int) -> str:
    """Return the part of a long line around a match, with marks where text is omitted."""
    if len(line) <= MAX_LINE:
        return line
    begin = 0 if at < MAX_LINE // 2 else min(at - MAX_LINE // 4, len(line) - MAX_LINE)
    end = begin + MAX_LINE
    before = f"[... {begin} characters left out] " if begin else ""
    after = f" [{len(line) - end} characters left out ...]" if end < len(line) else ""
    return before + line[begin:end] + after


def _decode(path: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise PathError(f"{path}: is not UTF-8 text") from None


class BashTool(ExecutableTool):
    """A tool that runs a shell command in the workspace, confined if bubblewrap is installed.

    In the sandbox, paths that rules of the session's policy deny are empty, and those that may not
    be written are read-only. The details of the observation list the files that were created,
    changed and deleted.
    """

    def __init__(
        self,
        workspace: Workspace,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
        sandbox: Sandbox | None = None,
        network: bool = False,
        readable: Iterable[str | Path] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._sandbox = sandbox or find_sandbox()
        schema = {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command line.", "minLength": 1}
            },
            "required": ["command"],
            "additionalProperties": False,
        }
        text = "Run a shell command in the workspace and return its exit code and output."
        if self._sandbox.program is not None:
            text += " Only the workspace can be written, .git in it cannot, and the home is empty."
            text += "" if network else " There is no network."
        super().__init__(
            Tool("bash", text, parameters=schema), side_effect="execute", timeout=timeout,
            output_limit=output_limit
        )  # fmt: skip
        self._workspace = workspace
        self._network = network
        self._readable = [Path(place).expanduser().resolve() for place in readable]
        self._env = dict(env or {})
        self._shell = shutil.which("bash") or "/bin/sh"

    def check(self, arguments: Mapping[str, Any]) -> str | None:
        return "command: must not contain a NUL" if "\0" in arguments["command"] else None

    def context(self) -> dict[str, Any]:
        confined = self._sandbox.program is not None
        return {
            "cwd": str(self._workspace.root),
            "sandbox": self._sandbox.label,
            "network": self._network or not confined,
        }

    async def execute(self, arguments: Mapping[str, Any]) -> Observation:
        argv = [self._shell, "-c", arguments["command"]]
        with self._sandbox.open_filter() as descriptor:
            settings: dict[str, Any] = {
                "network": self._network,
                "readable": self._readable,
                "withheld": WITHHELD.get(),
            }
            confined = await asyncio.to_thread(
                self._sandbox.wrap, argv, self._workspace.root, seccomp_fd=descriptor, **settings
            )
            before = await asyncio.to_thread(take_snapshot, self._workspace.root)
            done = await run_process(
                confined,
                cwd=self._workspace.root,
                env=clean_environment({**self._env, **call_environment()}),
                limit=self.output_limit // 2 - 50,
                pass_fds=[descriptor] if descriptor is not None else [],
                # bubblewrap kills every process of its PID namespace
                supervised=self._sandbox.program is None,
            )
        after = await asyncio.to_thread(take_snapshot, self._workspace.root)
        seen = observe_process(done)
        return replace(seen, details=seen.details | find_changes(before, after))


def workspace_tools(
    root: str | Path,
    *,
    timeout: float | None = DEFAULT_TIMEOUT,
    output_limit: int = DEFAULT_OUTPUT_LIMIT,
    sandbox: Sandbox | None = None,
    network: bool = False,
    readable: Iterable[str | Path] = (),
) -> list[ExecutableTool]:
    """Return five tools that read, list, search and edit files, and run commands, in a folder.

    In the sandbox commands see only the workspace, the interpreter, the folders of installed
    programs and the ``readable`` folders.
    """
    workspace = Workspace(root)
    files = _Files(workspace)

    def check(arguments: Mapping[str, Any]) -> str | None:
        try:
            workspace.check(arguments.get("path", "."))
        except PathError as error:
            return f"path: {error}"
        return None

    def locate(arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return (workspace.locate(arguments.get("path", ".")),)

    context = {"workspace": str(workspace.root)}
    settings: dict[str, Any] = {
        "output_limit": output_limit,
        "check": check,
        "locate": locate,
        "context": context,
    }
    return [
        FunctionTool(files.read_file, side_effect="read", timeout=30, **settings),
        FunctionTool(files.list_files, side_effect="read", timeout=30, **settings),
        FunctionTool(files.search, side_effect="read", timeout=60, **settings),
        FunctionTool(files.edit_file, side_effect="write", timeout=30, **settings),
        BashTool(
            workspace,
            timeout=timeout,
            output_limit=output_limit,
            sandbox=sandbox,
            network=network,
            readable=readable,
        ),
    ]
