"""Try the newest release of each partner: upgrade it alone, run its tests, and print a table.

``python -m scripts.newest [PARTNER...] [--python 3.13]`` makes an environment of the locked versions
in ``.newest`` for each interpreter, and puts the locked version back after each partner. Two more
tables show bounds of ``pyproject.toml`` that exclude the newest release, and packages that all
extras together resolve to an older release than one extra alone does.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = [sys.executable, "-m", "uv"]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
CLIENTS = "tests/gateway/test_clients.py"
# Each partner, and the tests that use it; an empty list means that `make clients` installs it apart.
PARTNERS: dict[str, list[str]] = {
    "agent-client-protocol": ["tests/cli/test_acp.py"],
    "anthropic": [CLIENTS, "-k", "anthropic"],
    "azure-identity": ["tests/test_auth.py"],
    "boto3": [CLIENTS, "-k", "boto3"],
    "click": ["tests/test_cli.py"],
    "cohere": [CLIENTS, "-k", "cohere"],
    "google-auth": ["tests/test_auth.py"],
    "google-genai": [CLIENTS, "tests/gateway/test_official.py"],
    "jsonschema-rs": ["tests/validate"],
    "langchain-anthropic": ["tests/integrations/test_langchain_clients.py"],
    "langchain-core": ["tests/integrations/test_langchain.py"],
    "langchain-ollama": ["tests/integrations/test_langchain_clients.py"],
    "langchain-openai": ["tests/integrations/test_langchain_clients.py"],
    "llm": ["tests/integrations/test_llm.py"],
    "mcp": ["tests/tools", "-k", "mcp"],
    "msgspec": ["tests/messages", "tests/events"],
    "ollama": [CLIENTS, "-k", "ollama"],
    "openai": [CLIENTS, "-k", "openai or responses"],
    "openai-agents": ["tests/integrations/test_openai_agents.py"],
    "opentelemetry-sdk": ["tests/middleware/test_otel.py", "tests/session/test_telemetry.py"],
    "psycopg": ["tests/log", "-k", "postgres"],
    "pydantic-ai-slim": ["tests/integrations/test_pydantic_ai.py"],
    "pytest": ["tests/messages"],
    "redis": ["tests/gateway/test_shared.py"],
    "starlette": ["tests/integrations/test_starlette.py", "tests/gateway/test_app.py"],
    "uvicorn": ["tests/transport/test_serving.py"],
}


@dataclass(frozen=True)
class Result:
    """What one partner's newest release did to its tests."""

    python: str
    partner: str
    locked: str
    newest: str
    outcome: str


def run(command: list[str], **more: str) -> tuple[int, str]:
    """Run a command, and return its status and what it printed."""
    done = subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, text=True, env={**os.environ, **more}
    )
    return done.returncode, done.stdout + done.stderr


def make_environment(python: str) -> Path | None:
    """Return an environment of the locked versions, or ``None`` without such an interpreter."""
    home = ROOT / ".newest" / python
    # uv finds interpreters of the system, or downloads one; those of pyenv it sees only if selected.
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [python, *map(str, sorted(pyenv.glob(f"{python}.*/bin/python")))]
    make = [*UV, "venv", "--quiet", "--allow-existing"]
    if not any(run([*make, "--python", each, str(home)])[0] == 0 for each in found):
        return None
    restore(home)
    status, printed = run(
        [*UV, "pip", "install", "--quiet", "--python", str(home), "--no-deps", "-e", "."]
    )
    if status:
        raise SystemExit(printed)
    return home


def restore(home: Path) -> None:
    """Put the locked versions back."""
    locks = ["-r", "requirements/dev.lock"]
    status, printed = run([*UV, "pip", "install", "--quiet", "--python", str(home), *locks])
    if status:
        raise SystemExit(printed)


def find_version(home: Path, package: str) -> str:
    """Return the installed version of a package, or a dash."""
    _, printed = run([*UV, "pip", "show", "--python", str(home), package])
    found = re.search(r"^Version: (\S+)", printed, re.MULTILINE)
    return found[1] if found else "-"


