"""The JSON of a chunk or a body of the openai wire, with only the fields that the decoder uses."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from ...events import read_json
from ..json import dig, entries_of, list_of
from .finish import FINISH


class Function(Struct, gc=False):
    """The name and the arguments of a tool call, or fragments of them."""

    name: Any = None
    arguments: Any = None


class ChunkCall(Struct, gc=False):
    """A tool call, or a fragment of one."""

    index: Any = None
    id: Any = None
    function: Function | None = None
    extra_content: Any = None


class ChunkPart(Struct, gc=False):
    """A ``delta`` of a stream or the ``message`` of a body, which have the same fields."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: Any = None
    annotations: Any = None
    images: Any = None
    audio: Any = None
    executed_tools: Any = None
    tool_calls: list[ChunkCall] | None = None
    function_call: Function | None = None


class ChunkChoice(Struct, gc=False):
    """One of the answers that a reply contains; nearly every reply contains only one."""

    index: Any = None
    delta: ChunkPart | None = None
    message: ChunkPart | None = None
    finish_reason: Any = None
    native_finish_reason: Any = None
    usage: Any = None
    error: Any = None
    content_filter_results: Any = None


class Chunk(Struct, gc=False):
    """A streamed chunk or a complete body, with only the fields that the decoder uses."""

    model: Any = None
    choices: list[ChunkChoice] | None = None
    usage: Any = None
    error: Any = None
    citations: Any = None
    search_results: Any = None
    images: Any = None
    related_questions: Any = None
    service_tier: Any = None


_decode = msgspec.json.Decoder(Chunk).decode


def read_chunk(data: bytes) -> Chunk:
    """Parse a chunk or a body; raise an error if it is not JSON or its fields are invalid.

    If the decoder fails, repair what some servers send.
    """
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        record = read_json(data)
    try:
        return msgspec.convert(record, Chunk)
    except msgspec.ValidationError:
        if not _mend_calls(record):
            raise
        return msgspec.convert(record, Chunk)


def _mend_calls(record: Any) -> bool:
    """Drop invalid ``tool_calls`` of failed choices; return whether there were failed choices.

    The readable parts of a failed reply are still decoded. ``raw`` contains the complete reply.
    """
    mended = False
    for choice in list_of(dig(record, "choices")):
        part = dig(choice, "message")
        finish = dig(choice, "finish_reason")
        if not isinstance(part, dict) or not isinstance(finish, str):
            continue
        if FINISH.read.get(finish, "error") != "error":
            continue
        part["tool_calls"] = entries_of(part.get("tool_calls"))
        for call in part["tool_calls"]:
            if not isinstance(call.get("function"), dict):
                call["function"] = None
        mended = True
    return mended
