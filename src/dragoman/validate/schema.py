"""JSON Schemas, compiled once and cached by content."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NoReturn

import msgspec

from ..errors import InvalidRequestError


def compile_schema(schema: Any, path: str) -> Any:
    """The validator of a schema; ``InvalidRequestError`` names ``path`` when it is not a valid one."""
    if not isinstance(schema, dict):
        raise InvalidRequestError(f"{path} must be a JSON Schema object, not {type(schema).__name__}")
    try:
        # Compiling is the validity check: the metaschema alone misses bad patterns and dangling references.
        return _compile(msgspec.json.encode(schema, order="sorted"))
    except ValueError as error:  # the library's own errors are among these
        reason = str(error).partition("\n")[0]
        raise InvalidRequestError(f"{path} is not a valid JSON Schema: {reason}") from error
    except (TypeError, RecursionError) as error:
        raise InvalidRequestError(f"{path} cannot be written as JSON: {error}") from error


def first_error(validator: Any, value: Any) -> str | None:
    """The first thing wrong with ``value``, with the place it is at, or ``None``."""
    if validator.is_valid(value):
        return None
    error = next(iter(validator.iter_errors(value)))
    pointer = "".join([f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.instance_path])
    return f"{error.message} at {pointer or '/'}"


@lru_cache(maxsize=512)
def _compile(encoded: bytes) -> Any:
    from jsonschema_rs import validator_for  # a tenth of the package's import, and for schemas only

    return validator_for(msgspec.json.decode(encoded), retriever=_refuse)


def _refuse(uri: str) -> NoReturn:
    # Schemas come from tool authors, and the library would open files and URLs they name.
    raise ValueError(f"references out of the document are not followed: {uri}")
