"""``dragoman chat``."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import click

from ..errors import ProviderError
from ..events import encode_event
from ..messages import Message, System
from ..sync import SyncEventStream, SyncProvider
from .console import working
from .conversation import COMMANDS, Conversation
from .errors import EXIT_CODES, report_errors, show_error
from .options import choose_model, json_option, model_argument, model_options, open_model
from .screen import Screen, open_screen


@click.command("chat")
@model_argument(required=False)
@model_options
@click.option("--system", metavar="TEXT", help="The system prompt.")
@click.option("--prompt", metavar="TEXT", help="Answer this and exit.")
@json_option("the events, one a line,")
def command(
    model: str | None,
    base_url: str | None,
    wire: str,
    api_key_env: str,
    timeout: float | None,
    system: str | None,
    prompt: str | None,
    *,
    as_json: bool,
) -> None:
    """Talk with MODEL.

    Without MODEL, the model is $DRAGOMAN_MODEL, the default of models.yaml, or "local", the embedded one,
    which needs no key and no account. Lines that begin with a slash are commands; /help lists them.
    Tool calls are shown and never executed.
    """
    model = model or choose_model()
    opener = partial(_open, api_key_env=api_key_env, timeout=timeout, started=(model, base_url, wire))
    with report_errors(as_json=as_json), opener(model) as provider:
        opening: list[Message] = [System(system)] if system else []
        talk = Conversation(provider, model, opening, opener)
        answer = _Answer(talk, as_json=as_json)
        if prompt is not None:
            talk.ask(prompt)
            answer()
            return
        click.echo(f"{provider.model}. /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves.", err=True)
        _offer_completion()
        try:
            failure = _talk(talk, answer)
        finally:
            talk.provider.close()
        if failure is not None and not sys.stdin.isatty():  # a script needs to know
            sys.exit(EXIT_CODES.get(failure.category, 1))


def _open(
    model: str,
    address: str | None = None,
    *,
    planning: bool = False,
    api_key_env: str,
    timeout: float | None,
    started: tuple[str, str | None, str],
) -> SyncProvider:
    """Open a model by its name, or at an address; the one that the command was started with needs no repeating."""
    first, base_url, wire = started
    at_start = base_url is not None and (model == first or ":" not in model)
    return open_model(model, address or (base_url if at_start else None), wire, api_key_env, timeout, planning=planning)


def _talk(talk: Conversation, answer: Callable[[], None]) -> ProviderError | None:
    """Read lines and answer them; return the last failure, if any."""
    failure: ProviderError | None = None
    while (line := _read_line()) is not None and line not in ("/exit", "/quit"):
        try:
            if not line.startswith("/"):
                if line:
                    talk.ask(line)
                    answer()
            elif talk.obey(line):
                answer()
        except ProviderError as error:
            failure = failure if line.startswith("/") else error
            show_error(error)
        except click.ClickException as error:
            click.echo(f"error: {error.format_message()}", err=True)
    return failure


def _read_line() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        click.echo(err=True)
        return ""


def _offer_completion() -> None:
    """Line editing, and the tab key for commands, where the platform has it."""
    if not sys.stdin.isatty():
        return
    try:
        import readline  # not on every platform; changes how ``input`` behaves
    except ImportError:
        return

    def complete(text: str, state: int) -> str | None:
        found = [name for name in COMMANDS if name.startswith(text)] if text.startswith("/") else []
        return found[state] if state < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")


# --- one answer -------------------------------------------------------------------------------------


class _Answer:
    """Asks the model of a conversation and shows what it says; an interrupt stops it and keeps what was said."""

    def __init__(self, talk: Conversation, *, as_json: bool) -> None:
        self._talk = talk
        self._as_json = as_json

    def __call__(self) -> None:
        talk, reply = self._talk, None
        try:
            with _no_echo(), working(f"waiting for {talk.provider.model}") as heard:
                with talk.provider.stream(talk.messages, talk.tools or None) as stream, _interrupts(stream):
                    self._show(stream, heard)
                reply = stream.response if stream.ended else None
        except ProviderError as error:  # a reply that cannot be used is billed all the same
            if reply is None and (failed := getattr(error, "response", None)) is not None:
                talk.count(failed.usage)
            raise
        finally:
            talk.answered(reply)

    def _show(self, stream: SyncEventStream, heard: Callable[[], None]) -> None:
        screen: Screen | None = None
        try:
            for event in stream:
                heard()
                if self._as_json:
                    click.echo(encode_event(event).decode())
                    continue
                screen = screen or open_screen()
                screen.show(event)
        finally:
            if screen is not None:
                screen.close()


@contextlib.contextmanager
def _no_echo() -> Iterator[None]:
    """Keys that are pressed while an answer is drawn would be drawn into it; they wait for the next line."""
    if not sys.stdin.isatty():
        yield
        return
    try:
        import termios  # not on every platform
    except ImportError:
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _interrupts(stream: SyncEventStream) -> Iterator[None]:
    """Ctrl-C ends the answer well, as ``cancel`` does; a second one interrupts the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(*_: Any) -> None:
        signal.signal(signal.SIGINT, before)
        stream.cancel()

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
