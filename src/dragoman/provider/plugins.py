"""Plugins: other packages that extend this one, found by their entry points.

====================  ====================================================================================
``dragoman.vendors``  a vendor: ``name = "package:file.yaml"``, in the form of the bundled catalogue
``dragoman.wires``    a wire: ``name = "package.module:Codec"``, the class of a ``Codec``
``dragoman.tools``    tools: ``name = "package.module:object"``, a function, a tool, or a list of them
====================  ====================================================================================

Entry points are looked up when a name is not built in, and loaded when they are used. Built-in
names take precedence.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..wire import CODECS, add_codec, loading

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["PluginGroup", "find_plugins", "load_plugin", "load_wires", "read_plugin_file"]

log = logging.getLogger("dragoman")

PluginGroup: TypeAlias = Literal["dragoman.vendors", "dragoman.wires", "dragoman.tools"]


@cache
def find_plugins(group: PluginGroup) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; of two with the same name, keep the first."""
    from importlib.metadata import entry_points  # lazy import: slow, needed only for plugins

    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        if point.name in found:
            log.warning(
                "two packages define %s %s; %s is not used", group, point.name, point.value
            )
        else:
            found[point.name] = point
    return found


def load_plugin(group: PluginGroup, name: str) -> Any:
    """Return the object that an entry point names; raise ``ValueError`` if it cannot be loaded."""
    point = find_plugins(group).get(name)
    if point is None:
        raise ValueError(f"no package offers {name!r} as an entry point of {group}")
    with loading(f"the plugin {name!r} ({point.value})"):
        return point.load()


def read_plugin_file(group: PluginGroup, name: str) -> bytes:
    """Return the file that an entry point ``package:file`` names."""
    from importlib.resources import files  # lazy import: slow, needed only for plugins

    point = find_plugins(group)[name]
    try:
        return files(point.module).joinpath(point.attr).read_bytes()
    except (OSError, ImportError, AttributeError) as error:  # of an entry point without a form
        raise ValueError(f"the plugin {name!r} ({point.value}) cannot be read: {error}") from error


@cache
def load_wires() -> None:
    """Add the wires of other packages to ``CODECS``."""
    for name, point in find_plugins("dragoman.wires").items():
        if name in CODECS:
            log.warning("the wire %s is built in; %s is not used", name, point.value)
        else:
            add_codec(name, point.value)
