"""The one place that emits events: ``Assembler`` for wires, ``Partial`` for streams somebody cuts off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from msgspec.structs import replace

from ..errors import MalformedToolCallError, ProviderError, StructuredOutputError, cut
from ..messages import (
    AssistantBlock,
    Continuity,
    Issuer,
    LossWarning,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
    new_ulid,
)
from .values import (
    AssembledFrom,
    Event,
    FinishReason,
    IntentSource,
    MessageComplete,
    MessageStart,
    Problem,
    Raw,
    Response,
    TextDelta,
    ThinkingDelta,
    ToolIntent,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    Usage,
    fold,
    read_object,
)


class Expected(Protocol):
    """What the caller asked for, so that the assembler can tell a sound reply from an unsound one."""

    @property
    def response_schema(self) -> dict[str, Any] | None:
        """The schema the final text must satisfy, if any."""

    def tool_problem(self, name: str, arguments: dict[str, Any]) -> tuple[Problem, str] | None:
        """Why this call is not one the caller offered, or ``None``."""

    def read_text(self, text: str) -> tuple[Any, str | None]:
        """The value of the final text under the schema, and what is wrong with it."""


# Of a text, that are kept as they came.
_FRAGMENTS = 48


class AssemblerError(RuntimeError):
    """A wire called the assembler's verbs in an illegal order: a bug in that wire."""


class _Pieces(list[str]):
    """A text that grows: its beginning, some passages, and the fragments since.

    Fragments become a passage once there are many: a reply then costs the bytes of its text rather than an
    object per chunk. The passages join the beginning when together they are a quarter of it. So it is one
    text that grows, whose end needs no second copy of it all; and it grows seldom, since where many texts
    grow at once each that moves leaves a gap behind that is too small for the next.
    """

    __slots__ = ("limit", "passages", "size")

    def __init__(self) -> None:
        self.limit = _FRAGMENTS  # so many parts there may be before they are settled
        self.passages = 0  # how many of them are no fragments, the beginning included
        self.size = 0  # of the passages, without the beginning

    def settle(self) -> None:
        """Make a passage of the fragments."""
        passage = "".join(self[self.passages :])
        self[self.passages :] = [passage]
        self.passages += 1
        self.size += len(passage)
        if 4 * self.size > len(self[0]):
            self.join()
        self.limit = self.passages + _FRAGMENTS

    def join(self) -> str:
        """Make one of all, and return it."""
        text = "".join(self)
        self[:] = [text]
        self.passages, self.size = 1, 0
        return text


class _Block:
    """One block under construction."""

    __slots__ = (
        "call_id", "continuity", "count", "ended", "first", "index", "kind", "last", "name",
        "pieces", "problem", "provider_id", "signatures", "spoken", "value", "whole",
    )  # fmt: skip

    def __init__(self, kind: type, index: int, offset: int) -> None:
        self.kind = kind
        self.index = index
        self.pieces = _Pieces()
        self.count = 0  # fragments received
        self.spoken = False  # has its turn come?
        self.ended = False  # has the wire, or the next block, closed it?
        self.first = self.last = offset
        self.continuity: Continuity | None = None
        self.signatures: list[str] = []  # those that were handed out
        self.whole: AssistantBlock | None = None
        self.name = self.call_id = self.provider_id = ""
        self.value: dict[str, Any] | None = None
        self.problem: tuple[Problem, str] | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def unsay(self, events: Sequence[Event]) -> bool:
        """Take back ``events``, the last ones of this block; is anything left that was heard?"""
        hidden = 0
        for event in events:
            if isinstance(event, ToolUseStart):
                return False
            if isinstance(event, ToolUseInputDelta):
                hidden += len(event.partial_json)
            elif isinstance(event, TextDelta | ThinkingDelta):
                hidden += len(event.text)
                if isinstance(event, ThinkingDelta) and event.signature is not None:
                    self.signatures.pop()
        text = self.pieces.join()
        text = text[: len(text) - hidden]
        self.pieces[:] = [text]
        self.ended = False
        if self.kind is Thinking and self.continuity is not None:
            self.continuity = replace(self.continuity, signature=self.signatures[-1] if self.signatures else None)
        return self.kind is ToolCall or bool(text or self.signatures)

    def is_complete(self) -> bool:
        """May another block begin? Text always allows it; a call only once its input is an object."""
        if self.kind is not ToolCall:
            return True
        # Asked for every fragment of interleaved calls: most are seen not to be the end without reading them all.
        last = next((piece for piece in reversed(self.pieces) if not piece.isspace()), "")
        return last.rstrip().endswith("}") and read_object(self.text) is not None

    def finished(self) -> AssistantBlock:
        if self.whole is not None:
            return replace(self.whole, continuity=self.continuity)
        if self.kind is ToolCall:
            return ToolCall(self.call_id, self.name, self.value, self.continuity)
        text = self.pieces.join()
        return Thinking(text, self.continuity) if self.kind is Thinking else Text(text, self.continuity)


