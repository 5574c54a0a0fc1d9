"""Create the pictures of the documentation from the real programs: ``python -m scripts.pictures``.

The trace viewer is captured in Chromium with the log of ``tests/story.py``, and the web pages by
their test. The output of ``dragoman check`` comes from a run against a small model on llama.cpp's
server, which takes some minutes.
"""

import asyncio
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text
from tests.programs import require
from tests.story import LEFT_OPEN, tell
from tests.trace.conftest import FLAGS, Served
from tests.web.test_pages import take_pictures

from dragoman.local import LocalServer, check_model, find_model
from dragoman.log import SqliteLog

from .run_tests import ROOT

ASSETS = ROOT / "docs" / "assets"
LINES = 33

# The light theme of the site. The picture uses the fonts of the reader's machine, so that nothing
# is fetched from another server.
THEME = TerminalTheme(
    (250, 250, 250),
    (36, 41, 47),
    [(36, 41, 47), (185, 28, 28), (21, 101, 52), (133, 77, 14), (29, 78, 216), (126, 34, 206),
     (14, 116, 144),
     (75, 85, 99)],
)  # fmt: skip
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>{label}</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px;
  line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ display: none; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def photograph_trace(folder: Path) -> None:
    """Take screenshots of the trace viewer in light and dark mode."""
    with SqliteLog(folder / "log.db") as log:
        tell(log, "look", LEFT_OPEN)
        tell(log, "fix")
        with Served(log) as url, sync_playwright() as play:
            browser = play.chromium.launch(executable_path=require("chromium"), args=FLAGS)
            for scheme in ("light", "dark"):
                page = browser.new_page(
                    viewport={"width": 1120, "height": 760}, color_scheme=scheme
                )  # type: ignore[arg-type]
                page.goto(url)
                page.wait_for_selector(".proposal")
                page.screenshot(path=ASSETS / f"trace-viewer-{scheme}.png")
            browser.close()


def draw_check(folder: Path) -> None:
    """Draw the output that ``dragoman check`` prints at a terminal of 96 columns."""
    server = LocalServer(check_model(find_model("smollm2")))
    try:
        command = f"stty cols 96 rows 60; dragoman check {server.start()}"
        paths = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TERM": "xterm-256color",
        }
        env = {**os.environ, **paths, "DRAGOMAN_API_KEY": server.key}
        with (folder / "out").open("wb") as out:
            subprocess.run(
                ["script", "-qec", command, "/dev/null"], stdout=out, env=env, check=False
            )
    finally:
        server.stop()
    write_svg(
        (folder / "out").read_text(),
        ASSETS / "check.svg",
        "$ dragoman check http://127.0.0.1:8080",
    )


def write_svg(printed: str, target: Path, command: str) -> None:
    """Write terminal output as SVG, with ``command`` as the first line and without the progress
    bar.
    """
    after = printed.replace("\r\n", "\n").split("\n")
    lines = [re.sub(r"\x1b\[\?[0-9;]*[a-zA-Z]", "", line.split("\r")[-1]) for line in after]
    first = next(number for number, line in enumerate(lines) if line.startswith("http"))
    console = Console(record=True, width=96, file=io.StringIO(), force_terminal=True)
    console.print(f"[bold]{command}[/bold]")
    for line in lines[first : first + LINES]:
        text = Text.from_ansi(
            re.sub(r":\d+ ", ":8080 ", line, count=1) if line == lines[first] else line
        )
        if re.match(r" +[<>] ", line):
            text.stylize("bright_black")
        console.print(text, no_wrap=True, overflow="ellipsis", crop=True)
    target.write_text(
        console.export_svg(
            theme=THEME, code_format=SVG.replace("{label}", command), unique_id="check"
        )
    )


if __name__ == "__main__":
    ASSETS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        photograph_trace(Path(name))
        asyncio.run(take_pictures(ASSETS))
        if "--trace" not in sys.argv:
            draw_check(Path(name))
