"""Convert events to a UI message stream (version 1), which ``useChat`` of the AI SDK reads.

This module only converts; ``dragoman.integrations.starlette`` sends the chunks. A chunk is a JSON
object with a ``type``. Text and reasoning are parts with a start, deltas and an end under one id;
a tool call has the provider's id. Content that the protocol has no part for is sent as data parts,
which the client keeps and sends back with the message: ``data-dragoman-block`` is a block that
only its provider understands, such as redacted thinking or the result of a server-side tool;
``data-dragoman-continuity`` is the provider's state of a block. ``index`` is the position of the
block in the reply.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .. import events as ev
from .. import messages as m

__all__ = ["Chunk", "UIMessageChunks"]

Chunk = dict[str, Any]

_FINISH: dict[ev.FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool-calls",
    "content_filter": "content-filter",
    "error": "error",
}
# default media types, since some servers omit the type and the protocol requires it
_MEDIA_TYPES: dict[type, str] = {m.Image: "image/png", m.Audio: "audio/wav"}


class UIMessageChunks:
    """Convert the events of one reply to chunks, in order.

    ``message_id`` is sent with the first chunk. Without it the client chooses the id, and
    continues its last message when it sends the results of tools; a new id would begin a second
    message.
    """

    def __init__(self, message_id: str | None = None) -> None:
        self._message_id = message_id
        # the open part: its kind (text or reasoning) and the index of its block
        self._part: tuple[str, int] | None = None
        self._signature: str | None = None
        self._tool_name = ""
        self._complete: ev.MessageComplete | None = None

    def convert(self, event: ev.Event) -> list[Chunk]:
        """Convert an event to chunks, and return them."""
        if isinstance(event, ev.TextDelta):
            return self._add("text", event.content_block_index, event.text)
        if isinstance(event, ev.ThinkingDelta):
            chunks = self._add("reasoning", event.content_block_index, event.text)
            self._signature = event.signature or self._signature
            return chunks
        if isinstance(event, ev.MessageStart):
            return self._start(event)
        if isinstance(event, ev.MessageComplete):
            self._complete = event
            return [
                *self._close(),
                *_write_media(event.final_content),
                *_write_state(event.final_content),
            ]
        return [*self._close(), self._convert_call(event)]

    def finish(self) -> list[Chunk]:
        """Return the chunks that end a complete reply."""
        assert self._complete is not None, "the reply has not ended"
        reason = self._complete.finish_reason
        metadata = _write_metadata(self._complete)
        if reason == "cancelled":
            return [
                {"type": "message-metadata", **metadata},
                {"type": "abort", "reason": "cancelled"},
            ]
        return [
            {"type": "finish-step"},
            {"type": "finish", "finishReason": _FINISH[reason], **metadata},
        ]

    def fail(self, message: str) -> list[Chunk]:
        """Return the chunks that end a failed reply: the open part's end, usage and the error."""
        chunks = self._close()
        if self._complete is not None:
            chunks.append({"type": "message-metadata", **_write_metadata(self._complete)})
        return [*chunks, {"type": "error", "errorText": message}]

    def _start(self, event: ev.MessageStart) -> list[Chunk]:
        start: Chunk = {
            "type": "start",
            "messageMetadata": {"provider": event.provider, "model": event.model},
        }
        if self._message_id is not None:
            start["messageId"] = self._message_id
        return [start, {"type": "start-step"}]

    def _add(self, kind: str, index: int, text: str) -> list[Chunk]:
        """Return the chunks that add text to a part; begin the part first if necessary."""
        chunks: list[Chunk] = []
        name = f"{kind}-{index}"
        if self._part != (kind, index):
            chunks = [*self._close(), {"type": f"{kind}-start", "id": name}]
            self._part = (kind, index)
        if text:
            chunks.append({"type": f"{kind}-delta", "id": name, "delta": text})
        return chunks

    def _close(self) -> list[Chunk]:
        """Return the chunk that ends the open part, with the signature of signed reasoning."""
        if self._part is None:
            return []
        kind, index = self._part
        end: Chunk = {"type": f"{kind}-end", "id": f"{kind}-{index}"}
        if self._signature is not None:
            end["providerMetadata"] = {"dragoman": {"signature": self._signature}}
        self._part = self._signature = None
        return [end]

    def _convert_call(
        self, event: ev.ToolUseStart | ev.ToolUseInputDelta | ev.ToolUseEnd
    ) -> Chunk:
        call: Chunk = {"toolCallId": event.tool_use_id}
        if isinstance(event, ev.ToolUseInputDelta):
            return {"type": "tool-input-delta", **call, "inputTextDelta": event.partial_json}
        if isinstance(event, ev.ToolUseStart):
            self._tool_name = event.tool_name
            return {"type": "tool-input-start", **call, "toolName": event.tool_name}
        call |= {"toolName": self._tool_name, "input": event.final_input}
        if event.intent is not None:
            return {"type": "tool-input-available", **call}
        return {
            "type": "tool-input-error",
            **call,
            "errorText": event.detail or event.problem or "incomplete",
        }


def _write_metadata(event: ev.MessageComplete) -> Chunk:
    facts = {"finishReason": event.finish_reason, "usage": event.usage, "warnings": event.warnings}
    return {"messageMetadata": facts}


def _write_media(content: tuple[m.AssistantBlock, ...]) -> list[Chunk]:
    """Return the reply's images, audio and sources, which have no events of their own."""
    chunks: list[Chunk] = []
    for block in content:
        if isinstance(block, m.Image | m.Audio):
            media_type = block.media_type or _MEDIA_TYPES[type(block)]
            if isinstance(block.source, m.Inline):
                url = f"data:{media_type};base64,{block.source.base64_data}"
            else:
                url = block.source.url
            chunks.append({"type": "file", "url": url, "mediaType": media_type})
        elif isinstance(block, m.Text):
            sources = [_write_source(citation) for citation in block.citations]
            chunks += [
                source
                for at, source in enumerate(sources)
                if source not in [*chunks, *sources[:at]]
            ]
    return chunks


def _write_state(content: tuple[m.AssistantBlock, ...]) -> list[Chunk]:
    """Return the blocks and the state that only the provider understands, as data parts."""
    chunks: list[Chunk] = []
    for index, block in enumerate(content):
        if isinstance(block, m.Opaque | m.RedactedThinking):
            kind = "block"
            state = msgspec.to_builtins(block)
        elif _has_state(block):
            kind = "continuity"
            state = msgspec.to_builtins(block.continuity)
        else:
            continue
        data = {"index": index, kind: state}
        chunks.append({"type": f"data-dragoman-{kind}", "id": f"{kind}-{index}", "data": data})
    return chunks


def _has_state(block: m.AssistantBlock) -> bool:
    """Return whether a block has provider state that its UI part does not contain.

    A reasoning part contains the signature of its block, but no other state.
    """
    kept = getattr(block, "continuity", None)
    return kept is not None and (kept.opaque is not None or not isinstance(block, m.Thinking))


def _write_source(citation: m.Citation) -> Chunk:
    if citation.url is not None:
        titled = {} if citation.title is None else {"title": citation.title}
        return {"type": "source-url", "sourceId": citation.url, "url": citation.url, **titled}
    title = citation.title or citation.source or "document"
    return {
        "type": "source-document",
        "sourceId": citation.source or title,
        "mediaType": "text/plain",
        "title": title,
    }
