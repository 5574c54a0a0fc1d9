"""Run the suites of others against Dragoman and write ``docs/scoreboards.md``.

    python -m scoreboards [NAME ...]

``make scoreboards`` runs all of them. A run of one suite renews only its section of the page. The
command fails if a cell fails without a known reason.
"""

from __future__ import annotations

import datetime
import importlib
import sys

from .board import Board
from .install import HOME, ROOT, NotInstalledError

BOARDS = (
    "open_responses", "mcp", "bfcl", "bfcl_gateway", "aimock", "event_streams", "json_schemas",
    "json_texts", "aws", "http_messages", "otel", "litellm_calls", "sdk_suites", "load",
)  # fmt: skip
PAGE = ROOT / "docs" / "scoreboards.md"
HEAD = """\
# Scoreboards

Suites that others wrote, run against Dragoman. `make scoreboards` installs them from the package registries into
`.scoreboards`, runs them on this machine without any key, and writes this page. What fails is listed with its reason;
a failure without a known reason makes the command fail.

Three suites are missing because no registry has them (tried on 2026-11-19): the 212 tool schemas of Kimi's
`MoonshotAI/walle` are not on PyPI or npm, the archives of `pydantic-ai` and `pydantic-ai-slim` contain no `test_tools.py`,
and the format tests of WPT are on neither (npm's `wpt` is another program, and `web-platform-tests` does not exist), so their
streams are written out in `scoreboards/event_streams.py`.

"""


def run(name: str) -> Board:
    """Run one suite."""
    module = importlib.import_module(f"scoreboards.{name}")
    try:
        board: Board = module.run()
    except NotInstalledError as error:
        board = Board(name, module.TITLE, "", missing=str(error))
    return board


def renew(page: str, boards: list[Board]) -> str:
    """Return the page with the sections of these suites replaced, and the others as they are."""
    sections = {
        each.partition("\n")[0]: f"## {each.rstrip()}\n" for each in page.split("\n## ")[1:]
    }
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for board in boards:
        sections[board.title] = board.show().replace("Run with", f"Run on {today} with", 1)
    titles = [importlib.import_module(f"scoreboards.{name}").TITLE for name in BOARDS]
    return HEAD + "\n".join([sections[title] for title in titles if title in sections])


def main(names: list[str]) -> int:
    """Run suites by name, or all; write the page; return how many cells fail unexpectedly."""
    HOME.mkdir(exist_ok=True)
    boards = []
    for name in names or BOARDS:
        board = run(name)
        passed = sum(not outcome for outcome in board.cells.values())
        print(f"{name}: {passed} of {len(board.cells)} passed", flush=True)
        boards.append(board)
    PAGE.write_text(renew(PAGE.read_text(), boards))
    surprises = [f"{board.name}: {each}" for board in boards for each in board.surprises]
    for each in surprises:
        print(f"unexpected: {each}", file=sys.stderr)
    return min(len(surprises), 99)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
