"""Types of the arguments that a caller may pass, as values or plain records.

These types are for type checkers. At run time ``parse`` reads the arguments and reports the path
of an invalid one. Pass records that a type checker cannot know, such as decoded JSON, through
``parse_messages``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Required, TypeAlias, TypedDict

from ..events import Parsed
from ..messages import Effort, Message, PromptCache, ServerTool, Tool, ToolChoice, UserBlock

if TYPE_CHECKING:  # mypy sees Literal[...] as a special form
    from typing import _SpecialForm

_Content: TypeAlias = str | Sequence[Mapping[str, Any]]


class SystemRecord(TypedDict):
    """A system prompt as a plain record."""

    role: Literal["system", "developer"]
    content: str


class UserRecord(TypedDict):
    """A user's message as a plain record."""

    role: Literal["user"]
    content: _Content


class AssistantRecord(TypedDict, total=False):
    """An assistant message as a dictionary."""

    role: Required[Literal["assistant"]]
    content: _Content | None
    tool_calls: Sequence[Mapping[str, Any]] | None


class ToolRecord(TypedDict, total=False):
    """A tool's result as a plain record."""

    role: Required[Literal["tool"]]
    tool_call_id: Required[str]
    content: Required[_Content]
    is_error: bool


MessageRecord: TypeAlias = SystemRecord | UserRecord | AssistantRecord | ToolRecord
Messages: TypeAlias = (
    str | UserBlock | Message | Sequence[Message | MessageRecord | str | UserBlock]
)
"""A string, one message, a sequence of messages (Dragoman's values, plain records or
chat-completion dicts), or the parts of one user message.
"""

Tools: TypeAlias = Sequence[Tool | ServerTool | Mapping[str, Any] | Callable[..., Any]]
"""Tools as values, as plain records, or as functions and types. They are only described to the
model, never executed.
"""

ToolChoices: TypeAlias = ToolChoice | Mapping[str, Any]
ResponseSchema: TypeAlias = "type[Parsed] | UnionType | _SpecialForm | Mapping[str, Any]"


class ConfigRecord(TypedDict, total=False):
    """The fields of ``RuntimeConfig`` as a plain record."""

    temperature: float | None
    max_tokens: int | None
    top_p: float | None
    seed: int | None
    frequency_penalty: float | None
    presence_penalty: float | None
    stop_sequences: Sequence[str] | None
    reasoning: Effort | int | None
    extras: Mapping[str, Any]
    cache: Literal["auto", "off"] | PromptCache | None


class Settings(ConfigRecord, total=False):
    """Settings of ``complete`` and ``stream``: ``system`` and the fields of ``RuntimeConfig``."""

    system: str | None
