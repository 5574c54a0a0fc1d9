"""The assembler, which creates the events of a reply while a wire decodes the reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec.structs import replace

from ..errors import MalformedToolCallError, ProviderError, StructuredOutputError, cut
from ..messages import (
    Audio,
    Continuity,
    Image,
    Issuer,
    LossWarning,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
    new_ulid,
)
from .blocks import LAST, Block, Blocks
from .bounds import add_terms, bound_usage
from .values import (
    Event,
    FinishReason,
    MessageComplete,
    MessageStart,
    Problem,
    Raw,
    Response,
    StopDetails,
    TextDelta,
    Usage,
    make_response,
    read_object,
)

_NO_USAGE = Usage()
Interruption = Literal["cancelled", "interrupted"]


class Expected(Protocol):
    """The tools and the schema of a request, which tool calls and structured text must match."""

    @property
    def response_schema(self) -> dict[str, Any] | None:
        """The schema that the final text must match, or ``None`` if the caller gave no schema."""

    def tool_problem(self, name: str, arguments: dict[str, Any]) -> tuple[Problem, str] | None:
        """Return why a tool call does not match the request's tools; ``None`` if it matches."""

    def read_text(self, text: str) -> tuple[Any, str | None]:
        """Return the final text as parsed JSON, and the first violation of the schema, if any.

        The violation is ``None`` if the text matches the schema.
        """
        ...


class AssemblerError(RuntimeError):
    """Raised when a wire calls methods of the assembler in an illegal order, which is a bug."""


