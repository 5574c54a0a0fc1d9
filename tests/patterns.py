"""Find every regular expression of the package, and inputs that could make each of them slow."""

import ast
import importlib
import re
import string
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.prices import PriceTable
from dragoman.transport.http import _kept_lines
from dragoman.validate.yaml import _loader
from dragoman.wire.beliefs import read_families
from dragoman.wire.errors import ErrorRow

from .sources import Source, read_package

_SEARCHING = {"search", "sub", "subn", "split", "findall", "finditer"}
_CALLS = _SEARCHING | {"match", "fullmatch", "compile"}


class Found(NamedTuple):
    """A regular expression, its place, and whether its match may begin anywhere in a text."""

    place: str
    pattern: re.Pattern[Any]
    searches: bool


def find_patterns() -> list[Found]:
    """Return the regular expressions of modules, of data files, and of calls of ``re``."""
    searched = _searched_names()
    found: dict[tuple[Any, int], Found] = {}
    for module in _modules():
        name = module.__name__
        for place, pattern in _walk(module.__dict__, name, set(), 0):
            leaf = re.split(r"[.\[]", place.removeprefix(f"{name}."))[0]
            matches_whole = (leaf, "whole") in searched and (leaf, "search") not in searched
            _keep(found, Found(place, pattern, not matches_whole))
    for place, text in _data():
        _keep(found, Found(place, re.compile(text), True))
    for place, text, flags, verb in _literals():
        _keep(found, Found(place, re.compile(text, flags), verb in _SEARCHING))
    return sorted(found.values(), key=lambda each: each.place)


def _keep(found: dict[tuple[Any, int], Found], one: Found) -> None:
    key = (one.pattern.pattern, one.pattern.flags)
    if key not in found or (one.searches and not found[key].searches):
        found[key] = one


def _modules() -> Iterator[Any]:
    """Import and yield the modules that compile regular expressions, or have tables of them."""
    for source in read_package():
        if re.search(r"\bre\.|\bROWS\b", source.text):
            yield _import(source.path)


def _import(path: Path) -> Any:
    names = [name for name in path.with_suffix("").parts if name != "__init__"]
    return importlib.import_module(".".join(["dragoman", *names]))


def _walk(
    value: Any, place: str, seen: set[int], depth: int
) -> Iterator[tuple[str, re.Pattern[Any]]]:
    if isinstance(value, re.Pattern):
        yield place, value
        return
    if isinstance(value, ErrorRow):
        yield place, value.compiled()
        return
    if id(value) in seen or depth > 6 or isinstance(value, str | bytes | int | float):
        return
    seen.add(id(value))
    if isinstance(value, dict):
        for name, each in list(value.items()):
            if not (depth == 0 and str(name).startswith("__")):
                yield from _walk(
                    each, f"{place}.{name}" if depth == 0 else f"{place}[{name!r}]", seen,
                    depth + 1,
                )  # fmt: skip
    elif isinstance(value, list | tuple | set | frozenset):
        for at, each in enumerate(value):
            yield from _walk(each, f"{place}[{at}]", seen, depth + 1)
    elif type(value).__module__.startswith("dragoman") or isinstance(value, type):
        if not getattr(value, "__module__", "dragoman").startswith("dragoman"):
            return
        fields = getattr(value, "__struct_fields__", None)
        for name in fields if isinstance(fields, tuple) else list(getattr(value, "__dict__", {})):
            yield from _walk(getattr(value, name, None), f"{place}.{name}", seen, depth + 1)


@cache
def _sources() -> list[Source]:
    """Return the files that define or use regular expressions."""
    return [
        source for source in read_package() if re.search(r"\bre\.|_[A-Z]+\.\w+\(", source.text)
    ]