def try_partner(python: str, home: Path, partner: str) -> Result:
    """Upgrade one partner, run its tests, and put the locked version back."""
    locked = find_version(home, partner)
    status, printed = run(
        [*UV, "pip", "install", "--quiet", "--python", str(home), "--upgrade", partner]
    )
    newest = find_version(home, partner)
    if status:
        outcome = f"not installed: {read_last(printed)}"
    elif newest == locked:
        outcome = "locked is the newest"
    else:
        words = [str(home / "bin" / "python"), "-m", "pytest", "-q", "-n0", *PARTNERS[partner]]
        status, printed = run(words)
        outcome = summarise(status, printed)
    restore(home)
    return Result(python, partner, locked, newest, outcome)


def summarise(status: int, printed: str) -> str:
    """Return the sums of a test run, and the names of the tests that failed."""
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE)
    sums = read_last(printed)
    if status == 0:
        return sums
    more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
    return f"BROKEN, {sums}: {', '.join(failed[:5])}{more}"


def read_last(printed: str) -> str:
    """Return the last line that a program printed."""
    lines = [line.strip("= ") for line in printed.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def read_bounds() -> dict[str, tuple[str, str]]:
    """Return the upper bound of each dependency, by package, with the extra that has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    found: dict[str, tuple[str, str]] = {}
    for extra, lines in groups.items():
        for line in lines:
            named = re.match(r"([A-Za-z0-9-]+)", line)
            bound = re.search(r"<(=?[0-9.]+)", line)
            if named and bound:
                found[named[1]] = (bound[1], extra)
    return found


def resolve(extras: list[str], *packages: str) -> dict[str, str]:
    """Return the versions that these extras, and these packages, resolve to."""
    words = [*UV, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--upgrade"]
    if packages:
        done = subprocess.run(
            [*words, "-"], cwd=ROOT, check=False, capture_output=True, text=True,
            input="\n".join(packages),
        )  # fmt: skip
    else:
        options = [f"--extra={extra}" for extra in extras]
        done = subprocess.run(
            [*words, "pyproject.toml", *options], cwd=ROOT, check=False, capture_output=True,
            text=True,
        )  # fmt: skip
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", done.stdout, re.MULTILINE))


def rank(version: str) -> list[int]:
    """Return the numbers of a version, by which versions are compared."""
    return [int(number) for number in re.findall(r"\d+", version)]


def list_held_back() -> list[list[str]]:
    """Return the packages for which a bound, or another extra, excludes a newer release."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = list(project["optional-dependencies"])
    together = resolve(extras)
    rows = []
    for package, (bound, extra) in read_bounds().items():
        newest = resolve([], package).get(package)
        chosen = together.get(package, "-")
        if newest is not None and rank(chosen) < rank(newest):
            rows.append([package, chosen, newest, f"<{bound} of {extra or 'dragoman'}"])
    for extra in extras:
        for package, newest in resolve([extra]).items():
            if rank(together.get(package, newest)) < rank(newest):
                rows.append([package, together[package], newest, f"newer with [{extra}] alone"])
    return rows


def show(titles: list[str], rows: list[list[str]]) -> None:
    """Print a table."""
    sizes = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        print("  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip())


def main(arguments: list[str]) -> int:
    """Try the partners; return 1 if a release breaks tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("partners", nargs="*", metavar="PARTNER")
    parser.add_argument("--python", action="append", choices=PYTHONS)
    given = parser.parse_args(arguments)
    results: list[Result] = []
    for python in given.python or PYTHONS:
        home = make_environment(python)
        if home is None:
            results.append(Result(python, "-", "-", "-", "no interpreter can be had"))
            continue
        for partner in given.partners or PARTNERS:
            results.append(try_partner(python, home, partner))
            print(f"{python} {partner}: {results[-1].outcome}", file=sys.stderr)
    titles = ["PYTHON", "PARTNER", "LOCKED", "NEWEST", "RESULT"]
    show(titles, [[r.python, r.partner, r.locked, r.newest, r.outcome] for r in results])
    held = list_held_back()
    print()
    show(["PACKAGE", "ALL EXTRAS", "NEWEST", "WHY"], held)
    return int(any(result.outcome.startswith("BROKEN") for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
