"""Capabilities: what a model is known to support, and how that is known.

Each capability is a ``Fact``: a value with its source. The user *declared* it, it is in the
bundled *catalogue*, a conformance run *probed* it, a real reply *observed* it, or it is *unknown*.
Only a capability that is known to be missing blocks a call; an unknown one never does. A declared
value takes precedence.

Two facts are about a model's life: ``end_date`` is the day on which its vendor switches it off,
and ``successor`` is the model that the vendor recommends instead. They block nothing, because the
server knows better; ``describe_end`` makes a warning of them.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

__all__ = [
    "NOTICE_DAYS", "UNKNOWN", "Capabilities", "Fact", "Refusal", "Source", "describe_end",
    "join_candidates",
]  # fmt: skip

Source: TypeAlias = Literal["declared", "catalogue", "probed", "observed", "unknown"]

Refusal: TypeAlias = Literal[
    "not_configured",
    "provider_unavailable",
    "no_vision_support",
    "exceeds_context_window",
    "no_tool_support",
    "no_system_prompt_support",
    "no_structured_output_support",
]
"""Reasons why a model cannot serve a request, in the order in which they are checked."""

_STRENGTH: dict[str, int] = {
    "declared": 4,
    "probed": 3,
    "observed": 2,
    "catalogue": 1,
    "unknown": 0,
}


class Fact(Struct, frozen=True, omit_defaults=True):
    """The value of one capability, and its source.

    ``at`` is when the value was determined; ``by`` names the file, list or tool that the value
    comes from.
    """

    value: bool | int | str | tuple[str, ...] | None = None
    source: Source = "unknown"
    at: str | None = None
    by: str | None = None


UNKNOWN = Fact()

NOTICE_DAYS = 60
"""How many days before its end a model is reported as ending."""


class Capabilities(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The capabilities of a model, under the names of the adapter contract; each is a ``Fact``.

    Three of them apply to embedding and reranking models: ``supports_dimensions`` is whether
    vectors can be shortened, ``max_dimensions`` is the full length of a vector, and
    ``max_batch_size`` is the number of texts or documents that one request may contain.
    """

    supports_images: Fact = UNKNOWN
    supports_documents: Fact = UNKNOWN
    supports_thinking: Fact = UNKNOWN
    supports_tools: Fact = UNKNOWN
    supports_system_prompt: Fact = UNKNOWN
    supports_structured_output: Fact = UNKNOWN
    supports_streaming: Fact = UNKNOWN
    supports_streaming_tool_calls: Fact = UNKNOWN
    supports_parallel_tool_calls: Fact = UNKNOWN
    supports_prompt_caching: Fact = UNKNOWN
    max_context_tokens: Fact = UNKNOWN
    max_output_tokens: Fact = UNKNOWN
    accepted_image_media_types: Fact = UNKNOWN
    supports_embeddings: Fact = UNKNOWN
    supports_reranking: Fact = UNKNOWN
    supports_dimensions: Fact = UNKNOWN
    max_dimensions: Fact = UNKNOWN
    max_batch_size: Fact = UNKNOWN
    end_date: Fact = UNKNOWN
    successor: Fact = UNKNOWN

    @classmethod
    def of(
        cls,
        values: Mapping[str, Any],
        source: Source = "declared",
        *,
        at: str | None = None,
        by: str | None = None,
    ) -> Capabilities:
        """Build capabilities from a mapping; raise ``ValueError`` for a wrong name or value."""
        facts: dict[str, Fact] = {}
        for name, value in values.items():
            if name not in cls.__struct_fields__:
                raise ValueError(
                    f"capabilities: unknown name {name!r}; one of "
                    f"{', '.join(cls.__struct_fields__)}"
                )
            if value is not None:
                facts[name] = Fact(_check(name, value), source, at, by)
        return cls(**facts)

    @classmethod
    def read(cls, path: str | Path) -> Capabilities:
        """Read a file that ``dragoman check --save`` wrote.

        Raise ``ValueError`` if the file is invalid.
        """
        try:
            data = msgspec.json.decode(Path(path).read_bytes())
        except OSError as error:
            raise ValueError(
                f"capabilities: {path} cannot be read: {error.strerror or error}"
            ) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"capabilities: {path} is not JSON: {error}") from None
        listed = data.get("capabilities") if isinstance(data, dict) else None
        if not isinstance(listed, dict):
            raise ValueError(f"capabilities: {path} has no mapping named capabilities")
        facts: dict[str, Fact] = {}
        for name, record in listed.items():
            try:
                fact = msgspec.convert(record, Fact)
            except msgspec.ValidationError as error:
                raise ValueError(f"capabilities: {path}: {name}: {error}") from None
            facts[name] = getattr(
                cls.of({name: fact.value}, fact.source, at=fact.at, by=fact.by), name
            )
        return cls(**facts)

    def known(self, name: str) -> Any:
        """Return the value of a capability, or ``None`` if it is unknown."""
        return getattr(self, name).value

    def merged(self, other: Capabilities) -> Capabilities:
        """Merge two sets of capabilities; for each capability, the stronger source wins.

        If both sources are equally strong, the value in ``other`` wins.
        """
        changes = {}
        for name in self.__struct_fields__:
            other_fact = getattr(other, name)
            if (
                other_fact.value is not None
                and _STRENGTH[other_fact.source] >= _STRENGTH[getattr(self, name).source]
            ):
                changes[name] = other_fact
        return replace(self, **changes) if changes else self


