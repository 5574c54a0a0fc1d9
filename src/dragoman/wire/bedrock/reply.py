"""Decode replies of the bedrock wire: messages of an event stream, and bodies.

Blocks are read as on the anthropic wire: identified by index and closed by their stop event. Text
and reasoning begin without a start event. The token counts arrive after the stop reason, so a
stream ends with ``metadata``.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from ...errors import InvalidResponseError
from ...events import read_json
from ..anthropic.reply import AnthropicDecoder
from ..errors import read_failure
from ..eventstream import EventStreamDecoder
from ..json import dict_of, dig, entries_of, list_of, read_as, reply_text, string_of
from ..openai.errors import inband_error as foreign_error
from ..sse import Frame
from ..terms import note_terms
from ..usage import UsageMap
from .errors import inband_error
from .finish import FINISH

MORE = "additionalModelResponseFields"  # the fields of the model's reply that the request names


class _BlockEvent(Struct):
    contentBlockIndex: Any = None  # noqa: N815 - the wire's own names
    delta: Any = None
    start: Any = None


class _Event(Struct):
    contentBlockDelta: _BlockEvent | None = None  # noqa: N815
    contentBlockStart: _BlockEvent | None = None  # noqa: N815
    contentBlockStop: _BlockEvent | None = None  # noqa: N815
    messageStart: Any = None  # noqa: N815
    messageStop: Any = None  # noqa: N815
    metadata: Any = None


_events = msgspec.json.Decoder(_Event)
_NAMES = frozenset(_Event.__struct_fields__)


# The counts do not overlap on this wire; the total includes all of them.
USAGE = UsageMap(
    {
        "input_tokens": "inputTokens",
        "output_tokens": "outputTokens",
        "total_tokens": "totalTokens",
        "cached_input_tokens": "cacheReadInputTokens",
        "cache_creation_input_tokens": "cacheWriteInputTokens",
    },
    apart={"input_tokens": ("cached_input_tokens", "cache_creation_input_tokens")},
)


class BedrockDecoder(AnthropicDecoder):
    """Decode messages and bodies of the bedrock wire.

    ``answer`` is the name of the tool whose input is the structured answer.
    """

    framing = EventStreamDecoder
    finish_words = FINISH.read

    def frame(self, frame: Frame) -> None:
        if frame.event != b"event":
            self._refuse(frame.data)
            return
        event = read_as(_events, frame.data)
        if (changed := event.contentBlockDelta) is not None:
            if isinstance(changed.delta, dict):
                self._change(changed.contentBlockIndex, changed.delta)
        elif (started := event.contentBlockStart) is not None:
            self._begin(started.contentBlockIndex, started.start)
        elif (stopped := event.contentBlockStop) is not None:
            if (block := self._blocks.get(stopped.contentBlockIndex)) is not None:
                self._close(block)
        elif event.messageStop is not None or event.metadata is not None:
            self._read_end(event)
        elif event.messageStart is not None:
            self.start()
        elif b"xception" in frame.data[:64] or b'"error"' in frame.data[:64]:
            self._refuse(frame.data)

    def body(self, data: bytes) -> None:
        body = _read_body(data)
        # Some recorders store a stream as one JSON payload per line (case:
        # bedrock/payloads-a-line).
        if body is None or _NAMES & body.keys():
            self._read_lines(data)
            return
        message = dig(body, "output", "message")
        if not isinstance(message, dict):
            if any(body.get(name) for name in ("message", "Message", "error", "errors")):
                self.out.fail(foreign_error(read_failure(data)))
                return
            raise InvalidResponseError("the reply has no message")
        self.start()
        note_terms(self.out, body)
        self._note_usage(body.get("usage"))
        self._note_stop(body)
        self.read_blocks([_as_block(block) for block in entries_of(message.get("content"))])

    def at_end(self) -> None:
        if self._stop_reason is None:
            self.interrupted()
        else:  # some proxies do not send token counts (case: bedrock/no-counts)
            self._finish()

    # --- reading the events of a stream

    def _read_lines(self, data: bytes) -> None:
        for line in data.splitlines():
            if line.strip() and not self.done and self.out.error is None:
                self.frame(Frame(line, b"event"))
        if not self.done and self.out.error is None:
            self.at_end()

    def _begin(self, index: Any, start: Any) -> None:
        self.start()
        if isinstance(start, dict) and start:
            self._open(index, _as_block(start))

    def _change(self, index: Any, delta: dict[str, Any]) -> None:
        block = self._blocks.get(index)
        if isinstance(text := delta.get("text"), str):
            self._add_fragment(self._find_block(index, block, "text", "text"), text)
        elif isinstance(call := delta.get("toolUse"), dict):
            self._feed(index, call.get("input"))
        elif isinstance(thought := delta.get("reasoningContent"), dict):
            self._think(index, thought)
        elif isinstance(cited := delta.get("citation"), dict):
            text_block = self._find_block(index, block, "text", "text")
            text_block.extras["citations"] = [*text_block.extras.get("citations", ()), cited]
        elif block is not None and block.kind == "opaque":
            block.data["deltas"] = [*block.data.get("deltas", ()), delta]

    def _feed(self, index: Any, piece: Any) -> None:
        block = self._blocks.get(index)
        if isinstance(piece, dict):
            piece = reply_text(piece)
        if block is not None and block.kind == "opaque":
            block.add("partial_json", string_of(piece))
        else:
            self.add_input(index, block, piece)

    def _think(self, index: Any, thought: dict[str, Any]) -> None:
        block = self._blocks.get(index)
        hidden = thought.get("redactedContent")
        if isinstance(hidden, str):
            self.start()
            self._open(index, {"type": "redacted_thinking", "data": hidden})
            return
        block = self._find_block(index, block, "thinking", "thinking")
        self._add_fragment(block, thought.get("text"))
        self._note_signature(block, thought.get("signature"))

    # --- reading the end of the reply

    def _read_end(self, event: _Event) -> None:
        self.start()
        if isinstance(event.messageStop, dict):
            self._note_stop(event.messageStop)
        if isinstance(event.metadata, dict):
            note_terms(self.out, event.metadata)
            self._note_usage(event.metadata.get("usage"))
        if self._stop_reason is not None and self._usage:
            self.done = True
            self._finish()

    def _note_stop(self, record: dict[str, Any]) -> None:
        self._stop_reason = record.get("stopReason")
        own = dict_of(record.get(MORE))
        self._stop_sequence = own.get("stop_sequence")
        if own:
            self.out.native = {"bedrock": {MORE: own}}
            self._report_dropped(list_of(own.get("input_transformations")))

    def _note_usage(self, record: Any) -> None:
        if isinstance(record, dict):
            self._usage = record
            self.out.usage(USAGE.read(record))

    def _refuse(self, data: bytes) -> None:
        record = read_json(data)
        name = next(iter(record)) if isinstance(record, dict) and record else "error"
        if name in ("error", "errors"):
            self.out.fail(foreign_error(read_failure(data)))
        else:
            self.out.fail(inband_error(name, record[name]))


def _read_body(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a body; ``None`` if the body consists of several JSON lines."""
    try:
        body = read_json(data)
    except ValueError:
        if b"\n" not in data.strip():
            raise
        return None
    if not isinstance(body, dict):
        raise InvalidResponseError("the reply is not an object")
    return body


def _as_block(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block in the anthropic wire's form; an unknown block becomes opaque."""
    if isinstance(text := block.get("text"), str):
        return {"type": "text", "text": text}
    call = block.get("toolUse")
    if isinstance(call, dict) and call.get("type") != "server_tool_use":
        given = {"name": call.get("name"), "input": call.get("input")}
        return {"type": "tool_use", "id": call.get("toolUseId"), **given}
    if isinstance(cited := block.get("citationsContent"), dict):
        text = "".join([string_of(part.get("text")) for part in entries_of(cited.get("content"))])
        return {"type": "text", "text": text, "citations": cited.get("citations")}
    if isinstance(thought := block.get("reasoningContent"), dict):
        if isinstance(hidden := thought.get("redactedContent"), str):
            return {"type": "redacted_thinking", "data": hidden}
        inner = dict_of(thought.get("reasoningText"))
        text = inner.get("text")
        signature = inner.get("signature")
        return {"type": "thinking", "thinking": text, "signature": signature}
    name = next(iter(block), "unknown")
    return {"type": name, name: block.get(name)}
