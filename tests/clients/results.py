"""Store the test outcomes of each client library and program on each wire, and write them to a
page.

The tests of the clients write ``results.json``; ``python -m tests.clients.results`` generates the
section of the page from this file.
"""

import fcntl
import json
import re
from collections.abc import Mapping
from pathlib import Path

from tests.gateway.upstream import WIRES
from tests.pages import ROOT

FILE = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs/reference/gateway-clients.md"
TITLE = "## Libraries and programs"
_HEAD = f"""{TITLE}

With their default settings. After the colon is the wire that the client uses, or how it was set up. `make clients` installs
the clients, and `make test-exhaustive` runs them with models of all these wires. Continue's Gemini provider is left out,
because it sends no request to a configured address.

Each line has the clients, the wires of the models, and what works.

"""

_WORDS = re.compile("([A-Z])")  # of features in camel case, which the JavaScript clients report
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
    """Return the section of the page: a line for each set of outcomes, with all clients and sides
    that share it.
    """
    rows: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for name, features in results.items():
        client, _, side = name.partition(", ")
        tried = {wire for wires in features.values() for wire in wires}
        works = []
        other = []
        for feature, wires in features.items():
            shown = _WORDS.sub(r" \1", feature).lower().replace("_", " ")
            found = {wires.get(wire, "not run") for wire in tried}
            if found == {"yes"}:
                works.append(shown)
            elif found == {"–"}:
                other.append(shown)
            else:
                bad = [wire for wire in tried if wires.get(wire) != "yes"]
                works.append(f"{shown} (not with {', '.join(sorted(bad))})")
        models = "all" if tried == {*WIRES} else ", ".join([w for w in WIRES if w in tried])
        row = rows.setdefault((models, ", ".join(works), ", ".join(other)), {})
        row.setdefault(client, []).append(side or "default")
    lines = []
    for (wires_of_models, working, lacking), clients in rows.items():
        names = [
            client if sides == ["default"] else f"{client}: {', '.join(sides)}"
            for client, sides in clients.items()
        ]
        cannot = f"; cannot be requested: {lacking}" if lacking else ""
        lines.append(f"- {'; '.join(names)} ({wires_of_models}): {working}{cannot}")
    return _HEAD + "\n".join(lines) + "\n"


def read_results() -> Results:
    """Return the stored outcomes of all clients."""
    found: Results = json.loads(FILE.read_text())
    return found


if __name__ == "__main__":
    vendors = PAGE.read_text().partition(TITLE)[0].rstrip("\n")
    PAGE.write_text(f"{vendors}\n\n{write_section(read_results())}")
