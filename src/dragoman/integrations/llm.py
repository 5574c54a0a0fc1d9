"""A plugin for the ``llm`` command: ``llm -m dragoman/local "Name a river."``.

``llm`` finds the plugin by its entry point. ``llm models`` lists ``local`` and the aliases and
groups of ``models.yaml``.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Any

from ..errors import InvalidRequestError, advise_import

with advise_import("dragoman.integrations.llm needs the extra: pip install 'dragoman[llm]'"):
    import llm
    from llm.models import EmbeddingModel
    from llm.parts import (
        AttachmentPart,
        ReasoningPart,
        StreamEvent,
        TextPart,
        ToolCallPart,
        ToolResultPart,
    )
    from pydantic import Field

from .. import messages as m
from ..blocking import SyncEmbedder, SyncProvider
from ..events import Event, Response, TextDelta, ThinkingDelta, ToolUseInputDelta, ToolUseStart
from ..provider import Provider, connect
from ..registry import Registry
from ..retrieval import Embedder, connect_embedder
from ..validate.yaml import ConfigError
from .loops import Opened
from .losses import warn_of_losses

PREFIX = "dragoman/"
_IMAGES = {"image/png", "image/jpeg", "image/gif", "image/webp"}


class Options(llm.Options):
    """The settings of a call, under Dragoman's names."""

    temperature: float | None = Field(default=None, description="Randomness, from 0.")
    max_tokens: int | None = Field(default=None, description="The most tokens to generate.")
    top_p: float | None = Field(default=None, description="Nucleus sampling.")
    seed: int | None = Field(default=None, description="Seed of sampling.")
    reasoning: str | None = Field(
        default=None, description="off, minimal, low, medium, high or a budget in tokens."
    )


class _Named:
    """A model of Dragoman under its name in ``llm``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.model_id = PREFIX + name

    def __str__(self) -> str:
        return f"Dragoman: {self.model_id}"


class _Described(_Named):
    """The attributes and options that the blocking and the asynchronous model class share."""

    can_stream = True
    supports_schema = True
    supports_tools = True
    attachment_types = frozenset({*_IMAGES, "application/pdf"})
    Options = Options

    def __init__(self, name: str, open_provider: Callable[[str], Provider] = connect) -> None:
        super().__init__(name)
        self._opened = Opened(lambda: open_provider(name), SyncProvider)


class DragomanModel(_Described, llm.Model):  # type: ignore[misc]
    """A model of the ``llm`` command, for blocking code."""

    def execute(
        self, prompt: Any, stream: bool, response: Any, conversation: Any = None
    ) -> Iterator[StreamEvent]:
        """Call the model, and yield its reply as events."""
        provider = self._opened.blocking
        arguments = make_arguments(prompt)
        if not stream:
            reply = provider.complete(**arguments)
            yield from make_events(reply)
        else:
            with provider.stream(**arguments) as events:
                for event in events:
                    yield from translate(event)
            reply = events.response
        finish(response, reply)


class AsyncDragomanModel(_Described, llm.AsyncModel):  # type: ignore[misc]
    """A model of the ``llm`` command, for asynchronous code."""

    async def execute(
        self, prompt: Any, stream: bool, response: Any, conversation: Any = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """Call the model, and yield its reply as events."""
        provider = await self._opened.get()
        arguments = make_arguments(prompt)
        if not stream:
            reply = await provider.complete(**arguments)
            for made in make_events(reply):
                yield made
        else:
            async with provider.stream(**arguments) as events:
                async for event in events:
                    for made in translate(event):
                        yield made
            reply = events.response
        finish(response, reply)


class DragomanEmbeddingModel(_Named, EmbeddingModel):
    """An embedding model of the ``llm`` command."""

    batch_size = 100  # how many texts llm reads at a time from a file or a database

    def __init__(
        self, name: str, open_embedder: Callable[[str], Embedder] = connect_embedder
    ) -> None:
        super().__init__(name)
        self._opened = Opened(lambda: open_embedder(name), SyncEmbedder)

    def embed_batch(
        self, items: Iterable[str | bytes], *, key: str | None = None
    ) -> Iterator[list[float]]:
        """Yield a vector for each text. ``llm`` has rejected binary data before this call."""
        texts = [item for item in items if isinstance(item, str)]
        if not texts:
            return
        answer = self._opened.blocking.embed(texts)
        warn_of_losses(answer.warnings, stacklevel=2)
        yield from answer.vectors.tolist()


@llm.hookimpl
def register_embedding_models(register: Callable[..., None]) -> None:
    """Register every name for embeddings too, since any of them may be an embedding model."""
    for name in find_names():
        register(DragomanEmbeddingModel(name))


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Register ``local`` and the names of ``models.yaml``."""
    for name in find_names():
        register(DragomanModel(name), AsyncDragomanModel(name))


