"""Media in the results of tools: a text that says what was left out, where a wire or a model does not take them.

A tool's result is part of the conversation for good. If one picture in it made the request fail, no later
turn could be sent either, so nothing that a tool returned is a reason to refuse a request.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from ..errors import UnsupportedContentError
from ..messages import Document, Image, Inline, Text, ToolResult, UserBlock
from .codec import Notes


def fit_result(
    message: ToolResult, path: str, notes: Notes, write: Callable[[Image | Document, str], object], *, omit: bool
) -> ToolResult:
    """Return the result with a text in place of each medium that ``write`` refuses, or of all with ``omit``."""
    if isinstance(message.content, str) or all(type(block) is Text for block in message.content):
        return message
    places = [(block, f"{path}.content[{at}]") for at, block in enumerate(message.content)]
    return replace(message, content=tuple([_fit_block(*place, notes, write, omit=omit) for place in places]))


def _fit_block(
    block: UserBlock, path: str, notes: Notes, write: Callable[[Image | Document, str], object], *, omit: bool
) -> UserBlock:
    if isinstance(block, Text):
        return block
    reason = "this model is not known to take it in a tool's result"
    if not omit:
        try:
            write(block, path)
        except UnsupportedContentError as error:
            reason = error.message.removeprefix(f"{path}: ")
        else:
            return block
    notes.drop(path, f"{block.__struct_config__.tag}_omitted", f"a text says so in its place: {reason}")
    return Text(f"[{describe_media(block)} left out: {reason}]")


def describe_media(block: Image | Document) -> str:
    """Return what a medium is, for the text in its place: ``image (image/png, about 1200 bytes)``."""
    facts = [block.media_type] if block.media_type else []
    if isinstance(block.source, Inline):
        facts.append(f"about {len(block.source.base64_data) * 3 // 4} bytes")
    kind = str(block.__struct_config__.tag)
    return f"{kind} ({', '.join(facts)})" if facts else kind
