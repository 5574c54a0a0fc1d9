"""The bundled catalogue: one YAML file per vendor, read when the vendor is first used.

The files are also stored compiled, each with the digest of its source; only a changed file is
parsed again.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Mapping
from functools import cache, cached_property
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from ..capabilities import Capabilities
from ..provider.plugins import find_plugins, read_plugin_file
from ..validate.yaml import parse_yaml
from .updates import read_update

FACTS = {
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
    "ends": "end_date",
    "successor": "successor",
}
# The keys of a model, and of a rule, that are not capabilities.
_MODEL_KEYS = ("tokens", "chat", "listed")
_RULE_KEYS = ("match", "source", "as_of")


class _Part(Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping in a vendor's file."""


class WireForm(_Part, frozen=True):
    """How a vendor implements one wire.

    ``only`` is a pattern for the models that need this wire, because the vendor serves them on it
    alone, or with all their abilities on it alone. It is used unless the user chooses another.
    ``proofs`` are those of the quirks that the vendor's default wire has no proof for, and
    ``base_url_env`` the variable in which users set the address of this wire.
    """

    base_url: str | None = None
    quirks: dict[str, Any] = field(default_factory=dict)
    only: str | None = None
    proofs: dict[str, str] = field(default_factory=dict)
    base_url_env: str | None = None


class RetrievalForm(_Part, frozen=True):
    """How a vendor embeds or ranks: wire, quirks, and the address if it differs from chat."""

    wire: str = "openai"
    base_url: str | None = None
    quirks: dict[str, Any] = field(default_factory=dict)
    proofs: dict[str, str] = field(default_factory=dict)


class VendorAuth(_Part, frozen=True):
    """Credentials that replace an API key if one of the variables in ``env`` is set."""

    type: str | None = None
    env: tuple[str, ...] = ()


class AddressPart(_Part, frozen=True):
    """A part of a vendor's addresses, such as an account or a region, that each user sets.

    The value of the first variable in ``env`` that is set replaces the part, in the form that
    ``forms`` has for this value or else for ``*``; ``{}`` in a form stands for the value.
    """

    env: tuple[str, ...]
    forms: dict[str, str] = field(default_factory=dict)

    def find(self, environ: Mapping[str, str] = os.environ) -> str | None:
        """Return what replaces the part; ``None`` if no variable is set."""
        value = next((found for name in self.env if (found := environ.get(name))), None)
        if value is None:
            return None
        form = self.forms.get(value, self.forms.get("*", "{}"))
        return form.replace("{}", quote(value, safe=""))


class Retirement(_Part, frozen=True):
    """The models that a vendor switches off on one day, each with the recommended successor.

    The successor is ``None`` if the vendor recommends no model.
    """

    models: dict[str, str | None]
    source: str
    as_of: str


class Origin(_Part, frozen=True):
    """The public list from which rows marked ``listed`` were copied, and its date."""

    source: str | None = None
    as_of: str | None = None


_FIELDS = {"chats": "chat", "rows": "models", "rules": "facts", "other_wires": "wires"}


