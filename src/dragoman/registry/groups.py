"""Groups in ``models.yaml``: several models under one name, and the strategy to pick one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from ..middleware import StrategyName
from ..middleware.strategy import HALF_LIFE, MIN_SAMPLE
from ..validate.yaml import Section
from .limits import RateLimits, Retries, read_rate_limit, read_timeouts


class Candidate(Struct, frozen=True, kw_only=True):
    """One model of a group, or a group in it, with its own settings.

    A ``weight`` of 0 makes it a spare. ``timeouts`` replace the adapter's timeouts.
    """

    model: str
    weight: Annotated[float, Meta(ge=0, le=1e6, description="a number from 0 to 1,000,000")] = 1.0
    max_retries: Retries = 0
    rate_limit: RateLimits | None = None
    timeouts: dict[str, float | None] | None = None


class Group(Struct, frozen=True, kw_only=True):
    """Several models under one name, with the strategy that picks one of them for each call."""

    name: str
    candidates: tuple[Candidate, ...]
    strategy: StrategyName = "fallback"
    aliases: tuple[str, ...] = ()
    half_life: float = HALF_LIFE
    min_sample: int = MIN_SAMPLE


class _Settings(Struct):
    """The keys of a group in ``models.yaml``."""

    strategy: StrategyName
    candidates: list[Any]
    aliases: tuple[str, ...]
    max_retries: Retries
    half_life_seconds: Annotated[
        float, Meta(ge=0.001, le=1e6, description="a positive number of seconds")
    ]
    min_sample: Annotated[int, Meta(ge=1, le=1000, description="a number from 1 to 1000")]


def read_group(name: str, section: Section, find: Callable[[str], str | None]) -> Group | None:
    """Read a group; return ``None`` if it has no valid candidate.

    ``find`` checks the model name of a candidate, and returns the problem if there is one.
    """
    found = section.values(_Settings)
    retries = found.get("max_retries", 0)
    given = section.items("candidates")
    if not given:
        section.complain("needs a list of models", "candidates")
        return None
    candidates: list[Candidate] = []
    for at, each in enumerate(given):
        place = f"candidates[{at}]"
        candidate = _read_candidate(section, place, each, retries)
        if candidate is None:
            continue
        problem = find(candidate.model)
        if candidate.model in [earlier.model for earlier in candidates]:
            problem = f"{candidate.model} is there twice"
        if problem is not None:
            owner, key = (each, "model") if isinstance(each, Section) else (section, place)
            owner.complain(problem, key)
            continue
        candidates.append(candidate)
    if not candidates:
        return None
    if not any(each.weight for each in candidates):
        section.complain("needs a candidate with a weight above 0, which is that of a spare")
    half_life = float(found.get("half_life_seconds", HALF_LIFE))
    strategy = found.get("strategy", "fallback")
    aliases = found.get("aliases", ())
    min_sample = found.get("min_sample", MIN_SAMPLE)
    return Group(
        name=name,
        candidates=tuple(candidates),
        strategy=strategy,
        aliases=aliases,
        half_life=half_life,
        min_sample=min_sample,
    )


def _read_candidate(section: Section, place: str, given: Any, retries: int) -> Candidate | None:
    if isinstance(given, str):
        return Candidate(model=given, max_retries=retries)
    if not isinstance(given, Section):
        section.complain("must be the name of a model, or a mapping with model", place)
        return None
    inner = section.enter(place, given)
    found = inner.values(Candidate)
    if "model" not in found:
        if "model" not in inner.data:
            inner.complain("needs model")
        return None
    return Candidate(
        model=found["model"],
        weight=float(found.get("weight", 1)),
        max_retries=found.get("max_retries", retries),
        rate_limit=read_rate_limit(inner),
        timeouts=read_timeouts(inner),
    )


def expand_group(
    name: str, groups: Mapping[str, Group], aliases: Mapping[str, str]
) -> list[Candidate]:
    """Return the models that a name may call: itself, or those of a group and its groups."""
    group = groups.get(aliases.get(name, name))
    if group is None:
        return [Candidate(model=name)]
    found: list[Candidate] = []
    for each in group.candidates:
        is_group = aliases.get(each.model, each.model) in groups
        found.extend(expand_group(each.model, groups, aliases) if is_group else [each])
    return found


def check_nesting(groups: Collection[tuple[Group, Section]]) -> None:
    """Report each group that contains itself, and timeouts of a group, which only models have."""
    by_name = {name: group for group, _ in groups for name in (group.name, *group.aliases)}

    def find_cycle(group: Group, path: tuple[str, ...]) -> tuple[str, ...] | None:
        if group.name in path:
            return (*path, group.name)
        inner = [by_name[each.model] for each in group.candidates if each.model in by_name]
        found = [find_cycle(each, (*path, group.name)) for each in inner]
        return next(filter(None, found), None)

    for group, section in groups:
        cycle = find_cycle(group, ())
        if cycle is not None:
            section.complain(f"contains itself: {' -> '.join(cycle)}", "candidates")
        for each in group.candidates:
            if each.model in by_name and each.timeouts is not None:
                section.complain(f"{each.model} is a group: set timeouts for its models")


def check_names(groups: Collection[tuple[Group, Section]], taken: dict[str, str]) -> None:
    """Report each group name and each alias that is already in use.

    ``taken`` maps the names in use to a description of what uses them.
    """
    for group, section in groups:
        if group.name in taken:
            section.complain(f"the name belongs to {taken[group.name]} already")
        taken[group.name] = f"the group {group.name}"
    for group, section in groups:
        for alias in group.aliases:
            if alias in taken:
                section.complain(
                    f"the alias {alias!r} belongs to {taken[alias]} already", "aliases"
                )
            taken[alias] = f"the group {group.name}"
