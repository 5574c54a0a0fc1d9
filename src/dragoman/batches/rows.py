"""Parse the input rows of a batch, in each of the supported formats, into requests."""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Container, Generator, Iterator, Mapping
from contextlib import closing
from hashlib import blake2b
from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from .. import messages as m
from ..errors import ProviderError
from ..validate import build_request, check_request
from ..wire import SERVER_CODECS, Asked
from .sources import Record, Source
from .template import Template

Shape: TypeAlias = Literal["own", "openai", "responses", "embeddings", "anthropic", "gemini"]
"""The format of a row: ``own`` is Dragoman's; a provider's batch format is named by its wire.

``embeddings`` is the format of rows for ``/v1/embeddings``.
"""


TOO_DEEP = "is nested too deeply"


class Row(Struct, frozen=True):
    """A valid row: its line number, its id if it has one, and its request.

    The request is a ``Request``; in a batch of embeddings it is an ``AskedRetrieval``. ``asked``
    is set if the row is in a provider's batch format: its result is written in the same format.
    """

    line: int
    id: str | None
    shape: Shape
    request: Any
    asked: Asked | None = None


class BadRow(Struct, frozen=True):
    """An invalid row, and the reason why it is invalid."""

    line: int
    id: str | None
    shape: Shape
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


class Defaults(Struct, frozen=True, kw_only=True):
    """Default settings for the rows; plain data that can be sent to other processes."""

    system: str | None = None
    tools: tuple[m.Tool, ...] = ()
    server_tools: tuple[m.ServerTool, ...] = ()
    tool_choice: m.ToolChoice | None = None
    response_schema: dict[str, Any] | None = None
    config: m.RuntimeConfig = m.NO_CONFIG
    template: str | None = None
    id_column: str | None = None


_OWN = frozenset({
    "id", "prompt", "messages", "system", "tools", "tool_choice", "response_schema", "config",
    "metadata", "check_calls",
})  # fmt: skip
EMBED_URL = "/v1/embeddings"
EMBED_FIELDS = ("input", "text")
"""The fields that may contain the text of a row to embed."""
_OWN_SETTINGS = frozenset(m.RuntimeConfig.__struct_fields__)
_URLS: dict[str, Shape] = {"/v1/chat/completions": "openai", "/v1/responses": "responses"}


class Parser(ABC):
    """Parse the input records of a batch; each kind of batch (chat, embeddings) has a subclass.

    A record is in Dragoman's format or a provider's batch format, or its fields fill a template.
    """

    own: ClassVar[frozenset[str]]  # the fields of a record in Dragoman's format
    filled: ClassVar[str]  # the field that a template fills

    def __init__(self, defaults: Any, model: str) -> None:
        self._defaults = defaults
        self._model = model
        self._template = None if defaults.template is None else Template(defaults.template)

    @abstractmethod
    def name(self, record: Record) -> tuple[str | None, Shape]:
        """Return the id and the format of a record; raise ``ValueError`` if the id is invalid."""

    def parse(self, record: Record, shape: Shape) -> Any:
        """Return the request that a record describes; an ``Asked`` if it is in another format.

        Raise ``ValueError`` or ``ProviderError`` if the record is invalid.
        """
        if shape != "own":
            if record.get("method") not in (None, "POST"):
                raise ValueError(f"method must be POST, not {record.get('method')!r}")
            return self.read_foreign(record, shape)
        if self._template is not None:
            return self.build({self.filled: self._template.fill(record)})
        for name in record:
            if name not in self.own and name != self._defaults.id_column:
                raise ValueError(self.explain_unknown(name))
        return self.build(record)

    @abstractmethod
    def build(self, record: Mapping[str, Any]) -> Any:
        """Return the request that a record in Dragoman's format describes."""

    @abstractmethod
    def read_foreign(self, record: Record, shape: Shape) -> Any:
        """Read a row in a provider's batch format; the batch's model replaces the row's model."""

    @abstractmethod
    def explain_unknown(self, name: str) -> str:
        """Return the error message for a field that a record in Dragoman's format may not have."""

    @abstractmethod
    def check(self, request: Any) -> None:
        """Check a request without sending it; raise an error if it is invalid."""


