"""Build JSON Schemas of types and functions from hints, constraints, defaults and docstrings.

Pydantic is not a dependency: its models, and the constraints of its ``Field``, are recognised by
their attributes. A caller who uses them has imported Pydantic, which then writes their schemas.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection
from functools import partial
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import field

__all__ = [
    "called_by", "describe_function", "field_defaults", "mentions_pydantic", "pydantic_adapter",
    "read_docstring", "schema_of",
]  # fmt: skip

_PYDANTIC = frozenset({"pydantic", "annotated_types"})


def describe_function(
    function: Callable[..., Any], name: str | None = None
) -> tuple[str, str, dict[str, Any]]:
    """Return a function's name, its description and the JSON Schema of its parameters."""
    subject: Any = function
    filled: set[str] = set()
    while isinstance(subject, partial):
        filled |= set(subject.keywords)
        subject = subject.func
    name = name or str(getattr(subject, "__name__", type(subject).__name__))
    if name == "<lambda>":
        raise TypeError(
            "a lambda has no name that a model could call it by; give it one: name=..."
        )
    hints = get_type_hints(called_by(function), include_extras=True)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{name}: *args and **kwargs have no JSON Schema; name the parameters")
        if parameter.name in filled:
            continue
        if parameter.name not in hints:
            raise TypeError(
                f"{name}: the parameter {parameter.name} has no type hint, which the model needs; "
                f"write for example {parameter.name}: str"
            )
        fields.append(_describe_parameter(parameter, hints[parameter.name]))
    schema = schema_of(msgspec.defstruct(name, fields, kw_only=True))
    schema.pop("title", None)
    properties = schema["properties"]
    description, parameters = read_docstring(inspect.getdoc(subject) or "", properties)
    for each, text in parameters.items():
        properties[each].setdefault("description", text)
    return name, description, schema


def field_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the Pydantic ``Field`` of each parameter that has one as its default.

    If such an argument is omitted, Python passes the ``Field`` object itself to the function.
    """
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if _is_field(each.default)}


def _describe_parameter(parameter: inspect.Parameter, hint: Any) -> tuple[Any, ...]:
    default = parameter.default
    if _is_field(default):
        # If the Field is part of the hint, Pydantic writes the default value into the schema.
        hint = Annotated[hint, default]
        default = parameter.empty if default.is_required() else msgspec.UNSET
    described = _describe_hint(hint)
    if default is parameter.empty:
        return parameter.name, described
    if isinstance(default, list | dict | set) or hasattr(default, "model_json_schema"):
        return parameter.name, described, field(default_factory=lambda: default)
    return parameter.name, described, default


def _describe_hint(hint: Any) -> Any:
    """Return a hint that msgspec can describe.

    A string in ``Annotated`` becomes a description; a hint with Pydantic constraints is replaced
    by a class whose schema Pydantic writes.
    """
    base, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if _has_constraints(hint):
        adapter = sys.modules["pydantic"].TypeAdapter(hint)
        base = type("Constrained", (), {"model_json_schema": staticmethod(adapter.json_schema)})
        notes = [note for note in notes if isinstance(note, str)]
    metas = [msgspec.Meta(description=note) if isinstance(note, str) else note for note in notes]
    return Annotated[(base, *metas)] if metas else base


def pydantic_adapter(kind: Any) -> Any:
    """Return a Pydantic adapter for a type that contains Pydantic models or constraints.

    The result is ``None`` for any other type, and for a Pydantic model itself.
    """
    if hasattr(kind, "model_json_schema") or not mentions_pydantic(kind):
        return None
    return sys.modules["pydantic"].TypeAdapter(kind)


def mentions_pydantic(kind: Any) -> bool:
    """Return whether a type contains Pydantic models or constraints."""
    return any(
        hasattr(part, "model_json_schema") or mentions_pydantic(part) for part in get_args(kind)
    ) or (_has_constraints(kind))


def _has_constraints(hint: Any) -> bool:
    """Return whether a hint has Pydantic annotations; ``False`` if Pydantic is not imported."""
    if "pydantic" not in sys.modules:
        return False
    return any(_is_note(part) or _has_constraints(part) for part in get_args(hint))


def _is_note(part: Any) -> bool:
    return not isinstance(part, type) and type(part).__module__.partition(".")[0] in _PYDANTIC


def _is_field(default: Any) -> bool:
    return (
        _is_note(default) and hasattr(default, "is_required") and hasattr(default, "get_default")
    )


def called_by(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function whose type hints describe a callable.

    For a ``functools.partial`` that is the wrapped function; for other objects, their
    ``__call__``.
    """
    while isinstance(function, partial):
        function = function.func
    is_plain = inspect.isroutine(function) or inspect.isclass(function)
    return function if is_plain else type(function).__call__


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type, with the type at the root rather than in a ``$ref``."""
    # a Pydantic model is recognised by its method, because Pydantic is not a dependency
    if hasattr(kind, "model_json_schema"):
        return _unwrapped(dict(kind.model_json_schema()))
    foreign = _Foreign({})
    schema = msgspec.json.schema(kind, schema_hook=foreign)
    # Two definitions have the same name, so the ones from Pydantic are renamed.
    if not foreign.found.keys().isdisjoint(schema.get("$defs", {})):
        foreign = _Foreign(schema["$defs"])
        schema = msgspec.json.schema(kind, schema_hook=foreign)
    if foreign.found:
        schema["$defs"] = {**schema.get("$defs", {}), **foreign.found}
    return _unwrapped(schema)


class _Foreign:
    """Describe the Pydantic models inside a type for msgspec; collect their definitions."""

    def __init__(self, taken: dict[str, Any]) -> None:
        self._taken = taken
        self.found: dict[str, Any] = {}

    def __call__(self, kind: Any) -> dict[str, Any]:
        if not hasattr(kind, "model_json_schema"):
            raise NotImplementedError  # msgspec replaces this error with one that names the type
        schema, definitions = self._describe(kind)
        self.found.update(definitions)
        return schema

    def _describe(self, kind: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a Pydantic model's schema, and its definitions under names not yet in use."""
        prefix = ""
        count = 1
        while True:
            schema = dict(kind.model_json_schema(ref_template=f"#/$defs/{prefix}{{model}}"))
            definitions = {prefix + name: each for name, each in schema.pop("$defs", {}).items()}
            if definitions.keys().isdisjoint(self._taken) and all(
                self.found.get(name, each) == each for name, each in definitions.items()
            ):
                return schema, definitions
            count += 1
            prefix = f"other{count}_"


