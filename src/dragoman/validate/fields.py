"""Read a mapping by field; wrong types and unknown fields are errors that name the path."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, ClassVar, NoReturn, ParamSpec, Self, TypeVar

import msgspec

from ..errors import InvalidRequestError, cut, quote

C = TypeVar("C", bound=str)
P = ParamSpec("P")
T = TypeVar("T")
KINDS: dict[type, str] = {  # names of types for error messages
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def kind_of(value: object) -> str:
    """Return the kind of a value, such as ``a string``."""
    return KINDS.get(type(value), type(value).__name__)


# msgspec's message about a field of another type
_WRONG_TYPE = re.compile(r"Expected `(\w+)(?: \| null)?`, got `\w+` - at `\$\.(\w+)`")
_EXPECTED: dict[str, type] = {"float": float, "int": int, "array": list, "object": dict}


def describe_wrong_type(
    where: str, fields: Mapping[str, Any], error: msgspec.ValidationError
) -> str:
    """Return what is wrong with a field of a mapping, in terms of JSON rather than of Python."""
    found = _WRONG_TYPE.fullmatch(str(error))
    if found is None:
        return f"{where}: {error}"
    kind, name = found.groups()
    return f"{where}.{name} must be {KINDS[_EXPECTED[kind]]}, not {quote(fields.get(name))}"


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a question with the name that was probably meant, if one is close."""
    import difflib  # lazy import: it takes a millisecond, and only this error needs it

    near = difflib.get_close_matches(cut(name), [*known], 1)
    return f"did you mean {near[0]}?" if near else ""


