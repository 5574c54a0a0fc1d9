"""The models of an editor's sessions, and the options that the editor shows for each session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, get_args

from msgspec.structs import replace

from ..messages import Effort, RuntimeConfig
from ..provider import Provider
from ..registry import Registry
from ..session import Session

MODEL = "model"
EFFORT = "effort"
MODE = "mode"
"""The ids of the options."""
_DEFAULT = "default"
_MODES = {
    "ask": ("Ask", "Ask before each call that no rule allows."),
    "allow": ("Allow all", "Run every call that no rule denies, without asking."),
}


class EditorModels:
    """Open the models that sessions name, each once; ``names`` lists those that can be chosen.

    ``open_named`` opens a model by its name, or the model of the process without one.
    ``find_efforts`` returns the amounts of reasoning that a model accepts by name, or ``None``.
    """

    def __init__(
        self,
        open_named: Callable[[str | None], Provider],
        names: Callable[[], Sequence[str]] = list,
        find_efforts: Callable[[str], Sequence[str] | None] = lambda name: None,
    ) -> None:
        self._open_named = open_named
        self._names = names
        self._find_efforts = find_efforts
        self._opened: dict[str | None, Provider] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> EditorModels:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def open(self, name: str | None = None) -> Provider:
        """Return a model; raise ``AuthenticationError`` if its key is missing."""
        if name not in self._opened:
            provider = await asyncio.to_thread(self._open_named, name)
            self._opened[name] = await self._stack.enter_async_context(provider)
        return self._opened[name]

    def list_names(self, current: str) -> list[str]:
        """Return the names of the models that can be chosen, the current one among them."""
        return list(dict.fromkeys([*self._names(), current]))

    def list_efforts(self, name: str) -> list[str]:
        """Return the amounts of reasoning that a model accepts; all, if that is not known."""
        found = self._find_efforts(name)
        return list(get_args(Effort) if found is None else found)


def list_choices(registry: Registry) -> list[str]:
    """Return the models that an agent could use now: they may call tools, and have their keys."""
    found: list[str] = []
    for name in registry.names():
        entry = registry.find(name)
        if (
            entry.status == "configured"
            and entry.capabilities.known("supports_tools") is not False
        ):
            found.append(name)
    return found


class SessionOptions:
    """The model, the amount of reasoning and the mode of one session.

    The protocol calls them ``configOptions``, stable since 2026-02-04
    (agentclientprotocol.com/announcements/session-config-options-stabilized).
    """

    def __init__(self, models: EditorModels, session: Session[Any], config: RuntimeConfig) -> None:
        self._models = models
        self._session = session
        self._config = config
        provider = session.provider
        self.model = f"{provider.name}:{provider.model}"
        self.effort = _DEFAULT
        self.mode = "ask"

    def describe(self) -> list[dict[str, Any]]:
        """Return the options as the protocol writes them."""
        models = {name: (name, "") for name in self._models.list_names(self.model)}
        options = [
            _write_option(MODEL, "Model", "model", self.model, models),
            _write_option(MODE, "Permission", "mode", self.mode, _MODES),
        ]
        if efforts := self._models.list_efforts(self.model):
            shown = {_DEFAULT: ("Default", "What the model does by itself.")}
            shown |= {name: (name, "") for name in efforts}
            options.append(_write_option(EFFORT, "Reasoning", "thought_level", self.effort, shown))
        return options

    async def choose(self, option: str, value: str) -> None:
        """Set an option; raise ``ValueError`` for a value that was not offered."""
        offered = {each["id"]: each["options"] for each in self.describe()}
        if option not in offered:
            raise ValueError(f"configId: must be one of {', '.join(offered)}, not {option!r}")
        if value not in [each["value"] for each in offered[option]]:
            raise ValueError(f"value: {value!r} is not a value of {option}")
        if option == MODE:
            self.mode = value
        elif option == EFFORT:
            await self._apply(self._session.provider, value)
        else:
            provider = await self._models.open(value)
            efforts = self._models.list_efforts(value)
            await self._apply(provider, self.effort if self.effort in efforts else _DEFAULT)
            self.model = value

    async def _apply(self, provider: Provider, effort: str) -> None:
        config = self._config
        if effort != _DEFAULT:
            config = replace(config, reasoning=effort)
        await self._session.swap(provider, "chosen in the editor", config=config)
        self.effort = effort


def _write_option(
    key: str, name: str, category: str, current: str, values: dict[str, tuple[str, str]]
) -> dict[str, Any]:
    options = [
        {"value": value, "name": label} | ({"description": text} if text else {})
        for value, (label, text) in values.items()
    ]
    facts = {"id": key, "name": name, "category": category, "type": "select"}
    return {**facts, "currentValue": current, "options": options}
