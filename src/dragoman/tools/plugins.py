"""Tools of other packages, found by entry points of the group ``dragoman.tools``."""

from __future__ import annotations

from collections.abc import Iterable

from ..plugins import load_plugin
from .function import tool
from .runtime import ExecutableTool


def plugin_tools(names: Iterable[str]) -> list[ExecutableTool]:
    """Return the tools of entry points; raise ``ValueError`` for a missing or invalid one.

    An entry point is a tool, a function (which is converted), or a list of them.
    """
    found: list[ExecutableTool] = []
    for name in names:
        loaded = load_plugin("dragoman.tools", name)
        for each in loaded if isinstance(loaded, list | tuple) else [loaded]:
            if isinstance(each, ExecutableTool):
                found.append(each)
            elif callable(each):
                found.append(tool(each))
            else:
                raise ValueError(
                    f"the plugin {name!r} offers {type(each).__name__}, which is not a tool"
                )
    return found
