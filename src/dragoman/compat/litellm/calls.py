"""Call a model with LiteLLM's parameters: read them as a request of the openai wire, and send it.

The request is translated as in the gateway, and the server side of the openai wire writes the
reply.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from ...blocking import SyncProvider
from ...errors import InvalidModelError, UnsupportedFeatureError
from ...integrations.loops import Opened
from ...integrations.losses import warn_of_losses
from ...integrations.served import ServedCall, StartedStream
from ...messages import LossWarning
from ...prices import PricedAs, cost
from ...provider import Provider
from ...registry import Adapter, Registry, config_path
from ...registry.credentials import AuthSettings
from ...retrieval import Embedder
from ...retrieval.wire.server import EmbedServer
from ...sim import ScriptedProvider
from ...validate.structured import response_schema_of
from .exceptions import KINDS, OpenAIError, converted_errors
from .names import Named, Route, find_name, read_table
from .records import EmbeddingResponse, ModelReply, ModelResponse, ModelResponseStream

ReplyT = TypeVar("ReplyT", bound=ModelReply)


def split(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a call, and the parameters that its request body contains."""
    known = read_table().options
    without = read_table().no_effect
    options = {name: given.get(name) for name in known}
    body = {n: value for n, value in given.items() if n not in known and value is not None}
    body |= body.pop("extra_body", {})
    lost = [LossWarning(f"{n}_dropped", n, without[n]) for n in body if n in without]
    warn_of_losses(lost, stacklevel=4)
    dropped = (*without, *(options["additional_drop_params"] or ()))
    return options, {name: value for name, value in body.items() if name not in dropped}


# --- opening a model ---------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _keep_registry(source: Path | bytes) -> Opened[Any, Any]:
    """Return the registry of models.yaml, or of an adapter in JSON, for each event loop."""
    if isinstance(source, Path):
        return Opened(Registry.load, SyncProvider)
    settings = msgspec.json.decode(source)
    settings["auth"] = msgspec.convert(settings.get("auth"), AuthSettings | None)
    return Opened(lambda: Registry([Adapter(**settings)]), SyncProvider)


def locate(model: Any, provider: str | None = None) -> Named:
    """Return where a model is; look up a name without a known prefix in models.yaml."""
    found = find_name(model, provider) if isinstance(model, str) else None
    if found is not None:
        return found
    try:
        return Named("", Route(), Registry.load().find(str(model)).id)
    except InvalidModelError as error:
        known = ", ".join(sorted(read_table().routes))
        problem = f"no provider is known for {model!r}; write provider/model, with one of {known}"
        raise KINDS["BadRequestError"](problem) from error


async def open_model(named: Named, options: Mapping[str, Any], operation: str = "open") -> Any:
    """Open a model for chat, embedding or reranking.

    A key in the environment is sent to the vendor's address or to one in the environment, but not
    to an address that the call gives: such a call needs ``api_key`` too.
    """
    retries = options["num_retries"] if options["max_retries"] is None else options["max_retries"]
    timeout = options["timeout"] or options["request_timeout"]
    given = {"api_key": options["api_key"], "timeouts": timeout, "retries": retries}
    given |= {"headers": options["extra_headers"]}
    settings = {name: value for name, value in given.items() if value is not None}
    provider = named.provider
    route = named.route
    name = named.model
    variables = [f"{provider}{end}".upper() for end in ("_API_BASE", "_BASE_URL")]
    base_url = options["api_base"] or options["base_url"]
    elsewhere = next(filter(None, map(os.environ.get, variables)), None)
    adapter = route.find_adapter({**options, "api_base": base_url or elsewhere})
    if adapter and provider:
        if elsewhere and not base_url and "api_key" not in settings:
            adapter["api_key_env"] = route.key_variable
        kind = route.vendor or "openai-compatible"
        adapter |= {"name": provider, "type": kind, "max_retries": 0}
        kept = _keep_registry(msgspec.json.encode(adapter))
        name = f"{provider}:{name}"
    elif provider and not route.vendor:
        raise KINDS["BadRequestError"](f"{provider} needs api_base", provider, name)
    else:
        kept = _keep_registry(config_path())
        if provider:
            name = f"{route.vendor}:{name}"
    return getattr(await kept.get(), operation)(name, **settings)


def _open_mock(named: Named, mock: Any) -> Provider:
    """Return a model that answers with a given text."""
    if isinstance(mock, Exception):
        raise mock
    if kind := KINDS.get(str(mock).removeprefix("litellm.")):
        raise kind("this is a mock error", named.provider, named.model)
    model = ScriptedProvider(str(mock), name=named.provider, model=named.model)
    model.priced_as = PricedAs(f"{named.route.vendor or named.provider}:{named.model}")
    return model


