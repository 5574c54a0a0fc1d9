"""``ChatDragoman``: every model that Dragoman connects to, as a LangChain chat model.

::

    model = ChatDragoman(model="anthropic:claude-sonnet-4-6", temperature=0)
    model.bind_tools([search]).invoke("Which river flows through Basel?")

Parts that the wire cannot express are listed in ``response_metadata["warnings"]``, and are also
issued as Python warnings.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, Literal, TypeAlias

from ..errors import advise_import

with advise_import(
    "dragoman.integrations.langchain needs the extra: pip install 'dragoman[langchain]'"
):
    from langchain_core.language_models import BaseChatModel, LanguageModelInput
    from langchain_core.language_models.base import LangSmithParams
    from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
    from langchain_core.messages.tool import tool_call_chunk
    from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
    from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
    from langchain_core.tools import BaseTool
    from langchain_core.utils.function_calling import (
        convert_to_json_schema,
        convert_to_openai_tool,
    )
    from langchain_core.utils.pydantic import is_basemodel_subclass
    from pydantic import ConfigDict, Field, SecretStr

from ..blocking import SyncProvider
from ..events import Event, Response, TextDelta, ThinkingDelta, ToolUseInputDelta, ToolUseStart
from ..messages import ForceTool, Tool
from ..provider import Provider, connect
from .langchain_embeddings import DragomanEmbeddings, connection_of
from .langchain_messages import make_last_chunk, make_message, read_messages
from .loops import Opened
from .losses import DragomanLossWarning, warn_of_losses

__all__ = ["ChatDragoman", "DragomanEmbeddings", "DragomanLossWarning"]

Conversation: TypeAlias = list[BaseMessage]
Stop: TypeAlias = list[str] | None
Method = Literal["json_schema", "function_calling", "json_mode"]


class ChatDragoman(BaseChatModel):
    """A LangChain chat model that calls ``dragoman.connect(model)`` or your ``provider``.

    ``model_kwargs`` are further settings of a call, such as ``{"reasoning": "low"}``. A
    ``provider`` belongs to the event loop that uses it first. If you give the name of a model
    instead, each event loop gets its own connections.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, populate_by_name=True)

    model: str = ""
    base_url: str | None = None
    wire: str | None = None
    api_key: SecretStr | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    timeout: float | None = None
    max_retries: int = 0
    stop: list[str] | None = Field(default=None, alias="stop_sequences")
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    provider: Provider | None = Field(default=None, exclude=True)

    @property
    def _llm_type(self) -> str:
        return "dragoman"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return {"model": self._name, "base_url": self.base_url, "temperature": self.temperature}

    @property
    def _name(self) -> str:
        return self.model or (self.provider.model if self.provider is not None else "")

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop or self.stop, **kwargs)
        name = kwargs.get("model") or self._name
        vendor, colon, model = name.partition(":")
        params["ls_provider"] = vendor if colon else "dragoman"
        params["ls_model_name"] = model if colon else name
        return params

    # --- calling the model ----------------------------------------------------------------------

    def _generate(
        self, messages: Conversation, stop: Stop = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        provider = self._find(kwargs.pop("model", None)).blocking
        return _make_result(provider.complete(**self._arguments(messages, stop, kwargs)))

    async def _agenerate(
        self, messages: Conversation, stop: Stop = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        provider = await self._find(kwargs.pop("model", None)).get()
        return _make_result(await provider.complete(**self._arguments(messages, stop, kwargs)))

    def _stream(
        self, messages: Conversation, stop: Stop = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        provider = self._find(kwargs.pop("model", None)).blocking
        with provider.stream(**self._arguments(messages, stop, kwargs)) as stream:
            for event in stream:
                for chunk in _make_chunks(event):
                    if run_manager:
                        run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk
        yield _end(stream.response)

    async def _astream(
        self, messages: Conversation, stop: Stop = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        provider = await self._find(kwargs.pop("model", None)).get()
        async with provider.stream(**self._arguments(messages, stop, kwargs)) as stream:
            async for event in stream:
                for chunk in _make_chunks(event):
                    if run_manager:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk
        yield _end(stream.response)

    def _arguments(
        self, messages: Conversation, stop: Stop, given: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of ``Provider.complete`` for one call."""
        known = {
            "messages": read_messages(messages),
            "check_calls": False,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "stop_sequences": stop or self.stop,
            **self.model_kwargs,
        }
        known |= {name: value for name, value in given.items() if value is not None}
        known.pop("ls_structured_output_format", None)
        arguments = {name: value for name, value in known.items() if value is not None}
        if arguments.get("tools"):
            tools = [_read_tool(tool) for tool in arguments["tools"]]
            choice = _read_choice(arguments.get("tool_choice"), tools)
            arguments |= {"tools": tools, "tool_choice": choice}
        return arguments

    # --- opening providers ----------------------------------------------------------------------

    @cached_property
    def _models(self) -> dict[str, Opened[Provider, SyncProvider]]:
        return {}

    def _find(self, model: str | None) -> Opened[Provider, SyncProvider]:
        name = model or self._name
        own = self.provider if name == self._name else None
        opened = Opened(lambda: connect(name, **connection_of(self)), SyncProvider, own)
        return self._models.setdefault(name, opened)

    # --- tools and structured output ------------------------------------------------------------

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | dict[str, Any] | bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Offer tools to the model: functions, LangChain tools, Pydantic models, JSON Schemas."""
        # strict mode depends on the schema, so this argument is ignored
        kwargs.pop("strict", None)
        return super().bind(
            tools=[convert_to_openai_tool(tool) for tool in tools],
            tool_choice=tool_choice,
            **kwargs,
        )

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        method: Method = "json_schema",
        include_raw: bool = False,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Request structured data.

        ``method`` is ``json_schema``, or ``function_calling`` for a forced tool call.
        """
        if method == "function_calling":
            return super().with_structured_output(schema, include_raw=include_raw, **kwargs)
        kwargs.pop("strict", None)
        json_schema = convert_to_json_schema(schema)
        parser: Runnable[Any, Any] = JsonOutputParser()
        if isinstance(schema, type) and is_basemodel_subclass(schema):
            parser = PydanticOutputParser(pydantic_object=schema)
        model = self.bind(
            response_schema={"title": "output", **json_schema},
            ls_structured_output_format={"kwargs": {"method": method}, "schema": schema},
            **kwargs,
        )
        if not include_raw:
            return model | parser
        parsed = RunnablePassthrough.assign(
            parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
        )
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        made: Runnable[Any, Any] = parsed.with_fallbacks([failed], exception_key="parsing_error")
        return RunnableMap(raw=model) | made


# --- converting settings and events ------------------------------------------------------------


def _read_tool(tool: Any) -> Tool:
    function = tool["function"]
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return Tool(function["name"], function.get("description") or "", parameters=parameters)


def _read_choice(choice: Any, tools: Sequence[Tool]) -> Any:
    """Convert LangChain's tool choice: a name, "any", ``True`` for the only tool, or a mapping."""
    if choice is True:
        return ForceTool(tools[0].name) if len(tools) == 1 else "required"
    if isinstance(choice, dict):
        choice = choice.get("function", choice).get("name", choice.get("type"))
    if choice in (None, False, "auto", "none", "required"):
        return choice or None
    return "required" if choice == "any" else ForceTool(choice)


def _make_chunks(event: Event) -> Iterator[ChatGenerationChunk]:
    message: AIMessageChunk | None = None
    if type(event) is TextDelta:
        message = AIMessageChunk(content=event.text)
    elif type(event) is ThinkingDelta:
        message = AIMessageChunk(content="", additional_kwargs={"reasoning_content": event.text})
    elif type(event) is ToolUseStart:
        place = event.content_block_index
        name = event.tool_name
        call = tool_call_chunk(name=name, args="", id=event.tool_use_id, index=place)
        message = AIMessageChunk(content="", tool_call_chunks=[call])
    elif type(event) is ToolUseInputDelta:
        call = tool_call_chunk(args=event.partial_json, index=event.content_block_index)
        message = AIMessageChunk(content="", tool_call_chunks=[call])
    if message is not None:
        yield ChatGenerationChunk(message=message)


def _end(response: Response[Any]) -> ChatGenerationChunk:
    warn_of_losses(response.warnings, stacklevel=3)
    last = make_last_chunk(response)
    # the reasoning was already sent in pieces
    last.additional_kwargs.pop("reasoning_content", None)
    return ChatGenerationChunk(message=last)


def _make_result(response: Response[Any]) -> ChatResult:
    warn_of_losses(response.warnings, stacklevel=3)
    return ChatResult(generations=[ChatGeneration(message=make_message(response))])
