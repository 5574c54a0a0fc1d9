"""Call a model with LiteLLM's parameters: read them as a request of the openai wire, and send it.

The request is translated as in the gateway, and the server side of the openai wire writes the
reply.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from ...errors import InvalidModelError, ProviderError, UnsupportedFeatureError
from ...gateway.models import describe_upstream
from ...gateway.policy import Translated, read
from ...gateway.translation import ResolvedModel, translate_for
from ...integrations.loops import Opened
from ...integrations.losses import warn_of_losses
from ...messages import LossWarning
from ...prices import PricedAs, cost
from ...provider import EventStream, Provider
from ...registry import Adapter, Registry, config_path
from ...registry.auth import AuthSettings
from ...retrieval import Embedder
from ...retrieval.wire.server import EmbedServer
from ...sim import ScriptedProvider
from ...sync import SyncProvider, run
from ...validate.structured import response_schema_of
from ...wire import SERVER_CODECS, Asked
from . import exceptions
from .exceptions import BadRequestError, OpenAIError, converted_errors
from .names import Named, Route, find_name, read_table
from .records import EmbeddingResponse, ModelResponse, ModelResponseStream

_FRONT = SERVER_CODECS["openai"]
# The parameters that are not part of the request body.
_OPTIONS = (
    "custom_llm_provider", "api_base", "base_url", "api_key", "timeout", "request_timeout",
    "num_retries", "max_retries", "extra_headers", "aws_region_name", "vertex_project", "vertex_location",
    "mock_response", "fallbacks", "drop_params", "additional_drop_params", "allowed_openai_params",
)  # fmt: skip


def _split(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a call, and the parameters that its request body contains."""
    options = {name: given.get(name) for name in _OPTIONS}
    body = {n: value for n, value in given.items() if n not in _OPTIONS and value is not None}
    body |= body.pop("extra_body", {})
    without = read_table().no_effect
    lost = [LossWarning(f"{n}_dropped", n, without[n]) for n in body if n in without]
    warn_of_losses(lost, stacklevel=4)
    dropped = (*without, *(options["additional_drop_params"] or ()))
    return options, {name: value for name, value in body.items() if name not in dropped}


# --- opening a model ---------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _keep_registry(path: Path | None, *settings: tuple[str, Any]) -> Opened[Any, Any]:
    """Return the registry of models.yaml, or one with one adapter, for each event loop."""

    def open_registry() -> Registry:
        if path is not None:
            return load_registry(path)
        adapter = dict(settings)
        if "auth" in adapter:
            adapter["auth"] = AuthSettings(**dict(adapter["auth"]))
        return Registry([Adapter(max_retries=0, **adapter)])

    return Opened(open_registry, SyncProvider)


def load_registry(path: Path | None = None) -> Registry:
    """Return the registry of models.yaml."""
    path = path or config_path()
    return Registry.load(path if path.exists() else None)


def locate(model: Any, provider: str | None = None) -> Named:
    """Return where a model is. A name without a known prefix may be one of models.yaml."""
    found = find_name(model, provider) if isinstance(model, str) else None
    if found is not None:
        return found
    try:
        return Named("", Route(), load_registry().find(str(model)).id)
    except InvalidModelError as error:
        known = ", ".join(sorted(read_table().routes))
        raise BadRequestError(
            f"no provider is known for {model!r}; write provider/model, with one of {known}"
        ) from error


