"""Renew the locked dependencies: every version with its hashes, for every platform, and no index named."""

import subprocess
import sys

COMPILE = [
    sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11",
    "--generate-hashes", "--no-header", "--no-annotate", "--upgrade",
]  # fmt: skip


def lock(output: str, *arguments: str) -> None:
    subprocess.run([*COMPILE, "pyproject.toml", "requirements/build.in", *arguments, "-o", output], check=True)


lock("requirements/dev.lock", "--all-extras", "--group", "dev")
lock("requirements/chat.lock", "--extra", "local", "--extra", "cli", "-c", "requirements/dev.lock")
