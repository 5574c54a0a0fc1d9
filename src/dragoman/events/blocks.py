"""The blocks of a message under construction: their texts, their order and their events.

Fragments of parallel tool calls may arrive interleaved, but events of different blocks are never
interleaved. Therefore only one block at a time, the current one, emits its events. The blocks
become current in the order in which the wire opened them:

    ========  ==============================  ========================  =============================
    state     since                           a fragment is             until
    ========  ==============================  ========================  =============================
    waiting   the wire opened it              kept                      all blocks before it are over
    current   its turn came; what was kept    emitted at once           the wire ends it, or another
              is emitted                                                block exists and it is complete
    over      its end is emitted              an error of a call; text  the message is complete
                                              opens another block
    ========  ==============================  ========================  =============================

If the wire ended a block while it was waiting, all its events are emitted when it becomes current.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from ..errors import InvalidResponseError
from ..messages import (
    AssistantBlock,
    Continuity,
    Issuer,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
)
from .intents import AssembledFrom, IntentSource, ToolIntent
from .values import (
    Event,
    MessageComplete,
    MessageStart,
    Problem,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    read_object,
)

MAX_BLOCKS = 4_000
"""The largest number of texts, thoughts and calls in one reply."""
_FRAGMENTS = 48  # how many fragments are collected before they are joined
_CHUNK = 4096  # length of a chunk in characters, after which a new chunk begins


LAST = object()
"""A special key: opaque state that is added with this key belongs to the last text block."""
Citing: TypeAlias = Callable[[str, dict[str, Any]], dict[str, Any]]
"""A function that returns the sources of a text, given the text and its opaque state."""


class GrowingText(Struct, eq=False):
    """A text that arrives in fragments and is stored in chunks.

    A string object for each fragment would take ten times the memory of the text. A single buffer
    that is reallocated as it grows would fragment the heap when many texts grow at once, while
    chunks are never moved.
    """

    chunks: list[str] = []
    fragments: list[str] = []

    def append(self, fragment: str) -> None:
        """Append a fragment to the text."""
        fragments = self.fragments
        fragments.append(fragment)
        if len(fragments) >= _FRAGMENTS:
            chunks = self.chunks
            if not chunks or len(chunks[-1]) >= _CHUNK:
                chunks.append("")
            chunks[-1] += "".join(fragments)
            fragments.clear()

    def read(self) -> str:
        """Return the text received so far, and join the chunks into one string."""
        if self.fragments or len(self.chunks) != 1:
            self.chunks = ["".join(self.chunks) + "".join(self.fragments)]
            self.fragments.clear()
        return self.chunks[0]


class Block(Struct, eq=False):
    """A text, a thought or a tool call of a message whose fragments are still arriving."""

    kind: type
    index: int
    first: int = 0  # the byte position of the first fragment
    last: int = 0
    # fragments received before the block became current; None afterwards
    waiting: list[str] | None = []
    content: GrowingText = field(default_factory=GrowingText)  # the text of all emitted fragments
    tail: str = ""  # the last fragment that is not only white space
    count: int = 0  # number of fragments received
    ended: bool = False  # whether the wire, or the next block, has closed this block
    continuity: Continuity | None = None
    signatures: list[str] = []  # the signatures that were emitted
    # the complete block, if it did not arrive in fragments
    complete: AssistantBlock | None = None
    # whether ``null`` was received and is held back, as the arguments of a tool call
    is_null: bool = False
    name: str = ""
    call_id: str = ""
    provider_id: str = ""
    value: dict[str, Any] | None = None
    problem: tuple[Problem, str] | None = None

    @property
    def text(self) -> str:
        """The text of all fragments received so far."""
        return self.content.read() + "".join(self.waiting or ())

    def retract(self, events: Sequence[Event]) -> bool:
        """Undo ``events``, the last events of the block; return whether any content remains."""
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
        text = self.content.read()
        text = text[: len(text) - hidden]
        self.content = GrowingText([text])
        self.ended = False
        if self.kind is Thinking and self.continuity is not None:
            self.continuity = replace(
                self.continuity, signature=self.signatures[-1] if self.signatures else None
            )
        return self.kind is ToolCall or bool(text or self.signatures)

    def has_state(self) -> bool:
        """Return whether this is a text or a thought with opaque state besides its issuer."""
        state = self.continuity
        if state is None or (self.kind is not Text and self.kind is not Thinking):
            return False
        return state.signature is not None or state.opaque is not None

    def is_complete(self) -> bool:
        """Return whether the next block may begin: a tool call's JSON must be complete first."""
        if self.kind is not ToolCall:
            return True
        # Test the last fragment first, since this method is called for every fragment of
        # interleaved calls: the cheap test excludes most incomplete calls.
        return self.tail.rstrip().endswith("}") and read_object(self.text) is not None

    def intent(
        self, intent_id: str, text: str, provider: str, model: str, request_id: str
    ) -> ToolIntent:
        """Return the intent for a tool call whose complete arguments are ``text``."""
        return ToolIntent(
            id=intent_id,
            provider_call_id=self.provider_id,
            tool_name=self.name,
            input=self.value or {},
            raw_input_text=text,
            source=IntentSource(provider, model, request_id, self.index),
            assembled_from=AssembledFrom(self.count, self.first, self.last),
        )

    def finished(self) -> AssistantBlock:
        """Return the finished block as an immutable part of the message."""
        if self.complete is not None:
            return replace(self.complete, continuity=self.continuity)
        if self.kind is ToolCall:
            return ToolCall(self.call_id, self.name, self.value, self.continuity)
        return (Thinking if self.kind is Thinking else Text)(self.text, self.continuity)


