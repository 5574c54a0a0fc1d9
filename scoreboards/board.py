"""The result of one suite, and its section of the page."""

from __future__ import annotations

from dataclasses import dataclass, field

_NAMED = 5  # rows that are named with a reason; others are counted


@dataclass
class Board:
    """What one suite found.

    ``cells`` has the outcome of each row and column: empty if it passed, or the reason if not. A
    reason in ``expected`` is known; any other makes the run fail.
    """

    name: str
    title: str
    about: str
    versions: dict[str, str] = field(default_factory=dict)
    cells: dict[tuple[str, str], str] = field(default_factory=dict)
    expected: dict[str, str] = field(default_factory=dict)
    """The reason of a failure that is known, by the words that its text contains."""
    counts: str = ""
    """A table that takes the place of the passed rows, for a suite with too many of them."""
    missing: str = ""
    """Why the suite could not be run."""

    def reason(self, outcome: str) -> str:
        """Return the known reason of a failed cell, or an empty text."""
        return next((why for words, why in self.expected.items() if words in outcome), "")

    @property
    def surprises(self) -> list[str]:
        """The failures that have no known reason."""
        found = [
            f"{row}, {column}: {outcome}"
            for (row, column), outcome in self.cells.items()
            if outcome and not self.reason(outcome)
        ]
        return [*([self.missing] if self.missing else []), *found]

    def show(self) -> str:
        """Return the section of the page."""
        lines = [f"## {self.title}", "", self.about, ""]
        if self.missing:
            return "\n".join([*lines, f"Not run: {self.missing}", ""])
        used = ", ".join([f"{name} {version}" for name, version in self.versions.items()])
        lines += [f"Run with {used}.", ""]
        passed = sum(not outcome for outcome in self.cells.values())
        lines += [f"**{passed:,} of {len(self.cells):,} passed.**", ""]
        lines += [self.counts or self._passed(), ""]
        if failures := self._failures():
            lines += ["| failed | at | reason |", "|---|---|---|", *failures, ""]
        return "\n".join(lines)

    def _passed(self) -> str:
        """Return the rows that pass wherever they are tried, by these columns."""
        columns = list(dict.fromkeys(column for _, column in self.cells))
        groups: dict[tuple[str, ...], list[str]] = {}
        for row in dict.fromkeys(row for row, _ in self.cells):
            tried = {name: self.cells[row, name] for name in columns if (row, name) in self.cells}
            if not any(tried.values()):
                groups.setdefault(tuple(tried), []).append(row)
        lines = []
        for where, rows in groups.items():
            # a row that passes with a complete reply and streamed is named once
            twins = {f"{row}, streamed" for row in rows}
            shown = "; ".join([row for row in rows if row not in twins])
            lines.append(f"- {', '.join(where)}: {shown}")
        return "\n".join(["Passed:", "", *lines])

    def _failures(self) -> list[str]:
        groups: dict[str, list[tuple[str, str]]] = {}
        for cell, outcome in self.cells.items():
            if outcome:
                why = self.reason(outcome) or f"not expected: {outcome}"
                groups.setdefault(why, []).append(cell)
        lines = []
        for why, cells in groups.items():
            names = list(dict.fromkeys(row for row, _ in cells))
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            shown = "; ".join(names[:_NAMED]) + more
            where = ", ".join(dict.fromkeys(column for _, column in cells))
            lines.append(f"| {shown} | {where} | {why.replace('|', chr(92) + '|')} |")
        return lines