def join_candidates(known: Sequence[Capabilities]) -> Capabilities:
    """Return the capabilities of a group, given those of its candidates.

    A group has a feature if one candidate has it, since ``Fallback`` skips candidates without it.
    A limit is the smallest one, since any candidate may answer; it is unknown if one is unknown.
    A group has no end date, since another candidate answers after the end of one.
    """
    facts: dict[str, Fact] = {}
    for name in Capabilities.__struct_fields__:
        values: list[Fact] = [getattr(each, name) for each in known]
        best = next((fact for fact in values if fact.value is True), None)
        if best is not None:
            facts[name] = best
        elif all(isinstance(fact.value, int) for fact in values):
            # Values that are all False are handled here too: bool is a subclass of int.
            facts[name] = min(values, key=lambda fact: fact.value)  # type: ignore[arg-type, return-value]
        elif all(isinstance(fact.value, tuple) for fact in values):
            facts[name] = max(values, key=lambda fact: len(fact.value))  # type: ignore[arg-type]
    return Capabilities(**facts)


def _read_today() -> datetime.date:  # pragma: no cover - tests replace the only clock here
    """Return the current day in UTC."""
    return datetime.datetime.now(datetime.UTC).date()


def describe_end(model: str, known: Capabilities) -> str | None:
    """Return a warning that a model has ended or ends within ``NOTICE_DAYS``, or ``None``."""
    if known.end_date.value is None:
        return None
    end = datetime.date.fromisoformat(str(known.end_date.value))
    days = (end - _read_today()).days
    if days > NOTICE_DAYS:
        return None
    advice = "" if known.successor.value is None else f"; it recommends {known.successor.value}"
    if days <= 0:
        return f"The vendor switched {model} off on {end}{advice}"
    unit = "day" if days == 1 else "days"
    return f"The vendor switches {model} off on {end}, in {days} {unit}{advice}"


def _check(name: str, value: Any) -> bool | int | str | tuple[str, ...]:
    if name == "end_date":
        return _check_day(value)
    if name == "successor":
        if not isinstance(value, str) or not value or not value.isprintable():
            raise ValueError(f"capabilities: {name} must be the name of a model, not {value!r}")
        return value
    if name.startswith("max_"):
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ValueError(
                f"capabilities: {name} must be a positive whole number, not {value!r}"
            )
        return value
    if name == "accepted_image_media_types":
        if not isinstance(value, list | tuple | set | frozenset) or not all(
            isinstance(item, str) for item in value
        ):
            raise ValueError(f"capabilities: {name} must be a list of media types, not {value!r}")
        return tuple(value)
    if not isinstance(value, bool):
        raise ValueError(f"capabilities: {name} must be true or false, not {value!r}")
    return value


def _check_day(value: Any) -> str:
    try:
        return datetime.date.fromisoformat(value).isoformat()
    except (TypeError, ValueError):
        raise ValueError(
            f"capabilities: end_date must be a day such as 2026-12-11, not {value!r}"
        ) from None
