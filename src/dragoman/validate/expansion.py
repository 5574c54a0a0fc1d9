"""Limit the work that validation with a JSON Schema can cause, before compiling the schema.

References turn a schema into a graph: 40 definitions, each of which refers twice to the one before
it, take 3 KB and have 2^40 paths. The paths are counted without following each of them, in time
linear in the size of the schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from msgspec import Struct

MAX_PATHS = 10_000
MAX_LEVELS = 128
_MAX_SAME_NAME = 16
_CEILING = 10**9  # counts are capped at this number
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
# Keywords, grouped by what their subschemas apply to: to the value itself (_SAME), to any property
# of an object (_ANY_NAME), or to any item of a list (_ANY_INDEX).
_SAME_LISTS = ("allOf", "anyOf", "oneOf")
_SAME = ("not", "if", "then", "else")
_SAME_MAPS = ("dependentSchemas", "dependencies")
_ANY_NAME = ("propertyNames", "unevaluatedProperties")
_ANY_INDEX = ("contains", "unevaluatedItems")
# To apply these keywords, the validator evaluates the schema's other keywords again, to find out
# which properties or items they cover. Measured: they are evaluated three times in all.
_AGAIN = ("unevaluatedProperties", "unevaluatedItems")


class Expansion(NamedTuple):
    """The cost of validation with a schema.

    ``paths`` is the largest number of checks for one part of a value, and ``growth`` is the factor
    by which recursion can multiply this number at each level.
    """

    paths: int
    growth: int


class _Node(Struct, eq=False):
    """A subschema as a node of a graph.

    Its edges lead to the subschemas that apply to the same value or to parts of the value.
    """

    same: list[int] = []
    references: list[int] = []
    parts: dict[str, list[int]] = {}
    any_name: list[int] = []
    any_index: list[int] = []
    weight: int = 1

    def edges(self) -> Iterator[int]:
        """Yield the index of every subschema that this subschema contains or refers to."""
        yield from self.same
        yield from self.references
        for part in self.parts.values():
            yield from part
        yield from self.any_name
        yield from self.any_index


def measure(schema: dict[str, Any]) -> Expansion:
    """Return the cost of validation with a schema.

    Raise ``ValueError`` if the schema has too many paths, or if a reference has no target.
    """
    nodes = _Graph(schema).nodes
    if _find_order({at: [*each.same, *each.references] for at, each in enumerate(nodes)}) is None:
        raise ValueError("a reference leads back to itself without going into the value")
    component = _find_components(nodes)

    onward = [
        [each for each in node.references if component[each] != component[at]]
        for at, node in enumerate(nodes)
    ]
    order = _find_order({at: _edges_onward(node, onward[at]) for at, node in enumerate(nodes)})
    # An order exists: every cycle contains a reference within a strongly connected component, and
    # these references were excluded.
    assert order is not None
    paths = [1] * len(nodes)
    growth = [0] * len(nodes)
    for at in order:
        node = nodes[at]
        further = onward[at]
        again = len(node.references) - len(further)
        paths[at] = min(_CEILING, 1 + again + _total(node, further, paths))
        growth[at] = min(_CEILING, again + _total(node, further, growth))
    if max(paths) > MAX_PATHS:
        raise ValueError(f"its references and combinations expand to more than {MAX_PATHS} paths")
    return Expansion(max(paths), max(growth))


def _edges_onward(node: _Node, further: list[int]) -> list[int]:
    parts = [each for part in node.parts.values() for each in part]
    return [*node.same, *further, *parts, *node.any_name, *node.any_index]


def _total(node: _Node, further: list[int], counts: list[int]) -> int:
    """Return the total of ``counts`` for the subschemas that a subschema contains or refers to.

    Properties with a fixed name and items with a fixed index are different parts of a value, so
    only the largest of their counts is added.
    """
    same = node.weight * sum([counts[each] for each in [*node.same, *further]])
    names = sum([counts[each] for each in node.any_name])
    indexes = sum([counts[each] for each in node.any_index])
    parts = [sum([counts[each] for each in part]) for part in node.parts.values()]
    return same + names + indexes + max(parts, default=0)


# --- the graph of subschemas -------------------------------------------------------------------


class _Graph:
    """The graph of the subschemas that are reachable from the root of a schema."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._numbers: dict[int, int] = {}
        self._schemas: list[dict[str, Any]] = []
        self._resources: list[tuple[str, dict[str, Any]]] = [("", root)]
        self._anchors: dict[str, list[dict[str, Any]]] = {}
        self._index(root)
        self.nodes: list[_Node] = []
        self._number(root)
        for schema in self._schemas:  # reading a schema appends its subschemas to the list
            self.nodes.append(self._read(schema))

    def _index(self, root: dict[str, Any]) -> None:
        """Record the targets that references may name: resources with an ``$id``, and anchors."""
        identifies = "id" if "draft-04" in str(root.get("$schema")) else "$id"
        left: list[tuple[Any, str, int]] = [(root, "", 1)]
        while left:
            value, base, depth = left.pop()
            if depth > MAX_LEVELS:
                raise ValueError(f"it is nested more than {MAX_LEVELS} levels deep")
            if isinstance(value, list):
                left += [(each, base, depth + 1) for each in value]
            if not isinstance(value, dict):
                continue
            if isinstance(identity := value.get(identifies), str):
                base, fragment = urldefrag(_join(base, identity))
                self._resources.append((base, value))
                self._anchors.setdefault(fragment, []).append(value)
            for keyword in _ANCHORS:
                if isinstance(anchor := value.get(keyword), str):
                    self._anchors.setdefault(anchor, []).append(value)
            left += [(each, base, depth + 1) for each in value.values()]
        if (
            max(len(self._resources), *[len(each) for each in self._anchors.values()], 0)
            > _MAX_SAME_NAME
        ):
            raise ValueError(
                f"it has more than {_MAX_SAME_NAME} identifiers, or anchors of one name"
            )

    def _number(self, schema: dict[str, Any]) -> int:
        at = self._numbers.setdefault(id(schema), len(self._schemas))
        if at == len(self._schemas):
            self._schemas.append(schema)
        return at

    def _read(self, schema: dict[str, Any]) -> _Node:
        node = _Node([], [], {}, [], [], 3 if any(keyword in schema for keyword in _AGAIN) else 1)
        for keyword, value in schema.items():
            if keyword in _REFERENCES and isinstance(value, str):
                node.references += [self._number(each) for each in self._resolve(value)]
            elif keyword in _SAME_LISTS:
                node.same += self._all(value if isinstance(value, list) else [])
            elif keyword in _SAME:
                node.same += self._all([value])
            elif keyword in _SAME_MAPS and isinstance(value, dict):
                node.same += self._all(value.values())
            elif keyword in _ANY_NAME:
                node.any_name += self._all([value])
            elif keyword in _ANY_INDEX:
                node.any_index += self._all([value])
            else:
                self._read_parts(node, keyword, value)
        return node

    def _read_parts(self, node: _Node, keyword: str, value: Any) -> None:
        if keyword == "properties" and isinstance(value, dict):
            for name, each in value.items():
                node.parts.setdefault(f".{name}", []).extend(self._all([each]))
        elif keyword in ("items", "prefixItems") and isinstance(value, list):
            for at, each in enumerate(value):
                node.parts.setdefault(f"[{at}]", []).extend(self._all([each]))
        elif keyword == "patternProperties" and isinstance(value, dict):
            node.any_name += self._all(value.values())
        elif keyword in ("additionalProperties", "items", "additionalItems"):
            node.parts.setdefault(keyword, []).extend(self._all([value]))

    def _all(self, values: Any) -> list[int]:
        return [self._number(value) for value in values if isinstance(value, dict)]

    def _resolve(self, reference: str) -> list[dict[str, Any]]:
        """Return every part of the document that a reference may mean.

        In a schema without nested ``$id`` that is one part. With nested ones, every candidate is
        returned, so the count may be too high but never too low.
        """
        url, fragment = urldefrag(reference)
        fragment = unquote(fragment)
        meant = {_join(base, url) for base, _ in self._resources}
        found = [
            _follow(resource, fragment)
            for base, resource in self._resources
            if not url or base in meant
        ]
        found += self._anchors.get(fragment, []) if fragment else []
        targets = {id(each): each for each in found if isinstance(each, dict)}
        if (
            not targets
            and True not in found
            and False not in found
            and "//json-schema.org/" not in url
        ):
            raise ValueError(f"references out of the document are not followed: {reference[:200]}")
        return list(targets.values())


