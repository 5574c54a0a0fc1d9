"""Size limits of classes, functions and files, and a ban on nested conditional expressions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dragoman

PACKAGE = Path(dragoman.__file__).parent
METHODS = 25
FUNCTION_LINES = 60
FILE_LINES = 700
COLUMNS = 99
PRAGMA = re.compile(r"  # (noqa|type:|pyright:).*")


def find_long_lines(source: str, tree: ast.AST) -> Iterator[str]:
    """Yield each line of code or comment that has too many columns.

    Lines within a string may be longer (tables in docstrings, SQL, style sheets), and comments for
    type checkers and linters are not counted.
    """
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and isinstance(node.end_lineno, int):
            value = getattr(node, "value", "")
            if isinstance(value, str | bytes):
                inside.update(range(node.lineno, node.end_lineno + 1))
    for number, line in enumerate(source.splitlines(), 1):
        columns = len(PRAGMA.sub("", line))
        if columns > COLUMNS and number not in inside:
            yield f"{number}: the line has {columns} columns, {COLUMNS} are allowed"


def find_violations(source: str) -> Iterator[str]:
    """Yield each violation of the limits in a file, with its line."""
    lines = source.count("\n")
    if lines > FILE_LINES:
        yield f"{FILE_LINES}: the file has {lines} lines, {FILE_LINES} are allowed"
    tree = ast.parse(source)
    yield from find_long_lines(source, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            # A name that occurs several times is one method: overloads, or a property and its
            # setter.
            methods = len(
                {
                    each.name
                    for each in node.body
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                }
            )
            if methods > METHODS:
                yield (
                    f"{node.lineno}: class {node.name} has {methods} methods, {METHODS} are "
                    "allowed"
                )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield (
                    f"{node.lineno}: {node.name}() has {lines} lines, {FUNCTION_LINES} are allowed"
                )
        elif (
            isinstance(node, ast.IfExp)
            and sum(isinstance(each, ast.IfExp) for each in ast.walk(node)) > 1
        ):
            yield f"{node.lineno}: a conditional expression contains another"


def _class(methods: int) -> str:
    return "class A:\n" + "".join(f"    def f{number}(self): ...\n" for number in range(methods))


def _function(lines: int, start: str = "def f():\n") -> str:
    return start + "    pass\n" * (lines - 1)


PLANTED = {
    "methods": (_class(METHODS), _class(METHODS + 1), "1: class A has 26 methods, 25 are allowed"),
    "function": (
        _function(FUNCTION_LINES),
        _function(FUNCTION_LINES + 1),
        "1: f() has 61 lines, 60 are allowed",
    ),
    "coroutine": (
        _function(FUNCTION_LINES, "async def f():\n"),
        _function(FUNCTION_LINES + 1, "async def f():\n"),
        "1: f() has 61 lines, 60 are allowed",
    ),
    "file": (
        "\n" * FILE_LINES,
        "\n" * (FILE_LINES + 1),
        "700: the file has 701 lines, 700 are allowed",
    ),
    "columns": (
        "# " + "x" * (COLUMNS - 2) + "\n",
        "# " + "x" * (COLUMNS - 1) + "\n",
        "1: the line has 100 columns, 99 are allowed",
    ),
    "branch": (
        "a if b else c\n",
        "a if b else c if d else e\n",
        "1: a conditional expression contains another",
    ),
    "argument": (
        "f(a if b else c)\n",
        "f(a if b else c) if d else e\n",
        "1: a conditional expression contains another",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_size_checks_find_deliberate_violations(name: str) -> None:
    allowed, violating, message = PLANTED[name]
    assert list(find_violations(allowed)) == []
    assert list(find_violations(violating)) == [message]


def test_package_keeps_to_the_size_limits() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100
    found = [
        f"{path.relative_to(PACKAGE)}:{violation}"
        for path in files
        for violation in find_violations(path.read_text(encoding="utf-8"))
    ]
    assert found == []
