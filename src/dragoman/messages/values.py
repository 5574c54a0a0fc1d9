"""Messages and their blocks, tools, and the request that holds them.

All are plain immutable values: they are compared by content, converted to and from JSON by
msgspec, and contain no callables. A conversation is a sequence of ``System``, ``User``,
``Assistant`` and ``ToolResult``; an ``Assistant`` holds *one* ordered sequence of blocks, tool
calls included, so that ``[thinking, call, thinking, call, text]`` survives a round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

from msgspec import Struct, StructMeta, field
from msgspec.structs import asdict, force_setattr

from .citations import Citation, read_citations
from .media import Inline, Url, read_media, read_source
from .settings import EFFORTS, NO_CONFIG, Effort, PromptCache, RuntimeConfig, freeze
from .signatures import describe_function, schema_of
from .summaries import summarise_block
from .ulid import new_ulid

__all__ = [
    "DETAILS", "EFFORTS", "NO_CONFIG", "Assistant", "AssistantBlock", "Audio",
    "Continuity", "Detail", "Document", "Effort", "ForceTool", "Image", "Issuer",
    "LossWarning", "Message", "Opaque", "PromptCache", "RedactedThinking", "Request",
    "RuntimeConfig", "ServerTool", "System", "Text", "Thinking", "Tool", "ToolCall", "ToolChoice",
    "ToolResult", "User", "UserBlock", "join_system",
]  # fmt: skip


# --- content blocks of messages ----------------------------------------------------------------


class Issuer(Struct, frozen=True):
    """The issuer of opaque state: the wire, the vendor and the model."""

    wire: str
    vendor: str | None = None
    model: str | None = None


class Continuity(Struct, frozen=True):
    """Opaque provider state of a block, kept byte for byte. Pass it back unchanged.

    Only a codec of the same issuer family sends it; every other codec drops it and reports the
    loss. ``replayable`` is false for blocks of an interrupted reply: their state may be truncated,
    so it is not sent.
    """

    signature: str | None = None
    opaque: Any = None
    issuer: Issuer | None = None
    replayable: bool = True


Detail: TypeAlias = Literal["auto", "low", "high"]
DETAILS: tuple[Detail, ...] = get_args(Detail)


class Text(Struct, frozen=True, tag="text", omit_defaults=True):
    """A block of text. ``cache`` marks the end of a prefix for the provider's prompt cache."""

    text: str
    continuity: Continuity | None = None
    cache: bool = False

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The citations of this text, read from the provider's record in ``continuity``."""
        return () if self.continuity is None else read_citations(self.continuity.opaque, self.text)


class _Media(Struct, frozen=True, omit_defaults=True):
    """A block that is read from a file, a URL or bytes."""

    source: Url | Inline
    media_type: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.source, str | Path | bytes):
            is_image = type(self) is Image and self.media_type is None
            source, media_type = read_source(self.source, is_image=is_image)
            force_setattr(self, "source", source)
            force_setattr(self, "media_type", self.media_type or media_type)


class Image(_Media, frozen=True, tag="image", omit_defaults=True, kw_only=True):
    """An image in a message. A generated image has ``continuity``.

    ``Image("photo.png")`` and ``Image(Path(...))`` read a file, ``Image(data)`` takes bytes, and
    ``Image("https://...")`` is a URL, which is never fetched. ``Inline`` needs a ``media_type``.
    """

    detail: Detail | None = None
    cache: bool = False
    continuity: Continuity | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            source: Url | Inline | str | Path | bytes,
            media_type: str | None = None,
            *,
            detail: Detail | None = None,
            cache: bool = False,
            continuity: Continuity | None = None,
        ) -> None: ...

    @classmethod
    def from_file(cls, path: str | Path, *, detail: Detail | None = None) -> Image:
        """Read an image from disk; the name of the file determines its media type."""
        source, media_type = read_media(path)
        return cls(source, media_type, detail=detail)


class Audio(_Media, frozen=True, tag="audio", omit_defaults=True, kw_only=True):
    """Audio input, or audio output of the model, with its ``transcript`` if there is one.

    ``Audio("question.wav")`` and ``Audio(Path(...))`` read a file, ``Audio(data)`` takes bytes.
    """

    transcript: str | None = None
    cache: bool = False
    continuity: Continuity | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            source: Url | Inline | str | Path | bytes,
            media_type: str | None = None,
            *,
            transcript: str | None = None,
            cache: bool = False,
            continuity: Continuity | None = None,
        ) -> None: ...


