"""Read the tables of tests: each line in ``tests/tables`` is a row as JSON, or a comment."""

import json
from pathlib import Path
from typing import Any

TABLES = Path(__file__).parent / "tables"


def read_table(name: str) -> list[Any]:
    """Return the rows of a table."""
    lines = (TABLES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line[0] != "#"]
