"""The documentation is correct: code blocks run, commands are documented, links resolve."""

import ast
import re
from pathlib import Path
from typing import Any

import click
import pytest
from bench import report
from scripts.reference import MODULES, write_layers, write_pages
from scripts.vendor_pages import (
    EXAMPLES,
    NAVIGATION,
    find_pages,
    write_missing_pages,
    write_navigation,
    write_tables,
)
from scripts.vendor_pages import PAGES as VENDOR_PAGES
from scripts.vendor_rules import DESCRIBERS, UNDESCRIBED

import dragoman
from dragoman.cli import main
from dragoman.local import LocalServer
from dragoman.registry import load_vendor, vendor_names
from dragoman.wire.beliefs import read_families

from . import specified
from .pages import PAGES, ROOT, read_blocks, run_page
from .real.tiny import write_model
from .wire import survival
from .wire.blocks import PAGE, with_table


def blocks(path: Path) -> list[str]:
    return [block.text for block in read_blocks(path) if block.language == "python"]


# tests/test_programs.py runs the whole programs, tests/clients/test_engines.py those of engines
ELSEWHERE = ("programs", "engines")
WITH_PYTHON = [page for page in PAGES if blocks(page) and page.parent.name not in ELSEWHERE]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_documentation_example_runs(page: Path, tmp_path: Path) -> None:
    assert run_page(page, tmp_path) > 0


def test_codec_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks(ROOT / "docs/howto/codec-by-hand.md")
    scope: dict[str, Any] = {"__name__": "howto"}
    exec(compile(example, "codec-by-hand.md", "exec"), scope)
    server = LocalServer(write_model(tmp_path / "tiny.gguf"))
    try:
        scope["ask"](server.start(), server.key)
    finally:
        server.stop()
    assert capsys.readouterr().out.splitlines()[0] == "message.start"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_on_pages_parses_and_links_exist(page: Path) -> None:
    text = page.read_text()
    for block in blocks(page):
        ast.parse(block)
    prose = re.sub(r"`[^`\n]*`", "", text)  # a regular expression may look like a link
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", prose):
        assert (page.parent / target).exists(), target


def test_every_command_is_documented() -> None:
    reference = (ROOT / "docs/reference/cli.md").read_text()
    context = click.Context(main, info_name="dragoman")
    for name in main.list_commands(context):
        assert f"## dragoman {name}" in reference


def test_generated_reference_matches_the_code() -> None:
    for page, text in write_pages().items():
        where = ROOT / "docs/reference" / page
        assert where.read_text() == text, f"{page}; run: python -m tests.test_docs"


def test_the_design_page_prints_the_list_of_layers() -> None:
    page = (ROOT / "docs/design.md").read_text()
    assert page == write_layers(page), "run: python -m tests.test_docs"


def test_files_that_the_design_page_points_to_exist() -> None:
    page = (ROOT / "docs/design.md").read_text()
    section = page.partition("## Where some things are")[2].partition("\n## ")[0]
    named = re.findall(r"`([a-z_/]+\.py)`(?: `(\w+)`)?", section)
    assert len(named) > 30
    for path, function in named:
        text = (ROOT / "src/dragoman" / path).read_text()
        assert not function or f"def {function}(" in text, f"{path} has no {function}"


@pytest.mark.parametrize("page", VENDOR_PAGES, ids=lambda page: page.name)
def test_tables_of_vendors_match_the_catalogue(page: Path) -> None:
    text = page.read_text()
    assert text == write_tables(text), "run: python -m tests.test_docs"


def test_each_vendor_has_one_page_with_all_generated_parts() -> None:
    pages = find_pages()
    assert set(pages) == set(vendor_names())
    assert {vendor: found for vendor, found in pages.items() if len(found) != 1} == {}
    for vendor, (page,) in pages.items():
        text = (ROOT / "docs/providers" / page).read_text()
        assert f"<!-- models: {vendor} -->" in text, page
        assert re.search(r"- checked: 20\d\d-\d\d-\d\d", text), page
        assert "connect" in text, page
        assert len(text.splitlines()) <= 150, page


def test_navigation_has_the_pages_of_all_vendors() -> None:
    text = NAVIGATION.read_text()
    assert text == write_navigation(text), "run: python -m tests.test_docs"


def test_each_quirk_of_a_belief_is_described_on_pages_of_vendors_or_left_to_the_page_of_beliefs() -> (
    None
):
    quirks = {
        quirk for family in read_families().values() for row in family.rows for quirk in row.quirks
    }
    assert quirks == DESCRIBERS.keys() | UNDESCRIBED
    assert not DESCRIBERS.keys() & UNDESCRIBED


def test_page_of_a_vendor_states_rules_limits_prices_and_ends() -> None:
    moonshot = (ROOT / "docs/providers/moonshot.md").read_text()
    for fact in (
        "`MOONSHOT_API_KEY`, or `KIMI_API_KEY`", "`authorization: Bearer KEY`", "`kimi:`",
        "- wire: `openai`, or `anthropic`", "https://api.moonshot.ai/anthropic",
        "- seen in: platform.kimi.ai/docs", 'connect("moonshot:kimi-k3")',
        "accepts only `temperature` 1, `top_p` 0.95", "back in `reasoning_content`",
        "| `kimi-k3` | 1,000,000 | 131,072 | 3 | 15 |",
    ):  # fmt: skip
        assert fact in moonshot, fact
    openai = (ROOT / "docs/providers/openai.md").read_text()
    assert re.search(r"\| `gpt-5` \| .* ends 2026-12-11 \|", openai)


