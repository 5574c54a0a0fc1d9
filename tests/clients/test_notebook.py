"""The notebook in ``examples/`` runs in a real kernel with the embedded model, and ``show``
updates the displayed reply.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pages import ROOT

from .running import INSTALLED, find_program, in_full_run, run_program

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
PROGRAM = Path(__file__).parent / "notebook.py"


async def run(where: Path, *arguments: str) -> Any:
    python = find_program("notebook", "bin", "python")
    kept = {
        name: os.environ[name]
        for name in ("XDG_CACHE_HOME", "DRAGOMAN_MODELS")
        if name in os.environ
    }
    cache = kept.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    paths = os.pathsep.join([path for path in sys.path if path])
    path = f"{INSTALLED / 'notebook' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    extra = {
        **kept,
        "XDG_CACHE_HOME": cache,
        "PYTHONPATH": paths,
        "PATH": path,
        "PYTHONWARNINGS": "ignore",
    }
    status, printed = await run_program([python, str(PROGRAM), *arguments], where, extra)
    assert status == 0, printed
    return json.loads(printed.strip().splitlines()[-1])


def read_outputs() -> list[Any]:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]


def check_outputs(outputs: list[Any]) -> None:
    """Check the outputs of the notebook, independently of the text that the model generates."""
    assert [[output["output_type"] for output in each] for each in outputs] == [
        [], ["display_data"], ["execute_result"], ["execute_result"], ["execute_result"],
        ["execute_result"], [],
    ]  # fmt: skip
    pages = ["".join(each[0]["data"]["text/html"]) for each in outputs if each]
    assert all(
        "".join(each[0]["data"]["text/markdown"]).startswith("**") for each in outputs if each
    )
    assert pages[0] == pages[1]  # the last update of ``show`` displays the response
    assert "tokens out" in pages[0]
    assert pages[0].count("</div>") == 3  # the displayed text is not empty
    assert "What is a dragoman?" in pages[2]
    assert "messages[2]" in pages[3]
    assert "4 pass, 0 fail" in pages[4]


def test_example_notebook_contains_the_outputs_of_a_run() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    counts = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    check_outputs(read_outputs())


@in_full_run
@pytest.mark.exhaustive
async def test_example_notebook_runs_with_the_embedded_model(tmp_path: Path) -> None:
    check_outputs(await run(tmp_path, "execute", str(NOTEBOOK)))


@in_full_run
@pytest.mark.exhaustive
async def test_notebook_shows_a_reply_while_it_arrives(tmp_path: Path) -> None:
    found = await run(tmp_path, "show")
    assert found["text"] == "One <b>two</b> three."
    shown = found["shown"]
    assert found["updates"] == [False] + [True] * (len(shown) - 1)
    assert len(shown) > 3
    assert any("One" in page and "three" not in page for page in shown)
    assert "Hm." in shown[1]
    assert "One &lt;b&gt;two&lt;/b&gt; three." in shown[-1]
    assert "sim:sim" in shown[-1]
    assert found["failure"]
    assert len(found["kept"]) == 2  # one display at the beginning and one when the call failed
    assert "receiving" in found["kept"][1]
