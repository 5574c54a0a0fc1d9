"""``dragoman ask``."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from ..events import Event, MessageComplete, Response, TextDelta, ThinkingDelta, ToolUseEnd, encode_event
from ..messages import Image, Message, RuntimeConfig, System, Text, User
from ..sync import SyncProvider
from .console import legible, show_json, working
from .errors import report_errors
from .options import json_option, model_argument, model_options, open_model, read_json


@click.command("ask")
@model_argument()
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
@json_option("the events, one a line,")
@click.option("--raw", is_flag=True, help="Print what the provider sent, as JSON.")
def command(
    model: str, prompt: str, base_url: str | None, wire: str, api_key_env: str, timeout: float | None, **options: Any
) -> None:
    """Ask MODEL once: PROMPT is the text, or - to read it from standard input.

    Proposed tool calls are printed and never executed.
    """
    messages = _messages(prompt, options["system"], options["images"])
    settings = {
        "tools": read_tools(options["tool_schema"]) if options["tool_schema"] else None,
        "response_schema": read_json(options["schema"]) if options["schema"] else None,
        "config": RuntimeConfig(max_tokens=options["max_tokens"], temperature=options["temperature"]),
    }
    with report_errors(), open_model(model, base_url, wire, api_key_env, timeout) as provider:
        if options["stream"] or options["as_json"]:
            response = _stream(provider, messages, settings, as_json=options["as_json"], quiet=options["raw"])
        else:
            with working(f"waiting for {provider.model}"):
                response = provider.complete(messages, **settings)
            if not options["raw"]:
                _show(response)
        if options["raw"] and response is not None:
            show_json(response.raw)


def _messages(prompt: str, system: str | None, images: tuple[str, ...]) -> list[Message]:
    text = sys.stdin.read() if prompt == "-" else prompt
    content: Any = [Text(text), *[Image.from_file(path) for path in images]] if images else text
    return [*([System(system)] if system else []), User(content)]


def read_tools(path: str) -> list[Any]:
    """The tools of a JSON file: one, or a list."""
    tools = read_json(path)
    return tools if isinstance(tools, list) else [tools]


def _stream(
    provider: SyncProvider, messages: list[Message], settings: dict[str, Any], *, as_json: bool, quiet: bool
) -> Response | None:
    with working(f"waiting for {provider.model}") as heard, provider.stream(messages, **settings) as stream:
        for event in stream:
            heard()
            if as_json:
                click.echo(encode_event(event).decode())
            elif not quiet:
                _show_event(event)
    return stream.response


def _show_event(event: Event) -> None:
    if isinstance(event, TextDelta):
        click.echo(legible(event.text), nl=False)
    elif isinstance(event, ThinkingDelta):
        click.echo(click.style(legible(event.text, err=True), dim=True), nl=False, err=True)
    elif isinstance(event, ToolUseEnd):
        show_call(event)
    elif isinstance(event, MessageComplete):
        click.echo()
        for warning in event.warnings:
            click.echo(f"warning: {warning}", err=True)
        if event.finish_reason not in ("stop", "tool_calls"):
            click.echo(f"(ended: {event.finish_reason})", err=True)


def show_call(event: ToolUseEnd) -> None:
    """Print what the model proposes, or why that is no proposal."""
    if event.intent is not None:
        arguments = json.dumps(event.intent.input, ensure_ascii=False)
        click.echo(legible(f"\nproposed: {event.intent.tool_name}({arguments})"))
    else:
        click.echo(f"\nnot a usable proposal: {event.problem}: {event.detail}", err=True)


def _show(response: Response) -> None:
    if response.text:
        click.echo(legible(response.text))
    for call in response.tool_calls:
        click.echo(legible(f"proposed: {call.name}({json.dumps(call.arguments, ensure_ascii=False)})"))
    for warning in response.warnings:
        click.echo(f"warning: {warning}", err=True)
    if response.finish_reason not in ("stop", "tool_calls"):
        click.echo(f"(ended: {response.finish_reason})", err=True)
