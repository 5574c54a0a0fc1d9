"""Adapt a request to the model's known limits before encoding; report each change as a loss."""

from __future__ import annotations

from msgspec.structs import replace

from ..capabilities import Capabilities
from ..messages import LossWarning, Request

NO_LOSS: tuple[LossWarning, ...] = ()


def fit_request(request: Request, known: Capabilities) -> tuple[Request, tuple[LossWarning, ...]]:
    """Return a request that the model accepts, and warnings about what was lost.

    ``max_tokens`` is lowered to the model's limit. Cache markers are removed if the model has no
    prompt cache. If the server cannot stream tool calls, a streamed request with tools is sent as
    a complete request: its events then arrive all at once, and nothing is lost.
    """
    losses: list[LossWarning] = []
    config = request.config
    limit = known.known("max_output_tokens")
    if limit is not None and config.max_tokens is not None and config.max_tokens > limit:
        detail = f"{config.max_tokens} is more than the model's {limit}; sent as {limit}"
        losses.append(LossWarning("max_tokens_clamped", "config.max_tokens", detail))
        config = replace(config, max_tokens=limit)
    if (
        known.known("supports_prompt_caching") is False
        and config.cache != "off"
        and _uses_cache(request)
    ):
        losses.append(
            LossWarning(
                "cache_dropped", "config.cache", "the model is known to have no prompt cache"
            )
        )
        config = replace(config, cache="off")
    if config is not request.config:
        request = replace(request, config=config)
    if request.stream and request.tools and known.known("supports_streaming_tool_calls") is False:
        request = replace(request, stream=False)
    return request, tuple(losses)


def _uses_cache(request: Request) -> bool:
    """Return whether the settings, a message or a tool of a request asks for prompt caching."""
    if request.config.cache is not None:
        return True
    marked = [*request.messages, *request.tools]
    for message in request.messages:
        if not isinstance(message.content, str):
            marked += message.content  # type: ignore[arg-type]
    return any(getattr(each, "cache", False) for each in marked)
