"""Read the files of ``deploy`` as Docker Compose and Helm do: variables filled in, mounts listed."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ..pages import ROOT, read_blocks
from ..programs import require

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "dragoman"
README = DEPLOY / "README.md"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()

# The ports on which the programs of the images listen.
PORTS = {
    "gateway1": {8100, 8101},
    "gateway2": {8100, 8101},
    "proxy": {80, 443},
    "postgres": {5432},
    "redis": {6379},
    "prometheus": {9090},
    "grafana": {3000},
}
_VARIABLE = re.compile(r"\$\{(\w+)(?:(:?[-?])([^}]*))?\}")


class UnsetVariableError(Exception):
    """Report a variable of a compose file that has no value."""


def fill_in(text: str, values: Mapping[str, str]) -> str:
    """Replace ``${NAME}`` and ``${NAME:?message}``; raise an error if a name has no value."""

    def find(match: re.Match[str]) -> str:
        name, rule, other = match.groups()
        if values.get(name):
            return values[name]
        if rule in (":-", "-"):
            return str(other)
        raise UnsetVariableError(f"{name}: {other or 'not set'}")

    return _VARIABLE.sub(find, text)


def read_env(text: str) -> dict[str, str]:
    """Return the variables of an environment file."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict([line.split("=", 1) for line in lines])


class Mount(NamedTuple):
    """A file or folder of the host, or a named volume, at a path of a container."""

    source: str
    target: str

    @property
    def is_volume(self) -> bool:
        return not self.source.startswith(".")


def read_compose(values: Mapping[str, str], folder: Path = DEPLOY) -> dict[str, Any]:
    """Return the compose file with its variables filled in."""
    found: dict[str, Any] = yaml.safe_load(fill_in((folder / "compose.yaml").read_text(), values))
    return found


def list_mounts(compose: Mapping[str, Any], service: str) -> list[Mount]:
    """Return what compose mounts into a container: volumes, files, and secrets."""
    facts = compose["services"][service]
    mounts = [Mount(*each.split(":")[:2]) for each in facts.get("volumes", [])]
    secrets = [(compose["secrets"][name]["file"], name) for name in facts.get("secrets", [])]
    return mounts + [Mount(file, f"/run/secrets/{name}") for file, name in secrets]


def read_readme(heading: str) -> list[str]:
    """Return the shell commands below a heading of the README, block by block."""
    lines = README.read_text().splitlines()
    first = lines.index(f"## {heading}") + 1
    ends = [at for at, line in enumerate(lines, 1) if at > first and line.startswith("## ")]
    last = min(ends, default=len(lines))
    blocks = read_blocks(README)
    return [each.text for each in blocks if each.language == "bash" and first < each.line < last]


def list_made_files(commands: str) -> dict[str, str]:
    """Return the files that shell commands write, with their text if it is a here-document."""
    made = dict.fromkeys(re.findall(r"> ?([\w./-]+)$", commands, re.MULTILINE), "")
    documents = re.findall(r"> (\S+) <<'?END'?\n(.*?)^END$", commands, re.MULTILINE | re.DOTALL)
    return made | dict(documents)


def example_values() -> dict[str, Any]:
    """Return the values of the README's example for the chart."""
    (found,) = [each.text for each in read_blocks(README) if each.text.startswith("# values.yaml")]
    values: dict[str, Any] = yaml.safe_load(found)
    return values


def run_helm(
    *arguments: str | Path, values: Mapping[str, Any]
) -> subprocess.CompletedProcess[str]:
    """Run Helm with these values."""
    return subprocess.run(
        [require("helm"), *arguments, "--values", "-"],
        input=yaml.safe_dump(dict(values)),
        capture_output=True,
        text=True,
        check=False,
    )


def render(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the manifests of the chart."""
    done = run_helm("template", "gw", CHART, "--namespace", "llm", values=values)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


COMMANDS = read_readme("Compose")
MADE = list_made_files("\n".join(COMMANDS))
ENV = read_env(MADE[".env"])
"""The variables of the file ``.env`` that the README makes."""