class Vendor(_Part, frozen=True, dict=True, rename=_FIELDS, kw_only=True):
    """A vendor: its address, how its servers differ from the wire, and what its models can do.

    ``tokens`` is the tokenizer family of its models, ``families`` the exceptions by model.
    ``base_url_env`` is the environment variable in which users set the server's address, and the
    vendor's own clients read it; ``root`` is the path of an address that has none. ``hint`` is the
    advice if no server responds there. ``not_chat`` lists the models that embed or transcribe;
    ``chats`` is false for a vendor without chat models. ``wire`` is the default of ``wires``;
    ``embed`` and ``rerank`` describe how the vendor embeds and ranks. ``rows`` are the models and
    ``rules`` the documented capabilities as in the file; ``models`` combines them. ``retirements``
    are the models that the vendor switches off, by day. ``parts`` are the texts in its addresses
    that variables replace; one in capitals has no default. ``aliases`` are other names of the
    vendor, ``key_aliases`` are variables in which other libraries look for its key, which count if
    ``api_key_env`` is not set, and ``source`` is where its address and its key variable were seen.
    """

    id: str = ""
    name: str = ""
    wire: str = "openai"
    base_url: str | None = None
    api_key_env: str | None = None
    key_aliases: tuple[str, ...] = ()
    docs: str = ""
    aliases: tuple[str, ...] = ()
    source: str = ""
    tokens: str = "default"
    local: bool = False
    quirks: dict[str, Any] = field(default_factory=dict)
    proofs: dict[str, str] = field(default_factory=dict)
    base_url_env: str | None = None
    root: str = ""
    hint: str | None = None
    chats: bool = True
    embed: RetrievalForm | None = None
    rerank: RetrievalForm | None = None
    auth: VendorAuth = VendorAuth()
    parts: dict[str, AddressPart] = field(default_factory=dict)
    as_of: str | None = None
    listed: Origin = Origin()
    other_wires: dict[str, WireForm] = field(default_factory=dict)
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)
    retirements: dict[str, Retirement] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def key_variables(self) -> tuple[str, ...]:
        """The environment variables that may hold the vendor's key; the first one counts first."""
        return (self.api_key_env, *self.key_aliases) if self.api_key_env else ()

    @cached_property
    def wires(self) -> dict[str, WireForm]:
        """How the vendor implements each wire that it offers; the default wire comes first."""
        others = {
            wire: replace(form, base_url=form.base_url or self.base_url)
            for wire, form in self.other_wires.items()
        }
        return {self.wire: WireForm(self.base_url, self.quirks), **others}

    @cached_property
    def models(self) -> dict[str, Capabilities]:
        """The capabilities of each model: its row, overridden by the rules in order."""
        rules = [
            (
                re.compile(rule.get("match", "")),
                _read_facts(rule, _RULE_KEYS, rule.get("as_of"), rule.get("source")),
            )
            for rule in self.rules.values()
        ]
        return {name: self._read_model(name, row, rules) for name, row in self.rows.items()}

    def _read_model(
        self, name: str, row: dict[str, Any], rules: list[tuple[re.Pattern[str], Capabilities]]
    ) -> Capabilities:
        origin = Origin(f"catalog/{self.id}.yaml", self.as_of)
        if row.get("listed"):
            origin = self.listed
        known = _read_facts(row, _MODEL_KEYS, origin.as_of, origin.source)
        if row.get("chat", True):
            for match, facts in rules:
                if match.search(name):
                    known = known.merged(facts)
        if known.supports_tools.value is False:
            # A model without tools has neither streamed nor parallel tool calls.
            known = replace(
                known,
                supports_streaming_tool_calls=known.supports_tools,
                supports_parallel_tool_calls=known.supports_tools,
            )
        return known

    @cached_property
    def families(self) -> dict[str, str]:
        """The tokenizer families of models that differ from ``tokens``."""
        return {name: row["tokens"] for name, row in self.rows.items() if row.get("tokens")}

    @cached_property
    def not_chat(self) -> frozenset[str]:
        """The models that embed or transcribe, and do not take messages."""
        return frozenset([name for name, row in self.rows.items() if not row.get("chat", True)])

    def address(
        self, wire: str | None = None, environ: Mapping[str, str] = os.environ
    ) -> str | None:
        """Return a wire's base URL; the variable ``base_url_env`` may replace its host and port.

        Return ``None`` if a part of it is unknown. ``environ`` has the values of the variables.
        """
        form = self.wires.get(wire or self.wire)
        base_url = form.base_url if form is not None else self.base_url
        variable = self.address_variable(wire)
        given = environ.get(variable, "").strip() if variable else ""
        if given:
            return self.complete(given, base_url)
        for part, setting in self.parts.items():
            if base_url is not None and part in base_url:
                found = setting.find(environ)
                # A part in capitals stands for something that only the user knows.
                if found is None and part.isupper():
                    return None
                base_url = base_url.replace(part, found or part)
        return base_url

    def address_variable(self, wire: str | None = None) -> str | None:
        """Return the environment variable in which users set the address of a wire, if any.

        A wire that a hosted vendor offers at an address of its own has a variable of its own.
        """
        form = self.other_wires.get(wire or self.wire)
        if form is None or form.base_url is None or self.local:
            return self.base_url_env
        return form.base_url_env

    def missing_variables(self, wire: str | None = None) -> list[str]:
        """Return the variables of which one is needed for the address of a wire; often none."""
        form = self.wires.get(wire or self.wire)
        base_url = (form.base_url if form is not None else None) or ""
        parts = [
            setting.env[0]
            for part, setting in self.parts.items()
            if part.isupper() and part in base_url and setting.find() is None
        ]
        variable = self.address_variable(wire)
        return parts or ([variable] if variable and not base_url else [])

    def complete(self, given: str, base_url: str | None = None) -> str:
        """Return an address of the user with the path that the vendor's servers have.

        An address of a local server may lack the scheme, the port or the path of ``base_url``.
        """
        if self.local:
            return _complete_url(given, base_url or "")
        has_path = bool(urlsplit(given).path.strip("/"))
        return given if has_path or not self.root else given.rstrip("/") + self.root

    @property
    def default_auth(self) -> str | None:
        """The type of credentials other than an API key that the environment provides, if any."""
        return self.auth.type if any(os.environ.get(name) for name in self.auth.env) else None

    def quirks_of(self, wire: str) -> dict[str, Any]:
        """Return the vendor's quirks on a wire."""
        form = self.wires.get(wire)
        return form.quirks if form is not None else {}

    def wire_of(self, model: str) -> str:
        """Return the wire for a model: the default, unless the model needs another one."""
        forms = [
            name for name, form in self.wires.items() if form.only and re.search(form.only, model)
        ]
        return forms[0] if forms else self.wire

    @cached_property
    def ends(self) -> dict[str, Capabilities]:
        """The end dates and successors of the models that the vendor switches off."""
        return {
            name: Capabilities.of(
                {"end_date": day, "successor": successor},
                "catalogue",
                at=retirement.as_of,
                by=retirement.source,
            )
            for day, retirement in self.retirements.items()
            for name, successor in retirement.models.items()
        }

    def facts_of(self, model: str) -> Capabilities | None:
        """Return the capabilities of a model: the bundled file merged with the user's update."""
        known = self.models.get(model)
        if (end := self.ends.get(model)) is not None:
            known = (known or Capabilities()).merged(end)
        update = read_update()
        listed = update.models(self.id).get(model)
        if listed is None:
            return known
        values = {FACTS[key]: value for key, value in listed.facts.items() if key in FACTS}
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
        return list(dict.fromkeys([*self.rows, *read_update().models(self.id)]))

    def lists(self, model: str) -> bool:
        """Return whether a model is in the bundled file or in the user's update."""
        return model in self.rows or model in read_update().models(self.id)

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
def _aliases() -> dict[str, str]:
    """Return the vendors of the bundled catalogue by their other names."""
    return {alias: vendor for vendor in _bundled() for alias in load_vendor(vendor).aliases}


