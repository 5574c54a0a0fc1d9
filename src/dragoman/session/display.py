"""Summarise a session for a notebook: what it has used, and the start of each message."""

from __future__ import annotations

from ..calls import redact
from ..messages import Assistant, Message, System
from ..messages.display import Display, Table, shorten
from ..provider import Provider
from .state import State


def describe_session(name: str, provider: Provider, state: State) -> Display:
    """Return the summary of a session for display; keys and passwords in messages are removed."""
    spent = state.spent
    facts = [name, f"{spent.turns} turns", f"{spent.tokens} tokens", spent.describe_cost()]
    facts += [f"{len(state.open_intents)} open calls"] if state.open_intents else []
    rows = [
        (type(each.message).__name__.lower(), shorten(redact(_summarise(each.message))))
        for each in state.messages
    ]
    title = f"Session with {provider.name}:{provider.model}"
    return Display(title, facts, tables=[Table(("role", "message"), rows)])


def _summarise(message: Message) -> str:
    """Return the text of a message and the names of the tools it calls."""
    calls = message.tool_calls if isinstance(message, Assistant) else ()
    text = message.content if isinstance(message, System) else message.text
    return " ".join([text, *[f"→ {call.name}" for call in calls]])
