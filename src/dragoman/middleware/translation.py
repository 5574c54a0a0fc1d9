"""Translate the request of a wire's client for a provider, whatever its layers and their wires.

The gateway does it for clients over HTTP, and ``integrations`` for frameworks that speak a wire.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ..errors import UnsupportedFeatureError
from ..messages import Effort, LossWarning, Request
from ..provider import HttpProvider, Provider
from ..validate import check_request
from ..wire import Asked, ServerCodec
from ..wire.policy import Target, Translated, refuse_losses, translate
from ..wire.policy.translate import describe_wire
from .fallback import Fallback
from .layer import walk


class Upstream(Struct, frozen=True):
    """The properties of a provider that translating a request depends on.

    They do not change while the provider is open, so they are found only once.
    """

    wires: frozenset[str]
    """The wires that the provider may use; empty if unknown."""
    refuses_losses: bool
    """Whether the provider, or one that it wraps, is configured with ``on_loss: reject``."""
    is_group: bool = False
    """Whether a call may be answered by one of several models."""
    needs_max_tokens: bool = False
    """Whether a wire of the provider requires a limit of the reply that its quirks do not set."""
    separates_tools: bool = False
    """Whether a model of the provider rejects functions next to tools that its server runs."""


def describe_upstream(provider: Provider) -> Upstream:
    """Return the properties of a provider that translating a request depends on."""
    ends = [part for part in walk(provider) if isinstance(part, HttpProvider)]
    return Upstream(
        frozenset([end.codec.wire for end in ends]),
        any(end.on_loss == "reject" for end in ends),
        any(isinstance(part, Fallback) for part in walk(provider)),
        any(_needs_limit(end) for end in ends),
        any(getattr(end.codec, "separates_tools", False) for end in ends),
    )


def _needs_limit(end: HttpProvider) -> bool:
    """Return whether a wire requires a limit of the reply and the codec knows none to send."""
    quirks = getattr(end.codec, "quirks", None)
    limit = getattr(quirks, "max_tokens", None)
    return describe_wire(end.codec.wire).needs_max_tokens and limit is None


class ResolvedModel(Struct, frozen=True):
    """A model for a client: the name by which it is called, its provider and the properties."""

    name: str
    provider: Provider
    upstream: Upstream


def translate_for(
    resolved: ResolvedModel,
    asked: Asked,
    front: ServerCodec,
    is_native: bool,
    drops: bool,
) -> Translated:
    """Check a request, then translate it to the model's wire and the provider's name for it.

    ``drops`` is whether fields such as ``logprobs`` are dropped instead of rejecting the request.
    """
    check_request(asked.request, history=False)
    provider = resolved.provider
    upstream = resolved.upstream
    needs_limit = upstream.needs_max_tokens and (
        provider.capabilities.known("max_output_tokens") is None
    )
    target = Target(resolved.name, upstream.wires, needs_limit, upstream.separates_tools)
    made = translate(asked, front, target, is_native=is_native, drops=drops)
    request, approximated = _fit_reasoning(provider, replace(made.request, model=provider.model))
    return Translated(request, made.warnings + approximated, made.stops)


def check_translated(
    resolved: ResolvedModel, translated: Translated, refuses_losses: bool
) -> None:
    """Raise ``UnsupportedFeatureError`` if the model cannot take a request.

    It cannot if a part would be lost, and the model's configuration or ``refuses_losses`` forbids
    this.
    """
    provider = resolved.provider
    request = translated.request
    if resolved.upstream.refuses_losses or refuses_losses:
        ends = [part for part in walk(provider) if isinstance(part, HttpProvider)]
        lost = [loss for part in ends for loss in part.codec.encode(request).warnings]
        refuse_losses((*translated.warnings, *lost), resolved.name)
    provider.check(request)


_EFFORTS: tuple[Effort, ...] = ("low", "medium", "high")
_BUDGETS = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16384,
    "xhigh": 32768,
    "max": 65536,
}


def _fit_reasoning(
    provider: Provider, request: Request
) -> tuple[Request, tuple[LossWarning, ...]]:
    """Return the request with a reasoning setting that the model's wire supports, and a warning.

    For models in the catalogue, the codec converts the setting. For other models, an effort is
    replaced by the nearest budget if the wire has only budgets, and a budget by the nearest effort
    if it has only efforts.
    """
    asked = request.config.reasoning
    if asked is None or _takes_reasoning(provider, request):
        return request, ()
    other: Effort | int | None = None
    if isinstance(asked, int):
        nearest = min([abs(_BUDGETS[effort] - asked) for effort in _EFFORTS])
        other = next(effort for effort in _EFFORTS if abs(_BUDGETS[effort] - asked) == nearest)
    else:
        other = _BUDGETS.get(asked)
    config = request.config
    if isinstance(other, int) and config.max_tokens is not None and config.max_tokens <= other:
        # the wire's token limit includes thinking tokens, so add the budget to the limit
        config = replace(config, max_tokens=config.max_tokens + other)
    fitted = replace(request, config=replace(config, reasoning=other))
    if other is not None and _takes_reasoning(provider, fitted):
        return fitted, (
            LossWarning("reasoning_approximated", "reasoning", f"{other} stands for {asked}"),
        )
    plain = replace(request, config=replace(request.config, reasoning=None))
    why = "the model thinks as much as it does by default"
    return plain, (LossWarning("reasoning_dropped", "reasoning", why),)


def _takes_reasoning(provider: Provider, request: Request) -> bool:
    for part in walk(provider):
        if isinstance(part, HttpProvider):
            try:
                part.codec.encode(request)
            except UnsupportedFeatureError as error:
                if "config.reasoning" in error.message:
                    return False
    return True
