"""Limits of size and complexity, and bans on statements that do several things at once."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.structure import find_joined_asserts, find_packed

from .rows import TABLES, read_table
from .sources import read_package, read_sources

METHODS = 25
FUNCTION_LINES = 60
FILE_LINES = 600
COMPLEXITY = 20
COLUMNS = 99
FEW_ROWS = 8
FEW_BYTES = 2000
BRANCHES = (
    ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert,
    ast.match_case,
)  # fmt: skip
LEAVES = (ast.Name, ast.Constant, ast.expr_context)  # more than half of all nodes
PRAGMA = re.compile(r"  # (noqa|type:|pyright:).*")


def find_long_lines(source: str, tree: ast.AST) -> Iterator[str]:
    """Yield each line of code or comment that has too many columns.

    Lines within a string may be longer (tables in docstrings, SQL, style sheets), and comments for
    type checkers and linters are not counted.
    """
    columns = [len(PRAGMA.sub("", line)) for line in source.splitlines()]
    if max(columns, default=0) <= COLUMNS:
        return
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and isinstance(node.end_lineno, int):
            value = getattr(node, "value", "")
            if isinstance(value, str | bytes):
                inside.update(range(node.lineno, node.end_lineno + 1))
    for number, count in enumerate(columns, 1):
        if count > COLUMNS and number not in inside:
            yield f"{number}: the line has {count} columns, {COLUMNS} are allowed"


class Measure:
    """Count the branches and conditional expressions of each node, in one pass over a tree.

    The cyclomatic complexity of a function includes the functions inside it. Each operand of
    ``and`` and ``or`` after the first counts as a branch, too.
    """

    def __init__(self, tree: ast.AST) -> None:
        self.found: list[str] = []
        self._visit(tree)

    def _visit(self, node: ast.AST) -> tuple[int, int]:
        branches = int(isinstance(node, BRANCHES))
        conditionals = 0
        if isinstance(node, ast.BoolOp):
            branches = len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            branches = 1 + len(node.ifs)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, LEAVES):
                more, inner = self._visit(child)
                branches += more
                conditionals += inner
        if isinstance(node, ast.ClassDef):
            self._check_class(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._check_function(node, 1 + branches)
        elif isinstance(node, ast.IfExp):
            if conditionals:
                self.found.append(f"{node.lineno}: a conditional expression contains another")
            conditionals += 1
        return branches, conditionals

    def _check_class(self, node: ast.ClassDef) -> None:
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        # A name that occurs several times is one method: overloads, or a property and its setter.
        methods = len({each.name for each in node.body if isinstance(each, functions)})
        if methods > METHODS:
            about = f"class {node.name} has {methods} methods"
            self.found.append(f"{node.lineno}: {about}, {METHODS} are allowed")

    def _check_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, branches: int) -> None:
        name = f"{node.lineno}: {node.name}()"
        lines = (node.end_lineno or 0) - node.lineno + 1
        if lines > FUNCTION_LINES:
            self.found.append(f"{name} has {lines} lines, {FUNCTION_LINES} are allowed")
        if branches > COMPLEXITY:
            about = f"a cyclomatic complexity of {branches}, {COMPLEXITY} is allowed"
            self.found.append(f"{name} has {about}")


def find_violations(source: str, tree: ast.AST | None = None) -> Iterator[str]:
    """Yield each violation of the limits in a file, with its line."""
    lines = source.count("\n")
    if lines > FILE_LINES:
        yield f"{FILE_LINES}: the file has {lines} lines, {FILE_LINES} are allowed"
    tree = tree or ast.parse(source)
    yield from find_long_lines(source, tree)
    yield from Measure(tree).found
    for node in find_packed(tree):
        yield f"{node.lineno}: several values are assigned to as many names in one statement"


def _class(methods: int) -> str:
    return "class A:\n" + "".join(f"    def f{number}(self): ...\n" for number in range(methods))


def _function(lines: int, start: str = "def f():\n") -> str:
    return start + "    pass\n" * (lines - 1)


def _branches(branches: int, statement: str) -> str:
    """Return a function with this many branches, the last of which is a statement."""
    return "async def f():\n" + "    if a: pass\n" * (branches - 2) + f"    {statement}\n"


STATEMENTS = [
    "if a: pass", "b = c if a else d", "for a in b: pass", "async for a in b: pass",
    "while a: pass", "try: a\n    except b: pass", "assert a", "match a:\n        case b: pass",
    "a and b", "a or b", "[a for a in b]", "{a: a for a in b}",
]  # fmt: skip


PLANTED = {
    "methods": (_class(METHODS), _class(METHODS + 1), "1: class A has 26 methods, 25 are allowed"),
    "function": (_function(FUNCTION_LINES), _function(FUNCTION_LINES + 1),
                 "1: f() has 61 lines, 60 are allowed"),
    "coroutine": (_function(FUNCTION_LINES, "async def f():\n"),
                  _function(FUNCTION_LINES + 1, "async def f():\n"),
                  "1: f() has 61 lines, 60 are allowed"),
    "file": ("\n" * FILE_LINES, "\n" * (FILE_LINES + 1),
             "600: the file has 601 lines, 600 are allowed"),
    "columns": ("# " + "x" * (COLUMNS - 2) + "\n", "# " + "x" * (COLUMNS - 1) + "\n",
                "1: the line has 100 columns, 99 are allowed"),
    "branch": ("a if b else c\n", "a if b else c if d else e\n",
               "1: a conditional expression contains another"),
    "argument": ("f(a if b else c)\n", "f(a if b else c) if d else e\n",
                 "1: a conditional expression contains another"),
    "packed": ("a, b = b, a\nc, d = e\nf, g = g, 0\n", "a, b = a + c, d\n",
               "1: several values are assigned to as many names in one statement"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_size_checks_find_deliberate_violations(name: str) -> None:
    allowed, violating, message = PLANTED[name]
    assert list(find_violations(allowed)) == []
    assert list(find_violations(violating)) == [message]


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("a, b = 1, 2", 1), ("a.x, b.y = 1, 2", 1), ("a[0], b = (c, d)", 1), ("[a, b] = c, d", 1),
        ("a, b = [c, d]", 1), ("a, (b, c) = d, e", 1), ("a, *b = c, d, e", 1),
        ("a = b, c = d, e", 1), ("for x in y:\n    a, b = x, 0", 1),
        ("a, b = b, a", 0), ("a, b = b, b + a", 0), ("a, b = c", 0), ("a, b = f()", 0),
        ("held, a.held = a.held, None", 0), ("a = b = c", 0), ("a = b, c", 0),
        ("[a] = [b]", 0),
    ],
)  # fmt: skip
def test_packed_assignments_are_found(statement: str, found: int) -> None:
    assert len(list(find_packed(ast.parse(statement)))) == found


@pytest.mark.parametrize("statement", STATEMENTS)
def test_each_kind_of_branch_counts(statement: str) -> None:
    assert list(find_violations(_branches(COMPLEXITY, statement))) == []
    assert list(find_violations(_branches(COMPLEXITY + 1, statement))) == [
        "1: f() has a cyclomatic complexity of 21, 20 is allowed"
    ]


@pytest.mark.parametrize("statement", ["a and b and c", "a or b or c", "[a for a in b if c]"])
def test_each_branch_of_an_expression_counts(statement: str) -> None:
    assert list(find_violations(_branches(COMPLEXITY - 1, statement))) == []
    assert len(list(find_violations(_branches(COMPLEXITY, statement)))) == 1


def test_package_keeps_to_the_size_limits() -> None:
    sources = read_package()
    assert len(sources) > 100
    found = [
        f"{source.path}:{violation}"
        for source in sources
        for violation in find_violations(source.text, source.tree)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("assert (a, b) == (1, 2)", 1), ("assert (a, b) == (1, 2), c", 1),
        ("if a:\n    assert (a, b) == (c, d)", 1), ("assert (a, b) == c", 0),
        ("assert (a, b) in ((1, 2), (3, 4))", 0), ("assert (a,) == (1,)", 0),
        ("assert a == (1, 2)", 0), ("assert [a, b] == [1, 2]", 0),
    ],
)  # fmt: skip
def test_asserts_of_several_values_are_found(statement: str, found: int) -> None:
    assert len(list(find_joined_asserts(ast.parse(statement)))) == found


def test_statements_of_the_tests_do_one_thing() -> None:
    sources = read_sources(Path(__file__).parent)
    assert len(sources) > 300
    found = []
    for source in sources:
        for name, search in (("asserts", find_joined_asserts), ("assigns", find_packed)):
            for node in search(source.tree):
                found.append(f"{source.path}:{node.lineno} {name} several values")
    assert found == []


def test_short_tables_are_beside_their_tests() -> None:
    short = [
        table.name
        for table in TABLES.glob("*.jsonl")
        if len(read_table(table.stem)) <= FEW_ROWS and table.stat().st_size <= FEW_BYTES
    ]
    assert short == []