def _join(base: str, url: str) -> str:
    try:
        return urljoin(base, url)
    except ValueError:
        return url


def _follow(value: Any, pointer: str) -> Any:
    """Return the value that a JSON Pointer leads to, or ``None`` if there is none."""
    if pointer and not pointer.startswith("/"):
        return None
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(step)
        elif (
            isinstance(value, list)
            and step.isdecimal()
            and len(step) < 8
            and int(step) < len(value)
        ):
            value = value[int(step)]
        else:
            return None
    return value


# --- topological order and strongly connected components ---------------------------------------


def _find_order(edges: Mapping[int, Iterable[int]]) -> list[int] | None:
    """Return the nodes in topological order, dependencies first; ``None`` if there is a cycle."""
    try:
        return list(TopologicalSorter(edges).static_order())
    except CycleError:
        return None


def _find_components(nodes: list[_Node]) -> list[int]:
    """Return the strongly connected component of each node (Tarjan, without recursion)."""
    count = 0
    numbers = [-1] * len(nodes)
    low = [0] * len(nodes)
    component = [-1] * len(nodes)
    open_nodes: list[int] = []
    stack: list[tuple[int, Iterator[int]]] = []
    for start in range(len(nodes)):
        if numbers[start] < 0:
            stack.append((start, nodes[start].edges()))
            numbers[start] = low[start] = count
            count += 1
            open_nodes.append(start)
        while stack:
            at, left = stack[-1]
            following = next(left, None)
            if following is None:
                stack.pop()
                if stack:
                    low[stack[-1][0]] = min(low[stack[-1][0]], low[at])
                if low[at] == numbers[at]:
                    while component[at] < 0:
                        component[open_nodes.pop()] = at
            elif numbers[following] < 0:
                numbers[following] = low[following] = count
                count += 1
                open_nodes.append(following)
                stack.append((following, nodes[following].edges()))
            elif component[following] < 0:
                low[at] = min(low[at], numbers[following])
    return component
