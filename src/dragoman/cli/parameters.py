"""Make Click options of annotated parameters and struct fields.

``@add_options`` makes an option of each parameter of a command that has a help text::

    limit: Annotated[int, "List only the newest sessions.", option("N", ge=1)] = 20

The type, the bounds and the default of the option are those of the parameter. A parameter whose
type is a struct adds the options of all fields, and the command receives an instance of the
struct. Several help texts make several options that set the same parameter. Parameters without a
help text are left to ``click.argument``.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import click
from msgspec import Meta, Struct
from msgspec.structs import fields

_REQUIRED = inspect.Parameter.empty
_DURATION = re.compile(r"([0-9]{1,6})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_RANGES: dict[Any, Any] = {int: click.IntRange, float: click.FloatRange}
_MOST = {int: 10**12, float: 1e9}  # of a number without a narrower range; 1e9 seconds are 31 years


def option(
    metavar: str | None = None,
    flags: str | None = None,
    *,
    ge: float | None = None,
    le: float | None = None,
    **settings: Any,
) -> Meta:
    """Return the settings of an option: its metavar, its flags if they differ, and its bounds.

    ``click.option`` documents the other settings.
    """
    settings |= {"metavar": metavar} if metavar else {}
    return Meta(ge=ge, le=le, extra=settings | ({"flags": flags} if flags else {}))


Port: TypeAlias = Annotated[
    int, "Listen on this port; 0 is any free port.", option(ge=0, le=65535)
]
Json: TypeAlias = Annotated[bool, option(flags="--json")]
ExistingFile: TypeAlias = Annotated[
    str | None, option(type=click.Path(exists=True, dir_okay=False))
]
Folder: TypeAlias = Annotated[
    Path, option(type=click.Path(exists=True, file_okay=False, path_type=Path))
]


def add_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that the annotated parameters of a command describe."""
    hints = get_type_hints(command, include_extras=True)
    declared = {
        name: (hints[name], each.default)
        for name, each in inspect.signature(command).parameters.items()
    }

    @functools.wraps(command)
    def call(**given: Any) -> Any:
        return command(**_collect(declared, given))

    for add in reversed([*_make_options(declared)]):
        add(call)
    return call


def read_duration(text: str, units: str) -> timedelta | None:
    """Return a duration such as ``24h`` in one of the units; ``None`` for any other text."""
    found = _DURATION.fullmatch(text)
    if found is None or found[2] not in units:
        return None
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


_Declared: TypeAlias = Mapping[str, tuple[Any, Any]]  # the type and the default of each name


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct)


def _read_fields(struct: Any) -> _Declared:
    return {
        each.name: (each.type, _REQUIRED if each.required else each.default)
        for each in fields(struct)
    }


def _collect(declared: _Declared, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of parameters or fields, with an instance for each struct."""
    return {
        name: hint(**_collect(_read_fields(hint), given)) if _is_struct(hint) else given[name]
        for name, (hint, _) in declared.items()
    }


def _make_options(declared: _Declared) -> Iterator[Callable[[Any], Any]]:
    for name, (hint, default) in declared.items():
        if _is_struct(hint):
            yield from _make_options(_read_fields(hint))
        elif hasattr(hint, "__metadata__"):
            kind, *notes = get_args(hint)
            starts = [at for at, note in enumerate(notes) if isinstance(note, str)]
            for start, end in pairwise([*starts, len(notes)]):
                metas = [*notes[: starts[0]], *notes[start + 1 : end]]
                yield _make_option(name, kind, default, notes[start], metas)


def _make_option(
    name: str, kind: Any, default: Any, help_text: str, metas: list[Meta]
) -> Callable[[Any], Any]:
    settings: dict[str, Any] = {"flags": f"--{name.replace('_', '-')}", "help": help_text}
    settings |= _read_type(kind, metas, settings["flags"], default)
    settings |= {"required": True} if default is _REQUIRED else {"default": default}
    if default not in (None, "", (), _REQUIRED):
        settings["show_default"] = True
    for meta in metas:
        settings |= meta.extra or {}
    return click.option(*settings.pop("flags").split(), name, **settings)


def _read_type(kind: Any, metas: list[Meta], flags: str, default: Any) -> dict[str, Any]:
    """Return the Click settings that follow from the type of a parameter."""
    if NoneType in get_args(kind):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if kind is bool and default is False:
        return {"is_flag": True}
    if kind is bool:
        return {"flags": f"{flags}/--no-{flags.removeprefix('--')}"}
    if get_origin(kind) is Literal:
        return {"type": click.Choice(get_args(kind))}
    if get_origin(kind) is tuple:
        return {"multiple": True} | _read_type(get_args(kind)[0], metas, flags, default)
    if kind not in _RANGES:
        return {}
    lowest = next((meta.ge for meta in metas if meta.ge is not None), None)
    highest = next((meta.le for meta in metas if meta.le is not None), None)
    is_bounded = lowest is not None or highest is not None
    checked = _RANGES[kind](lowest, highest) if is_bounded else kind
    return {"type": checked, "callback": _check_number}


def _check_number(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Reject NaN, and a number that overflows the clocks and integers of the system."""
    if value is not None and not abs(value) <= (most := _MOST[type(value)]):
        raise click.BadParameter(f"it is not a number between {-most} and {most}.")
    return value
