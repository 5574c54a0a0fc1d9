"""Read and write citations, images, audio and results of server-side tools in replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import messages as m
from ...events import LAST, Assembler
from ...validate.data_url import read_data_url
from ..json import dig, list_of
from ..media import write_annotations
from ..urls import media_url

# Media types of audio formats whose name differs from the media subtype.
_TYPES = {"mp3": "audio/mpeg", "pcm16": "audio/pcm"}


class Attachments:
    """Collect citations, images, audio and executed tools; add them at the end of the message."""

    def __init__(self, request: m.Request) -> None:
        self._format = dig(request.config.extras.get("audio"), "format")
        self._sources: dict[str, Any] = {}
        self._found: dict[str, Any] = {}
        self._executed: dict[Any, Any] = {}
        self._annotations: list[Any] = []
        self._images: list[Any] = []
        self._speech: dict[str, list[str]] = {}
        self._id: str | None = None

    def note(self, citations: Any, results: Any, images: Any, questions: Any) -> None:
        """Record the search results of a chunk. Some servers repeat them with every chunk.

        Perplexity also sends images and related questions from the search. These are not parts of
        the answer (case: openai/images-of-a-search).
        """
        listed = {"citations": citations, "search_results": results}
        self._sources = {name: value for name, value in listed.items() if value} or self._sources
        found = {"images": images, "related_questions": questions}
        self._found |= {name: value for name, value in found.items() if value}

    def read(self, annotations: Any, images: Any, audio: Any, executed: Any = None) -> None:
        """Collect the parts of a delta or a message; join fragments of audio.

        Groq streams the record of a server-side tool twice, before and after it runs. Both records
        have the same index (case: openai/tools-that-the-server-ran).
        """
        for at, tool in enumerate(list_of(executed)):
            index = dig(tool, "index")
            self._executed[index if type(index) is int else f"{len(self._executed)}.{at}"] = tool
        self._annotations += list_of(annotations)
        self._images += list_of(images)
        if isinstance(given := dig(audio, "id"), str):
            self._id = given
        for name in ("data", "transcript"):
            if isinstance(piece := dig(audio, name), str):
                self._speech.setdefault(name, []).append(piece)

    def emit(self, out: Assembler) -> None:
        """Add the collected parts: citations to the text, images and audio as blocks."""
        sources = {"annotations": self._annotations} if self._annotations else self._sources
        if sources or self._found:
            out.attach(m.Text, opaque={**sources, **self._found}, key=LAST)
        for tool in self._executed.values():
            out.whole(m.Opaque(tool))
        for image in self._images:
            out.whole(_read_picture(image))
        speech = {name: "".join(pieces) for name, pieces in self._speech.items()}
        if speech.get("data"):
            kind = _TYPES.get(str(self._format), f"audio/{self._format or 'wav'}")
            state = None if self._id is None else m.Continuity(opaque={"id": self._id})
            out.whole(
                m.Audio(
                    m.Inline(speech["data"]),
                    kind,
                    transcript=speech.get("transcript"),
                    continuity=state,
                )
            )
        elif speech.get("transcript"):
            out.text(speech["transcript"])


def read_reference(part: dict[str, Any], out: Assembler) -> bool:
    """Attach a reference to the text before it; return false if no text precedes it.

    Mistral puts references between the parts of a text. A reference belongs to the text since the
    previous reference. Two references in a row belong to the same text (case: openai/references).
    """
    found: list[Any] = []

    def add(text: str, state: dict[str, Any]) -> dict[str, Any]:
        found.extend(state.get("annotations", ()))
        start, end = (found[-1]["start_index"], found[-1]["end_index"]) if found else (0, 0)
        if len(text) > end:
            start = end
            end = len(text)
        found.append({**part, "start_index": start, "end_index": end})
        return {"annotations": found}

    out.attach(m.Text, opaque=add, key=LAST)
    return bool(found)


def _read_picture(record: Any) -> m.Image | m.Opaque:
    """Return a generated image, or an opaque block if the record is not an image."""
    inner = dig(record, "image_url")
    url = inner.get("url") if isinstance(inner, dict) else inner
    if not isinstance(url, str) or not url:
        return m.Opaque(record)
    if not url.startswith("data:"):
        return m.Image(m.Url(url))
    found = read_data_url(url)
    if found is None or not found[1] or not (found[0] or "").startswith("image/"):
        return m.Opaque(record)
    return m.Image(m.Inline(found[1]), found[0])


def write_pictures(blocks: Sequence[m.AssistantBlock]) -> list[dict[str, Any]]:
    """Return the generated images in the form of this wire.

    OpenRouter uses the field ``images`` of an assistant message in both requests and replies.
    """
    return [
        {"type": "image_url", "image_url": {"url": media_url(block)}}
        for block in blocks
        if isinstance(block, m.Image)
    ]


def write_attachments(blocks: Sequence[m.AssistantBlock]) -> dict[str, Any]:
    """Return the citations, images and audio of a reply as fields of the message to send."""
    annotations = [each for block in blocks for each in write_annotations(block, flat=False)]
    spoken = [
        block
        for block in blocks
        if isinstance(block, m.Audio) and isinstance(block.source, m.Inline)
    ]
    fields: dict[str, Any] = {"annotations": annotations} if annotations else {}
    if pictures := write_pictures(blocks):
        fields["images"] = pictures
    if spoken:
        fields["audio"] = _write_speech(spoken[-1])
    return fields


def _write_speech(block: m.Audio) -> dict[str, Any]:
    given = None if block.continuity is None else dig(block.continuity.opaque, "id")
    data = block.source.base64_data if isinstance(block.source, m.Inline) else ""
    audio = {"data": data, "transcript": block.transcript or ""}
    return {"id": given or "audio", **audio, "expires_at": 0}
