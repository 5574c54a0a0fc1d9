"""Ask the user at the terminal for permission."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import json
import os
import sys
from typing import Any

import click
import msgspec

from ..permission import Approver, Decision, Proposal, Verdict, find_prefix
from ..replay import describe_action
from .agent_view import AgentView

_COMPARED = 2_000  # maximum number of lines of a text for which a diff is shown


def make_approver(view: AgentView, lines: InputLines, *, always: bool = False) -> Approver | None:
    """Return an approver that asks at the terminal, or ``None`` without a terminal.

    With ``always``, it reads the answers from standard input even without a terminal.
    """
    if not always and not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None

    async def approve(proposal: Proposal, verdict: Verdict) -> Decision:
        if not view.as_json:
            action = describe_action(proposal.tool_name, proposal.input)
            view.say("asked", f"{action} ({proposal.side_effect})", "yellow")
            is_diff = {"old", "new"} <= proposal.input.keys()
            view.show_block(_show_proposal(proposal), is_diff=is_diff)
        click.echo(_write_question(proposal), nl=False, err=True)
        line = await lines.read()
        if line is None:
            click.echo(err=True)
            return Decision(False, "nobody", reason="the answer never came")
        if line.strip().casefold() in ("e", "edit") and sys.stdin.isatty():
            shown = json.dumps(proposal.input, ensure_ascii=False, indent=2)
            # the editor returns nothing if the text was not saved
            edited = await asyncio.to_thread(click.edit, shown, extension=".json")
            line = f"e {edited or ''}"
        return read_answer(line.strip(), proposal)

    return approve


def _write_question(proposal: Proposal) -> str:
    choices = ["[y]es", "[n]o", "[a]lways this tool"]
    if proposal.paths:
        choices.append("always this [p]ath")
    if prefix := find_prefix(proposal.input):
        choices.append(f"always [c]ommands with {prefix!r}")
    return f"allow? {', '.join(choices)}, [e]dit, or why not: "


def read_answer(answer: str, proposal: Proposal) -> Decision:
    """Parse the user's answer to an approval question.

    ``y`` allows this call, ``a`` every call of the tool, ``p`` every call for the path, and ``c
    PREFIX`` every command with the prefix. ``e JSON`` allows the call with JSON as its input. Any
    other text denies the call and is recorded as the reason.
    """
    word, _, rest = answer.partition(" ")
    word = word.casefold()
    whole = answer.casefold()
    if whole in ("y", "yes"):
        return Decision(True, "user")
    if whole in ("a", "always"):
        return Decision(True, "user", reason="for the rest of the session", scope="session")
    if whole in ("p", "path") and proposal.paths:
        return Decision(True, "user", scope="path")
    prefix = find_prefix(proposal.input, rest or None) if word in ("c", "command") else None
    if prefix is not None:
        return Decision(True, "user", scope="prefix", prefix=prefix)
    if word in ("e", "edit"):
        with contextlib.suppress(msgspec.DecodeError):
            edited = msgspec.json.decode(rest, type=dict[str, Any])
            return Decision(True, "user", input=edited)
        answer = answer if rest else "no edit was made"
    return Decision(False, "user", reason="" if whole in ("", "n", "no") else answer)


def _show_proposal(proposal: Proposal) -> str:
    """Return the complete proposal as text: resolved paths, every argument, and the changes."""
    given = dict(proposal.input)
    if set(given) == {"command"}:
        return str(given["command"])
    shown = [f"path: {path}" for path in proposal.paths]
    changes: list[str] = []
    if {"old", "new"} <= set(given):
        changes = _show_changes(str(given.pop("old")), str(given.pop("new")))
    if given:
        shown.append(json.dumps(given, ensure_ascii=False, indent=2))
    return "\n".join([*shown, *changes])


def _show_changes(old: str, new: str) -> list[str]:
    """Return the removed and added lines of an edit.

    Long texts are not compared, because that would take quadratic time.
    """
    before = old.splitlines()
    after = new.splitlines()
    if len(before) + len(after) > _COMPARED:
        return [*[f"- {line}" for line in before], *[f"+ {line}" for line in after]]
    diff = list(difflib.unified_diff(before, after, lineterm="", n=max(len(before), len(after))))
    # leave out the header of the diff: file names and line numbers
    return [f"{line[:1]} {line[1:]}" for line in diff[3:]]


class InputLines:
    """Read the lines of standard input without blocking the event loop.

    ``input`` in a thread is not used: Python crashes if that thread still waits when the program
    ends.
    """

    def __init__(self) -> None:
        self._left = b""  # bytes that were received after the end of the requested line

    async def read(self) -> str | None:
        """Return the next line, or ``None`` at the end of the input."""
        while b"\n" not in self._left:
            piece = await self._receive()
            if not piece:
                break
            self._left += piece
        line, end, self._left = self._left.partition(b"\n")
        return (line + end).decode("utf-8", "replace") if line or end else None

    async def _receive(self) -> bytes:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            descriptor = sys.stdin.fileno()
            loop.add_reader(descriptor, ready.set)
        except (NotImplementedError, OSError, ValueError):
            # standard input is a regular file or is closed, so no waiting is needed; the event
            # loop of Windows cannot wait for a console
            return sys.stdin.readline().encode()
        try:
            await ready.wait()
            return os.read(descriptor, 65536)
        finally:
            loop.remove_reader(descriptor)
