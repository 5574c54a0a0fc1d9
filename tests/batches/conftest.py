"""Provide the output file of a batch, and functions that run a batch and read its results."""

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman import BatchReport, batch


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def run(source: Any, out: Path, model: Any, **settings: Any) -> BatchReport:
    return await batch(source, out, model, **{"retries": 0, **settings})
