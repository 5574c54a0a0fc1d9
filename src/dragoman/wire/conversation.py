"""Walk a conversation, and write it message by message in the form of a wire.

The walk is the same on every wire. It pairs calls with results, makes their ids legal, omits calls
that the wire would reject, replaces media that a tool result cannot have, and notes each part that
is rewritten or dropped. A wire subclasses the writer: its methods write one message or block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from .. import messages as m
from ..errors import UnsupportedContentError
from .codec import Note, Notes
from .continuity import asks_to_compact, drop_state, is_compaction, is_ours, note_state
from .ids import CallPosition, Pairs
from .media import fit_result, transcribe
from .names import project_names
from .request import join_texts, split_system

CONTINUE = "Continue your last message exactly where it ends. Do not repeat any of it."
"""The message of the user that stands for a partial answer at the end of a conversation."""

_CANNOT_COMPACT = (
    "compaction_trigger: this model's server compacts no conversations; let the client do it, in"
    " Codex by another name of the provider than OpenAI"
)
_UNREADABLE = "only its issuer can read it; other models need the messages that it replaces"


class AnswerWriter(ABC):
    """Write the blocks of an assistant message.

    A method returns the form of a block on the wire, or ``None`` if the block is not sent. By
    default a block is dropped, and audio is replaced by its transcript.
    """

    notes: Notes
    no_place: ClassVar[str] = "this wire has no place for it"

    def drop(
        self,
        block: m.AssistantBlock,
        path: str,
        why: str | None = None,
        *,
        code: str | None = None,
        loss: bool = True,
    ) -> Any:
        """Note that a block of an assistant message is not sent; return ``None`` in its place."""
        if asks_to_compact(block):
            # A reply without a compaction would end the client's session.
            raise UnsupportedContentError(f"{path}: {_CANNOT_COMPACT}")
        if code is None and is_compaction(block):
            code = "compaction_unreadable"
            why = _UNREADABLE
        code = code or f"{block.__struct_config__.tag}_dropped"
        self.notes.items.append(
            Note(outcome="dropped", code=code, path=path, detail=why or self.no_place, loss=loss)
        )

    @abstractmethod
    def text(self, block: m.Text, path: str) -> Any:
        """Return the wire form of a text that the model wrote."""

    @abstractmethod
    def call(self, block: m.ToolCall, sent: str, path: str) -> Any:
        """Return the wire form of a tool call, with the id ``sent``."""

    @abstractmethod
    def thinking(self, block: m.Thinking, path: str) -> Any:
        """Return the wire form of the model's thinking."""

    def redacted(self, block: m.RedactedThinking, path: str) -> Any:
        """Return the wire form of redacted thinking."""
        return self.drop(block, path)

    def opaque(self, block: m.Opaque, path: str) -> Any:
        """Return the wire form of a block that only its issuer can read."""
        return self.drop(block, path)

    def picture(self, block: m.Image, path: str) -> Any:
        """Return the wire form of an image that the model generated."""
        return self.drop(block, path)

    def audio(self, block: m.Audio, path: str) -> Any:
        """Return the wire form of audio that the model generated."""
        transcript = transcribe(block, path, self.notes)
        return None if transcript is None else self.text(m.Text(transcript), path)


