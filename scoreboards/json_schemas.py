"""JSON Schema: the validator against the verdicts of the official test suite."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.errors import InvalidRequestError
from dragoman.validate.schema import compile_schema, first_error

from .board import Board
from .install import SOURCES, install_source

TITLE = "JSON Schema"
PACKAGE = "jsonschema"  # its source archive contains the official suite
DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
_NEWER = ("draft2019-09", "draft2020-12")
_ANNOTATION = "`format` is an annotation in this draft, which a validator need not check"
_OUTSIDE = "a reference to another document is refused, and nothing is fetched"
_OWN = "a meta-schema of its own is refused, since it would have to be fetched"
EXPECTED = {
    **{("optional/format/*", draft): _ANNOTATION for draft in _NEWER},
    **{("refRemote*", draft): _OUTSIDE for draft in DRAFTS},
    ("dynamicRef*", "draft2020-12"): _OUTSIDE,
    **{("optional/cross-draft*", draft): _OUTSIDE for draft in ("draft7", *_NEWER)},
    ("optional/format-assertion*", "draft2020-12"): _OWN,
    ("vocabulary*", "draft2019-09"): _OWN,
    ("vocabulary*", "draft2020-12"): _OWN,
}


class Verdict(NamedTuple):
    """A value, and whether a schema of the suite accepts it."""

    draft: str
    name: str
    schema: dict[str, Any]
    value: Any
    is_valid: bool


def read_suite(tests: Path, draft: str) -> Iterator[Verdict]:
    """Yield the verdicts of a draft, except those of the schemas ``true`` and ``false``."""
    for path in sorted((tests / draft).rglob("*.json")):
        name = path.relative_to(tests / draft).with_suffix("").as_posix()
        for case in json.loads(path.read_text()):
            if not isinstance(case["schema"], dict):
                continue
            schema = {"$schema": DRAFTS[draft], **case["schema"]}
            for test in case["tests"]:
                label = f"{name}: {case['description']} / {test['description']}"
                yield Verdict(draft, label, schema, test["data"], test["valid"])


def try_verdict(verdict: Verdict, schema: dict[str, Any] | None = None) -> str:
    """Return an empty text if the validator agrees, with the schema or with another one."""
    try:
        compiled = compile_schema(verdict.schema if schema is None else schema, "schema")
    except InvalidRequestError as error:
        return f"refused: {error}"[:200]
    if (first_error(compiled, verdict.value) is None) is verdict.is_valid:
        return ""
    return "refused though valid" if verdict.is_valid else "accepted though invalid"


def show_counts(outcomes: dict[tuple[str, str], str]) -> str:
    """Return a table with the verdicts of each draft."""
    lines = ["| draft | equal | accepted though invalid | refused though valid | schema refused |"]
    lines.append("|---|---|---|---|---|")
    for draft in DRAFTS:
        kinds = Counter(why.partition(":")[0] for (_, at), why in outcomes.items() if at == draft)
        names = ("", "accepted though invalid", "refused though valid", "refused")
        shown = " | ".join([f"{kinds[name]:,}" for name in names])
        lines.append(f"| {draft.removeprefix('draft')} | {shown} |")
    return "\n".join(lines)


def run() -> Board:
    """Compare each verdict."""
    tests = install_source(PACKAGE) / "json" / "tests"
    board = Board(
        "json_schemas",
        TITLE,
        "The validator of tool arguments and structured output against the official JSON-Schema-Test-Suite, required and\n"
        "optional, drafts 4 to 2020-12. A cell is a verdict on a value. The schemas `true` and `false` are left out, because\n"
        "the schema of a tool or of a reply is an object.",
        versions={f"the suite in the source archive of {PACKAGE}": SOURCES[PACKAGE]},
        expected=EXPECTED,
    )
    verdicts = [each for draft in DRAFTS for each in read_suite(tests, draft)]
    for at, verdict in enumerate(verdicts):
        # names repeat within a file, so the position makes each cell its own
        board.cells[f"{verdict.name} ({at})", verdict.draft] = try_verdict(verdict)
    board.counts = show_counts(board.cells)
    for name, schema, is_valid in (
        ("a schema that accepts everything", {}, False),
        ("a schema that accepts nothing", {"not": {}}, True),
    ):
        tried = [each for each in verdicts if each.is_valid is is_valid]
        noticed = sum(try_verdict(each, schema) != "" for each in tried)
        board.controls[name] = (noticed, len(tried))
    return board
