"""Tool definitions, pinned by hash, so that a server cannot change them unnoticed.

The first time a server lists its tools, all of them are pinned. From then on, a tool that is new
or whose definition (name, description, schema) has changed is a ``ToolChange``, which has to be
accepted before the tool is offered to a model.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from ..messages import Tool
from .runtime import ExecutableTool, ToolFailure


class ToolChange(Struct, frozen=True):
    """A tool whose definition differs from the pinned one.

    It has the current definition, and the pinned hash (``None`` for a new tool).
    """

    server: str
    tool: Tool
    pinned: str | None


AcceptChange: TypeAlias = Callable[[ToolChange], "bool | Awaitable[bool]"]


class ToolPins:
    """A JSON file with the SHA-256 of every pinned tool definition, by server and tool."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def find_changes(self, server: str, tools: Sequence[ExecutableTool]) -> list[ToolChange]:
        """Return the tools that are new or have changed; none if the server has no pins yet."""
        pinned = self._load().get(server)
        if pinned is None:
            return []
        changed = [tool for tool in tools if pinned.get(tool.name) != tool.digest]
        return [ToolChange(server, tool.description, pinned.get(tool.name)) for tool in changed]

    def keep(self, server: str, tools: Sequence[ExecutableTool]) -> None:
        """Pin these tools.

        Pins of tools that are no longer listed stay, so that a tool that returns with another
        definition counts as changed.
        """
        pins = self._load()
        before = pins.get(server)
        after = {**(before or {}), **{tool.name: tool.digest for tool in tools}}
        if before == after:
            return
        pins[server] = after
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f"{self.path.name}.{os.getpid()}.partial")
        partial.write_bytes(
            msgspec.json.format(msgspec.json.encode(pins, order="sorted"), indent=2) + b"\n"
        )
        partial.replace(self.path)

    def _load(self) -> dict[str, dict[str, str]]:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=dict[str, dict[str, str]])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise ToolFailure(
                "not_started", f"{self.path}: pinned tools cannot be read: {error}"
            ) from error
