"""Decode events and bodies of the anthropic wire, including deviations of compatible servers.

A body is decoded as the equivalent events, so both forms share one path. Blocks are identified by
``index`` and closed by their stop event; a stop that is late, repeated or missing is tolerated.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from ...errors import InvalidResponseError, cut
from ...events import Assembler, read_json, read_object
from ...messages import Continuity, Opaque, RedactedThinking, Request, Text, Thinking
from ..codec import Decoder
from ..errors import is_failure, read_failure
from ..finish import make_stop_details
from ..json import dict_of, dig, list_of, read_as, reply_text
from ..sse import Frame
from ..terms import note_terms
from ..usage import UsageMap
from .conversation import foreign_fields
from .errors import inband_error
from .finish import FINISH


class _Delta(Struct):
    """The delta of a content block or of the message.

    One struct can hold both, because no field name has two meanings.
    """

    type: Any = None
    text: Any = None
    thinking: Any = None
    signature: Any = None
    partial_json: Any = None
    citation: Any = None
    stop_reason: Any = None
    stop_sequence: Any = None


class _Event(Struct):
    """One event of a stream, with only the fields that the decoder uses."""

    type: Any = None
    index: Any = None
    delta: _Delta | None = None
    content_block: Any = None
    message: Any = None
    usage: Any = None
    error: Any = None


class _Body(Struct):
    type: Any = None
    model: Any = None
    content: Any = None
    stop_reason: Any = None
    stop_sequence: Any = None
    usage: Any = None
    error: Any = None


_events = msgspec.json.Decoder(_Event)


_Kind = Literal["text", "thinking", "call", "answer", "opaque"]


class _Block:
    """A content block that is still arriving."""

    __slots__ = ("closed", "data", "extras", "has_fragments", "key", "kind", "pieces")

    def __init__(self, kind: _Kind, key: int, data: dict[str, Any]) -> None:
        self.kind = kind
        self.key = key
        self.data = data  # the block as it was in its start event
        # provider-specific fields of the block
        self.extras = {} if kind == "opaque" else extras_of(foreign_fields(data))
        # fragments by field name: of a signature, or of the string fields of an unknown block
        self.pieces: dict[str, list[str]] = {}
        self.has_fragments = False  # whether a fragment was passed to the assembler
        self.closed = False

    def add(self, name: str, piece: str) -> None:
        self.pieces.setdefault(name, []).append(piece)

    def joined(self, name: str) -> str:
        return "".join(self.pieces.get(name, ()))


# Uncached, cache-read and cache-write input tokens are separate counts on this wire.
USAGE = UsageMap(
    {
        "input_tokens": "input_tokens",
        "output_tokens": "output_tokens",
        "cached_input_tokens": "cache_read_input_tokens",
        "cache_creation_input_tokens": "cache_creation_input_tokens",
        "reasoning_tokens": "output_tokens_details.thinking_tokens",
    },
    apart={"input_tokens": ("cached_input_tokens", "cache_creation_input_tokens")},
)


# The fields of a message, and of the events that carry it, that the decoder reads.
MESSAGE_FIELDS = frozenset(
    {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage", "error"}
)


class AnthropicDecoder(Decoder):
    """Decode events and bodies of the anthropic wire.

    ``answer`` is the name of the tool whose input is the structured answer.
    """

    finish_words = FINISH.read

    def __init__(
        self, request: Request, out: Assembler, *, answer: str | None = None, keep_raw: bool = True
    ) -> None:
        super().__init__(request, out, keep_raw=keep_raw)
        self._answer = answer
        self._blocks: dict[Any, _Block] = {}
        self._count = 0
        self._current: _Block | None = None  # the open block, unless it is a call
        self._usage: dict[str, Any] = {}
        self._zeros: dict[str, Any] = {}
        self._stop_reason: Any = None
        self._stop_sequence: Any = None

    def frame(self, frame: Frame) -> None:
        data = frame.data.strip()
        # Some proxies end the stream with [DONE] (case: anthropic/done-instead-of-stop).
        if data == b"[DONE]":
            self.done = True
            self.at_end() if self._stop_reason is None else self._finish()
        elif frame.event == b"error" and data and not data.startswith(b"{"):
            self._fail(data)
        elif data:
            event = read_as(_events, data)
            kind = (
                event.type
                if isinstance(event.type, str)
                else frame.event.decode("utf-8", "replace")
            )
            if kind == "content_block_delta":
                self._read_delta(event, data)
            # llama.cpp sends errors without a type (case: anthropic/error-without-type).
            elif (
                kind == "error"
                or event.error
                or (not self._read_rare(kind, event, data) and is_failure(data))
            ):
                self._fail(data)

    def body(self, data: bytes) -> None:
        record = read_json(data.strip())
        body = msgspec.convert(record, _Body)
        if (
            body.type == "error"
            or body.error
            or (body.content is body.stop_reason is None and is_failure(data))
        ):
            self._fail(data)
            return
        if not isinstance(body.content, list) and body.stop_reason is None:
            raise InvalidResponseError("the reply has no content")
        self._note_own(record)
        self.start(body.model)
        self._note_usage(body.usage)
        self._stop_reason = body.stop_reason
        self._stop_sequence = body.stop_sequence
        self.read_blocks(list_of(body.content))

    def read_blocks(self, blocks: list[Any]) -> None:
        """Decode the blocks of a complete message, whose stop reason is known."""
        is_cut = self.reason_for(str(self._stop_reason)) == "length"
        for at, block in enumerate(blocks):
            opened = self._open(at, block)
            is_last = at == len(blocks) - 1
            if is_cut and is_last and opened.kind == "call" and not opened.data.get("input"):
                # The token limit was reached before any input: ``{}`` is not what the model meant.
                opened.data["input"] = None
            self._close(opened)
        self._finish()

    def at_end(self) -> None:
        # Every server ends a stream with message_stop, so a stream without it is incomplete.
        self.interrupted()

    def facts(self) -> dict[str, Any]:
        return {
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": self._usage,
        }

    # --- reading the start, usage and failure of a message

    def _read_rare(self, kind: str, event: _Event, data: bytes) -> bool:
        """Decode an event that occurs once per message or block; return false for other events."""
        if kind == "content_block_start":
            self.start()
            self._open(event.index, event.content_block)
        elif kind == "content_block_stop":
            if (block := self._blocks.get(event.index)) is not None:
                self._close(block)
        elif kind == "message_start":
            self._note_own(dict_of(event.message))
            self.start(dig(event.message, "model"))
            usage = dig(event.message, "usage")
            # Clients require integers, so proxies send zeros at the start as placeholders, and the
            # counts (or null) at the end. If the end has no input count, as with the test server
            # aimock, the zeros are real counts (case: anthropic/usage-changed-at-end).
            if isinstance(usage, dict) and not any(usage.values()):
                self._zeros = usage
            else:
                self._note_usage(usage)
        elif kind == "message_delta":
            self.start()
            record = read_json(data)
            self._note_own({**record, **dict_of(record.get("delta")), "delta": None})
            if (delta := event.delta) is not None and delta.stop_reason is not None:
                self._stop_reason = delta.stop_reason
                self._stop_sequence = delta.stop_sequence
            if isinstance(event.usage, dict) and "input_tokens" not in event.usage:
                self._note_usage(self._zeros)
            self._note_usage(event.usage)
        elif kind == "message_stop":
            self.done = True
            self._finish()
        else:
            return False
        return True

    def _fail(self, data: bytes) -> None:
        self.out.fail(inband_error(read_failure(data)))

    def _note_own(self, record: dict[str, Any]) -> None:
        """Record the fields of a message that only this wire has, with those of its usage.

        Anthropic repeats a field at the end of a stream if its value has changed.
        """
        native = self.out.native.get("anthropic", {})
        own = {
            name: value
            for name, value in record.items()
            if value is not None and name not in MESSAGE_FIELDS
        }
        usage = USAGE.rest(dict_of(record.get("usage")))
        if usage:
            own["usage"] = {**native.get("usage", {}), **usage}
        if not own:
            return
        self.out.native = {"anthropic": {**native, **own}}
        details = own.get("stop_details")
        if isinstance(details, dict):
            self.out.stop_details = make_stop_details(
                details.get("category"), details.get("explanation")
            )
        self._report_dropped(list_of(own.get("input_transformations")))

    def _report_dropped(self, entries: list[Any]) -> None:
        """Add a warning if the server removed thinking from the request.

        The server does this if the conversation before a thinking block has changed; it names the
        blocks only with the beta ``thinking-binding-controls-2026-08-01`` (BerriAI/litellm#41382;
        docs.aws.amazon.com/bedrock, claude-messages-thinking-block-binding; seen 2026-11-18; case:
        anthropic/thinking-dropped-by-server).
        """
        dropped = [each for each in entries if dig(each, "type") == "thinking_dropped"]
        if dropped:
            reasons = dict.fromkeys([str(each.get("reason")) for each in dropped])
            self.lose(
                "thinking_unbound",
                cut(str(dropped[0].get("path"))),
                f"the server removed {len(dropped)} thinking blocks from the request: "
                + cut(", ".join(reasons)),
            )

    def _note_usage(self, record: Any) -> None:
        """Record usage. Token counts are running totals, so the last reported value is used."""
        if isinstance(record, dict):
            self._usage.update(
                {name: value for name, value in record.items() if value is not None}
            )
            self.out.usage(USAGE.read(self._usage))
            note_terms(self.out, self._usage)

    def _finish(self) -> None:
        if not self.out.started:
            raise InvalidResponseError("the stream ended without a message")
        # An open call is not closed here, because the assembler decides whether it is complete.
        if self._current is not None:
            self._close(self._current)
        raw = None if self._stop_reason is None else str(self._stop_reason)
        sequence = self._stop_sequence if isinstance(self._stop_sequence, str) else None
        self.out.finish(self.reason_for(raw), raw, sequence)

    # --- reading content blocks

    def _open(self, index: Any, data: Any) -> _Block:
        if not isinstance(data, dict):
            raise InvalidResponseError("a content block is not an object")
        # Calls may overlap (case: anthropic/calls-interleaved). Any other block ends when the next
        # block starts, because some servers send no stop event (case:
        # anthropic/blocks-never-stopped).
        if self._current is not None:
            self._close(self._current)
        self.release_end()
        self._count += 1
        block = self._blocks[index] = _Block(self._kind_of(data), self._count, data)
        if block.kind == "answer":
            self._note_answer()
        if block.kind == "call":
            state = block.extras or None
            self.start_call(block.key, data.get("id"), data.get("name"), opaque=state)
            return block
        self._current = block
        if block.kind in ("text", "thinking"):
            self._add_fragment(block, data.get(block.kind))
            self._note_signature(block, data.get("signature"))
        return block

    def _note_answer(self) -> None:
        """Add a warning if a second structured answer begins, which compatible servers allow."""
        if any([each.kind == "answer" for each in self._blocks.values()][1:]):
            self.lose(
                "answers_dropped",
                "response_schema",
                "the model gave several structured answers; parsed is the last, and the message "
                "has all of them",
            )

    def _kind_of(self, data: dict[str, Any]) -> _Kind:
        kind = data.get("type")
        if kind == "tool_use":
            return (
                "answer"
                if self._answer is not None and data.get("name") == self._answer
                else "call"
            )
        if kind == "text":
            return "text"
        return "thinking" if kind == "thinking" else "opaque"

    def _read_delta(self, event: _Event, data: bytes) -> None:
        delta = event.delta
        if delta is None:
            return
        block = self._blocks.get(event.index)
        if block is not None and block.kind == "opaque" and not block.closed:
            _grow(block, read_json(data)["delta"])
        elif delta.type == "text_delta":
            self._add_fragment(self._find_block(event.index, block, "text", "text"), delta.text)
        elif delta.type == "thinking_delta":
            self._add_fragment(
                self._find_block(event.index, block, "thinking", "thinking"), delta.thinking
            )
        elif delta.type == "input_json_delta":
            self.add_input(event.index, block, _as_input(delta.partial_json))
        elif block is not None and delta.type == "signature_delta":
            self._note_signature(block, delta.signature)
        elif block is not None and delta.type == "citations_delta":
            _append(block.extras, "citations", delta.citation)

    def add_input(self, index: Any, block: _Block | None, piece: Any) -> None:
        """Add a fragment of the input of a call, or of the call that is the answer."""
        kind: _Kind = "answer" if block is not None and block.kind == "answer" else "call"
        self._add_fragment(self._find_block(index, block, kind, "tool_use"), piece)

    def _find_block(self, index: Any, block: _Block | None, kind: _Kind, word: str) -> _Block:
        """Return the block that a delta extends; open one if no start event of its type arrived.

        Cases: ``anthropic/deltas-without-start``, ``anthropic/deltas-of-another-kind``.
        """
        if block is not None and block.kind == kind and (kind == "call" or not block.closed):
            return block
        self.start()
        return self._open(index, {"type": word})

    def _add_fragment(self, block: _Block, piece: Any) -> None:
        if not isinstance(piece, str) or not piece:
            return
        block.has_fragments = True
        if block.kind == "call":
            self.out.tool_input(block.key, piece)
        elif block.kind == "thinking":
            self.out.thinking(piece)
        else:
            self.out.text(piece)

    def _note_signature(self, block: _Block, piece: Any) -> None:
        if isinstance(piece, str) and block.kind == "thinking":
            block.add("signature", piece)

    def _close(self, block: _Block) -> None:
        if block.closed:
            return
        block.closed = True
        if block.kind == "call":
            self._close_call(block)
            return
        self._current = None
        if block.kind == "opaque":
            self._emit_opaque(block)
            return
        if block.kind == "answer":
            if not block.has_fragments:
                self._add_fragment(block, _as_input(block.data.get("input")))
        elif block.extras or block.joined("signature"):
            block.has_fragments = True
            kind = Thinking if block.kind == "thinking" else Text
            self.out.attach(kind, block.joined("signature") or None, block.extras or None)
        if block.has_fragments:
            self.out.block_end()

    def _close_call(self, block: _Block) -> None:
        # calls that server-side code makes arrive complete, without fragments
        if not block.has_fragments:
            self._add_fragment(block, _as_input(block.data.get("input")))
        if block.has_fragments:
            self.out.block_end(block.key)
        else:
            self.hold_end(block.key)

    def _emit_opaque(self, block: _Block) -> None:
        data = block.data
        state = None
        for name in block.pieces:
            data[name] = block.joined(name)
        if isinstance(text := data.pop("partial_json", None), str) and text.strip():
            given = read_object(text)
            if given is None:
                state = Continuity(replayable=False)
            else:
                data["input"] = given
        if data.get("type") == "redacted_thinking" and isinstance(data.get("data"), str):
            self.out.whole(RedactedThinking(data["data"]))
        else:
            self.out.whole(Opaque(data, state))


def _grow(block: _Block, delta: dict[str, Any]) -> None:
    """Add a delta to an unknown block: strings and lists are extended, other values replaced."""
    for name, value in delta.items():
        if name == "citation":
            _append(block.data, "citations", value)
        elif isinstance(value, str) and name != "type":
            if name not in block.pieces and isinstance(before := block.data.get(name), str):
                block.add(name, before)
            block.add(name, value)
        elif value is not None and name != "type":
            block.data[name] = value


def _append(record: dict[str, Any], name: str, value: Any) -> None:
    if value is not None:
        held = record.get(name)
        if not isinstance(held, list):
            held = record[name] = []
        held.append(value)


def extras_of(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the provider-specific fields of a block that are not empty."""
    extras = {name: value for name, value in fields.items() if value not in (None, [], "")}
    if extras.get("caller") == {"type": "direct"}:
        # Every call has the caller ``direct`` by default, so this value is not stored.
        del extras["caller"]
    return extras


def _as_input(value: Any) -> str:
    """Return a call's input as text: an object as JSON, an empty object as an empty string."""
    if isinstance(value, str):
        return value
    return reply_text(value) if value else ""
