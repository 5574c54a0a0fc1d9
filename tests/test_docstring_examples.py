"""Check that the Python examples in docstrings of the package are valid Python."""

import ast
import re
import textwrap
from collections.abc import Iterator

from .sources import read_package

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
PYTHON = re.compile(r"^(import|from|async|await|def|with|for|@)\b|^[\w, ]+ = |^    return ", re.M)


def find_examples(source: str) -> Iterator[str]:
    """Yield the indented blocks after ``::`` in the docstrings of a file that look like Python."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            for block in re.findall(r"::\n\n((?:    .*\n|\n)+)", text + "\n"):
                if PYTHON.search(code := textwrap.dedent(block)):
                    yield code


def is_valid(code: str) -> bool:
    try:
        compile(code, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        return False
    return True


def test_docstring_example_with_two_statements_on_a_line_is_invalid() -> None:
    (example,) = find_examples('"""Use it::\n\n    a = f() b = g()\n\nEnd.\n"""\n')
    assert not is_valid(example)


def test_examples_in_docstrings_are_valid_python() -> None:
    examples = [
        (source.path, example)
        for source in read_package()
        if "::\n" in source.text
        for example in find_examples(source.text)
    ]
    assert len(examples) > 10
    assert [found for found in examples if not is_valid(found[1])] == []
