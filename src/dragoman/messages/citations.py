"""Citations: the sources that a reply cites, in one form for all wires.

The provider's own citation record is kept with the text, because parts of it must be sent back
unchanged; a ``Citation`` is a view of that record. A record that cannot be read yields no
citation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

__all__ = ["FOR_READERS", "SOURCES", "Citation", "read_citations"]

SOURCES = frozenset(
    {"annotations", "citations", "search_results", "groundingMetadata", "citationMetadata"}
)
"""The fields of a text's opaque state that citations are read from."""
FOR_READERS = SOURCES | {"images", "related_questions"}
"""The fields of a text's opaque state that only inform the reader.

These are citations and other search results. A wire without a field for them drops them without a
loss.
"""


class Citation(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The source of a passage in a model's text, as the provider states it.

    ``start`` and ``end`` delimit the passage in the text, in characters. ``quote`` is the cited
    part of the source, and ``source`` is the provider's own name for the source: a file, or the
    number of a document in the request.
    """

    url: str | None = None
    title: str | None = None
    quote: str | None = None
    start: int | None = None
    end: int | None = None
    source: str | None = None


def read_citations(state: Any, text: str) -> tuple[Citation, ...]:
    """Return the citations that a provider put into the opaque state of a text block."""
    if not isinstance(state, Mapping) or not SOURCES & state.keys():
        return ()
    listed = state.get("citations")
    found = _read_annotations(state.get("annotations")) + _read_locations(listed)
    found = found or _read_sources(listed, state.get("search_results"))
    found += _read_grounding(state.get("groundingMetadata"), text)
    return (*found, *_read_recitations(state.get("citationMetadata"), text))


def _read_annotations(value: Any) -> list[Citation]:
    """Return the citations in the annotations of Chat Completions or Responses.

    Chat Completions has ``{"type": "url_citation", "url_citation": {...}}``; Responses has the
    same fields without the inner object. Files are cited by id. References, which Mistral sends,
    have the numbers or names of their sources.
    """
    found = []
    for record in _records(value):
        ids = record.get("reference_ids")
        start = _count(record, "start_index")
        end = _count(record, "end_index")
        found += [
            Citation(start=start, end=end, source=str(each))
            for each in (ids if isinstance(ids, list) else ())
        ]
        inner = record.get(str(record.get("type")))
        fields = inner if isinstance(inner, Mapping) else record
        cited = Citation(
            url=_text(fields, "url"),
            title=_text(fields, "title", "filename"),
            quote=_text(fields, "content", "quote"),
            start=_count(fields, "start_index"),
            end=_count(fields, "end_index"),
            source=_text(fields, "file_id", "container_id"),
        )
        if cited.url or cited.source:
            found.append(cited)
    return found


def _read_sources(citations: Any, results: Any) -> list[Citation]:
    """Return the citations of a complete reply: URLs, or titled search results (Perplexity)."""
    found = [
        Citation(
            url=_text(record, "url"), title=_text(record, "title"), quote=_text(record, "snippet")
        )
        for record in _records(results)
        if _text(record, "url")
    ]
    known = {citation.url for citation in found}
    urls = citations if isinstance(citations, list) else []
    return [
        *found,
        *[Citation(url=url) for url in urls if isinstance(url, str) and url not in known],
    ]


def _read_locations(value: Any) -> list[Citation]:
    """Return the citations in the list ``citations`` of a text block.

    On the anthropic wire, a record has a location in the source but none in the text, so the
    citation applies to the complete text. On the cohere wire, it has a range of characters in the
    text.
    """
    records = _records(value)
    supported = [cited for record in records for cited in _read_supported(record)]
    return supported or [_read_location(record) for record in records]


def _read_location(record: Mapping[str, Any]) -> Citation:
    """Return the citation for one record; the bedrock wire nests its fields in ``location``."""
    location = record.get("location")
    kinds = _records([*location.values()]) if isinstance(location, Mapping) else []
    place = kinds[0] if kinds else {}
    quoted = [_text(each, "text") for each in _records(record.get("sourceContent"))]
    source = _text(record, "source", "file_id") or _number(record, "document_index")
    return Citation(
        url=_text(record, "url") or _text(place, "url"),
        title=_text(record, "title", "document_title"),
        quote=_text(record, "cited_text") or "".join([text for text in quoted if text]) or None,
        source=source or _number(place, "documentIndex"),
    )


def _read_supported(record: Mapping[str, Any]) -> list[Citation]:
    """Return the citations in one record of the cohere wire.

    Their sources are documents in the request, or tool results.
    """
    found = []
    for source in _records(record.get("sources")):
        inner = source.get("document", source.get("tool_output"))
        inner = inner if isinstance(inner, Mapping) else {}
        found.append(
            Citation(
                url=_text(inner, "url"),
                title=_text(inner, "title"),
                quote=_text(inner, *_PASSAGES),
                start=_count(record, "start"),
                end=_count(record, "end"),
                source=_text(source, "id"),
            )
        )
    return found


# the field names that clients use for the text of a document
_PASSAGES = ("snippet", "text", "content", "output")


def _read_grounding(metadata: Any, text: str) -> list[Citation]:
    """Return the citations of grounded text: one for each segment and each of its sources.

    Indices count bytes of UTF-8. Sources without a segment are citations of the complete text.
    """
    if not isinstance(metadata, Mapping):
        return []
    chunks = [_read_chunk(chunk) for chunk in _records(metadata.get("groundingChunks"))]
    data = text.encode("utf-8", "replace")
    found = []
    used = set()
    for support in _records(metadata.get("groundingSupports")):
        segment = support.get("segment")
        start, end = _read_segment(segment if isinstance(segment, Mapping) else {}, data)
        indices = support.get("groundingChunkIndices")
        for at in indices if isinstance(indices, list) else ():
            if type(at) is int and 0 <= at < len(chunks):
                used.add(at)
                found.append(replace(chunks[at], start=start, end=end))
    return [*found, *[chunk for at, chunk in enumerate(chunks) if at not in used]]


def _read_recitations(metadata: Any, text: str) -> list[Citation]:
    """Return the citations of text that repeats a source (``citationMetadata``)."""
    if not isinstance(metadata, Mapping):
        return []
    data = text.encode("utf-8", "replace")
    listed = metadata.get("citationSources", metadata.get("citations"))
    found = []
    for record in _records(listed):
        start, end = _read_segment(record, data)
        found.append(
            Citation(url=_text(record, "uri"), title=_text(record, "title"), start=start, end=end)
        )
    return found


def _read_chunk(chunk: Mapping[str, Any]) -> Citation:
    kinds = _records([chunk.get(name) for name in ("web", "retrievedContext", "maps")])
    inner = kinds[0] if kinds else {}
    source = _text(inner, "fileSearchStore", "documentName", "placeId")
    return Citation(
        url=_text(inner, "uri"),
        title=_text(inner, "title"),
        quote=_text(inner, "text"),
        source=source,
    )


def _read_segment(segment: Mapping[str, Any], data: bytes) -> tuple[int | None, int | None]:
    """Convert the byte range of a segment to a character range; a missing start is 0."""
    end = _count(segment, "endIndex")
    if end is None:
        return None, None
    start = _count(segment, "startIndex") or 0
    return len(data[:start].decode("utf-8", "ignore")), len(data[:end].decode("utf-8", "ignore"))


def _records(value: Any) -> Sequence[Mapping[str, Any]]:
    if isinstance(value, list):
        return [record for record in value if isinstance(record, Mapping)]
    return []


def _text(record: Mapping[str, Any], *names: str) -> str | None:
    """Return the first of these fields that is a text and not empty."""
    values = [record.get(name) for name in names]
    return next((value for value in values if isinstance(value, str) and value), None)


def _count(record: Mapping[str, Any], name: str) -> int | None:
    value = record.get(name)
    return value if type(value) is int and value >= 0 else None


def _number(record: Mapping[str, Any], name: str) -> str | None:
    value = _count(record, name)
    return None if value is None else str(value)