def _searched_names() -> set[tuple[str, str]]:
    """Return the used names, with "search" if a match may begin anywhere, or else "whole"."""
    used: set[tuple[str, str]] = set()
    for source in _sources():
        for node in source.nodes:
            if (
                isinstance(node, ast.Attribute)
                and node.attr in _CALLS
                and isinstance(node.value, ast.Name)
            ):
                used.add((node.value.id, "search" if node.attr in _SEARCHING else "whole"))
    return used


def _data() -> Iterator[tuple[str, str]]:
    """Yield the regular expressions of data files; prices differ only in the model's name."""
    for row in PriceTable.default().rows:
        for pattern in row.match.regex:
            yield "prices", re.sub(r"\^.*-\\d", r"^m-\\d", pattern)
    for name, family in read_families().items():
        yield f"families, {name}", family.match
        for row in family.rows:
            yield f"families, {name}", row.models
    yield "transport, kept headers", f"(?i){_kept_lines().pattern}"
    for resolvers in _loader().yaml_implicit_resolvers.values():
        for tag, pattern in resolvers:
            yield f"config, {tag}", pattern.pattern


def _calls_of_re(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.Call, str]]:
    """Yield each call of a function of ``re`` that takes a pattern, and the function's name."""
    for node in nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr in _CALLS
        ):
            yield node, node.func.attr


def find_made() -> set[str]:
    """Return the functions that compile a regular expression from data or from user input."""
    found = set()
    for source in _sources():
        for function in source.nodes:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for call, _ in _calls_of_re(ast.walk(function)):
                    if not (call.args and _text_of(call.args[0], source.path) is not None):
                        found.add(f"{source.path}:{function.name}")
    return found


def _literals() -> Iterator[tuple[str, Any, int, str]]:
    """Return the regular expressions in calls: ``re.sub(r"...", ...)``, ``re.sub(_NAME, ...)``."""
    for source in _sources():
        for call, verb in _calls_of_re(source.nodes):
            if call.args and (text := _text_of(call.args[0], source.path)) is not None:
                given = ast.unparse(call)
                flags = sum(
                    getattr(re, flag)
                    for flag in ("DOTALL", "IGNORECASE", "MULTILINE")
                    if f"re.{flag}" in given
                )
                yield f"{source.path}:{call.lineno}", text, flags, verb


def _text_of(node: ast.expr, path: Path) -> str | bytes | None:
    """Return the regular expression of a literal or a constant, or ``None``."""
    if isinstance(node, ast.Constant):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.Name) and node.id.isupper():
        value = getattr(_import(path), node.id)
        return value if isinstance(value, str | bytes) else None
    return None


_UNITS = [
    "a", "A", "0", " ", "\n", "-", ".", "\\", '"', "/", "<", "{", "[", "é", "語", ":", "\ud800",
    "a-", "a.", "a:", "a@", "a/", "a ", "0.", "a=", "=a", "a-a-", "a\x00", "::", ".[", "}{",
    " \n", "\\\\", "\\u", '\\"', "['a", "<a ", "<script", "</", "*/", "0" * 16, "deadbeef",
    "eyJaaaaaaaaaa", "-eyJaaaaaaaaaa", "sk-", "sk-a", "bearer ", "bearer\n", "AIza", "key_a-",
    "http://", "http://a", "data:", "data:a/a;base64,", "/models/a:", "token=", "token: ",
]  # fmt: skip


def shapes(pattern: re.Pattern[Any]) -> list[tuple[str, str, str]]:
    """Return inputs as (start, repeated unit, end): common ones, and some of the pattern."""
    made = [("", unit, "\x00") for unit in _UNITS]
    text = (
        pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    )
    # The module `re` has no public parser.
    parsed = re._parser.parse(text, pattern.flags & ~re.DEBUG)  # type: ignore[attr-defined]  # noqa: SLF001
    whole = _example(parsed)
    made += [
        ("", whole, "\x00"),
        ("", whole, ""),
        ("", whole[:-1], "\x00"),
        ("", whole[1:], "\x00"),
    ]
    for before, unit in _repeats(parsed, ""):
        if unit:
            made += [
                (before, unit, "\x00"),
                ("", before + unit, "\x00"),
                (before, unit + before, "\x00"),
            ]
    return [shape for shape in dict.fromkeys(made) if shape[1]]


