"""``Router``: several deployments under one name, as a group of Dragoman's models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ...blocking import run
from ...integrations.losses import warn_of_losses
from ...messages import LossWarning
from ...middleware import Fallback
from ...middleware.availability import Availability, Thresholds
from ...provider import Provider
from .calls import locate, open_model, send, split
from .exceptions import KINDS
from .names import Named, read_table

# The parameters of a deployment that choose it, instead of being sent to it.
_CHOOSING = ("weight", "order", "rpm", "tpm")


class Router:
    """Call one of several deployments by the name that they share.

    The deployments of a name are a group: a failure before the first event is answered by the next
    one, and a deployment that fails repeatedly is left alone for a while. ``fallbacks`` are lists
    of further names by name, and ``default_fallbacks`` apply to every other name.
    """

    def __init__(
        self,
        model_list: Sequence[Mapping[str, Any]] = (),
        *,
        routing_strategy: str = "simple-shuffle",
        fallbacks: Sequence[Mapping[str, Sequence[str]]] = (),
        default_fallbacks: Sequence[str] = (),
        model_group_alias: Mapping[str, str] | None = None,
        num_retries: int | None = None,
        timeout: float | None = None,
        allowed_fails: int | None = None,
        cooldown_time: float | None = None,
        **others: Any,
    ) -> None:
        self.model_list = [dict(each) for each in model_list]
        self._strategy = read_table().strategies.get(routing_strategy)
        if self._strategy is None:
            known = ", ".join(read_table().strategies)
            raise ValueError(f"routing_strategy must be one of {known}, not {routing_strategy!r}")
        self._fallbacks = {name: [*names] for each in fallbacks for name, names in each.items()}
        self._default_fallbacks = [*default_fallbacks]
        self._aliases = dict(model_group_alias or {})
        self._defaults = {"num_retries": num_retries, "timeout": timeout}
        limits: dict[str, Any] = {"failures": allowed_fails, "quiet_seconds": cooldown_time}
        self._thresholds = Thresholds(**{n: v for n, v in limits.items() if v is not None})
        self._opened: WeakKeyDictionary[Any, dict[str, Provider]] = WeakKeyDictionary()
        lost = [
            LossWarning(f"{name}_dropped", name, "this setting of a Router has no effect here")
            for name, value in others.items()
            if value
        ]
        warn_of_losses(lost, stacklevel=3)

    @property
    def model_names(self) -> list[str]:
        """The names that calls may give."""
        own = [str(each["model_name"]) for each in self.model_list]
        return list(dict.fromkeys([*own, *self._aliases]))

    def get_model_names(self) -> list[str]:
        """Return the names that calls may give."""
        return self.model_names

    def completion(self, model: str, messages: Sequence[Any], **given: Any) -> Any:
        """Call a deployment of a name, and wait for its reply."""
        return run(self.acompletion(model, messages, **given))

    async def acompletion(self, model: str, messages: Sequence[Any], **given: Any) -> Any:
        """Call a deployment of a name; return a ``ModelResponse``, or its chunks."""
        name = self._aliases.get(model, model)
        options, body = split({**self._defaults, **self._read_body(name), **given})
        named = self._locate(self._find(name)[0])
        return await send(await self._open(name), named, messages, options, body)

    def _find(self, name: str) -> list[dict[str, Any]]:
        """Return the parameters of a name's deployments, in the order of their ``order``."""
        found = [dict(e["litellm_params"]) for e in self.model_list if e["model_name"] == name]
        if not found:
            known = ", ".join(self.model_names)
            raise KINDS["BadRequestError"](f"no deployment is named {name!r}; known are {known}")
        return sorted(found, key=lambda each: each.get("order") or 0)

    def _locate(self, params: Mapping[str, Any]) -> Named:
        return locate(params.get("model"), params.get("custom_llm_provider"))

    def _read_body(self, name: str) -> dict[str, Any]:
        """Return the parameters of calls that the deployments of a name set, such as temperature."""
        bodies = []
        for params in self._find(name):
            known = (*read_table().options, *_CHOOSING, "model")
            bodies.append({key: value for key, value in params.items() if key not in known})
        if any(each != bodies[0] for each in bodies):
            raise ValueError(f"the deployments of {name!r} set different parameters of calls")
        return bodies[0]

    async def _open(self, name: str) -> Provider:
        """Return the group of a name with its fallbacks, for the running event loop."""
        opened = self._opened.setdefault(asyncio.get_running_loop(), {})
        if name not in opened:
            names = [name, *self._fallbacks.get(name, self._default_fallbacks)]
            groups = [await self._open_group(each) for each in dict.fromkeys(names)]
            opened[name] = groups[0] if len(groups) == 1 else Fallback(groups, name=name)
        return opened[name]

    async def _open_group(self, name: str) -> Provider:
        deployments = self._find(name)
        candidates = [
            await open_model(self._locate(each), split({**self._defaults, **each})[0])
            for each in deployments
        ]
        is_ordered = len({each.get("order") for each in deployments}) > 1
        weights = [
            each.get("weight") or each.get("rpm") or each.get("tpm") or 1 for each in deployments
        ]
        strategy: Any = "fallback" if is_ordered else self._strategy
        return Fallback(
            candidates,
            Availability(thresholds=self._thresholds),
            name=name,
            strategy=strategy,
            weights=weights if strategy in ("weighted", "least_busy") else None,
        )
