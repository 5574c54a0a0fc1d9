"""Convert the configuration of LiteLLM's proxy to the contents of models.yaml and keys.yaml."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from msgspec import Struct

from ...config import ConfigError, Section, plain, read_yaml
from ...gateway.keys import hash_key
from .names import Named, find_name, read_table

_REFERENCE = "os.environ/"
_LIMITS = {"rpm": "requests_per_minute", "tpm": "tokens_per_minute"}
_PARAMETERS = (
    "model", "custom_llm_provider", "api_key", "api_base", "weight", "order", "timeout",
    "max_retries", "aws_region_name", "vertex_project", "vertex_location", *_LIMITS,
)  # fmt: skip
_FALLBACKS = ("fallbacks", "default_fallbacks")
_AVAILABILITY = {"allowed_fails": "failures", "cooldown_time": "quiet_seconds"}


class _Deployment(Struct):
    """One entry of ``model_list``: the model as ``adapter:model``, and its part of the load."""

    model: str
    weight: float
    order: float
    limits: dict[str, float]


class Conversion:
    """Read a configuration; ``models`` and ``keys`` are the contents of the two files.

    ``remarks`` lists each setting that has no equal, or that needs your attention, with its line.
    """

    def __init__(self, path: Path) -> None:
        root = read_yaml(path)
        self.remarks: list[ConfigError] = []
        self._router = root.section("router_settings")
        self._library = root.section("litellm_settings")
        self._adapters: dict[str, dict[str, Any]] = {}
        self._entries: dict[str, dict[str, Any]] = {}
        self._deployments: dict[str, list[_Deployment]] = {}
        self._plain_keys: dict[str, str] = {}  # keys in plain text, and the variables for them
        for number, entry in enumerate(root.items("model_list") or ()):
            self._read_deployment(root.enter(f"model_list[{number}]", entry))
        self.models = {"adapters": self._adapters, "models": self._entries, **self._read_router()}
        self.keys = self._read_keys(root.section("general_settings"))
        sections = ("router_settings", "litellm_settings", "general_settings")
        self._report(root, "model_list", *sections)

    def _remark(self, section: Section, name: str, why: str = "") -> None:
        advice = read_table().advice.get(name, "has no equal")
        self.remarks.append(section.fail(why or advice, name))

    def _report(self, section: Section, *known: str) -> None:
        for name in section.data:
            if name not in known:
                self._remark(section, name)

    def _text(self, section: Section, name: str) -> str | None:
        """Return a text; for a reference to a variable, return what the variable holds now."""
        value = section.data.get(name)
        if not isinstance(value, str) or not value.startswith(_REFERENCE):
            return value if isinstance(value, str) else None
        variable = value.removeprefix(_REFERENCE)
        if not os.environ.get(variable):
            self._remark(section, name, f"{variable} is not set; set it, and import again")
        return os.environ.get(variable)

    # --- model_list

    def _read_deployment(self, entry: Section) -> None:
        params, info = entry.section("litellm_params"), entry.section("model_info")
        model = str(params.data.get("model"))
        named = find_name(model, self._text(params, "custom_llm_provider"))
        if named is None:
            self._remark(params, "model", f"no vendor is known for {model!r}; add an adapter")
            return
        self._report(params, *_PARAMETERS)
        self._report(entry, "model_name", "litellm_params", "model_info", *_LIMITS)
        self._report(info, "base_model", "id", "mode")
        target = f"{self._name_adapter(self._read_adapter(params, named), named)}:{named.model}"
        if "*" in model:
            self._remark(params, "model", f"a wildcard has no equal; clients call {target}")
            return
        base = find_name(self._text(info, "base_model") or "")
        if base is not None:
            self._entries[target] = {"priced_as": f"{base.route.vendor}:{base.model}"}
        found = {
            ours: _number(params, name) or _number(entry, name) for name, ours in _LIMITS.items()
        }
        limits = {name: value for name, value in found.items() if value is not None}
        # without weights, LiteLLM weighs deployments by their limits
        weight = _number(params, "weight") or next(iter(limits.values()), 1)
        own = self._deployments.setdefault(str(entry.data.get("model_name")), [])
        own.append(_Deployment(target, weight, _number(params, "order") or 0, limits))

    def _read_adapter(self, params: Section, named: Named) -> dict[str, Any]:
        names = ("api_base", *named.route.settings)
        adapter = named.route.find_adapter({name: self._text(params, name) for name in names})
        adapter["type"] = named.route.vendor or "openai"
        key = params.data.get("api_key")
        if isinstance(key, str) and key.startswith(_REFERENCE):
            adapter["api_key_env"] = key.removeprefix(_REFERENCE)
        elif key is not None:
            count, name = len(self._plain_keys), named.route.key_variable or "API_KEY"
            name = self._plain_keys.setdefault(str(key), f"{name}_{count + 1}")
            adapter["api_key_env"] = name
            self._remark(params, "api_key", f"a key in plain text is not copied; put it in {name}")
        timeout, retries = _number(params, "timeout"), _number(params, "max_retries")
        timeout = self._default("timeout", "request_timeout") if timeout is None else timeout
        retries = self._default("num_retries", "num_retries") if retries is None else retries
        adapter |= {"timeout_seconds": timeout, "max_retries": retries}
        return {name: value for name, value in adapter.items() if value is not None}

    def _name_adapter(self, adapter: dict[str, Any], named: Named) -> str:
        """Return the name of the adapter with these settings; add it if it is new."""
        name = named.route.vendor or named.provider
        count = len([each for each in self._adapters if each.partition("-")[0] == name])
        for known, settings in self._adapters.items():
            if settings == adapter:
                return known
        name += f"-{count + 1}" if count else ""
        self._adapters[name] = adapter
        return name

    # --- names and settings

    def _default(self, routing: str, library: str) -> float | None:
        own = _number(self._router, routing)
        return _number(self._library, library) if own is None else own

    def _read_router(self) -> dict[str, Any]:
        """Return the groups and the other settings of models.yaml; add aliases to models."""
        router, fallbacks = self._router, self._read_fallbacks()
        groups: dict[str, dict[str, Any]] = {}
        for name, own in self._deployments.items():
            names = fallbacks.get(name, fallbacks[""])
            others = [each for other in names for each in self._deployments.get(other, ())]
            if len(own) == 1 and not own[0].limits and not others:
                self._entries.setdefault(own[0].model, {}).setdefault("aliases", []).append(name)
            else:
                groups[name] = self._make_group(name, own, others)
        for alias, target in router.section("model_group_alias").plain().items():
            model = target.get("model") if isinstance(target, dict) else target
            owners = [each for each in self._entries.values() if model in each.get("aliases", ())]
            owners += [groups[model]] if model in groups else []
            for owner in owners:
                owner.setdefault("aliases", []).append(alias)
            if not owners:
                self._remark(router, "model_group_alias", f"{alias}: no model is named {model!r}")
        limits = {ours: _number(router, name) for name, ours in _AVAILABILITY.items()}
        known = ("routing_strategy", "model_group_alias", "num_retries", "timeout")
        self._report(router, *known, *_FALLBACKS, *_AVAILABILITY)
        availability = {name: value for name, value in limits.items() if value}
        return {"groups": groups, "availability": availability}

    def _read_fallbacks(self) -> dict[str, list[str]]:
        """Return the fallbacks by model name; those of all other models have an empty name."""
        found: dict[str, list[str]] = {"": []}
        for section in (self._library, self._router):
            found[""] = plain(section.data.get("default_fallbacks")) or found[""]
            for each in section.items("fallbacks") or ():
                found |= plain(each)
        for name in [each for names in found.values() for each in names]:
            if name not in self._deployments:
                self._remark(self._router, "fallbacks", f"no model is named {name!r}")
        return found

    def _make_group(
        self, name: str, own: list[_Deployment], others: list[_Deployment]
    ) -> dict[str, Any]:
        given = self._router.data.get("routing_strategy", "simple-shuffle")
        strategy = read_table().strategies.get(given)
        is_ordered = len({each.order for each in own}) > 1
        if others or is_ordered or len(own) == 1:
            strategy, own = "fallback", sorted(own, key=lambda each: each.order)
            if len(own) > 1 and not is_ordered:
                why = f"the deployments of {name} are tried in order, since it has fallbacks"
                self._remark(self._router, "routing_strategy", why)
        elif strategy is None:
            strategy = "weighted"
            self._remark(self._router, "routing_strategy", f"{given} becomes weighted")
        retries = self._default("num_retries", "num_retries")
        candidates = [
            {"model": each.model}
            | ({} if strategy == "fallback" else {"weight": each.weight})
            | ({"rate_limit": each.limits} if each.limits else {})
            for each in {each.model: each for each in (*own, *others)}.values()
        ]
        return {"strategy": strategy, "candidates": candidates, "max_retries": retries or 0}

    def _read_keys(self, general: Section) -> dict[str, Any]:
        """Return the contents of keys.yaml: the hash of the master key."""
        key, drops = self._text(general, "master_key"), self._library.data.get("drop_params")
        self._report(general, "master_key")
        self._report(self._library, *_FALLBACKS, "num_retries", "request_timeout", "drop_params")
        rights = {"on_loss": "drop"} if drops is True else {}
        return {"keys": {"master": {"hash": hash_key(key), **rights}}} if key else {}


def _number(section: Section, name: str) -> float | None:
    value = section.data.get(name)
    try:
        number = float(value)  # type: ignore[arg-type]  # YAML 1.1 also writes 20_000
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else number
