"""Swap plans: what happens to a conversation when another model continues it."""

from typing import Any

import pytest

import dragoman as d
from dragoman.wire import Encoded, HttpRequest, Note, PlanItem, make_plan
from dragoman.wire.codec import Notes

TALK: list[d.Message] = [
    d.System("s"),
    d.User("u"),
    d.User([d.Text("look"), d.Image(d.Url("u"))]),
    d.Assistant([d.Thinking("hm"), d.Text("t"), d.ToolCall("1", "f", {})]),
    d.ToolResult("1", "r"),
]
PARTS = [
    ("messages[0]", "system"),
    ("messages[1]", "user"),
    ("messages[2].content[0]", "text"),
    ("messages[2].content[1]", "image"),
    ("messages[3].content[0]", "thinking"),
    ("messages[3].content[1]", "text"),
    ("messages[3].content[2]", "tool_call"),
    ("messages[4]", "tool"),
]


class Codec:
    """A codec that returns the given notes on rewritten and dropped parts, or raises the given
    error.
    """

    def __init__(self, *notes: Note, error: Exception | None = None) -> None:
        self._notes = notes
        self._error = error

    def encode(self, request: d.Request) -> Encoded:
        if self._error is not None:
            raise self._error
        return Encoded(HttpRequest("POST", "http://x.example", {}), self._notes)


def plan(*notes: Note, **settings: Any) -> d.SwapPlan:
    codec: Any = Codec(*notes, error=settings.pop("error", None))
    return make_plan(codec, d.Request(TALK), "there:m", **settings)


def noted(collect: Any) -> tuple[Note, ...]:
    notes = Notes()
    collect(notes)
    return tuple(notes.items)


def test_plan_without_notes_lists_everything_as_kept() -> None:
    kept = tuple(PlanItem(path=path, kind=kind, outcome="kept") for path, kind in PARTS)
    assert plan() == d.SwapPlan(target="there:m", items=kept)
    assert plan().losses == ()


def test_plan_without_a_codec_lists_everything_as_kept() -> None:
    assert make_plan(None, d.Request(TALK), "there:m") == plan()


def test_codec_notes_replace_entries_of_the_swap_plan() -> None:
    notes = noted(
        lambda notes: (
            notes.drop("messages[3].content[0]", "thinking_dropped", "no place"),
            notes.rewrite("messages[3].content[2].id", "id_projected", "too long"),
            notes.rewrite("messages[3].content[2]", "order_lost", "said earlier", loss=True),
            notes.rewrite("config.reasoning", "renamed", "another word"),
            notes.drop("messages[9]", "message_dropped", "not a part of it"),
        )
    )
    made = plan(*notes)
    assert [item.path for item in made.items if item.outcome == "kept"] == [
        path
        for path, _ in PARTS
        if path not in ("messages[3].content[0]", "messages[3].content[2]")
    ]
    dropped = PlanItem(
        path="messages[3].content[0]",
        kind="thinking",
        outcome="dropped",
        rule="thinking_dropped",
        reason="no place",
        loss=True,
    )
    lost = PlanItem(
        path="messages[3].content[2]",
        kind="tool_call",
        outcome="rewritten",
        rule="order_lost",
        reason="said earlier",
        loss=True,
    )
    assert made.items[4:8] == (
        dropped,
        PlanItem(path="messages[3].content[1]", kind="text", outcome="kept"),
        lost,
        PlanItem(
            path="messages[3].content[2].id",
            kind="tool_call",
            outcome="rewritten",
            rule="id_projected",
            reason="too long",
        ),
    )
    assert made.items[9:] == (
        PlanItem(
            path="config.reasoning",
            kind="request",
            outcome="rewritten",
            rule="renamed",
            reason="another word",
        ),
        PlanItem(
            path="messages[9]",
            kind="request",
            outcome="dropped",
            rule="message_dropped",
            reason="not a part of it",
            loss=True,
        ),
    )
    assert made.losses == (dropped, lost, made.items[10])


def test_note_on_a_block_does_not_change_the_plan_entry_of_its_message() -> None:
    note = Note(outcome="dropped", code="c", path="messages[1].content[0]", detail="d", loss=True)
    assert PlanItem(path="messages[1]", kind="user", outcome="kept") in plan(note).items
    assert plan(note).items[-1] == PlanItem(
        path="messages[1].content[0]",
        kind="request",
        outcome="dropped",
        rule="c",
        reason="d",
        loss=True,
    )


def test_note_on_a_field_replaces_the_entry_of_its_message() -> None:
    note = Note(
        outcome="rewritten",
        code="is_error_dropped",
        path="messages[4].is_error",
        detail="d",
        loss=True,
    )
    assert plan(note).items[-1] == PlanItem(
        path="messages[4].is_error",
        kind="tool",
        outcome="rewritten",
        rule="is_error_dropped",
        reason="d",
        loss=True,
    )
    assert len(plan(note).items) == len(PARTS)


def test_plan_reports_a_rejection_and_does_not_raise_it() -> None:
    made = plan(error=d.UnsupportedContentError("messages[2].content[1]: no images"))
    assert made.refused is not None
    # The text of the error ends with advice.
    assert made.refused.startswith("messages[2].content[1]: no images. ")
    assert made.items == ()
    assert plan().refused is None


def test_plan_raises_an_unexpected_exception_of_the_codec() -> None:
    with pytest.raises(KeyError):
        plan(error=KeyError("bug"))


@pytest.mark.parametrize(
    ("estimated", "context", "fits"),
    [
        (None, None, None),
        (5, None, None),
        (None, 5, None),
        (5, 5, True),
        (4, 5, True),
        (6, 5, False),
    ],
)
def test_plan_compares_the_estimated_tokens_with_the_context_window(
    estimated: int | None, context: int | None, fits: bool | None
) -> None:
    made = plan(estimated_tokens=estimated, context_tokens=context)
    assert made.fits is fits
    assert made.estimated_tokens == estimated
    assert made.context_tokens == context


def test_display_of_a_plan_shows_each_item() -> None:
    items = (
        PlanItem(path="messages[0]", kind="user", outcome="kept"),
        PlanItem(
            path="messages[1]",
            kind="thinking",
            outcome="dropped",
            rule="r",
            reason="why",
            loss=True,
        ),
    )
    page = d.SwapPlan(
        target="p:m", items=items, estimated_tokens=10, context_tokens=5, refused="too long"
    )._repr_html_()
    assert "2 items · 1 lose content · does not fit the context window · refused: too long" in page
    assert 'messages[1]</td><td style="text-align:left">thinking</td>' in page
    assert "window unknown" in d.SwapPlan(target="p:m", items=())._repr_markdown_()
