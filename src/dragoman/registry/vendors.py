"""The bundled catalogue: one YAML file per vendor, read when the vendor is first used.

The files are also stored compiled, each with the digest of its source; only a changed file is
parsed again.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from ..capabilities import Capabilities
from ..config import Section, parse_yaml, unparsed
from ..plugins import find_plugins, read_plugin_file
from ..tokens import FAMILIES
from .updates import read_update

FACTS = _FACTS = {
    "context": "max_context_tokens",
    "output": "max_output_tokens",
    "images": "supports_images",
    "documents": "supports_documents",
    "tools": "supports_tools",
    "thinking": "supports_thinking",
    "structured": "supports_structured_output",
    "system": "supports_system_prompt",
    "streaming": "supports_streaming",
    "streaming_tools": "supports_streaming_tool_calls",
    "parallel_tools": "supports_parallel_tool_calls",
    "caching": "supports_prompt_caching",
    "image_types": "accepted_image_media_types",
    "embeds": "supports_embeddings",
    "ranks": "supports_reranking",
    "shortens": "supports_dimensions",
    "dimensions": "max_dimensions",
    "batch": "max_batch_size",
}
_KINDS: dict[str, type] = {
    "context": int,
    "output": int,
    "image_types": list,
    "dimensions": int,
    "batch": int,
}


class WireForm(Struct, frozen=True):
    """How a vendor implements one wire.

    ``only`` is a pattern for the models that are served on this wire alone.
    """

    base_url: str | None
    quirks: dict[str, Any] = field(default_factory=dict)
    only: str | None = None


class Side(Struct, frozen=True):
    """How a vendor embeds or ranks: wire, quirks, and the address if it differs from chat."""

    wire: str
    base_url: str | None = None
    quirks: dict[str, Any] = field(default_factory=dict)
    proofs: dict[str, str] = field(default_factory=dict)


class Vendor(Struct, frozen=True):
    """A vendor: its address, how its servers differ from the wire, and what its models can do.

    ``tokens`` is the tokenizer family of its models, ``families`` the exceptions by model.
    ``base_url_env`` is the environment variable in which users set the server's address, ``hint``
    the advice if no server responds there. ``not_chat`` lists the models that embed or transcribe;
    ``chats`` is false for a vendor without chat models. ``wire`` is the default of ``wires``;
    ``embed`` and ``rerank`` describe how the vendor embeds and ranks. ``auth`` is the type of
    credentials that replaces an API key if one of the variables in ``auth_env`` is set. If a
    variable in ``region_env`` is set, its value replaces ``region`` in the address.
    """

    id: str
    name: str
    wire: str
    base_url: str | None
    api_key_env: str | None
    docs: str
    tokens: str = "default"
    local: bool = False
    quirks: dict[str, Any] = field(default_factory=dict)
    proofs: dict[str, str] = field(default_factory=dict)
    models: dict[str, Capabilities] = field(default_factory=dict)
    families: dict[str, str] = field(default_factory=dict)
    base_url_env: str | None = None
    hint: str | None = None
    not_chat: frozenset[str] = frozenset()
    wires: dict[str, WireForm] = field(default_factory=dict)
    chats: bool = True
    embed: Side | None = None
    rerank: Side | None = None
    auth: str | None = None
    auth_env: tuple[str, ...] = ()
    region: str = ""
    region_env: tuple[str, ...] = ()

    def address(self, wire: str | None = None) -> str | None:
        """Return a wire's base URL; the variable ``base_url_env`` may replace its host and port."""
        form = self.wires.get(wire or self.wire)
        base_url = form.base_url if form is not None else self.base_url
        region = next(
            (found for name in self.region_env if (found := os.environ.get(name))), self.region
        )
        if self.region and base_url is not None:
            base_url = base_url.replace(self.region, region, 1)
        given = os.environ.get(self.base_url_env, "").strip() if self.base_url_env else ""
        return _complete_url(given, base_url or "") if given else base_url

    @property
    def default_auth(self) -> str | None:
        """The type of credentials other than an API key that the environment provides, if any."""
        return self.auth if any(os.environ.get(name) for name in self.auth_env) else None

    def quirks_of(self, wire: str) -> dict[str, Any]:
        """Return the vendor's quirks on a wire."""
        form = self.wires.get(wire)
        return form.quirks if form is not None else {}

    def wire_of(self, model: str) -> str:
        """Return the wire for a model: the default, unless only another wire serves the model."""
        forms = [
            name for name, form in self.wires.items() if form.only and re.search(form.only, model)
        ]
        return forms[0] if forms else self.wire

    def facts_of(self, model: str) -> Capabilities | None:
        """Return the capabilities of a model: the bundled file merged with the user's update."""
        known = self.models.get(model)
        update = read_update()
        listed = update.models(self.id).get(model)
        if listed is None:
            return known
        values = {_FACTS[key]: value for key, value in listed.facts.items() if key in _FACTS}
        renewed = Capabilities.of(values, "catalogue", at=update.as_of, by=update.source)
        documented = {
            name: fact
            for name in Capabilities.__struct_fields__
            if known is not None
            and (fact := getattr(known, name)).by is not None
            and "://" in fact.by
        }
        return (known or Capabilities()).merged(renewed).merged(Capabilities(**documented))

    def listed_models(self) -> list[str]:
        """Return the models in the bundled file, and those that the user's update adds."""
        return list(dict.fromkeys([*self.models, *read_update().models(self.id)]))

    def lists(self, model: str) -> bool:
        """Return whether a model is in the bundled file or in the user's update."""
        return model in self.models or model in read_update().models(self.id)

    def token_family(self, model: str) -> str:
        """Return the tokenizer family used to estimate a model's tokens."""
        return self.families.get(model, self.tokens)


