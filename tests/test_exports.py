"""``__all__`` of each module lists exactly its public names."""

import ast
import importlib
import inspect
import re
import types
from pathlib import Path

import pytest
from msgspec import Struct

import dragoman
from dragoman import errors
from tests.rows import read_table

from .sources import read_package


class Names:
    """The names that a module defines, read without importing it."""

    def __init__(self, nodes: list[ast.AST]) -> None:
        self.listed: list[str] | None = None
        self.bound: set[str] = set()
        self.public: set[str] = set()
        for node in nodes:
            if isinstance(node, ast.Module | ast.If | ast.Try | ast.ExceptHandler):
                for statement in ast.iter_child_nodes(node):
                    self._read(statement)

    def _read(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._bind(node.name, public=not any(map(is_command, node.decorator_list)))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                self._bind((alias.asname or alias.name).split(".")[0], public=False)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    self._assign(target.id, node.value)

    def _assign(self, name: str, value: ast.expr | None) -> None:
        if name == "__all__" and value is not None:
            self.listed = list(ast.literal_eval(value))
        # A module need not export its constants, loggers and type aliases.
        self._bind(name, public=False)

    def _bind(self, name: str, *, public: bool) -> None:
        self.bound.add(name)
        if public and not name.startswith("_"):
            self.public.add(name)


def is_command(decorator: ast.expr) -> bool:
    """Return whether a decorator defines a CLI command, which is used through its group."""
    return (
        isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Attribute)
        and decorator.func.attr == "command"
    )


def complaints(nodes: list[ast.AST]) -> list[str]:
    names = Names(nodes)
    if names.listed is None:
        return ["no __all__"]
    listed = names.listed
    found = [f"{name} is private" for name in listed if name.startswith("_")]
    found += [f"{name} does not exist" for name in listed if name not in names.bound]
    found += [f"{name} is listed twice" for name in sorted(set(listed)) if listed.count(name) > 1]
    found += [f"{name} is public and not listed" for name in sorted(names.public - set(listed))]
    if listed != sorted(listed, key=order):
        found.append("not sorted")
    return found


def order(name: str) -> tuple[int, str]:
    """Return the linter's sort key: constants first, then classes, then other names."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2), name


def test_dunder_all_lists_the_public_names_of_each_module() -> None:
    # The public API is what a top-level module or the ``__init__.py`` of a package lists. Other
    # files inside a package are internal.
    for source in read_package():
        if source.path.name == "__init__.py" or len(source.path.parts) == 1:
            assert complaints(source.nodes) == [], source.path


WRONG = read_table("export_check_finds_deliberate_mistakes")


@pytest.mark.parametrize(("source", "complaint"), WRONG)
def test_export_check_finds_deliberate_mistakes(source: str, complaint: str) -> None:
    assert complaints(list(ast.walk(ast.parse(source)))) == [complaint]


RIGHT = [
    "__all__ = ['A', 'Bc', 'd']\nfrom x import Bc, d, e\nA = 1",
    "__all__: list[str] = []\nT = TypeVar('T')\nlog = x()\nMAX = 1\n_y = 2\ndef _f(): ...",
    "__all__: list[str] = []\n@group.command()\ndef pull(): ...",
    (
        "__all__ = ['X']\ntry:\n    import y\nexcept ImportError:\n    pass\nclass X:\n    def "
        "f(self): ...\n    Y = 1"
    ),
]


@pytest.mark.parametrize("source", RIGHT)
def test_export_check_accepts_correct_modules(source: str) -> None:
    assert complaints(list(ast.walk(ast.parse(source)))) == []


def test_package_lists_all_its_public_names() -> None:
    visible = {
        name
        for name in dir(dragoman)
        if not name.startswith("_")
        and (not isinstance(value := getattr(dragoman, name), types.ModuleType) or callable(value))
    }
    # A function may have the name of a module: ``dragoman.plan`` is a function.
    assert visible == set(dragoman.__all__)
    assert all(getattr(dragoman, name) is not None for name in dragoman.__all__)


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name.endswith("Error")])
def test_every_error_can_be_imported_from_the_package(name: str) -> None:
    assert getattr(dragoman, name) is getattr(errors, name)


def find_public_structs() -> dict[str, type[Struct]]:
    """Return the structs of the modules that the reference of the Python API lists."""
    reference = Path(__file__).parents[1] / "docs" / "reference" / "python.md"
    modules = set(re.findall(r"`(dragoman(?:\.[a-z_]+)*)`", reference.read_text("utf-8")))
    found: dict[str, type[Struct]] = {}
    for name in modules:
        module = importlib.import_module(name)
        for value in [getattr(module, each) for each in module.__all__]:
            if inspect.isclass(value) and issubclass(value, Struct):
                found[f"{value.__module__}.{value.__name__}"] = value
    return found


STRUCTS = find_public_structs()


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_large_structs_take_all_but_two_fields_by_keyword(name: str) -> None:
    # A new field can then follow the fields that it belongs to, and no call changes.
    parameters = inspect.signature(STRUCTS[name]).parameters.values()
    positional = [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]
    # A tool is its name, its description and its parameters; the other fields are options.
    most = 3 if STRUCTS[name] is dragoman.Tool else 2
    assert len(positional) <= most or len(parameters) < 5, positional
