"""The stages that find the model of a request and translate the request for it."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ..errors import UnsupportedFeatureError
from ..messages import Effort, LossWarning, Request
from ..middleware.layer import walk
from ..provider import HttpProvider, Provider
from ..validate import check_request
from ..wire import Asked, ServerCodec
from ..wire.policy import Target, Translated, refuse_losses, translate
from .access import Caller
from .models import Models, Upstream


class ResolvedModel(Struct, frozen=True):
    """A model that the caller may use: its name, its provider and the provider's properties."""

    name: str
    provider: Provider
    upstream: Upstream


def resolve_model(models: Models, caller: Caller, name: str) -> ResolvedModel:
    """Return the model of this name; raise ``InvalidModelError`` if the caller may not use it."""
    caller.check_model(name)
    served = models.resolve(name)
    return ResolvedModel(served, models.find(served), models.find_upstream(served))


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


def check_translated(resolved: ResolvedModel, translated: Translated, caller: Caller) -> None:
    """Raise ``UnsupportedFeatureError`` if the model cannot take a request.

    It cannot if a part would be lost, and the model's configuration or the key forbids losses.
    """
    provider = resolved.provider
    request = translated.request
    key = caller.key
    if resolved.upstream.refuses_losses or (key is not None and key.on_loss == "reject"):
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
