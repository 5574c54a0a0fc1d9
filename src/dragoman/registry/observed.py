"""Observed capabilities: what an endpoint's replies have proven about it, kept between runs.

They are stored in a JSON file in the cache folder or at ``$DRAGOMAN_OBSERVED``; ``off`` disables
them. Only proven capabilities are stored: that a reply called a tool, called several at once,
contained thinking, was streamed, or was read from a prompt cache, and that the server rejected a
response schema. What the user declares or a server check finds takes precedence.
"""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..capabilities import Capabilities, Fact
from ..events import MessageComplete
from ..messages import Request, Thinking, ToolCall
from .folders import user_folder, write_private

log = logging.getLogger("dragoman")

_MAX_ENDPOINTS = 1000


def observed_path() -> Path | None:
    """Return the path of the file with observed capabilities; ``None`` if they are disabled."""
    chosen = os.environ.get("DRAGOMAN_OBSERVED")
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen)
    return user_folder("cache") / "observed.json"


class ObservedFacts:
    """The capabilities observed at each endpoint, from the file and from this process."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._facts: dict[str, dict[str, Fact]] | None = None

    def find(self, base_url: str | None, model: str) -> Capabilities:
        """Return the capabilities observed for a model at an address."""
        if self.path is None or base_url is None:
            return Capabilities()
        return Capabilities(**self._load().get(_key(base_url, model), {}))

    def watch(self, base_url: str, model: str, known: Capabilities) -> Watch | None:
        """Return an observer for a model's replies; ``None`` if observation is turned off."""
        return None if self.path is None else Watch(self, base_url, model, known)

    def add(self, base_url: str, model: str, facts: dict[str, bool]) -> None:
        """Store the observed capabilities of a model in memory and in the file."""
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        kept = self._load()
        key = _key(base_url, model)
        kept[key] = {
            **kept.pop(key, {}),
            **{name: Fact(value, "observed", today, "a reply") for name, value in facts.items()},
        }
        while len(kept) > _MAX_ENDPOINTS:
            del kept[next(iter(kept))]
        try:
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_private(self.path, msgspec.json.encode(kept))
        except OSError as error:
            log.warning("observed facts could not be written (%s)", type(error).__name__)

    def _load(self) -> dict[str, dict[str, Fact]]:
        if self._facts is None:
            self._facts = {}
            try:
                data = self.path.read_bytes() if self.path is not None else b"{}"
                read = msgspec.json.decode(data, type=dict[str, dict[str, Fact]])
                known = set(Capabilities.__struct_fields__)
                self._facts = {
                    key: {
                        name: fact
                        for name, fact in facts.items()
                        if name in known and fact.source == "observed"
                    }
                    for key, facts in read.items()
                }
            except FileNotFoundError:
                pass
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("the file of observed facts cannot be read (%s)", type(error).__name__)
        return self._facts


class Watch:
    """Observe the capabilities of one model at one address from its replies."""

    def __init__(
        self, owner: ObservedFacts, base_url: str, model: str, known: Capabilities
    ) -> None:
        self._owner = owner
        self._target = base_url, model
        self._seen: set[str] = {
            name for name in Capabilities.__struct_fields__ if known.known(name) is not None
        }
        self._open = [name for name in _PROVEN if name not in self._seen]

    def see_reply(self, request: Request, complete: MessageComplete) -> None:
        """Store the capabilities that this reply proves for the first time."""
        new = [name for name in self._open if _PROVEN[name](request, complete)]
        if new:
            self._open = [name for name in self._open if name not in new]
            self._owner.add(*self._target, dict.fromkeys(new, True))

    def see_refusal(self, fact: str) -> None:
        """Store that the server rejected a feature, unless that capability is already known."""
        if fact not in self._seen:
            self._seen.add(fact)
            self._owner.add(*self._target, {fact: False})


def _key(base_url: str, model: str) -> str:
    return f"{base_url.rstrip('/')} {model}"


def _calls(complete: MessageComplete) -> int:
    return sum([type(block) is ToolCall for block in complete.final_content])


_PROVEN: dict[str, Callable[[Request, MessageComplete], bool]] = {
    "supports_tools": lambda request, complete: _calls(complete) > 0,
    "supports_parallel_tool_calls": lambda request, complete: _calls(complete) > 1,
    "supports_streaming_tool_calls": lambda request, complete: (
        request.stream and _calls(complete) > 0
    ),
    "supports_streaming": lambda request, complete: request.stream,
    "supports_thinking": lambda request, complete: any(
        type(block) is Thinking for block in complete.final_content
    ),
    "supports_prompt_caching": lambda request, complete: bool(complete.usage.cached_input_tokens),
}
