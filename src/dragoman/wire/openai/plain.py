"""Decode a body that is one text, as most bodies are."""

from __future__ import annotations

from ...events import Assembler
from ...messages import Request
from .chunks import Chunk
from .quirks import Quirks
from .usage import read_usage


def read_plain(chunk: Chunk, request: Request, quirks: Quirks, out: Assembler) -> bool:
    """Decode a body with one choice that is one text; return ``False`` if it has other parts.

    The events are those of ``OpenAIDecoder``, made in fewer steps; a test compares them.
    """
    choice = chunk.choices[0] if chunk.choices else None
    part = choice.message if choice is not None else None
    if choice is None or part is None or _needs_more(request, quirks):
        return False
    text, reason = part.content, choice.finish_reason
    if type(text) is not str or not text or (reason != "stop" and reason != "length"):
        return False
    if (
        part.reasoning_content or part.reasoning or part.refusal or part.annotations
        or part.images or part.audio or part.executed_tools or part.tool_calls
        or part.function_call is not None or choice.usage is not None or choice.error
        or chunk.citations or chunk.search_results or chunk.images or chunk.related_questions
        or len(chunk.choices or ()) > 1
    ):  # fmt: skip
        return False
    out.start(chunk.model if isinstance(chunk.model, str) else None)
    out.finish_text(text, read_usage(chunk.usage), reason, reason)
    return True


def _needs_more(request: Request, quirks: Quirks) -> bool:
    """Return whether the text must be checked, or the server sends more that must be read."""
    return bool(
        request.response_schema is not None
        or quirks.reasoning_details
        or quirks.usage_path
        or quirks.finish_words
    )