def _example(parsed: Any) -> str:
    """Return a short text that approximately matches a parsed pattern."""
    return "".join([_one(op, value) for op, value in parsed])


def _one(op: Any, value: Any) -> str:
    name = str(op)
    if name == "LITERAL":
        return chr(value)
    if name in ("NOT_LITERAL", "ANY"):
        return next(each for each in "a0 " if name == "ANY" or ord(each) != value)
    if name == "IN":
        return _member(value)
    if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        return _example(value[2]) * max(1, min(value[0], 40))
    if name == "SUBPATTERN":
        return _example(value[3])
    if name == "ATOMIC_GROUP":
        return _example(value)
    return _example(value[1][0]) if name == "BRANCH" else ""


def _member(items: Any) -> str:
    text = next((chr(value) for op, value in items if str(op) == "LITERAL"), "")
    if text and not any(str(op) == "NEGATE" for op, _ in items):
        return text
    source = re.compile("[" + "".join(_in_class(op, value) for op, value in items) + "]")
    return next((each for each in string.printable + "é語\u0430" if source.match(each)), "a")


def _in_class(op: Any, value: Any) -> str:
    name = str(op)
    if name == "NEGATE":
        return "^"
    if name == "RANGE":
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    if name == "CATEGORY":
        kind = str(value).removeprefix("CATEGORY_").removeprefix("UNI_")
        letter = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}[kind.removeprefix("NOT_")]
        return "\\" + (letter.upper() if kind.startswith("NOT_") else letter)
    return re.escape(chr(value))


def _repeats(parsed: Any, before: str) -> Iterator[tuple[str, str]]:
    """Yield for each unbounded repetition the text before it and the text that it repeats."""
    for op, value in parsed:
        name = str(op)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            if value[1] > 50:
                yield before, _example(value[2])
            yield from _repeats(value[2], before)
        elif name == "SUBPATTERN":
            yield from _repeats(value[3], before)
        elif name == "ATOMIC_GROUP":
            yield from _repeats(value, before)
        elif name == "BRANCH":
            for branch in value[1]:
                yield from _repeats(branch, before)
        before += _one(op, value)


SIZES = (500, 2_000, 8_000, 32_000, 128_000, 512_000, 1_024_000)
_NOTICEABLE = 0.0004  # seconds of CPU below which a measurement is noise
# four times the text may take this many times as long; a quadratic search takes sixteen times
_RATIO = 9.0


def grows(
    run: Callable[[Any], object],
    make: Callable[[int], Any],
    sizes: tuple[int, ...] = SIZES,
    enough: int = 8_000,
) -> str | None:
    """Return why ``run`` takes more than linear time on ``make(size)``, or ``None`` if it does
    not.

    Each size is four times the previous one. Sizes beyond ``enough`` are measured only if the cost
    per character rises.
    """
    last = _cost(run, make(sizes[0]))
    for size in sizes[1:]:
        now = _cost(run, make(size))
        if now > _NOTICEABLE and now > _RATIO * max(last, _NOTICEABLE / 8):
            # Take the least of five measurements: another process may have used the CPU.
            last, now = (
                min(_cost(run, make(each)) for _ in range(3)) for each in (size // 4, size)
            )
            if now > _RATIO * max(last, _NOTICEABLE / 8):
                return (
                    f"{size // 4} characters take {last * 1e3:.2f} ms of CPU, {size} take "
                    f"{now * 1e3:.2f} ms"
                )
        if size >= enough and now < 6 * max(last, _NOTICEABLE / 2):
            return None
        last = now
    return None


def _cost(run: Callable[[Any], object], text: Any) -> float:
    began = time.thread_time()
    run(text)
    return time.thread_time() - began