class Assembler:
    """Turns what a wire says into events that keep the rules of this file.

    A wire calls ``start``, then any of ``text``, ``thinking``, ``tool_start``, ``tool_input``,
    ``attach``, ``whole``, ``block_end`` and ``usage`` in the order things arrive, then one of
    ``finish``, ``fail`` and ``cancel``. ``take()`` hands out the events so far; after the end,
    ``error`` is what the caller must be told, if anything. A wire sets ``offset`` to the byte
    position of what it is reading, and ``kept`` to the provider's bytes before it ends the message.
    """

    def __init__(
        self,
        *,
        request_id: str = "",
        model: str = "",
        provider: str = "",
        issuer: Issuer | None = None,
        expected: Expected | None = None,
        warnings: Sequence[LossWarning] = (),
        structured_path: str | None = None,
        new_id: Callable[[], str] = new_ulid,
    ) -> None:
        self.offset = 0
        self.started = False  # has the message begun?
        self.kept: Raw | None = None
        self.error: ProviderError | None = None
        self.complete: MessageComplete | None = None
        self._start: MessageStart | None = None
        self._request_id = request_id
        self._model = model
        self._provider = provider
        self._issuer = issuer
        self._expected = expected
        self._warnings = tuple(warnings)
        self._structured_path = structured_path
        self._new_id = new_id
        self._message_id = ""
        self._out: list[Event] = []
        self._blocks: list[_Block] = []
        self._next = 0  # index of the block whose turn it is; all before it are closed
        self._head: _Block | None = None  # that block, while it is open
        self._tail: _Block | None = None  # the block the wire opened last
        self._tools: dict[Any, _Block] = {}
        self._usage = Usage()

    @property
    def opening(self) -> MessageStart | None:
        """The event that began the message."""
        return self._start

    @property
    def response(self) -> Response | None:
        """The reply so far ended, or ``None`` before its end."""
        return fold([self._start, self.complete]) if self._start and self.complete else None

    @property
    def has_calls(self) -> bool:
        """Has the wire started any call?"""
        return bool(self._tools)

    def call_is_complete(self, key: Any) -> bool:
        """Do the arguments of the call ``key`` form an object?"""
        return self._tools[key].is_complete()

    def calls_are_complete(self) -> bool:
        """Do the arguments of every call so far form an object?"""
        return all(block.is_complete() for block in self._tools.values())

    def take(self) -> list[Event]:
        """Hand out the events since the last call."""
        if not self._out:
            return []
        events, self._out = self._out, []
        return events

    def cut(self, unsaid: Sequence[Event]) -> list[Event]:
        """End as cancelled where ``unsaid``, the events taken last, were not handed out; the events that do so."""
        unsaid = [*unsaid, *self.take()]
        if self.complete is None or self.complete in unsaid:
            self._unsay(unsaid)
            self.cancel()
        return self.take()

    # verbs of a running message

    def start(self, model: str | None = None) -> None:
        """The provider began to answer."""
        if self._start is not None:
            raise AssemblerError("start called twice")
        if self.error is not None:
            raise AssemblerError("start after the failure")
        self._model = model or self._model
        self._message_id = "msg_" + self._new_id()
        self._start = MessageStart(self._message_id, self._request_id, self._model, self._provider)
        self.started = True
        self._out.append(self._start)

    def text(self, piece: str) -> None:
        """More text; after a call or thinking it opens a new block."""
        if not piece:
            return
        block = self._tail
        if block is None or block.kind is not Text or block.ended:
            block = self._open(Text)
        if block is not self._head:
            self._add(block, piece)
            return
        # What follows is _add and _say for the one thing that nearly every chunk of a stream is.
        self._out.append(TextDelta(self._message_id, self._request_id, block.index, piece))
        pieces = block.pieces
        pieces.append(piece)
        if len(pieces) > pieces.limit:
            pieces.settle()

    def thinking(self, piece: str) -> None:
        """More thinking."""
        if not piece:
            return
        block = self._tail
        if block is None or block.kind is not Thinking or block.ended:
            block = self._open(Thinking)
        self._add(block, piece)

    def tool_start(self, key: Any, call_id: str | None, name: str) -> None:
        """A call begins; ``key`` is the wire's handle on it. A missing or repeated id is minted anew."""
        if key in self._tools:
            raise AssemblerError(f"tool_start called twice for {key!r}")
        known = any(block.call_id == call_id for block in self._tools.values())
        unique = call_id if call_id and not known else "call_" + self._new_id()
        self._tools[key] = self._open(ToolCall, name, unique, call_id or unique)

    def tool_input(self, key: Any, fragment: str) -> None:
        """A literal fragment of a call's arguments."""
        block = self._tools.get(key)
        if block is None:
            raise AssemblerError(f"tool_input for {key!r}, which was not started")
        if block.ended:
            self._refuse_late("tool_input")
            if fragment.strip():
                block.problem = ("malformed", "more arguments arrived after the call was complete")
            return
        if fragment:
            self._add(block, fragment)
            if block is self._head and block is not self._tail:
                self._advance()

    def attach(self, kind: type, signature: str | None = None, opaque: Any = None, *, key: Any = None) -> None:
        """Opaque state for the call ``key``, or for the open block of ``kind``, opening an empty one if need be."""
        self._refuse_late("attach")
        if kind is ToolCall:
            block = self._tools.get(key)
            if block is None:
                raise AssemblerError(f"attach for {key!r}, which was not started")
        else:
            block = self._tail
            if block is None or block.kind is not kind or block.ended:
                block = self._open(kind)
        if kind is Thinking and signature is None and block.continuity is not None:
            # A delta may have said it already: more state does not unsay it.
            block.continuity = replace(block.continuity, opaque=opaque)
            return
        block.continuity = Continuity(signature, opaque, self._issuer)
        if kind is Thinking and block is self._head:
            self._say_signature(block)

    def whole(self, block: RedactedThinking | Opaque) -> None:
        """A block that comes in one piece and has no deltas."""
        opened = self._open(type(block))
        opened.whole = block
        opened.continuity = replace(block.continuity or Continuity(), issuer=self._issuer)
        self.block_end()

    def block_end(self, key: Any = None) -> None:
        """The wire says a block is over: the call ``key``, or else the open block, if any."""
        block = self._tail if key is None else self._tools.get(key)
        if block is None and key is not None:
            raise AssemblerError(f"block_end for {key!r}, which was not started")
        if block is not None and not block.ended:
            block.ended = True
            self._advance()

    def usage(self, usage: Usage) -> None:
        """Token counts; the last ones stand. A wire that merges does so before it calls."""
        self._refuse_late("usage")
        self._usage = usage

    # endings

    def finish(self, reason: FinishReason, raw: str | None = None, stop_sequence: str | None = None) -> None:
        """The reply is whole. Unsound calls or text set ``error`` here and never make an intent."""
        self._close_all(None, cut=reason not in ("stop", "tool_calls"))
        unsound = [block for block in self._tools.values() if block.problem is not None]
        parsed = None
        if reason in ("error", "cancelled"):
            pass  # a degraded reply is surfaced as it is
        elif unsound:
            self.error = self._unsound_call(unsound[0], reason)
            reason = reason if reason == "length" else "error"
        elif not self._tools and reason in ("stop", "length"):
            parsed = self._read_structured(reason)
        self._complete(reason, raw, stop_sequence, parsed)

    def fail(self, error: ProviderError) -> None:
        """The reply broke off: close what is open, say ``error``, and keep the error to be raised."""
        if self.complete is not None:
            return
        self.error = error
        if self._start is not None:
            self._close_all("interrupted")
            self._complete("error")

    def cancel(self) -> None:
        """The caller wants no more: close what is open and say ``cancelled``."""
        if self.complete is not None:
            return
        if self._start is None:
            self.start()
        self._close_all("cancelled")
        self._complete("cancelled")

    # inside

    def _refuse_late(self, verb: str) -> None:
        if self.complete is not None:
            raise AssemblerError(f"{verb} after the end")

    def _open(self, kind: type, name: str = "", call_id: str = "", provider_id: str = "") -> _Block:
        if self._start is None:
            raise AssemblerError("a block before start")
        self._refuse_late("a block")
        block = _Block(kind, len(self._blocks), self.offset)
        block.name, block.call_id, block.provider_id = name, call_id, provider_id
        self._blocks.append(block)
        self._tail = block
        self._advance()
        return block

    def _add(self, block: _Block, piece: str) -> None:
        pieces = block.pieces
        pieces.append(piece)
        block.count += 1
        block.last = self.offset
        if block is self._head:
            self._say(block, piece)
            if len(pieces) > pieces.limit:
                pieces.settle()

    def _advance(self) -> None:
        """Let the block whose turn it is speak; close it and go on while it is over."""
        while self._next < len(self._blocks):
            head = self._blocks[self._next]
            if not head.spoken:
                self._speak(head)
            if not head.ended and head is not self._tail and head.is_complete():
                head.ended = True
            if not head.ended:
                self._head = head
                return
            self._close(head)
            self._next += 1
        self._head = None

    def _speak(self, block: _Block) -> None:
        """Say all that a block has gathered while it waited."""
        block.spoken = True
        if block.kind is ToolCall:
            start = ToolUseStart(self._message_id, self._request_id, block.index, block.call_id, block.name)
            self._out.append(start)
        for piece in block.pieces:
            self._say(block, piece)
        if block.kind is Thinking:
            self._say_signature(block)

    def _say(self, block: _Block, piece: str) -> None:
        if block.kind is Text:
            self._out.append(TextDelta(self._message_id, self._request_id, block.index, piece))
        elif block.kind is Thinking:
            self._out.append(ThinkingDelta(self._message_id, self._request_id, block.index, piece))
        else:
            delta = ToolUseInputDelta(self._message_id, self._request_id, block.index, block.call_id, piece)
            self._out.append(delta)

    def _say_signature(self, block: _Block) -> None:
        if block.continuity is not None and block.continuity.signature is not None:
            signature = block.continuity.signature
            block.signatures.append(signature)
            self._out.append(ThinkingDelta(self._message_id, self._request_id, block.index, "", signature))

    def _unsay(self, unsaid: Sequence[Event]) -> None:
        """Go back to before ``unsaid``, and to no block that still waits for its turn."""
        heard = [block for block in self._blocks if block.spoken]
        if self._start in unsaid:
            self._start, heard = None, []
        lost = [event for event in unsaid if not isinstance(event, MessageStart | MessageComplete)]
        cut = lost[0].content_block_index if lost else len(heard)  # the first block that was not heard to its end
        self._blocks = heard[:cut]
        if cut < len(heard) and heard[cut].unsay([event for event in lost if event.content_block_index == cut]):
            self._blocks.append(heard[cut])
        self._next = min(self._next, cut)
        self.complete = self.error = None

    def _close_all(self, problem: Literal["cancelled", "interrupted"] | None, *, cut: bool = False) -> None:
        """Close every block in order; ``cut`` says that the last one may be short."""
        if self._start is None:
            raise AssemblerError("finish before start")
        if self.complete is not None:
            raise AssemblerError("finish called twice")
        while self._next < len(self._blocks):
            block = self._blocks[self._next]
            if not block.spoken:
                self._speak(block)
            if block.ended:
                self._close(block)
            else:
                block.ended = True
                self._close(block, problem, cut=cut)
            self._next += 1
        self._head = None
        if problem is not None:
            # What a broken reply says of its state may lack what was to follow, also for blocks that had ended.
            for block in self._blocks:
                if block.continuity is not None:
                    block.continuity = replace(block.continuity, replayable=False)

    def _close(
        self, block: _Block, problem: Literal["cancelled", "interrupted"] | None = None, *, cut: bool = False
    ) -> None:
        if problem is not None and block.kind is Thinking and block.continuity is None:
            block.continuity = Continuity(issuer=self._issuer)  # half a thought is not to be sent, signed or not
        if block.kind is not ToolCall:
            return
        text = block.text
        block.value = {} if not text.strip() and not cut and problem is None else read_object(text)
        if problem is not None:
            block.problem = (problem, f"the reply was {problem} before the call ended")
        elif block.problem is None:
            block.problem = self._judge(block, text)
        word, detail = block.problem or (None, None)
        intent = None if word else self._intent(block, text)
        final = block.value or {}
        end = ToolUseEnd(
            self._message_id, self._request_id, block.index, block.call_id, final, intent, word, detail
        )  # fmt: skip
        self._out.append(end)

    def _judge(self, block: _Block, text: str) -> tuple[Problem, str] | None:
        if block.value is None:
            return "malformed", "the arguments are not a JSON object" if text.strip() else "the arguments are missing"
        if self._expected is None:
            return None
        return self._expected.tool_problem(block.name, block.value)

    def _intent(self, block: _Block, text: str) -> ToolIntent:
        return ToolIntent(
            id="tu_" + self._new_id(),
            provider_call_id=block.provider_id,
            tool_name=block.name,
            input=block.value or {},
            raw_input_text=text,
            source=IntentSource(self._provider, self._model, self._request_id, block.index),
            assembled_from=AssembledFrom(block.count, block.first, block.last),
        )

    def _unsound_call(self, block: _Block, reason: str) -> MalformedToolCallError:
        _, detail = block.problem or ("", "")
        hint = "; the reply was cut at max_tokens" if reason == "length" else ""
        return MalformedToolCallError(
            f"tool call {block.index} ({cut(block.name) or 'without a name'}): {detail}{hint}"
        )

    def _read_structured(self, reason: FinishReason) -> Any:
        if self._expected is None or self._expected.response_schema is None:
            return None
        texts = [block.text for block in self._blocks if block.kind is Text]
        text = "".join(texts)
        if not text and reason == "length":
            return None
        parsed, wrong = self._expected.read_text(text)
        if wrong is not None and len(texts) > 1:
            # A model may comment on its work first, in a text of its own [46bf84ce]; the answer comes last.
            last, still_wrong = self._expected.read_text(texts[-1])
            if still_wrong is None:
                return last
        if wrong is not None:
            self.error = StructuredOutputError(
                f"the reply does not satisfy response_schema: {wrong}",
                response_schema=self._expected.response_schema,
                output_content=text,
                error_message=wrong,
                finish_reason=reason,
                usage=self._usage,
            )
        return parsed

    def _complete(
        self,
        reason: FinishReason,
        raw: str | None = None,
        stop_sequence: str | None = None,
        parsed: Any = None,
    ) -> None:
        self.complete = MessageComplete(
            self._message_id,
            self._request_id,
            reason,
            tuple([block.finished() for block in self._blocks]),
            self._usage,
            raw,
            stop_sequence,
            self._model,
            parsed,
            self._structured_path,
            self._warnings,
            self.kept,
        )
        self._out.append(self.complete)
        if self.error is not None:
            self.error.response = self.response


