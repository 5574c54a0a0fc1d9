"""JSON Schemas: measure, compile once, and cache by content up to a total size."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any, NamedTuple, NoReturn

import msgspec

from ..errors import InvalidRequestError, cut
from .expansion import measure
from .patterns import MAX_STEPS, find_objects, find_patterns, start_meter

MAX_SCHEMA = 256 * 1024
"""The longest schema that is compiled, in bytes of JSON."""
MAX_CHECKS = 2_000_000
"""How many checks one validation may take; a check compares one part of a value with one
subschema."""
_CACHED_SCHEMA = 64 * 1024  # largest schema to cache, in bytes of JSON
_CACHED_IN_ALL = 16 * 1024 * 1024  # size of the cache, in bytes of memory
# Validation with a schema of at most this many paths is fast, so the size of the value is not
# measured first.
_FEW_PATHS = 16


class Schema(NamedTuple):
    """A compiled schema, and the number of checks that it makes for each part of a value."""

    validator: Any
    paths: int
    growth: int
    names: int
    """How many steps of pattern matching each character of a property name counts as; 0 if the
    patterns for property names are cheap.
    """


def compile_schema(schema: Any, path: str) -> Schema:
    """Compile a schema; raise ``InvalidRequestError`` if it is invalid or too large.

    The error names ``path``.
    """
    if not isinstance(schema, dict):
        raise InvalidRequestError(
            f"{path} must be a JSON Schema object, not {type(schema).__name__}"
        )
    try:
        encoded = msgspec.json.encode(schema, order="sorted")
        # Compiling is the validity check: the metaschema alone misses bad patterns and dangling
        # references.
        return _cache.get(encoded) or _compile(encoded)
    except ValueError as error:  # the errors of the schema library are subclasses of ValueError
        reason = cut(str(error).partition("\n")[0], 200)
        raise InvalidRequestError(f"{path} is not a valid JSON Schema: {reason}") from error
    except (TypeError, RecursionError) as error:
        raise InvalidRequestError(f"{path} cannot be written as JSON: {error}") from error


def first_error(schema: Schema, value: Any) -> str | None:
    """Return the first violation in ``value`` and its path, or ``None`` if it is valid.

    Never raises.
    """
    try:
        depth, parts = (
            _measure_value(value) if schema.paths > _FEW_PATHS or schema.growth > 1 else (0, 1)
        )
        if parts * schema.paths > MAX_CHECKS:
            return "it is too large to be checked against this schema"
        if schema.names and _measure_names(value) * schema.names > MAX_STEPS:
            return (
                "its property names are too long to be checked against the patterns of this schema"
            )
        start_meter()
        if schema.validator.is_valid(value):
            return None
        # The library caches results while it validates, but not while it lists errors: it then
        # follows every path.
        if (
            schema.growth > 1
            and parts * schema.paths * schema.growth ** min(depth, 64) > MAX_CHECKS
        ):
            return "it does not satisfy the schema, and is nested too deeply to say where"
        start_meter()
        error = next(iter(schema.validator.iter_errors(value)))
    except (ValueError, RecursionError, OverflowError):
        return "it is nested too deeply to be checked, or has a number that is out of range"
    pointer = "".join(
        [f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.instance_path]
    )
    return f"{cut(error.message, 200)} at {cut(pointer, 200) or '/'}"


def has_final_error(schema: Schema, value: Any, open_path: list[str | int]) -> bool:
    """Return whether a finished part of an unfinished value violates the schema.

    The nodes along ``open_path`` are unfinished: they may become valid when more text arrives.
    """
    # A recursive or large schema is too expensive to check after every fragment.
    if schema.growth > 1 or schema.paths > _FEW_PATHS or schema.names:
        return False
    start_meter()
    try:
        paths = [error.instance_path for error in schema.validator.iter_errors(value)]
    except (ValueError, RecursionError, OverflowError):
        return True
    return any(path != open_path[: len(path)] for path in paths)


def _measure_value(value: Any) -> tuple[int, int]:
    """Return the depth of a value and the number of its parts; stop counting at ``MAX_CHECKS``."""
    depth = 0
    parts = 1
    level = [value]
    while level and parts <= MAX_CHECKS:
        depth += 1
        inner = [each for each in level if isinstance(each, dict | list)]
        level = [
            part for each in inner for part in (each.values() if isinstance(each, dict) else each)
        ]
        parts += len(level)
    return depth, parts


def _measure_names(value: Any) -> int:
    """Return the number of characters in the property names of a value."""
    return sum([sum(map(len, each)) for each in find_objects(value)])


class _Cache:
    """An LRU cache of compiled schemas, bounded by memory. Thread-safe."""

    def __init__(self) -> None:
        self._schemas: OrderedDict[bytes, Schema] = OrderedDict()
        self._lock = Lock()
        self.size = 0

    def get(self, encoded: bytes) -> Schema | None:
        with self._lock:
            found = self._schemas.get(encoded)
            if found is not None:
                self._schemas.move_to_end(encoded)
        return found

    def keep(self, encoded: bytes, schema: Schema) -> None:
        if len(encoded) > _CACHED_SCHEMA:
            return
        with self._lock:
            if self._schemas.setdefault(encoded, schema) is schema:
                self.size += _memory(encoded)
            while self.size > _CACHED_IN_ALL:
                dropped, _ = self._schemas.popitem(last=False)
                self.size -= _memory(dropped)


def _memory(encoded: bytes) -> int:
    """Estimate the memory of a compiled schema: 26 times the size of its JSON, as measured."""
    return 2048 + 26 * len(encoded)


_cache = _Cache()


def _compile(encoded: bytes) -> Schema:
    # the schema library takes a tenth of the import time, so it is imported on first use
    from jsonschema_rs import validator_for

    if len(encoded) > MAX_SCHEMA:
        raise ValueError(f"it is longer than {MAX_SCHEMA} bytes")
    decoded = msgspec.json.decode(encoded)
    expansion = measure(decoded)
    patterns = find_patterns(decoded)
    validator = validator_for(
        decoded,
        retriever=_refuse,
        pattern_options=patterns.options,
        keywords=patterns.keywords or None,
    )
    schema = Schema(validator, *expansion, patterns.names)
    _cache.keep(encoded, schema)
    return schema


def _refuse(uri: str) -> NoReturn:
    # Schemas come from tool authors. By default, the library would open the files and URLs that
    # they name.
    raise ValueError(f"references out of the document are not followed: {uri}")
