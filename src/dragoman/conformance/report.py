"""The report of a server check, and the formats it is written in."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias
from xml.sax.saxutils import escape, quoteattr

import msgspec
from msgspec import Struct

from ..capabilities import Capabilities
from ..messages import display
from ..messages.display import Display, Displayed, Passage, Table

Status: TypeAlias = Literal["pass", "fail", "unsupported", "not_observed", "not_applicable"]

WORDS: dict[Status, str] = {
    "pass": "pass",
    "fail": "FAIL",
    "unsupported": "not supported",
    "not_observed": "not observed",
    "not_applicable": "not applicable",
}
"""The word for each status, so that a report is readable without colour."""


class RecordedExchange(Struct, frozen=True, omit_defaults=True):
    """A request and its reply, truncated, without headers and therefore without keys."""

    method: str
    path: str
    sent: str = ""
    status: int | None = None
    got: str = ""


class CheckOutcome(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The outcome of one check."""

    name: str
    title: str
    status: Status
    detail: str = ""
    evidence: tuple[RecordedExchange, ...] = ()
    seconds: float = 0.0
    about: bool = True
    """Whether the outcome shows anything about the server, unlike a lost connection."""


class Report(Struct, Displayed, frozen=True, kw_only=True):
    """The report of a complete server check.

    ``tool_calls`` counts the sound and the faulty tool calls for each family of schemas.
    """

    url: str
    wire: str
    model: str
    by: str
    at: str
    outcomes: tuple[CheckOutcome, ...] = ()
    capabilities: Capabilities = Capabilities()
    probes: Mapping[str, bool | int | str | None] = {}
    tool_calls: Mapping[str, Mapping[str, int]] = {}

    @property
    def failed(self) -> bool:
        """Whether any check failed."""
        return any(outcome.status == "fail" for outcome in self.outcomes)

    @property
    def counts(self) -> dict[Status, int]:
        """The number of checks with each status."""
        return {status: sum(each.status == status for each in self.outcomes) for status in WORDS}

    @property
    def summary(self) -> str:
        """The number of checks with each status, as one line of text."""
        return ", ".join(
            [f"{count} {WORDS[status].lower()}" for status, count in self.counts.items()]
        )

    def to_json(self) -> bytes:
        """Return the complete report as JSON."""
        record = {**msgspec.to_builtins(self), "counts": self.counts, "failed": self.failed}
        return _indent(record)

    def to_facts(self) -> bytes:
        """Return the capabilities as ``Capabilities.read`` and ``models.yaml`` accept them."""
        known = {
            name: fact for name, fact in msgspec.to_builtins(self.capabilities).items() if fact
        }
        record = {"wire": self.wire, "model": self.model, "at": self.at, "by": self.by}
        return _indent({**record, "capabilities": known, "probes": dict(self.probes)})

    def _display(self) -> Display:
        return Display(_title(self), [self.summary], tables=_tables(self))


def _title(report: Report) -> str:
    return f"Check of {report.model} over the {report.wire} wire"


def _tables(report: Report) -> list[Table]:
    outcomes = [(each.name, WORDS[each.status], _found(each)) for each in report.outcomes]
    probed = [(name, _fact_word(value)) for name, value in _facts(report).items()]
    return [
        Table(("check", "outcome", "what was found"), outcomes),
        Table(("capability", "probed"), probed),
    ]


def _indent(record: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=2)


# --- reports for people ------------------------------------------------------------------------


def write_text(report: Report, *, paint: Any = lambda text, status: text) -> str:
    """Return a table for a terminal; ``paint(text, status)`` may colour it."""
    width = max([len(outcome.name) for outcome in report.outcomes], default=0)
    lines = [f"{report.url} ({report.wire}) {report.model}", ""]
    for outcome in report.outcomes:
        word = paint(f"{WORDS[outcome.status]:<14}", outcome.status)
        lines.append(
            f"  {outcome.name:<{width}}  {word}  {outcome.detail or outcome.title}".rstrip()
        )
        if outcome.status == "fail":
            lines += [f"      {line}" for line in _evidence_lines(outcome)]
    lines += ["", "Capabilities, probed:"]
    lines += [f"  {name:<30}  {_fact_word(value)}" for name, value in _facts(report).items()]
    return "\n".join([*lines, "", report.summary])


