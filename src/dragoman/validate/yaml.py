"""Strict YAML: no implicit conversions, and every error names the file and the line.

Plain scalars follow YAML 1.2: ``no``, ``on``, ``12:30:45`` and dates are strings. Duplicate keys,
tabs and oversized files are rejected. A file is loaded completely or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, fields

from .fields import KINDS, Fields, kind_of

__all__ = ["ConfigError", "Section", "locate", "parse_yaml", "plain", "read_yaml"]

T = TypeVar("T")

MAX_BYTES = 4 * 1024 * 1024
MAX_NODES = 200_000
MAX_DEPTH = 100
_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


class ConfigError(ValueError):
    """A configuration file is invalid; the message names the file and the line."""

    def __init__(self, path: str, line: int | None, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}" if line is not None else f"{path}: {problem}")
        self.path = path
        self.line = line
        self.problem = problem

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.line, self.problem)


@cache
def _loader() -> Any:
    """Return a loader that follows the YAML 1.2 core schema for plain scalars."""
    import yaml  # lazy import: slow, and needed only for configuration files

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - as in the parent class

    for tag, pattern, first in (
        ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
        ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        ("int", r"[-+]?[0-9]+", "-+0123456789"),
        ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ):
        Loader.add_implicit_resolver(
            f"tag:yaml.org,2002:{tag}", re.compile(rf"^(?:{pattern})$"), list(first)
        )
    return Loader


@cache
def _list_fields(struct: type[Struct]) -> tuple[FieldInfo, ...]:
    """Return the fields of a struct, whose annotations take milliseconds to evaluate."""
    return fields(struct)


class Section(Fields):
    """A mapping in a YAML file, with the line of each key.

    With a list of ``problems``, mistakes are collected in the list instead of raised, so that all
    mistakes in a file are reported at once.
    """

    UNKNOWN = "unknown key"
    EMPTY = ()  # an unknown key is an error even if it has no value

    def __init__(
        self,
        path: str,
        data: dict[str, Any],
        lines: dict[str, int],
        problems: list[ConfigError] | None = None,
        *,
        where: str = "",
        line: int = 1,
    ) -> None:
        super().__init__(data, where)
        self.path = path
        self.lines = lines
        self.problems = problems
        self.line = line

    def complain(self, problem: str, name: str | None = None) -> None:
        """Raise the error for a problem, or add it to the list of problems."""
        if self.problems is None:
            raise self.fail(problem, name)
        self.problems.append(self.fail(problem, name))

    def fail(self, problem: str, name: str | None = None) -> ConfigError:
        """Return the error for a problem with a key of this section or with the section itself."""
        place = self.where if name is None else self.at(name)
        return ConfigError(
            self.path, self._line_of(name), f"{place}: {problem}" if place else problem
        )

    def section(self, key: str) -> Section:
        """Return the nested mapping under a key; if the key is absent, an empty mapping."""
        return self.inner(key) or Section(
            self.path, {}, {}, self.problems, where=self.at(key), line=self._line_of(key)
        )

    def sections(self) -> Iterator[tuple[str, Section]]:
        """Yield every key together with its nested mapping."""
        for key in self.data:
            yield key, self.section(key)

    def enter(self, name: str, value: Any) -> Section:
        """Return a nested mapping.

        If the value is not a mapping, report an error and return an empty mapping.
        """
        if isinstance(value, Section):
            value.where = self.at(name)
            return value
        self.complain(f"must be a mapping, not {kind_of(value)}", name)
        return Section(
            self.path, {}, {}, self.problems, where=self.at(name), line=self._line_of(name)
        )

    def values(
        self, struct: type[Struct], *, without: Sequence[str] = (), more: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Read the fields of a struct by their types, and return those that are set.

        Reject keys that are neither fields, except those of ``without``, nor in ``more``. Fields
        that are not strings, numbers, booleans, choices or lists of strings are left to the
        caller. The error about a number out of its bounds quotes the field's description.
        """
        known = [each for each in _list_fields(struct) if each.name not in without]
        self.allow(*[each.name for each in known], *more)
        found = {each.name: self._read_value(each.name, each.type) for each in known}
        return {name: value for name, value in found.items() if value is not None}

    def _read_value(self, name: str, kind: Any) -> Any:
        """Return the value of a key if it is set and of this type, otherwise ``None``."""
        bounds = next(iter(getattr(kind, "__metadata__", ())), Meta())
        kind = kind.__origin__ if hasattr(kind, "__metadata__") else kind
        members = [each for each in get_args(kind) if each is not type(None)]
        if get_origin(kind) is Literal or (members and get_origin(members[0]) is Literal):
            return self.choice(name, get_args(members[0]) or members)
        if members == [str, ...] or (members == [str] and get_origin(kind) is Sequence):
            return self.texts(name)
        kind = members[0] if len(members) == 1 else kind
        if kind not in (str, bool, int, float):
            return None
        value = self.get(name, (int, float) if kind is float else kind)
        is_low = value is not None and bounds.ge is not None and value < bounds.ge
        if is_low or (value is not None and bounds.le is not None and value > bounds.le):
            self.complain(f"must be {bounds.description}", name)
            return None
        return value

    def convert(self, kind: type[T]) -> T:
        """Convert the section to a struct; raise ``ConfigError`` if it does not have its form."""
        try:
            return msgspec.convert(self.plain(), kind)
        except ValueError as error:
            problem = locate(error)
            line = self.find_line(problem.partition(":")[0])
            raise ConfigError(self.path, line, problem) from None

    def plain(self) -> dict[str, Any]:
        """Convert the section, and all sections in it, to plain dictionaries."""
        return {key: plain(value) for key, value in self.data.items()}

    def find_line(self, path: str) -> int:
        """Return the line of the value at a path such as ``rows[1].input``.

        If there is no such value, return the line of the nearest enclosing one.
        """
        line = self.line
        value = self
        for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
            if isinstance(value, Section) and name in value.data:
                line = value.lines.get(name, value.line)
                value = value.data[name]
            elif isinstance(value, list) and index and int(index) < len(value):
                value = value[int(index)]
                line = value.line if isinstance(value, Section) else line
            else:
                break
        return line

    def _line_of(self, name: str | None) -> int:
        """Return the line of a key, or of the section if the key is unknown.

        For ``name[0]``, return the line of ``name``.
        """
        name = name or ""
        return self.lines.get(name) or self.lines.get(name.partition("[")[0], self.line)


