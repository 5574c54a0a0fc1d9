"""Implement the command ``dragoman ask``."""

from __future__ import annotations

import difflib
import json
import logging
import re
import sys
from typing import Annotated, Any

import click
import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from ..blocking import SyncProvider
from ..errors import ProviderError
from ..events import Response, encode_event
from ..messages import Message, RuntimeConfig, System, Text, Tool, User
from ..validate import parse_tools
from .attachments import read_attachment
from .completion import ModelName
from .console import echo_json, legible, show_json, working
from .errors import report_errors
from .options import (
    ModelOption,
    ModelOptions,
    SystemOption,
    is_model_name,
    open_model,
    read_json,
)
from .parameters import ExistingFile, Json, add_options, option
from .schemas import SchemaOption, read_schema
from .screen import PlainScreen, open_screen, show_ending, stop_on_interrupt
from .templates import SavedPrompt, TemplateOptions
from .transcript import Transcript, choose_target, find_past, open_transcript

_FENCE = re.compile("(`{3,}+|~{3,}+)(.*)")


class ConfigOptions(Struct):
    """The options for the settings of a call."""

    max_tokens: Annotated[int | None, "Limit the answer to this many tokens."] = None
    temperature: Annotated[float | None, "Set the sampling temperature."] = None
    reasoning: Annotated[
        str | None,
        "Set the reasoning: off, minimal, low, medium, high, or a number of tokens.",
        option("EFFORT|TOKENS"),
    ] = None
    options: Annotated[
        tuple[tuple[str, str], ...],
        "Set another setting, such as top_p 0.9, or a provider's own field.",
        option("KEY VALUE", "-o --option", nargs=2),
    ] = ()


class AskOptions(Struct, kw_only=True):
    """The options of ``dragoman ask``."""

    target: ModelOptions
    named: ModelOption = None
    system: SystemOption = None
    resumed: Annotated[bool, "Continue the last ask or chat.", option(flags="-c --continue")] = (
        False
    )
    saved: TemplateOptions
    attachments: Annotated[
        tuple[str, ...],
        "Attach an image, a PDF or a text file; may be repeated.",
        option("FILE|URL", "-a --attach --image"),
    ] = ()
    tool_schema: Annotated[ExistingFile, "Offer tools of a JSON file; calls do not run."] = None
    schema: SchemaOption = None
    config: ConfigOptions
    retries: Annotated[int, "Retry a failed call up to this many times.", option(ge=0, le=100)] = 2
    extract: Annotated[
        bool, "Print only the first code block of the answer.", option(flags="-x --extract")
    ] = False
    stream: Annotated[bool, "Print the answer while the model writes."] = True
    no_log: Annotated[bool, "Do not record the conversation in the log."] = False
    as_json: Annotated[
        Json, "Print events as lines of JSON, or with --no-stream the reply as one object."
    ] = False
    raw: Annotated[bool, "Print the provider's own reply as JSON."] = False


@click.command("ask")
@click.argument("model", required=False, type=ModelName())
@click.argument("prompt", required=False)
@add_options
def command(model: str | None, prompt: str | None, options: AskOptions) -> None:
    """Ask MODEL once. Piped input is sent together with PROMPT.

    \b
    dragoman ask openai:gpt-6-sol "Name a river."
    cat report.txt | dragoman ask openai:gpt-6-sol "Summarise this."
    dragoman ask "What is in this picture?" -a photo.png
    dragoman ask -m openai:gpt-6-sol -c "And in French?"
    dragoman ask -t translate -p language German "Good morning"

    Without MODEL, the model is $DRAGOMAN_MODEL, the default of models.yaml, or "local", the
    embedded model. PROMPT is optional when something is piped; - stands for the piped text.
    Proposed tool calls are printed and never executed.
    """  # noqa: D301 - Click keeps the lines of a paragraph after a backspace
    # The library's warnings are printed by the command, not by the logging module.
    logging.getLogger("dragoman").addHandler(logging.NullHandler())
    piped = _read_pipe(asked=prompt == "-")
    resumed = "last" if options.resumed else None
    past = find_past(resumed, "ask", "chat", system=options.system)
    model, prompt = _sort_words(model, prompt, options, is_piped=piped is not None)
    # The instruction comes after the document, because models follow it better there.
    filled = options.saved.fill("\n\n".join([part for part in (piped, prompt) if part]))
    model, target = choose_target(model or filled.model, options.target, past)
    earlier = past.messages if past is not None else []
    messages = [*earlier, *_messages(filled, options)]
    schema = options.schema or filled.schema
    settings = {
        "tools": read_tools(options.tool_schema) if options.tool_schema else None,
        "response_schema": read_schema(schema) if isinstance(schema, str) else schema,
        "config": read_config(options.config),
    }
    transcript = open_transcript("ask", model, target, off=options.no_log)
    with (
        report_errors(as_json=options.as_json),
        transcript,
        transcript.watch(open_model(model, target, retries=options.retries)) as provider,
    ):
        if past is not None:
            transcript.resume(past)
        _ask(provider, messages, settings, options, transcript)


def read_tools(path: str) -> list[Any]:
    """Return the tools in a JSON file that contains one tool or a list of tools."""
    tools = read_json(path)
    return tools if isinstance(tools, list) else [tools]


# --- building the request ----------------------------------------------------------------------


def _read_pipe(*, asked: bool) -> str | None:
    """Return the piped input; ``None`` at a terminal and for empty input."""
    if sys.stdin is None or (sys.stdin.isatty() and not asked):
        return None
    try:
        return sys.stdin.read() or None
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"standard input is not UTF-8 text ({error.reason}); attach a file with -a"
        ) from error


