"""The rules of the specifications, each with its test, and the page that lists them.

A table ``tests/tables/rules_DOCUMENT.jsonl`` has a row for each document, section and rule. A rule
has these fields:

``rule``      the rule in a few words
``says``      the sentence of the document
``at``        the section of the document that has the sentence
``test``      the tests that fail if the sentence is broken: the name of a function, or
              ``PATH::NAME`` if several files have a function of that name; a case in brackets
``here``      what is done here, if it differs on purpose
``break``     a patch of one place that breaks the rule: file, text before, text after

``python -m scripts.run_rules`` applies each patch and checks that the test notices it.
``python -m tests.specified`` writes the rules into the page.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from .rows import read_table

ROOT = Path(__file__).resolve().parent
PAGE = ROOT.parent / "docs/concepts/specification.md"
DOCUMENTS = ("spec", "core", "choice", "contract", "runtime")
START = "<!-- rules -->\n"
END = "<!-- /rules -->\n"
_FUNCTION = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
_FORCE = re.compile(r"\b(MUST|SHOULD|MAY)\b")


class Mutation(NamedTuple):
    """A patch that breaks a rule: one text of a file is replaced.

    The file is relative to the package, or to the repository.
    """

    file: str
    before: str
    after: str


class Specified(NamedTuple):
    """A rule of a document, with its tests."""

    document: str
    section: str
    number: str
    text: str
    sentence: str
    place: str
    tests: tuple[str, ...]
    difference: str
    mutation: Mutation | None


def read_rules() -> Iterator[Specified]:
    """Yield every rule of the tables, numbered within its document."""
    for key in DOCUMENTS:
        document = section = ""
        count = 0
        for row in read_table(f"rules_{key}"):
            document = row.get("document", document)
            section = row.get("section", section)
            if "rule" not in row:
                continue
            count += 1
            yield Specified(
                document,
                section,
                f"{key}.{count}",
                row["rule"],
                row["says"],
                row["at"],
                tuple(row["test"]),
                row.get("here", ""),
                Mutation(*row["break"]) if "break" in row else None,
            )


def find_tests() -> dict[str, list[str]]:
    """Return the files in which each test function is, by its name and by ``PATH::NAME``."""
    found: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("test_*.py")):
        place = path.relative_to(ROOT).as_posix()
        for name in _FUNCTION.findall(path.read_text()):
            found.setdefault(name, []).append(place)
            found[f"{place}::{name}"] = [place]
    return found


def find_place(test: str, places: dict[str, list[str]]) -> str:
    """Return the test as pytest names it, from the root of the repository."""
    name, bracket, case = test.partition("[")
    found = places.get(name, [])
    if len(found) != 1:
        raise LookupError(f"{name} is in {found or 'no file'}")
    return f"tests/{found[0]}::{name.rpartition('::')[2]}{bracket}{case}"


def find_force(sentence: str) -> str:
    """Return the strongest keyword of a sentence: MUST, SHOULD, MAY, or nothing."""
    words = set(_FORCE.findall(sentence))
    return next((word for word in ("MUST", "SHOULD", "MAY") if word in words), "")


def write_counts(rules: list[Specified]) -> list[str]:
    """Return how many rules there are, and how many have what."""
    differing = sum([bool(rule.difference) for rule in rules])
    forces = Counter([find_force(rule.sentence) for rule in rules])
    broken = sum([rule.mutation is not None for rule in rules])
    return [
        f"{len(rules)} rules: {len(rules) - differing} hold, {differing} differ. "
        f"{forces['MUST']} sentences say MUST, {forces['SHOULD']} SHOULD and {forces['MAY']} MAY.",
        "",
        f"{broken} of them have a mutation: a patch of one place that breaks the rule. "
        "`make test-rules` applies each patch and checks that the named test fails.",
    ]


def write_differing(rules: list[Specified], document: str) -> str:
    """Return how many rules a document has, and the numbers of those that differ."""
    own = [rule for rule in rules if rule.document == document]
    differing = [rule.number for rule in own if rule.difference]
    return f"{len(own)} rules, of which {len(differing)} differ: {', '.join(differing)}."


def write_rules() -> str:
    """Return the counts, and each rule with its sentence, its tests and its difference."""
    rules = list(read_rules())
    lines = write_counts(rules)
    document = ""
    for (named, section), group in groupby(rules, key=lambda rule: (rule.document, rule.section)):
        if named != document:
            document = named
            lines += ["", f"## {document}", "", write_differing(rules, document)]
        lines += ["", f"### {section}", ""]
        for rule in group:
            why = f" **Here:** {rule.difference}." if rule.difference else ""
            tests = ", ".join([f"`{test}`" for test in rule.tests])
            mark = "" if rule.mutation else ", without a mutation"
            said = f" “{rule.sentence}” ({rule.place})" if rule.sentence else ""
            lines.append(f"- {rule.number}: {rule.text}.{said}{why} Test: {tests}{mark}")
    return "\n".join(lines) + "\n"


def with_rules(page: str) -> str:
    """Return the text of the page with the current rules."""
    before, _, rest = page.partition(START)
    return f"{before}{START}\n{write_rules()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(with_rules(PAGE.read_text()))
