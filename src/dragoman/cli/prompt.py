"""Read lines from the keyboard or a pipe, for ``chat``.

At a terminal ``prompt_toolkit`` provides the editor if it is installed: several lines, bracketed
paste, persistent history, and completion of commands. ``input`` is the fallback; it also reads
pipes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import click
import platformdirs


def open_reader(commands: Iterable[str]) -> LineReader:
    """Return the line editor at a terminal with ``prompt_toolkit``, elsewhere a plain reader."""
    names = list(commands)
    if not sys.stdin.isatty():
        return LineReader()
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        try:
            return LineEditor(names)
        except ImportError:
            pass  # the optional dependency prompt_toolkit is not installed
    _bind_readline(names)
    return LineReader()


class LineReader:
    """Read the user's questions and commands with Python's ``input``."""

    _raw = False  # whether the reader handles keys such as Backspace and Enter itself

    def read(self) -> str | None:
        """Return the next line, stripped; ``None`` at the end of the input, "" after Ctrl-C."""
        try:
            return self._ask().strip()
        except EOFError:
            return None
        except KeyboardInterrupt:
            return ""

    def quiet(self) -> contextlib.AbstractContextManager[None]:
        """Do not echo the keys pressed during a reply; keep them for the next line."""
        return _hide_keys(raw=self._raw)

    def _ask(self) -> str:
        try:
            return input("> " if sys.stdin.isatty() else "")
        except KeyboardInterrupt:
            click.echo(err=True)
            raise


class LineEditor(LineReader):
    """An editor for one or more lines.

    Enter sends the text; Alt-Enter, or a backslash before Enter, starts a new line.
    """

    _raw = True

    def __init__(self, commands: list[str]) -> None:
        # lazy import: an optional dependency that is slow to import
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter

        # Turn off cursor position requests: the terminal's reply would mix with keys typed ahead.
        os.environ.setdefault("PROMPT_TOOLKIT_NO_CPR", "1")
        self._session: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,
            prompt_continuation=". ",
            history=_open_history(),
            completer=WordCompleter(commands, sentence=True),
            complete_while_typing=False,
            key_bindings=_bind_keys(),
            enable_history_search=True,
        )

    def _ask(self) -> str:
        return self._session.prompt()


def _bind_keys() -> Any:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.char_before_cursor == "\\" and buffer.document.is_cursor_at_the_end:
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _open_history() -> Any:
    """Open the history file, readable only by its owner; keep history in memory if that fails."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = platformdirs.user_data_path("dragoman") / "chat-history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except OSError as error:
        click.echo(f"note: {path}: {error.strerror}; what you type is not kept", err=True)
        return InMemoryHistory()
    return FileHistory(path)


def _bind_readline(commands: list[str]) -> None:
    """Enable line editing, and Tab completion of commands, where the platform has readline."""
    try:
        import readline  # lazy import: not on every platform, and it changes how ``input`` works
    except ImportError:
        return

    def complete(text: str, state: int) -> str | None:
        found = [name for name in commands if text.startswith("/") and name.startswith(text)]
        return found[state] if state < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")


@contextlib.contextmanager
def _hide_keys(*, raw: bool) -> Iterator[None]:
    """Stop the terminal from echoing keys.

    ``raw`` also passes keys such as Backspace and Enter to the editor.
    """
    if not sys.stdin.isatty():
        yield
        return
    try:
        import termios  # lazy import: the module does not exist on every platform
    except ImportError:
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    # Without NOFLSH, the terminal discards keys typed ahead when Ctrl-C stops a reply.
    flags = (before[3] & ~termios.ECHO) | termios.NOFLSH
    if raw:
        flags &= ~termios.ICANON
    change = partial(termios.tcsetattr, sys.stdin, termios.TCSADRAIN)
    change([*before[:3], flags, *before[4:]])
    try:
        yield
    finally:
        change(before)
