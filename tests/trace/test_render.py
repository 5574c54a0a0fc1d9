"""Run the Markdown of the trace viewer in Node: what it shows, and that no text freezes it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import dragoman.trace
from tests.programs import require
from tests.waiting import PATIENCE

SCRIPT = Path(dragoman.trace.__file__).parent / "page" / "render.js"
# The parts of a browser that the script uses, and a function that writes elements as lists.
BROWSER = """
class Node {
  constructor(tag) { this.tag = tag; this.childNodes = []; }
  append(...children) { this.childNodes.push(...children); }
  setAttribute() {}
  addEventListener() {}
  get lastChild() { return this.childNodes[this.childNodes.length - 1]; }
}
globalThis.Node = Node;
const any = () => new Node("x");
globalThis.document = {
  createElement: (tag) => new Node(tag), getElementById: any, querySelector: any,
  documentElement: { dataset: {} },
};
globalThis.localStorage = { getItem: () => null };
globalThis.matchMedia = () => ({ matches: false });
const show = (part) => (part instanceof Node ? [part.tag, ...part.childNodes.map(show)] : part);
"""


def run(code: str) -> Any:
    """Return the JSON that a program in Node prints after it has loaded the script."""
    program = f"{BROWSER}\n{SCRIPT.read_text('utf-8')}\nconsole.log(JSON.stringify({code}));"
    done = subprocess.run(
        [require("node"), "-"], input=program, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", ["plain"]),
        ("a `b` c", ["a ", ["code", "b"], " c"]),
        ("``a ` b`` `c", [["code", "a ` b"], " `c"]),
        ("a **b c** d", ["a ", ["strong", "b c"], " d"]),
        ("2 ** 3 ** 4", ["2 ** 3 ** 4"]),
        ("an *important* word", ["an ", ["em", "important"], " word"]),
        ("2 * 3 * 4", ["2 * 3 * 4"]),
        ("**a *b", ["**a *b"]),
        ('see [it](http://x/y "t").', ["see ", ["span", "it", " ", ["code", "http://x/y"]], "."]),
        ("![p](a.png)", [["span", "[image: p]", " ", ["code", "a.png"]]]),
        ("[a] (b) [c]() [d\n](e) [f](g\nh)", ["[a] (b) [c]() [d\n](e) [f](g\nh)"]),
        ("[x][y](z)", ["[x]", ["span", "y", " ", ["code", "z"]]]),
        ("`**a**`", [["code", "**a**"]]),
    ],
)
def test_inline_markdown_is_shown_as_elements(text: str, shown: list[Any]) -> None:
    assert [part for part in run(f"inline({json.dumps(text)}).map(show)") if part] == shown


SIZE = 1_000_000
HOSTILE = {
    "brackets": "[" * SIZE,
    "bangs": "![" * (SIZE // 2),
    "links": "[a](" * (SIZE // 4),
    "open links": "[a](b" * (SIZE // 5),
    "growing backticks": "a".join("`" * length for length in range(1, 1400)),
    "single backticks": "`a ``b " * (SIZE // 7),
    "strong": "**a " * (SIZE // 4),
    "emphasis": "*a " * (SIZE // 3),
    "stars": "*" * SIZE,
    "brackets and lines": "[\\n" * (SIZE // 3),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_freezes_the_page(name: str) -> None:
    code = f"inline({json.dumps(HOSTILE[name])}).flat().length > 0"
    assert run(code) is True


LINES = {
    "empty lines": "\n" * SIZE,
    "fences": "```\n" * (SIZE // 4),
    "an open fence": "```\n" + "a\n" * (SIZE // 2),
    "quotes": "> a\n" * (SIZE // 4),
    "items": "- a\n" * (SIZE // 4),
    "rows of a table": "|a|\n|-|\n" + "|a|\n" * (SIZE // 4),
}


@pytest.mark.parametrize("name", LINES)
def test_no_number_of_lines_freezes_the_page(name: str) -> None:
    assert run(f"markdown({json.dumps(LINES[name])}).tag") == "div"


@pytest.mark.parametrize("end", ["", "\\", "\n"])
def test_text_without_an_end_does_not_freeze_coloured_json(end: str) -> None:
    text = '["' + '\\"' * (SIZE // 2) + end
    assert run(f"colourJson({json.dumps(text)}).childNodes.length > 0") is True
