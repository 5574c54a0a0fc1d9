"""Results in notebooks: HTML and Markdown escape every text and contain no keys."""

import html.parser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from dragoman import connect
from dragoman.conformance import CheckOutcome, Report
from dragoman.messages import display
from dragoman.messages.display import Display, Passage, Table, shorten, write_html, write_markdown
from dragoman.session import Session
from dragoman.sim import Answer, Call, ScriptedProvider
from dragoman.tools import tool

NASTY = (
    "<script>alert(1)</script> ![x](https://evil.example/?q=1) [y](javascript:z) | a `b` ```\n````"
    ' & "quoted" <img src=x>'
)
DISPLAYS = {
    "title": Display(NASTY, []),
    "facts": Display("t", [NASTY, NASTY]),
    "passages": Display(
        "t", [], [Passage(NASTY, NASTY), Passage("", NASTY), Passage(NASTY, NASTY, folded=True)]
    ),
    "tables": Display("t", [], [], [Table(("a", "b"), [(NASTY, "1"), ("2", NASTY)])]),
}
HARMLESS = {
    "div", "strong", "small", "details", "summary", "table", "thead", "tbody", "tr", "th", "td",
    "p", "pre", "code",
}  # fmt: skip


class Page(html.parser.HTMLParser):
    """The tags, URLs and text of an HTML fragment, as a browser parses them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def render(markdown: str) -> Page:
    """Return the HTML that a notebook shows for Markdown, including HTML inside it."""
    return Page(MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown))


@pytest.mark.parametrize("name", DISPLAYS)
def test_texts_in_notebook_displays_are_escaped(name: str) -> None:
    for page in (Page(write_html(DISPLAYS[name])), render(write_markdown(DISPLAYS[name]))):
        assert set(page.tags) <= HARMLESS
        assert page.sources == []
        seen = " ".join(page.text.split())
        assert " ".join(NASTY.split()) in seen


@settings(max_examples=20)
@given(st.text(max_size=40))
def test_any_text_in_a_display_is_escaped(text: str) -> None:
    shown = Display(f"t {text}", [text], [Passage(text, text)], [Table(("a",), [(text,)])])
    assert set(Page(write_html(shown)).tags) <= HARMLESS
    assert set(render(write_markdown(shown)).tags) <= HARMLESS


def test_text_in_a_table_cell_is_shortened_to_one_line() -> None:
    assert shorten("a\n b  c") == "a b c"
    assert shorten("x" * 300) == "x" * 199 + "…"
    table = write_markdown(Display("t", [], [], [Table(("a",), [("x\ny",)]), Table(("b",), [])]))
    assert table.splitlines()[2:] == ["| a |", "| --- |", "| x y |"]


def test_display_counts_a_single_image_in_the_singular() -> None:
    assert "1 image\n" in write_markdown(Display("t", [], images=[("image/png", "aGk=")]))


def test_display_of_a_report_shows_each_check_and_no_address() -> None:
    outcomes = (
        CheckOutcome(name="a.b", title="does b", status="fail", detail="not so"),
        CheckOutcome(name="a.c", title="does c", status="pass"),
    )
    report = Report(
        url="https://user:secret@h/v1",
        wire="openai",
        model="m",
        by="dragoman",
        at="2026-01-01T00:00:00Z",
        outcomes=outcomes,
    )
    page = Page(report._repr_html_())
    assert "Check of m over the openai wire" in page.text
    assert "1 pass, 1 fail" in page.text
    assert "a.bFAILnot so (wanted: does b)" in page.text
    assert "secret" not in report._repr_html_() + report._repr_markdown_()


async def test_display_of_a_session_shows_the_conversation_without_keys() -> None:
    session = Session(ScriptedProvider("Done & <b>well</b>."))
    await session.run(
        "Use the key sk-proj-abcdefghijklmnopqrstuvwxyz0123456789 at https://u:hunter22@h.example"
    )
    page = Page(session._repr_html_())
    assert "Session with sim:sim" in page.text
    assert "1 turns" in page.text
    assert "assistantDone & <b>well</b>." in page.text
    shown = session._repr_html_() + session._repr_markdown_()
    assert "sk-proj" not in shown
    assert "hunter22" not in shown


async def test_display_of_a_session_shows_tool_names_and_no_credentials() -> None:
    script = ScriptedProvider(
        Answer("Looking.", tool_calls=[Call("look", {"password": "hunter22"})]), Answer("Seen.")
    )

    @tool(side_effect="none")
    def look(password: str) -> str:
        """Describe the room."""
        return "nothing"

    session = Session(script, [look], system="Be brief.")
    await session.run("Look around.")
    page = Page(session._repr_html_())
    assert "assistantLooking. → look" in page.text
    assert "toolresultnothing" in page.text
    async with connect(
        "m", base_url="http://127.0.0.1:9/v1", api_key="sk-secret-key-0123456789"
    ) as model:
        shown = Session(model)._repr_html_()
    assert "secret" not in shown
    assert "hunter22" not in shown + session._repr_html_()


def test_displaying_a_class_without_a_display_method_raises_an_error() -> None:
    with pytest.raises(NotImplementedError):
        display.Displayed()._repr_html_()