class Document(Struct, frozen=True, tag="document", omit_defaults=True):
    """A document in a message; PDF by default.

    ``Document("report.pdf")`` and ``Document(Path(...))`` read a file, ``Document(data)`` bytes.
    """

    source: Url | Inline
    media_type: str = "application/pdf"
    name: str | None = None
    cache: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            source: Url | Inline | str | Path | bytes,
            media_type: str = "application/pdf",
            name: str | None = None,
            cache: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        if isinstance(self.source, str | Path | bytes):
            given = self.source
            source, media_type = read_source(given)
            force_setattr(self, "source", source)
            if media_type is not None and self.media_type == "application/pdf":
                force_setattr(self, "media_type", media_type)
            if self.name is None and isinstance(source, Inline) and not isinstance(given, bytes):
                force_setattr(self, "name", Path(given).name)

    @classmethod
    def from_file(cls, path: str | Path) -> Document:
        """Read a document from disk."""
        source, media_type = read_media(path)
        return cls(source, media_type or "application/pdf", Path(path).name)


class Thinking(Struct, frozen=True, tag="thinking", omit_defaults=True):
    """Reasoning of the model. It is sent back only to its issuer."""

    text: str
    continuity: Continuity | None = None


class RedactedThinking(Struct, frozen=True, tag="redacted_thinking", omit_defaults=True):
    """Encrypted thinking: only its issuer can read ``data``."""

    data: str
    continuity: Continuity | None = None


class ToolCall(Struct, frozen=True, tag="tool_call", omit_defaults=True):
    """A tool call of the model. ``id`` is the provider's id, verbatim.

    ``arguments`` is ``None`` only in a failed reply whose arguments could not be read.
    """

    id: str
    name: str
    arguments: dict[str, Any] | None
    continuity: Continuity | None = None


class Opaque(Struct, frozen=True, tag="opaque", omit_defaults=True):
    """A block that only its issuer understands, such as the result of a server-side tool."""

    data: Any
    continuity: Continuity | None = None

    @property
    def summary(self) -> str:
        """A readable summary: the block's kind and its queries, code, output and sources."""
        return summarise_block(self.data)


UserBlock: TypeAlias = Text | Image | Document | Audio
AssistantBlock: TypeAlias = Text | Thinking | RedactedThinking | ToolCall | Opaque | Audio | Image
_BLOCKS = frozenset([*get_args(UserBlock), *get_args(AssistantBlock)])


# --- messages of each role ---------------------------------------------------------------------

_UserPart: TypeAlias = str | UserBlock | Sequence[str | UserBlock]
_AssistantPart: TypeAlias = str | AssistantBlock | Sequence[str | AssistantBlock]


class _MessageType(StructMeta):
    """Accept any number of parts: ``User("What is this?", Image("photo.png"))``."""

    if not TYPE_CHECKING:  # type checkers use the signature of each message

        def __call__(cls: Any, *given: Any, **fields: Any) -> Any:  # noqa: N805
            first = cls._content_at
            if len(given) == first + 1 and not fields:  # as for most messages
                return _make(cls, *given)
            head = given[:first]
            parts = given[first:]
            if head and len(parts) > 1 and isinstance(parts[-1], bool):
                fields["is_error"] = parts[-1]
                parts = parts[:-1]
            if "tool_calls" in fields:
                given = (*parts, fields.pop("content", None), fields.pop("tool_calls"))
                parts = ([part for part in given if part is not None],)
            return _make(cls, *head, *(parts if len(parts) < 2 else (parts,)), **fields)


_make: Any = StructMeta.__call__


class _Message(Struct, frozen=True, metaclass=_MessageType):
    """A message whose content is one text, or a tuple of blocks."""

    _content_at: ClassVar[int] = 0  # the number of fields before the content
    if TYPE_CHECKING:
        content: Any

    def __post_init__(self) -> None:
        if not isinstance(self.content, str):
            force_setattr(self, "content", _flatten(self.content))

    def __reduce__(self) -> Any:
        # By name: pickle passes all fields by position, where they count as parts.
        return partial(type(self), **asdict(self)), ()

    @property
    def text(self) -> str:
        """The text of all blocks, without thinking and calls, joined without a separator."""
        if isinstance(self.content, str):
            return self.content
        return "".join([block.text for block in self.content if type(block) is Text])


