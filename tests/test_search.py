"""The search of the site finds the right page for natural questions."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .pages import ROOT
from .programs import require
from .waiting import PATIENCE

DOCS = ROOT / "docs"
TABLE = [
    json.loads(line) for line in (ROOT / "tests/tables/searches.jsonl").read_text().splitlines()
]
RUN = """
const {answer, buildIndex} = require(process.argv[1]);
const {items, queries} = JSON.parse(require("fs").readFileSync(0, "utf8"));
const index = buildIndex(items);
console.log(JSON.stringify(queries.map(input => answer(index, {input}))));
"""


def build_index() -> list[dict[str, Any]]:
    """Return the sections of all pages, in the form of the site's search index."""
    items = []
    for path in sorted(DOCS.rglob("*.md")):
        page = path.relative_to(DOCS).with_suffix(".html").as_posix()
        text = path.read_text()
        if "exclude: true" in text[:60]:
            continue
        for number, part in enumerate(
            re.split(r"^(?=#{1,3} [A-Z`])", text, flags=re.MULTILINE)[1:]
        ):
            title, _, body = part.partition("\n")
            place = f"#{number}" if number else ""
            items.append({"location": page + place, "title": title.strip("# "), "text": body})
    return items


def search(items: list[dict[str, Any]], queries: list[str]) -> list[dict[str, Any]]:
    script = str(DOCS / "javascripts/search.js")
    done = subprocess.run(
        [require("node"), "-e", RUN, script], input=json.dumps({"items": items, "queries": queries}),
        capture_output=True, text=True, check=True, timeout=PATIENCE,
    )  # fmt: skip
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """Return the pages that each question of the table finds."""
    items = build_index()
    queries = [row["query"] for row in TABLE]
    return {
        query: [items[each["id"]]["location"].partition(".html")[0] for each in result["items"]]
        for query, result in zip(queries, search(items, queries), strict=True)
    }


def test_questions_are_answered_by_the_first_results(found: dict[str, list[str]]) -> None:
    assert len(TABLE) == 73
    right = {row["query"]: {row["page"], *row.get("or", ())} for row in TABLE}
    late = {query: pages[:3] for query, pages in found.items() if not right[query] & {*pages[:3]}}
    second = {query: pages[:3] for query, pages in found.items() if pages[0] not in right[query]}
    assert late == {}
    assert len(second) <= 5, second


def test_pages_of_the_table_exist() -> None:
    for row in TABLE:
        for page in (row["page"], *row.get("or", ())):
            assert Path(DOCS, f"{page}.md").exists(), page


def test_a_question_without_known_words_finds_nothing() -> None:
    (nothing, empty) = search(build_index(), ["zzzxqv", "how do I"])
    assert nothing["items"] == []
    assert nothing["pagination"] == {"total": 0}
    assert len(empty["items"]) <= 10


def test_found_words_are_marked() -> None:
    item = {"location": "a.html", "title": "Timeouts", "text": "<p>Set a <b>timeout</b>.</p>"}
    (result,) = search([item], ["how do I set timeouts"])
    title, text = [
        match["value"]["highlight"]["ranges"] for match in result["items"][0]["matches"]
    ]
    assert item["title"][title[0]["start"] : title[0]["end"]] == "Timeouts"
    assert [item["text"][each["start"] : each["end"]] for each in text] == ["timeout"]