class Partial:
    """Follows a stream as it is delivered, so that it can be closed well wherever it is cut off."""

    def __init__(self) -> None:
        self._assembler: Assembler | None = None
        self._start: MessageStart | None = None
        self._complete = False
        self._blocks: list[AssistantBlock] = []
        self._pieces = _Pieces()
        self._open: TextDelta | ThinkingDelta | ToolUseStart | None = None
        self._signature: str | None = None

    def follow(self, assembler: Assembler) -> None:
        """The events come from ``assembler``, which knows what was said: it need not be kept twice."""
        self._assembler = assembler

    def opening(self, events: Sequence[Event] = ()) -> list[MessageStart]:
        """The ``message.start`` seen so far or among ``events``, if any."""
        start = self._start if self._assembler is None else self._assembler.opening
        if start is not None:
            return [start]
        return [event for event in events if type(event) is MessageStart]

    def extend(self, events: Sequence[Event]) -> None:
        """Take note of events that were handed out."""
        if self._assembler is not None:
            return
        for event in events:
            kind = type(event)
            if kind is TextDelta or kind is ThinkingDelta:
                self._add_piece(event)  # type: ignore[arg-type]
            elif kind is ToolUseInputDelta:
                self._pieces.append(event.partial_json)  # type: ignore[union-attr]
            elif kind is ToolUseStart:
                self._shut()
                self._open = event  # type: ignore[assignment]
            elif kind is ToolUseEnd:
                self._end_tool(event)  # type: ignore[arg-type]
            elif kind is MessageStart:
                self._start = event  # type: ignore[assignment]
            elif kind is MessageComplete:
                self._complete = True

    def _add_piece(self, event: TextDelta | ThinkingDelta) -> None:
        opened = self._open
        if opened is None or opened.content_block_index != event.content_block_index:
            self._shut()
            self._open = event
        pieces = self._pieces
        pieces.append(event.text)
        if len(pieces) > pieces.limit:
            pieces.settle()
        if type(event) is ThinkingDelta:
            self._signature = event.signature or self._signature

    def close(self, request_id: str, model: str, provider: str, unsaid: Sequence[Event] = ()) -> list[Event]:
        """The events that end the stream as cancelled, ``unsaid`` not handed out; none if it had ended."""
        if self._assembler is not None:
            return self._assembler.cut(unsaid)
        if self._complete:
            return []
        closing: list[Event] = []
        if self._start is None:
            self._start = MessageStart("msg_" + new_ulid(), request_id, model, provider)
            closing.append(self._start)
        message_id, request_id = self._start.message_id, self._start.request_id
        if isinstance(self._open, ToolUseStart):
            value = read_object("".join(self._pieces)) or {}
            end = ToolUseEnd(
                message_id, request_id, self._open.content_block_index, self._open.tool_use_id,
                value, None, "cancelled", "the reply was cancelled before the call ended",
            )  # fmt: skip
            closing.append(end)
            self._end_tool(end)
        self._shut(cut=True)
        content = tuple(self._blocks)
        closing.append(MessageComplete(message_id, request_id, "cancelled", content, model=self._start.model))
        self._complete = True
        return closing

    def _end_tool(self, end: ToolUseEnd) -> None:
        if isinstance(self._open, ToolUseStart):
            unread = end.problem in ("malformed", "cancelled", "interrupted")
            arguments = read_object("".join(self._pieces)) if unread else end.final_input
            self._blocks.append(ToolCall(end.tool_use_id, self._open.tool_name, arguments))
        self._open, self._pieces = None, _Pieces()

    def _shut(self, *, cut: bool = False) -> None:
        """Turn the open text or thinking into a block; ``cut`` says that it may be short."""
        opened, text = self._open, "".join(self._pieces)
        if isinstance(opened, TextDelta):
            self._blocks.append(Text(text))
        elif isinstance(opened, ThinkingDelta):
            # Whose signature it is does not show in events, and the stream broke off: nobody is to be sent it.
            known = cut or self._signature is not None
            self._blocks.append(Thinking(text, Continuity(self._signature, replayable=False) if known else None))
        self._open, self._pieces, self._signature = None, _Pieces(), None
