"""Importing the package is fast: the tests check what an import loads, reads and opens."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dragoman

from .sources import PACKAGE, read_package

_WATCH = """
import json, sys
seen = {"opened": [], "network": []}
def watch(event, args):
    if event == "open" and isinstance(args[0], str):
        seen["opened"].append(args[0])
    elif event.startswith("socket.") and event != "socket.gethostname":
        seen["network"].append(event)
sys.addaudithook(watch)
before = set(sys.modules)
%s
seen["loaded"] = sorted(set(sys.modules) - before)
print(json.dumps(seen))
"""


def watch(statement: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _WATCH % statement], capture_output=True, text=True, check=True,
        env=os.environ,
    )  # fmt: skip
    return dict(json.loads(done.stdout))


def test_importing_the_package_loads_no_other_module() -> None:
    seen = watch("import dragoman")
    assert [
        name for name in seen["loaded"] if name.split(".")[0] not in ("importlib", "warnings")
    ] == ["dragoman"]
    assert seen["network"] == []


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("from dragoman import User", ["asyncio", "uvicorn", "yaml", "dragoman.provider"]),
        ("from dragoman import AuthenticationError", ["asyncio", "uvicorn", "yaml"]),
        ("from dragoman import connect",
         ["uvicorn", "yaml", "click", "platformdirs", "jsonschema_rs", "dragoman.registry"]),
        ("from dragoman import Registry; Registry",
         ["uvicorn", "click", "dragoman.local", "xllamacpp"]),
        ("from dragoman.cli import main",
         ["asyncio", "msgspec", "uvicorn", "yaml", "rich", "dragoman.provider"]),
    ],
)  # fmt: skip
def test_importing_a_name_loads_only_what_it_needs(statement: str, absent: list[str]) -> None:
    seen = watch(statement)
    assert set(absent) & set(seen["loaded"]) == set()
    data = [path for path in seen["opened"] if path.endswith((".yaml", ".json", ".msgpack"))]
    assert data == []
    assert seen["network"] == []


def test_lazy_imports_match_those_seen_by_type_checkers() -> None:
    [source] = [each for each in read_package() if each.path == Path("__init__.py")]
    read = {
        alias.name: node.module
        for node in source.nodes
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module is not None
        for alias in node.names
    }
    assert read == dragoman._PLACES  # noqa: SLF001 - the table of lazy imports
    assert set(read) == set(dragoman.__all__)


def test_no_exported_name_is_also_a_module_name() -> None:
    modules = {
        path.stem
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert modules & set(dragoman.__all__) == set()


def test_submodules_are_attributes_of_the_package() -> None:
    code = (
        "import dragoman; dragoman.sync.connect; dragoman.errors.ProviderError; "
        "print(hasattr(dragoman, 'nonsense'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "False\n"


def test_all_names_can_be_imported_together() -> None:
    scope: dict[str, Any] = {}
    exec("from dragoman import *", scope)
    assert set(dragoman.__all__) <= set(scope)
    assert set(dragoman.__all__) <= set(dir(dragoman))
