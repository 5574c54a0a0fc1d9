"""Update the lock files: every version with its hashes, for every platform, without an index URL.

A release is used when it is a week old: most releases with malicious code are withdrawn within
days. For an urgent fix, ``make lock LOCK_BEFORE=2026-11-20`` allows every release before that day.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

COOL_DOWN = timedelta(days=7)
COMPILE = [
    sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version",
    "3.11",
    "--generate-hashes", "--no-header", "--no-annotate", "--no-strip-extras", "--upgrade",
]  # fmt: skip
# The index states no upload time for this package, so uv would reject each of its releases.
UNDATED = ["--exclude-newer-package", "helm-binary=false"]
PROJECT = ["pyproject.toml", "requirements/build.in"]
# What a gateway in a container can use: its stores, the logins of clouds, and traces. The packages
# of OpenTelemetry pin each other, so this lock is not constrained by that of the developers.
IMAGE_EXTRAS = ("gateway", "postgres", "redis", "otel", "aws", "azure", "google", "truststore")
# DSPy needs 40 packages, LiteLLM among them; `make clients` installs it apart from ours.
EXTRAS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
DEV_EXTRAS = [f"--extra={extra}" for extra in EXTRAS if extra != "dspy"]
LOCKS = {
    "requirements/dev.lock": [*PROJECT, *DEV_EXTRAS, "--group", "dev"],
    "requirements/chat.lock": [
        *PROJECT,
        "--extra",
        "local",
        "--extra",
        "cli",
        "-c",
        "requirements/dev.lock",
    ],
    "requirements/image.lock": [
        *PROJECT,
        "requirements/image.in",
        *[f"--extra={extra}" for extra in IMAGE_EXTRAS],
    ],
    "requirements/installer.lock": ["requirements/installer.in", "-c", "requirements/dev.lock"],
}


def choose_day(today: date, override: str = "") -> str:
    """Return the day before which a release must have been published."""
    return (
        date.fromisoformat(override).isoformat() if override else (today - COOL_DOWN).isoformat()
    )


def commands(day: str) -> list[list[str]]:
    """Return the commands that write the lock files. The first command selects the versions, and
    the others use the same versions.
    """
    return [
        [*COMPILE, "--exclude-newer", day, *UNDATED, *arguments, "-o", output]
        for output, arguments in LOCKS.items()
    ]


def main() -> None:
    try:
        day = choose_day(datetime.now(UTC).date(), os.environ.get("LOCK_BEFORE", ""))
    except ValueError:
        sys.exit("LOCK_BEFORE must be a day such as 2026-11-20")
    print(f"locking releases made before {day}")
    for command in commands(day):
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