def _unwrapped(schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref", "")
    if reference.startswith("#/$defs/"):
        definitions = dict(schema["$defs"])
        root = dict(definitions[reference.removeprefix("#/$defs/")])
        if reference not in _references(definitions):
            del definitions[reference.removeprefix("#/$defs/")]
        schema = {**root, "$defs": definitions} if definitions else root
    return schema


def _references(node: Any) -> set[str]:
    if isinstance(node, dict):
        found = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return found.union(*[_references(value) for value in node.values()])
    if isinstance(node, list):
        return set().union(*[_references(value) for value in node])
    return set()


# --- reading docstrings ------------------------------------------------------------------------

# These patterns are compiled on first use, because most programs never describe a function.
_GOOGLE = r"\s*(?:Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments):\s*$"
_GOOGLE_ENTRY = r"^\*{0,2}(\w++)\s*+(?:\([^)]*+\))?\s*+:\s*+(.*)"
_NUMPY = r"\s*(?:Other )?Parameters\s*$"
_NUMPY_ENTRY = r"^\*{0,2}(\w++)\s*+(?::.*)?$"
_RULE = r"\s*-{3,}\s*$"
_SPHINX = (
    r"^\s*+:(?:param|parameter|arg|argument|key|keyword)\s++(?:[^:]*\s)?\*{0,2}(\w++)\s*+:\s*+(.*)"
)
_SPHINX_TYPE = r"\s*:type\s+\w+\s*:"


def read_docstring(text: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """Split a docstring into the description and the descriptions of the parameters ``names``.

    A section that describes none of them stays in the description.
    """
    lines = text.splitlines()
    kept: list[str] = []
    found: dict[str, str] = {}
    at = 0
    while at < len(lines):
        end, entries = _read_section(lines, at)
        known = {name: " ".join(words) for name, words in entries.items() if name in names}
        if known or (end > at and not entries):
            found |= {name: words for name, words in known.items() if words}
        else:
            end = max(end, at + 1)
            kept += lines[at:end]
        at = end
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip(), found


def _read_section(lines: list[str], at: int) -> tuple[int, dict[str, list[str]]]:
    """Read the docstring section that begins at line ``at``.

    Return the number of the line after the section, and the section's entries. If no section
    begins there, return ``at`` and no entries.
    """
    line = lines[at]
    if re.match(_GOOGLE, line):
        return _read_entries(lines, at + 1, _indent(line) + 1, re.compile(_GOOGLE_ENTRY))
    if re.match(_NUMPY, line) and at + 1 < len(lines) and re.match(_RULE, lines[at + 1]):
        return _read_entries(lines, at + 2, _indent(line), re.compile(_NUMPY_ENTRY))
    if re.match(_SPHINX, line):
        return _read_entries(lines, at, _indent(line), re.compile(_SPHINX), most=1)
    if re.match(_SPHINX_TYPE, line):
        return at + 1, {}
    return at, {}


def _read_entries(
    lines: list[str], at: int, least: int, entry: re.Pattern[str], most: int | None = None
) -> tuple[int, dict[str, list[str]]]:
    """Read the entries of a docstring section, until a less indented line or the next section.

    More deeply indented lines below an entry belong to it.
    """
    entries: dict[str, list[str]] = {}
    depth: int | None = None
    words: list[str] = []
    while at < len(lines):
        line = lines[at]
        if line.strip():
            indent = _indent(line)
            depth = indent if depth is None else depth
            is_section = at + 1 < len(lines) and re.match(_RULE, lines[at + 1])
            if indent < least or is_section:
                break
            if indent <= depth:
                named = entry.match(line[0 if most else indent :])
                if named is None or len(entries) == most:
                    break
                words = entries.setdefault(named[1], [])
                words += [named[2]] if named.re.groups > 1 and named[2] else []
            else:
                words.append(line.strip())
        elif most:
            break
        at += 1
    return at, entries


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
