"""The translation policy: what happens to each field of a request if the model's wire differs.

==============  ==================================================================================
``rules``       the possible rules for a field: read, mapped, dropped and reported, or rejected
``concepts``    settings that several wires have under different names
``shape``       convert conversations to the form that every wire accepts
``translate``   build the request for one model, with warnings
one per wire    the rules of the wire's fields; prepare a body for the wire's server codec
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
"""Fields that are always rejected, because only the operator decides where requests go.

Proxies that accepted these fields in a body leaked their keys.
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
"""The rules of every wire, indexed by wire and field."""
NAMES: dict[str, dict[str, str]] = {
    "openai": openai.NAMES,
    "responses": responses.NAMES,
    "anthropic": anthropic.NAMES,
    "gemini": gemini.NAMES,
    "ollama": ollama.NAMES,
}
"""For each wire, Dragoman's setting names mapped to the wire's names, where they differ."""
ROOTS = {
    "openai": "messages",
    "responses": "input",
    "anthropic": "messages",
    "gemini": "contents",
    "ollama": "messages",
}
"""For each wire, the field that contains the conversation."""


def prepare(wire: str, body: Any) -> Prepared:
    """Return a request body in a form that the wire's server codec can decode.

    The result also lists the parts of the body that were removed or converted.
    """
    if not isinstance(body, dict):
        raise InvalidRequestError("the body must be an object")
    if not body.keys().isdisjoint(NEVER):
        name = next(name for name in NEVER if name in body)
        raise InvalidRequestError(f"{name} is not allowed in a request")
    return _PREPARE[wire](body)


def settle_shape(wire: str, messages: Any, prepared: Prepared) -> tuple[Any, Prepared]:
    """Return the conversation in a form that every wire accepts.

    Also return the prepared request body, with a record of each change to the conversation.
    """
    sorter = Sorter({}, _TOGETHER[wire])
    settled = settle(messages, ROOTS[wire], sorter)
    if not sorter.left:
        return settled, prepared
    return settled, replace(prepared, left=(*prepared.left, *sorter.left))


_SETTING = re.compile(r"\bconfig\.([a-z_]+)")


def rename_settings(wire: str, message: str) -> str:
    """Return an error message with the client's setting names in place of Dragoman's names."""
    return _SETTING.sub(lambda found: NAMES[wire].get(found[1], found[1]), message)


def write_echo(wire: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request fields that a reply of this wire must repeat."""
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
