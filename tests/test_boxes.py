"""Each test belongs to a box, and needs no other box than those that its box may use."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import dragoman

from . import boxes

TESTS = Path(__file__).parent
ROOT = TESTS.parent
FOLDERS = ("tests", "bench", "scripts")
_PLACES: dict[str, str] = dragoman._PLACES  # noqa: SLF001
_SERVED = ("SERVER_CODECS", "OTHER_SERVER_CODECS", "RETRIEVAL_SERVERS")


@cache
def list_modules() -> dict[tuple[str, ...], Path]:
    """Return the files of tests, and of what they may import, by the names of their modules."""
    found = {}
    for path in [path for name in FOLDERS for path in (ROOT / name).rglob("*.py")]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[parts[:-1] if parts[-1] == "__init__" else parts] = path
    return found


def _imported(path: Path, tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yield the dotted names that a file imports, also those of ``import dragoman as d``."""
    package = path.relative_to(ROOT).parent.parts
    aliases = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield tuple(alias.name.split("."))
                if alias.name == "dragoman":
                    aliases.add(alias.asname or alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                base = (*package[: len(package) - node.level + 1], *base)
            for alias in node.names:
                yield (*base, alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in aliases:
            yield ("dragoman", node.attr)


def _find_part(name: tuple[str, ...]) -> str | None:
    """Return the part of the package that an imported name is in."""
    if name[-1] in _SERVED:
        return "servers"
    first = _PLACES.get(name[1], name[1]).split(".")
    whole = (*first, *name[2:])
    if any(boxes.find_part("/".join(whole[:end]) + ".py") == "servers" for end in (3, 4)):
        return "servers"
    part = boxes.find_part(whole[0])
    return part if any(part in box.holds.split() for box in boxes.BOXES.values()) else None


@cache
def read_imports(path: Path) -> tuple[frozenset[str], frozenset[Path]]:
    """Return the parts of the package that a file imports, and the files of tests."""
    parts = set()
    files = set()
    modules = list_modules()
    for name in _imported(path, ast.parse(path.read_text())):
        if name[0] == "dragoman" and len(name) > 1:
            parts.add(_find_part(name))
        elif name[0] in FOLDERS:
            files |= {modules[each] for each in (name, name[:-1]) if each in modules}
    return frozenset(parts - {None}), frozenset(files - {path})


def find_needs(path: Path) -> dict[str, Path]:
    """Return the parts of the package that a test needs, with the file that imports each.

    The files that it imports count too, and the conftest.py of its folder.
    """
    needs: dict[str, Path] = {}
    seen = set()
    waiting = [path]
    if (path.parent / "conftest.py").exists():
        waiting.append(path.parent / "conftest.py")
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        parts, files = read_imports(each)
        for part in parts:
            needs.setdefault(part, each)
        waiting += files
    return needs


def list_tests() -> list[str]:
    return sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py"))


@pytest.mark.parametrize("box", boxes.BOXES)
def test_tests_of_a_box_need_no_other_box(box: str) -> None:
    kept = boxes.list_parts(box)
    for path in [TESTS / name for name in list_tests() if boxes.find_box_of_test(name) == box]:
        for part, file in find_needs(path).items():
            about = f"{path} is a test of {box}, and {file} imports {part}"
            assert part in kept, f"{about}; name it in another row of TESTS in tests/boxes.py"


def test_every_row_of_the_table_of_tests_is_needed() -> None:
    files = list_tests()
    named = [name for names in boxes.TESTS.values() for name in names.split()]
    assert len(named) == len(set(named))
    for name in named:
        assert name in files or any(path.startswith(f"{name}/") for path in files), name
    for name in [name for name in named if "/" in name]:
        folder = name.partition("/")[0]
        rows = [box for box, names in boxes.TESTS.items() if {name, folder} & {*names.split()}]
        assert len(rows) == 2, f"{name} is in the row of its folder anyway"


@pytest.mark.parametrize("path", sorted(TESTS.rglob("conftest.py")))
def test_fixtures_of_a_box_are_not_imported_by_another_box(path: Path) -> None:
    if path.parent == TESTS:
        assert find_needs(path).keys() <= boxes.list_parts("core")
        return
    for file in [file for file in TESTS.rglob("*.py") if path in read_imports(file)[1]]:
        box = boxes.find_box_of_test(file.relative_to(TESTS).as_posix())
        assert file.parent == path.parent or box == "whole", f"{file} imports {path}"


def test_needs_of_a_test_are_found() -> None:
    needs = find_needs(TESTS / "session/test_session.py")
    assert needs["session"].parent == TESTS / "session"
    assert needs["servers"] == TESTS / "session/playing.py"
    assert find_needs(TESTS / "wire/test_ollama_generate.py")["servers"]
    assert "conformance" in find_needs(TESTS / "wire/test_request_bytes.py")


@pytest.mark.parametrize("box", boxes.BOXES)
def test_copy_of_a_box_lacks_the_files_of_the_others(box: str) -> None:
    files = ["wire/openai/server.py", "gateway/app.py", "cli/serve.py", "cli/ask.py", "py.typed"]
    files += ["session/turn.py", "wire/server.py", "conformance/cases/openai/x/reply"]
    absent = boxes.list_absent(box, files)
    expected = {
        "core": [*files[:4], files[5], files[7]],
        "agent": [files[1], files[2], files[3]],
        "gateway": [files[2], files[3]],
        "kit": [*files[1:4], files[5]],
        "extras": [files[2], files[3]],
        "service": [files[2], files[3]],
        "cli": [files[1], files[2], files[7]],
    }
    assert absent == expected[box]