def _complete_url(given: str, base_url: str) -> str:
    """Complete an address such as ``box``, ``0.0.0.0:9`` or ``http://box/prefix`` from a base URL.

    A wildcard address is replaced by the loopback address. A string that is not an address is
    returned unchanged, and ``connect`` rejects it.
    """
    try:
        own = urlsplit(base_url)
        parts = urlsplit(given if "://" in given else f"{own.scheme}://{given}")
        port = parts.port or (None if "://" in given else own.port)
        host = parts.hostname or own.hostname or ""
    except ValueError:
        return given
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    netloc = host if port is None else f"{host}:{port}"
    path = parts.path.rstrip("/")
    return urlunsplit(
        (parts.scheme, netloc, path if path.endswith(own.path) else path + own.path, "", "")
    )


@cache
def vendor_names() -> tuple[str, ...]:
    """Return the name of every vendor with a file, bundled or in a plugin."""
    return tuple(sorted({*_bundled(), *find_plugins("dragoman.vendors")}))


@cache
def _bundled() -> frozenset[str]:
    names = [
        entry.name.removesuffix(".yaml")
        for entry in _folder().iterdir()
        if entry.name.endswith(".yaml")
    ]
    return frozenset(names)


@cache
def load_vendor(vendor: str) -> Vendor:
    """Return a vendor, read from its file in the bundled catalogue or in a plugin."""
    if vendor not in _bundled():
        place = find_plugins("dragoman.vendors")[vendor].value
        return _build(vendor, parse_yaml(read_plugin_file("dragoman.vendors", vendor), place))
    text = _folder().joinpath(f"{vendor}.yaml").read_bytes()
    kept = _read_compiled().get(vendor)
    if kept is not None and kept.digest == _digest(text):
        return _build(
            vendor, unparsed(msgspec.json.decode(kept.content), f"catalog/{vendor}.yaml")
        )
    return _build(vendor, parse_yaml(text, f"catalog/{vendor}.yaml"))


def _folder() -> Any:
    return files("dragoman").joinpath("catalog")


def _build(vendor: str, root: Section) -> Vendor:
    root.allow(
        "name", "wire", "base_url", "base_url_env", "api_key_env", "docs", "hint", "tokens",
        "local", "quirks",
        "proofs", "as_of", "models", "wires", "facts", "chat", "embed", "rerank", "auth", "region",
        "listed",
    )  # fmt: skip
    origins = _read_origins(vendor, root)
    models = dict(root.section("models").sections())
    rules = [_read_rule(section) for _, section in root.section("facts").sections()]
    wire, base_url, quirks = (
        root.get("wire", str, "openai"),
        root.get("base_url", str),
        root.section("quirks").plain(),
    )
    auth, region = root.section("auth"), root.section("region")
    auth.allow("type", "env")
    region.allow("name", "env")
    families = {name: section.choice("tokens", FAMILIES) for name, section in models.items()}
    return Vendor(
        vendor,
        root.get("name", str, vendor),
        wire,
        base_url,
        root.get("api_key_env", str),
        root.get("docs", str, ""),
        root.choice("tokens", FAMILIES) or "default",
        root.get("local", bool, False),
        quirks,
        root.section("proofs").plain(),
        {name: _read_facts(name, section, origins, rules) for name, section in models.items()},
        {name: family for name, family in families.items() if family is not None},
        root.get("base_url_env", str),
        root.get("hint", str),
        frozenset(
            {name for name, section in models.items() if not section.get("chat", bool, True)}
        ),
        {wire: WireForm(base_url, quirks), **_read_wires(root.section("wires"), base_url)},
        root.get("chat", bool, True),
        _read_side(root, "embed"),
        _read_side(root, "rerank"),
        auth.get("type", str),
        tuple(auth.texts("env") or ()),
        region.get("name", str, ""),
        tuple(region.texts("env") or ()),
    )


