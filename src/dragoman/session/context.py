"""Context policies: which part of a long conversation is sent to the model.

::

    Session(provider, tools, policy, log, context=[DropOldToolResults(), Window()])

A policy runs if the estimated tokens of a turn exceed the policy's share of the context window, or
if the model rejects a conversation as too long. Omitted messages stay in the log, and the omission
is recorded. Some models bind their thinking to the messages before it: they then do not see the
thinking after the omission, which the reply and its record report (``thinking_unbound``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from ..errors import ProviderError
from ..log import LeftOut, SideEffect
from ..messages import Assistant, Message, System, ToolCall, ToolResult, User
from ..provider import Provider
from ..tokens import estimate_text
from ..tools.runtime import cut_text

_SMALLEST = 40  # tokens that a placeholder must save; a smaller result is not replaced
_SHORTEST = 400  # a text is never shortened to fewer characters than this
_NOTE = "[Earlier messages of this conversation were left out here to save space.]"
_SUMMARY = (
    "[Summary of the earlier messages of this conversation, which were left out to save space]"
)
_INSTRUCTIONS = (
    "Summarise the beginning of a conversation between a user, an assistant and its tools, so that"
    " the assistant can go on without it. Keep the user's goals and wishes, what was found and "
    "where (names of files, commands, numbers), what was changed, decided and refused, and what "
    "is still to be done. Write facts, not a story; at most 400 words."
)


class Part(Struct, frozen=True, kw_only=True):
    """A message that is currently sent: its record's number, its estimated tokens, its role.

    ``call`` is the tool call that a tool result answers, and ``side_effect`` the side effect of
    its tool. A part is ``unseen`` if the model has not been called since the message was added.
    ``is_goal`` marks a message of the user, ``is_note`` a message that a policy wrote.
    """

    seq: int
    message: Message
    tokens: int
    is_goal: bool = False
    is_note: bool = False
    is_replaced: bool = False
    unseen: bool = False
    call: ToolCall | None = None
    side_effect: SideEffect | None = None


class Projection(Struct, frozen=True):
    """The messages that a policy omits, and the note to send in their place."""

    left_out: tuple[LeftOut, ...]
    note: str | None = None
    summary: str | None = None


Summariser: TypeAlias = Callable[
    [Provider | None, str, str, Sequence[Part]], Awaitable[tuple[str, str]]
]


class ContextView(Struct, frozen=True, kw_only=True):
    """The input of a policy: the parts that are sent, their tokens, and the target in tokens.

    ``summarise(provider, instructions, transcript, parts)`` calls a model (the session's own if
    ``provider`` is ``None``), records the call and the summary, and returns the id of the
    summary's record and its text. ``compacts`` is whether the provider can still compact the
    conversation itself, in the next call.
    """

    parts: tuple[Part, ...]
    tokens: int
    goal: int
    window: int | None
    family: str
    summarise: Summariser
    compacts: bool = False

    @property
    def excess(self) -> int:
        """The number of tokens to remove."""
        return self.tokens - self.goal


class ContextPolicy(Struct, frozen=True, kw_only=True):
    """A policy that shortens the conversation that is sent to the model.

    A subclass implements ``project``.

    It runs when the estimated tokens of a turn exceed the fraction ``share`` of the context
    window, and shortens the conversation to the fraction ``target``. ``window`` is the context
    window in tokens, if the model's capabilities do not include it.
    """

    share: float = 0.8
    target: float = 0.5
    window: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.target <= self.share <= 1:
            raise ValueError(
                f"context: must be 0 < target <= share <= 1, not {self.target!r} and "
                f"{self.share!r}"
            )
        if self.window is not None and self.window <= 0:
            raise ValueError(f"context: window must be above 0, or None, not {self.window!r}")

    async def project(self, view: ContextView) -> Projection | None:
        """Return the messages to omit and the note that replaces them.

        The result is ``None`` if the policy changes nothing.
        """
        raise NotImplementedError

    @property
    def rule(self) -> str:
        """The name of the policy in the log."""
        return type(self).__name__


class KeepAll(ContextPolicy, frozen=True, kw_only=True):
    """Send the complete conversation, whatever its length; the model may reject it."""

    async def project(self, view: ContextView) -> Projection | None:
        return None


class DropOldToolResults(ContextPolicy, frozen=True):
    """Replace old tool results by a placeholder that explains how to read them again.

    The last ``keep`` results are replaced only if the conversation is still too long. Results that
    the model has not seen yet are shortened only as a last resort.
    """

    keep: int = 3

    async def project(self, view: ContextView) -> Projection | None:
        results = [
            part
            for part in view.parts
            if isinstance(part.message, ToolResult) and not part.is_replaced
        ]
        older, newer = (
            (results[: -self.keep], results[-self.keep :]) if self.keep > 0 else (results, [])
        )
        left_out, saved = _elide([part for part in [*older, *newer] if not part.unseen], view)
        if saved < view.excess:
            left_out += _shorten_unseen(view, view.excess - saved)
        return Projection(tuple(left_out)) if left_out else None


class Window(ContextPolicy, frozen=True):
    """Send the goals and the newest turns; omit the older turns.

    The first and the last goal of the user always stay. ``turns`` is the maximum number of turns
    to keep; by default as many as fit.
    """

    turns: int | None = None

    async def project(self, view: ContextView) -> Projection | None:
        groups = _group(view.parts)
        gone = _choose_groups(groups, view, self.turns)
        dropped = [LeftOut(part.seq, part.tokens) for part in gone]
        rest = view.excess - sum([part.tokens for part in gone])
        shortened = _shorten_unseen(view, rest) if rest > 0 else []
        if not dropped and not shortened:
            return None
        return Projection((*dropped, *shortened), _NOTE if dropped else None)


class _Summariser(ContextPolicy, frozen=True):
    provider: Provider | None = None


class Summarise(_Summariser, frozen=True, kw_only=True):
    """Summarise the older turns with a model, and send the summary instead.

    ``provider`` writes the summary; by default it is the session's own, but a cheaper model is
    sufficient. The last ``keep`` turns stay. If the summary fails, the older turns are omitted
    without a summary.
    """

    keep: int = 3
    instructions: str = _INSTRUCTIONS

    async def project(self, view: ContextView) -> Projection | None:
        groups = _group(view.parts)
        gone = [
            part for group in groups[: max(len(groups) - max(self.keep, 1), 0)] for part in group
        ]
        gone = gone or _choose_groups(groups, view, None)
        if not gone:
            shortened = _shorten_unseen(view, view.excess)
            return Projection(tuple(shortened)) if shortened else None
        dropped = tuple([LeftOut(part.seq, part.tokens) for part in gone])
        transcript = _write_transcript(gone, view.window)
        try:
            record, text = await view.summarise(self.provider, self.instructions, transcript, gone)
        except ProviderError:
            return Projection(dropped, _NOTE)
        return Projection(dropped, f"{_SUMMARY}\n{text}", record)


class NativeCompaction(Summarise, frozen=True):
    """Let the provider compact the conversation, if its wire has compaction.

    The provider compacts at ``share`` of the window. Its reply then has an ``Opaque`` block that
    replaces the messages before it, for this provider alone. If the provider has no compaction or
    the conversation is rejected as too long, this policy does the same as ``Summarise``.
    """

    async def project(self, view: ContextView) -> Projection | None:
        return None if view.compacts else await super().project(view)


# --- shortening tool results -------------------------------------------------------------------


def _elide(results: Iterable[Part], view: ContextView) -> tuple[list[LeftOut], int]:
    """Replace tool results by placeholders until enough tokens are saved.

    Return the placeholders and the number of tokens saved.
    """
    left_out: list[LeftOut] = []
    saved = 0
    for part in results:
        if saved >= view.excess:
            break
        mark = _write_mark(part)
        gain = part.tokens - estimate_text(mark, view.family).tokens
        if gain >= _SMALLEST:
            left_out.append(LeftOut(part.seq, part.tokens, mark))
            saved += gain
    return left_out, saved


def _write_mark(part: Part) -> str:
    content = part.message.content
    call = part.call
    size = f"{len(content)} characters" if isinstance(content, str) else f"{len(content)} blocks"
    name = (
        f"{call.name} {_shorten(msgspec.json.encode(call.arguments).decode())}"
        if call is not None
        else "a tool"
    )
    how = f"record {part.seq} of this session's log holds it."
    if call is not None and part.side_effect in ("none", "read"):
        how = f"call {call.name} again with the same input to read it again."
    return f"[Left out to save space: the result of {name}, {size}; {how}]"


def _shorten(text: str, longest: int = 200) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def _shorten_unseen(view: ContextView, excess: int) -> list[LeftOut]:
    """Shorten the longest tool results to a common length, so that the conversation fits.

    This applies to results that the model has not seen yet.
    """
    unseen = [part for part in view.parts if part.unseen and isinstance(part.message.content, str)]
    unseen = [part for part in unseen if isinstance(part.message, ToolResult)]
    total = sum([part.tokens for part in unseen])
    if not unseen or excess <= 0:
        return []
    left_out: list[LeftOut] = []
    room = max(total - excess, 0)
    for at, part in enumerate(sorted(unseen, key=lambda each: each.tokens)):
        share = room // (len(unseen) - at)
        if part.tokens <= share:
            room -= part.tokens
            continue
        text = str(part.message.content)
        limit = max(len(text) * share // max(part.tokens, 1), _SHORTEST)
        shorter, missing = cut_text(text, limit)
        room -= share
        if missing:
            mark = "\n[It was cut to save space; call the tool again for a smaller part of it.]"
            left_out.append(LeftOut(part.seq, part.tokens, shorter + mark))
    return left_out


# --- grouping turns, and writing the transcript to summarise -----------------------------------


def _group(parts: Sequence[Part]) -> list[list[Part]]:
    """Return groups of messages that may be omitted: a reply with its results, oldest first.

    System prompts and the first and the last goal are never omitted.
    """
    goals = [part.seq for part in parts if part.is_goal]
    kept = {goals[0], goals[-1]} if goals else set()
    groups: list[list[Part]] = []
    for part in parts:
        if isinstance(part.message, System) or part.seq in kept:
            continue
        if not isinstance(part.message, ToolResult) or not groups:
            groups.append([])
        groups[-1].append(part)
    return groups


def _choose_groups(groups: list[list[Part]], view: ContextView, turns: int | None) -> list[Part]:
    """Return the messages of the oldest turns, which are to be omitted.

    Add turns until the rest fits and has at most ``turns`` turns; never add the last turn.
    """
    gone: list[Part] = []
    for at, group in enumerate(groups[:-1]):
        is_enough = sum([part.tokens for part in gone]) >= view.excess
        if is_enough and (turns is None or len(groups) - at <= turns):
            break
        gone += group
    # Do not replace a note about omitted messages with another note, which would save nothing.
    return [] if all(part.is_note for part in gone) else gone


def _write_transcript(parts: Sequence[Part], window: int | None) -> str:
    """Return messages as a transcript to summarise; long ones are truncated so that all fit."""
    longest = max((window or 16_000) * 2 // max(len(parts), 1), _SHORTEST)
    return "\n\n".join([_write_part(part.message, longest) for part in parts])


def _write_part(message: Message, longest: int) -> str:
    text = cut_text(message.content if isinstance(message, System) else message.text, longest)[0]
    if isinstance(message, ToolResult):
        return f"TOOL RESULT: {text}"
    if isinstance(message, User):
        return f"USER: {text}"
    calls: list[str] = []
    if isinstance(message, Assistant):
        written = [
            (call.name, msgspec.json.encode(call.arguments).decode())
            for call in message.tool_calls
        ]
        calls = [f"CALLS {name} {cut_text(arguments, longest)[0]}" for name, arguments in written]
    return "\n".join([f"ASSISTANT: {text}", *calls])
