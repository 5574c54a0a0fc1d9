"""Write output rows in Dragoman's format, or in a provider's batch format if the input uses it."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Struct

from ..errors import ProviderError, StructuredOutputError
from ..events import Event, RecordedAssembler, Response, Usage
from ..messages import Request, ToolCall
from ..prices import Cost, Unpriced
from ..retrieval import Embeddings
from ..retrieval.wire.server import AskedRetrieval, EmbedServer, write_vectors
from ..wire import SERVER_CODECS, Asked
from .rows import BadRow, Row

INVALID_ROW = "batch_invalid_row"
"""The error category of an invalid row."""

_EMBED = EmbedServer()
_encode = msgspec.json.Encoder(decimal_format="string").encode


class Result(Struct, frozen=True):
    """The result of one row: its line in the output, and what it adds to the totals."""

    line: int
    data: bytes
    failed: bool = False
    bad: bool = False
    cached: bool = False
    usage: Usage = Usage()
    cost: Decimal | None = None
    unpriced: str | None = None


def write_reply(row: Row, response: Response[Any] | Embeddings, bill: Cost | Unpriced) -> Result:
    """Return the result of a row whose call succeeded."""
    price = bill.total
    is_cached = response.usage.from_cache
    facts: dict[str, Any] = {} if price is None else {"cost_usd": price}
    if is_cached:
        facts["cached"] = True
    if row.shape != "own" and response.usage != Usage():
        # written in every format, since a restart adds up the tokens of all rows
        facts["usage"] = response.usage
    if row.asked is not None and (warnings := (*row.asked.warnings, *response.warnings)):
        facts["warnings"] = [str(warning) for warning in warnings]
    if isinstance(response, Embeddings):
        record = _vectors(row, response)
    else:
        record = _own_reply(row, response) if row.shape == "own" else _foreign_reply(row, response)
    data = _encode({"line": row.line, **record, **facts}) + b"\n"
    reason = bill.reason if isinstance(bill, Unpriced) else None
    return Result(
        row.line, data, cached=is_cached, usage=response.usage, cost=price, unpriced=reason
    )


def write_failure(row: Row, error: Exception, bill: Cost | Unpriced | None) -> Result:
    """Return the result of a row whose call failed."""
    record = describe_error(error)
    usage = find_usage(error)
    price = bill.total if bill is not None else None
    facts: dict[str, Any] = {} if price is None else {"cost_usd": price}
    is_own = row.shape == "own"
    shown = _own(row.id, {"error": record}) if is_own else _foreign_error(row, error, record)
    if usage != Usage():
        facts["usage"] = usage
    data = _encode({"line": row.line, **shown, **facts}) + b"\n"
    return Result(row.line, data, failed=True, usage=usage, cost=price)


def write_bad(row: BadRow) -> Result:
    """Return the result of an invalid row."""
    error = {"category": INVALID_ROW, "message": f"line {row.line}: {row.reason}"}
    record = {
        "line": row.line,
        _ID.get(row.shape, "custom_id"): row.id,
        "error": error,
    }
    return Result(row.line, _encode(record) + b"\n", failed=True, bad=True)


def find_usage(error: Exception) -> Usage:
    """Return the token counts of a failed call, as far as they are known."""
    response = getattr(error, "response", None)
    if isinstance(response, Response | Embeddings):
        return response.usage
    usage = getattr(error, "usage", None)
    return usage if isinstance(usage, Usage) else Usage()


# --- results in our format ---------------------------------------------------------------------

_ID = {"own": "id", "gemini": "key"}  # the other formats name it custom_id


def _own(name: str | None, record: dict[str, Any]) -> dict[str, Any]:
    return record if name is None else {"id": name, **record}


def _own_reply(row: Row, response: Response[Any]) -> dict[str, Any]:
    record: dict[str, Any] = {"text": response.text, "finish_reason": response.finish_reason}
    if response.parsed is not None:
        record["parsed"] = response.parsed
    if calls := response.tool_calls:
        record["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls
        ]
    if thinking := response.thinking:
        record["thinking"] = thinking
    return _own(row.id, {**record, **_facts(response)})


def _facts(response: Response[Any] | Embeddings) -> dict[str, Any]:
    """Return the fields that the results of chats and of embeddings have in common."""
    facts: dict[str, Any] = {
        "model": response.model, "provider": response.provider, "usage": response.usage
    }  # fmt: skip
    if response.warnings:
        facts["warnings"] = [str(warning) for warning in response.warnings]
    if response.latency_ms is not None:
        facts["latency_ms"] = round(response.latency_ms, 1)
    return facts


def _vectors(row: Row, answer: Embeddings) -> dict[str, Any]:
    """Return the result of a row to embed: one vector for a string, several for a list."""
    asked: AskedRetrieval = row.request
    if row.shape != "own":
        reply = _EMBED.encode(answer, asked, answer.model or asked.request.model)
        return _openai_reply(row, answer.request_id, msgspec.Raw(reply.body))
    vectors = write_vectors(answer, as_base64=asked.form["encoding_format"] == "base64")
    found = {"embeddings": vectors} if asked.form["is_list"] else {"embedding": vectors[0]}
    return _own(row.id, {**found, **_facts(answer)})


def describe_error(error: Exception) -> dict[str, Any]:
    """Return an error as a JSON object, without the fields whose values are unknown."""
    if not isinstance(error, ProviderError):
        return {"category": "other", "kind": type(error).__name__, "message": str(error)}
    names = (
        "category", "error_class", "kind", "status", "provider", "model", "provider_code",
        "retry_after",
    )  # fmt: skip
    record = {name: value for name in names if (value := getattr(error, name)) is not None}
    record |= {"message": str(error), "transient": error.transient}
    if isinstance(error, StructuredOutputError):
        record["output"] = error.output_content
    return record


# --- results in the batch formats of providers -------------------------------------------------


def _events(request: Request, response: Response[Any]) -> list[Event]:
    out = RecordedAssembler(
        request_id=response.request_id or request.request_id,
        model=response.model or request.model,
        provider=response.provider or "",
    )
    out.begin(None)
    for block in response.message.content:
        if isinstance(block, ToolCall):
            text = "" if block.arguments is None else msgspec.json.encode(block.arguments).decode()
            out.call(block, text, None, is_whole=block.arguments is not None)
        else:
            out.block(block)
    out.end(response.finish_reason, response.usage, response.warnings, None)
    return out.take()


def _foreign_reply(row: Row, response: Response[Any]) -> dict[str, Any]:
    asked = row.asked or Asked(request=row.request)
    encoder = SERVER_CODECS[row.shape].encoder(asked, created=int(time.time()))
    for event in _events(row.request, response):
        encoder.feed(event)
    try:
        body = msgspec.Raw(encoder.end())
    except ProviderError as error:  # the provider's batch format cannot express this reply
        return _foreign_error(row, error, describe_error(error))
    if row.shape == "anthropic":
        return {"custom_id": row.id, "result": {"type": "succeeded", "message": body}}
    if row.shape == "gemini":
        return {"key": row.id, "response": body}
    return _openai_reply(row, response.request_id, body)


def _openai_reply(row: Row, request_id: str | None, body: msgspec.Raw) -> dict[str, Any]:
    return {
        "id": f"batch_req_{request_id}",
        "custom_id": row.id,
        "response": {"status_code": 200, "request_id": request_id, "body": body},
        "error": None,
    }


def _foreign_error(row: Row, error: Exception, record: dict[str, Any]) -> dict[str, Any]:
    if row.shape == "anthropic":
        inner = {"type": "error", "error": {"type": record.get("kind", "other"), **record}}
        return {"custom_id": row.id, "result": {"type": "errored", "error": inner}}
    if row.shape == "gemini":
        return {"key": row.id, "error": {"code": getattr(error, "status", None) or 500, **record}}
    shown = {"code": record.get("provider_code") or record["category"], **record}
    return {"id": f"batch_req_{row.line}", "custom_id": row.id, "response": None, "error": shown}