class Assembler:
    """Create the events of one reply, in the order that the rules of this package require.

    A wire calls ``start``, then any of ``text``, ``thinking``, ``tool_start``, ``tool_input``,
    ``attach``, ``whole``, ``block_end`` and ``usage`` in the order in which the data arrives, then
    one of ``finish``, ``fail`` and ``cancel``. ``take()`` returns the events that were created
    since its last call. After the end, ``error`` is the exception to raise, or ``None``. A wire
    sets ``offset`` to the byte position of the data that it decodes. Before it ends the message,
    it sets ``kept`` to the bytes that the provider sent, and ``native`` and ``stop_details``. The
    first event has the value that ``native`` has at the call of ``start``.

    A message has these states. A call that the table does not list raises ``AssemblerError``:

    | state | call | next | events |
    |---|---|---|---|
    | new | ``start`` | open | ``message.start`` |
    | new | ``fail`` | failed | none: the call fails before its first event |
    | new | ``cancel`` | complete | ``message.start``, then as in state open |
    | open | ``text``, ``thinking`` | open | a delta, once it is the turn of its block |
    | open | ``tool_start`` | open | ``tool.use_start``, in its turn |
    | open | ``tool_input`` | open | ``tool.use_input_delta``, in its turn |
    | open | ``attach``, ``whole`` | open | the state, if it is that of a text or a thought |
    | open | ``block_end`` | open | ``tool.use_end``, if the block is a call |
    | open | ``usage`` | open | none; ``message.complete`` has the counts |
    | open | ``finish`` | complete | ends of open calls, ``message.complete`` |
    | open | ``fail`` | complete | the same: ``interrupted`` calls, ``error`` |
    | open | ``cancel`` | complete | the same: ``cancelled`` calls and reason |
    | complete | ``tool_input`` | complete | none; the call that it belongs to is closed |
    | complete | ``fail``, ``cancel`` | complete | none |

    The module ``blocks`` describes the states of a block within an open message.
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
        # the name of each tool that was sent under another name
        self.tool_names: Mapping[str, str] = {}
        self.started = False  # true after message.start was emitted
        self.model = model
        self.provider = provider
        self.issuer = issuer
        self.warnings = tuple(warnings)
        self.reported = _NO_USAGE  # the latest token counts
        self.kept: Raw | None = None
        # the fields of the wire that no other attribute of a reply has, by the wire's name
        self.native: dict[str, dict[str, Any]] = {}
        self.stop_details: StopDetails | None = None
        # the terms of sale by kind, as the request asks for them or the provider states them
        self.terms: Mapping[str, str] = {}
        self.error: ProviderError | None = None
        self.opening: MessageStart | None = None
        self.complete: MessageComplete | None = None
        self._expected = expected
        self._structured_path = structured_path
        self._new_id = new_id
        self._blocks = Blocks(request_id)
        self._tools: dict[Any, Block] = {}
        self._call_ids: set[str] | None = None  # created by the first call

    @property
    def response(self) -> Response | None:
        """The complete reply, or ``None`` while the message is still open."""
        if self.opening is None or self.complete is None:
            return None
        return make_response(self.opening, self.complete)

    @property
    def has_calls(self) -> bool:
        """Whether the wire has started a tool call."""
        return bool(self._tools)

    def calls_are_complete(self, *keys: Any) -> bool:
        """Return whether the arguments of the given tool calls are complete JSON objects.

        Without ``keys``, check all tool calls.
        """
        return all(self._tools[key].is_complete() for key in keys or self._tools)

    def take(self) -> list[Event]:
        """Return the events that were created since the last call of this method."""
        blocks = self._blocks
        if not blocks.out:
            return []
        events, blocks.out = blocks.out, []
        return events

    def cut(self, undelivered: Sequence[Event] = ()) -> list[Event]:
        """End the message as cancelled, and return the events that close it.

        ``undelivered`` are the last events that ``take`` returned and that the caller did not
        deliver. They do not become part of the message.
        """
        undelivered = [*undelivered, *self.take()]
        if self.complete is None or self.complete in undelivered:
            self._blocks.retract(undelivered)
            self.complete = self.error = None
            if self.opening in undelivered:
                self.opening = None
            self.cancel()
        return self.take()

    # --- methods for an open message

    def start(self, model: str | None = None) -> None:
        """Begin the message, and emit ``message.start``."""
        if self.opening is not None:
            raise AssemblerError("start called twice")
        if self.error is not None:
            raise AssemblerError("start after the failure")
        self.model = model or self.model
        self._begin("msg_" + self._new_id())

    def _begin(self, message_id: str) -> None:
        blocks = self._blocks
        blocks.message_id = message_id
        self.opening = MessageStart(
            message_id,
            blocks.request_id,
            model=self.model,
            provider=self.provider,
            native=self.native,
        )
        self.reported = add_terms(self.reported, self.terms)
        self.started = True
        blocks.out.append(self.opening)

    def text(self, piece: str, state: Continuity | None = None) -> None:
        """Add a text fragment; after a call or a thinking block, it begins a new text block.

        A fragment that arrived with opaque state begins a new block, even without text.
        """
        if state is not None:
            _begin_with_state(self, Text, piece, state)
        if not piece or state is not None:
            return
        blocks = self._blocks
        block = blocks.last
        if block is None or block.kind is not Text or block.ended:
            block = self._open(Text)
            self._close_ended()
        if block is not blocks.current:
            blocks.add(block, piece, self.offset)
            return
        # This repeats the code of ``Blocks.add`` for speed, since nearly every chunk of a stream
        # arrives here.
        blocks.out.append(
            TextDelta(
                blocks.message_id, blocks.request_id, content_block_index=block.index, text=piece
            )
        )
        block.content.append(piece)

    def thinking(self, piece: str, state: Continuity | None = None) -> None:
        """Add a fragment of the model's thinking; ``state`` is as for ``text``."""
        if state is not None:
            _begin_with_state(self, Thinking, piece, state)
        if not piece or state is not None:
            return
        block = self._blocks.last
        if block is None or block.kind is not Thinking or block.ended:
            block = self._open(Thinking)
            self._close_ended()
        self._blocks.add(block, piece, self.offset)

    def tool_start(
        self,
        key: Any,
        call_id: str | None,
        name: str,
        signature: str | None = None,
        opaque: Any = None,
    ) -> None:
        """Begin a tool call, which the wire identifies by ``key``.

        If the call has no id, or the id of an earlier call, it gets a new id. ``signature`` and
        ``opaque`` are the opaque state that arrived with the start of the call.
        """
        if key in self._tools:
            raise AssemblerError(f"tool_start called twice for {key!r}")
        known = self._call_ids = self._call_ids or set()
        unique = call_id if call_id and call_id not in known else "call_" + self._new_id()
        known.add(unique)
        block = self._tools[key] = self._open(ToolCall)
        block.name = self.tool_names.get(name, name)
        block.call_id = unique
        block.provider_id = call_id or unique
        if signature is not None or opaque is not None:
            block.continuity = Continuity(signature, opaque, self.issuer)
        self._close_ended()

    def tool_input(self, key: Any, fragment: str) -> None:
        """Add a fragment of a tool call's arguments, unchanged."""
        block = self._tools.get(key)
        if block is None:
            raise AssemblerError(f"tool_input for {key!r}, which was not started")
        if block.ended:
            _refuse_late(self, "tool_input")
            if fragment.strip():
                block.problem = ("malformed", "more arguments arrived after the call was complete")
            return
        if fragment == "null" or block.is_null:
            fragment = _hold_null(block, fragment, self._expected)
        if fragment:
            self._blocks.add(block, fragment, self.offset)
            if block is self._blocks.current and block is not self._blocks.last:
                self._close_ended()

    def attach(
        self, kind: type, signature: str | None = None, opaque: Any = None, *, key: Any = None
    ) -> None:
        """Attach the provider's opaque state to a tool call or to the open block of a kind.

        If no block of ``kind`` is open, an empty one is opened. With the key ``LAST``, the state
        is added to the last text block, even if that block has ended: citations arrive after the
        text that they support. In this case ``opaque`` may be a function of the text and its
        existing state. If the message has no text, the state is ignored.
        """
        _refuse_late(self, "attach")
        if key is LAST:
            self._blocks.cite(opaque, self.issuer)
            return
        if kind is ToolCall:
            block = self._tools.get(key)
            if block is None:
                raise AssemblerError(f"attach for {key!r}, which was not started")
        else:
            block = self._blocks.last
            if block is None or block.kind is not kind or block.ended:
                block = self._open(kind)
                self._close_ended()
        if kind is Thinking and signature is None and block.continuity is not None:
            # Do not replace the signature, which may have arrived in an earlier delta.
            block.continuity = replace(block.continuity, opaque=opaque)
        else:
            block.continuity = Continuity(signature, opaque, self.issuer)
        if block is self._blocks.current:
            self._blocks.emit_state(block)

    def whole(self, block: RedactedThinking | Opaque | Audio | Image) -> None:
        """Add a block that arrives complete, without deltas.

        Audio blocks have opaque state only if the provider sent some; other blocks always have it.
        """
        opened = self._open(type(block))
        opened.complete = block
        if block.continuity is not None or isinstance(block, RedactedThinking | Opaque | Image):
            opened.continuity = replace(block.continuity or Continuity(), issuer=self.issuer)
        self.block_end()

    def block_end(self, key: Any = None) -> None:
        """Close the tool call with this key; without a key, close the open block, if any."""
        block = self._blocks.last if key is None else self._tools.get(key)
        if block is None and key is not None:
            raise AssemblerError(f"block_end for {key!r}, which was not started")
        if block is not None and not block.ended:
            block.ended = True
            self._close_ended()

    def usage(self, usage: Usage) -> None:
        """Replace the token counts of the message; a wire merges partial counts itself.

        A count that no call can have is unknown, and a warning reports it.
        """
        _refuse_late(self, "usage")
        bounded, lost = bound_usage(usage)
        self.reported = add_terms(bounded, self.terms)
        if lost:
            # a wire may report the same counts with every chunk
            self.warnings = tuple(dict.fromkeys([*self.warnings, *lost]))

    # --- methods that end the message

    def finish(
        self, reason: FinishReason, raw: str | None = None, stop_sequence: str | None = None
    ) -> None:
        """End a complete reply.

        If a tool call or the structured text is invalid, set ``error``. An invalid call has no
        intent.
        """
        self._close_all(None, cut=reason not in ("stop", "tool_calls"))
        unsound = None
        if self._tools:
            unsound = [block for block in self._tools.values() if block.problem is not None]
        parsed = None
        if reason in ("error", "cancelled"):
            pass  # the reply failed or was cancelled, so its calls and its text are not checked
        elif unsound:
            self.error = _unsound_call(unsound[0], reason)
            reason = reason if reason == "length" else "error"
        else:
            parsed, self.error = self._read_answer(reason)
        self._complete(reason, raw, stop_sequence, parsed)

    def _read_answer(self, reason: FinishReason) -> tuple[Any, StructuredOutputError | None]:
        """Return the value of a structured answer, if one was asked for, and its error."""
        expected = self._expected
        if expected is None or expected.response_schema is None:
            return None, None
        if self._tools or reason not in ("stop", "length"):
            return None, None
        texts = [block.text for block in self._blocks.all if block.kind is Text]
        return _read_structured(expected, texts, reason, self.reported)

    def fail(self, error: ProviderError) -> None:
        """End an interrupted reply: store the error, close open blocks, emit the last event.

        The finish reason is ``error``. If the message has not begun, nothing is emitted.
        """
        if self.complete is not None:
            return
        self.error = error
        if self.opening is not None:
            self._close_all("interrupted")
            self._complete("error")

    def cancel(self) -> None:
        """End a cancelled reply: close open blocks, and set the finish reason ``cancelled``."""
        if self.complete is not None:
            return
        if self.opening is None:
            self.start()
        self._close_all("cancelled")
        self._complete("cancelled")

    # --- private methods

    def _open(self, kind: type) -> Block:
        _refuse_late(self, "a block")
        if self.opening is None:
            raise AssemblerError("a block before start")
        return self._blocks.open(kind, self.offset)

    def _close_ended(self) -> None:
        """Close the blocks that have ended, in order, up to the first block that is still open."""
        while (block := self._blocks.take_turn()) is not None:
            self._close(block)

    def _close_all(self, problem: Interruption | None, *, cut: bool = False) -> None:
        """Close all blocks in order; if ``cut`` is true, the last block may be truncated."""
        if self.opening is None:
            raise AssemblerError("finish before start")
        if self.complete is not None:
            raise AssemblerError("finish called twice")
        while (block := self._blocks.take_turn(to_the_end=True)) is not None:
            if block.ended:
                self._close(block)
            else:
                block.ended = True
                self._close(block, problem, cut=cut)
        if problem is not None:
            # The opaque state of an interrupted reply may be incomplete, even in blocks that had
            # ended.
            for block in self._blocks.all:
                if block.continuity is not None:
                    block.continuity = replace(block.continuity, replayable=False)

    def _close(
        self, block: Block, problem: Interruption | None = None, *, cut: bool = False
    ) -> None:
        if problem is not None and block.kind is Thinking and block.continuity is None:
            # a truncated thinking block must not be sent back
            block.continuity = Continuity(issuer=self.issuer)
        if block.kind is not ToolCall:
            return
        text = block.text
        block.value = {} if not text.strip() and not cut and problem is None else read_object(text)
        if problem is not None:
            block.problem = (problem, f"the reply was {problem} before the call ended")
        elif block.problem is None and block.value is None:
            missing = "are not a JSON object" if text.strip() else "are missing"
            block.problem = ("malformed", f"the arguments {missing}")
        elif block.problem is None and block.value is not None and self._expected is not None:
            block.problem = self._expected.tool_problem(block.name, block.value)
        intent = None
        if block.problem is None:
            intent = block.intent(
                "tu_" + self._new_id(), text, self.provider, self.model, self._blocks.request_id
            )
        self._blocks.emit_end(block, intent)

    def _complete(
        self,
        reason: FinishReason,
        raw: str | None = None,
        stop_sequence: str | None = None,
        parsed: Any = None,
    ) -> None:
        blocks = self._blocks
        self.complete = MessageComplete(
            blocks.message_id,
            blocks.request_id,
            finish_reason=reason,
            final_content=tuple([block.finished() for block in blocks.all]),
            usage=self.reported,
            finish_raw=raw,
            stop_sequence=stop_sequence,
            model=self.model,
            parsed=parsed,
            structured_path=self._structured_path,
            warnings=self.warnings,
            kept=self.kept,
            stop_details=self.stop_details,
            native=self.native,
        )
        blocks.out.append(self.complete)
        if self.error is not None:
            self.error.response = self.response