def test_example_models_are_in_the_catalogue() -> None:
    assert set(EXAMPLES) <= set(vendor_names())
    for vendor, model in EXAMPLES.items():
        known = load_vendor(vendor)
        # a gateway of others, such as Portkey, has no models of its own
        is_open = known.local or not known.models
        assert is_open or model in known.models, f"{vendor}:{model}"


def test_every_case_that_a_page_cites_exists() -> None:
    cases = ROOT / "src/dragoman/conformance/cases"
    cited = {case for page in PAGES for case in re.findall(r"case `([\w/-]+)`", page.read_text())}
    assert len(cited) > 20
    assert [case for case in cited if not list(cases.glob(f"{case}.*"))] == []


def test_each_problem_on_the_page_has_a_public_issue_and_a_test() -> None:
    page = (ROOT / "docs/concepts/pains.md").read_text()
    rows = [line for line in page.splitlines() if "https://" in line]
    known = specified.find_tests()
    assert len(rows) == 10
    for row in rows:
        *_, tests = [cell.strip() for cell in row.strip("|").split("|")]
        assert re.search(r"https://github.com/[\w-]+/[\w-]+/issues/\d+", row), row
        named = re.findall(r"`(test_\w+)`", tests)
        assert named, row
        assert [name for name in named if name not in known] == []


DECISIONS = [page for page in PAGES if page.parent.name == "decisions" and page.stem != "index"]


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_decision_is_a_short_record_in_four_parts(page: Path) -> None:
    text = page.read_text()
    parts = re.findall(r"^\*\*([\w ]+)\.\*\* ", text, re.MULTILINE)
    assert parts == ["Decided", "Why", "Costs", "What would change our mind"]
    assert len(text.split()) <= 250
    assert f"({page.name})" in (page.parent / "index.md").read_text()


def test_ten_decisions_are_recorded() -> None:
    assert len(DECISIONS) == 10


def _figure(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.,]+) (ms|µs)", text.strip()).groups()  # type: ignore[union-attr]
    return float(number.replace(",", "")) * (1000 if unit == "ms" else 1)


@pytest.mark.parametrize(
    "command", ["bench.batch", "bench.cluster", "bench.fleet", "bench.stores"]
)
def test_each_benchmark_of_bench_scale_has_its_table(command: str, tmp_path: Path) -> None:
    before = (ROOT / "bench/README.md").read_text()
    assert command.removeprefix("bench.") in (ROOT / "Makefile").read_text()
    page = tmp_path / "README.md"
    page.write_text(before)
    report.renew(page, "| new |", command)
    after = page.read_text().splitlines()
    kept = [line for line in after if line in before]
    assert set(after) - set(kept) == {"| new |"}
    assert len(before.splitlines()) - len(kept) < 40
    with pytest.raises(ValueError, match="must have"):
        report.renew(page, "| new |", "bench.other")


@pytest.mark.parametrize("page", report.CLAIMS)
def test_figures_of_a_comparison_match_the_benchmark(page: str) -> None:
    """A comparison is rounded and may come from another run, so a factor of two is allowed."""

    def rows(text: str) -> dict[str, list[str]]:
        lines = [line.strip("| ").split("|") for line in text.splitlines() if line[:1] == "|"]
        return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}

    bench = (ROOT / "bench/README.md").read_text()
    measured = rows(bench.partition("### The openai wire")[2].partition("###")[0])
    claimed = rows((ROOT / page).read_text())
    head = next(line for line in bench.splitlines() if line.startswith("| | raw |"))
    names = [cell.strip() for cell in head.strip("| ").split("|")]
    for row, source in (
        ("CPU of a call", "complete, text"),
        ("CPU of a streamed chunk", "stream, a chunk, coalesced"),
    ):
        peers = dict(zip(names, measured[source], strict=True))
        for cell, peer in zip(claimed[row], ("dragoman", "litellm", "pydantic-ai"), strict=False):
            found = float(peers[peer].split()[0].replace(",", ""))
            assert 0.5 < _figure(cell) / found < 2, (row, peer)
    imports = rows(bench.partition("### Importing")[2].partition("###")[0])
    for row, own in (
        ("import, ready to connect", "from dragoman import connect"),
        ("import alone", "import dragoman"),
    ):
        for cell, peer in zip(claimed[row], (own, "litellm", "pydantic-ai"), strict=False):
            assert 0.5 < _figure(cell) / (1000 * float(imports[peer][0])) < 2, (row, peer)


def test_every_public_name_is_in_the_reference() -> None:
    places = dragoman._PLACES.values()  # noqa: SLF001 - the table of lazy imports
    assert {place.partition(".")[0] for place in places} <= set(MODULES)


def test_documentation_pages_are_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 210
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 30


if __name__ == "__main__":
    for name, content in write_pages().items():
        target = ROOT / "docs/reference" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    design = ROOT / "docs/design.md"
    design.write_text(write_layers(design.read_text()))
    PAGE.write_text(with_table(PAGE.read_text()))
    survival.PAGE.write_text(survival.with_table(survival.PAGE.read_text()))
    specified.PAGE.write_text(specified.with_rules(specified.PAGE.read_text()))
    write_missing_pages()
    NAVIGATION.write_text(write_navigation(NAVIGATION.read_text()))
    for place in VENDOR_PAGES:
        place.write_text(write_tables(place.read_text()))
