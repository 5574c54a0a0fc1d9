"""The settings of a request under the names of a wire, which both sides of the wire use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import UnsupportedFeatureError
from ..messages import RuntimeConfig
from ..validate.fields import Fields
from .codec import Notes
from .fields import read_stops
from .json import dig, plain_value

_READERS: dict[str, Callable[[Any, str], Any]] = {
    "temperature": Fields.number,
    "max_tokens": Fields.whole,
    "top_p": Fields.number,
    "seed": Fields.whole,
    "frequency_penalty": Fields.number,
    "presence_penalty": Fields.number,
    "stop_sequences": read_stops,
}


# A penalty of 0 has no effect, so a wire without the setting need not reject it; Copilot CLI sends
# both with every request (github/copilot-cli#4950).
_NEUTRAL = {"frequency_penalty": 0, "presence_penalty": 0}


def find_lacking(names: Mapping[str, str]) -> list[str]:
    """Return the settings that a wire lacks, given those that it has."""
    return [name for name in _READERS if name not in names]


def read_settings(fields: Fields, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in a client's request, as arguments of ``RuntimeConfig``.

    ``names`` maps Dragoman's names of settings to those of the wire.
    """
    return {name: _READERS[name](fields, field) for name, field in names.items()}


def write_settings(config: RuntimeConfig, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a request under the names of a wire; reject one that it lacks."""
    if len(names) < len(_READERS):
        for name in find_lacking(names):
            if getattr(config, name) not in (None, (), _NEUTRAL.get(name)):
                raise UnsupportedFeatureError(f"config.{name}: this wire has no such setting")
    written: dict[str, Any] = {}
    for name, field in names.items():
        if (value := getattr(config, name)) is not None:
            written[field] = list(value) if name == "stop_sequences" else value
    return written


def drop_refused(
    body: dict[str, Any], refused: Mapping[str, Any], paths: Mapping[str, str], notes: Notes
) -> None:
    """Remove the settings that a model rejects from a body.

    ``refused`` has the value of each setting that the model uses anyway. Clients such as GitHub
    Copilot send these defaults with every request, so only another value is a loss.
    """
    for name, default in refused.items():
        *outer, field = paths.get(name, name).split(".")
        value = _take(body, outer, field)
        if value not in (default, [], None):
            why = "the model does not accept this setting, so it is not sent"
            inside = name if name in RuntimeConfig.__struct_fields__ else f"extras[{name!r}]"
            notes.drop(f"config.{inside}", "setting_refused", why)


def keep_first(
    body: dict[str, Any], names: Sequence[str], paths: Mapping[str, str], notes: Notes
) -> None:
    """Remove all but the first of several settings that a model rejects together."""
    given = [name for name in names if dig(body, *paths.get(name, name).split(".")) is not None]
    for name in given[1:]:
        *outer, field = paths.get(name, name).split(".")
        _take(body, outer, field)
        why = f"the model does not accept it together with {given[0]}"
        notes.drop(f"config.{name}", "setting_refused", why)


def _take(body: dict[str, Any], outer: list[str], field: str) -> Any:
    """Remove a field and return its value; ``None`` if the body lacks it.

    The objects around it are removed if nothing else is in them.
    """
    if not outer:
        return plain_value(body.pop(field, None))
    name = outer[0]
    inner = plain_value(body.get(name))
    if not isinstance(inner, dict):
        return None
    inner = dict(inner)
    value = _take(inner, outer[1:], field)
    body[name] = inner
    if not inner:
        del body[name]
    return value
