"""``dragoman chat``."""

from __future__ import annotations

import sys

import click

from ..errors import ProviderError
from ..events import MessageComplete, TextDelta, ThinkingDelta
from ..local import weights_path
from ..messages import Assistant, Message, System, User
from ..sync import SyncEventStream, SyncProvider
from .output import model_options, open_model, report_errors, show_error

__all__ = ["command"]

_HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer."


@click.command("chat")
@click.argument("model", default="local")
@model_options
@click.option("--system", metavar="TEXT", help="Instructions for the model.")
@click.option("--prompt", metavar="TEXT", help="Answer this and exit.")
def command(
    model: str,
    base_url: str | None,
    wire: str,
    api_key_env: str,
    timeout: float | None,
    system: str | None,
    prompt: str | None,
) -> None:
    """Talk with MODEL: by default "local", the embedded one, which needs no key and no account."""
    with report_errors(), open_model(model, base_url, wire, api_key_env, timeout) as provider:
        if model == "local" and not weights_path().exists():
            click.echo("Fetching the demonstration model once (93 MB) ...", err=True)
        opening: list[Message] = [System(system)] if system else []
        if prompt is not None:
            _answer(provider, [*opening, User(prompt)])
            return
        click.echo(f"{provider.model}. {_HELP}", err=True)
        _talk(provider, opening)


def _talk(provider: SyncProvider, opening: list[Message]) -> None:
    conversation = list(opening)
    while (line := _read_line()) is not None:
        if not line or line == "/help":
            click.echo(_HELP, err=True)
        elif line == "/reset":
            conversation = list(opening)
        elif line == "/exit":
            return
        else:
            conversation.append(User(line))
            try:
                reply = _answer(provider, conversation)
            except ProviderError as error:
                show_error(error)
                reply = None
            if reply is None or not reply.content:
                conversation.pop()  # an unanswered question is asked again or not at all
            else:
                conversation.append(reply)


def _read_line() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        click.echo(err=True)
        return ""


def _answer(provider: SyncProvider, conversation: list[Message]) -> Assistant | None:
    """Print the answer as it comes; an interrupt stops it and keeps what was said."""
    with provider.stream(conversation) as stream:
        try:
            _print(stream)
        except KeyboardInterrupt:
            stream.cancel()
            _print(stream)
    return stream.response.message if stream.response is not None else None


def _print(stream: SyncEventStream) -> None:
    for event in stream:
        if isinstance(event, TextDelta):
            click.echo(event.text, nl=False)
        elif isinstance(event, ThinkingDelta):
            click.echo(click.style(event.text, dim=True), nl=False, err=True)
        elif isinstance(event, MessageComplete):
            click.echo(" (stopped)" if event.finish_reason == "cancelled" else "")
