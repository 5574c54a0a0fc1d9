"""Run the suites of others against Dragoman and write ``docs/scoreboards.md``.

    python -m scoreboards [NAME ...]

``make scoreboards`` runs all of them. The results of each suite are kept in ``.scoreboards``, so a
run of one suite renews only its section. The command fails if a cell fails without a known reason.
"""

from __future__ import annotations

import datetime
import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from .board import Board
from .install import HOME, ROOT, NotInstalledError

BOARDS = ("open_responses", "mcp", "bfcl", "aimock", "load")
PAGE = ROOT / "docs" / "scoreboards.md"
HEAD = """\
# Scoreboards

Suites that others wrote, run against Dragoman. `make scoreboards` installs them from the package registries into
`.scoreboards`, runs them on this machine without any key, and writes this page. What fails is listed with its reason;
a failure without a known reason makes the command fail.

"""


def run(name: str) -> Board:
    """Run one suite; keep its result."""
    module = importlib.import_module(f"scoreboards.{name}")
    try:
        board: Board = module.run()
    except NotInstalledError as error:
        board = Board(name, module.TITLE, "", missing=str(error))
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    rows = [[*key, outcome] for key, outcome in board.cells.items()]
    kept = {"day": day, **asdict(board), "cells": rows}
    (HOME / f"{name}.json").write_text(json.dumps(kept))
    return board


def read(path: Path) -> tuple[str, Board]:
    """Return the day and the result of the latest run of a suite."""
    kept = json.loads(path.read_text())
    day = kept.pop("day")
    kept["cells"] = {(row, column): outcome for row, column, outcome in kept["cells"]}
    return day, Board(**kept)


def main(names: list[str]) -> int:
    """Run suites by name, or all; write the page; return how many cells fail unexpectedly."""
    HOME.mkdir(exist_ok=True)
    surprises = []
    for name in names or BOARDS:
        board = run(name)
        passed = sum(not outcome for outcome in board.cells.values())
        print(f"{name}: {passed} of {len(board.cells)} passed", flush=True)
        surprises += [f"{name}: {each}" for each in board.surprises]
    sections = []
    for name in BOARDS:
        if (HOME / f"{name}.json").exists():
            day, board = read(HOME / f"{name}.json")
            sections.append(board.show().replace("Run with", f"Run on {day} with", 1))
    PAGE.write_text(HEAD + "\n".join(sections))
    for each in surprises:
        print(f"unexpected: {each}", file=sys.stderr)
    return min(len(surprises), 99)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