def accept_other_names(
    accepted: Mapping[str, str], hints: Mapping[str, str] | None = None
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function whose settings have other names in other libraries.

    ``accepted`` maps such a name to the setting that it means: it is used, with a warning.
    ``hints`` maps a name that means something else to what to write. Any other unknown name is an
    error that suggests a similar one.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        code = function.__code__
        known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        owner = function.__qualname__.removesuffix(".__init__")

        @wraps(function)
        def call(*arguments: P.args, **settings: P.kwargs) -> T:
            if not settings.keys() <= set(known):
                rename_settings(owner, settings, known[1:], accepted, hints or {})
            return function(*arguments, **settings)

        return call

    return decorate


def rename_settings(
    owner: str,
    settings: dict[str, Any],
    known: Collection[str],
    accepted: Mapping[str, str],
    hints: Mapping[str, str],
) -> None:
    """Give the settings of ``owner`` their own names; see ``accept_other_names``."""
    for name in settings.keys() - {*known}:
        other = accepted.get(name)
        if other is None or other in settings:
            hint = hints.get(name) or (f"write {other}=" if other else suggest(name, known))
            raise TypeError(f"{owner}() has no setting {name!r}; {hint or f'see help({owner})'}")
        _warn(owner, name, other)
        settings[other] = settings.pop(name)


def take_renamed(owner: str, settings: Any, name: str, other: str, value: T) -> T:
    """Return the setting ``name`` of a function; remove it from ``settings`` if it is ``other``.

    ``value`` is the argument ``name``, or ``None``. For a function that takes further settings by
    their names, so that ``accept_other_names`` cannot know them all.
    """
    if other not in settings:
        return value
    if value is not None:
        raise TypeError(f"{owner}() has no setting {other!r}; write {name}=")
    _warn(owner, other, name)
    renamed: T = settings.pop(other)
    return renamed


def _warn(owner: str, name: str, other: str) -> None:
    warnings.warn(f"{owner}: write {other}= in place of {name}=", UserWarning, stacklevel=4)


class Fields:
    """A reader for the fields of a mapping; its errors contain the path of a field.

    Reading a field marks it as known; ``done`` rejects the fields that were not read.

    A field that is ``None`` counts as absent, because SDKs dump every field they have; for the
    same reason ``done`` ignores an empty list. A subclass can change which error is created
    (``fail``) and whether it is raised (``complain``).
    """

    UNKNOWN: ClassVar[str] = "is not a known field"
    EMPTY: ClassVar[tuple[Any, ...]] = (None, [])

    def __init__(self, data: Any, path: str = "") -> None:
        self.where = path
        self.data: Mapping[str, Any] = data
        self._known: dict[str, None] = {}
        # most mappings are dicts, for which the check against the abstract class is slow
        if type(data) is not dict and not isinstance(data, Mapping):
            raise self.fail(f"must be an object, not {kind_of(data)}")

    def __contains__(self, name: str) -> bool:
        return self.data.get(name) is not None

    # --- raising errors with the path of a field

    def at(self, name: str) -> str:
        """Return the path of a field."""
        return f"{self.where}.{cut(name)}" if self.where else cut(name)

    def fail(self, problem: str, name: str | None = None) -> Exception:
        """Return the error for a problem with a field, or with the mapping itself."""
        place = self.where or "the body" if name is None else self.at(name)
        return InvalidRequestError(f"{place} {problem}")

    def complain(self, problem: str, name: str | None = None) -> None:
        """Raise the error for a problem.

        A subclass may collect the errors instead; a field with an error then has its default
        value.
        """
        raise self.fail(problem, name)

    def mend(self, name: str, value: Any, error: Exception) -> Any:
        """Return what to read in place of an invalid value, or raise the error.

        A subclass that reads leniently may return a substitute.
        """
        raise error

    def refuse(self, name: str, problem: str) -> NoReturn:
        """Raise the error for a problem with a field."""
        raise self.fail(problem, name)

    # --- reading one field of a mapping

    def take(self, name: str) -> Any:
        """Return the value of a field, of any type."""
        self._known[name] = None
        return self.data.get(name)

    def get(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """Return the value of a field, or the default if the field is absent.

        A value that is not of type ``kind`` is an error.
        """
        self._known[name] = None
        value = self.data.get(name)
        if value is None:
            return default
        if type(value) is kind:
            return value
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            expected = [KINDS[each] for each in kinds if each is not int or float not in kinds]
            self.complain(f"must be {' or '.join(expected)}, not {kind_of(value)}", name)
            return default
        return value

    def text(self, name: str) -> str | None:
        """Return the value of a string field."""
        value: str | None = self.get(name, str)
        return value

    def number(self, name: str) -> float | None:
        """Return the value of a number field."""
        value: float | None = self.get(name, (int, float))
        return value

    def whole(self, name: str) -> int | None:
        """Return the value of an integer field."""
        value: int | None = self.get(name, int)
        return value

    def flag(self, name: str) -> bool | None:
        """Return the value of a boolean field."""
        value: bool | None = self.get(name, bool)
        return value

    def choice(self, name: str, choices: Collection[C]) -> C | None:
        """Return the value of a field that must be one of ``choices``."""
        value = self.text(name)
        if value is None:
            return None
        chosen = next((each for each in choices if each == value), None)
        if chosen is None:
            self.complain(f"must be one of {', '.join(choices)}, not {quote(value)}", name)
        return chosen

    def items(self, name: str, *, required: bool = False) -> Sequence[Any] | None:
        """Return the value of a list field."""
        value = self.take(name)
        if value is None:
            if required:
                self.refuse(name, "is required")
            return None
        is_list = type(value) is list or isinstance(value, Sequence)
        if not is_list or isinstance(value, str):
            self.complain(f"must be a list, not {kind_of(value)}", name)
            return None
        items: Sequence[Any] = value
        return items

    def texts(self, name: str) -> tuple[str, ...] | None:
        """Return the value of a field that is a list of strings."""
        values = self.items(name)
        if values is not None and not all(isinstance(value, str) for value in values):
            self.complain("must be a list of strings", name)
            return None
        return None if values is None else tuple(values)

    def inner(self, name: str) -> Self | None:
        """Return a reader for a nested object."""
        value = self.take(name)
        return None if value is None else self.enter(name, value)

    def inners(self, name: str, *, required: bool = False) -> Sequence[Self]:
        """Return a reader for each object in a list; no readers if an optional list is absent."""
        values = self.items(name, required=required)
        return [self.enter(f"{name}[{at}]", value) for at, value in enumerate(values or ())]

    def enter(self, name: str, value: Any) -> Self:
        """Return a reader for a value inside this mapping."""
        return type(self)(value, self.at(name))

    def need_text(self, name: str) -> str:
        """Return the value of a string field; reject a missing one."""
        return _need(self, name, self.text(name))

    def need_inner(self, name: str) -> Self:
        """Return a reader for a nested object; reject a missing one."""
        return _need(self, name, self.inner(name))

    # --- reporting fields that were not read

    def put(self, name: str, value: Any) -> None:
        """Set a field, and mark it as not read."""
        self.data = {**self.data, name: value}
        self._known.pop(name, None)

    def rest(self) -> dict[str, Any]:
        """Return the fields that were not read."""
        return {
            name: value
            for name, value in self.data.items()
            if value is not None and name not in self._known
        }

    def allow(self, *names: str) -> None:
        """Reject every field that is not among ``names`` and was not read."""
        self._known.update(dict.fromkeys(names))
        self.done()

    def done(self) -> None:
        """Reject the fields that were not read."""
        for name, value in self.data.items():
            if name not in self._known and value not in self.EMPTY:
                hint = suggest(str(name), self._known) or f"one of {', '.join(self._known)}"
                self.complain(f"{self.UNKNOWN}; {hint}", str(name))


def _need(fields: Fields, name: str, value: T | None) -> T:
    if value is None:
        fields.refuse(name, "is required")
    return value
