"""Swap plans: what a switch to another model would keep, rewrite or drop in a conversation.

A plan is made by encoding the request as if it were sent. Its items come from the encoder's notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from ..errors import ProviderError
from ..messages import Message, Request
from ..messages.display import Display, Displayed, Table
from .codec import Codec, Note


class PlanItem(Struct, frozen=True, kw_only=True):
    """Whether a block or message is kept, rewritten or dropped, by which rule, and why."""

    path: str
    kind: str
    outcome: Literal["kept", "rewritten", "dropped"]
    rule: str = ""
    reason: str = ""
    loss: bool = False


class SwapPlan(Struct, Displayed, frozen=True, kw_only=True):
    """What a switch to ``target`` would do to a conversation.

    ``fits`` is ``None`` if the target's context window is unknown. If the target would refuse the
    conversation, ``refused`` is the reason, and there are no items, since nothing would be sent.
    """

    target: str
    items: tuple[PlanItem, ...]
    estimated_tokens: int | None = None
    context_tokens: int | None = None
    refused: str | None = None

    @property
    def losses(self) -> tuple[PlanItem, ...]:
        """The items of the plan that lose content."""
        return tuple([item for item in self.items if item.loss])

    @property
    def fits(self) -> bool | None:
        """Whether the conversation fits the target's context window; ``None`` if unknown."""
        if self.context_tokens is None or self.estimated_tokens is None:
            return None
        return self.estimated_tokens <= self.context_tokens

    def _display(self) -> Display:
        fits = {
            True: "fits the context window",
            False: "does not fit the context window",
            None: "window unknown",
        }
        facts = [f"{len(self.items)} items", f"{len(self.losses)} lose content", fits[self.fits]]
        facts += [] if self.refused is None else [f"refused: {self.refused}"]
        rows = [
            (item.path, item.kind, item.outcome, item.reason or item.rule) for item in self.items
        ]
        return Display(
            f"Swap to {self.target}",
            facts,
            tables=[Table(("where", "what", "outcome", "reason"), rows)],
        )


def make_plan(
    codec: Codec | None,
    request: Request,
    target: str,
    *,
    estimated_tokens: int | None = None,
    context_tokens: int | None = None,
) -> SwapPlan:
    """Return the swap plan for a request, encoded with the codec of the target model.

    A custom provider has no codec; in its plan everything is kept.
    """
    notes: tuple[Note, ...] = ()
    refused: str | None = None
    if codec is not None:
        try:
            notes = codec.encode(request).notes
        except ProviderError as error:
            refused = str(error)
    items = _items(request.messages, notes) if refused is None else ()
    return SwapPlan(
        target=target,
        items=items,
        estimated_tokens=estimated_tokens,
        context_tokens=context_tokens,
        refused=refused,
    )


def _items(messages: Sequence[Message], notes: Sequence[Note]) -> tuple[PlanItem, ...]:
    by_path: dict[str, list[Note]] = {}
    for note in notes:
        by_path.setdefault(note.path, []).append(note)
    items: list[PlanItem] = []
    for path, kind in _parts(messages):
        here = by_path.pop(path, [])
        nested = [
            name
            for name in by_path
            if name.startswith(f"{path}.") and "[" not in name[len(path) + 1 :]
        ]
        here += [note for name in nested for note in by_path.pop(name)]
        if not here:
            items.append(PlanItem(path=path, kind=kind, outcome="kept"))
        items += [
            PlanItem(
                path=n.path,
                kind=kind,
                outcome=n.outcome,
                rule=n.code,
                reason=n.detail,
                loss=n.loss,
            )
            for n in here
        ]
    items += [
        PlanItem(
            path=n.path,
            kind="request",
            outcome=n.outcome,
            rule=n.code,
            reason=n.detail,
            loss=n.loss,
        )
        for left in by_path.values()
        for n in left
    ]
    return tuple(items)


def _parts(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Return the path and the type of every plain-text message and every block."""
    parts: list[tuple[str, str]] = []
    for at, message in enumerate(messages):
        if isinstance(message.content, str):
            parts.append((f"messages[{at}]", str(message.__struct_config__.tag)))
        else:
            tags = [str(block.__struct_config__.tag) for block in message.content]
            parts += [(f"messages[{at}].content[{index}]", tag) for index, tag in enumerate(tags)]
    return parts