def _sort_words(
    model: str | None, prompt: str | None, options: AskOptions, *, is_piped: bool
) -> tuple[str | None, str]:
    """Return the model and the prompt; decide whether a lone argument is MODEL or PROMPT."""
    if options.named is not None:
        if prompt is not None:
            raise click.UsageError("the model is named twice: by MODEL and by -m; leave out one")
        model, prompt = options.named, model
    elif model is not None and prompt is None:
        is_named = options.target.base_url is not None and options.saved.template is None
        if not is_named and (options.resumed or not is_model_name(model)):
            model, prompt = None, model
    if not is_piped and prompt in (None, "-") and options.saved.template is None:
        advice = "give a text, or pipe one to the command."
        raise click.UsageError(f"Missing argument 'PROMPT': {advice}")
    return model, "" if prompt in (None, "-") else str(prompt)


def _messages(filled: SavedPrompt, options: AskOptions) -> list[Message]:
    blocks = [read_attachment(place) for place in options.attachments]
    text = filled.prompt or ""
    system = options.system or filled.system
    content: Any = [Text(text), *blocks] if blocks else text
    return [System(system), User(content)] if system else [User(content)]


def read_config(options: ConfigOptions) -> RuntimeConfig:
    """Return the settings of the call; unknown keys of -o are sent to the provider unchanged."""
    given = asdict(options)
    extras = dict[str, Any]()
    if options.reasoning is not None and options.reasoning.isdecimal():
        given["reasoning"] = int(options.reasoning)
    known = [name for name in RuntimeConfig.__struct_fields__ if name != "extras"]
    for key, text in given.pop("options"):
        if key in known:
            given[key] = _read_value(text)
            continue
        near = difflib.get_close_matches(key, known, 1, 0.85)
        if near:
            raise click.UsageError(f"-o {key}: no such setting; did you mean {near[0]}?")
        extras[key] = _read_value(text)
    if isinstance(given.get("stop_sequences"), str):
        given["stop_sequences"] = (given["stop_sequences"],)
    try:
        return msgspec.convert({**given, "extras": extras}, RuntimeConfig)
    except msgspec.ValidationError as error:
        # the message ends with the place: Expected `float`, got `str` - at `$.temperature`
        problem, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`")
        expected = problem.replace(" | null", "").replace("`float`", "a number")
        expected = expected.replace("`int`", "a whole number").replace("`str`", "text")
        raise click.UsageError(
            f"-o {name} {given.get(name)}: wrong setting: {expected[:1].lower()}{expected[1:]}"
        ) from error


def _read_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


# --- showing the reply -------------------------------------------------------------------------


def _ask(
    provider: SyncProvider,
    messages: list[Message],
    settings: dict[str, Any],
    options: AskOptions,
    transcript: Transcript,
) -> None:
    streamed = options.stream and not options.extract
    settings["request_id"] = transcript.begin(
        provider, messages, len(messages) - 1,
        tools=_try_tools(settings["tools"]), config=settings["config"],
        response_schema=settings["response_schema"], stream=streamed,
    )  # fmt: skip
    response = None
    failure = None
    try:
        if streamed:
            response = _stream(provider, messages, settings, options)
        else:
            with working(f"waiting for {provider.model}"):
                response = provider.complete(messages, **settings)
    except ProviderError as error:
        failure = error
        raise
    finally:
        kept = response.message if response is not None else None
        transcript.end(response, failure, kept=kept, count=len(messages))
    if response is None:
        return
    if response.finish_reason == "cancelled":
        raise KeyboardInterrupt
    if options.extract:
        block = _first_block(response.text)
        show_json({"block": block}) if options.as_json else click.echo(legible(block))
    elif options.raw:
        show_json(response.raw)
    elif not streamed:
        record = {"text": response.text, **msgspec.to_builtins(response)}
        record.pop("kept", None)
        show_json(record) if options.as_json else _show(response)


def _try_tools(tools: list[Any] | None) -> list[Tool]:
    """Return the parsed tools, or an empty list if they are invalid.

    The mistake is not reported here, because the model call reports it.
    """
    try:
        return list(parse_tools(tools) or ())
    except (ValueError, ProviderError):
        return []


def _stream(
    provider: SyncProvider, messages: list[Message], settings: dict[str, Any], options: AskOptions
) -> Response | None:
    screen = PlainScreen() if options.as_json or options.raw else open_screen()
    with (
        working(f"waiting for {provider.model}") as arrived,
        provider.stream(messages, **settings) as stream,
        stop_on_interrupt(stream),
    ):
        try:
            for event in stream:
                arrived()
                if options.as_json:
                    echo_json(encode_event(event))
                elif not options.raw:
                    screen.show(event)
        finally:
            screen.close()
    return stream.response if stream.ended else None


def _show(response: Response) -> None:
    if response.text:
        click.echo(legible(response.text))
    for call in response.tool_calls:
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        click.echo(legible(f"proposed, not executed: {call.name}({arguments})"))
    show_ending(response.warnings, response.finish_reason)


def _first_block(text: str) -> str:
    """Return the first closed code block of a Markdown text, or the text if it has none.

    The closing line consists of the fence character of the opening line, repeated at least as
    often.
    """
    opening = ""
    lines: list[str] = []
    for line in text.split("\n"):
        found = _FENCE.fullmatch(line.strip(" \t\r"))
        if not opening:
            # a line with further backticks is inline code, not the start of a block
            if found and not (found[1][0] == "`" and "`" in found[2]):
                opening = found[1]
        elif found and found[1].startswith(opening) and not found[2]:
            return "\n".join(lines).rstrip("\n")
        else:
            lines.append(line)
    return text
