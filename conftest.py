"""Loads the package's own pytest plugin late enough that the coverage of its imports is counted.

A user gets the plugin by its entry point, which comes before coverage starts; ``-p no:dragoman``
in pyproject.toml keeps that from happening here. A copy of a box without the kit has no plugin.
"""

from importlib.util import find_spec

pytest_plugins = ["dragoman.testing"] if find_spec("dragoman.testing") else []
