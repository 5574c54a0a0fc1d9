"""Requests of five wires, and what becomes of them for a model of each wire.

``tests/tables/translations.jsonl`` and ``conversations.jsonl`` have the rows. A row has the client's wire, fields of the request, and the outcome. A name with dots stands for
nested objects. An outcome is a text, ``Rejected`` or, by the model's wire, one of these or the
fields that the model's server receives. A text is part of the warning in the reply's header. An
outcome without a wire is the outcome for every other wire than the client's: a model of the
client's wire receives the fields unchanged.
"""

from typing import Any, NamedTuple

from dragoman.wire.losses import merge
from tests.rows import read_table

from .upstream import BODIES


class Rejected(NamedTuple):
    """The outcome of a request that has status 400, and a part of the error message."""

    text: str


Outcome = str | Rejected | dict[str, Any]
Row = tuple[str, dict[str, Any], Outcome | dict[str, Outcome]]

LIMITS: dict[str, dict[str, Any]] = {
    "openai": {"max_tokens": 9},
    "responses": {"max_output_tokens": 9},
    "anthropic": {},
    "gemini": {"generationConfig": {"maxOutputTokens": 9}},
    "ollama": {"options": {"num_predict": 9}},
    "cohere": {"max_tokens": 9},
    "bedrock": {"inferenceConfig": {"maxTokens": 9}},
}


def expand(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields in which each name with dots is replaced by nested objects."""
    made: dict[str, Any] = {}
    for path, value in fields.items():
        for name in reversed(path.split(".")):
            value = {name: value}
        made = merge(made, value)
    return made


def limited(client: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the expanded fields with a token limit, without which a warning reports one."""
    return merge(LIMITS[client], expand(fields))


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    """Return a message."""
    return {"role": role, "content": content, **more}


USER = turn("user", "Hi")
SAID = turn("assistant", "Hello")
MOVED = [USER, SAID, turn("system", "Be brief."), USER]
NO_FIELDS = {"type": "object", "properties": {}}
FUNCTION = {"name": "f", "description": "d", "parameters": NO_FIELDS}
TOOLS: dict[str, dict[str, Any]] = {
    "openai": {"type": "function", "function": FUNCTION},
    "responses": {"type": "function", **FUNCTION},
    "anthropic": {"name": "f", "description": "d", "input_schema": NO_FIELDS},
    "gemini": {"functionDeclarations": [FUNCTION]},
    "ollama": {"type": "function", "function": FUNCTION},
}
SEARCHING = {"type": "web_search_20250305", "name": "web_search"}


def read_outcome(outcome: Any) -> Any:
    """Return an outcome of the table, in which ``{"rejected": TEXT}`` stands for a rejection."""
    if not isinstance(outcome, dict):
        return outcome
    if set(outcome) == {"rejected"}:
        return Rejected(outcome["rejected"])
    return {name: read_outcome(each) for name, each in outcome.items()}


# Conversations that only some wires accept as they are.
CONVERSATIONS: list[Row] = [tuple(row) for row in read_table("conversations")]
# Settings, tools, content parts, and fields inside them.
ROWS: list[Row] = [
    *[
        (client, fields, read_outcome(outcome))
        for client, fields, outcome in read_table("translations")
    ],
    *CONVERSATIONS,
]


def bodies(client: str) -> list[dict[str, Any]]:
    """Return the request bodies of all rows of a client's wire."""
    return [{**BODIES[client], **expand(fields)} for wire, fields, _ in ROWS if wire == client]
