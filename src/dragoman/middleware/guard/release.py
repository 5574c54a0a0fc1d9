"""What a guard holds back of a reply, and what it has released."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...calls import CallRecord
from ...errors import ProviderError
from ...events import (
    Event,
    Follower,
    MessageComplete,
    MessageStart,
    RecordedAssembler,
    TextDelta,
    ThinkingDelta,
    ToolIntent,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from ...messages import LossWarning, Request, Text, Thinking, ToolCall
from ...provider import Reply
from ...validate.reply import Expectation
from .passage import Passage, Window
from .subject import Part, Stage, Subject, Verdict, read_texts

REWRITTEN = "guard_rewrite"


class Due(Struct):
    """What must be judged, whether a verdict may rewrite it, and what to do if it may pass."""

    subject: Subject
    accept: Callable[[Verdict], None] | None = None
    may_rewrite: bool = False


class _Held(Struct):
    """An event that is held back, until it is cleared or the text up to ``end`` is.

    ``details`` are the texts in its opaque state, such as cited sources, until they are judged.
    """

    event: Event
    passage: Passage | None = None
    end: int = 0
    is_cleared: bool = False
    details: str = ""

    def may_leave(self) -> bool:
        if self.details:
            return False
        return self.is_cleared or (self.passage is not None and self.end <= self.passage.cleared)


class Release:
    """The events of one reply: those that are held back, and a record of those released."""

    def __init__(
        self,
        request: Request,
        stages: frozenset[Stage],
        window: Window,
        rewrites: frozenset[Stage],
    ) -> None:
        self._request = request
        self._stages = stages
        self._rewrites = rewrites
        self._waits_for_end = "reply" in stages or bool(rewrites - {"request"})
        text_window = None if self._waits_for_end or not request.stream else window
        self._passages: Mapping[Part, Passage] = {
            "text": Passage(text_window),
            "thinking": Passage(text_window),
        }
        self._held: deque[_Held] = deque()
        self._detailed: deque[_Held] = deque()  # those with details that are not judged yet
        self._call: list[_Held] = []  # the events of the call that is arriving
        self._calls: list[list[_Held]] = []  # the complete calls that are not judged yet
        self._texts: dict[int, str] = {}  # the rewritten texts, by the index of the block
        self._inputs: dict[
            str, dict[str, Any]
        ] = {}  # the rewritten arguments, by the id of the call
        self._intents: dict[str, ToolIntent] = {}
        self._end: MessageComplete | None = None
        self.error: ProviderError | None = None  # what a rewritten answer violates
        self._start: MessageStart | None = None
        self._records: list[CallRecord] = []
        self._copied = 0
        self.out = Follower(request_id=request.request_id)  # what was released
        self.is_as_sent = False  # whether all was released as the provider sent it

    # --- the records of the call, in the order in which they were made

    def record(self, reply: Reply | None, *records: CallRecord) -> None:
        """Add records of verdicts behind what the reply has recorded so far."""
        self.read_history(reply)
        self._records += records

    def read_history(self, reply: Reply | None) -> Sequence[CallRecord]:
        """Return the records of the call so far, with the new ones of the reply."""
        if reply is not None:
            new = reply.history[self._copied :]
            self._copied += len(new)
            self._records += new
        return self._records

    # --- events that arrive and leave

    @property
    def held(self) -> list[Event]:
        """The events that are held back."""
        return [each.event for each in self._held]

    @property
    def has_begun(self) -> bool:
        """Whether anything was released."""
        return self.out.started

    def add(self, event: Event) -> None:
        """Hold an event back."""
        held = _Held(event)
        self._held.append(held)
        if isinstance(event, TextDelta | ToolUseStart):
            # A thought is over; its last window would hold back the whole answer behind it.
            self._passages["thinking"].close()
        if isinstance(event, TextDelta | ThinkingDelta) and "text" in self._stages:
            held.passage = self._passages["text" if isinstance(event, TextDelta) else "thinking"]
            held.end = held.passage.add(event.text)
            if event.continuity is not None:
                held.details = read_texts(event.continuity)
                self._detailed.append(held)
        elif (
            isinstance(event, ToolUseStart | ToolUseInputDelta | ToolUseEnd)
            and "intent" in self._stages
        ):
            self._call.append(held)
            if isinstance(event, ToolUseEnd):
                if event.intent is not None:
                    self._intents[event.tool_use_id] = event.intent
                self._calls.append(self._call)
                self._call = []
        elif isinstance(event, MessageComplete):
            self._end = event
        else:
            if isinstance(event, MessageStart):
                self._start = event
            held.is_cleared = not self._waits_for_end

    def take(self) -> list[Event]:
        """Return the events that may leave, in order; the start leaves together with the next."""
        free = 0
        for held in self._held:
            if not held.may_leave():
                break
            free += 1
        if free < (1 if self.has_begun else 2):
            return []
        events = list[Event]()
        for _ in range(free):
            events.append(self._held.popleft().event)
        return self.follow(events)

    def follow(self, events: list[Event]) -> list[Event]:
        """Note that events are released, and return them."""
        for event in events:
            self.out.follow(event)
        return events

    # --- what must be judged

    def advance(self) -> Iterator[Due]:
        """Yield what must be judged now, and clear it; call ``Due.accept`` before the next."""
        while self._calls:
            call = self._calls.pop(0)
            accept = partial(self._accept_call, call)
            yield Due(self._describe_call(call), accept, "intent" in self._rewrites)
        if not self._waits_for_end:
            yield from self._find_details()
        if self._end is not None and "text" in self._rewrites:
            yield from self._find_blocks(self._end)
        if self._end is not None and (self._texts or self._inputs):
            self._rewrite(self._end)
        yield from self._find_passages(at_end=self._end is not None)
        if self._end is not None:
            yield from self._find_rest(self._end)
            for held in self._held:
                held.is_cleared = True
                held.details = ""
            self.is_as_sent = not self._texts and not self._inputs

    def _find_passages(self, *, at_end: bool) -> Iterator[Due]:
        for part, passage in self._passages.items():
            upto = passage.find_due(at_end=at_end)
            if upto is None:
                continue
            subject = Subject(
                stage="text", text=passage.read(upto), request=self._request, part=part,
                position=passage.cleared, final=at_end,
            )  # fmt: skip
            yield Due(subject, partial(_clear, passage, upto, at_end))

    def _find_details(self) -> Iterator[Due]:
        while self._detailed:
            held = self._detailed.popleft()
            if held.details:
                subject = Subject(
                    stage="text", text=held.details, request=self._request, part="other",
                    final=False,
                )  # fmt: skip
                yield Due(subject, partial(_clear_details, held))

    def _find_rest(self, end: MessageComplete) -> Iterator[Due]:
        """Yield what arrives with the end of a reply, and the whole reply."""
        blocks = tuple(
            [
                each
                for each in end.final_content
                if not isinstance(each, Text | Thinking | ToolCall)
            ]
        )
        stated = [each.continuity for each in end.final_content]
        details = (stated, end.stop_details, end.stop_sequence, end.native)
        found = read_texts(blocks, details)
        if "text" in self._stages and (found or blocks):
            subject = Subject(
                stage="text", text=found, request=self._request, part="other", content=blocks
            )
            yield Due(subject)
        if "reply" in self._stages:
            subject = Subject(
                stage="reply", text=read_texts(end.final_content, details),
                request=self._request, content=end.final_content,
            )  # fmt: skip
            yield Due(subject)

    def _describe_call(self, call: Sequence[_Held]) -> Subject:
        start = cast("ToolUseStart", call[0].event)
        end = cast("ToolUseEnd", call[-1].event)
        parts: list[Any] = [start.tool_name, start.tool_use_id, end.final_input]
        if end.intent is None:
            pieces = [each.event for each in call if isinstance(each.event, ToolUseInputDelta)]
            parts += ["".join([piece.partial_json for piece in pieces]), end.detail]
        return Subject(
            stage="intent", text=read_texts(*parts), request=self._request,
            tool_name=start.tool_name, input=end.final_input, intent=end.intent,
        )  # fmt: skip

    def _accept_call(self, call: Sequence[_Held], verdict: Verdict) -> None:
        end = cast("ToolUseEnd", call[-1].event)
        if verdict.action == "rewrite":
            self._inputs[end.tool_use_id] = verdict.input or {}
        for held in call:
            held.is_cleared = not self._waits_for_end

    # --- rewriting

    def _find_blocks(self, end: MessageComplete) -> Iterator[Due]:
        """Yield each text and each thought of the reply by itself."""
        for index, block in enumerate(end.final_content):
            if isinstance(block, Text | Thinking) and block.text:
                subject = Subject(
                    stage="text", text=block.text, request=self._request,
                    part="text" if isinstance(block, Text) else "thinking",
                )  # fmt: skip
                yield Due(subject, partial(self._accept_text, index), may_rewrite=True)

    def _accept_text(self, index: int, verdict: Verdict) -> None:
        if verdict.action == "rewrite":
            self._texts[index] = verdict.text or ""

    def _rewrite(self, end: MessageComplete) -> None:
        """Replace the events of the reply by those of its rewritten content.

        The opaque state of what was rewritten is dropped, because it is bound to the original.
        """
        assert self._start is not None
        out = RecordedAssembler(
            request_id=end.request_id, model=self._start.model, provider=self._start.provider,
            expected=Expectation(self._request), structured_path=end.structured_path,
        )  # fmt: skip
        out.begin(end.message_id)
        warnings = [*end.warnings]
        for index, block in enumerate(end.final_content):
            path = f"content[{index}]"
            if isinstance(block, ToolCall):
                changed = self._inputs.get(block.id)
                if changed is not None:
                    block = ToolCall(block.id, block.name, changed)
                    warnings.append(LossWarning(REWRITTEN, path, "a judge replaced the arguments"))
                intent = self._intents.get(block.id) if changed is None else None
                text = "" if block.arguments is None else _encode(block.arguments)
                out.call(block, text, intent, is_whole=changed is not None or intent is not None)
                continue
            if index in self._texts:
                block = type(block)(self._texts[index])
                warnings.append(LossWarning(REWRITTEN, path, "a judge replaced the text"))
            out.block(block)
        out.stop_details = end.stop_details
        out.end(end.finish_reason, end.usage, warnings, None)
        events = out.take()
        last = replace(
            cast("MessageComplete", events[-1]),
            finish_raw=end.finish_raw, stop_sequence=end.stop_sequence,
        )  # fmt: skip
        self.error = out.error
        self._held.clear()
        self._detailed.clear()
        for passage in self._passages.values():
            passage.forget()
        for event in [*events[:-1], last]:
            self.add(event)
        self._calls.clear()  # they were judged, and a rewritten call is that of a judge


def _clear(passage: Passage, upto: int, at_end: bool, _: Verdict) -> None:
    passage.clear(upto, at_end=at_end)


def _clear_details(held: _Held, _: Verdict) -> None:
    held.details = ""


def _encode(arguments: dict[str, Any]) -> str:
    return msgspec.json.encode(arguments).decode()