class RowParser(Parser):
    """Parse the rows of a batch of chat requests."""

    own = _OWN | _OWN_SETTINGS
    filled = "prompt"

    def name(self, record: Record) -> tuple[str | None, Shape]:
        if self._template is not None:
            return read_id(record, self._defaults.id_column or "id"), "own"
        if "custom_id" in record and "params" in record:
            return need_id(record, "custom_id"), "anthropic"
        if "custom_id" in record or ("body" in record and "url" in record):
            return need_id(record, "custom_id"), _URLS.get(str(record.get("url")), "openai")
        if "key" in record and "request" in record:
            return need_id(record, "key"), "gemini"
        return read_id(record, self._defaults.id_column or "id"), "own"

    def check(self, request: m.Request) -> None:
        check_request(request)

    def explain_unknown(self, name: str) -> str:
        more = "a template says which columns make the prompt"
        if name in EMBED_FIELDS:
            more = "rows to embed need a batch that embeds, and this one chats"
        return f"{name!r} is not a field of a row; {more}"

    def build(self, record: Mapping[str, Any]) -> m.Request:
        given = self._defaults
        messages = record.get("messages")
        prompt = record.get("prompt")
        if (messages is None) == (prompt is None):
            raise ValueError(
                "must have either a prompt or messages"
                + (", not both" if prompt is not None else "")
            )
        if prompt is not None and not isinstance(prompt, str):
            raise ValueError(f"prompt must be a string, not {type(prompt).__name__}")
        settings = {
            name: record[name]
            for name in record
            if name in _OWN_SETTINGS and record[name] is not None
        }
        if record.get("config") is not None:
            settings = {**need_object(record, "config"), **settings}
        system = record.get("system", given.system)
        if system is not None:
            settings["system"] = system
        return build_request(
            prompt if messages is None else messages,
            record.get("tools") or (*given.tools, *given.server_tools),
            given.config,
            record.get("response_schema") or given.response_schema,
            record.get("tool_choice") or given.tool_choice,
            model=self._model,
            request_id="row",  # a placeholder: each call gets a new id when it is sent
            settings=settings,
            metadata=read_metadata(record),
            check_calls=record.get("check_calls") is not False,
        )

    def read_foreign(self, record: Record, shape: Shape) -> Asked:
        given = self._defaults
        name = {"anthropic": "params", "gemini": "request"}.get(shape, "body")
        if name == "body" and record.get("url") == EMBED_URL:
            raise ValueError(f"url is {EMBED_URL}, but this is a batch of chats")
        if name == "body" and record.get("url") not in (None, *_URLS):
            raise ValueError(f"url must be one of {', '.join(_URLS)}, not {record.get('url')!r}")
        body = {**need_object(record, name)}
        if shape != "gemini":
            body["model"] = self._model or "model"
        codec: Any = SERVER_CODECS[shape]
        asked: Asked = codec.decode(body, "/v1beta/models/model:generateContent")
        request = asked.with_extras()
        messages = request.messages
        if given.system is not None and not any(isinstance(each, m.System) for each in messages):
            messages = (m.System(given.system), *messages)
        has_tools = bool(request.tools or request.server_tools)
        request = replace(
            request,
            messages=messages,
            model=self._model,
            stream=False,
            tools=request.tools if has_tools else given.tools,
            server_tools=request.server_tools if has_tools else given.server_tools,
            tool_choice=request.tool_choice or given.tool_choice,
            response_schema=request.response_schema or given.response_schema,
            config=_overlay(given.config, request.config),
        )
        return replace(asked, request=request)


def _overlay(given: m.RuntimeConfig, own: m.RuntimeConfig) -> m.RuntimeConfig:
    """Return the batch's settings, overridden by the settings of a row."""
    if given == m.NO_CONFIG:
        return own
    empty = m.RuntimeConfig()
    names = m.RuntimeConfig.__struct_fields__
    changed = {
        name: value for name in names if (value := getattr(own, name)) != getattr(empty, name)
    }
    return replace(given, **changed)


def read_id(record: Record, name: str) -> str | None:
    """Return the id of a record, or ``None``; raise ``ValueError`` if it is not a string."""
    value = record.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} must be a string, not {type(value).__name__}")
    return value