def find_names() -> list[str]:
    """Return the names to register; only ``local`` if ``models.yaml`` is invalid."""
    try:
        registry = Registry.load()
        names = {*registry.aliases(), *registry.groups()}
    except ConfigError:
        names = set()
    return ["local", *sorted(names - {"local"})]


# --- converting requests -----------------------------------------------------------------------


def make_arguments(prompt: Any) -> dict[str, Any]:
    """Return the arguments of ``Provider.complete`` for a prompt."""
    arguments: dict[str, Any] = {
        "messages": [*read_messages(prompt.messages)],
        "check_calls": False,
    }
    tools = [
        m.Tool(tool.name, tool.description or "", parameters=tool.input_schema)
        for tool in prompt.tools or ()
    ]
    if tools:
        arguments["tools"] = tools
    if prompt.schema:
        arguments["response_schema"] = prompt.schema
    settings: dict[str, Any] = prompt.options.model_dump(exclude_none=True)
    if str(settings.get("reasoning", "")).isdigit():
        settings["reasoning"] = int(settings["reasoning"])
    return arguments | settings


def read_messages(messages: Any) -> Iterator[m.Message]:
    """Yield the messages of an ``llm`` conversation as Dragoman messages."""
    for message in messages:
        if message.role == "system":
            yield m.System("".join(part.text for part in message.parts))
        elif message.role == "assistant":
            blocks = [*_read_reply(message.parts)]
            if blocks:
                yield m.Assistant(blocks)
        else:
            results = [part for part in message.parts if isinstance(part, ToolResultPart)]
            yield from [
                m.ToolResult(part.tool_call_id or "", part.output, is_error=bool(part.exception))
                for part in results
            ]
            content = [
                _read_part(part) for part in message.parts if not isinstance(part, ToolResultPart)
            ]
            if content:
                yield m.User(content)


def _read_reply(parts: Any) -> Iterator[m.AssistantBlock]:
    for part in parts:
        if isinstance(part, TextPart) and part.text:
            yield m.Text(part.text)
        elif isinstance(part, ReasoningPart) and part.text:
            yield m.Thinking(part.text)
        elif isinstance(part, ToolCallPart) and not part.server_executed:
            yield m.ToolCall(part.tool_call_id or "", part.name, part.arguments)


def _read_part(part: Any) -> m.UserBlock:
    if isinstance(part, TextPart):
        return m.Text(part.text)
    if not isinstance(part, AttachmentPart) or part.attachment is None:
        raise InvalidRequestError(f"a part of type {type(part).__name__} cannot be sent")
    # typed as Any, because the attachment's methods have no annotations
    attachment: Any = part.attachment
    kind = attachment.resolve_type()
    source: m.Url | m.Inline
    if attachment.url:
        source = m.Url(attachment.url)
    else:
        source = m.Inline(base64.b64encode(attachment.content_bytes()).decode("ascii"))
    return m.Image(source, kind) if kind in _IMAGES else m.Document(source, kind)


# --- converting replies ------------------------------------------------------------------------


def translate(event: Event) -> Iterator[StreamEvent]:
    """Convert a Dragoman event to an ``llm`` event; yield nothing if ``llm`` has no such event."""
    if type(event) is TextDelta:
        yield StreamEvent(type="text", chunk=event.text)
    elif type(event) is ThinkingDelta and event.text:
        yield StreamEvent(type="reasoning", chunk=event.text)
    elif type(event) is ToolUseStart:
        yield StreamEvent(
            type="tool_call_name", chunk=event.tool_name, tool_call_id=event.tool_use_id
        )
    elif type(event) is ToolUseInputDelta:
        yield StreamEvent(
            type="tool_call_args", chunk=event.partial_json, tool_call_id=event.tool_use_id
        )


def make_events(reply: Response[Any]) -> Iterator[StreamEvent]:
    """Yield a complete reply as events of ``llm``: its reasoning, then its text."""
    if reply.thinking:
        yield StreamEvent(type="reasoning", chunk=reply.thinking)
    if reply.text:
        yield StreamEvent(type="text", chunk=reply.text)


def finish(response: Any, reply: Response[Any]) -> None:
    """Record the reply's usage and proposed tool calls on the response of ``llm``."""
    for call in reply.tool_calls:
        response.add_tool_call(
            llm.ToolCall(name=call.name, arguments=call.arguments or {}, tool_call_id=call.id)
        )
    usage = reply.usage
    details = {
        "cached_input_tokens": usage.cached_input_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }
    known = {name: count for name, count in details.items() if count}
    response.set_usage(input=usage.input_tokens, output=usage.output_tokens, details=known or None)
    if reply.model:
        response.set_resolved_model(reply.model)
    response.response_json = {
        "finish_reason": reply.finish_reason,
        "warnings": [str(warning) for warning in reply.warnings],
    }
