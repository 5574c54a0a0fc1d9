"""Parse rows to embed, and decide whether a batch requests embeddings or chat replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ..errors import ProviderError
from ..registry import Registry
from ..retrieval import EmbedRequest
from ..retrieval.check import build_embed_request
from ..retrieval.wire.server import AskedRetrieval, EmbedServer
from . import rows
from .options import Options
from .sources import Record, Source
from .template import Template

ENCODINGS = ("float", "base64")
_SETTINGS = ("input_type", "dimensions", "encoding_format", "extras")
_OWN = frozenset({"id", "metadata", *rows.EMBED_FIELDS, *_SETTINGS})
_CHAT = frozenset({"prompt", "messages"})
_SERVER = EmbedServer()


class EmbedDefaults(Struct, frozen=True, kw_only=True):
    """Default settings for rows to embed; plain data that can be sent to other processes."""

    input_type: str | None = None
    dimensions: int | None = None
    encoding_format: str | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    template: str | None = None
    id_column: str | None = None


class EmbedRowParser(rows.Parser):
    """Parse rows to embed.

    A row is in Dragoman's format or in OpenAI's batch format, or a template builds its text.
    """

    own = _OWN
    filled = "input"

    def name(self, record: Record) -> tuple[str | None, rows.Shape]:
        is_foreign = "custom_id" in record or ("body" in record and "url" in record)
        if is_foreign and self._template is None:
            return rows.need_id(record, "custom_id"), "embeddings"
        return rows.read_id(record, self._defaults.id_column or "id"), "own"

    def check(self, request: AskedRetrieval) -> None:
        """Do nothing: ``parse`` has checked the request."""

    def explain_unknown(self, name: str) -> str:
        more = "a template says which columns make the text"
        if name in _CHAT:
            more = "this batch embeds; a row of it has an input"
        return f"{name!r} is not a field of a row to embed; {more}"

    def build(self, record: Mapping[str, Any]) -> AskedRetrieval:
        given = [name for name in rows.EMBED_FIELDS if record.get(name) is not None]
        if len(given) != 1:
            raise ValueError("must have either input or text" + (", not both" if given else ""))
        texts = record[given[0]]
        if not isinstance(texts, str | list):
            kind = type(texts).__name__
            raise ValueError(f"{given[0]} must be a string or a list of strings, not {kind}")
        values = {name: record.get(name) for name in _SETTINGS}
        if values["extras"] is not None:
            rows.need_object(record, "extras")
        encoding = values["encoding_format"]
        if encoding is not None and encoding not in ENCODINGS:
            raise ValueError(f"encoding_format must be float or base64, not {encoding!r}")
        request = build_embed_request(
            [texts] if isinstance(texts, str) else texts,
            input_type=values["input_type"],
            dimensions=values["dimensions"],
            extras=values["extras"],
            model=self._model,
            request_id="row",  # a placeholder: each call gets a new id when it is sent
            metadata=rows.read_metadata(record),
        )
        form = {
            "encoding_format": encoding or self._defaults.encoding_format,
            "is_list": not isinstance(texts, str),
        }
        return AskedRetrieval(self._overlay(request), (), form)

    def read_foreign(self, record: Record, shape: rows.Shape) -> AskedRetrieval:
        if record.get("url") != rows.EMBED_URL:
            raise ValueError(
                f"url must be {rows.EMBED_URL}, since this batch embeds, not {record.get('url')!r}"
            )
        body = {**rows.need_object(record, "body"), "model": self._model or "model"}
        asked = _SERVER.decode(body)
        assert isinstance(asked.request, EmbedRequest)
        form = {"encoding_format": asked.form["encoding_format"] or self._defaults.encoding_format}
        request = replace(asked.request, request_id="row")
        return replace(asked, request=self._overlay(request), form=form)

    def _overlay(self, own: EmbedRequest) -> EmbedRequest:
        """Return a request in which the batch's defaults replace the unset settings."""
        given = self._defaults
        return replace(
            own,
            input_type=own.input_type or given.input_type,
            dimensions=own.dimensions or given.dimensions,
            extras={**given.extras, **own.extras},
        )


def make_embed_defaults(given: Options) -> EmbedDefaults:
    """Check the settings that all rows to embed share, and return them as plain data.

    Raise ``ValueError`` for a setting that only chat requests have.
    """
    settings = {**given.settings}
    extras = settings.pop("extras", None)
    chats = {
        "tools": given.tools,
        "tool_choice": given.tool_choice,
        "response_schema": given.response_schema,
        **settings,
    }
    wrong = [name for name, value in chats.items() if value is not None]
    if wrong:
        known = ", ".join(_SETTINGS)
        raise ValueError(
            f"{wrong[0]}: is a setting of chats, and this batch embeds; it has {known}"
        )
    if given.encoding_format not in (None, *ENCODINGS):
        raise ValueError(
            f"encoding_format: must be float or base64, not {given.encoding_format!r}"
        )
    if given.template is not None:
        Template(given.template)
    try:
        checked = build_embed_request(
            ["x"], input_type=given.input_type, dimensions=given.dimensions, extras=extras
        )
    except ProviderError as error:
        raise ValueError(error.message) from None
    return EmbedDefaults(
        input_type=checked.input_type,
        dimensions=checked.dimensions,
        encoding_format=given.encoding_format,
        extras=dict(checked.extras),
        template=given.template,
        id_column=given.id_column,
    )


def embeds(model: str, source: Source, given: Options) -> bool:
    """Return whether a batch requests embeddings rather than chat replies.

    If the option ``embed`` is set, return it. Otherwise return true if the registry lists the
    model as an embedder, or if the first row has the fields of an embedding request.
    """
    if given.embed is not None:
        return given.embed
    if not (given.connection or {}).get("base_url") and _is_embedder(model):
        return True
    first = None if given.template is not None else source.peek()
    if first is None or not _CHAT.isdisjoint(first):
        return False
    return first.get("url") == rows.EMBED_URL or any(name in first for name in rows.EMBED_FIELDS)


def _is_embedder(model: str) -> bool:
    try:
        entry = Registry.load().find(model)
    except ProviderError:
        # The registry does not list "local"; connect() reports names that do not exist.
        return False
    return entry.capabilities.known("supports_embeddings") is True