def plain(value: Any) -> Any:
    """Return a value with each section in it converted to a plain dictionary."""
    if isinstance(value, Section):
        return value.plain()
    return [plain(item) for item in value] if isinstance(value, list) else value


def locate(error: ValueError) -> str:
    """Return the text of a msgspec error with the field's path in front, not at the end."""
    text, _, place = str(error).partition(" - at `$")
    place = place.strip("`.")
    return f"{place}: {text}" if place else text


KINDS[Section] = "a mapping"


def read_yaml(path: Path, problems: list[ConfigError] | None = None) -> Section:
    """Read a YAML file whose root is a mapping; raise a one-line ``ConfigError`` if that fails.

    With a list as ``problems``, errors that are found later in its sections are appended to the
    list instead of raised.
    """
    shown = str(path)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(shown, None, f"cannot be read: {error.strerror or error}") from None
    if len(text) > MAX_BYTES:
        raise ConfigError(
            shown,
            None,
            f"larger than {MAX_BYTES // 1024 // 1024} MiB; this is not a configuration file",
        )
    return parse_yaml(text, shown, problems)


def parse_yaml(data: bytes, shown: str, problems: list[ConfigError] | None = None) -> Section:
    """Parse the text of a YAML file that has been read already; see ``read_yaml``."""
    import yaml  # lazy import: slow, and needed only for configuration files

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(shown, None, "not UTF-8 text") from None
    try:
        _check_depth(text, shown)
        node = yaml.compose(text, Loader=_loader())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
        if (
            mark
            and problem.startswith("found character")
            and text[mark.index : mark.index + 1] == "\t"
        ):
            problem = "a tab cannot indent a line; use spaces"
        raise ConfigError(shown, mark.line + 1 if mark else 1, problem) from None
    if node is None:
        return Section(shown, {}, {}, problems)
    read = _Builder(shown, problems).build(node)
    if not isinstance(read, Section):
        raise ConfigError(shown, 1, f"must be a mapping, not {kind_of(read)}")
    return read


def _check_depth(text: str, shown: str) -> None:
    """Reject YAML that is nested too deeply or contains itself: libyaml would crash on it."""
    import yaml  # lazy import: slow, and needed only for configuration files

    # For each list or mapping that is still open: its anchor, and the depth of nesting inside it.
    opened: list[tuple[str | None, int]] = []
    depths: dict[str | None, int] = {}
    for event in yaml.parse(text, Loader=_loader()):
        inside = 0
        line = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, 0))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, inside = opened.pop()
            depths[anchor] = inside = inside + 1
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in [anchor for anchor, _ in opened]:
                raise ConfigError(
                    shown, line, f"the alias *{event.anchor} stands inside what it stands for"
                )
            inside = depths.get(event.anchor, 0)
        if len(opened) + inside > MAX_DEPTH:
            raise ConfigError(shown, line, f"nested more than {MAX_DEPTH} deep")
        if opened and inside > opened[-1][1]:
            opened[-1] = (opened[-1][0], inside)


class _Builder:
    """Convert YAML nodes to values; limit their number, as aliases can expand to millions."""

    def __init__(self, path: str, problems: list[ConfigError] | None) -> None:
        self._path = path
        self._count = 0
        self._problems = problems

    def build(self, node: Any) -> Any:
        self._count += 1
        if self._count > MAX_NODES:
            raise self._fail(node, "too many values; aliases that multiply?")
        if node.id != "scalar" and node.tag not in _COLLECTIONS:
            raise self._fail(node, f"the tag {node.tag} is not allowed")
        if node.id == "mapping":
            return self._mapping(node)
        if node.id == "sequence":
            return [self.build(item) for item in node.value]
        return self._scalar(node)

    def _fail(self, node: Any, problem: str) -> ConfigError:
        return ConfigError(self._path, node.start_mark.line + 1, problem)

    def _mapping(self, node: Any) -> Section:
        data: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.id != "scalar":
                raise self._fail(key_node, "a key must be text")
            key = key_node.value
            if key in data:
                raise self._fail(key_node, f"{key!r} is there twice, first on line {lines[key]}")
            data[key] = self.build(value_node)
            lines[key] = key_node.start_mark.line + 1
            if value_node.id == "sequence":
                lines |= {
                    f"{key}[{at}]": item.start_mark.line + 1
                    for at, item in enumerate(value_node.value)
                }
        return Section(self._path, data, lines, self._problems, line=node.start_mark.line + 1)

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
        raise self._fail(node, f"the tag {node.tag} is not allowed")