async def _open(named: Named, options: Mapping[str, Any], operation: str = "open") -> Any:
    """Open a model for chat or embedding.

    A key in the environment is sent to the vendor's address or to one in the environment, but not
    to an address that the call gives: such a call needs ``api_key`` too.
    """
    retries = options["num_retries"] if options["max_retries"] is None else options["max_retries"]
    timeout = options["timeout"] or options["request_timeout"]
    given = {"api_key": options["api_key"], "timeouts": timeout, "retries": retries}
    given |= {"headers": options["extra_headers"]}
    settings = {name: value for name, value in given.items() if value is not None}
    provider, route, name = named.provider, named.route, named.model
    variables = [f"{provider}{end}".upper() for end in ("_API_BASE", "_BASE_URL")]
    base_url = options["api_base"] or options["base_url"]
    elsewhere = next(filter(None, map(os.environ.get, variables)), None)
    adapter = route.find_adapter({**options, "api_base": base_url or elsewhere})
    if adapter and provider:
        if elsewhere and not base_url and "api_key" not in settings:
            adapter["api_key_env"] = route.key_variable
        if "auth" in adapter:
            adapter["auth"] = tuple(adapter["auth"].items())
        adapter |= {"name": provider, "type": route.vendor or "openai"}
        kept, name = _keep_registry(None, *adapter.items()), f"{provider}:{name}"
    elif provider and not route.vendor:
        raise BadRequestError(f"{provider} needs api_base", provider, name)
    else:
        kept, name = _keep_registry(config_path()), f"{route.vendor}:{name}" if provider else name
    return getattr(await kept.get(), operation)(name, **settings)


def _open_mock(named: Named, mock: Any) -> Provider:
    """Return a model that answers with a given text."""
    if isinstance(mock, Exception):
        raise mock
    kind = getattr(exceptions, str(mock).removeprefix("litellm."), None)
    if isinstance(kind, type) and issubclass(kind, OpenAIError):
        raise kind("this is a mock error", named.provider, named.model)
    model = ScriptedProvider(str(mock), name=named.provider, model=named.model)
    model.priced_as = PricedAs(f"{named.route.vendor or named.provider}:{named.model}")
    return model


# --- a chat call -------------------------------------------------------------------------------