# --- a chat call -------------------------------------------------------------------------------


def make_call(
    provider: Provider, messages: Any, body: dict[str, Any], *, drops: bool
) -> ServedCall:
    """Read the parameters of a call; unless ``drops``, refuse a parameter that would be lost."""
    plain = [dict(each if isinstance(each, dict) else each.model_dump()) for each in messages]
    for each in plain:
        if each.get("role") == "tool":
            each.pop("name", None)  # the id of the call names the tool
    body = {**body, "messages": plain}
    form = body.get("response_format")
    thinking = body.get("thinking")
    if isinstance(form, type):
        schema = {"name": form.__name__, "schema": response_schema_of(form)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if budget is not None:
        del body["thinking"]
    call = ServedCall(provider, "openai", body, drops=drops, budget=budget)
    for loss in call.losses:
        if not drops and loss.code.endswith("_dropped") and loss.path in body:
            advice = "drop_params=True leaves it out"
            raise UnsupportedFeatureError(f"{loss.path}: {loss.detail}; {advice}")
    return call


class CustomStreamWrapper(StartedStream[ModelResponseStream]):
    """The chunks of a reply: use ``for``, or ``async for`` if it comes from ``acompletion``."""


async def _read_chunks(
    call: ServedCall, named: Named, body: Mapping[str, Any]
) -> AsyncGenerator[ModelResponseStream]:
    with converted_errors(named.provider, named.model):
        async with aclosing(call.read_stream()) as chunks:
            async for chunk in chunks:
                yield _finish(ModelResponseStream(chunk), call, named, body)


def _finish(made: ReplyT, call: ServedCall, named: Named, body: Mapping[str, Any]) -> ReplyT:
    """Add the facts about a call that are not part of the reply, once it has ended.

    A call of one of ``functions``, the older form of tools, is in ``function_call`` alone; the
    field has place for one.
    """
    if body.get("functions"):
        for choice in made.choices:
            part = choice["delta" if "delta" in choice else "message"]
            first, *others = part.tool_calls or [None]
            if first is not None and first.get("index", 0) == 0:
                part.function_call = first.function
                part.tool_calls = others or None
    if call.complete is not None:
        losses = [str(loss) for loss in (*call.losses, *call.complete.warnings)]
        facts = {"custom_llm_provider": named.provider, "litellm_model_name": named.model}
        made.note(call.cost, **facts, warnings=losses)
    return made


async def _call(model: str, messages: Any, options: Mapping[str, Any], body: Any) -> Any:
    named = locate(model, options["custom_llm_provider"])
    mock = options["mock_response"]
    if isinstance(mock, ModelResponse):
        return mock
    with converted_errors(named.provider, named.model):
        provider = await open_model(named, options) if mock is None else _open_mock(named, mock)
    return await send(provider, named, messages, options, body)


async def send(
    provider: Provider, named: Named, messages: Any, options: Mapping[str, Any], body: Any
) -> Any:
    """Call an open model; return its reply, or the chunks of a stream."""
    with converted_errors(named.provider, named.model):
        call = make_call(provider, messages, body, drops=bool(options["drop_params"]))
        if not body.get("stream"):
            return _finish(ModelResponse(await call.read()), call, named, body)
    return await CustomStreamWrapper(_read_chunks(call, named, body)).start()


async def complete(model: str, messages: Any, given: Mapping[str, Any]) -> Any:
    """Call a chat model, then each of its ``fallbacks`` until one answers."""
    options, body = split(given)
    for other in options["fallbacks"] or ():
        try:
            return await _call(model, messages, options, body)
        except OpenAIError:
            changed = {"model": other} if isinstance(other, str) else dict(other)
            model = changed.pop("model", model)
            options, body = split({**given, **changed})
    return await _call(model, messages, options, body)


async def embed(
    model: str, texts: str | Sequence[str], given: Mapping[str, Any]
) -> EmbeddingResponse:
    """Return the vectors of one or more texts."""
    options, body = split(given)
    named = locate(model, options["custom_llm_provider"])
    server = EmbedServer()
    with converted_errors(named.provider, named.model):
        asked = server.decode({**body, "model": named.model, "input": texts})
        embedder: Embedder = await open_model(named, options, "open_embedder")
        answer = await embedder.send(replace(asked.request, model=embedder.model))
    warn_of_losses(asked.warnings, stacklevel=3)
    made = EmbeddingResponse(msgspec.json.decode(server.encode(answer, asked, named.model).body))
    made.note(cost(answer).total, custom_llm_provider=named.provider)
    return made
