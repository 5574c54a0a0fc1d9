"""The state of a chat, and the commands that change it. Nothing here executes a tool."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias

import click
import msgspec

from .. import messages as m
from ..blocking import SyncProvider
from ..errors import ProviderError
from ..events import Response, Usage
from ..prices import Cost, Unpriced
from ..registry.folders import write_private
from ..validate import parse_messages, parse_tools
from ..wire import SwapPlan
from .ask import read_tools
from .console import notify, plural
from .cost import write_amount
from .errors import reject
from .plan import read_conversation, show_plan
from .transcript import Transcript

COMMANDS = {
    "/model": "NAME [URL]  go on with another model; what would be lost is shown first",
    "/cost": "what the conversation has cost so far",
    "/save": "FILE  keep the conversation",
    "/load": "FILE  go on with one that was kept",
    "/edit": "[TEXT]  write the next message in your editor ($EDITOR)",
    "/image": "PATH  show a picture or a document with the next message",
    "/tools": "FILE  offer tools (JSON), or none; calls are shown and never executed",
    "/result": "TEXT  what a proposed call gave, if you ran it yourself",
    "/reset": "forget the conversation",
    "/help": "this",
    "/exit": "leave; Ctrl-D does, too",
}

# Reasoning is meant for the model that wrote it, and most wires have no field for it, so its loss
# needs no approval.
REASONING_LOSSES = ("thinking_dropped", "redacted_thinking_dropped")

_NOT_RUN = "Not executed: the user has only looked at this proposal."


# Opens a model by its name, at an address if one is given.
Opener: TypeAlias = Callable[[str, str | None], SyncProvider]


class Chat:
    """The state of a chat: messages, model, tools and usage."""

    def __init__(
        self,
        provider: SyncProvider,
        name: str,
        opening: list[m.Message],
        opener: Opener,
        transcript: Transcript | None = None,
    ) -> None:
        self.provider = provider
        self.name = name
        self.messages: list[m.Message] = list(opening)
        self.tools: tuple[m.Tool, ...] = ()
        self.config = m.RuntimeConfig()
        self.fill: Callable[[str], str] = str  # fills the template with the typed line
        self._opening = list(opening)
        self._opener = opener
        self.transcript = transcript or Transcript("chat", None)
        self.before = 0  # number of messages before the question that is not answered yet
        self._shown: list[m.Image | m.Document] = []
        self._used: list[tuple[str, Usage, Cost | Unpriced]] = []
        self._file: Path | None = None

    # --- messages of the conversation

    def ask(self, text: str) -> None:
        """Add a question; before it, add an error result for each tool call without a result."""
        text = self.fill(text)
        self.before = len(self.messages)
        waiting = self._open_calls()
        self.messages += [m.ToolResult(call.id, _NOT_RUN, is_error=True) for call in waiting]
        self.messages.append(m.User([m.Text(text), *self._shown]) if self._shown else m.User(text))
        self._shown = []

    def answered(self, reply: Response | None) -> m.Assistant | None:
        """Add the reply and return what was added; if the reply is empty, remove the question."""
        message = reply.message if reply is not None else m.Assistant(())
        if reply is not None:
            self.add_usage(reply.usage)
            # drop the tool calls of a cancelled reply, since they may be incomplete
            if reply.finish_reason == "cancelled":
                kept = [each for each in message.content if not isinstance(each, m.ToolCall)]
                message = m.Assistant(kept)
        if not message.content:
            del self.messages[self.before :]
            return None
        self.messages.append(message)
        return message

    def add_usage(self, usage: Usage) -> None:
        """Add the usage of a call to the chat's total, even if the reply was not kept."""
        if usage != Usage():
            self._used.append((self.name, usage, self.provider.provider.priced_as.cost(usage)))

    def _open_calls(self) -> list[m.ToolCall]:
        done = {each.tool_call_id for each in self.messages if isinstance(each, m.ToolResult)}
        replies = [each for each in self.messages if isinstance(each, m.Assistant)]
        return [call for last in replies[-1:] for call in last.tool_calls if call.id not in done]

    # --- commands of the user: each method has the name of its command

    def run_command(self, line: str) -> bool:
        """Execute a slash command; return ``True`` if the model must answer now."""
        word, _, rest = line.partition(" ")
        command = getattr(self, f"_{word[1:]}", None) if word in COMMANDS else None
        if command is None:
            raise click.UsageError(f"{word} is not a command; /help lists them")
        return command(rest.strip()) is True

    def _help(self, _: str) -> None:
        for word, text in COMMANDS.items():
            click.echo(f"{word} {text}", err=True)

    def _reset(self, _: str) -> None:
        self.transcript.restart()
        self.messages = list(self._opening)
        self._shown = []

    def _model(self, rest: str) -> None:
        """Show what the conversation loses with another model; switch if the user agrees."""
        name, _, address = rest.partition(" ")
        if not name:
            click.echo(f"{self.name}: {self.provider.model}", err=True)
            return
        # a missing key is reported before the user is asked to agree
        fresh = self._opener(name, address.strip() or None)
        planned = fresh.plan(self.messages) if self.messages else None
        if planned is not None and not _accept(planned):
            fresh.close()
            click.echo(f"still with {self.name}", err=True)
            return
        items = planned.losses if planned else ()
        losses = [m.LossWarning(item.rule, item.path, item.reason) for item in items]
        self.transcript.swap(self.provider, fresh, f"/model {rest}", losses)
        self.provider.close()
        self.provider = fresh
        self.name = name
        click.echo(f"now {fresh.model}", err=True)

    def _cost(self, _: str) -> None:
        for name in dict.fromkeys([used for used, _, _ in self._used]):
            calls = [each for each in self._used if each[0] == name]
            counts = _add_up([usage for _, usage, _ in calls])
            price = _price([bill for _, _, bill in calls])
            click.echo(f"{name}: {plural(len(calls), 'answer')}, {counts}; {price}")
        if not self._used:
            click.echo("nothing was asked yet")

    def _save(self, rest: str) -> None:
        path = _path(rest, "/save")
        if path.exists() and path != self._file:
            raise click.UsageError(f"{path} exists; choose another name")
        data = {"model": self.name, "messages": msgspec.to_builtins(self.messages)}
        with reject(OSError, about=f"{path} cannot be written: "):
            write_private(path, (json.dumps(data, ensure_ascii=False, indent=2) + "\n").encode())
        self._file = path
        click.echo(f"{plural(len(self.messages), 'message')} in {path}", err=True)

    def _load(self, rest: str) -> None:
        path = _path(rest, "/load")
        with reject(ValueError, about=f"{path}: "):
            self.messages = list(parse_messages(read_conversation(str(path))))
        self._file = path
        self._shown = []
        self.transcript.restart()
        click.echo(f"{plural(len(self.messages), 'message')} from {path}", err=True)

    def _edit(self, rest: str) -> bool:
        text = click.edit(rest, extension=".md")
        if text is None or not text.strip():
            click.echo("nothing was written, so nothing is sent", err=True)
            return False
        self.ask(text.strip())
        return True

    def _image(self, rest: str) -> None:
        path = _path(rest, "/image")
        with reject(OSError, about=f"{path} cannot be read: "):
            picture = m.Image.from_file(path)
        if (picture.media_type or "").startswith("image/"):
            self._shown.append(picture)
        elif picture.media_type == "application/pdf":
            self._shown.append(m.Document.from_file(path))
        else:
            kind = picture.media_type or "unknown type"
            raise click.UsageError(f"{path} is not a picture, by its name ({kind})")
        click.echo(f"{path} goes with your next message", err=True)

    def _tools(self, rest: str) -> None:
        if rest == "none":
            self.tools = ()
        elif rest:
            path = _path(rest, "/tools")
            with reject(ValueError, ProviderError, about=f"{path}: "):
                self.tools = tuple(parse_tools(read_tools(str(path))) or ())
        for tool in self.tools:
            notify(f"{tool.name}: {tool.description or ''}")
        click.echo(f"{plural(len(self.tools), 'tool')}; calls are shown, never executed", err=True)

    def _result(self, rest: str) -> bool:
        waiting = self._open_calls()
        if not waiting:
            raise click.UsageError("no tool call waits for a result; write a message instead")
        self.before = len(self.messages)
        self.messages.append(m.ToolResult(waiting[0].id, rest))
        if len(waiting) > 1:
            notify(f"and {waiting[1].name}?")
        return len(waiting) == 1


