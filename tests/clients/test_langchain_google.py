"""Run LangChain's standard tests with its Google client through the gateway, over every wire.

The clients of the other wires are in ``tests/integrations/test_langchain_clients.py``; this one
needs a separate environment.
"""

import re
import shutil
from pathlib import Path

import pytest

from dragoman.sim import ScriptedProvider, ScriptRule, SimServer
from tests.gateway.upstream import WIRES
from tests.integrations.test_langchain_clients import answer

from .running import find_program, gateway, in_full_run, run_program

pytestmark = [pytest.mark.exhaustive, in_full_run]

SUITE = Path(__file__).parent / "lists" / "langchain_google_suite.py"
MOST_SKIPPED = 10
"""The maximum number of skipped tests. They test features that the client does not declare, such
as audio, video, PDF files and caching."""


async def run_suite(url: str, model: str, where: Path) -> dict[str, int]:
    """Run the standard tests; return how many passed, failed and were skipped."""
    python = find_program("langchain_google", "bin", "python")
    settings = where / "suite.ini"
    # Use one event loop for all tests, because the client keeps its connections between tests.
    settings.write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_test_loop_scope = session\n"
    )
    # Run a copy of the tests outside this repository, because its conftest.py needs plugins that
    # this environment does not have.
    suite = shutil.copy(SUITE, where)
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "-rfs",
        "-p",
        "no:cacheprovider",
        "-c",
        str(settings),
        str(suite),
    ]
    status, printed = await run_program(command, where, {"URL": url, "MODEL": model})
    (where / "printed.txt").write_text(printed)
    last = printed.strip().splitlines()[-1] if printed.strip() else ""
    found = {
        word: int(number)
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last)
    }
    print(model, last)
    assert status in (0, 1), printed[-3000:]
    assert found, printed[-3000:]
    if status:
        pytest.fail(
            "\n".join(
                [
                    line
                    for line in printed.splitlines()
                    if line.startswith(("FAILED", "ERROR", "E  "))
                ]
            )
        )
    return found


@pytest.mark.parametrize("wire", WIRES)
async def test_standard_langchain_tests_pass_through_the_gateway(
    wire: str, tmp_path: Path
) -> None:
    async with gateway(ScriptedProvider(ScriptRule(answer)), tmp_path) as url:
        found = await run_suite(url, wire, tmp_path)
    assert found.get("skipped", 0) <= MOST_SKIPPED


async def test_standard_langchain_tests_pass_without_the_gateway(tmp_path: Path) -> None:
    with SimServer(ScriptedProvider(ScriptRule(answer)), models=("sim",)) as upstream:
        found = await run_suite(upstream.url, "sim", tmp_path)
    assert found.get("skipped", 0) <= MOST_SKIPPED
