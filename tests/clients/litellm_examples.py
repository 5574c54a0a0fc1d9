"""Run the examples of a JSON file, an object of names and texts; print what became of each."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def run(name: str, text: str) -> str:
    """Return "runs", or the error of an example, which may await at the top level."""
    space: dict[str, Any] = {"__name__": "__main__", "__file__": name}
    try:
        code = compile(text, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()):
            found = eval(code, space)
            if asyncio.iscoroutine(found):
                asyncio.run(found)
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition(";")[0].partition(" (/")[0]
    return "runs"


if __name__ == "__main__":
    examples = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps({name: run(name, text) for name, text in examples.items()}))
