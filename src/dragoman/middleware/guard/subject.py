"""What a judge is asked about, and what it answers."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct

from ...errors import quote
from ...events import MAX_COST, ToolIntent
from ...events.bounds import is_cost
from ...messages import Continuity, Inline, RedactedThinking, Request
from ...retrieval import EmbedRequest, RerankRequest

Asked: TypeAlias = Request | EmbedRequest | RerankRequest
Stage: TypeAlias = Literal["request", "text", "intent", "reply"]
Action: TypeAlias = Literal["allow", "flag", "rewrite", "block"]

Part: TypeAlias = Literal["text", "thinking", "other"]

STAGES: tuple[Stage, ...] = get_args(Stage)
STRICTER: tuple[Action, ...] = get_args(Action)
"""The actions, from the mildest to the strictest."""


class Subject(Struct, frozen=True, kw_only=True):
    """What a judge is asked about.

    ``stage`` is its kind, and ``text`` has everything that can be read in it: all texts of the
    messages, tools and inputs of a request; a passage of the model's text or thinking; the name,
    the id and the arguments of a tool call, with a line for each string; all texts of a reply.
    ``str(subject)`` is this text.

    ``part`` is ``"text"``, ``"thinking"`` or ``"other"`` at the stage ``text``; ``other`` are
    citations, images and other blocks that arrive whole. ``position`` is the place of the first
    character of ``text`` in all text of this kind, and with ``final``, nothing follows it.
    ``tool_name``, ``input`` and ``intent`` describe a tool call; ``intent`` is ``None`` if its
    arguments are malformed. ``content`` are the blocks of a reply, and ``request`` is the request
    at each stage.
    """

    stage: Stage
    text: str
    request: Asked
    part: Part = "text"
    position: int = 0
    final: bool = True
    tool_name: str | None = None
    input: dict[str, Any] | None = None
    intent: ToolIntent | None = None
    content: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return self.text

    def digest(self) -> str:
        """Return the SHA-256 hash of the stage and the text."""
        return hashlib.sha256(f"{self.stage}\n{self.text}".encode("utf-8", "replace")).hexdigest()


class _Decision(Struct, frozen=True):
    action: Action
    reason: str | None = None


class Verdict(_Decision, frozen=True, kw_only=True):
    """The answer of a judge: what happens to the subject, and why.

    ``reason`` is for records that may have content; ``code`` is a word for programs, such as the
    name of the rule, which records and errors always have. A ``rewrite`` has the new ``text`` of a
    text, the new ``input`` of a tool call, or the new ``request``. ``cost_usd`` is what the
    judgement cost, and ``version`` the version of the judge.
    """

    code: str | None = None
    text: str | None = None
    input: dict[str, Any] | None = None
    request: Any = None
    cost_usd: Decimal | None = None
    version: str | None = None

    def __post_init__(self) -> None:
        if self.action not in STRICTER:
            allowed = ", ".join(map(repr, STRICTER))
            raise ValueError(f"a verdict is one of {allowed}, not {quote(self.action)}")

    def check(self) -> None:
        """Raise an error if a field has a value of another type, or a cost out of its range."""
        for name in ("reason", "code", "text", "version"):
            if not isinstance(getattr(self, name), str | None):
                raise TypeError(f"the {name} of a verdict is a text")
        if not isinstance(self.input, dict | None):
            raise TypeError("the input of a verdict is an object")
        cost = self.cost_usd
        if cost is not None and not (isinstance(cost, Decimal) and is_cost(cost)):
            raise ValueError(f"the cost of a verdict is a decimal number from 0 to {MAX_COST}")


Answer: TypeAlias = Action | Verdict
Judge: TypeAlias = Callable[[Subject], Answer | Awaitable[Answer]]


def list_strings(value: Any) -> Iterator[str]:
    """Yield all texts, keys and numbers of values or JSON data, in order.

    The data of images, audio and documents is left out, and so are signatures and encrypted
    thoughts.
    """
    # A list in place of recursion, because a model may nest its arguments very deeply.
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            for key, inner in reversed([*each.items()]):
                waiting.append(inner)
                waiting.append(key)
        elif isinstance(each, list | tuple):
            waiting.extend(reversed(each))
        elif isinstance(each, Continuity):
            waiting.append(each.opaque)
        elif isinstance(each, Struct) and not isinstance(each, Inline | RedactedThinking):
            waiting.extend([getattr(each, name) for name in reversed(each.__struct_fields__)])
        elif isinstance(each, int | float | Decimal) and not isinstance(each, bool):
            yield str(each)


def read_texts(*values: Any) -> str:
    """Return all texts of values, a line for each."""
    return "\n".join(list_strings(values))


def read_request(request: Asked) -> str:
    """Return all texts that a request sends to the model, a line for each."""
    if isinstance(request, EmbedRequest):
        return read_texts(request.texts)
    if isinstance(request, RerankRequest):
        return read_texts(request.query, request.documents)
    return read_texts(
        request.messages, request.tools, request.response_schema, request.config.extras,
        request.native,
    )  # fmt: skip
