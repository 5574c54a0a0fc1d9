"""MCP conformance: ``McpServer`` against every client scenario of the protocol's own suite."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from .board import Board
from .install import HOME, ROOT, install_node, node, node_version

TITLE = "MCP conformance"
PACKAGE = "@modelcontextprotocol/conformance"
_PATIENCE = "120000"  # milliseconds that the suite waits for the client
_EXTENSION = "an extension of the protocol that is left out"
EXPECTED = {
    (
        "request-metadata",
        "2026-07-28",
    ): "skipped in part: the client declares neither roots nor sampling",
    (
        "http-standard-headers",
        "2026-07-28",
    ): "skipped in part: the client program asks for no resources and no prompts",
    (
        "auth/dpop*",
        "extension",
    ): f"{_EXTENSION}: the MCP library has no proof of possession (DPoP)",
    (
        "auth/wif-*",
        "extension",
    ): f"{_EXTENSION}: the MCP library has no grant for the identity of a workload",
    (
        "auth/enterprise-*",
        "extension",
    ): f"{_EXTENSION}: the caller has to get the assertion of the identity provider",
    (
        "sep-2640-*",
        "extension",
    ): f"{_EXTENSION}: nothing is checked, because `McpServer` does not read skills",
}


def find_scenarios(listing: str) -> list[tuple[str, str]]:
    """Return the client scenarios and the revisions of each, from the suite's own list."""
    found = []
    for line in listing.partition("Client scenarios")[2].partition("\n\n")[0].splitlines():
        if match := re.fullmatch(r"\s+- (\S+) \[(.+)\]", line):
            found += [(match[1], revision) for revision in match[2].split(",")]
    return found


def read_outcome(scenario: str, printed: str) -> str:
    """Return an empty text if every check of a scenario passed, or which failed or were skipped."""
    plain = re.sub(r"\x1b\[\d+m", "", printed)
    counts = re.search(r"Passed: (\d+)/(\d+), (\d+) failed", plain)
    if counts is None:
        return f"{scenario}: no result: {plain.strip()[-200:]}"
    if counts[2] == "0":
        return f"{scenario}: no check was made"
    skipped = re.findall(r"\[(\S+)\s*\] SKIPPED", plain)
    if "OVERALL: PASSED" in plain:
        return f"{scenario}: skipped {', '.join(dict.fromkeys(skipped))}" if skipped else ""
    failed = re.findall(r"\[([\w./-]+)\s*\] FAILURE", plain)
    return f"{scenario}: {', '.join(dict.fromkeys(failed)) or 'the client failed'}"


PROGRAM = f"{shlex.quote(sys.executable)} -m scoreboards.mcp_client"
# Programs that a scenario must notice in place of the client. Their server is part of the suite, so
# what is damaged is the client.
CONTROLS = {
    "a client that sends nothing": f"{shlex.quote(sys.executable)} -c pass",
    "a client that neither logs in nor calls a tool": f"{PROGRAM} --idle",
}
OPENED = ("initialize", "json-schema-ref-no-deref")
"""The scenarios that an idle client passes: they check how it opens a server and lists its tools."""


def run_suite(suite: list[str], keys: list[tuple[str, str]], client: str) -> list[str]:
    """Return the outcome of each scenario, by name and revision, with a client."""
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}

    def try_scenario(key: tuple[str, str]) -> str:
        scenario, revision = key
        command = [*suite, "client", "--command", client, "--scenario", scenario]
        command += ["--timeout", _PATIENCE, "-o", str(HOME / "mcp")]
        if revision[0].isdigit():
            command += ["--spec-version", revision]
        done = subprocess.run(command, capture_output=True, text=True, env=settings, cwd=ROOT)
        return read_outcome(scenario, done.stdout + done.stderr)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(try_scenario, keys))


def run() -> Board:
    """Run every client scenario at every revision that it applies to."""
    board = Board(
        "mcp",
        TITLE,
        "`McpServer` against the client scenarios of the Model Context Protocol's conformance suite, revision by\n"
        "revision. In a passed scenario at least one check was made, and none was skipped. The client program logs in without a browser, and finds\n"
        "the issuer that two scenarios of client credentials do not name; for the one with a JWT it passes the MCP\n"
        "library's own provider as `oauth`. It accepts each question of a server. The suite is the server, so that the\n"
        "controls damage the client; `initialize` and `json-schema-ref-no-deref` check nothing that an idle client does not do.",
        expected=EXPECTED,
    )
    home = install_node()
    suite = [node(), str(home / "node_modules" / PACKAGE / "dist" / "index.js")]
    listing = subprocess.run([*suite, "list", "--client"], capture_output=True, text=True)
    keys = find_scenarios(listing.stdout)
    outcomes = run_suite(suite, keys, PROGRAM)
    for revision in sorted({revision for _, revision in keys}):
        for key, outcome in zip(keys, outcomes, strict=True):
            if key[1] == revision:
                board.cells[key] = outcome
    passed = [key for key, outcome in board.cells.items() if not outcome]
    for control, client in CONTROLS.items():
        tried = [key for key in passed if "--idle" not in client or key[0] not in OPENED]
        noticed = [outcome for outcome in run_suite(suite, tried, client) if outcome]
        board.controls[control] = (len(noticed), len(tried))
    board.versions = {PACKAGE: node_version(PACKAGE), "node": node_version("node")}
    return board
