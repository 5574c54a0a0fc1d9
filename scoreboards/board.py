"""The result of one suite, and its section of the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

_NAMED = 5  # rows that are named with a reason; others are counted


@dataclass
class Board:
    """What one suite found.

    ``cells`` has the outcome of each row and column: empty if it passed, or the reason if not. A
    reason in ``expected`` is known; any other makes the run fail, and so does one that explains
    no failure.
    """

    name: str
    title: str
    about: str
    versions: dict[str, str] = field(default_factory=dict)
    cells: dict[tuple[str, str], str] = field(default_factory=dict)
    expected: dict[tuple[str, str], str] = field(default_factory=dict)
    """The reason of a failure that is known, by the patterns of its row and its column."""
    counts: str = ""
    """A table that takes the place of the passed rows, for a suite with too many of them."""
    controls: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each damage that the suite must notice: how often it did, and how often it was tried."""
    missing: str = ""
    """Why the suite could not be run."""

    def reason(self, row: str, column: str) -> str:
        """Return the known reason of a failed cell, or an empty text."""
        for (rows, columns), why in self.expected.items():
            if fnmatchcase(row, rows) and fnmatchcase(column, columns):
                return why
        return ""

    @property
    def surprises(self) -> list[str]:
        """The failures that have no known reason."""
        found = [
            f"{row}, {column}: {outcome}"
            for (row, column), outcome in self.cells.items()
            if outcome and not self.reason(row, column)
        ]
        if self.missing:
            return [self.missing]
        for rows, columns in self.expected:
            if not any(
                outcome and fnmatchcase(row, rows) and fnmatchcase(column, columns)
                for (row, column), outcome in self.cells.items()
            ):
                found.append(f"{rows}, {columns}: no failure has this reason any longer")
        for damage, (noticed, tried) in self.controls.items():
            if not 0 < tried == noticed:
                found.append(f"control {damage!r}: noticed {noticed:,} of {tried:,} times")
        return found

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
        if self.controls:
            shown = [
                f"{damage} ({noticed:,} of {tried:,})"
                for damage, (noticed, tried) in self.controls.items()
            ]
            is_noticed = all(noticed == tried for noticed, tried in self.controls.values())
            was = "and was" if is_noticed else "and was not always"
            lines += [
                f"Damage on the wire that must be noticed, {was}: " + "; ".join(shown) + ".",
                "",
            ]
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
                why = self.reason(*cell) or f"not expected: {outcome}"
                groups.setdefault(why, []).append(cell)
        lines = []
        for why, cells in groups.items():
            names = list(dict.fromkeys(row for row, _ in cells))
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            shown = "; ".join(names[:_NAMED]) + more
            where = ", ".join(dict.fromkeys(column for _, column in cells))
            lines.append(f"| {shown} | {where} | {why.replace('|', chr(92) + '|')} |")
        return lines


def judge(parts: Mapping[str, tuple[object, object]], losses: Iterable[str]) -> str:
    """Return ``equal``, ``reported``, or how the parts that arrive differ from those that were sent.

    ``parts`` has what was sent and what arrived, by path. A loss that is reported explains a
    difference at its own path, or below it, and no other.
    """
    reported = [path for path in losses if path]
    changed = {path: pair for path, pair in parts.items() if pair[0] != pair[1]}
    if not changed:
        return "equal"
    open_ones = {
        path: pair
        for path, pair in changed.items()
        if not any(
            path == loss or _is_inside(loss, path) or _is_inside(path, loss) for loss in reported
        )
    }
    if not open_ones:
        return "reported"
    return "; ".join([f"{path}: sent {a!r}, arrived {b!r}" for path, (a, b) in open_ones.items()])[
        :300
    ]


def _is_inside(path: str, outer: str) -> bool:
    return path.startswith((f"{outer}.", f"{outer}["))
