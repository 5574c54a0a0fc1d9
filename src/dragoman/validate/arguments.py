"""Types of the arguments that a caller may pass, as values or plain records.

These types are for type checkers. At run time ``parse`` reads the arguments and reports the path
of an invalid one. Pass records that a type checker cannot know, such as decoded JSON, through
``parse_messages``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Required, TypeAlias, TypedDict

from ..events import Parsed
from ..messages import Effort, Message, PromptCache, ServerTool, Tool, ToolChoice, UserBlock

if TYPE_CHECKING:  # type checkers bundle typing_extensions, so it need not be installed
    from typing import _SpecialForm

    from typing_extensions import TypeVar

    Wanted = TypeVar("Wanted", default=None)
    """The type of ``Response.parsed`` that a call asks for; ``None`` without a schema."""

    _Loose = TypeVar("_Loose", contravariant=True)
    _Held = TypeVar("_Held", covariant=True)

    # A schema that is not a class leaves the type of the parsed value open. In the declarations of
    # mappings, special forms and unions, the types named here are Any, so a type checker infers
    # Any for the parsed value and not the default None.

    class _JsonSchema(Protocol[_Loose]):
        def keys(self) -> Iterable[str]: ...
        def __setattr__(self, name: str, value: _Loose, /) -> None: ...

    class _Literal(Protocol[_Loose]):  # mypy sees Literal[...] as a special form
        def __or__(self, other: _Loose, /) -> _SpecialForm: ...

    class _Union(Protocol[_Held]):
        @property
        def __args__(self) -> tuple[_Held, ...]: ...
else:
    from typing import TypeVar

    Wanted = TypeVar("Wanted")

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
ResponseSchema: TypeAlias = (
    "type[Parsed] | _Union[Parsed] | _Literal[Parsed] | _JsonSchema[Parsed]"
)


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
