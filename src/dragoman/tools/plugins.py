"""Gather the tools of a session: tools, plain functions, and the tools of other packages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from ..messages import Tool
from ..provider.plugins import load_plugin
from .external import ExternalTool
from .function import FunctionTool
from .runtime import ExecutableTool, Toolbox

Tools: TypeAlias = Iterable[ExecutableTool | Tool | Callable[..., Any]] | Toolbox | None
"""What a session takes as its tools."""


def gather_tools(tools: Tools) -> Toolbox:
    """Return a toolbox of tools and plain functions; functions get the side effect ``execute``.

    A description is a tool if it is ``external``.
    """
    if isinstance(tools, Toolbox):
        return tools
    problem = " cannot be run; give a function or an ExecutableTool"
    if callable(tools) or isinstance(tools, ExecutableTool | Tool):
        raise TypeError("tools must be a list; write [...] around the one tool")
    return Toolbox(
        [_as_tool(each, f"tools[{at}]:", problem) for at, each in enumerate(tools or ())]
    )


def plugin_tools(names: Iterable[str]) -> list[ExecutableTool]:
    """Return the tools of entry points of the group ``dragoman.tools``.

    An entry point is a tool, a function (which is converted), or a list of them. A missing or
    invalid one raises ``ValueError``.
    """
    found: list[ExecutableTool] = []
    for name in names:
        loaded = load_plugin("dragoman.tools", name)
        listed = loaded if isinstance(loaded, list | tuple) else [loaded]
        place = f"the plugin {name!r} offers"
        problem = ", which is not a tool"
        found += [_as_tool(each, place, problem) for each in listed]
    return found


def _as_tool(value: Any, place: str, problem: str) -> ExecutableTool:
    if isinstance(value, ExecutableTool):
        return value
    if isinstance(value, Tool) and value.external:
        return ExternalTool(value)
    if callable(value):
        return FunctionTool(value)
    raise ValueError(f"{place} {type(value).__name__}{problem}")
