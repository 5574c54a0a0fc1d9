"""Tools that the provider runs by itself, written as each wire has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import UnsupportedFeatureError
from ..messages import ServerTool
from .json import ordered_json

PORTABLE = ("web_search", "code_execution", "url_context", "file_search", "computer_use")


def write_server_tools(
    tools: Sequence[ServerTool], known: Mapping[str, Mapping[str, Any]], other: Callable[[str], dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """Return the tools with the options of the caller over the fields that a wire has for each.

    A name of the wire's own is written by ``other``; one that is not known and portable is refused.
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
        written.append({**fields, **{name: ordered_json(value) for name, value in tool.options.items()}})
    return written
