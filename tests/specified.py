"""The rules of the specifications, each with its test, and the page that lists them.

``specification.txt`` has a line for each rule: the rule, its tests, and the reason for a
difference, separated by ``|``. A test is the name of a function, or ``PATH::NAME`` if several files
have a function of that name. ``python -m tests.specified`` writes the rules into the page.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent
PAGE = ROOT.parent / "docs/concepts/specification.md"
START, END = "<!-- rules -->\n", "<!-- /rules -->\n"
_FUNCTION = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


class Specified(NamedTuple):
    """A rule of a document, with its tests."""

    document: str
    section: str
    number: str
    text: str
    tests: tuple[str, ...]
    difference: str


def read_rules() -> Iterator[Specified]:
    """Yield every rule of ``specification.txt``, numbered within its document."""
    document = section = key = ""
    count = 0
    for line in (ROOT / "specification.txt").read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("# "):
            document, count = line.removeprefix("# "), 0
            key = re.split(r"[(,)]", document)[1]
        elif line:
            count += 1
            text, tests, *rest = [part.strip() for part in line.split(" | ")]
            named = tuple(tests.split(", ")) if tests else ()
            yield Specified(document, section, f"{key}.{count}", text, named, " ".join(rest))


def find_tests() -> dict[str, list[str]]:
    """Return the files in which each test function is, by its name and by ``PATH::NAME``."""
    found: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("test_*.py")):
        place = path.relative_to(ROOT).as_posix()
        for name in _FUNCTION.findall(path.read_text()):
            found.setdefault(name, []).append(place)
            found[f"{place}::{name}"] = [place]
    return found


def write_rules() -> str:
    """Return the number of rules, and each rule with its tests and the reason for a difference.

    Rules of a section that hold by the same tests share a line.
    """
    rules = list(read_rules())
    differing = sum([bool(rule.difference) for rule in rules])
    lines = [f"{len(rules)} rules: {len(rules) - differing} hold, {differing} differ."]
    document = ""
    for (named, section), group in groupby(rules, key=lambda rule: (rule.document, rule.section)):
        if named != document:
            document = named
            lines += ["", f"## {document}"]
        lines += ["", f"### {section}", ""]
        shared: dict[tuple[tuple[str, ...], str], list[str]] = {}
        for rule in group:
            shared.setdefault((rule.tests, rule.difference), []).append(rule.text)
        for (tests, difference), texts in shared.items():
            why = f" **Here:** {difference}." if difference else ""
            lines.append(
                f"- {'; '.join(texts)} ({', '.join([f'`{test}`' for test in tests])}){why}"
            )
    return "\n".join(lines) + "\n"


def with_rules(page: str) -> str:
    """Return the text of the page with the current rules."""
    before, _, rest = page.partition(START)
    return f"{before}{START}\n{write_rules()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(with_rules(PAGE.read_text()))
