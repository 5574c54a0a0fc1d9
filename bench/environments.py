"""Build a virtual environment for each compared library, once, in a cache folder; skip libraries
that cannot be installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

# For each client: the packages to install, and the import statement to measure.
PEERS = {
    "openai": ("openai", "import openai"),
    "anthropic": ("anthropic", "import anthropic"),
    "litellm": ("litellm mcp", "import litellm"),  # litellm imports mcp, but does not declare it
    "any-llm": ("any-llm-sdk[openai]", "import any_llm"),
    "pydantic-ai": ("pydantic-ai-slim[openai]", "import pydantic_ai.models.openai"),
    "langchain": ("langchain-openai", "import langchain_openai"),
    "tensorzero": ("tensorzero", "import tensorzero"),
}
# Servers to compare the gateway with: the packages to install, and the import statement.
SERVERS = {"litellm-proxy": ("litellm[proxy]", "import litellm.proxy.proxy_server")}
_PACKAGES = {**PEERS, **SERVERS}


def folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("BENCH_CACHE") or Path(cache) / "dragoman" / "bench")


def prepare(peer: str) -> tuple[str, None] | tuple[None, str]:
    """Return the interpreter in a library's environment, or the reason why the library cannot be
    installed.
    """
    home = folder() / f"{peer}-{sys.version_info.major}.{sys.version_info.minor}"
    python = str(home / "bin" / "python")
    if (home / "installed").exists():
        return python, None
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    package, statement = _PACKAGES[peer]
    print(f"installing {package} ...", file=sys.stderr, flush=True)
    uv = Path(sys.executable).with_name("uv")  # uv resolves large packages within seconds
    installer = (
        [str(uv), "pip", "install", "--quiet", "--python", python]
        if uv.exists()
        else [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    )
    for command in (
        [sys.executable, "-m", "venv", str(home)],
        [*installer, *package.split()],
        [python, "-c", statement],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        except subprocess.TimeoutExpired:
            return None, f"{package}: not installed within 15 minutes"
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            return (
                None,
                (
                    f"{package} could not be installed: "
                    f"{lines[-1][:200] if lines else 'no reason given'}"
                ),
            )
    (home / "installed").touch()
    return python, None


def version(python: str, peer: str) -> str:
    name = _PACKAGES[peer][0].split()[0].partition("[")[0]
    code = f"import importlib.metadata; print(importlib.metadata.version({name!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()