def _flatten(part: Any) -> tuple[Any, ...]:
    """Return a part of a message as blocks: a text as ``Text``, and a list opened."""
    if type(part) is tuple and _BLOCKS.issuperset(map(type, part)):
        return part
    if isinstance(part, str):
        return (Text(part),) if part else ()
    if not isinstance(part, (list, tuple)):
        return (part,)
    blocks: list[Any] = []
    for each in part:
        blocks += _flatten(each) if isinstance(each, (str, list, tuple)) else (each,)
    return tuple(blocks)


class System(Struct, frozen=True, tag="system", tag_field="role", omit_defaults=True):
    """Instructions. Those that begin a conversation are its system prompt.

    A later one, after a message of the user or a tool result, applies from its place on. It is
    sent at its place if the model accepts this, and otherwise in another form, which is reported.
    ``cache`` marks the end of a prefix for the provider's prompt cache.
    """

    role: ClassVar[Literal["system"]] = "system"
    content: str
    cache: bool = False

    @property
    def text(self) -> str:
        """The content, by the name that all messages have."""
        return self.content


class User(_Message, frozen=True, tag="user", tag_field="role", omit_defaults=True):
    """A user message: any number of texts, images, audio and documents, or lists of them.

    ``User("Hi")`` is plain text; ``User("What is this?", Image("photo.png"))`` has two blocks.
    ``cache`` marks the end of the message for the provider's prompt cache.
    """

    role: ClassVar[Literal["user"]] = "user"
    content: str | tuple[UserBlock, ...]
    cache: bool = False

    if TYPE_CHECKING:

        def __init__(
            self, *parts: _UserPart, content: _UserPart = ..., cache: bool = False
        ) -> None: ...


class Assistant(_Message, frozen=True, tag="assistant", tag_field="role"):
    """An assistant message: parts in the order of their arrival, and then ``tool_calls``."""

    role: ClassVar[Literal["assistant"]] = "assistant"
    content: tuple[AssistantBlock, ...] = ()

    if TYPE_CHECKING:

        def __init__(
            self,
            *parts: _AssistantPart | None,
            content: _AssistantPart | None = None,
            tool_calls: Sequence[ToolCall] | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        force_setattr(self, "content", _flatten(self.content or ()))

    @property
    def thinking(self) -> str:
        """The thinking of all blocks, joined without a separator."""
        return "".join([block.text for block in self.content if type(block) is Thinking])

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, in order."""
        return tuple([block for block in self.content if type(block) is ToolCall])

    @property
    def images(self) -> tuple[Image, ...]:
        """The images that the model generated, without opaque state.

        Any model accepts them in a user message.
        """
        found = [block for block in self.content if type(block) is Image]
        return tuple([Image(image.source, image.media_type) for image in found])

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The citations of all text blocks, in order; a position is relative to its own block."""
        return tuple(
            [each for block in self.content if type(block) is Text for each in block.citations]
        )


class ToolResult(_Message, frozen=True, tag="tool", tag_field="role", omit_defaults=True):
    """The result of a tool: texts and blocks, as in ``User``.

    ``tool_call_id`` is the id of its call, verbatim. A boolean after the parts is ``is_error``.
    """

    role: ClassVar[Literal["tool"]] = "tool"
    _content_at: ClassVar[int] = 1
    tool_call_id: str
    content: str | tuple[UserBlock, ...]
    is_error: bool = False
    cache: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            tool_call_id: str,
            content: _UserPart,
            *parts: _UserPart,
            is_error: bool = False,
            cache: bool = False,
        ) -> None: ...


Message: TypeAlias = System | User | Assistant | ToolResult


def join_system(messages: Sequence[Message]) -> tuple[str | None, Sequence[Message]]:
    """Return the text of the leading ``System`` messages, and the remaining messages."""
    count = 0
    while count < len(messages) and type(messages[count]) is System:
        count += 1
    if not count:
        return None, messages
    texts = [message.content for message in messages[:count] if type(message) is System]
    return "\n\n".join(texts), messages[count:]


