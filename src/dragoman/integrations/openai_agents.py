"""``DragomanModel``: every model that Dragoman connects to, as a model of the OpenAI Agents SDK.

::

    agent = Agent(name="Geographer", model=DragomanModel("anthropic:claude-sonnet-4-6"))
    result = await Runner.run(agent, "Which river flows through Basel?")

``DragomanModels`` resolves names instead: ``RunConfig(model_provider=DragomanModels())``. The SDK
builds its requests, spans and results for the Responses API; a client without HTTP answers them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast, get_args

import msgspec

from ..errors import InvalidRequestError, ProviderError, advise_import

with advise_import(
    "dragoman.integrations.openai_agents needs the extra: pip install 'dragoman[agents]'"
):
    from agents import Model, ModelProvider, OpenAIResponsesModel
    from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
    from openai import Omit
    from openai.types.responses import Response, ResponseStreamEvent

from ..blocking import SyncProvider
from ..provider import Provider
from ..wire.schema import schema_name
from .exact_message import KEPT
from .loops import Opened, open_named
from .losses import DragomanLossWarning
from .served import ServedCall

__all__ = ["DragomanLossWarning", "DragomanModel", "DragomanModels"]

_EVENTS: dict[str, Any] = {
    name: kind
    for kind in get_args(get_args(ResponseStreamEvent)[0])
    for name in get_args(kind.model_fields["type"].annotation)
}


class DragomanModel(OpenAIResponsesModel):
    """A model of the OpenAI Agents SDK that calls ``dragoman.connect(model)`` or your provider.

    If you give the name of a model, each event loop gets its own connections, which are closed
    when the loop shuts down. ``connection`` has further arguments of ``connect``, such as
    ``base_url`` and ``wire``. Errors are Dragoman's.
    """

    def __init__(self, model: str | Provider, **connection: Any) -> None:
        name, opened = open_named(model, connection)
        super().__init__(name, cast("Any", _Client(opened)))

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """Advise the SDK's retry policies by the error's own judgement."""
        error = request.error
        if not isinstance(error, ProviderError):
            return super().get_retry_advice(request)
        return ModelRetryAdvice(
            suggested=error.transient, retry_after=error.retry_after, reason=str(error)
        )


class DragomanModels(ModelProvider):
    """Find models by the names that ``connect`` accepts; ``connection`` applies to all of them."""

    def __init__(self, default: str = "", **connection: Any) -> None:
        self._default = default
        self._connection = connection
        self._models: dict[str, Model] = {}

    def get_model(self, model_name: str | None) -> Model:
        """Return the model of this name, or the default if an agent has none."""
        name = model_name or self._default
        if not name:
            raise InvalidRequestError("set a model for the agent, or DragomanModels(default=...)")
        if name not in self._models:
            self._models[name] = DragomanModel(name, **self._connection)
        return self._models[name]


class _Client:
    """Stands in for ``openai.AsyncOpenAI``, of which the SDK calls ``responses.create``."""

    base_url = "dragoman:"

    def __init__(self, opened: Opened[Provider, SyncProvider]) -> None:
        self._opened = opened

    @property
    def responses(self) -> _Client:
        return self

    async def create(self, **arguments: Any) -> Response | AsyncIterator[ResponseStreamEvent]:
        given = {
            name: value
            for name, value in arguments.items()
            if not isinstance(value, Omit) and value is not None
        }
        # settings may be Pydantic model objects
        fields = msgspec.to_builtins(given, enc_hook=lambda each: each.model_dump(mode="json"))
        fields |= fields.pop("extra_body", {})
        # the SDK itself names only the program, in User-Agent
        if fields.pop("extra_query", None) or len(fields.pop("extra_headers", ())) > 1:
            raise InvalidRequestError(
                "extra_headers and extra_query of ModelSettings are not supported; "
                "connect(...) has settings for the server"
            )
        form = fields.get("text", {}).get("format", {})
        if "title" in form.get("schema", {}):
            form["name"] = schema_name(form["schema"])  # the SDK gives all schemas one name
        kept = [item.pop(KEPT) for item in fields["input"] if KEPT in item]
        call = ServedCall(await self._opened.get(), "responses", fields, kept)
        if fields.get("stream"):
            return _read_stream(call)
        return cast("Response", _make_response(await call.read(), call))


async def _read_stream(call: ServedCall) -> AsyncIterator[ResponseStreamEvent]:
    async for event in call.read_stream():
        if event["type"] == "response.completed":
            event["response"] = _make_response(event["response"], call)
        yield _EVENTS[event["type"]].construct(**event)


def _make_response(response: dict[str, Any], call: ServedCall) -> Response:
    """Return a response in the SDK's type; its last item keeps the exact message, if necessary.

    The SDK ignores items of unknown types, such as blocks that only the provider understands.
    """
    kept = call.keep()
    if kept is not None:
        items = [item for item in response["output"] if item["type"] != "opaque"]
        if items:
            items[-1][KEPT] = kept
        response = {**response, "output": items}
    return Response.construct(**response)
