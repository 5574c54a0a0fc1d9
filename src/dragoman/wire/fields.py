"""Reading a body field by field, so that what nobody took is known at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import msgspec

from ..errors import InvalidRequestError, cut
from ..messages import EFFORTS, Effort, Inline, LossWarning, Url
from ..validate.request import check_depth
from .schema import schema_name
from .urls import read_data_url


class Losses:
    """Collects the hints that have no place in a request."""

    def __init__(self) -> None:
        self._found: list[LossWarning] = []

    def drop(self, path: str, code: str, detail: str) -> None:
        """A hint is not passed on."""
        self._found.append(LossWarning(code, path, detail))

    @property
    def warnings(self) -> tuple[LossWarning, ...]:
        """What was dropped."""
        return tuple(self._found)


class Fields:
    """An object of a request. Each field is taken once; ``done`` refuses the rest, ``rest`` hands it over.

    A field that is ``null`` counts as absent: clients dump every field they have.
    """

    def __init__(self, data: Any, path: str = "") -> None:
        if not isinstance(data, Mapping):
            raise InvalidRequestError(f"{path or 'the body'} must be an object")
        self._data = {name: value for name, value in data.items() if value is not None}
        self._path = path

    def __contains__(self, name: str) -> bool:
        return name in self._data

    def at(self, name: str) -> str:
        """Where a field is, for errors."""
        return f"{self._path}.{cut(name)}" if self._path else cut(name)

    def refuse(self, name: str, why: str) -> NoReturn:
        """Say what is wrong with a field."""
        raise InvalidRequestError(f"{self.at(name)} {why}")

    def take(self, name: str) -> Any:
        """A field as it is, or ``None``."""
        return self._data.pop(name, None)

    def text(self, name: str) -> str | None:
        """A field that must be text."""
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            self.refuse(name, "must be text")
        return value

    def need_text(self, name: str) -> str:
        """A field that must be there, and text."""
        value = self.text(name)
        if value is None:
            self.refuse(name, "is required")
        return value

    def number(self, name: str) -> float | None:
        """A field that must be a number."""
        value = self.take(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            self.refuse(name, "must be a number")
        return value

    def whole(self, name: str) -> int | None:
        """A field that must be a whole number."""
        value = self.take(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            self.refuse(name, "must be a whole number")
        return value

    def flag(self, name: str) -> bool | None:
        """A field that must be true or false."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            self.refuse(name, "must be true or false")
        return value

    def items(self, name: str) -> list[Any] | None:
        """A field that must be a list."""
        value = self.take(name)
        if value is not None and not isinstance(value, list):
            self.refuse(name, "must be a list")
        return value

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A field that must be a text or a list of texts."""
        value = self.take(name)
        if isinstance(value, str):
            return (value,)
        if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            self.refuse(name, "must be text or a list of texts")
        return None if value is None else tuple(value)

    def inner(self, name: str) -> Fields | None:
        """A field that must be an object."""
        return None if name not in self._data else Fields(self.take(name), self.at(name))

    def need_items(self, name: str) -> list[Any]:
        """A field that must be there, and a list."""
        value = self.items(name)
        if value is None:
            self.refuse(name, "is required")
        return value

    def put(self, name: str, value: Any) -> None:
        """Give a field back: it is to be one of the rest."""
        self._data[name] = value

    def rest(self) -> dict[str, Any]:
        """What nobody took."""
        return self._data

    def done(self) -> None:
        """Refuse what nobody took."""
        for name, value in self._data.items():
            if value != []:
                self.refuse(name, "is not known here; remove it")

    def drop(self, names: Iterable[str], losses: Losses, why: str) -> None:
        """Leave these hints out, and say so."""
        for name in names:
            if self._data.pop(name, None) is not None:
                losses.drop(self.at(name), f"{name}_dropped", why)


def read_body(body: bytes) -> Fields:
    """The fields of a body. Unlike a provider's reply, a request that is not sound JSON is refused."""
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not JSON: {_reason(error)}") from None
    check_depth(data, "the body")
    return Fields(data)


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]


def read_media_url(url: str) -> tuple[Url | Inline, str | None]:
    """A source, and its media type where the URL holds the media itself."""
    found = read_data_url(url)
    return (Url(url), None) if found is None or found[0] is None else (Inline(found[1]), found[0])


def read_effort(fields: Fields, name: str) -> Effort | None:
    """Return a field that must be an effort of reasoning."""
    effort = fields.text(name)
    if effort is None:
        return None
    known = next((each for each in EFFORTS if each == effort), None)
    if known is None:
        fields.refuse(name, f"must be one of {', '.join(EFFORTS)}")
    return known


def read_schema(schema: Any, name: str | None, path: str, losses: Losses) -> dict[str, Any]:
    """A schema asked for under a name of its own, which our values keep as the schema's title."""
    if not isinstance(schema, dict):
        raise InvalidRequestError(f"{path} must be a JSON Schema")
    if name is None or name == schema_name(schema):
        return schema
    if "title" not in schema:
        return {"title": name, **schema}
    losses.drop(path, "schema_name_dropped", "the schema has a title of its own, and is known by that")
    return schema