class Blocks:
    """The blocks of one message; ``out`` contains their events until the caller takes them."""

    __slots__ = ("_next", "all", "current", "last", "message_id", "out", "request_id")

    def __init__(self, request_id: str) -> None:
        self.message_id = ""
        self.request_id = request_id
        self.out: list[Event] = []
        self.all: list[Block] = []
        self.current: Block | None = None  # the open block whose events are emitted immediately
        self.last: Block | None = None  # the block that the wire opened last
        self._next = 0  # index of the first block that is not closed yet

    def open(self, kind: type, offset: int) -> Block:
        """Add a block to the message; ``take_turn`` decides when its events are emitted."""
        if len(self.all) >= MAX_BLOCKS:
            raise InvalidResponseError(f"the reply has more than {MAX_BLOCKS} blocks")
        block = self.last = Block(kind, len(self.all), offset, offset)
        self.all.append(block)
        return block

    def follow(self, kind: type, index: int) -> Block:
        """Return the block at ``index``; add it if it is new, and mark earlier blocks as ended.

        This method is for messages whose events come from a custom provider.
        """
        block = self.all[-1] if self.all else None
        if block is None or block.index != index:
            self.skip()
            block = Block(kind, index, waiting=None)
            self.all.append(block)
        return block

    def cite(self, sources: dict[str, Any] | Citing, issuer: Issuer | None) -> None:
        """Add the provider's source records to the opaque state of the last text block, if any."""
        texts = [block for block in self.all if block.kind is Text]
        if texts:
            state = texts[-1].continuity or Continuity(issuer=issuer)
            held = state.opaque if isinstance(state.opaque, dict) else {}
            found = sources if isinstance(sources, dict) else sources(texts[-1].text, held)
            texts[-1].continuity = replace(state, opaque={**held, **found})

    def skip(self) -> None:
        """Mark all blocks as ended without emitting events."""
        self._next = len(self.all)
        self.current = None

    def add(self, block: Block, piece: str, offset: int) -> None:
        """Emit a fragment, or store it while its block waits for earlier blocks to end.

        ``offset`` is the byte position at which the fragment arrived.
        """
        block.count += 1
        block.last = offset
        if not piece.isspace():
            block.tail = piece
        if block.waiting is not None:
            block.waiting.append(piece)
        else:
            self._emit(block, piece)

    def take_turn(self, *, to_the_end: bool = False) -> Block | None:
        """Make the next block current and emit its stored fragments.

        If the block has ended, return it; the caller must close it and call this method again.
        Otherwise return ``None``. With ``to_the_end``, open blocks are treated as ended.
        """
        if self._next == len(self.all):
            self.current = None
            return None
        block = self.all[self._next]
        if block.waiting is not None:
            self._begin_turn(block)
        if not to_the_end:
            block.ended = block.ended or (block is not self.last and block.is_complete())
            if not block.ended:
                self.current = block
                return None
        self._next += 1
        return block

    def _begin_turn(self, block: Block) -> None:
        """Emit the fragments that a block stored while it waited for earlier blocks to end."""
        waiting = block.waiting or []
        block.waiting = None
        if block.kind is ToolCall:
            start = ToolUseStart(
                self.message_id,
                self.request_id,
                content_block_index=block.index,
                tool_use_id=block.call_id,
                tool_name=block.name,
                continuity=block.continuity,
            )
            self.out.append(start)
        # The last fragment has the state of the block, as it had on a wire whose parts are signed.
        last = waiting.pop() if waiting and block.has_state() else ""
        for piece in waiting:
            self._emit(block, piece)
        if block.has_state():
            self.emit_state(block, last)
        elif isinstance(block.complete, RedactedThinking):
            hidden = ThinkingDelta(
                self.message_id,
                self.request_id,
                content_block_index=block.index,
                text="",
                continuity=block.continuity,
                redacted=block.complete.data,
            )
            self.out.append(hidden)

    def _emit(self, block: Block, piece: str) -> None:
        block.content.append(piece)
        if block.kind is Text:
            self.out.append(
                TextDelta(
                    self.message_id, self.request_id, content_block_index=block.index, text=piece
                )
            )
        elif block.kind is Thinking:
            self.out.append(
                ThinkingDelta(
                    self.message_id, self.request_id, content_block_index=block.index, text=piece
                )
            )
        else:
            delta = ToolUseInputDelta(
                self.message_id,
                self.request_id,
                content_block_index=block.index,
                tool_use_id=block.call_id,
                partial_json=piece,
            )
            self.out.append(delta)

    def emit_state(self, block: Block, piece: str = "") -> None:
        """Emit the opaque state of a text or a thought, together with its last fragment."""
        state = block.continuity
        if state is None or not block.has_state():
            return
        if piece:
            block.content.append(piece)
        if block.kind is Text:
            text = TextDelta(
                self.message_id,
                self.request_id,
                content_block_index=block.index,
                text=piece,
                continuity=state,
            )
            self.out.append(text)
            return
        if state.signature is not None:
            block.signatures.append(state.signature)
        thought = ThinkingDelta(
            self.message_id,
            self.request_id,
            content_block_index=block.index,
            text=piece,
            signature=state.signature,
            continuity=state,
        )
        self.out.append(thought)

    def emit_end(self, block: Block, intent: ToolIntent | None) -> None:
        """Emit the end of a tool call."""
        problem, detail = block.problem or (None, None)
        end = ToolUseEnd(
            self.message_id,
            self.request_id,
            content_block_index=block.index,
            tool_use_id=block.call_id,
            final_input=block.value or {},
            intent=intent,
            problem=problem,
            detail=detail,
        )
        self.out.append(end)

    def retract(self, undelivered: Sequence[Event]) -> None:
        """Undo the events in ``undelivered``; drop the blocks that have not emitted any event."""
        kept = [block for block in self.all if block.waiting is None]
        if any(isinstance(event, MessageStart) for event in undelivered):
            kept = []
        lost = [
            event for event in undelivered if not isinstance(event, MessageStart | MessageComplete)
        ]
        if lost:
            # index of the first block that was not delivered completely
            cut = lost[0].content_block_index
            before = [block for block in kept if block.index < cut]
            rest = [event for event in lost if event.content_block_index == cut]
            kept = before + [block for block in kept if block.index == cut and block.retract(rest)]
            self._next = min(self._next, len(before))
        self.all = kept
        self._next = min(self._next, len(kept))
