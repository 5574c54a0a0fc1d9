"""The translation policy: what happens to each field of a client's request for a model of another
wire.

==============  ==================================================================================
``rules``       ``Rule``: read, mapped, dropped and reported, or rejected
``concepts``    settings that several wires have under different names
``shape``       conversations in the form that every wire accepts
``translate``   the request for one model, with warnings
one per wire    the table of the wire's fields, and the preparation of a body for its strict reader
==============  ==================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from ...errors import InvalidRequestError
from ...wire.responses import echo
from . import anthropic, gemini, ollama, openai, responses
from .gemini import unwrap_count
from .rules import Leftover, Prepared, Rule, Sorter
from .shape import settle
from .translate import Target, Translated, refuse_losses, translate

NEVER = ("api_base", "api_key", "base_url", "extra_body", "extra_headers", "extra_query")
"""Fields that are always rejected, because the operator decides where requests go: proxies that
accepted these from a body leaked their keys.
"""

_PREPARE: dict[str, Callable[[Mapping[str, Any]], Prepared]] = {
    "openai": openai.prepare,
    "responses": responses.prepare,
    "anthropic": anthropic.prepare,
    "gemini": gemini.prepare,
    "ollama": ollama.prepare,
}
TABLES: dict[str, dict[str, Rule]] = {
    "openai": openai.FIELDS,
    "responses": responses.FIELDS,
    "anthropic": anthropic.FIELDS,
    "gemini": {
        **gemini.FIELDS,
        **{f"generationConfig.{name}": rule for name, rule in gemini.CONFIG.items()},
    },
    "ollama": {
        **ollama.FIELDS,
        **{f"options.{name}": rule for name, rule in ollama.OPTIONS.items()},
    },
}
"""The rules of every wire, by field."""
NAMES: dict[str, dict[str, str]] = {
    "openai": openai.NAMES,
    "responses": responses.NAMES,
    "anthropic": anthropic.NAMES,
    "gemini": gemini.NAMES,
    "ollama": ollama.NAMES,
}
"""The client's names of our settings on each wire, where they differ."""
ROOTS = {
    "openai": "messages",
    "responses": "input",
    "anthropic": "messages",
    "gemini": "contents",
    "ollama": "messages",
}
"""The field that contains the conversation."""


def prepare(wire: str, body: Any) -> Prepared:
    """Return a body in the form that the wire's strict reader accepts, with notes on the parts
    that were removed.
    """
    if not isinstance(body, dict):
        raise InvalidRequestError("the body must be an object")
    for name in NEVER:
        if name in body:
            raise InvalidRequestError(f"{name} is not allowed in a request")
    return _PREPARE[wire](body)


def settle_shape(wire: str, messages: Any, prepared: Prepared) -> tuple[Any, Prepared]:
    """Return the conversation in the form that every wire accepts, and the notes with
    the changes.
    """
    sorter = Sorter({}, _TOGETHER[wire])
    settled = settle(messages, ROOTS[wire], sorter)
    if not sorter.left:
        return settled, prepared
    return settled, replace(prepared, left=(*prepared.left, *sorter.left))


_SETTING = re.compile(r"\bconfig\.([a-z_]+)")


def rename_settings(wire: str, message: str) -> str:
    """Return a message with our names of settings replaced by the names on the client's wire."""
    return _SETTING.sub(lambda found: NAMES[wire].get(found[1], found[1]), message)


def write_echo(wire: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that the reply repeats."""
    return echo.write_echo(body) if wire == "responses" else {}


_TOGETHER = {
    "openai": openai.TOGETHER,
    "responses": responses.TOGETHER,
    "anthropic": anthropic.TOGETHER,
    "gemini": gemini.TOGETHER,
    "ollama": ollama.TOGETHER,
}

__all__ = [
    "NAMES",
    "NEVER",
    "ROOTS",
    "TABLES",
    "Leftover",
    "Prepared",
    "Rule",
    "Target",
    "Translated",
    "prepare",
    "refuse_losses",
    "rename_settings",
    "settle_shape",
    "translate",
    "unwrap_count",
    "write_echo",
]
