"""Results in notebooks: HTML and Markdown escape every text and contain no keys."""

import html.parser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from dragoman.messages import display
from dragoman.messages.display import Display, Passage, Table, shorten, write_html, write_markdown

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


def test_displaying_a_class_without_a_display_method_raises_an_error() -> None:
    with pytest.raises(NotImplementedError):
        display.Displayed()._repr_html_()
