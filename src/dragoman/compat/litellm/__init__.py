"""The functions of LiteLLM, with Dragoman's models behind them.

Box: extras.

::

    from dragoman.compat import litellm

    reply = litellm.completion("anthropic/claude-sonnet-4-6", [{"role": "user", "content": "Hi"}])
    print(reply.choices[0].message.content, litellm.completion_cost(reply))

Model names, parameters, replies and exceptions have LiteLLM's form. A parameter that the model
does not support raises ``UnsupportedParamsError``; with ``drop_params`` it is left out, and a
``DragomanLossWarning`` reports it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any

from ...blocking import run
from ...events import Usage as Counts
from ...registry import Registry, load_vendor, read_sources
from ...registry.vendors import FACTS
from ...tokens import estimate_input_tokens, estimate_text
from ...validate import parse_messages, parse_tools
from . import exceptions, records
from .calls import CustomStreamWrapper, embed, locate
from .facts import (
    ModelCost,
    decode,
    encode,
    get_llm_provider,
    list_parameters,
    validate_environment,
)
from .other_calls import (
    RerankResponse,
    ResponsesAPIResponse,
    TextCompletionResponse,
    complete_all,
    complete_text,
    rank,
    respond,
)
from .records import EmbeddingResponse, ModelResponse, stream_chunk_builder
from .reports import Callback, check_callbacks, complete_observed
from .router import Router

__all__ = [
    "CustomStreamWrapper", "EmbeddingResponse", "ModelResponse", "RerankResponse",
    "ResponsesAPIResponse", "Router", "TextCompletionResponse", "abatch_completion", "acompletion",
    "aembedding", "arerank", "aresponses", "atext_completion", "batch_completion", "completion",
    "completion_cost", "cost_per_token", "decode", "embedding", "encode", "exceptions",
    "get_llm_provider", "get_max_tokens", "get_model_info", "get_supported_openai_params",
    "model_cost", "rerank", "responses", "stream_chunk_builder", "text_completion",
    "token_counter", "validate_environment",
]  # fmt: skip

drop_params: bool = False
num_retries: int | None = None
request_timeout: float | None = None
api_key: str | None = None
success_callback: list[Callback] = []
failure_callback: list[Callback] = []
set_verbose = suppress_debug_info = telemetry = False  # accepted, without an effect


def __getattr__(name: str) -> Any:
    # the exceptions, the parts of replies, and functions such as supports_vision
    for module in (exceptions, records):
        if not name.startswith("_") and hasattr(module, name):
            return getattr(module, name)
    facts = [names[0] for names in read_sources()["by_key"].facts.values()]
    if name.startswith("supports_") and name in facts:
        return partial(_supports, name)
    raise AttributeError(
        f"{__name__} has no {name!r}; see the page Moving to Dragoman of the documentation"
    )


class _Settings(ModuleType):
    """Refuse to set a name that no function reads, such as ``callbacks``."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("success_callback", "failure_callback"):
            check_callbacks(f"{__name__}.{name}", value)
        if name not in vars(self) and not isinstance(value, ModuleType):
            raise AttributeError(f"{__name__}.{name}: setting it has no effect here; leave it out")
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Settings


def _with_defaults(given: dict[str, Any]) -> dict[str, Any]:
    known = {"drop_params": drop_params, "num_retries": num_retries, "api_key": api_key}
    return {**known, "timeout": request_timeout, **given}


async def acompletion(model: str, messages: Sequence[Any] = (), **given: Any) -> Any:
    """Call a chat model; return a ``ModelResponse``, or with ``stream=True`` its chunks."""
    return await complete_observed(
        model, messages, _with_defaults(given), success_callback, failure_callback
    )


def completion(model: str, messages: Sequence[Any] = (), **given: Any) -> Any:
    """Call a chat model and wait for the result of ``acompletion``."""
    return run(acompletion(model, messages, **given))


async def abatch_completion(model: str, messages: Sequence[Any] = (), **given: Any) -> list[Any]:
    """Return the reply to each conversation, or the exception of its call in its place."""
    return await complete_all(model, messages, _with_defaults(given))


def batch_completion(model: str, messages: Sequence[Any] = (), **given: Any) -> list[Any]:
    """Return the reply to each conversation, and wait for all of them."""
    return run(abatch_completion(model, messages, **given))


async def atext_completion(model: str, prompt: str | Sequence[str], **given: Any) -> Any:
    """Send each prompt as the message of a user; return their texts, or with ``stream`` parts."""
    return await complete_text(model, prompt, _with_defaults(given))


def text_completion(model: str, prompt: str | Sequence[str], **given: Any) -> Any:
    """Send each prompt as the message of a user, and wait for the texts of the replies."""
    return run(atext_completion(model, prompt, **given))


async def aresponses(input: Any, model: str, **given: Any) -> Any:  # noqa: A002
    """Call a model in the form of the Responses API."""
    return await respond(model, input, _with_defaults(given))


