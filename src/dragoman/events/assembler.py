"""The one place that makes events: the assembler, which a wire drives while it reads a reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from msgspec.structs import replace

from ..errors import InvalidResponseError, MalformedToolCallError, ProviderError, StructuredOutputError, cut
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

MAX_BLOCKS = 10_000
"""The most texts, thoughts and calls that one reply may have."""


class Expected(Protocol):
    """What the caller asked for, so that the assembler can tell a sound reply from an unsound one."""

    @property
    def response_schema(self) -> dict[str, Any] | None:
        """The schema the final text must satisfy, if any."""

    def tool_problem(self, name: str, arguments: dict[str, Any]) -> tuple[Problem, str] | None:
        """Why this call is not one the caller offered, or ``None``."""

    def read_text(self, text: str) -> tuple[Any, str | None]:
        """The value of the final text under the schema, and what is wrong with it."""
        ...


class AssemblerError(RuntimeError):
    """A wire called the assembler's verbs in an illegal order: a bug in that wire."""


class Block:
    """One block under construction."""

    __slots__ = (
        "buffer", "call_id", "continuity", "count", "emitted", "ended", "first", "index", "kind", "last", "name",
        "problem", "provider_id", "signatures", "tail", "value", "waiting", "whole",
    )  # fmt: skip

    def __init__(self, kind: type, index: int, offset: int) -> None:
        self.kind = kind
        self.index = index
        self.waiting: list[str] | None = []  # fragments that came before the block's turn; None since then
        self.buffer = bytearray()  # what was emitted, in UTF-8: a string object for each fragment would cost more
        self.tail = ""  # the last fragment that is more than white space
        self.count = 0  # fragments received
        self.emitted = False  # did its turn come?
        self.ended = False  # did the wire, or the next block, close it?
        self.first = self.last = offset
        self.continuity: Continuity | None = None
        self.signatures: list[str] = []  # those that were emitted
        self.whole: AssistantBlock | None = None
        self.name = self.call_id = self.provider_id = ""
        self.value: dict[str, Any] | None = None
        self.problem: tuple[Problem, str] | None = None

    @property
    def text(self) -> str:
        """All that was received of it."""
        return self.buffer.decode("utf-8", "surrogatepass") + "".join(self.waiting or ())

    def write(self, piece: str) -> None:
        """Add a fragment that is emitted now."""
        self.buffer += piece.encode("utf-8", "surrogatepass")

    def retract(self, events: Sequence[Event]) -> bool:
        """Take back ``events``, the last ones of this block; return whether anything of it was delivered."""
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
        text = self.text
        text = text[: len(text) - hidden]
        self.buffer, self.waiting = bytearray(), None
        self.write(text)
        self.ended = False
        if self.kind is Thinking and self.continuity is not None:
            self.continuity = replace(self.continuity, signature=self.signatures[-1] if self.signatures else None)
        return self.kind is ToolCall or bool(text or self.signatures)

    def is_complete(self) -> bool:
        """Return whether another block may begin: after text always, after a call once its input is an object."""
        if self.kind is not ToolCall:
            return True
        # Asked after every fragment of interleaved calls: the last one shows that most are not the end.
        return self.tail.rstrip().endswith("}") and read_object(self.text) is not None

    def finished(self) -> AssistantBlock:
        """Return the block as it is in the message."""
        if self.whole is not None:
            return replace(self.whole, continuity=self.continuity)
        if self.kind is ToolCall:
            return ToolCall(self.call_id, self.name, self.value, self.continuity)
        text = self.text
        self.buffer, self.waiting = bytearray(), [text]  # one copy is enough
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
        self.started = False  # did the message begin?
        self.model = model
        self.provider = provider
        self.issuer = issuer
        self.warnings = tuple(warnings)
        self.reported = Usage()  # the last token counts
        self.kept: Raw | None = None
        self.error: ProviderError | None = None
        self.opening: MessageStart | None = None
        self.complete: MessageComplete | None = None
        self._request_id = request_id
        self._expected = expected
        self._structured_path = structured_path
        self._new_id = new_id
        self._message_id = ""
        self._out: list[Event] = []
        self._blocks: list[Block] = []
        self._next = 0  # index of the block whose turn it is; all before it are closed
        self._head: Block | None = None  # that block, while it is open
        self._tail: Block | None = None  # the block the wire opened last
        self._tools: dict[Any, Block] = {}
        self._call_ids: set[str] = set()

    @property
    def response(self) -> Response | None:
        """The reply so far ended, or ``None`` before its end."""
        return fold([self.opening, self.complete]) if self.opening and self.complete else None

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

    def cut(self, undelivered: Sequence[Event] = ()) -> list[Event]:
        """End as cancelled before ``undelivered``, the events taken last; return the events that close the message."""
        undelivered = [*undelivered, *self.take()]
        if self.complete is None or self.complete in undelivered:
            self._retract(undelivered)
            self.cancel()
        return self.take()

    # verbs of a running message

    def start(self, model: str | None = None) -> None:
        """The provider began to answer."""
        if self.opening is not None:
            raise AssemblerError("start called twice")
        if self.error is not None:
            raise AssemblerError("start after the failure")
        self.model = model or self.model
        self._message_id = "msg_" + self._new_id()
        self.opening = MessageStart(self._message_id, self._request_id, self.model, self.provider)
        self.started = True
        self._out.append(self.opening)

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
        # _add and _emit in one, for what nearly every chunk of a stream is.
        self._out.append(TextDelta(self._message_id, self._request_id, block.index, piece))
        block.buffer += piece.encode("utf-8", "surrogatepass")

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
        unique = call_id if call_id and call_id not in self._call_ids else "call_" + self._new_id()
        self._call_ids.add(unique)
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
        block.continuity = Continuity(signature, opaque, self.issuer)
        if kind is Thinking and block is self._head:
            self._emit_signature(block)

    def whole(self, block: RedactedThinking | Opaque) -> None:
        """A block that comes in one piece and has no deltas."""
        opened = self._open(type(block))
        opened.whole = block
        opened.continuity = replace(block.continuity or Continuity(), issuer=self.issuer)
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
        self.reported = usage

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
        if self.opening is not None:
            self._close_all("interrupted")
            self._complete("error")

    def cancel(self) -> None:
        """The caller wants no more: close what is open and say ``cancelled``."""
        if self.complete is not None:
            return
        if self.opening is None:
            self.start()
        self._close_all("cancelled")
        self._complete("cancelled")

    # inside

    def _refuse_late(self, verb: str) -> None:
        if self.complete is not None:
            raise AssemblerError(f"{verb} after the end")

    def _open(self, kind: type, name: str = "", call_id: str = "", provider_id: str = "") -> Block:
        if self.opening is None:
            raise AssemblerError("a block before start")
        self._refuse_late("a block")
        if len(self._blocks) >= MAX_BLOCKS:
            raise InvalidResponseError(f"the reply has more than {MAX_BLOCKS} blocks")
        block = Block(kind, len(self._blocks), self.offset)
        block.name, block.call_id, block.provider_id = name, call_id, provider_id
        self._blocks.append(block)
        self._tail = block
        self._advance()
        return block

    def _add(self, block: Block, piece: str) -> None:
        block.count += 1
        block.last = self.offset
        if not piece.isspace():
            block.tail = piece
        if block.waiting is not None:
            block.waiting.append(piece)
        else:
            self._emit(block, piece)

    def _advance(self) -> None:
        """Let the block whose turn it is speak; close it and go on while it is over."""
        while self._next < len(self._blocks):
            head = self._blocks[self._next]
            if not head.emitted:
                self._emit_waiting(head)
            if not head.ended and head is not self._tail and head.is_complete():
                head.ended = True
            if not head.ended:
                self._head = head
                return
            self._close(head)
            self._next += 1
        self._head = None

    def _emit_waiting(self, block: Block) -> None:
        """Emit all that a block gathered while it waited for its turn."""
        waiting, block.waiting, block.emitted = block.waiting or (), None, True
        if block.kind is ToolCall:
            start = ToolUseStart(self._message_id, self._request_id, block.index, block.call_id, block.name)
            self._out.append(start)
        for piece in waiting:
            self._emit(block, piece)
        if block.kind is Thinking:
            self._emit_signature(block)

    def _emit(self, block: Block, piece: str) -> None:
        block.write(piece)
        if block.kind is Text:
            self._out.append(TextDelta(self._message_id, self._request_id, block.index, piece))
        elif block.kind is Thinking:
            self._out.append(ThinkingDelta(self._message_id, self._request_id, block.index, piece))
        else:
            delta = ToolUseInputDelta(self._message_id, self._request_id, block.index, block.call_id, piece)
            self._out.append(delta)

    def _emit_signature(self, block: Block) -> None:
        if block.continuity is not None and block.continuity.signature is not None:
            signature = block.continuity.signature
            block.signatures.append(signature)
            self._out.append(ThinkingDelta(self._message_id, self._request_id, block.index, "", signature))

    def _retract(self, undelivered: Sequence[Event]) -> None:
        """Go back to before ``undelivered``; blocks that still wait for their turn are dropped."""
        kept = [block for block in self._blocks if block.emitted]
        if self.opening in undelivered:
            self.opening, kept = None, []
        lost = [event for event in undelivered if not isinstance(event, MessageStart | MessageComplete)]
        if lost:
            cut = lost[0].content_block_index  # the first block that was not delivered to its end
            before = [block for block in kept if block.index < cut]
            rest = [event for event in lost if event.content_block_index == cut]
            kept = before + [block for block in kept if block.index == cut and block.retract(rest)]
            self._next = min(self._next, len(before))
        self._blocks = kept
        self._next = min(self._next, len(kept))
        self.complete = self.error = None

    def _close_all(self, problem: Literal["cancelled", "interrupted"] | None, *, cut: bool = False) -> None:
        """Close every block in order; ``cut`` says that the last one may be short."""
        if self.opening is None:
            raise AssemblerError("finish before start")
        if self.complete is not None:
            raise AssemblerError("finish called twice")
        while self._next < len(self._blocks):
            block = self._blocks[self._next]
            if not block.emitted:
                self._emit_waiting(block)
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
        self, block: Block, problem: Literal["cancelled", "interrupted"] | None = None, *, cut: bool = False
    ) -> None:
        if problem is not None and block.kind is Thinking and block.continuity is None:
            block.continuity = Continuity(issuer=self.issuer)  # half a thought is not to be sent, signed or not
        if block.kind is not ToolCall:
            return
        text = block.text
        block.value = {} if not text.strip() and not cut and problem is None else read_object(text)
        if problem is not None:
            block.problem = (problem, f"the reply was {problem} before the call ended")
        elif block.problem is None:
            block.problem = self._check_call(block, text)
        self._emit_end(block, None if block.problem else self._intent(block, text))

    def _emit_end(self, block: Block, intent: ToolIntent | None) -> None:
        problem, detail = block.problem or (None, None)
        end = ToolUseEnd(
            self._message_id, self._request_id, block.index, block.call_id,
            block.value or {}, intent, problem, detail,
        )  # fmt: skip
        self._out.append(end)

    def _check_call(self, block: Block, text: str) -> tuple[Problem, str] | None:
        if block.value is None:
            return "malformed", "the arguments are not a JSON object" if text.strip() else "the arguments are missing"
        if self._expected is None:
            return None
        return self._expected.tool_problem(block.name, block.value)

    def _intent(self, block: Block, text: str) -> ToolIntent:
        return ToolIntent(
            id="tu_" + self._new_id(),
            provider_call_id=block.provider_id,
            tool_name=block.name,
            input=block.value or {},
            raw_input_text=text,
            source=IntentSource(self.provider, self.model, self._request_id, block.index),
            assembled_from=AssembledFrom(block.count, block.first, block.last),
        )

    def _unsound_call(self, block: Block, reason: str) -> MalformedToolCallError:
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
            problem = "the reply does not satisfy response_schema"
            if reason == "length":
                count = self.reported.output_tokens
                used = "" if count is None else f" after {count} output tokens"
                problem = f"the reply was cut off at the token limit (max_tokens){used}"
            self.error = StructuredOutputError(
                f"{problem}: {wrong}",
                response_schema=self._expected.response_schema,
                output_content=text,
                error_message=wrong,
                finish_reason=reason,
                usage=self.reported,
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
            self.reported,
            raw,
            stop_sequence,
            self.model,
            parsed,
            self._structured_path,
            self.warnings,
            self.kept,
        )
        self._out.append(self.complete)
        if self.error is not None:
            self.error.response = self.response
