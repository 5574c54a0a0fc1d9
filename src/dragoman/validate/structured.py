"""Structured output as a Python type: build the schema to send, and convert the reply.

Providers take a schema with an object at its root. The schema of a list, union, ``Literal`` or
scalar is therefore wrapped in an object with one property, ``value``, and the value in the reply
is unwrapped.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from ..errors import InvalidRequestError, StructuredOutputError, cut
from ..events import Response
from ..messages import Request
from ..messages.signatures import pydantic_adapter, schema_of

_WRAPPER = "value"


def response_schema_of(kind: Any) -> dict[str, Any]:
    """Return the schema to send for a type; raise ``InvalidRequestError`` if the type has none."""
    owner = type(kind)
    if (
        issubclass(owner, msgspec.Struct)
        or hasattr(owner, "__dataclass_fields__")
        or (hasattr(owner, "model_validate") and not isinstance(kind, type))
    ):
        name = owner.__name__
        raise InvalidRequestError(
            f"response_schema must be a type, not an instance; write response_schema={name}"
        )
    try:
        return _describe(kind)[0]
    except TypeError as error:
        if not _is_hashable(kind):
            return _describe.__wrapped__(kind)[0]
        raise InvalidRequestError(
            f"response_schema must be a JSON Schema or a type that has one, not {cut(repr(kind))}"
        ) from error


def to_instance(response: Response[Any], request: Request) -> Any:
    """Return the structured value as an instance of ``request.response_type``, if that is set."""
    kind = request.response_type
    value = response.parsed
    if value is None:
        if response.finish_reason == "length" and not response.tool_calls:
            raise _misfit(
                response,
                request,
                "the reply was cut off at the token limit (max_tokens) before its text",
            )
        return None
    try:
        return convert_value(unwrap(value, kind), kind)
    except ValueError as error:  # the base class of validation errors in msgspec and Pydantic
        name = getattr(kind, "__name__", str(kind))
        problem = f"the reply does not fit {cut(name)}: {cut(' '.join(str(error).split()), 300)}"
        raise _misfit(response, request, problem, str(error)) from error


def unwrap(value: dict[str, Any], kind: Any, default: Any = None) -> Any:
    """Return the structured value of a reply; unwrap it if the schema of its type was wrapped."""
    is_wrapped = (_describe if _is_hashable(kind) else _describe.__wrapped__)(kind)[1]
    return value.get(_WRAPPER, default) if is_wrapped else value


def convert_value(value: Any, kind: Any) -> Any:
    """Convert plain data to an instance of a type; raise ``ValueError`` if it does not fit."""
    if hasattr(kind, "model_validate"):  # a Pydantic model, recognised by its method
        return kind.model_validate(value)
    adapter = pydantic_adapter(kind)
    return adapter.validate_python(value) if adapter is not None else msgspec.convert(value, kind)


def _misfit(
    response: Response[Any], request: Request, problem: str, detail: str = ""
) -> StructuredOutputError:
    return StructuredOutputError(
        problem,
        response_schema=request.response_schema,
        output_content=response.text,
        error_message=detail or problem,
        finish_reason=response.finish_reason,
        usage=response.usage,
        response=response,
        request_id=request.request_id,
        provider=response.provider,
        model=response.model,
    )


@lru_cache(maxsize=64)
def _describe(kind: Any) -> tuple[dict[str, Any], bool]:
    """Return the schema of a type, and whether it is wrapped in an object.

    A schema is wrapped if it is not the schema of an object.
    """
    adapter = pydantic_adapter(kind)
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


def _is_hashable(kind: Any) -> bool:
    try:
        hash(kind)
    except TypeError:
        return False
    return True