# --- tools and server tools --------------------------------------------------------------------


class _Named(Struct, frozen=True):
    name: str
    description: str = ""
    parameters: dict[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )


class Tool(_Named, frozen=True, kw_only=True):
    """A tool that the model may call: a name, a description and a JSON Schema. Never a callable.

    ``strict`` turns constrained decoding of the arguments on or off, if the wire has a field for
    it; by default the wire's own default applies. A ``deferred`` tool is loaded when a tool search
    finds it: the provider's, where the wire has one, otherwise the session's. The calls of an
    ``external`` tool are proposed to a session and permitted there, but run elsewhere.
    """

    strict: bool | None = None
    deferred: bool = False
    external: bool = False

    @classmethod
    def from_function(cls, function: Callable[..., Any], *, name: str | None = None) -> Tool:
        """Describe a function by its type hints and docstring. The function itself is not kept.

        A parameter is described by ``Annotated[str, "a city"]``, by a Pydantic ``Field``, whose
        constraints are kept too, or by the docstring: Google's ``Args:``, NumPy's ``Parameters``
        or Sphinx' ``:param x:``, which are then left out of the description. Types may be msgspec
        Structs, dataclasses, TypedDicts, Pydantic models, and containers of them. An object with
        ``__call__`` or a ``functools.partial`` is described by the function that it calls, without
        the parameters that the partial has already bound.
        """
        found, description, parameters = describe_function(function, name)
        return cls(found, description, parameters=parameters)

    @classmethod
    def from_model(
        cls, model: type, *, name: str | None = None, description: str | None = None
    ) -> Tool:
        """Describe a tool by a type: a msgspec Struct, dataclass, TypedDict or Pydantic model."""
        schema = schema_of(model)
        return cls(
            name or model.__name__,
            description or schema.get("description") or "",
            parameters=schema,
        )


class ServerTool(Struct, frozen=True, tag="server_tool", omit_defaults=True):
    """A server-side tool, which the provider runs.

    It is passed among ``tools``; Dragoman never executes it.

    ``name`` is ``web_search``, ``code_execution``, ``url_context``, ``file_search``,
    ``computer_use`` or ``tool_search``, which are translated for the wire, or any other tool that
    the wire has. ``options`` are the wire's own options for the tool.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)


class ForceTool(Struct, frozen=True, tag="tool"):
    """``tool_choice=ForceTool("search")``: the model must call this tool and no other."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "required", "none"] | ForceTool


# --- a request and its losses ------------------------------------------------------------------


class LossWarning(Struct, frozen=True):
    """A part of a request or a reply that was lost in translation.

    The wire could not express a part of the request, which was sent in a reduced form or not at
    all; or a message has no field for a part of the reply, which is therefore only in ``raw``.
    """

    code: str
    path: str
    detail: str

    def __str__(self) -> str:
        return f"{self.path}: {self.detail} [{self.code}]"


class _Conversation(Struct, frozen=True):
    messages: Sequence[Message]


class Request(_Conversation, frozen=True, kw_only=True):
    """One call as data: everything that a codec needs.

    ``response_type`` is the Python type that the schema was made from. No codec reads it; the
    reply is converted to it, and ``Retry`` can retry if that fails. ``native`` maps the name of a
    wire to fields in the form of that wire, which override the fields that its codec writes: the
    gateway uses it for settings that ``Request`` cannot express. If ``check_calls`` is false, a
    call of an unknown tool or with invalid arguments becomes an intent like any other, and the
    caller must check it. With ``continues``, the last message may be an assistant message that the
    provider paused: the reply continues it.
    """

    operation: ClassVar[Literal["chat"]] = "chat"
    tools: Sequence[Tool] = ()
    config: RuntimeConfig = NO_CONFIG
    response_schema: dict[str, Any] | None = None
    tool_choice: ToolChoice | None = None
    model: str = ""
    request_id: str = field(default_factory=new_ulid)
    stream: bool = False
    session_id: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    response_type: Any = None
    native: dict[str, dict[str, Any]] = field(default_factory=dict)
    check_calls: bool = True
    continues: bool = False
    server_tools: tuple[ServerTool, ...] = ()

    def __post_init__(self) -> None:
        if type(self.messages) is list or type(self.tools) is list:
            freeze(self, "messages")
            freeze(self, "tools")
