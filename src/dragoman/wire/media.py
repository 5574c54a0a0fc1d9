"""Replace media by text where the wire or the model does not accept them.

A tool result stays in the conversation. If an image in the result made the request fail, every
later turn would fail as well. Therefore a request is never rejected because of media in a tool
result.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

from msgspec.structs import replace

from .. import messages as m
from ..errors import UnsupportedContentError
from .codec import Notes

_Write: TypeAlias = Callable[[m.Image | m.Document | m.Audio, str], object]


def fit_result(
    message: m.ToolResult, path: str, notes: Notes, write: _Write, *, omit: bool
) -> m.ToolResult:
    """Return a tool result with a text in place of each medium that the wire cannot send.

    ``write`` raises an error for such a medium. With ``omit``, every medium is replaced.
    """
    if isinstance(message.content, str) or all(type(block) is m.Text for block in message.content):
        return message
    places = [(block, f"{path}.content[{at}]") for at, block in enumerate(message.content)]
    return replace(
        message, content=tuple([_fit_block(*place, notes, write, omit=omit) for place in places])
    )


def _fit_block(
    block: m.UserBlock, path: str, notes: Notes, write: _Write, *, omit: bool
) -> m.UserBlock:
    if isinstance(block, m.Text):
        return block
    reason = "this model is not known to take it in a tool's result"
    if not omit:
        try:
            write(block, path)
        except UnsupportedContentError as error:
            reason = error.message.removeprefix(f"{path}: ")
        else:
            return block
    notes.drop(
        path, f"{block.__struct_config__.tag}_omitted", f"a text says so in its place: {reason}"
    )
    return m.Text(f"[{describe_media(block)} left out: {reason}]")


def read_text(data: str, path: str) -> str:
    """Return the text of a document; reject one that is not UTF-8 in base64."""
    try:
        return base64.b64decode(data, validate=True).decode("utf-8")
    except (binascii.Error, ValueError) as error:
        raise UnsupportedContentError(
            f"{path}: the document is not UTF-8 text in base64"
        ) from error


def describe_media(block: m.Image | m.Document | m.Audio) -> str:
    """Return a description of a medium, such as ``image (image/png, about 1200 bytes)``."""
    facts = [block.media_type] if block.media_type else []
    if isinstance(block.source, m.Inline):
        facts.append(f"about {len(block.source.base64_data) * 3 // 4} bytes")
    kind = str(block.__struct_config__.tag)
    return f"{kind} ({', '.join(facts)})" if facts else kind


def transcribe(block: m.Audio, path: str, notes: Notes) -> str | None:
    """Return the transcript of audio that the wire cannot send; report the loss of the audio."""
    if block.transcript:
        notes.rewrite(path, "audio_transcribed", "its transcript is sent in its place", loss=True)
        return block.transcript
    notes.drop(
        path, "audio_dropped", "this wire takes no audio of the model, and it has no transcript"
    )
    return None


def describe_medium(block: m.Audio | m.Image) -> str:
    """Return the text that replaces a medium in a reply on a wire without such media."""
    if isinstance(block, m.Audio):
        what = f"[{describe_media(block)} left out: this wire has no audio in replies]"
        return block.transcript or what
    if isinstance(block.source, m.Url) and not block.source.url.startswith("data:"):
        return f"![image]({block.source.url})"
    return f"[{describe_media(block)} left out: this wire has no pictures in replies]"


def describe_all(blocks: Sequence[m.AssistantBlock]) -> list[str]:
    """Return the texts that replace the audio and the images of a reply."""
    return [describe_medium(block) for block in blocks if isinstance(block, m.Audio | m.Image)]


def refuse_audio(block: m.Audio, path: str) -> NoReturn:
    """Reject audio on a wire without a field for it."""
    raise UnsupportedContentError(f"{path}: this wire takes no {describe_media(block)}")


def write_annotations(block: m.AssistantBlock, *, flat: bool) -> list[dict[str, Any]]:
    """Return the citations that have a URL, in the form of Chat Completions and Responses."""
    if not isinstance(block, m.Text):
        return []
    found = []
    for cited in block.citations:
        if cited.url is not None:
            place = {
                "start_index": cited.start or 0,
                "end_index": len(block.text) if cited.end is None else cited.end,
            }
            fields = {"url": cited.url, "title": cited.title or "", **place}
            inner = fields if flat else {"url_citation": fields}
            found.append({"type": "url_citation", **inner})
    return found
