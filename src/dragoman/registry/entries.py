"""Parse ``models.yaml``: adapters, models by name, groups and settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ..capabilities import Capabilities
from ..middleware import Thresholds
from ..prices import PricedAs, PriceTable
from ..provider import SCHEMES
from ..tokens import FAMILIES
from ..validate.yaml import ConfigError, Section, read_yaml
from .adapters import Adapter, find_nearest, read_adapter
from .caching import CachePlan, read_cache
from .folders import user_folder
from .groups import Group, check_names, check_nesting, read_group
from .guards import GuardPlan, read_guards
from .limits import read_thresholds
from .passing import PassThrough, read_passes
from .vendors import vendor_names
from .webhooks import Webhook, read_webhooks


class ModelEntry(Struct, frozen=True, kw_only=True):
    """One model by its canonical name, ``adapter:name``.

    ``status`` is ``configured`` or ``not_configured``. ``tokens`` is the tokenizer family for
    estimates. ``sold_as`` is the price setting of the model in ``models.yaml``, if any;
    ``priced_as`` is how its calls are actually priced. The entry of a ``group`` has the group's
    name as its id, and describes the group's first candidate.
    """

    id: str
    adapter: str
    wire_name: str
    tier: str | None = None
    can_delegate: bool = False
    aliases: tuple[str, ...] = ()
    capabilities: Capabilities = Capabilities()
    status: str = "configured"
    tokens: str | None = None
    sold_as: str | None = None
    priced_as: PricedAs = PricedAs("")
    group: Group | None = None


class File(Struct, frozen=True, kw_only=True):
    """A parsed ``models.yaml``.

    ``problems`` are errors, ``remarks`` name settings that have no effect, ``advice`` points out
    valid settings with a better alternative. ``serve`` maps names that a gateway serves in
    addition, or patterns of such names, to models, and ``passes`` are the APIs that it passes
    requests on to; ``is_read`` is false if there is no file.
    """

    adapters: tuple[Adapter, ...] = ()
    models: tuple[ModelEntry, ...] = ()
    prices: PriceTable | None = None
    problems: tuple[ConfigError, ...] = ()
    remarks: tuple[ConfigError, ...] = ()
    advice: tuple[ConfigError, ...] = ()
    default: str | None = None
    groups: tuple[Group, ...] = ()
    guards: tuple[GuardPlan, ...] = ()
    webhooks: tuple[Webhook, ...] = ()
    thresholds: Thresholds = Thresholds()
    redis: str | None = None
    observed: bool = True
    serve: Mapping[str, str] = {}
    passes: tuple[PassThrough, ...] = ()
    cache: CachePlan | None = None
    is_read: bool = False


def config_path() -> Path:
    """Return the path of ``models.yaml``."""
    if chosen := os.environ.get("DRAGOMAN_CONFIG"):
        return Path(chosen)
    return user_folder("config") / "models.yaml"


def read_file(path: Path) -> File:
    """Read ``models.yaml`` and collect its mistakes; only invalid YAML raises ``ConfigError``."""
    problems: list[ConfigError] = []
    root = read_yaml(path, problems)
    root.allow(
        "adapters", "cache", "models", "groups", "availability", "redis", "redis_env", "observed",
        "default", "guards", "pass", "prices", "serve", "webhooks",
    )  # fmt: skip
    prices = _read_prices(root)
    remarks: list[ConfigError] = []
    sections = root.section("adapters")
    adapters = tuple([read_adapter(name, each, remarks) for name, each in sections.sections()])
    advice = [
        each.fail("the key is in the file as plain text; api_key_env is safer", "api_key")
        for _, each in sections.sections()
        if each.data.get("api_key") is not None
    ]
    known = {adapter.name for adapter in adapters}
    models: list[ModelEntry] = []
    listed = root.section("models")
    taken = dict.fromkeys(listed.data, "the model of this name")
    for name, section in listed.sections():
        entry = _read_model(name, section, known)
        for alias in entry.aliases:
            if alias in taken:
                section.complain(
                    f"the alias {alias!r} belongs to {taken[alias]} already", "aliases"
                )
            taken[alias] = name
        models.append(entry)
    groups = _read_groups(root, taken, known)
    file = File(
        adapters=adapters,
        models=tuple(models),
        prices=prices,
        problems=(),
        remarks=tuple(remarks),
        advice=tuple(advice),
        default=root.get("default", str),
        groups=groups,
        guards=read_guards(root),
        webhooks=read_webhooks(root),
        thresholds=read_thresholds(root),
        redis=_read_redis(root),
        observed=root.get("observed", bool, True),
        serve=_read_serve(root, taken, known),
        passes=read_passes(root),
        cache=read_cache(root),
        is_read=True,
    )
    return replace(file, problems=tuple(sorted(problems, key=lambda problem: problem.line or 0)))


def find_pattern_problem(name: str, target: str) -> str | None:
    """Return why a pattern of names cannot stand for a model or a pattern of models."""
    if "*" not in target:
        return None
    if target.count("*") > 1 or name.count("*") > 1:
        return "a pattern has one *"
    if "*" not in name:
        return f"{target} stands for several models, so the name needs a *, too"
    return None


def _read_groups(root: Section, taken: dict[str, str], adapters: set[str]) -> tuple[Group, ...]:
    named = dict(taken)
    for name, each in root.section("groups").sections():
        named[name] = f"the group {name}"
        for alias in each.items("aliases") or ():
            named[str(alias)] = f"the group {name}"
    find_problem = partial(_find_problem, taken=named, adapters=adapters)
    read = [
        (read_group(name, each, find_problem), each)
        for name, each in root.section("groups").sections()
    ]
    found = [(group, section) for group, section in read if group is not None]
    check_names(found, taken)
    check_nesting(found)
    return tuple([group for group, _ in found])


def _find_problem(name: str, taken: Mapping[str, str], adapters: set[str]) -> str | None:
    """Return why a name stands for no model, or ``None`` if it stands for one."""
    prefix, colon, rest = name.partition(":")
    is_scheme = prefix in SCHEMES
    if (
        name in taken
        or is_scheme
        or (colon and rest and (prefix in adapters or prefix in vendor_names()))
    ):
        return None
    return f"no model is named {name!r}{find_nearest(name, {*taken, *adapters, *vendor_names()})}"


def _read_serve(root: Section, taken: Mapping[str, str], adapters: set[str]) -> dict[str, str]:
    """Read the names that a gateway serves in addition, or patterns of such names."""
    section = root.section("serve")
    found: dict[str, str] = {}
    for name in section.data:
        target = section.get(name, str)
        if target is None:
            section.complain("needs a model, or a pattern such as openai:*", name)
            continue
        problem = _find_problem(target, taken, adapters)
        problem = problem or find_pattern_problem(name, target)
        if problem is not None:
            section.complain(problem, name)
            continue
        found[name] = target
    return found


def _read_redis(root: Section) -> str | None:
    """Read the URL of the Redis server that shares limits and availability between processes."""
    variable = root.get("redis_env", str)
    url: str | None = root.get("redis", str, os.environ.get(variable) if variable else None)
    if url is not None and not url.startswith(("redis://", "rediss://", "unix://")):
        root.complain(
            "must be a redis://, rediss:// or unix:// URL",
            "redis" if "redis" in root.data else "redis_env",
        )
        return None
    return url


def _read_prices(root: Section) -> PriceTable | None:
    """Read the user's price table, which takes precedence over the bundled one.

    A relative path starts at the folder of ``models.yaml``.
    """
    path = root.get("prices", str)
    if path is None:
        return None
    try:
        table = PriceTable.load(Path(root.path).parent / Path(path).expanduser())
    except (ValueError, OSError) as error:
        root.complain(str(error), "prices")
        return None
    return PriceTable.bundled().with_overrides(table.rows, table.terms)


def _read_declared(section: Section) -> Capabilities:
    """Read the capabilities that the user declares for a model; report mistakes by line."""
    section.allow(*Capabilities.__struct_fields__)
    found = Capabilities()
    for name, value in section.plain().items():
        if name in Capabilities.__struct_fields__:
            try:
                found = found.merged(Capabilities.of({name: value}, "declared", by=section.path))
            except ValueError as error:
                section.complain(str(error).removeprefix(f"capabilities: {name} "), name)
    return found


def _read_probed(section: Section) -> Capabilities:
    """Read the capabilities that a server check found, from the file that ``probed`` names."""
    path = section.get("probed", str)
    if path is None:
        return Capabilities()
    try:
        return Capabilities.read(Path(section.path).parent / Path(path).expanduser())
    except ValueError as error:
        section.complain(str(error).removeprefix("capabilities: "), "probed")
        return Capabilities()


def _read_model(name: str, section: Section, adapters: set[str]) -> ModelEntry:
    found = section.values(
        ModelEntry,
        without=("id", "status", "tokens", "sold_as", "group"),
        more=("tokens", "probed"),
    )
    prefix, _, rest = name.partition(":")
    adapter = found.setdefault("adapter", prefix)
    found.setdefault("wire_name", rest or name)
    if adapter not in adapters and adapter not in vendor_names():
        section.complain(
            f"no adapter {adapter!r}{find_nearest(adapter, {*adapters, *vendor_names()})}",
            "adapter",
        )
    capabilities = _read_probed(section).merged(_read_declared(section.section("capabilities")))
    tokens = section.choice("tokens", FAMILIES)
    sold_as = section.get("priced_as", str)
    return ModelEntry(id=name, **found, capabilities=capabilities, tokens=tokens, sold_as=sold_as)
