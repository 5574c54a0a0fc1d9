"""Which files open sockets, start programs, or import modules by name; each has a reason."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .rows import read_table
from .sources import Source, read_package
from .test_layers import LAYERS

# In files of ``downward``, strings name a module of a layer below: "dragoman.registry:open_name".
NETWORK, PROGRAMS, BY_NAME, DOWNWARD = [
    {path: reason for each, path, reason in read_table("boundaries") if each == kind}
    for kind in ("network", "programs", "by_name", "downward")
]
_SOCKETS = {
    "socket", "http.client", "http.server", "socketserver", "urllib.request", "smtplib", "ftplib",
    "redis", "psycopg", "uvicorn", "mcp", "aiohttp", "httpx", "requests", "websockets",
}  # fmt: skip
_OPENERS = {
    "open_connection", "open_unix_connection", "start_server", "start_unix_server",
    "create_connection", "create_unix_connection", "create_server", "create_unix_server",
    "create_datagram_endpoint",
}  # fmt: skip
_STARTERS = re.compile(r"system|popen|fork\w*|exec\w+|spawn\w+|posix_spawn\w*")
_MODULE = re.compile(r"dragoman\.(\w+)[\w.]*(?::\w+)?")


def _imports(source: Source) -> Iterator[str]:
    """Yield the names of all imported modules of other packages, with their parents."""
    for node in source.nodes:
        found = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found = [node.module, *[f"{node.module}.{alias.name}" for alias in node.names]]
        for name in found:
            parts = name.split(".")
            yield from [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def opens_sockets(source: Source) -> bool:
    calls = {node.attr for node in source.nodes if isinstance(node, ast.Attribute)}
    return bool(_SOCKETS & {*_imports(source)} or _OPENERS & calls)


def starts_programs(source: Source) -> bool:
    nodes = [node for node in source.nodes if isinstance(node, ast.Attribute)]
    return bool(
        {"subprocess", "multiprocessing", "pty"} & {*_imports(source)}
        or [node for node in nodes if node.attr.startswith("create_subprocess_")]
        or [n for n in nodes if getattr(n.value, "id", "") == "os" and _STARTERS.fullmatch(n.attr)]
    )


def imports_by_name(source: Source) -> bool:
    called = [node.func for node in source.nodes if isinstance(node, ast.Call)]
    names = {getattr(each, "attr", None) or getattr(each, "id", None) for each in called}
    return bool(names & {"import_module", "__import__"})


def names_a_layer_below(source: Source) -> bool:
    own = source.path.with_suffix("").parts[0]
    texts = [node.value for node in source.nodes if isinstance(node, ast.Constant)]
    named = [_MODULE.fullmatch(text) for text in texts if isinstance(text, str)]
    layers = [found[1] for found in named if found and found[1] in LAYERS]
    return own in LAYERS and any(LAYERS.index(name) > LAYERS.index(own) for name in layers)


Check = Callable[[Source], bool]
LAWS: list[tuple[Check, dict[str, str]]] = [
    (opens_sockets, NETWORK),
    (starts_programs, PROGRAMS),
    (imports_by_name, BY_NAME),
    (names_a_layer_below, DOWNWARD),
]


@pytest.mark.parametrize(
    ("check", "allowed"), LAWS, ids=lambda each: getattr(each, "__name__", "")
)
def test_only_the_listed_files_cross_a_boundary(check: Check, allowed: dict[str, str]) -> None:
    found = {source.path.as_posix() for source in read_package() if check(source)}
    assert found - allowed.keys() == set(), "a new file; may it do this?"
    assert allowed.keys() - found == set(), "an exception that nothing needs"


PLANTED = [
    (opens_sockets, "import socket"),
    (opens_sockets, "from urllib import request"),
    (opens_sockets, "def f():\n    import http.client"),
    (opens_sockets, "import asyncio\nasync def f():\n    await asyncio.open_connection('x', 1)"),
    (starts_programs, "import subprocess"),
    (starts_programs, "from subprocess import run"),
    (starts_programs, "import os\nos.system('ls')"),
    (starts_programs, "import os\nos.execvp('ls', ['ls'])"),
    (starts_programs, "async def f():\n    await asyncio.create_subprocess_exec('x')"),
    (imports_by_name, "import importlib\nimportlib.import_module('x')"),
    (imports_by_name, "from importlib import import_module\nimport_module('x')"),
    (imports_by_name, "__import__('x')"),
    (names_a_layer_below, "PLACE = 'dragoman.session:Session'"),
    (names_a_layer_below, "PLACE = 'dragoman.gateway.app'"),
]
HARMLESS = [
    (opens_sockets, "from urllib.parse import urlsplit"),
    (starts_programs, "import os\nos.environ['system']"),
    (starts_programs, "def f(request):\n    return request.system"),
    (imports_by_name, "import importlib.metadata\nimportlib.metadata.version('x')"),
    (names_a_layer_below, "PLACE = 'dragoman.errors'"),
    (names_a_layer_below, "KEY = 'dragoman.attempt'"),
]


@pytest.mark.parametrize(("check", "code"), PLANTED)
def test_boundary_checks_find_planted_violations(check: Check, code: str) -> None:
    assert check(Source(Path("wire/planted.py"), code))


@pytest.mark.parametrize(("check", "code"), HARMLESS)
def test_boundary_checks_accept_harmless_code(check: Check, code: str) -> None:
    assert not check(Source(Path("wire/planted.py"), code))
