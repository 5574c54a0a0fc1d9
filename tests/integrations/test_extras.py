"""Test that each integration names the extra that it needs."""

import subprocess
import sys

import pytest

_BLOCKED = """
import sys
for name in sys.argv[2:]:
    sys.modules[name] = None  # as if the package were not installed
try:
    exec(sys.argv[1])
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("statement", "package", "extra"),
    [
        ("import dragoman.integrations.starlette", "starlette", "starlette"),
        ("import dragoman.integrations.langchain", "langchain_core", "langchain"),
        ("import dragoman.integrations.langchain_embeddings", "langchain_core", "langchain"),
        ("import dragoman.integrations.dspy", "dspy", "dspy"),
        ("import dragoman.integrations.openai_agents", "agents", "agents"),
        ("import dragoman.integrations.pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("import dragoman.integrations.llm", "llm", "llm"),
        ("from dragoman.gateway import create_app", "starlette", "gateway"),
    ],
)
def test_missing_package_names_the_extra(statement: str, package: str, extra: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BLOCKED, statement, package],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.endswith(f"needs the extra: pip install 'dragoman[{extra}]'\n")
