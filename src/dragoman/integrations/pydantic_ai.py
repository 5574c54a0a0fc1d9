"""``DragomanModel``: every model that Dragoman connects to, as a Pydantic AI model.

::

    agent = Agent(DragomanModel("anthropic:claude-sonnet-4-6"), output_type=Invoice)

Parts that the wire cannot express are reported as ``LossWarning`` in
``provider_details["warnings"]`` of the response.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from ..errors import ProviderError, advise_import

with advise_import(
    "dragoman.integrations.pydantic_ai needs the extra: pip install 'dragoman[pydantic-ai]'"
):
    from pydantic_ai import RunContext
    from pydantic_ai import messages as pai
    from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
    from pydantic_ai.models import Model, StreamedResponse, check_allow_model_requests
    from pydantic_ai.models import ModelRequestParameters as Parameters
    from pydantic_ai.profiles import ModelProfile, ModelProfileSpec
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.usage import RequestUsage

from .. import events as ev
from ..provider import EventStream, Provider
from .bridge import SETTINGS
from .exact_message import KEPT
from .loops import open_named
from .losses import DragomanLossWarning, warn_of_losses
from .pydantic_ai_messages import read_choice, read_messages, read_tools

__all__ = ["DragomanLossWarning", "DragomanModel"]

History: TypeAlias = list[pai.ModelMessage]
Settings: TypeAlias = ModelSettings | None
_FINISH: dict[str, pai.FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_call",
    "content_filter": "content_filter",
    "error": "error",
}
# Pydantic AI's name of each setting, and ours
_SETTINGS = {name: name for name in (*SETTINGS, "stop_sequences")} | {"extra_body": "extras"}
_PROFILE = ModelProfile(
    supports_json_schema_output=True,
    supports_json_object_output=True,
    supports_thinking=True,
    # a wire sends such a message at its place, or in a form that it reports; without this,
    # Pydantic AI adds a paragraph about <system> tags to the instructions of every agent
    supports_inline_system_prompts=True,
)


class DragomanModel(Model[Provider]):
    """A Pydantic AI model that calls ``dragoman.connect(model)`` or your provider.

    If you give the name of a model, each event loop gets its own connections, which are closed
    when the loop shuts down. ``connection`` has further arguments of ``connect``, such as
    ``base_url`` and ``wire``.
    """

    def __init__(
        self,
        model: str | Provider,
        *,
        profile: ModelProfileSpec | None = None,
        settings: Settings = None,
        **connection: Any,
    ) -> None:
        self._name, self._opened = open_named(model, connection)
        self._base_url = connection.get("base_url")
        super().__init__(settings=settings, profile=profile or _PROFILE)

    @property
    def model_name(self) -> str:
        """The name of the model."""
        return self._name

    @property
    def system(self) -> str:
        """The vendor, as in ``vendor:model``; "dragoman" if the name has no vendor."""
        vendor, colon, _ = self._name.partition(":")
        return vendor if colon else "dragoman"

    @property
    def base_url(self) -> str | None:
        """The server's address, if the caller gave one."""
        return self._base_url

    async def request(
        self, messages: History, model_settings: Settings, model_request_parameters: Parameters
    ) -> pai.ModelResponse:
        """Call the model once and return its response."""
        check_allow_model_requests()
        provider, arguments, _ = await self._prepare(
            messages, model_settings, model_request_parameters
        )
        with _translated_errors(self._name):
            return make_response(await provider.complete(**arguments), self.system)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: History,
        model_settings: Settings,
        model_request_parameters: Parameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Call the model and yield its reply as it arrives."""
        check_allow_model_requests()
        provider, arguments, parameters = await self._prepare(
            messages, model_settings, model_request_parameters
        )
        with _translated_errors(self._name):
            stream = provider.stream(**arguments)
            # Read the first event here, so that opening the stream raises the error of a rejected
            # request.
            first = await anext(stream)
        async with stream:
            yield DragomanStreamedResponse(parameters, stream, first, self._name, self.system)

    async def count_tokens(
        self, messages: History, model_settings: Settings, model_request_parameters: Parameters
    ) -> RequestUsage:
        """Estimate the tokens of a request without a call to the model."""
        provider, arguments, _ = await self._prepare(
            messages, model_settings, model_request_parameters
        )
        return RequestUsage(
            input_tokens=provider.estimate_input_tokens(
                arguments["messages"], arguments.get("tools")
            )
        )

    async def _prepare(
        self, messages: History, settings: Settings, parameters: Parameters
    ) -> tuple[Provider, dict[str, Any], Parameters]:
        """Return the provider and the arguments of a call."""
        settings, parameters = self.prepare_request(settings, parameters)
        given: dict[str, Any] = dict(settings or {})
        instructions = self._get_instruction_parts(messages, parameters) or []
        arguments: dict[str, Any] = {
            "messages": read_messages(messages, [part.content for part in instructions]),
            # Pydantic AI validates arguments itself, and calls the model again if they are invalid
            "check_calls": False,
        }
        mode, definitions = read_choice(settings, parameters)
        if definitions:
            arguments["tools"] = read_tools(definitions, parameters)
            arguments["tool_choice"] = mode
        if parameters.output_mode == "native" and parameters.output_object is not None:
            arguments["response_schema"] = parameters.output_object.json_schema
        arguments |= {
            name: given[key] for key, name in _SETTINGS.items() if given.get(key) is not None
        }
        if parameters.thinking is not None:
            arguments["reasoning"] = _read_thinking(parameters.thinking)
        return await self._opened.get(), arguments, parameters


def _read_thinking(thinking: bool | str) -> str:
    if isinstance(thinking, bool):
        return "medium" if thinking else "off"
    return thinking


# --- converting replies ------------------------------------------------------------------------


def make_response(response: ev.Response[Any], system: str) -> pai.ModelResponse:
    """Return a complete reply as a Pydantic AI response."""
    parts: list[pai.ModelResponsePart] = []
    if response.thinking:
        parts.append(pai.ThinkingPart(response.thinking))
    if response.text:
        parts.append(pai.TextPart(response.text))
    for call in response.tool_calls:
        parts.append(pai.ToolCallPart(call.name, call.arguments or {}, call.id))
    return pai.ModelResponse(
        parts=parts,
        usage=make_usage(response.usage),
        model_name=response.model,
        provider_name=system,
        provider_response_id=response.request_id,
        provider_details=make_details(response),
        finish_reason=_FINISH.get(response.finish_reason),
    )


def make_details(response: ev.Response[Any]) -> dict[str, Any]:
    """Return the ``provider_details`` of a response; issue its losses as Python warnings.

    The details contain the message, which the next turn sends back, and the warnings.
    """
    warn_of_losses(response.warnings, stacklevel=3)
    return {
        KEPT: msgspec.to_builtins(response.message),
        "finish_reason": response.finish_raw or response.finish_reason,
        "warnings": [str(warning) for warning in response.warnings],
    }


def make_usage(usage: ev.Usage) -> RequestUsage:
    """Return the usage in Pydantic AI's form; mark a reply without token counts as unmeasured."""
    if usage.input_tokens is None and usage.output_tokens is None:
        return RequestUsage(unmeasured_requests=1)
    details = (
        {"reasoning_tokens": usage.reasoning_tokens} if usage.reasoning_tokens is not None else {}
    )
    return RequestUsage(
        input_tokens=usage.input_tokens or 0,
        output_tokens=usage.output_tokens or 0,
        cache_read_tokens=usage.cached_input_tokens or 0,
        cache_write_tokens=usage.cache_creation_input_tokens or 0,
        details=details,
    )


