"""Implement the command ``dragoman chat``."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated

import click
from msgspec.structs import replace

from ..blocking import SyncEventStream, SyncProvider
from ..errors import ProviderError
from ..events import MessageComplete, encode_event
from ..messages import Message, RuntimeConfig, System
from .console import echo_json, notify, plural, working
from .conversation import COMMANDS, REASONING_LOSSES, Chat
from .errors import EXIT_CODES, report_errors, show_error
from .options import (
    ModelOption,
    ModelOptions,
    SystemOption,
    is_model_name,
    model_argument,
    open_model,
)
from .parameters import Json, add_options, option
from .prompt import LineReader, open_reader
from .screen import Screen, open_screen, stop_on_interrupt
from .templates import TemplateOptions
from .transcript import RecordedChat, Transcript, choose_target, find_past, open_transcript


@click.command("chat")
@model_argument(required=False)
@add_options
def command(
    model: str | None,
    *,
    target: ModelOptions,
    named: ModelOption = None,
    system: SystemOption = None,
    saved: TemplateOptions,
    max_tokens: Annotated[int | None, "Limit each answer to N tokens.", option("N", ge=1)] = None,
    prompt: Annotated[str | None, "Print the answer to TEXT, and exit.", option("TEXT")] = None,
    resumed: Annotated[
        str | None,
        "Continue the last chat of the log, or the one whose id begins with ID.",
        option("[ID]", "-c --continue", is_flag=False, flag_value="last"),
    ] = None,
    no_log: Annotated[bool, "Do not record the conversation in the log."] = False,
    as_json: Annotated[Json, "Print the events as lines of JSON."] = False,
) -> None:
    """Talk with MODEL.

    Without MODEL, the model is $DRAGOMAN_MODEL, the default of models.yaml, or "local", the
    embedded model, which needs no key. /help lists the commands, which begin with a slash. Enter
    sends the text; Alt-Enter, or a backslash at the end of a line, begins another line. Tool calls
    are shown, never executed. Chats are logged unless you use --no-log or dragoman log off.
    """
    # The chat shows the library's warnings itself, not by the logging module.
    logging.getLogger("dragoman").addHandler(logging.NullHandler())
    if named is not None and model is not None:
        raise click.UsageError("the model is named twice: by MODEL and by -m; leave out one")
    model = model or named
    # in "chat -c MODEL" the argument after -c is not a session but a model
    if resumed is not None and model is None and is_model_name(resumed):
        model, resumed = resumed, "last"
    template = saved.open_chat()
    system = system or template.system
    past = find_past(resumed, "chat", system=system)
    model, target = choose_target(model or template.model, target, past)
    transcript = open_transcript("chat", model, target, off=no_log)
    opener = partial(_open, first=model, target=target, transcript=transcript)
    with report_errors(as_json=as_json), transcript, opener(model) as provider:
        opening: list[Message] = [System(system)] if system else []
        talk = Chat(provider, model, opening, opener, transcript)
        talk.config = RuntimeConfig(max_tokens=max_tokens)
        if past is not None:
            transcript.resume(past)
            talk.messages = list(past.messages)
        talk.fill = partial((template.prompt or "").replace, "{input}")
        if prompt is not None:
            talk.ask(prompt)
            _ModelCall(talk, as_json=as_json)()
            return
        _greet(talk, past)
        reader = open_reader(COMMANDS)
        try:
            failure = _talk(talk, reader, _ModelCall(talk, as_json=as_json, quiet=reader.quiet))
        finally:
            talk.provider.close()
        if failure is not None and not sys.stdin.isatty():  # scripts check the exit code
            sys.exit(EXIT_CODES.get(failure.category, 1))


def _open(
    model: str, address: str | None = None,
    *, first: str, target: ModelOptions, transcript: Transcript,
) -> SyncProvider:  # fmt: skip
    """Open a model by name or address.

    The address on the command line applies to the model on the command line, and to names without
    a vendor.
    """
    at_start = target.base_url is not None and (model == first or ":" not in model)
    address = address or (target.base_url if at_start else None)
    return transcript.watch(open_model(model, replace(target, base_url=address)))


def _greet(talk: Chat, past: RecordedChat | None) -> None:
    model = talk.provider.model
    notify(f"{model}. /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves.")
    if past is not None:
        notify(f"continuing {past.session}, {plural(len(past.messages), 'message')}")


def _talk(talk: Chat, reader: LineReader, answer: Callable[[], None]) -> ProviderError | None:
    """Answer questions and run commands until the input ends.

    Return the error of the last question that failed, or ``None``.
    """
    failure: ProviderError | None = None
    while (line := reader.read()) is not None and line not in ("/exit", "/quit"):
        try:
            if not line.startswith("/"):
                if line:
                    talk.ask(line)
                    answer()
            elif talk.run_command(line):
                answer()
        except ProviderError as error:
            failure = failure if line.startswith("/") else error
            show_error(error)
        except click.ClickException as error:
            click.echo(f"error: {error.format_message()}", err=True)
    return failure


# --- calling the model and showing its answer --------------------------------------------------


class _ModelCall:
    """Call the model and show its reply; an interrupt stops the reply but keeps what arrived."""

    def __init__(
        self,
        talk: Chat,
        *,
        as_json: bool,
        quiet: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._talk = talk
        self._as_json = as_json
        self._quiet = quiet
        self._is_noted = False

    def __call__(self) -> None:
        talk = self._talk
        reply = None
        failure = None
        request_id = talk.transcript.begin(
            talk.provider, talk.messages, talk.before, tools=talk.tools, config=talk.config
        )
        try:
            with self._quiet(), working(f"waiting for {talk.provider.model}") as arrived:
                call = talk.provider.stream(
                    talk.messages, talk.tools or None, talk.config, request_id=request_id
                )
                with call as stream, stop_on_interrupt(stream):
                    self._show(stream, arrived)
                reply = stream.response if stream.ended else None
        except ProviderError as error:
            # count the usage of an invalid reply too, since it is billed
            failure = error
            if reply is None and (failed := getattr(error, "response", None)) is not None:
                talk.add_usage(failed.usage)
            raise
        finally:
            kept = talk.answered(reply)
            talk.transcript.end(reply, failure, kept=kept, count=len(talk.messages))
            talk.transcript.report()

    def _show(self, stream: SyncEventStream, arrived: Callable[[], None]) -> None:
        screen: Screen | None = None
        try:
            for event in stream:
                arrived()
                if self._as_json:
                    echo_json(encode_event(event))
                    continue
                screen = screen or open_screen()
                if isinstance(event, MessageComplete):
                    self._show_end(screen, event)
                else:
                    screen.show(event)
        finally:
            if screen is not None:
                screen.close()

    def _show_end(self, screen: Screen, end: MessageComplete) -> None:
        """Show the end of a reply; warn once per conversation that reasoning is not sent back.

        Most wires have no field for earlier reasoning, so every reply after the first would cause
        a warning.
        """
        others = tuple([each for each in end.warnings if each.code not in REASONING_LOSSES])
        screen.show(replace(end, warnings=others))
        if len(others) < len(end.warnings) and not self._is_noted:
            self._is_noted = True
            note = "note: the model's earlier reasoning is not sent back to it"
            click.echo(click.style(note, dim=True), err=True)
