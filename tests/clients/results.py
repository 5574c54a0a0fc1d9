"""Store the test outcomes of each client library and program on each wire, and write them to a
page.

The tests of the clients write ``results.json``; ``python -m tests.clients.results`` generates the
section of the page from this file.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path

from tests.gateway.upstream import WIRES
from tests.pages import ROOT

FILE = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs/reference/gateway-clients.md"
TITLE = "## Libraries and programs"
_HEAD = f"""{TITLE}

This section shows which libraries work with the gateway, and which coding agents can edit a file of a small repository,
with their default settings. The libraries and programs are not dependencies of this project: `make clients` installs
them, and `make test-exhaustive` runs them and records the outcome. `python -m tests.clients.results` writes the outcome
of these tests to this page.

"""

Results = dict[str, dict[str, dict[str, str]]]  # client -> feature -> wire -> outcome


def record_outcomes(
    client: str, wire: str, outcomes: Mapping[str, str], file: Path = FILE
) -> None:
    """Store the outcome of each feature that was tested with a client on a wire, in place of the
    earlier outcomes.
    """
    with file.open("a+") as opened:
        # Other processes of a parallel test run write this file too.
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.seek(0)
        results: Results = json.loads(opened.read() or "{}")
        features = results.setdefault(client, {})
        for feature in [*features]:
            features[feature].pop(wire, None)
        for feature, outcome in outcomes.items():
            features.setdefault(feature, {})[wire] = outcome.partition(":")[0]
        results[client] = {feature: wires for feature, wires in features.items() if wires}
        opened.truncate(0)
        opened.write(json.dumps(results, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def write_section(results: Results) -> str:
    """Return the section of the documentation page with the outcomes of all clients."""
    tried = {wire for each in results.values() for found in each.values() for wire in found}
    columns = [wire for wire in WIRES if wire in tried]
    lines = [f"| client | feature | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    for client, features in results.items():
        for feature, wires in features.items():
            shown = [wires.get(wire, "not run") for wire in columns]
            lines.append(f"| {client} | {feature.replace('_', ' ')} | {' | '.join(shown)} |")
    return _HEAD + "\n".join(lines) + "\n"


def read_results() -> Results:
    """Return the stored outcomes of all clients."""
    found: Results = json.loads(FILE.read_text())
    return found


if __name__ == "__main__":
    vendors = PAGE.read_text().partition(TITLE)[0].rstrip("\n")
    PAGE.write_text(f"{vendors}\n\n{write_section(read_results())}")
