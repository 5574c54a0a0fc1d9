"""``dragoman ask``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from ..events import Event, MessageComplete, Response, TextDelta, ThinkingDelta, ToolUseEnd, encode_event
from ..messages import Image, Message, RuntimeConfig, System, Text, User
from ..sync import SyncProvider
from .output import model_options, open_model, report_errors

__all__ = ["command"]


@click.command("ask")
@click.argument("model")
@click.argument("prompt")
@model_options
@click.option("--system", metavar="TEXT", help="Instructions for the model.")
@click.option("--image", "images", multiple=True, type=click.Path(exists=True, dir_okay=False), help="Show a picture.")
@click.option(
    "--tool-schema", type=click.Path(exists=True, dir_okay=False), help="A JSON file with one tool or a list."
)
@click.option("--schema", type=click.Path(exists=True, dir_okay=False), help="A JSON Schema the answer must satisfy.")
@click.option("--max-tokens", type=int, help="The longest answer.")
@click.option("--temperature", type=float, help="How freely it may answer.")
@click.option("--stream/--no-stream", default=True, show_default=True, help="Print the answer as it comes.")
@click.option("--json", "as_json", is_flag=True, help="Print the events, one JSON object a line.")
@click.option("--raw", is_flag=True, help="Print what the provider sent, as JSON.")
def command(
    model: str, prompt: str, base_url: str | None, wire: str, api_key_env: str, timeout: float | None, **options: Any
) -> None:
    """Ask MODEL once: PROMPT is the text, or - to read it from standard input.

    Proposed tool calls are printed and never executed.
    """
    messages = _messages(prompt, options["system"], options["images"])
    settings = {
        "tools": _read_tools(options["tool_schema"]),
        "response_schema": _read_json(options["schema"]),
        "config": RuntimeConfig(max_tokens=options["max_tokens"], temperature=options["temperature"]),
    }
    with report_errors(), open_model(model, base_url, wire, api_key_env, timeout) as provider:
        if options["stream"] or options["as_json"]:
            response = _stream(provider, messages, settings, as_json=options["as_json"], quiet=options["raw"])
        else:
            response = provider.complete(messages, **settings)
            if not options["raw"]:
                _show(response)
        if options["raw"] and response is not None:
            click.echo(json.dumps(response.raw, ensure_ascii=False, indent=2))


def _messages(prompt: str, system: str | None, images: tuple[str, ...]) -> list[Message]:
    text = sys.stdin.read() if prompt == "-" else prompt
    content: Any = [Text(text), *[Image.from_file(path) for path in images]] if images else text
    return [*([System(system)] if system else []), User(content)]


def _read_json(path: str | None) -> Any:
    if path is None:
        return None
    try:
        return json.loads(Path(path).read_text("utf-8"))
    except ValueError as error:
        raise click.UsageError(f"{path} is not JSON: {error}") from error


def _read_tools(path: str | None) -> Any:
    tools = _read_json(path)
    return [tools] if isinstance(tools, dict) else tools


def _stream(
    provider: SyncProvider, messages: list[Message], settings: dict[str, Any], *, as_json: bool, quiet: bool
) -> Response | None:
    with provider.stream(messages, **settings) as stream:
        for event in stream:
            if as_json:
                click.echo(encode_event(event).decode())
            elif not quiet:
                _show_event(event)
    return stream.response


def _show_event(event: Event) -> None:
    if isinstance(event, TextDelta):
        click.echo(event.text, nl=False)
    elif isinstance(event, ThinkingDelta):
        click.echo(click.style(event.text, dim=True), nl=False, err=True)
    elif isinstance(event, ToolUseEnd):
        _show_call(event)
    elif isinstance(event, MessageComplete):
        click.echo()
        for warning in event.warnings:
            click.echo(f"warning: {warning}", err=True)
        if event.finish_reason not in ("stop", "tool_calls"):
            click.echo(f"(ended: {event.finish_reason})", err=True)


def _show_call(event: ToolUseEnd) -> None:
    if event.intent is not None:
        arguments = json.dumps(event.intent.input, ensure_ascii=False)
        click.echo(f"\nproposed: {event.intent.tool_name}({arguments})")
    else:
        click.echo(f"\nnot a usable proposal: {event.problem}: {event.detail}", err=True)


def _show(response: Response) -> None:
    if response.text:
        click.echo(response.text)
    for call in response.tool_calls:
        click.echo(f"proposed: {call.name}({json.dumps(call.arguments, ensure_ascii=False)})")
    for warning in response.warnings:
        click.echo(f"warning: {warning}", err=True)
    if response.finish_reason not in ("stop", "tool_calls"):
        click.echo(f"(ended: {response.finish_reason})", err=True)
