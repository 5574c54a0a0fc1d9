"""Structured output by type: the JSON Schema that is sent, and the instance that comes back.

Providers take a schema with an object at its root. Lists, unions, ``Literal`` and scalars are therefore sent
inside an object with the one property ``value``, and taken out of it again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, get_args

import msgspec

from ..errors import InvalidRequestError, StructuredOutputError, cut
from ..events import Response
from ..messages import Request, schema_of

_WRAPPER = "value"


def response_schema_of(kind: Any) -> dict[str, Any]:
    """Return the schema to send for a type; ``InvalidRequestError`` if the type has none."""
    try:
        return _describe(kind)[0]
    except TypeError as error:
        if not _is_hashable(kind):
            return _describe.__wrapped__(kind)[0]
        raise InvalidRequestError(
            f"response_schema must be a JSON Schema or a type that has one, not {cut(repr(kind))}"
        ) from error


def to_instance(response: Response[Any], kind: Any, request: Request) -> Any:
    """Return the structured value as an instance of ``kind``; for a JSON Schema, as the plain data it is."""
    value = response.parsed
    if value is None or kind is None or isinstance(kind, Mapping):
        return value
    try:
        is_wrapped = (_describe if _is_hashable(kind) else _describe.__wrapped__)(kind)[1]
        return _convert(value[_WRAPPER] if is_wrapped else value, kind)
    except ValueError as error:  # msgspec's and Pydantic's validation errors
        name = getattr(kind, "__name__", str(kind))
        raise StructuredOutputError(
            f"the reply does not fit {cut(name)}: {cut(' '.join(str(error).split()), 300)}",
            response_schema=request.response_schema,
            output_content=response.text,
            error_message=str(error),
            finish_reason=response.finish_reason,
            usage=response.usage,
            response=response,
            request_id=request.request_id,
        ) from error


@lru_cache(maxsize=64)
def _describe(kind: Any) -> tuple[dict[str, Any], bool]:
    """Return the schema of a type with an object at its root, and whether it had to be wrapped."""
    adapter = _pydantic_adapter(kind)
    schema = dict(adapter.json_schema()) if adapter is not None else schema_of(kind)
    if schema.get("type") == "object":
        return schema, False
    definitions = schema.pop("$defs", None)
    wrapped: dict[str, Any] = {
        "type": "object",
        "properties": {_WRAPPER: schema},
        "required": [_WRAPPER],
        "additionalProperties": False,
    }
    if definitions:
        wrapped["$defs"] = definitions
    return wrapped, True


def _convert(value: Any, kind: Any) -> Any:
    if hasattr(kind, "model_validate"):  # Pydantic, by its shape
        return kind.model_validate(value)
    adapter = _pydantic_adapter(kind)
    return adapter.validate_python(value) if adapter is not None else msgspec.convert(value, kind)


def _pydantic_adapter(kind: Any) -> Any:
    """Return Pydantic's adapter for a list or union of its models; ``None`` for every other type."""
    if hasattr(kind, "model_json_schema") or not _mentions_pydantic(kind):
        return None
    return sys.modules["pydantic"].TypeAdapter(kind)


def _mentions_pydantic(kind: Any) -> bool:
    return any(hasattr(part, "model_json_schema") or _mentions_pydantic(part) for part in get_args(kind))


def _is_hashable(kind: Any) -> bool:
    try:
        hash(kind)
    except TypeError:
        return False
    return True