def responses(input: Any, model: str, **given: Any) -> Any:  # noqa: A002
    """Call a model in the form of the Responses API, and wait for its response."""
    return run(aresponses(input, model, **given))


async def arerank(
    model: str, query: str, documents: Sequence[Any], **given: Any
) -> RerankResponse:
    """Return documents in the order of their relevance to a query."""
    return await rank(model, query, documents, _with_defaults(given))


def rerank(model: str, query: str, documents: Sequence[Any], **given: Any) -> RerankResponse:
    """Return documents in the order of their relevance to a query, and wait for it."""
    return run(arerank(model, query, documents, **given))


async def aembedding(model: str, input: Any = (), **given: Any) -> EmbeddingResponse:  # noqa: A002
    """Return the vectors of one or more texts."""
    return await embed(model, input, _with_defaults(given))


def embedding(model: str, input: Any = (), **given: Any) -> EmbeddingResponse:  # noqa: A002
    """Return the vectors of one or more texts, and wait for them."""
    return run(embed(model, input, _with_defaults(given)))


# --- facts about models ------------------------------------------------------------------------


def _find(model: str, provider: str | None = None) -> tuple[str, Any]:
    """Return a model's provider and its entry in the catalogue or in models.yaml."""
    named = locate(model, provider)
    vendor = named.route.vendor
    name = named.model
    if not named.provider:
        return "", Registry.load().find(name)
    if not vendor or not load_vendor(vendor).lists(name):
        raise exceptions.KINDS["NotFoundError"](
            f"nothing is known of {model!r}", named.provider, name
        )
    return named.provider, Registry.load().find(f"{vendor}:{name}")


def get_model_info(model: str, custom_llm_provider: str | None = None) -> dict[str, Any]:
    """Return what is known of a model; an unknown fact is ``None``."""
    provider, entry = _find(model, custom_llm_provider)
    facts = read_sources()["by_key"].facts
    known = {names[0]: entry.capabilities.known(FACTS[fact]) for fact, names in facts.items()}
    # a thousand tokens, since a million would be priced as a long prompt
    rates = [None if rate is None else rate / 1000 for rate in cost_per_token(model, 1000, 1000)]
    return {
        "key": entry.wire_name,
        "litellm_provider": provider,
        "mode": "embedding" if entry.capabilities.known("supports_embeddings") else "chat",
        **known,
        "max_tokens": known["max_output_tokens"],
        "input_cost_per_token": rates[0],
        "output_cost_per_token": rates[1],
    }


model_cost = ModelCost(get_model_info)


def get_supported_openai_params(model: str, custom_llm_provider: str | None = None) -> list[str]:
    """Return the parameters that a call of a model may have, without being refused or dropped."""
    return run(list_parameters(model, custom_llm_provider))


def get_max_tokens(model: str) -> int | None:
    """Return the largest number of tokens that a model can write."""
    found: int | None = get_model_info(model)["max_tokens"]
    return found


def _supports(fact: str, model: str, custom_llm_provider: str | None = None) -> bool:
    try:
        return bool(get_model_info(model, custom_llm_provider)[fact])
    except exceptions.OpenAIError:
        return False


def token_counter(
    model: str = "", text: str | None = None, messages: Any = None, tools: Any = None
) -> int:
    """Estimate the tokens of a text or of messages."""
    try:
        family = _find(model)[1].tokens
    except exceptions.OpenAIError:
        family = "default"
    if text is not None:
        return estimate_text(text, family).tokens
    return estimate_input_tokens(parse_messages(messages), parse_tools(tools), family=family)


def cost_per_token(
    model: str, prompt_tokens: int = 0, completion_tokens: int = 0
) -> tuple[float | None, float | None]:
    """Return the cost in dollars of a prompt and of a reply; ``None`` if it is not known."""
    price = _find(model)[1].priced_as
    counts = (Counts(prompt_tokens, 0), Counts(0, completion_tokens))
    first, second = [price.cost(each).total for each in counts]
    return None if first is None else float(first), None if second is None else float(second)


def completion_cost(
    completion_response: Any = None, model: str = "", prompt: str = "", completion: str = ""
) -> float:
    """Return the cost of a call in dollars; raise ``NotFoundError`` if it is not known."""
    known = getattr(completion_response, "_hidden_params", {}).get("response_cost")
    if known is not None:
        return float(known)
    if completion_response is None:
        counts = token_counter(model, prompt), token_counter(model, completion)
    else:
        usage = completion_response.usage
        model = model or completion_response.model
        counts = usage.prompt_tokens, usage.completion_tokens
    costs = [each for each in cost_per_token(model, *counts) if each is not None]
    if len(costs) < len(counts):
        raise exceptions.KINDS["NotFoundError"](f"the price of {model} is not known", model=model)
    return sum(costs)
