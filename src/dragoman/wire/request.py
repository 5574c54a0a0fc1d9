"""The base class of request writers: what the wires share to write the body of a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ..errors import InvalidRequestError, UnsupportedFeatureError
from ..messages import Issuer, Message, PromptCache, Request, System, join_system
from .caching import has_marks, note_unplaced, read_cache
from .codec import Note, Notes
from .json import entries_of, ordered_json
from .reasoning import translate_reasoning
from .schema import INSTRUCTION, schema_directive

PORTABLE = (
    "web_search", "code_execution", "url_context", "file_search", "computer_use", "tool_search",
)  # fmt: skip


class RequestWriter(ABC):
    """Write the body of a request in the form of a wire.

    ``home`` is the issuer that receives the request; only opaque state that it issued is sent.
    ``path`` is how the response schema is requested: in a field of the wire (``native``), by a
    forced tool or in the prompt. Messages come last in a body, so that the body of the next turn
    begins with the same bytes.
    """

    # What asks for a response schema in the prompt. It differs between wires for historical
    # reasons: a change would invalidate existing cassettes and prompt caches.
    instruction: ClassVar[str] = INSTRUCTION
    marks_cache = False  # whether marks for the prompt cache are sent

    def __init__(
        self, request: Request, home: Issuer, quirks: Any, path: str | None, notes: Notes
    ) -> None:
        self.request = request
        self.config = request.config
        self.home = home
        self.quirks = quirks
        self.path = path
        self.notes = notes

    @classmethod
    def write(
        cls, request: Request, home: Issuer, quirks: Any, path: str | None, notes: Notes
    ) -> dict[str, Any]:
        """Return the body of a request; add what it lacks to ``notes``."""
        writer = cls(request, home, quirks, path, notes)
        body = writer.body()
        if not writer.marks_cache and request.config.cache != "off" and has_marks(request):
            why = (
                "the server has no marks: it caches the beginnings of prompts by itself, if at all"
            )
            dropped = Note(
                outcome="dropped",
                code="cache_mark_dropped",
                path="messages",
                detail=why,
                loss=False,
            )
            notes.items.append(dropped)
        return body

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """Return the body of the request."""

    def schema_for(self, path: str) -> dict[str, Any] | None:
        """Return the response schema if it is requested in this way."""
        return self.request.response_schema if self.path == path else None

    def directive(self) -> str | None:
        """Return the instruction for the system prompt that requests the response schema, if any."""
        if self.path != "prompt":
            return None
        return schema_directive(self.request.response_schema or {}, self.instruction)

    def reasoning(self, room: int | None = None) -> dict[str, Any] | None:
        """Return the fields that set the amount of reasoning; ``None`` if no amount is set.

        If the quirks have no style, because the family of the model is unknown, the result is
        ``None``. ``room`` is the token limit of the reply. A reasoning budget must be smaller than
        this limit. A model that supports only another amount gets a warning.
        """
        style = self.quirks.reasoning
        if self.config.reasoning is None or style is None:
            return None
        fields, approximate = translate_reasoning(self.config.reasoning, style, room)
        if approximate is not None:
            self.notes.rewrite(
                "config.reasoning", "reasoning_approximated", approximate, loss=True
            )
        return fields

    def effort(self, write: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """Return the fields for the amount of reasoning that a call sets.

        ``write`` returns the fields for an effort if the family of the model is unknown.
        """
        fields = self.reasoning()
        amount = self.config.reasoning
        if fields is not None:
            return fields
        if not isinstance(amount, str):
            raise UnsupportedFeatureError(
                "config.reasoning: this wire takes an effort; a budget in tokens needs "
                "quirks.reasoning for this model"
            )
        return write("none" if amount == "off" else amount)

    def cache(self, *places: str, default: bool = False) -> PromptCache | None:
        """Return how the call uses the prompt cache; ``None`` if caching is off.

        ``places`` are the cache settings that the wire has a field for. ``default`` is the
        endpoint's setting, which applies to calls without a cache setting.
        """
        cache = read_cache(self.request, default=default)
        if self.config.cache is not None:
            note_unplaced(cache, places, self.notes)
        return cache

    def server_tools(
        self,
        known: Mapping[str, Mapping[str, Any]],
        other: Callable[[str], dict[str, Any]] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the tools that the provider runs. The caller's options override defaults.

        ``known`` has the portable tools that the wire supports, whose fields the quirk
        ``server_tools`` may replace; other portable tools are rejected.
        ``other`` encodes tools that only this wire has. Without ``other``, they are rejected too.
        """
        written = []
        for at, tool in enumerate(self.request.server_tools):
            if tool.name in known:
                fields = {**known[tool.name], **self.quirks.server_tools.get(tool.name, {})}
            elif other is None or tool.name in PORTABLE:
                raise UnsupportedFeatureError(
                    f"server_tools[{at}]: this wire has no tool {tool.name!r} that the provider"
                    " runs"
                )
            else:
                fields = other(tool.name)
            options = {name: ordered_json(value) for name, value in tool.options.items()}
            written.append({**fields, **options})
        return written

    def note_raw_only(self, choices: str, logprobs: str) -> None:
        """Report extras that request several choices or log probabilities.

        ``Response`` contains these only in ``raw``.
        """
        extras = self.config.extras
        if extras.get(choices) not in (None, 1):
            why = (
                "a reply has one choice: the first is read, and the others are in raw; gather()"
                " makes several calls"
            )
            self.notes.rewrite(f"config.extras[{choices!r}]", "choices_dropped", why, loss=True)
        if extras.get(logprobs):
            why = "log probabilities are in raw and not in the message"
            self.notes.rewrite(f"config.extras[{logprobs!r}]", "logprobs_in_raw", why, loss=True)

    def extras(self) -> dict[str, Any]:
        """Return the extras; in a call that does not stream, without ``stream``.

        Raise ``InvalidRequestError`` if such a call has a ``stream`` other than false.
        """
        extras = dict(self.config.extras)
        if not self.request.stream and extras.pop("stream", False) is not False:
            raise InvalidRequestError(
                "config.extras['stream'] contradicts this call; use stream() to stream"
            )
        return extras


def join_texts(system: str | None, directive: str | None) -> str:
    """Return the system prompt with an instruction after it; either may be missing."""
    if system and directive:
        return f"{system}\n\n{directive}"
    return system or directive or ""


def split_system(
    messages: Sequence[Message], late_system: str
) -> tuple[list[System], Sequence[Message]]:
    """Return the messages of the system prompt, and the conversation after the leading ones.

    ``late_system`` is the quirk: with ``first``, later system messages belong to the prompt too.
    """
    _, rest = join_system(messages)
    leading: list[System] = [*messages[: len(messages) - len(rest)]]  # type: ignore[list-item]
    if late_system == "first":
        leading += [each for each in rest if type(each) is System]
    return leading, rest


def list_other_forms(
    body: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]], quirks: Any
) -> list[str]:
    """Return the types of computer tools in a body that the model does not take.

    ``known`` has the fields of the portable tools on a wire, which the quirk ``server_tools`` may
    replace. A model takes one form of the computer tool; of other tools, it takes several.
    """
    name = "computer_use"
    taken = {**known[name], **quirks.server_tools.get(name, {})}["type"]
    kinds = [str(tool.get("type", "")) for tool in entries_of(body.get("tools"))]
    return [kind for kind in kinds if kind.startswith("computer") and kind != taken]