class ConversationWriter(AnswerWriter):
    """Write the messages after the system prompt."""

    can_mark_errors: ClassVar[bool] = True  # whether a tool result can be marked as an error
    orphan_code: ClassVar[str] = "orphan_result_dropped"
    # whether texts and calls are separate fields, so that text after a call is sent before it
    sends_calls_last: ClassVar[bool] = False
    # whether a compaction precedes the rest of its message: Anthropic ignores what comes before
    # it, and a gateway's stream has it at the end
    sends_compaction_first: ClassVar[bool] = False
    # the types of parts that the wire rejects at the end of a message
    unfinished: ClassVar[tuple[str, ...]] = ()
    # whether a system message must follow all messages of the user before the model's next turn
    system_ends_turn: ClassVar[bool] = False
    media_fields: ClassVar[tuple[str, ...]] = ("detail", "name")  # of media, that the wire has

    def __init__(self, request: m.Request, home: m.Issuer, quirks: Any, notes: Notes) -> None:
        messages = project_names(request, quirks.name_rule, notes).messages
        self.leading, self.messages = split_system(messages, quirks.late_system)
        self.system, _ = m.join_system(self.leading)
        self.first = len(messages) - len(self.messages)  # the index of the first of the messages
        self.home = home
        self.quirks = quirks
        self.notes = notes
        self.written: list[Any] = []
        self.omits_media = quirks.result_media == "omit"  # whether tool results have no media
        self.media: list[Any] = []  # the media of tool results that follow the results
        self.late: list[tuple[m.System, str]] = []  # system messages that wait for their place
        self.answer: m.Assistant  # the assistant message that is being written

    def write(self) -> list[Any]:
        """Return the messages in the form of the wire."""
        for at, message in enumerate(self.messages, self.first):
            self.message(message, at)
        self.close_group()
        return self.written

    def message(self, message: m.Message, at: int) -> None:
        """Write one message."""
        path = f"messages[{at}]"
        kind = type(message)
        if kind is m.ToolResult:
            self._result(message, at, path)  # type: ignore[arg-type]
            return
        if kind is m.System:
            self.late.append((message, path))  # type: ignore[arg-type]
            return
        self.close_group(before=kind)
        if kind is m.Assistant:
            self._assistant(message, at, path)  # type: ignore[arg-type]
            return
        if type(message.content) is not str:
            note_state(message, path, self.notes)  # type: ignore[arg-type]
        self.user(message, path)  # type: ignore[arg-type]

    def close_group(self, before: type[m.Message] | None = None) -> None:
        """Write what waits for the end of a group of tool results, which nothing may interrupt.

        ``before`` is the kind of the message that follows, if any.
        """
        if self.media:
            self.send_media()
        late, self.late = self.late, []
        for message, path in late:
            if (
                before is m.User
                and self.system_ends_turn
                and self.quirks.late_system == "in_place"
            ):
                self.late.append((message, path))
            else:
                self._late_system(message, path)

    def _late_system(self, message: m.System, path: str) -> None:
        place = self.quirks.late_system
        if place == "in_place":
            self.system_message(message, path)
        elif place == "user":
            why = "the model takes instructions in the conversation from the user only"
            self.notes.rewrite(path, "system_sent_as_user", why, loss=True)
            self.user(m.User(message.content, cache=message.cache), path)
        else:
            why = "the model takes instructions before the conversation only"
            self.notes.rewrite(path, "system_moved", why, loss=True)

    def system_message(self, message: m.System, path: str) -> None:
        """Write a system message in the middle of the conversation."""
        self.written.append({"role": "system", "content": message.content})

    def send_media(self) -> None:
        """Write the media of the preceding tool results as a message of the user."""
        self.written.append({"role": "user", "content": self.media})
        self.media = []

    # --- messages of users and tools

    @abstractmethod
    def user(self, message: m.User, path: str) -> None:
        """Write a user message."""

    @abstractmethod
    def part(self, block: m.UserBlock, path: str) -> Any:
        """Return the wire form of a block of a user message or of a tool result."""

    def parts(self, blocks: str | Sequence[m.UserBlock], path: str) -> list[Any]:
        """Return the wire form of the blocks of a user message or of a tool result."""
        assert not isinstance(blocks, str)
        places = [(block, f"{path}.content[{at}]") for at, block in enumerate(blocks)]
        for block, where in places:
            for name in ("detail", "name"):
                if name not in self.media_fields and getattr(block, name, None) is not None:
                    why = "this wire has no place for it"
                    self.notes.drop(f"{where}.{name}", f"{name}_dropped", why)
        return [self.part(*place) for place in places]

    def check_medium(self, block: m.Image | m.Document | m.Audio, path: str) -> None:
        """Raise an error if a tool result cannot have this medium."""
        notes, self.notes = self.notes, Notes()  # the medium is noted when it is written
        try:
            self.part(block, path)
        finally:
            self.notes = notes

    def _result(self, message: m.ToolResult, at: int, path: str) -> None:
        sent = self.id_of_result(message, at)
        if sent is None:
            self.notes.drop(path, self.orphan_code, "the call it answers is not sent")
            return
        if type(message.content) is not str:
            message = fit_result(
                message, path, self.notes, self.check_medium, omit=self.omits_media
            )
        if sent != message.tool_call_id:
            self.notes.rewrite(f"{path}.tool_call_id", "id_projected", "as in the call it answers")
        if message.is_error and not self.can_mark_errors:
            why = "this wire cannot mark a result as an error"
            self.notes.rewrite(f"{path}.is_error", "is_error_dropped", why, loss=True)
        if type(message.content) is not str:
            note_state(message, path, self.notes)
        self.result(message, sent, at, path)

    @abstractmethod
    def id_of_result(self, message: m.ToolResult, at: int) -> str | None:
        """Return the call id that a result is sent with; ``None`` if its call is not sent."""

    @abstractmethod
    def result(self, message: m.ToolResult, sent: str, at: int, path: str) -> None:
        """Write a tool result with the call id ``sent``."""

    # --- messages of the model

    def _assistant(self, message: m.Assistant, at: int, path: str) -> None:
        self.answer = message
        paths = []
        parts = []
        has_call = False
        blocks = [*enumerate(message.content)]
        opaque = [block for block in message.content if type(block) is m.Opaque]
        if self.sends_compaction_first and opaque and all(map(is_compaction, opaque)):
            # Only work of server tools can come before a compaction.
            blocks.sort(key=lambda each: type(each[1]) is not m.Opaque)
        for index, block in blocks:
            where = f"{path}.content[{index}]"
            kind = type(block)
            if has_call and (kind is m.Text or kind is m.Audio) and self.sends_calls_last:
                why = "text after a tool call is sent before it on this wire"
                self.notes.rewrite(where, "order_lost", why, loss=True)
            if kind is m.ToolCall:
                made = self._call(block, at, index, where)  # type: ignore[arg-type]
            else:
                made = self._block(block, where)
            if made is not None:
                paths.append(where)
                parts.append(made)
                has_call = has_call or kind is m.ToolCall
            if block.continuity is not None:
                self.note_state(block, where)
        while parts and self.unfinished and parts[-1].get("type") in self.unfinished:
            parts.pop()
            why = "what it led to was cut off or cannot be sent"
            self.notes.drop(paths.pop(), "thinking_dropped", why)
        if not parts or not self.turn(parts, at, path):
            why = "nothing of the message can be sent on this wire"
            self.notes.drop(path, "message_dropped", why)

    def _block(self, block: m.AssistantBlock, path: str) -> Any:
        if type(block) is m.Text:
            return self.text(block, path)
        if type(block) is m.Thinking:
            return self.thinking(block, path)
        if type(block) is m.Opaque:
            return self.opaque(block, path)
        if type(block) is m.Image:
            return self.picture(block, path)
        if type(block) is m.Audio:
            return self.audio(block, path)
        assert type(block) is m.RedactedThinking
        return self.redacted(block, path)

    def note_state(self, block: m.AssistantBlock, path: str) -> None:
        """Note that the opaque state of a block is dropped, unless the block's method does so."""

    def _call(self, block: m.ToolCall, at: int, index: int, path: str) -> Any:
        sent = self.id_of_call(block, at, index)
        if sent is None:
            # A call without a result, from a cancelled turn, is not sent, because hosted servers
            # reject any conversation that contains such a call.
            why = "no result answers it, and the wire demands one"
            return self.drop(block, path, why, code="dangling_call_dropped")
        if sent != block.id:
            why = "the wire does not take this id; call and result get another"
            self.notes.rewrite(path, "id_projected", why)
        return self.call(block, sent, path)

    @abstractmethod
    def id_of_call(self, block: m.ToolCall, at: int, index: int) -> str | None:
        """Return the id that a call is sent with; ``None`` if the call is not sent.

        The call is the block ``index`` of the message ``at``.
        """

    @abstractmethod
    def turn(self, parts: list[Any], at: int, path: str) -> bool:
        """Write an assistant message with these parts; return false if they are not enough."""


