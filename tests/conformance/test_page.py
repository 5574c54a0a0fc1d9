"""The page shows test files that pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dragoman

pytest_plugins = ("pytester",)

PAGE = Path(__file__).parents[2] / "docs/howto/conformance.md"


def test_examples_of_the_page_pass(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(dragoman.__file__).parents[1].resolve()))
    provider, codec = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    pytester.makepyfile(test_provider=provider, test_codec=codec.replace('"openai")', '"gemini")'))
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")
    outcomes = result.parseoutcomes()
    assert outcomes.get("passed", 0) > 100
    assert "failed" not in outcomes
    assert "errors" not in outcomes
