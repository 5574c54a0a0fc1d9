"""Media in the results of tools: a text that says what was left out, where a wire or a model does not take them.

A tool's result is part of the conversation for good. If one picture in it made the request fail, no later
turn could be sent either, so nothing that a tool returned is a reason to refuse a request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from msgspec.structs import replace

from ..errors import UnsupportedContentError
from ..messages import AssistantBlock, Audio, Document, Image, Inline, Text, ToolResult, Url, UserBlock
from .codec import Notes

_Write: TypeAlias = Callable[[Image | Document | Audio, str], object]


def fit_result(message: ToolResult, path: str, notes: Notes, write: _Write, *, omit: bool) -> ToolResult:
    """Return the result with a text in place of each medium that ``write`` refuses, or of all with ``omit``."""
    if isinstance(message.content, str) or all(type(block) is Text for block in message.content):
        return message
    places = [(block, f"{path}.content[{at}]") for at, block in enumerate(message.content)]
    return replace(message, content=tuple([_fit_block(*place, notes, write, omit=omit) for place in places]))


def _fit_block(block: UserBlock, path: str, notes: Notes, write: _Write, *, omit: bool) -> UserBlock:
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


def describe_media(block: Image | Document | Audio) -> str:
    """Return what a medium is, for the text in its place: ``image (image/png, about 1200 bytes)``."""
    facts = [block.media_type] if block.media_type else []
    if isinstance(block.source, Inline):
        facts.append(f"about {len(block.source.base64_data) * 3 // 4} bytes")
    kind = str(block.__struct_config__.tag)
    return f"{kind} ({', '.join(facts)})" if facts else kind


def transcribe(block: Audio, path: str, notes: Notes) -> str | None:
    """Return what a model said aloud as text, for a wire that takes no audio of the model; report what that loses."""
    if block.transcript:
        notes.rewrite(path, "audio_transcribed", "its transcript is sent in its place", loss=True)
        return block.transcript
    notes.drop(path, "audio_dropped", "this wire takes no audio of the model, and it has no transcript")
    return None


def say_audio(block: Audio) -> str:
    """Return the text for a client of a wire that has no audio in replies."""
    return block.transcript or f"[{describe_media(block)} left out: this wire has no audio in replies]"


def describe_picture(block: Image) -> str:
    """Return the text for a client of a wire that has no pictures in replies."""
    if isinstance(block.source, Url) and not block.source.url.startswith("data:"):
        return f"![image]({block.source.url})"
    return f"[{describe_media(block)} left out: this wire has no pictures in replies]"


def describe_medium(block: Audio | Image) -> str:
    """Return the text for a client of a wire whose replies have no such medium."""
    return say_audio(block) if isinstance(block, Audio) else describe_picture(block)


def refuse_audio(block: Audio, path: str) -> NoReturn:
    """Refuse audio on a wire that has no place for it."""
    raise UnsupportedContentError(f"{path}: this wire takes no {describe_media(block)}")


def write_annotations(block: AssistantBlock, *, flat: bool) -> list[dict[str, Any]]:
    """Return the sources of a text that have an address, as clients of Chat Completions and Responses know them."""
    if not isinstance(block, Text):
        return []
    found = []
    for cited in block.citations:
        if cited.url is not None:
            place = {"start_index": cited.start or 0, "end_index": len(block.text) if cited.end is None else cited.end}
            fields = {"url": cited.url, "title": cited.title or "", **place}
            inner = fields if flat else {"url_citation": fields}
            found.append({"type": "url_citation", **inner})
    return found
