"""The guards in ``models.yaml``: which judges a call is shown to, by model, key and team."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from msgspec import Struct

from ..errors import ProviderError
from ..middleware import NotConfigured
from ..middleware.guard import Guard, HttpJudge, Judge, Moderations, Presidio, Rules
from ..middleware.layer import walk_served
from ..provider import Model
from ..validate.yaml import ConfigError, Section, plain

_HTTP: dict[str, type[HttpJudge]] = {
    "http": HttpJudge,
    "moderations": Moderations,
    "presidio": Presidio,
}
_NOTHING = NotConfigured("guards", "", "")  # a model around which settings are tried
_SETTINGS = ("on", "window", "on_failure", "deadline", "rewrites", "refusal", "include_content")


class GuardPlan(Struct, frozen=True, kw_only=True, eq=False):
    """A guard of ``models.yaml``, and the calls that it judges.

    ``models``, ``keys`` and ``teams`` are names or patterns. A guard with keys or teams judges the
    requests of these clients of a gateway, any other the calls of all.
    """

    name: str
    judges: tuple[Judge, ...]
    settings: dict[str, Any]
    models: tuple[str, ...] = ("*",)
    keys: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()

    @property
    def is_for_all(self) -> bool:
        """Whether the guard judges the calls of all clients."""
        return not self.keys and not self.teams

    def judges_model(self, *names: str) -> bool:
        """Return whether the guard judges calls of a model, which may have several names."""
        return any(fnmatchcase(name, each) for name in names for each in self.models)

    def judges_client(self, key: str, team: str) -> bool:
        """Return whether the guard judges the requests of a key of a gateway, or of its team."""
        by_key = bool(key) and any(fnmatchcase(key, each) for each in self.keys)
        return by_key or (bool(team) and any(fnmatchcase(team, each) for each in self.teams))


def find_names(model: Model) -> list[str]:
    """Return the names of the models that may serve a call, such as ``openai:gpt-4.1``."""
    return [f"{each.name}:{each.model}" for each in walk_served(model)]


def add_guards(model: Any, plans: Sequence[GuardPlan]) -> Any:
    """Return a model with guards around it, the first one outermost."""
    for plan in reversed(plans):
        model = Guard(model, plan.judges, **plan.settings)
    return model


def find_client_guards(
    plans: Sequence[GuardPlan], model: Model, name: str, key: str, team: str
) -> list[GuardPlan]:
    """Return the guards that judge the requests of a key of a gateway, or of its team, alone."""
    found = [plan for plan in plans if not plan.is_for_all and plan.judges_client(key, team)]
    names = [name, *find_names(model)] if found else []
    return [plan for plan in found if plan.judges_model(*names)]


def read_guards(root: Section) -> tuple[GuardPlan, ...]:
    """Read the ``guards:`` section; a guard with mistakes is left out."""
    found = [_read_guard(name, section) for name, section in root.section("guards").sections()]
    return tuple([plan for plan in found if plan is not None])


def _read_guard(name: str, section: Section) -> GuardPlan | None:
    judges = [judge for judge in _read_judges(section) if judge is not None]
    settings = {each: plain(section.take(each)) for each in _SETTINGS}
    plan = GuardPlan(
        name=name,
        judges=tuple(judges),
        settings={each: value for each, value in settings.items() if value is not None},
        models=section.texts("models") or ("*",),
        keys=section.texts("keys") or (),
        teams=section.texts("teams") or (),
    )
    section.done()
    if not judges:
        section.complain(f"needs a judge: one of {', '.join(['rules', *_HTTP, 'python'])}")
        return None
    try:
        add_guards(_NOTHING, [plan])
    except ValueError as error:
        section.complain(str(error).removeprefix("Guard: "))
        return None
    return plan


def _read_judges(section: Section) -> Iterator[Judge | None]:
    if "rules" in section:
        yield _make(section, "rules", partial(Rules, section.inners("rules", required=True)))
    for kind, judge in _HTTP.items():
        inner = section.inner(kind)
        if inner is not None:
            yield _make(section, kind, partial(_open_http, judge, inner))
    target = section.text("python")
    if target is not None:
        yield _make(section, "python", partial(_import, target))


def _make(section: Section, name: str, make: Callable[[], Judge]) -> Judge | None:
    """Return a judge; if its settings are wrong, report them and return ``None``."""
    try:
        return make()
    except ConfigError as error:
        if section.problems is None:
            raise
        section.problems.append(error)
        return None
    except (ValueError, TypeError, ProviderError, ImportError, AttributeError) as error:
        section.complain(str(error), name)
        return None


def _open_http(kind: type[HttpJudge], section: Section) -> Judge:
    settings = section.plain()
    variable = settings.pop("api_key_env", None)
    if variable is not None:
        settings["api_key"] = os.environ.get(variable)
        if settings["api_key"] is None:
            raise ValueError(f"the variable {variable} is not set")
    elif "api_key" in settings:
        raise ValueError("name the variable with the key: api_key_env")
    return kind(**settings)


def _import(target: str) -> Judge:
    """Import a judge by its place, such as ``company.judges:check``."""
    module, colon, name = target.partition(":")
    if not colon:
        raise ValueError("must be MODULE:NAME, such as company.judges:check")
    judge: Judge = getattr(importlib.import_module(module), name)
    return judge