def _begin_with_state(out: Assembler, kind: type, piece: str, state: Continuity) -> None:
    """Begin a block with its first fragment and its opaque state, which one event has."""
    out.block_end()
    block = out._open(kind)
    block.continuity = replace(state, issuer=out.issuer)
    if piece:
        out._blocks.add(block, piece, out.offset)
    out._close_ended()


def _refuse_late(out: Assembler, verb: str) -> None:
    if out.complete is not None:
        raise AssemblerError(f"{verb} after the end")


def _hold_null(block: Block, fragment: str, expected: Expected | None) -> str:
    """Hold back the arguments of a call if they are ``null``; return the text to emit now.

    Groq sends ``null`` as the arguments of a tool without parameters. If the tool accepts ``{}``,
    ``null`` is treated as empty arguments and not emitted. If more text follows, ``null`` is
    emitted before it, and the arguments are malformed.
    """
    if block.is_null:
        block.is_null = False
        return "null" + fragment
    if not block.text and expected is not None and expected.tool_problem(block.name, {}) is None:
        block.is_null = True
        return ""
    return fragment


def _unsound_call(block: Block, reason: str) -> MalformedToolCallError:
    _, detail = block.problem or ("", "")
    hint = "; the reply was cut at max_tokens" if reason == "length" else ""
    return MalformedToolCallError(
        f"tool call {block.index} ({cut(block.name) or 'without a name'}): {detail}{hint}"
    )


def _read_structured(
    expected: Expected, texts: list[str], reason: FinishReason, usage: Usage
) -> tuple[Any, StructuredOutputError | None]:
    """Return the value of a structured reply, and the error if it does not match the schema."""
    text = "".join(texts)
    if not text and reason == "length":
        return None, None
    parsed, wrong = expected.read_text(text)
    if wrong is None:
        return parsed, None
    if len(texts) > 1:
        # A model may write a comment in one text block and its answer in the last one.
        last, still_wrong = expected.read_text(texts[-1])
        if still_wrong is None:
            return last, None
    problem = "the reply does not satisfy response_schema"
    if reason == "length":
        used = "" if usage.output_tokens is None else f" after {usage.output_tokens} output tokens"
        problem = f"the reply was cut off at the token limit (max_tokens){used}"
    return parsed, StructuredOutputError(
        f"{problem}: {wrong}",
        response_schema=expected.response_schema,
        output_content=text,
        error_message=wrong,
        finish_reason=reason,
        usage=usage,
    )
