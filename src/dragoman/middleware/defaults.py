"""``Defaults``: settings and a system prompt for calls that do not have their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Unpack

from msgspec.structs import asdict, replace

from ..errors import cut
from ..events import Event
from ..messages import NO_CONFIG, Request, RuntimeConfig, System
from ..provider import Messages, Provider, Reply, read_events
from ..validate import Settings, apply_settings, parse_messages
from .layer import Middleware

# No more characters of a system prompt are printed by ``describe``.
_SHOWN = 40


class Defaults(Middleware[Provider]):
    """Settings and a system prompt for calls that do not have their own.

    ``connect("openai:gpt-6-sol", temperature=0, system="Be brief.")`` adds this layer. A setting
    of a call takes precedence, and so does a system prompt at the beginning of its messages. The
    ``extras`` of both are merged, by name.
    """

    def __init__(self, provider: Provider, **settings: Unpack[Settings]) -> None:
        super().__init__(provider)
        self._system, self._config = apply_settings(NO_CONFIG, settings)

    def settings(self) -> Mapping[str, Any]:
        found = {
            name: value
            for name, value in asdict(self._config).items()
            if value != getattr(NO_CONFIG, name)
        }
        return found if self._system is None else {"system": cut(self._system, _SHOWN), **found}

    def add_defaults(self, request: Request) -> Request:
        config = self._merge(request.config)
        messages = request.messages
        if self._system is not None and not (messages and type(messages[0]) is System):
            messages = (System(self._system), *messages)
        return self.inner.add_defaults(replace(request, messages=messages, config=config))

    def open(self, request: Request) -> Reply:
        return self.inner.open(self.add_defaults(request))

    def events(self, request: Request) -> AsyncIterator[Event]:
        return read_events(self.open(request))

    def estimate_input_tokens(
        self, messages: Messages, tools: Any = None, system_prompt: str | None = None
    ) -> int:
        parsed = parse_messages(messages)
        if not (parsed and type(parsed[0]) is System):
            system_prompt = system_prompt or self._system
        return self.inner.estimate_input_tokens(parsed, tools, system_prompt)

    def _merge(self, own: RuntimeConfig) -> RuntimeConfig:
        """Return the settings of a call, with the defaults where it has none."""
        if own is NO_CONFIG:
            return self._config
        missing = {
            name: value
            for name, value in asdict(self._config).items()
            if getattr(own, name) == getattr(NO_CONFIG, name)
        }
        extras = {**self._config.extras, **own.extras}
        return replace(own, **{**missing, "extras": extras})