@dataclass
class DragomanStreamedResponse(StreamedResponse):
    """A streamed reply in Pydantic AI's form, read as it arrives."""

    _stream: EventStream[Any]
    _first: ev.Event
    _model_name: str
    _system: str
    _timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def close_stream(self) -> None:
        """Cancel the call and close its connection."""
        await self._stream.cancel()

    async def _get_event_iterator(self) -> AsyncIterator[pai.ModelResponseStreamEvent]:
        with _translated_errors(self._model_name):
            for part in self._translate(self._first):
                yield part
            async for event in self._stream:
                for part in self._translate(event):
                    yield part
            self._end(self._stream.response)

    def _translate(self, event: ev.Event) -> Iterator[pai.ModelResponseStreamEvent]:
        manager = self._parts_manager
        if type(event) is ev.TextDelta:
            yield from manager.handle_text_delta(
                vendor_part_id=event.content_block_index, content=event.text
            )
        elif type(event) is ev.ThinkingDelta and event.text:
            yield from manager.handle_thinking_delta(
                vendor_part_id=event.content_block_index, content=event.text
            )
        elif isinstance(event, ev.ToolUseStart | ev.ToolUseInputDelta):
            given: dict[str, Any] = (
                {"tool_name": event.tool_name, "tool_call_id": event.tool_use_id}
                if isinstance(event, ev.ToolUseStart)
                else {"args": event.partial_json}
            )
            place = event.content_block_index
            call = manager.handle_tool_call_delta(vendor_part_id=place, **given)
            yield from [call] if call is not None else []

    def _end(self, response: ev.Response[Any]) -> None:
        self._usage = make_usage(response.usage)
        self.finish_reason = _FINISH.get(response.finish_reason)
        self.provider_details = make_details(response)
        self.provider_response_id = response.request_id
        self._model_name = response.model or self._model_name

    @property
    def model_name(self) -> str:
        """The name of the model that answers."""
        return self._model_name

    @property
    def provider_name(self) -> str | None:
        """The name of the vendor that serves the model."""
        return self._system

    @property
    def provider_url(self) -> str | None:
        """Always ``None``, since the address may contain a secret."""
        return None

    @property
    def timestamp(self) -> datetime:
        """The time at which the call began."""
        return self._timestamp


@contextmanager
def _translated_errors(model: str) -> Iterator[None]:
    """Convert a provider's errors to those that Pydantic AI's ``FallbackModel`` expects."""
    try:
        yield
    except ProviderError as error:
        if error.status is not None and error.status >= 400:
            raise ModelHTTPError(error.status, model, str(error)) from error
        raise ModelAPIError(model, str(error)) from error
