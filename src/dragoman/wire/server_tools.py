"""Encode server-side tools, which the provider runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import UnsupportedFeatureError
from ..messages import ServerTool
from .json import ordered_json

PORTABLE = ("web_search", "code_execution", "url_context", "file_search", "computer_use")


def write_server_tools(
    tools: Sequence[ServerTool],
    known: Mapping[str, Mapping[str, Any]],
    other: Callable[[str], dict[str, Any]] | None,
) -> list[dict[str, Any]]:
    """Return server-side tools in the form of a wire. The caller's options override defaults.

    ``known`` has the portable tools that the wire supports; other portable tools are rejected.
    ``other`` encodes tools that only this wire has. Without ``other``, they are rejected too.
    """
    written = []
    for at, tool in enumerate(tools):
        if tool.name in known:
            fields = dict(known[tool.name])
        elif other is None or tool.name in PORTABLE:
            raise UnsupportedFeatureError(
                f"server_tools[{at}]: this wire has no tool {tool.name!r} that the provider runs"
            )
        else:
            fields = other(tool.name)
        written.append(
            {**fields, **{name: ordered_json(value) for name, value in tool.options.items()}}
        )
    return written