def _read_side(root: Section, key: str) -> Side | None:
    if key not in root:
        return None
    section = root.section(key)
    section.allow("wire", "base_url", "quirks", "proofs")
    return Side(
        section.get("wire", str, "openai"),
        section.get("base_url", str),
        section.section("quirks").plain(),
        section.section("proofs").plain(),
    )


def _read_wires(section: Section, base_url: str | None) -> dict[str, WireForm]:
    found = {}
    for wire, form in section.sections():
        form.allow("base_url", "quirks", "only")
        quirks = form.section("quirks").plain()
        found[wire] = WireForm(form.get("base_url", str, base_url), quirks, form.get("only", str))
    return found


class _Rule(Struct, frozen=True):
    """Capabilities that a vendor documents for all its models, or for those matching a pattern."""

    match: re.Pattern[str]
    facts: Capabilities


def _read_rule(section: Section) -> _Rule:
    section.allow(*_FACTS, "match", "source", "as_of")
    facts = Capabilities.of(
        _read_values(section),
        "catalogue",
        at=section.get("as_of", str),
        by=section.get("source", str),
    )
    return _Rule(re.compile(section.get("match", str, "")), facts)


def _read_origins(vendor: str, root: Section) -> dict[bool, tuple[str | None, str | None]]:
    """Return the date and the source of the model rows in a vendor's file.

    The key ``False`` is for the file's own rows, ``True`` for the rows marked ``listed``, which
    were copied from a public list of models.
    """
    listed = root.section("listed")
    listed.allow("source", "as_of")
    return {
        False: (root.get("as_of", str), f"catalog/{vendor}.yaml"),
        True: (listed.get("as_of", str), listed.get("source", str)),
    }


def _read_facts(
    name: str,
    section: Section,
    origins: dict[bool, tuple[str | None, str | None]],
    rules: list[_Rule],
) -> Capabilities:
    """Read a model's capabilities: its row, overridden by the vendor's rules in order."""
    section.allow(*_FACTS, "tokens", "chat", "listed")
    as_of, source = origins[section.get("listed", bool, False)]
    known = Capabilities.of(_read_values(section), "catalogue", at=as_of, by=source)
    if section.get("chat", bool, True):
        for rule in rules:
            if rule.match.search(name):
                known = known.merged(rule.facts)
    if known.supports_tools.value is False:
        # A model without tools has neither streamed nor parallel tool calls.
        known = replace(
            known,
            supports_streaming_tool_calls=known.supports_tools,
            supports_parallel_tool_calls=known.supports_tools,
        )
    return known


def _read_values(section: Section) -> dict[str, Any]:
    return {
        fact: section.get(key, _KINDS.get(key, bool))
        for key, fact in _FACTS.items()
        if key in section.data
    }


# --- reading and writing the compiled catalogue ------------------------------------------------


class _Compiled(Struct, frozen=True):
    digest: str
    content: msgspec.Raw


@cache
def _read_compiled() -> dict[str, _Compiled]:
    try:
        data = _folder().joinpath("compiled.json").read_bytes()
        return msgspec.json.decode(data, type=dict[str, _Compiled])
    except (OSError, msgspec.MsgspecError):
        # The compiled catalogue is only a cache, so a damaged one is ignored.
        return {}


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def compile_catalog() -> bytes:
    """Return every vendor's parsed file, with its digest."""
    kept = {}
    for vendor in sorted(_bundled()):
        text = _folder().joinpath(f"{vendor}.yaml").read_bytes()
        content = msgspec.json.encode(parse_yaml(text, f"catalog/{vendor}.yaml").plain())
        kept[vendor] = _Compiled(_digest(text), msgspec.Raw(content))
    return (
        b"{\n"
        + b",\n".join(
            msgspec.json.encode(vendor) + b": " + msgspec.json.encode(each)
            for vendor, each in kept.items()
        )
        + b"\n}\n"
    )
