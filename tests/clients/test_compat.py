"""``dragoman.compat.litellm`` and ``dragoman import`` against the real LiteLLM."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from dragoman.compat import litellm
from dragoman.compat.litellm.proxy import Conversion
from dragoman.registry import read_file
from dragoman.sim import ScriptedProvider, SimServer
from dragoman.validate.yaml import ConfigError
from tests.gateway.upstream import WIRES
from tests.pages import ROOT, read_blocks
from tests.rows import read_table

from .running import find_program, gateway, in_full_run, run_program
from .scripted import script
from .test_libraries import LISTS

pytestmark = [pytest.mark.exhaustive, in_full_run]

QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
FACTS = """
import json, litellm
from litellm import exceptions
kinds = {n: k for n, k in vars(exceptions).items() if isinstance(k, type) and issubclass(k, Exception)}
asked = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}], "mock_response": "Hello there"}
print(json.dumps({
    "parents": {n: [m for m, other in kinds.items() if m != n and issubclass(k, other)] for n, k in kinds.items()},
    "reply": litellm.completion(**asked).model_dump(),
    "chunks": [chunk.model_dump() for chunk in litellm.completion(**asked, stream=True)],
    "folder": litellm.__path__[0],
}))
"""
# Fields of LiteLLM's replies that are left out here.
ABSENT = {"provider_specific_fields", "citations"}


async def ask_litellm(where: Path) -> dict[str, Any]:
    python = find_program("litellm", "bin", "python")
    status, printed = await run_program([python, "-c", FACTS], where, QUIET)
    assert status == 0, printed[-3000:]
    found: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return found


def find_fields(value: Any, path: str = "") -> set[str]:
    if isinstance(value, list):
        return {name for each in value for name in find_fields(each, path)}
    if not isinstance(value, dict):
        return set()
    inner = [find_fields(each, f"{path}.{name}") for name, each in value.items()]
    return {f"{path}.{name}" for name in value}.union(*inner)


async def test_replies_and_exceptions_have_the_fields_of_litellm(tmp_path: Path) -> None:
    facts = await ask_litellm(tmp_path)
    asked: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}
    reply = await litellm.acompletion(**asked, mock_response="Hello there")
    stream = await litellm.acompletion(**asked, mock_response="Hello there", stream=True)
    chunks = [chunk async for chunk in stream]
    for theirs, ours in ((facts["reply"], reply), (facts["chunks"], chunks)):
        missing = find_fields(theirs) - find_fields(ours)
        # the parts of token counts are left out if the server does not report them
        assert {each for each in missing if "_details." not in each and "usage." not in each} <= {
            each for each in missing if each.rpartition(".")[2] in ABSENT
        }
    for name, parents in facts["parents"].items():
        kind = getattr(litellm.exceptions, name, None)
        known = [each for each in parents if hasattr(litellm.exceptions, each)]
        if kind is not None and name != "OpenAIError":
            bases = [each.__name__ for each in kind.__mro__[1:] if each is not Exception]
            assert [
                each for each in bases if each in facts["parents"] and each != "OpenAIError"
            ] == known


async def test_example_configurations_of_litellm_are_converted(tmp_path: Path) -> None:
    folder = Path((await ask_litellm(tmp_path))["folder"]) / "proxy"
    files = sorted([*folder.glob("*.yaml"), *folder.glob("example_config_yaml/*.yaml")])
    served = 0
    refused = []
    for file in files:
        try:
            found = Conversion(file)
        except ConfigError as error:  # a file with the same key twice is not valid YAML
            refused.append(f"{file.name}: {error.problem}")
            continue
        path = tmp_path / "models.yaml"
        path.write_text(json.dumps({name: each for name, each in found.models.items() if each}))
        read = read_file(path)
        assert read.problems == (), file
        served += len(read.groups) + sum([len(each.aliases) for each in read.models])
    assert len(files) > 15
    assert served > 30
    assert refused == []


async def test_recipe_prints_the_same_before_and_after_the_migration(tmp_path: Path) -> None:
    page = ROOT / "docs/howto/moving.md"
    before, after = [each.text for each in read_blocks(page) if "completion_cost(" in each.text]
    assert before != after
    printed = []
    with SimServer(ScriptedProvider("The Rhine.")) as server:
        settings = {**QUIET, "OPENAI_API_BASE": f"{server.url}/v1", "OPENAI_API_KEY": "k"}
        for python, text in (
            (find_program("litellm", "bin", "python"), before),
            (sys.executable, after),
        ):
            status, shown = await run_program([python, "-c", text], tmp_path, settings)
            assert status == 0, shown[-3000:]
            answer, _, price = shown.strip().splitlines()[-1].rpartition(" ")
            printed.append((answer, round(float(price), 9)))
    assert printed[0] == printed[1]
    assert printed[1][0] == "The Rhine."


EXAMPLES = Path(__file__).with_name("litellm_examples.py")
FENCED = re.compile(r"^[ \t]*```(?:python|py)[ \t]*\n((?:(?![ \t]*```).*\n)*)", re.M)
IMPORTED = re.compile(r"^(\s*)(import litellm$|from litellm\b)", re.M)
CHANGED = {"import litellm": "from dragoman.compat import litellm"}


def list_examples(package: Path) -> dict[str, str]:
    """Return the Python examples in LiteLLM's README, in its other pages and in its docstrings."""
    [readme] = package.parent.glob("litellm-*.dist-info/METADATA")
    examples: dict[str, str] = {}
    for file in (readme, *sorted(package.rglob("*.md")), *sorted(package.rglob("*.py"))):
        text = file.read_text()
        found = [textwrap.dedent(each) for each in FENCED.findall(text)] if "```p" in text else []
        name = "README" if file is readme else file.relative_to(package).as_posix()
        found = [each for each in found if IMPORTED.search(each)]
        examples |= {f"{name} {number}": each for number, each in enumerate(found, 1)}
    return examples