def _read_body(model: str, messages: Any, body: dict[str, Any]) -> Asked:
    """Read the parameters of a call as a request of the openai wire."""
    plain = [dict(each if isinstance(each, dict) else each.model_dump()) for each in messages]
    for each in plain:
        if each.get("role") == "tool":
            each.pop("name", None)  # the id of the call names the tool
    body = {**body, "model": model, "messages": plain}
    form, thinking = body.get("response_format"), body.get("thinking")
    if isinstance(form, type):
        schema = {"name": form.__name__, "schema": response_schema_of(form)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if budget is None:
        return read(_FRONT, body, _FRONT.paths[0])
    del body["thinking"]
    asked = read(_FRONT, body, _FRONT.paths[0])
    config = replace(asked.request.config, reasoning=budget)
    return replace(asked, request=replace(asked.request, config=config))


def _translate(provider: Provider, asked: Asked, *, drops: bool) -> Translated:
    """Translate a request for a model; unless ``drops``, refuse a parameter that would be lost."""
    resolved = ResolvedModel(asked.request.model, provider, describe_upstream(provider))
    made = translate_for(resolved, asked, _FRONT, True, drops)
    stops = [LossWarning("stop_dropped", "stop", "the model's wire has no stop sequences")]
    losses = (*made.warnings, *(stops if made.stops else ()))
    for loss in losses:
        if not drops and loss.code.endswith("_dropped") and loss.path in asked.client:
            advice = "drop_params=True leaves it out"
            raise UnsupportedFeatureError(f"{loss.path}: {loss.detail}; {advice}")
    provider.check(made.request)
    return Translated(made.request, losses)


class CustomStreamWrapper:
    """A streamed reply: its chunks, for ``for`` or, from ``acompletion``, for ``async for``."""

    def __init__(
        self, provider: Provider, named: Named, asked: Asked, translated: Translated
    ) -> None:
        request, reply = translated.request, provider.open(translated.request)
        self._stream: EventStream[Any] = EventStream(reply, request, None, provider.find_sold)
        self._encoder = _FRONT.encoder(asked, created=int(time.time()))
        self._named = named
        self._warnings = translated.warnings
        self._chunks = self._read_chunks()
        self._first: list[ModelResponseStream] = []

    async def _frames(self) -> AsyncGenerator[bytes]:
        """Yield the bytes of the reply on the openai wire."""
        with converted_errors(self._named.provider, self._named.model):
            async with aclosing(self._stream):
                try:
                    async for event in self._stream:
                        yield self._encoder.feed(event)
                    last = self._encoder.end()
                except ProviderError as error:
                    # A tool call that violates its schema is returned as the model wrote it.
                    last = self._encoder.fail(error)
                    if self._encoder.unsound is None:
                        raise
                yield last

    async def _read_chunks(self) -> AsyncGenerator[ModelResponseStream]:
        async with aclosing(self._frames()) as frames:
            async for data in frames:
                for frame in data.split(b"\n\n"):
                    text = frame.removeprefix(b"data: ")
                    if text and text != b"[DONE]":
                        yield self._note(ModelResponseStream(msgspec.json.decode(text)))

    async def begin(self) -> Self:
        """Wait for the first chunk, so that a refused call fails where it is made."""
        self._first = [await anext(self._chunks)]
        return self

    async def reply(self) -> Any:
        """Return the complete reply of a call that does not stream."""
        body = b"".join([data async for data in self._frames()])
        return self._note(ModelResponse(msgspec.json.decode(body)))

    def _note(self, made: Any) -> Any:
        """Add the facts about the call that are not part of the reply, once it has ended."""
        if self._stream.ended:
            response = self._stream.response
            warn_of_losses(response.warnings, stacklevel=3)
            losses = [str(loss) for loss in (*self._warnings, *response.warnings)]
            provider = self._named.provider
            made.note(cost(response).total, custom_llm_provider=provider, warnings=losses)
        return made

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelResponseStream:
        return self._first.pop() if self._first else await anext(self._chunks)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ModelResponseStream:
        try:
            return run(self.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    async def aclose(self) -> None:
        """Close the connection before the stream has ended."""
        await self._chunks.aclose()


async def _call(model: str, messages: Any, options: Mapping[str, Any], body: Any) -> Any:
    named, mock = locate(model, options["custom_llm_provider"]), options["mock_response"]
    if isinstance(mock, ModelResponse):
        return mock
    with converted_errors(named.provider, named.model):
        asked = _read_body(named.model, messages, body)
        provider = await _open(named, options) if mock is None else _open_mock(named, mock)
        translated = _translate(provider, asked, drops=options["drop_params"] or False)
    warn_of_losses(translated.warnings, stacklevel=3)
    call = CustomStreamWrapper(provider, named, asked, translated)
    return await (call.begin() if asked.request.stream else call.reply())


async def complete(model: str, messages: Any, given: Mapping[str, Any]) -> Any:
    """Call a chat model, then each of its ``fallbacks`` until one answers."""
    options, body = _split(given)
    for other in options["fallbacks"] or ():
        try:
            return await _call(model, messages, options, body)
        except OpenAIError:
            changed = {"model": other} if isinstance(other, str) else dict(other)
            model = changed.pop("model", model)
            options, body = _split({**given, **changed})
    return await _call(model, messages, options, body)


async def embed(
    model: str, texts: str | Sequence[str], given: Mapping[str, Any]
) -> EmbeddingResponse:
    """Return the vectors of one or more texts."""
    options, body = _split(given)
    named, server = locate(model, options["custom_llm_provider"]), EmbedServer()
    with converted_errors(named.provider, named.model):
        asked = server.decode({**body, "model": named.model, "input": texts})
        embedder: Embedder = await _open(named, options, "open_embedder")
        answer = await embedder.send(replace(asked.request, model=embedder.model))
    warn_of_losses(asked.warnings, stacklevel=3)
    made = EmbeddingResponse(msgspec.json.decode(server.encode(answer, asked, named.model).body))
    made.note(cost(answer).total, custom_llm_provider=named.provider)
    return made
