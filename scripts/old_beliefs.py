"""List what the catalogue believes about vendors and has not been checked for half a year.

A belief is a row of ``catalog/families``, or in a vendor's file its address, a documented fact, a proof of a
quirk, a retirement or the model rows; and the price table. The day of a belief is when its source
was last read. The newest day that a text names counts if it has no ``as_of`` of its own; a proof
without a day has that of its file.

    python scripts/old_beliefs.py [--today 2026-11-18] [--days 183] [--json]
"""

import argparse
import datetime
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dragoman.registry import Vendor, load_vendor, vendor_names
from dragoman.wire.beliefs import read_families

CATALOG = Path(__file__).parents[1] / "src" / "dragoman" / "catalog"
DAYS = 183
_DAY = re.compile(r"20\d\d-[01]\d(-[0-3]\d)?")


class Old(NamedTuple):
    """A belief: its file, what it is about, the day on which it was seen, and its source."""

    file: str
    belief: str
    as_of: str | None
    source: str


def find_beliefs() -> list[Old]:
    """Return every belief of the catalogue, the oldest first; those without a day come first."""
    found = [*_of_families(), *_of_prices(), *_of_decisions()]
    for name in vendor_names():
        found += _of_vendor(load_vendor(name))
    return sorted(found, key=lambda each: (each.as_of or "", each.file, each.belief))


def _of_families() -> Iterator[Old]:
    for name, family in read_families().items():
        file = f"families/{name}.json"
        for row in family.rows:
            where = " ".join([*row.vendors, row.models or "(every model)", *row.wires])
            yield Old(file, f"{where}: {', '.join(row.quirks)}", row.as_of, row.source)
        for vendor, known in family.fields.items():
            yield Old(file, f"fields: {vendor}", known.as_of, f"{known.source}; {known.rejects}")


def _of_vendor(vendor: Vendor) -> Iterator[Old]:
    file = f"{vendor.id}.yaml"
    yield Old(file, "address and key variable", vendor.as_of, vendor.source or vendor.docs)
    for name, rule in vendor.rules.items():
        yield Old(file, f"facts: {name}", rule.get("as_of"), str(rule.get("source", "")))
    for day, retirement in vendor.retirements.items():
        yield Old(file, f"retirements: {day}", retirement.as_of, retirement.source)
    for quirk, proof in find_proofs(vendor).items():
        yield Old(file, f"quirk: {quirk}", _newest_day(proof) or vendor.as_of, proof)
    listed = [row for row in vendor.rows.values() if row.get("listed")]
    if listed:
        yield Old(
            file, f"models: {len(listed)} listed", vendor.listed.as_of, vendor.listed.source or ""
        )
    if len(listed) < len(vendor.rows):
        yield Old(file, f"models: {len(vendor.rows) - len(listed)} rows", vendor.as_of, file)


def find_proofs(vendor: Vendor) -> dict[str, str]:
    """Return the proof of each quirk in a vendor's file; it is empty if there is none."""
    found = {quirk: vendor.proofs.get(quirk, "") for quirk in vendor.quirks}
    for wire, form in vendor.other_wires.items():
        for quirk in form.quirks:
            found[f"{wire}.{quirk}"] = form.proofs.get(quirk) or vendor.proofs.get(quirk, "")
    for name, side in (("embed", vendor.embed), ("rerank", vendor.rerank)):
        for quirk in side.quirks if side is not None else ():
            found[f"{name}.{quirk}"] = side.proofs.get(quirk, "") if side is not None else ""
    return found


def _of_decisions() -> Iterator[Old]:
    known = json.loads((Path(__file__).parent / "decisions.json").read_bytes())
    for row in known["decisions"]:
        yield Old("decisions.json", row["about"], known["as_of"], row["source"])


def _of_prices() -> Iterator[Old]:
    table = json.loads((CATALOG / "prices.json").read_bytes())
    yield Old(
        "prices.json", f"{len(table['rows'])} prices", table["generated_at"], str(table["source"])
    )


def _newest_day(text: str) -> str | None:
    """Return the newest day that a text names; a month such as 2026-08 is its first day."""
    days = [match[0] for match in _DAY.finditer(text)]
    return max([day if len(day) == 10 else f"{day}-01" for day in days], default=None)


def is_old(belief: Old, today: datetime.date, days: int) -> bool:
    """Return whether a belief was seen more than ``days`` days ago, or on an unknown day."""
    if belief.as_of is None:
        return True
    return (today - datetime.date.fromisoformat(belief.as_of)).days > days


def write_table(beliefs: list[Old]) -> str:
    """Return the beliefs as a table in Markdown."""
    rows = [[each.as_of or "unknown", each.file, each.belief, each.source] for each in beliefs]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = ["| seen | file | belief | source |", "|---|---|---|---|"]
    return "\n".join([*lines, *[f"| {' | '.join(row)} |" for row in cells]])


def show(today: datetime.date, days: int, *, as_json: bool) -> str:
    """Return the beliefs that are older than ``days`` days, as a table or as JSON."""
    beliefs = find_beliefs()
    old = [each for each in beliefs if is_old(each, today, days)]
    if as_json:
        return json.dumps([each._asdict() for each in old], indent=1)
    summary = f"{len(old)} of {len(beliefs)} beliefs are older than {days} days on {today}"
    return f"{write_table(old)}\n\n{summary}" if old else summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--today", type=datetime.date.fromisoformat, metavar="DAY")
    parser.add_argument("--days", type=int, default=DAYS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    today = options.today or datetime.datetime.now(datetime.UTC).date()
    print(show(today, options.days, as_json=options.json))


if __name__ == "__main__":
    main()