async def test_documented_examples_run_or_differ_for_a_listed_reason(tmp_path: Path) -> None:
    """The examples are LiteLLM's own, as installed, except for the imports."""
    python = Path(find_program("litellm", "bin", "python"))
    [package] = python.parents[1].glob("lib/python*/site-packages/litellm")
    change = lambda found: found[1] + CHANGED.get(found[2], "from dragoman.compat.litellm")
    examples = {name: IMPORTED.sub(change, text) for name, text in list_examples(package).items()}
    (tmp_path / "examples.json").write_text(json.dumps(examples))
    with SimServer(ScriptedProvider("Hi there.")) as server:
        place = {f"{name}_API_BASE": f"{server.url}/v1" for name in ("OPENAI", "PUBLICAI")}
        place |= {"ANTHROPIC_API_BASE": server.url, "PUBLICAI_API_KEY": "k"}
        command = [sys.executable, "-W", "ignore", str(EXAMPLES), "examples.json"]
        status, printed = await run_program(command, tmp_path, place)
    assert status == 0, printed[-3000:]
    found = json.loads(printed.strip().splitlines()[-1])
    assert found == dict(read_table("litellm_examples"))


@pytest.mark.parametrize("side", ["openai", "anthropic", "gemini", "ollama"])
async def test_litellm_features_work_after_changing_one_import(side: str, tmp_path: Path) -> None:
    text = (LISTS / "litellm_list.py").read_text()
    changed = text.replace("\nimport litellm\n", "\nfrom dragoman.compat import litellm\n")
    assert changed != text
    (tmp_path / "compat_list.py").write_text(changed)
    (tmp_path / "listing.py").write_text((LISTS / "listing.py").read_text())
    failed = {}
    async with gateway(script(), tmp_path) as url:
        for wire in WIRES:
            command = [sys.executable, str(tmp_path / "compat_list.py"), url, side, wire]
            status, printed = await run_program(command, tmp_path, {})
            assert status == 0, printed[-3000:]
            found = json.loads(printed.strip().splitlines()[-1])
            failed |= {
                f"{wire} {n}": what for n, what in found.items() if what not in ("yes", "–")
            }
    assert failed == {}