def write_markdown(report: Report) -> str:
    """Return the report as a Markdown page.

    The page has no times, so that two runs on the same server give the same page.
    """
    lines = [
        f"# {_title(report)}",
        "",
        (
            f"This report was written by `{report.by} check --markdown`. "
            f"{report.summary[0].upper()}{report.summary[1:]}."
        ),
        "",
        "| check | outcome | what was found |",
        "|---|---|---|",
        *[
            f"| `{each.name}` | {WORDS[each.status]} | {_cell(_found(each))} |"
            for each in report.outcomes
        ],
        "",
        "## Capabilities",
        "",
        "| capability | probed |",
        "|---|---|",
        *[f"| {name} | {_fact_word(value)} |" for name, value in _facts(report).items()],
    ]
    failures = [outcome for outcome in report.outcomes if outcome.status == "fail"]
    lines += ["", "## Evidence"] if failures else []
    for outcome in failures:
        lines += ["", f"### {outcome.name}", "", _cell(outcome.detail), ""]
        lines += ["```text", *_evidence_lines(outcome), "```"]
    return "\n".join(lines) + "\n"


def _found(outcome: CheckOutcome) -> str:
    if outcome.status == "pass":
        return f"{outcome.title}: {outcome.detail}" if outcome.detail else outcome.title
    return f"{outcome.detail} (wanted: {outcome.title})"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _facts(report: Report) -> dict[str, Any]:
    known = {
        name: getattr(report.capabilities, name).value for name in Capabilities.__struct_fields__
    }
    return {**{name: value for name, value in known.items() if value is not None}, **report.probes}


def _fact_word(value: Any) -> str:
    if isinstance(value, bool | None):
        return {True: "yes", False: "no", None: "unknown"}[value]
    return str(value)


def _evidence_lines(outcome: CheckOutcome) -> list[str]:
    """Return the recorded exchanges of a check, truncated."""
    lines: list[str] = []
    for exchange in outcome.evidence:
        status = "no answer" if exchange.status is None else str(exchange.status)
        lines.append(f"> {exchange.method} {exchange.path}")
        lines += [f"> {line}" for line in exchange.sent.splitlines()[:8]]
        lines.append(f"< {status}")
        lines += [f"< {line}" for line in exchange.got.splitlines()[:12]]
    return lines


# --- reports for other programs ----------------------------------------------------------------


def write_junit(report: Report) -> str:
    """Return JUnit XML for CI servers."""
    counts = report.counts
    skipped = counts["unsupported"] + counts["not_observed"] + counts["not_applicable"]
    total = sum(outcome.seconds for outcome in report.outcomes)
    head = (
        f"<testsuite name={quoteattr(f'dragoman check {report.model}')} "
        f'tests="{len(report.outcomes)}" failures="{counts["fail"]}" skipped="{skipped}" '
        f'errors="0" time="{total:.3f}" timestamp="{report.at}">'
    )
    lines = ['<?xml version="1.0" encoding="utf-8"?>', "<testsuites>", head]
    lines += [_junit_case(outcome) for outcome in report.outcomes]
    return "\n".join([*lines, "</testsuite></testsuites>"])


def _junit_case(outcome: CheckOutcome) -> str:
    group, _, name = outcome.name.partition(".")
    head = (
        f"<testcase classname={quoteattr(group)} name={quoteattr(name)} "
        f'time="{outcome.seconds:.3f}"'
    )
    if outcome.status == "pass":
        return f"{head}/>"
    if outcome.status == "fail":
        shown = "\n".join(_evidence_lines(outcome))
        return (
            f"{head}><failure "
            f"message={quoteattr(_xml(outcome.detail))}>{escape(_xml(shown))}</failure></testcase>"
        )
    return (
        f"{head}><skipped "
        f"message={quoteattr(_xml(f'{WORDS[outcome.status]}: {outcome.detail}'))}/></testcase>"
    )


def _xml(text: str) -> str:
    """Replace the characters that XML cannot represent."""
    return re.sub(r"[^\t\n -\ud7ff\ue000-\U0010ffff]", "?", text)


_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin-top: 1.5rem; }
td, th { text-align: left; padding: .3rem .6rem; vertical-align: top; border-bottom: 1px solid #8884; }
"""


def write_html(report: Report) -> str:
    """Return one self-contained HTML page, without scripts, fonts or links."""
    evidence = [
        Passage(f"evidence of {each.name}", "\n".join(_evidence_lines(each)), folded=True)
        for each in report.outcomes
        if each.evidence
    ]
    facts = [report.url, report.at, report.by, report.summary]
    shown = Display(_title(report), facts, evidence, _tables(report))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(shown.title)}</title><style>{_STYLE}</style></head>"
        f"<body>{display.write_html(shown)}</body></html>\n"
    )
