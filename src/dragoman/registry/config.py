"""Strict YAML: what is written is what is read, and every complaint names file and line.

YAML 1.2's plain scalars only: ``no``, ``on``, ``12:30:45`` and dates are text. Duplicate keys, tabs and
files beyond reason are refused. Nothing is half-loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

__all__ = ["ConfigError", "Section", "read_yaml"]

MAX_BYTES = 4 * 1024 * 1024
MAX_NODES = 200_000


class ConfigError(ValueError):
    """A configuration file is wrong; the message names it and the line."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Plain scalars by YAML 1.2's core schema."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))


class Section:
    """A mapping of the file, with the lines its keys are on."""

    def __init__(self, path: str, data: dict[str, Any], lines: dict[str, int], name: str = "", line: int = 1) -> None:
        self.path = path
        self.data = data
        self.lines = lines
        self.name = name
        self.line = line

    def fail(self, problem: str, key: str | None = None) -> ConfigError:
        """An error at a key of this section, or at the section itself."""
        line = self.lines.get(key, self.line) if key is not None else self.line
        where = ".".join([part for part in (self.name, key) if part])
        return ConfigError(f"{self.path}:{line}: {where + ': ' if where else ''}{problem}")

    def allow(self, *keys: str) -> None:
        """Refuse keys that mean nothing here."""
        for key in self.data:
            if key not in keys:
                raise self.fail(f"unknown key; one of {', '.join(keys)}", key)

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """A value of a kind, or the default when it is absent or null."""
        value = self.data.get(key)
        if value is None:
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.fail(f"must be {' or '.join(_KINDS[each] for each in kinds)}, not {_KINDS[type(value)]}", key)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, or none."""
        values = self.get(key, list, [])
        for value in values:
            if not isinstance(value, str):
                raise self.fail("must be a list of texts", key)
        return tuple(values)

    def section(self, key: str) -> Section:
        """A nested mapping; an absent one is empty."""
        value = self.data.get(key)
        if value is None:
            return Section(self.path, {}, {}, self._named(key), self.lines.get(key, self.line))
        if not isinstance(value, Section):
            raise self.fail(f"must be a mapping, not {_KINDS[type(value)]}", key)
        value.name = self._named(key)
        return value

    def sections(self) -> Iterator[tuple[str, Section]]:
        """Every key with its mapping."""
        for key in self.data:
            yield key, self.section(key)

    def plain(self) -> dict[str, Any]:
        """The mapping and all inside it as ordinary values."""
        return {key: _plain(value) for key, value in self.data.items()}

    def _named(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.plain()
    return [_plain(item) for item in value] if isinstance(value, list) else value


_KINDS: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    Section: "a mapping",
    type(None): "nothing",
}


def read_yaml(path: Path | Any, name: str | None = None) -> Section:
    """Read a file whose root is a mapping; ``ConfigError`` in one line for whatever is wrong with it."""
    shown = name or str(path)
    try:
        if path.stat().st_size > MAX_BYTES if hasattr(path, "stat") else False:
            raise ConfigError(f"{shown}: larger than {MAX_BYTES // 1024 // 1024} MiB; this is no such file")
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{shown}: not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{shown}: cannot be read: {error.strerror or error}") from None
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "not YAML"
        raise ConfigError(f"{shown}:{mark.line + 1 if mark else 1}: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{shown}: nested too deeply") from None
    if node is None:
        return Section(shown, {}, {})
    read = _Builder(shown).build(node)
    if not isinstance(read, Section):
        raise ConfigError(f"{shown}:1: must be a mapping, not {_KINDS[type(read)]}")
    return read


class _Builder:
    """Turns composed nodes into values, and counts them: an alias can stand for a million."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._count = 0

    def build(self, node: Any) -> Any:
        self._count += 1
        if self._count > MAX_NODES:
            raise ConfigError(f"{self._path}:{node.start_mark.line + 1}: too many values; aliases that multiply?")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item) for item in node.value]
        return self._scalar(node)

    def _mapping(self, node: Any) -> Section:
        data: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{self._path}:{line}: a key must be text")
            key = key_node.value
            if key in data:
                raise ConfigError(f"{self._path}:{line}: {key!r} is there twice, first on line {lines[key]}")
            data[key], lines[key] = self.build(value_node), line
        return Section(self._path, data, lines, line=node.start_mark.line + 1)

    def _scalar(self, node: Any) -> Any:
        kind = node.tag.rpartition(":")[2]
        if kind == "str":
            return node.value
        if kind == "bool":
            return node.value.lower() == "true"
        if kind == "null":
            return None
        if kind in ("int", "float"):
            return int(node.value) if kind == "int" and len(node.value) < 40 else float(node.value)
        raise ConfigError(f"{self._path}:{node.start_mark.line + 1}: the tag {node.tag} is not allowed")
