"""Convert the configuration of LiteLLM's proxy to the contents of models.yaml and keys.yaml."""

from __future__ import annotations

import math
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ...gateway.keys import Key, hash_key
from ...registry import find_pattern_problem
from ...validate.yaml import ConfigError, Section, plain, read_yaml
from .names import Named, find_name, read_table

_MASTER = "master"
"""The name of the master key."""
_REFERENCE = "os.environ/"
_LIMITS = {"rpm": "requests_per_minute", "tpm": "tokens_per_minute"}
_AVAILABILITY = {"allowed_fails": "failures", "cooldown_time": "quiet_seconds"}


class Conversion:
    """Read a configuration; ``models`` and ``keys`` are the contents of the two files.

    ``remarks`` lists each setting that has no equal, or that needs your attention, with its line.
    """

    def __init__(self, path: Path) -> None:
        root = read_yaml(path)
        sections = ("router_settings", "litellm_settings", "general_settings")
        self._router, self._library, general = [root.section(name) for name in sections]
        self._retries = [(each, "num_retries") for each in (self._router, self._library)]
        self.remarks: list[ConfigError] = []
        self._adapters: dict[str, dict[str, Any]] = {}
        self._names: dict[bytes, str] = {}  # the name of each adapter by its settings
        self._counts: Counter[str] = Counter()  # the number of adapters of each vendor
        self._entries: dict[str, dict[str, Any]] = {}
        # the candidates of each name; LiteLLM defines "order"
        self._deployments: dict[str, list[dict[str, Any]]] = {}
        self._patterns: dict[str, str] = {}  # names with a wildcard, and their models
        self._plain_keys: dict[str, str] = {}  # keys in plain text, and the variables for them
        for number, entry in enumerate(root.items("model_list") or ()):
            self._read_deployment(root.enter(f"model_list[{number}]", entry))
        groups = self._make_groups(self._read_fallbacks())
        found = {ours: _number((self._router, name)) for name, ours in _AVAILABILITY.items()}
        self.models: dict[str, Any] = {"adapters": self._adapters, "models": self._entries}
        available = {name: value for name, value in found.items() if value}
        self.models |= {"groups": groups, "serve": self._patterns, "availability": available}
        key = self._read_master_key(general)
        rights = {"on_loss": "drop"} if self._library.data.get("drop_params") is True else {}
        self._master: dict[str, Any] = {"hash": hash_key(key), **rights} if key else {}
        self.keys = {"keys": {_MASTER: self._master}} if key else {}
        for name in (*sections, ""):
            self._report(name, root.section(name) if name else root)

    def list_keys(self) -> list[Key]:
        """Return the master key, if there is one, as an entry of a database of keys."""
        return [Key(_MASTER, **self._master)] if self._master else []

    def _remark(self, section: Section, name: str, why: str = "") -> None:
        advice = read_table().advice.get(name, "has no equal")
        self.remarks.append(section.fail(why or advice, name))

    def _report(self, kind: str, section: Section) -> None:
        for name in section.data:
            if name not in read_table().settings[kind]:
                self._remark(section, name)

    def _text(self, section: Section, name: str) -> str | None:
        """Return a text that is not a reference to a variable.

        The value of a variable is not copied: the file may name any variable, such as one with a
        secret, and the value would be in models.yaml and in error messages.
        """
        value = section.data.get(name)
        if not isinstance(value, str):
            return None
        if value.startswith(_REFERENCE):
            variable = value.removeprefix(_REFERENCE)
            why = f"the value of {variable} is not copied; write it into this file, or models.yaml"
            self._remark(section, name, why)
            return None
        return value

    def _read_master_key(self, general: Section) -> str | None:
        """Return the master key, of which only the hash is written, from the file or a variable."""
        value = general.data.get("master_key")
        if not isinstance(value, str) or not value.startswith(_REFERENCE):
            return value if isinstance(value, str) else None
        variable = value.removeprefix(_REFERENCE)
        if not os.environ.get(variable):
            self._remark(general, "master_key", f"{variable} is not set; set it, and import again")
        return os.environ.get(variable)

    def _read_deployment(self, entry: Section) -> None:
        params = entry.section("litellm_params")
        info = entry.section("model_info")
        model = str(params.data.get("model"))
        named = find_name(model, self._text(params, "custom_llm_provider"))
        if named is None:
            self._remark(params, "model", f"no vendor is known for {model!r}; add an adapter")
            return
        if str(params.data.get("api_base")).startswith(_REFERENCE):
            # Without its address, the deployment would be that of the vendor.
            self._text(params, "api_base")
            return
        self._report("litellm_params", params)
        self._report("model_list", entry)
        self._report("model_info", info)
        target = f"{self._name_adapter(self._read_adapter(params, named), named)}:{named.model}"
        name = str(entry.data.get("model_name"))
        if "*" in model:
            problem = find_pattern_problem(name, target)
            if problem is None:
                self._patterns[name] = target
            else:
                self._remark(params, "model", f"{name}: {problem}; clients call {target}")
            return
        base = find_name(self._text(info, "base_model") or "")
        if base is not None:
            self._entries[target] = {"priced_as": f"{base.route.vendor}:{base.model}"}
        found = {ours: _number((params, name), (entry, name)) for name, ours in _LIMITS.items()}
        limits = {name: value for name, value in found.items() if value}
        # without weights, LiteLLM weighs deployments by their limits
        weight = _number((params, "weight")) or next(iter(limits.values()), 1)
        made = {"model": target, "weight": weight, "order": _number((params, "order")) or 0}
        own = self._deployments.setdefault(name, [])
        own.append(made | ({"rate_limit": limits} if limits else {}))

    def _read_adapter(self, params: Section, named: Named) -> dict[str, Any]:
        names = ("api_base", *named.route.settings)
        adapter = named.route.find_adapter({name: self._text(params, name) for name in names})
        adapter["type"] = named.route.vendor or "openai-compatible"
        key = params.data.get("api_key")
        if isinstance(key, str) and key.startswith(_REFERENCE):
            adapter["api_key_env"] = key.removeprefix(_REFERENCE)
        elif key is not None:
            count = len(self._plain_keys)
            name = named.route.key_variable or "API_KEY"
            name = self._plain_keys.setdefault(str(key), f"{name}_{count + 1}")
            adapter["api_key_env"] = name
            self._remark(params, "api_key", f"a key in plain text is not copied; put it in {name}")
        patience = (self._router, "timeout"), (self._library, "request_timeout")
        seconds = _number((params, "timeout"), *patience)
        if seconds:
            # LiteLLM's timeout is that of httpx: how long no byte may arrive, not the whole reply.
            adapter["timeouts"] = {"first_event": seconds, "idle": seconds}
        adapter["max_retries"] = _number((params, "max_retries"), *self._retries)
        return {name: value for name, value in adapter.items() if value is not None}

    def _name_adapter(self, adapter: dict[str, Any], named: Named) -> str:
        """Return the name of the adapter with these settings; add it if it is new."""
        settings = msgspec.json.encode(adapter, order="sorted")
        if settings in self._names:
            return self._names[settings]
        name = named.route.vendor or named.provider
        self._counts[name] += 1
        name += f"-{self._counts[name]}" if self._counts[name] > 1 else ""
        self._adapters[name] = adapter
        self._names[settings] = name
        return name

    def _read_fallbacks(self) -> dict[str, list[str]]:
        """Return the fallbacks by model name; the key ``""`` has those for all other models."""
        found: dict[str, list[str]] = {"": []}
        for section in (self._library, self._router):
            given = plain(section.data.get("default_fallbacks"))
            found[""] = self._check_names(section, "default_fallbacks", given) or found[""]
            for each in section.items("fallbacks") or ():
                table = plain(each)
                if not isinstance(table, dict):
                    self._remark(section, "fallbacks", "each must be a mapping of a name to names")
                    continue
                for name, names in table.items():
                    found[name] = self._check_names(section, "fallbacks", names)
        for name in [each for names in found.values() for each in names]:
            if name not in self._deployments:
                self._remark(self._router, "fallbacks", f"no model is named {name!r}")
        return found

    def _check_names(self, section: Section, setting: str, given: Any) -> list[str]:
        """Return a list of names; report another value, and return an empty list."""
        if given is None:
            return []
        if isinstance(given, list) and all(isinstance(each, str) for each in given):
            return given
        self._remark(section, setting, "must be a list of names of models")
        return []

    def _make_groups(self, fallbacks: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
        """Return the names with several candidates or limits; the others become aliases."""
        groups: dict[str, dict[str, Any]] = {}
        for name, own in self._deployments.items():
            names = fallbacks.get(name, fallbacks[""])
            others = [each for other in names for each in self._deployments.get(other, ())]
            if len(own) > 1 or "rate_limit" in own[0] or others:
                groups[name] = self._make_group(name, own, others)
            else:
                entry = self._entries.setdefault(own[0]["model"], {})
                entry.setdefault("aliases", []).append(name)
        owners_of: dict[str, list[dict[str, Any]]] = {}
        for entry in self._entries.values():
            for alias in entry.get("aliases", ()):
                owners_of.setdefault(alias, []).append(entry)
        for alias, target in self._router.section("model_group_alias").plain().items():
            model = target.get("model") if isinstance(target, dict) else target
            if not isinstance(model, str):
                self._remark(self._router, "model_group_alias", f"{alias}: must name one model")
                continue
            owners = [*owners_of.get(model, ())]
            if model in groups:
                owners.append(groups[model])
            for owner in owners:
                owner.setdefault("aliases", []).append(alias)
            if not owners:
                why = f"{alias}: no model is named {model!r}"
                self._remark(self._router, "model_group_alias", why)
        return groups

    def _make_group(
        self, name: str, own: list[dict[str, Any]], others: list[dict[str, Any]]
    ) -> dict[str, Any]:
        given = plain(self._router.data.get("routing_strategy", "simple-shuffle"))
        strategy = read_table().strategies.get(given) if isinstance(given, str) else None
        is_ordered = len({each["order"] for each in own}) > 1
        unused = {"order"}
        if is_ordered or len(own) == 1:
            strategy = "fallback"
            unused = {"order", "weight"}
            own = sorted(own, key=lambda each: each["order"])
        else:
            others = [{**each, "weight": 0} for each in others]
            if strategy is None:
                strategy = "weighted"
                self._remark(self._router, "routing_strategy", f"{given} becomes weighted")
        unique = {each["model"]: each for each in (*own, *others)}.values()
        candidates = [{n: v for n, v in each.items() if n not in unused} for each in unique]
        retries = _number(*self._retries) or 0
        return {"strategy": strategy, "candidates": candidates, "max_retries": retries}


def _number(*places: tuple[Section, str]) -> float | None:
    """Return the first of some settings that is a number; YAML 1.1 allows ``20_000``."""
    for section, name in places:
        with suppress(TypeError, ValueError):
            number = float(section.data.get(name))  # type: ignore[arg-type]
            if math.isfinite(number):
                return int(number) if number.is_integer() else number
    return None
