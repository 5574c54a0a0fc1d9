"""Rendering of replies at a terminal, for any model output."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from dragoman import LossWarning, Tool, UnavailableError
from dragoman.cli.screen import MarkdownScreen, PlainScreen, Screen
from dragoman.errors import ProviderError
from dragoman.events import Assembler
from dragoman.sync import SyncProvider

from ..listed import Listed, broken, reply, speak


def think(out: Assembler) -> None:
    out.thinking("Hm.")


def propose(arguments: str, name: str = "look") -> Callable[[Assembler], None]:
    def word(out: Assembler) -> None:
        out.tool_start(0, "c1", name)
        out.tool_input(0, arguments)

    return word


def say(text: str) -> Callable[[Assembler], None]:
    return lambda out: out.text(text)


class Drawing:
    """A terminal that records its output as text."""

    def __init__(self) -> None:
        self.file = io.StringIO()

    def open(self) -> Screen:
        console = Console(
            file=self.file, force_terminal=True, width=60, color_system=None, legacy_windows=False
        )
        return MarkdownScreen(console)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.file.getvalue().splitlines())


ANSWERS: list[tuple[str, Any, list[str], list[str]]] = [
    ("text", reply("Hello"), ["Hello"], ["(ended", "(stopped)"]),
    ("markdown", reply("# Title\n\nSome **bold**.\n"), ["Title", "bold"], []),
    ("thinking", speak(think, say("So.")), ["So."], []),
    ("a proposal", speak(propose('{"at": "sea"}'), finish="tool_calls"),
     ['proposed, not executed: look({"at": "sea"})'], []),
    ("text and a proposal", speak(say("I will look."), propose('{"at": "sea"}'),
                                  finish="tool_calls"),
     ["I will look.", "proposed, not executed: look"], []),
    ("half a proposal", speak(propose('{"at": "s'), finish="tool_calls"),
     ["not a usable proposal: "], ["proposed,"]),
    ("cut short", reply("Hel", finish="length"), ["Hel", "(ended: length)"], []),
    ("filtered", reply("Hel", finish="content_filter"), ["(ended: content_filter)"], []),
    ("broken off", broken("Hel", UnavailableError("gone")), ["Hel"], []),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["plain", "drawn"])
@pytest.mark.parametrize(
    ("answer", "seen", "unseen"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS]
)
def test_answers_of_every_kind_are_printed(
    kind: str, answer: Any, seen: list[str], unseen: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    drawing = Drawing()
    screen: Screen = PlainScreen() if kind == "plain" else drawing.open()
    with SyncProvider(Listed(answer)) as model, model.stream("Hi", tools=[Tool("look")]) as stream:
        try:
            for event in stream:
                screen.show(event)
        except ProviderError:
            pass
        finally:
            screen.close()
    printed = capsys.readouterr()
    shown = drawing.text + printed.out + printed.err
    for words in seen:
        assert words in shown
    for words in unseen:
        assert words not in shown
    if kind == "drawn":
        assert drawing.file.getvalue().count("\x1b[?25h") == 1  # the cursor is shown again
    else:
        assert printed.out == "" or printed.out.endswith("\n")


def test_losses_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def answer(request: Any) -> Any:
        out = Assembler(
            request_id=request.request_id, model="m", provider="p",
            warnings=(LossWarning("code", "messages[0]", "gone"),),
        )  # fmt: skip
        out.start()
        out.text("x")
        out.finish("stop")
        return out.take()

    screen = PlainScreen()
    with SyncProvider(Listed(answer)) as model:
        for event in model.stream("Hi"):
            screen.show(event)
    assert "warning: " in capsys.readouterr().err


def test_paragraphs_of_a_long_answer_are_printed_once() -> None:
    """Finished paragraphs are printed once and never redrawn, however long the answer is."""
    text = "".join(f"Paragraph {number} of many.\n\n" for number in range(60))
    drawing = Drawing()
    screen = drawing.open()
    with SyncProvider(
        Listed(speak(*[say(piece) for piece in text.splitlines(keepends=True)]))
    ) as model:
        for event in model.stream("Hi"):
            screen.show(event)
    assert all(f"Paragraph {number} of many." in drawing.text for number in range(60))
    assert len(drawing.file.getvalue()) < 60 * 60 * 6


def test_tool_arguments_are_printed_completely() -> None:
    drawing = Drawing()
    screen = drawing.open()
    arguments = {"path": "a" * 100, "text": "[bold]not markup[/bold]"}
    with SyncProvider(Listed(speak(propose(json.dumps(arguments)), finish="tool_calls"))) as model:
        for event in model.stream("Hi", tools=[Tool("look")]):
            screen.show(event)
    assert "a" * 100 in drawing.text.replace("\n", "")
    assert "[bold]not markup[/bold]" in drawing.text