def _accept(planned: SwapPlan) -> bool:
    """Show what another model would not receive, and return whether to switch to that model.

    Ask the user, if there is a terminal, whether to lose more than reasoning, or whether to
    exceed the context window.
    """
    show_plan(planned)
    if planned.refused is not None:
        return False
    losses = [item for item in planned.losses if item.rule not in REASONING_LOSSES]
    if (not losses and planned.fits is not False) or not sys.stdin.isatty():
        return True
    try:
        return click.confirm("Go on with less?", default=False, err=True)
    except click.Abort:  # Ctrl-C at the question counts as the answer no
        return False


def _path(rest: str, word: str) -> Path:
    if not rest:
        raise click.UsageError(f"{word} needs a file, as in {word} notes.json")
    return Path(rest).expanduser()


def _add_up(calls: list[Usage]) -> str:
    def add(field: str) -> str:
        known = [getattr(usage, field) for usage in calls if getattr(usage, field) is not None]
        if not known:
            return "unknown"
        return f"{sum(known):,}{'' if len(known) == len(calls) else ' or more'}"

    return f"{add('input_tokens')} tokens in, {add('output_tokens')} out"


def _price(bills: list[Cost | Unpriced]) -> str:
    known = [bill for bill in bills if not isinstance(bill, Unpriced)]
    reasons = [bill.reason for bill in bills if isinstance(bill, Unpriced)]
    if not known:
        reason = reasons[0].replace("set priced_as", "set priced_as: in models.yaml")
        return f"price unknown: {reason}"
    more = f" and more ({reasons[0]})" if reasons else ""
    if not reasons and all(bill.row is not None and bill.row.free for bill in known):
        return "free"
    total = sum([bill.total for bill in known], Decimal(0))
    return f"${write_amount(total)}{more} (prices {known[0].pricing_version})"
