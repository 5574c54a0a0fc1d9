"""The documentation site: it has every page; the exhaustive run builds and searches it."""

import functools
import http.server
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripts.reference import MODULES

from .pages import ROOT
from .programs import require
from .waiting import PATIENCE

# Search text -> page that must be the first result, in the search box of a real browser.
SEARCHES = {
    "how do I use ollama": "providers/ollama.html", "streaming": "concepts/streams.html",
    "tool calling": "howto/tools.html", "vision": "recipes/images.html",
    "azure": "providers/azure.html", "retry": "howto/retries.html",
    "timeout": "howto/connections.html", "proxy": "howto/connections.html",
    "docker": "recipes/docker.html", "cost": "concepts/prices.html",
    "langchain": "howto/frameworks.html", "structured output": "howto/structured-output.html",
    "prompt caching": "concepts/prompt-caching.html", "rate limit": "howto/limits.html",
    "embeddings": "concepts/retrieval.html", "fastapi": "recipes/fastapi.html",
    "reasoning": "concepts/reasoning.html", "images": "recipes/images.html",
}  # fmt: skip
LOOKS = [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")]
# One page of each kind: the home page, a guide with code, a table of vendors, wide tables, a
# generated reference, and long lines of help text.
LOOKED_AT = [
    "index.html", "howto/first-steps.html", "providers/index.html", "providers/ollama.html",
    "concepts/wires.html", "howto/fallback.html", "recipes/fastapi.html",
    "recipes/opentelemetry.html", "performance.html", "reference/cli.html",
    "reference/models-yaml.html", "reference/gateway-fields.html",
    "reference/python/provider.html", "reference/python/messages.html",
]  # fmt: skip


def build(folder: Path) -> Path:
    """Build the site in a separate folder; return the path of the folder."""
    shutil.copytree(ROOT / "docs", folder / "docs")
    settings = (ROOT / "zensical.toml").read_text()
    (folder / "zensical.toml").write_text(
        settings.replace('paths = ["src"]', f'paths = ["{ROOT / "src"}"]')
    )
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], cwd=folder, capture_output=True,
        text=True, check=False, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "zensical.toml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert f'"{page.relative_to(ROOT / "docs").as_posix()}"' in navigation


@pytest.mark.exhaustive
def test_site_has_every_page_and_search_leaves_out_the_modules(tmp_path: Path) -> None:
    """One test checks the complete site, because building it takes most of the time."""
    if "DRAGOMAN_EXHAUSTIVE" not in os.environ:
        pytest.skip("builds the documentation site; make test-exhaustive and make docs do it")
    site = build(tmp_path)
    front = (site / "index.html").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        target = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / target).exists()
        assert target.as_posix() in front, f"{target} is not in the navigation"
    elsewhere = set(re.findall(r'<(?:link|script|img)[^>]+(?:href|src)="(https?://[^"]+)', front))
    assert elsewhere == set()
    values = (site / "reference/python/messages.html").read_text()
    assert 'id="dragoman.messages.ToolResult"' in values
    assert "__post_init__" not in re.findall(r'id="([^"]+)"', values)
    assert "(prefers-color-scheme: dark)" in front
    items = json.loads((site / "search.json").read_text())["items"]
    indexed = {item["location"].partition("#")[0] for item in items}
    assert {*SEARCHES.values(), "reference/python.html"} <= indexed
    assert [page for page in indexed if page.startswith("reference/python/")] == []


@pytest.mark.parametrize("module", MODULES)
def test_docstrings_on_reference_pages_have_no_tables_of_restructured_text(module: str) -> None:
    """The site is written in Markdown, in which such a table is a paragraph with rows of signs."""
    loaded = importlib.import_module(f"dragoman.{module}")
    shown = [loaded, *[getattr(loaded, name) for name in loaded.__all__]]
    inner = [member for each in shown if isinstance(each, type) for member in vars(each).values()]
    for each in [*shown, *inner]:
        # only what is written in this package: values have the docstrings of their class
        text = each.__doc__ if callable(each) or each is loaded else None
        assert "====" not in (text or ""), f"{each}: {text}"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if "DRAGOMAN_EXHAUSTIVE" not in os.environ:
        pytest.skip("looks at every kind of page in a browser; make test-exhaustive does it")
    site = build(tmp_path_factory.mktemp("site"))
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    from .browsers import FLAGS

    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=require("chromium"), args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the source of axe-core, which npm installs."""
    folder = tmp_path_factory.mktemp("axe")
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), "axe-core@4"]
    subprocess.run(command, check=True, capture_output=True)
    return (folder / "node_modules/axe-core/axe.min.js").read_text()


CLIPPED = """[...document.querySelectorAll('pre, pre code')]
  .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText.slice(0, 80))"""
FINDINGS = """async () => (await axe.run(document)).violations
  .filter(v => v.impact !== 'minor').map(v => [v.id, v.impact, v.nodes.slice(0, 3).map(n => n.html.slice(0, 200))])"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("width", "scheme"), LOOKS)
@pytest.mark.parametrize("page", LOOKED_AT)
def test_page_fits_the_screen_and_is_accessible(
    address: str, browser: Any, axe: str, page: str, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    try:
        opened = context.new_page()
        opened.goto(f"{address}/{page}")
        shown = opened.wait_for_function(
            "document.body.dataset.mdColorScheme || document.body.dataset.mdColorMedia"
        )
        assert shown
        dark = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", dark)[:3])) < 300) == (scheme == "dark")
        assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert opened.evaluate(CLIPPED) == []
        opened.add_script_tag(content=axe)
        assert opened.evaluate(FINDINGS) == []
    finally:
        context.close()


RESULTS = """() => { const found = []; const walk = root => { for (const e of root.querySelectorAll('*')) {
  if (e.shadowRoot) walk(e.shadowRoot);
  if (e.tagName === 'A' && /[?&]h=/.test(e.href)) { const url = new URL(e.href);
    found.push({page: url.pathname.slice(1), query: url.searchParams.get('h')}); } } };
  walk(document); return found; }"""
FOCUSED = """() => { let at = document.activeElement;
  while (at && at.shadowRoot) at = at.shadowRoot.activeElement;
  return at && at.tagName === 'INPUT'; }"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("query", "page"), SEARCHES.items())
def test_search_lists_the_right_page(address: str, browser: Any, query: str, page: str) -> None:
    opened = browser.new_page(viewport={"width": 1400, "height": 900})
    opened.set_default_timeout(1000 * PATIENCE)
    try:
        opened.goto(f"{address}/index.html")
        opened.wait_for_load_state("networkidle")
        opened.keyboard.press("Control+k")
        opened.wait_for_function(FOCUSED)
        opened.keyboard.type(query)
        # the link of a result has the complete query in it as soon as the list is that of the query
        opened.wait_for_function(f"({RESULTS})().some(found => found.query === {query!r})")
        assert opened.evaluate(RESULTS)[0]["page"] == page
    finally:
        opened.close()
