"""Programs of DSPy run with ``DragomanLM`` over every wire, in an environment of their own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.gateway.upstream import WIRES

from .running import find_program, in_full_run, run_program

pytestmark = [pytest.mark.exhaustive, in_full_run]
PROGRAM = Path(__file__).parent / "dspy_programs.py"


async def test_programs_of_dspy_run_over_every_wire(tmp_path: Path) -> None:
    python = find_program("dspy", "bin", "python")
    extra = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONWARNINGS": "ignore"}
    status, printed = await run_program([python, str(PROGRAM), *WIRES], tmp_path, extra)
    assert status == 0, printed
    assert "Traceback" not in printed  # DSPy copies programs, and with them their models
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    expected = {
        **dict.fromkeys(("predict", "async", "thought", "stream", "react"), "The Aare."),
        "usage": ["completion_tokens", "completion_tokens_details"],
        "typed": "positive",
        "schema": 12,
        "copied": "The Aare.",
        "call": "depth",
        "error": "LMInvalidRequestError: [sim] this one fails",
    }
    assert found == [{wire: expected} for wire in WIRES]