def find_vendor(name: str) -> str | None:
    """Return the vendor with a name, or with this name as an alias; ``None`` if there is none."""
    return name if name in vendor_names() else _aliases().get(name)


@cache
def load_vendor(vendor: str) -> Vendor:
    """Return a vendor, read from its file in the bundled catalogue or in a plugin."""
    if vendor not in _bundled():
        place = find_plugins("dragoman.vendors")[vendor].value
        text = read_plugin_file("dragoman.vendors", vendor)
    else:
        place = f"catalog/{vendor}.yaml"
        text = _folder().joinpath(f"{vendor}.yaml").read_bytes()
    kept = _read_compiled().get(vendor)
    if kept is not None and kept.digest == _digest(text):
        found = msgspec.json.decode(kept.content, type=Vendor)
    else:
        found = parse_yaml(text, place).convert(Vendor)
    return replace(found, id=vendor, name=found.name or vendor)


def _folder() -> Any:
    return files("dragoman").joinpath("catalog")


def _read_facts(
    row: Mapping[str, Any], others: Collection[str], at: str | None, by: str | None
) -> Capabilities:
    """Read the capabilities of a model or of a rule; ``others`` are its other keys."""
    facts = {FACTS.get(key, key): value for key, value in row.items() if key not in others}
    return Capabilities.of(facts, "catalogue", at=at, by=by)


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
    """Return every vendor's parsed file with its digest; each model has a line of its own."""
    vendors = {}
    for vendor in sorted(_bundled()):
        text = _folder().joinpath(f"{vendor}.yaml").read_bytes()
        content = parse_yaml(text, f"catalog/{vendor}.yaml").plain()
        if "models" in content:
            content["models"] = _write_lines(content["models"])
        vendors[vendor] = _Compiled(_digest(text), msgspec.Raw(msgspec.json.encode(content)))
    return bytes(_write_lines(vendors)) + b"\n"


def _write_lines(entries: Mapping[str, Any]) -> msgspec.Raw:
    """Return a JSON object with a line for each entry, so that a change rewrites few lines."""
    lines = [
        msgspec.json.encode(key) + b": " + msgspec.json.encode(entries[key]) for key in entries
    ]
    return msgspec.Raw(b"{\n" + b",\n".join(lines) + b"\n}")
