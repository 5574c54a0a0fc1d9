"""Beliefs about vendors have a source and a day, and those older than half a year are listed."""

import datetime
import json
import subprocess
import sys

import pytest
from scripts.old_beliefs import DAYS, Old, find_beliefs, find_proofs, is_old, write_table
from scripts.run_tests import ROOT

from dragoman.registry import load_vendor, vendor_names


@pytest.mark.parametrize("vendor", vendor_names())
def test_every_quirk_and_fact_of_a_vendor_has_a_source_and_a_day(vendor: str) -> None:
    known = load_vendor(vendor)
    unproven = [quirk for quirk, proof in find_proofs(known).items() if not proof]
    assert unproven == [], "a quirk needs a proof"
    for name, rule in known.rules.items():
        assert rule.get("source"), f"facts.{name}: needs a source"
        assert rule.get("as_of"), f"facts.{name}: needs an as_of"
    undated = [
        each.belief
        for each in find_beliefs()
        if each.file == f"{vendor}.yaml" and each.as_of is None
    ]
    assert undated == [], "a belief needs a day: in its text, or as_of of the file"


def test_days_of_beliefs_are_days() -> None:
    for each in find_beliefs():
        assert each.source, each
        if each.as_of is not None:
            assert datetime.date.fromisoformat(each.as_of).isoformat() == each.as_of


def test_beliefs_of_every_kind_are_found() -> None:
    found = {(each.file, each.belief.partition(":")[0]) for each in find_beliefs()}
    assert ("openai.yaml", "facts") in found
    assert ("openai.yaml", "quirk") in found
    assert ("openai.yaml", "retirements") in found
    assert ("openai.yaml", "models") in found
    assert ("families/hosts.json", "fields") in found
    assert any(file == "families/claude.json" for file, _ in found)
    assert any(file == "prices.json" for file, _ in found)


def test_each_decision_and_change_names_a_case_or_test_that_exists() -> None:
    known = json.loads((ROOT / "scripts" / "decisions.json").read_bytes())
    cases = ROOT / "src/dragoman/conformance/cases"
    for row in [*known["decisions"], *known["changes"]]:
        kind, _, name = row["proof"].partition(" ")
        assert [*cases.glob(f"{name}.*")] if kind == "case" else (ROOT / kind).is_file(), row


@pytest.mark.parametrize(
    ("as_of", "expected"),
    [("2026-05-19", False), ("2026-05-18", True), (None, True), ("2027-01-01", False)],
)
def test_belief_is_old_after_half_a_year(as_of: str | None, expected: bool) -> None:
    belief = Old("x.yaml", "quirk: q", as_of, "page")
    assert is_old(belief, datetime.date(2026, 11, 18), DAYS) is expected


def test_table_escapes_the_bars_of_patterns() -> None:
    table = write_table([Old("f.json", "a|b: reasoning", None, "page")])
    assert table.splitlines()[2] == "| unknown | f.json | a\\|b: reasoning | page |"


def test_script_lists_old_beliefs() -> None:
    def run(*options: str) -> str:
        command = [sys.executable, "-m", "scripts.old_beliefs", *options]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout

    every = json.loads(run("--today", "2100-01-01", "--json"))
    assert len(every) == len(find_beliefs())
    assert set(every[0]) == {"file", "belief", "as_of", "source"}
    last = run("--today", "2000-01-01").splitlines()[-1]
    unknown = sum(each.as_of is None for each in find_beliefs())
    assert last == f"{unknown} of {len(every)} beliefs are older than 183 days on 2000-01-01"