def need_id(record: Record, name: str) -> str:
    """Return the id of a record in a provider's format; raise ``ValueError`` if it has none."""
    value = record.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a string that is not empty")
    return value


def need_object(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a field of a record; raise ``ValueError`` if the field is not an object."""
    value = record.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, not {type(value).__name__}")
    return value


def read_metadata(record: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the metadata of a record; raise ``ValueError`` if a value is not a string."""
    if record.get("metadata") is None:
        return None
    metadata = need_object(record, "metadata")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("metadata must be an object of strings")
    return metadata


class SeenIds:
    """The ids read so far, kept in a temporary SQLite database, so that memory stays constant."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in (
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            "PRAGMA cache_size = -1024",
            "CREATE TABLE ids (id BLOB PRIMARY KEY, line INTEGER NOT NULL) WITHOUT ROWID",
            "BEGIN",
        ):
            self._database.execute(statement)

    def add(self, name: str, line: int) -> int | None:
        """Add an id; if it was added before, return the line that used it."""
        key = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        added = self._database.execute("INSERT OR IGNORE INTO ids VALUES (?, ?)", (key, line))
        if added.rowcount:
            return None
        return int(
            self._database.execute("SELECT line FROM ids WHERE id = ?", (key,)).fetchone()[0]
        )

    def close(self) -> None:
        self._database.close()


class Skipped(Struct, frozen=True):
    """A row that already has a result."""

    line: int


class NamedRow(Struct, array_like=True):
    """A row of which only the id and the format have been parsed so far."""

    line: int
    id: str | None
    shape: Shape
    record: dict[str, Any]


# the errors with which a parser rejects a row
_INVALID = (ValueError, TypeError, ProviderError, RecursionError)


def _reason_of(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return TOO_DEEP
    return error.message if isinstance(error, ProviderError) else str(error)


def name_rows(
    source: Source, parser: Parser, done: Container[int] = ()
) -> Generator[NamedRow | BadRow | Skipped, None, None]:
    """Yield the rows of a source with their ids, and ``Skipped`` for each line in ``done``."""
    seen = SeenIds()
    try:
        for line, record in source:
            name: str | None = None
            shape: Shape = "own"
            found: NamedRow | BadRow
            if isinstance(record, str):
                found = BadRow(line, name, shape, record)
            else:
                try:
                    name, shape = parser.name(record)
                    earlier = None if name is None else seen.add(name, line)
                    if earlier is not None:
                        raise ValueError(f"id {name!r} is already used in line {earlier}")
                    found = NamedRow(line, name, shape, record)
                except _INVALID as error:
                    found = BadRow(line, name, shape, _reason_of(error))
            yield Skipped(line) if line in done else found
    finally:
        seen.close()


def parse_row(row: NamedRow, parser: Parser) -> Row | BadRow:
    """Return the parsed row, or a ``BadRow`` if its fields are invalid."""
    try:
        request = parser.parse(row.record, row.shape)
    except _INVALID as error:
        return BadRow(row.line, row.id, row.shape, _reason_of(error))
    if isinstance(request, Asked):
        return Row(row.line, row.id, row.shape, request.request, request)
    return Row(row.line, row.id, row.shape, request)


def read_rows(
    source: Source, parser: Parser, done: Container[int] = ()
) -> Iterator[Row | BadRow | Skipped]:
    """Yield the parsed rows of a source, and ``Skipped`` for each line in ``done``."""
    with closing(name_rows(source, parser, done)) as rows:
        for row in rows:
            yield parse_row(row, parser) if isinstance(row, NamedRow) else row


def find_bad_rows(source: Source, parser: Parser, limit: int) -> list[BadRow]:
    """Return the first rows of a source that are invalid or have an invalid request."""
    found: list[BadRow] = []
    for row in read_rows(source, parser):
        if isinstance(row, Row):
            try:
                parser.check(row.request)
            except ProviderError as error:
                found.append(BadRow(row.line, row.id, row.shape, error.message))
        elif isinstance(row, BadRow):
            found.append(row)
        if len(found) >= limit:
            break
    return found


def name_of(source: Any) -> str:
    """Return a name for the input, to use in error messages."""
    return os.fspath(source) if isinstance(source, str | os.PathLike) else "the rows"
