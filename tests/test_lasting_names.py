"""Documentation, examples and help texts name models that last."""

import datetime
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.run_tests import ROOT

from dragoman.capabilities import NOTICE_DAYS
from dragoman.registry import load_vendor, vendor_names

TEXTS = (".md", ".py", ".ipynb", ".yaml", ".yml", ".toml", ".json", ".sh", ".js")
# Results that name the models of a past run, and the rules of old models.
RESULTS = (
    "docs/scoreboards.md",
    "docs/performance.md",
    "docs/reference/beliefs.md",
    "docs/reference/gateway-turns.md",
)


def find_pages() -> Iterator[Path]:
    """Return the files that users read: pages, examples, deployments and help texts."""
    yield ROOT / "README.md"
    yield ROOT / "CONTRIBUTING.md"
    for folder in ("docs", "examples", "deploy", "src/dragoman/cli", "src/dragoman/provider"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in TEXTS and str(path.relative_to(ROOT)) not in RESULTS:
                yield path


def read_prose(path: Path) -> str:
    """Return the text of a file without the generated tables of models, which state when each ends."""
    return re.sub(r"<!-- models: .*?<!-- /models -->", "", path.read_text(), flags=re.DOTALL)


def find_ending() -> dict[tuple[str, str], str]:
    """Return the days of the models that have ended, or soon will, when the catalogue was read."""
    retirements = [
        (name, day, retirement)
        for name in vendor_names()
        for day, retirement in load_vendor(name).retirements.items()
    ]
    newest = max(datetime.date.fromisoformat(each.as_of) for _, _, each in retirements)
    last = newest + datetime.timedelta(days=NOTICE_DAYS)
    return {
        (vendor, model): day
        for vendor, day, retirement in retirements
        for model in retirement.models
        if datetime.date.fromisoformat(day) <= last
    }


def find_names(text: str, ending: dict[tuple[str, str], str]) -> list[str]:
    """Return the names of ending models in a text, with or without the vendor before them."""
    return [
        f"{vendor}:{model} ends on {day}"
        for (vendor, model), day in ending.items()
        if model in text
        and re.search(rf"(?<![\w.:/-])({vendor}[:/])?{re.escape(model)}(?![\w-]|\.\w)", text)
    ]


def test_no_page_names_a_model_that_ends_soon() -> None:
    ending = find_ending()
    pages = list(find_pages())
    found = {
        str(path.relative_to(ROOT)): names
        for path in pages
        if (names := find_names(read_prose(path), ending))
    }
    assert found == {}
    assert len(pages) > 100


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('connect("openai:gpt-5")', True),
        ('connect("gpt-5", base_url=...)', True),
        ("litellm's openai/gpt-5.", True),
        ("the models gpt-5.5 and gpt-5-pro-2", False),
        ("azure:gpt-5", False),  # another vendor, whose dates differ
    ],
)
def test_names_are_found_as_whole_words(text: str, found: bool) -> None:
    ending = {("openai", "gpt-5"): "2026-12-11"}
    assert bool(find_names(text, ending)) is found


def test_models_that_end_later_may_be_named() -> None:
    ending = find_ending()
    assert ("openai", "gpt-5") in ending
    assert ("openai", "gpt-5.1") not in ending
