"""The settings of one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import Struct, field
from msgspec.structs import force_setattr

__all__ = ["EFFORTS", "NO_CONFIG", "Effort", "PromptCache", "RuntimeConfig", "freeze"]


def freeze(value: Struct, name: str) -> None:
    """Convert a list in a field to a tuple."""
    if type(items := getattr(value, name)) is list:
        force_setattr(value, name, tuple(items))


Effort = Literal["off", "none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)


class PromptCache(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the provider's prompt cache is used; ``cache="auto"`` is the same as ``PromptCache()``.

    ``auto`` caches a growing conversation; without it, only prefixes marked with ``cache=True``
    are cached. ``ttl`` is how long the provider keeps the cache, ``key`` identifies calls that
    share a prefix, and ``handle`` identifies content that was cached earlier.
    """

    auto: bool = True
    ttl: Literal["5m", "1h", "24h"] | None = None
    key: str | None = None
    handle: str | None = None


class RuntimeConfig(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Settings for one call. ``None`` means not set, and is never sent.

    ``reasoning`` is ``"off"``, ``"minimal"``, ``"low"``, ``"medium"``, ``"high"``, ``"xhigh"``,
    ``"max"`` or a budget in tokens. It is translated for the model, by the nearest amount that the
    model has; an approximate translation is a ``LossWarning``. ``"none"`` is the same as
    ``"off"``. ``extras`` are sent to the provider unchanged; an extra that contradicts a field
    that the codec writes is rejected. ``cache`` is for the provider's prompt cache: ``"auto"``, a
    ``PromptCache``, or ``"off"``, which also ignores ``cache=True`` on messages.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop_sequences: tuple[str, ...] | None = None
    reasoning: Effort | int | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    cache: Literal["auto", "off"] | PromptCache | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            temperature: float | None = None,
            max_tokens: int | None = None,
            top_p: float | None = None,
            seed: int | None = None,
            frequency_penalty: float | None = None,
            presence_penalty: float | None = None,
            stop_sequences: Sequence[str] | None = None,
            reasoning: Effort | int | None = None,
            extras: dict[str, Any] = ...,
            cache: Literal["auto", "off"] | PromptCache | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        freeze(self, "stop_sequences")


NO_CONFIG = RuntimeConfig()