class PairedWriter(ConversationWriter):
    """Write for a wire that rejects a call without its result, and a result without its call."""

    def __init__(self, request: m.Request, home: m.Issuer, quirks: Any, notes: Notes) -> None:
        super().__init__(request, home, quirks, notes)
        self.pairs = Pairs(self.messages, self.first, quirks.id_rule)

    def id_of_call(self, block: m.ToolCall, at: int, index: int) -> str | None:
        return self.pairs.ids.get(CallPosition(at, index))

    def id_of_result(self, message: m.ToolResult, at: int) -> str | None:
        call = self.pairs.answers.get(at)
        return None if call is None else self.pairs.ids[call]

    def own_fields(self, block: m.Text | m.ToolCall, path: str) -> dict[str, Any]:
        """Return the provider-specific fields of a block, if the request goes to its issuer."""
        state = block.continuity
        if state is None or not (state.opaque or state.signature):
            return {}
        if state.opaque and isinstance(state.opaque, dict) and is_ours(state, self.home):
            return state.opaque
        why = "state of another issuer, or cut off, is not sent"
        self.notes.drop(f"{path}.continuity", "continuity_dropped", why)
        return {}


class FieldWriter(ConversationWriter):
    """Write for a wire with a field for each kind of content.

    Text that follows a call is sent before it, and media of tool results are sent in a message
    after the results. A part is a pair of a field and a value.
    """

    can_mark_errors = False
    sends_calls_last = True
    with_state: ClassVar[tuple[type, ...]] = (m.Text, m.ToolCall, m.Thinking)

    def add_system(self, directive: str | None) -> None:
        """Write the system prompt, with an instruction at its end."""
        if text := join_texts(self.system, directive):
            self.written.append({"role": "system", "content": text})

    def id_of_call(self, block: m.ToolCall, at: int, index: int) -> str | None:
        return block.id

    def id_of_result(self, message: m.ToolResult, at: int) -> str | None:
        return message.tool_call_id

    def result_text(self, block: m.UserBlock, path: str) -> str:
        """Return a block of a tool result as text.

        A medium becomes a numbered placeholder, and the medium itself is sent in the next message.
        """
        if isinstance(block, m.Text):
            return block.text
        kind = block.__struct_config__.tag
        name = f"{kind} {len(self.media) // 2 + 1}"
        self.media += [{"type": "text", "text": f"[{name}]"}, self.part(block, path)]
        why = "sent as a message of the user after the results"
        self.notes.rewrite(path, f"{kind}_moved", why)
        return f"[{name}: in the message after the results]"

    def result_texts(self, blocks: Sequence[m.UserBlock], path: str) -> list[str]:
        """Return the blocks of a tool result as texts."""
        return [
            self.result_text(block, f"{path}.content[{at}]") for at, block in enumerate(blocks)
        ]

    def note_state(self, block: m.AssistantBlock, path: str) -> None:
        if block.continuity is not None and isinstance(block, self.with_state):
            why = "opaque state of another issuer is not sent"
            drop_state(block.continuity, self.home.wire, path, self.notes, why)

    def turn(self, parts: list[Any], at: int, path: str) -> bool:
        fields: dict[str, list[Any]] = {}
        for name, value in parts:
            fields.setdefault(name, []).append(value)
        written = self.fields(fields)
        if written is not None:
            self.written.append(written)
        return written is not None

    @abstractmethod
    def fields(self, parts: dict[str, list[Any]]) -> dict[str, Any] | None:
        """Return an assistant message with these parts; ``None`` if nothing is left of it."""
