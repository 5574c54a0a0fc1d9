"""Adapters in ``models.yaml``: how to reach a group of models."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from ..capabilities import Capabilities
from ..errors import InvalidModelError, InvalidRequestError
from ..provider.http_model import show_url
from ..provider.plugins import load_wires
from ..retrieval import EMBED_CODECS, RERANK_CODECS
from ..retrieval.values import Operation
from ..transport import Timeouts
from ..transport.connect import is_loopback
from ..validate.fields import suggest
from ..validate.yaml import ConfigError, Section
from ..wire import CODECS
from .credentials import AuthSettings, read_auth
from .keys import read_key
from .limits import RateLimits, Retries, read_connection, read_rate_limit, read_timeouts
from .pools import Connection
from .vendors import RetrievalForm, Vendor, load_vendor, vendor_names

# The adapter contract allows arbitrary "options" for an adapter. It has these settings, and
# ``header_options`` of a wire's codec are sent as headers.
_OWN_OPTIONS: dict[str, type] = {"on_loss": str, "keep_raw": bool}


_NOWHERE = "https://not-configured.invalid"  # the address of an adapter without a base_url

# Values of ``type:`` that are neither a vendor nor the name of a wire.
_WIRES = {"openai-compatible": "openai"}


class Adapter(Struct, frozen=True, kw_only=True):
    """How to reach a group of models: address, wire, credentials, limits and timeouts."""

    name: str
    type: str
    api_key_env: str | None = None
    api_key: str | None = None
    base_url: str | None = None
    timeout_seconds: Annotated[float, Meta(ge=1e-9, le=1e12, description="positive")] = 600.0
    max_retries: Retries = 2
    extra_headers: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    quirks: dict[str, Any] = field(default_factory=dict)
    spare_key_envs: tuple[str, ...] = ()
    rate_limit: RateLimits | None = None
    timeouts: Timeouts | None = None
    connection: Connection = Connection()
    own_wire: str | None = None
    auth: AuthSettings | None = None
    embed: RetrievalForm = RetrievalForm("")
    rerank: RetrievalForm = RetrievalForm("")
    key_home: str | None = None
    """The variable whose key is not sent, since ``base_url`` is not the address it is for."""

    def __repr__(self) -> str:
        return f"Adapter({self.name!r}, type={self.type!r}, base_url={self.base_url!r})"

    def key(self) -> str | None:
        """Return the API key from ``models.yaml``, the environment or the key store, if any."""
        return next(iter(self.keys()), None)

    def keys(self) -> list[str]:
        """Return every API key that is set, in the order of the environment variables."""
        if self.api_key:
            return [self.api_key]
        found = [self.find_key(variable) for variable in self.key_envs]
        return [key for key in dict.fromkeys(found) if key]

    def find_key(self, variable: str) -> str | None:
        """Return the API key that the environment or the key store has for a variable.

        If the variable of a vendor is not set, those that other libraries read for the vendor
        count. A stored key of a vendor is returned only if the adapter uses the vendor's address.
        """
        vendor = self.vendor
        is_vendors = vendor is not None and vendor.api_key_env == variable
        variables = vendor.key_variables if vendor is not None and is_vendors else (variable,)
        if key := next(filter(None, map(os.environ.get, variables)), None):
            return key
        key = read_key(variable)
        return key if key and self._may_have(variable) else None

    def _may_have(self, variable: str) -> bool:
        """Return whether a stored key may be sent to the address of this adapter."""
        vendors = [load_vendor(name) for name in vendor_names()]
        owners = [vendor for vendor in vendors if vendor.api_key_env == variable]
        is_home = any(_same_origin(self.base_url, owner.base_url) for owner in owners)
        return is_home or not owners

    @property
    def withheld_key(self) -> str | None:
        """The name of a stored key that is not sent to this address, as it is for another."""
        stored = [name for name in self.key_envs if read_key(name) and not self._may_have(name)]
        return next(iter(stored), None)

    @property
    def key_envs(self) -> tuple[str, ...]:
        """The environment variables that hold the adapter's API keys."""
        return (self.api_key_env, *self.spare_key_envs) if self.api_key_env else ()

    @property
    def vendor(self) -> Vendor | None:
        """The catalogue entry of the vendor that ``type`` names; ``None`` for other types."""
        return load_vendor(self.type) if self.type in vendor_names() else None

    @property
    def wire(self) -> str:
        """The name of the wire the adapter uses."""
        return self.own_wire or (
            self.vendor.wire if self.vendor else _WIRES.get(self.type, self.type)
        )

    def with_wire(self, wire: str) -> Adapter:
        """Return a copy of the adapter that uses another wire.

        If the adapter uses the vendor's address, the copy uses the vendor's address for that wire.
        """
        vendor = self.vendor
        is_home = vendor is not None and self.base_url == vendor.address(self.wire)
        base_url = vendor.address(wire) if vendor and is_home else self.base_url
        return replace(self, own_wire=wire, base_url=base_url)

    def for_model(self, model: str) -> Adapter:
        """Return the adapter for a model, on another wire if only that wire serves the model.

        An adapter with an address of the user keeps its wire if the vendor has another address for
        the other one.
        """
        vendor = self.vendor
        if self.own_wire is not None or vendor is None or vendor.wire_of(model) == self.wire:
            return self
        wire = vendor.wire_of(model)
        own = vendor.address(self.wire)
        if vendor.other_wires[wire].base_url is not None and self.base_url != own:
            return self
        is_home = vendor.base_url is None or self.base_url is None
        return self.with_wire(wire) if is_home or _same_origin(self.base_url, own) else self

    def at(self, base_url: str, model: str) -> Adapter:
        """Return the adapter for a model of this vendor that is served at another address.

        Credentials, headers and proxies are for the origin that they were configured with, so
        another origin gets none of them.
        """
        wire = self.own_wire or (self.vendor.wire_of(model) if self.vendor else None)
        moved = replace(
            self,
            base_url=base_url,
            own_wire=wire,
            embed=replace(self.embed, base_url=None),
            rerank=replace(self.rerank, base_url=None),
        )
        if _same_origin(self.base_url or _NOWHERE, base_url):
            return moved
        return replace(
            moved,
            api_key=None,
            api_key_env=None,
            spare_key_envs=(),
            auth=None,
            extra_headers={},
            connection=Connection(),
            key_home=self.api_key_env,
        )

    def with_retrieval_wire(self, operation: Operation, wire: str | None) -> Adapter:
        """Return a copy of the adapter that embeds or ranks on another wire, if one is given."""
        if wire is None:
            return self
        form = replace(getattr(self, operation), wire=wire)
        return replace(self, embed=form) if operation == "embed" else replace(self, rerank=form)

    @property
    def all_quirks(self) -> dict[str, Any]:
        """How the servers differ from the wire: the vendor's and the adapter's own quirks."""
        return {**(self.vendor.quirks_of(self.wire) if self.vendor else {}), **self.quirks}

    @property
    def is_configured(self) -> bool:
        """Whether the adapter is usable without further settings.

        A local server needs no key.
        """
        needs_key = self.auth is None and self._default_auth is None and self.api_key_env
        return bool(self.base_url) and (not needs_key or self.key() is not None)

    @property
    def _default_auth(self) -> AuthSettings | None:
        """The credentials other than an API key that the environment provides, or ``None``.

        They are sent only to the vendor's own address.
        """
        vendor = self.vendor
        kind = vendor.default_auth if vendor is not None else None
        if vendor is None or kind is None:
            return None
        is_home = _same_origin(self.base_url, vendor.address(self.wire))
        return AuthSettings(kind) if is_home else None

    @property
    def is_local(self) -> bool:
        """Whether the server is local.

        It is if its address is loopback, or if it runs local software such as Ollama.
        """
        try:
            host = urlsplit(self.base_url or "").hostname or ""
        except ValueError:
            return False
        return is_loopback(host) or bool(self.vendor and self.vendor.local)

    def settings(self) -> dict[str, Any]:
        """Return the adapter's arguments for ``connect``, except the model."""
        self._check_address()
        vendor = self.vendor
        headers = dict(self.extra_headers)
        settings: dict[str, Any] = {}
        for option, value in self.options.items():
            if option in _OWN_OPTIONS:
                settings[option] = value
            elif header := _header_of(option, self.wire):
                headers.setdefault(header, value)
        key = self.key() if self.auth is None else None
        auth = self.auth or (self._default_auth if key is None else None)
        return settings | {
            "wire": self.wire,
            "base_url": self.base_url or _NOWHERE,
            "api_key": key if auth is None else auth.build(),
            "quirks": self.all_quirks or None,
            "timeouts": self.deadlines(),
            "name": self.name,
            "vendor": vendor.id if vendor else None,
            "headers": headers,
            "hint": vendor.hint if vendor else None,
            "key_hint": self._advise_refused(),
            "address_env": self.address_env,
        }

    def _check_address(self) -> None:
        """Raise an error if an environment variable names an address that is not a URL."""
        variable = self.address_env
        address = self.base_url or ""
        if variable is not None and not address.lower().startswith(("http://", "https://")):
            raise InvalidRequestError(
                f"{variable} must be an http or https URL, not {show_url(address)!r}",
                provider=self.name,
                advice=f"Correct the environment variable {variable}, or unset it.",
            )

    def _advise_refused(self) -> str | None:
        """Return advice for the error if the server demands a key that it did not get."""
        if self.key_home is None:
            return None
        return f"The key in {self.key_home} is not for this address; give one with api_key=."

    @property
    def address_env(self) -> str | None:
        """The environment variable that the address comes from, or ``None``."""
        vendor = self.vendor
        variable = vendor.address_variable(self.wire) if vendor is not None else None
        if vendor is None or variable is None:
            return None
        is_set = bool(os.environ.get(variable, "").strip())
        return variable if is_set and self.base_url == vendor.address(self.wire) else None

    def deadlines(self, own: Mapping[str, float | None] | None = None) -> Timeouts:
        """Return the timeouts for calls: the adapter's, overridden by those in ``own``.

        ``own`` has the timeouts of a group's candidate.
        """
        return replace(self.timeouts or Timeouts(total=self.timeout_seconds), **(own or {}))

    def retrieval_settings(self, operation: Operation) -> dict[str, Any]:
        """Return the adapter's arguments for ``connect_embedder`` or ``connect_reranker``."""
        vendor = self.vendor
        own: RetrievalForm = getattr(self, operation)
        side: RetrievalForm | None = getattr(vendor, operation, None)
        known = EMBED_CODECS if operation == "embed" else RERANK_CODECS
        wire = own.wire or (side.wire if side is not None else self.wire)
        if wire not in known:
            what = "embeds" if operation == "embed" else "ranks"
            raise InvalidModelError(
                f"no model of {self.name} {what}: its wire, {wire}, does not support it"
            )
        at_home = vendor is not None and _same_origin(self.base_url, vendor.base_url)
        elsewhere = side.base_url if side is not None and at_home else None
        chat = self.settings()
        quirks = {
            **(side.quirks if side is not None and side.wire == wire else {}),
            **own.quirks,
        }
        keys = (
            "api_key", "timeouts", "name", "headers", "hint", "key_hint", "address_env", "on_loss",
            "keep_raw",
        )  # fmt: skip
        return {key: chat[key] for key in keys if chat.get(key) is not None} | {
            "wire": wire,
            "base_url": own.base_url or elsewhere or chat["base_url"],
            "quirks": quirks or None,
        }


def read_adapter(name: str, section: Section, remarks: list[ConfigError]) -> Adapter:
    """Read an adapter; ``remarks`` receives the settings that have no effect."""
    found = section.values(
        Adapter,
        without=("name", "api_key_env", "spare_key_envs", "connection", "own_wire", "key_home"),
        more=("api_key_env", "proxy", "ca", "client_cert", "wire"),
    )
    kind = found.get("type", name)
    load_wires()
    kinds = {*CODECS, *_WIRES, *vendor_names()}
    if kind not in kinds:
        wrong = find_nearest(kind, kinds) or f"; one of {', '.join(sorted(kinds))}"
        section.complain(f"no such type {kind!r}{wrong}", "type")
        kind = "openai"
    vendor = load_vendor(kind) if kind in vendor_names() else None
    wire = _read_wire(section, vendor)
    base_url = found.get("base_url", vendor.address(wire) if vendor else None)
    # The vendor's key goes to the vendor's own address only; an adapter with another base_url must
    # name its own key.
    inherits = (
        vendor is not None
        and "api_key" not in found
        and any(_same_origin(base_url, own) for own in (vendor.base_url, vendor.address(wire)))
    )
    variables = _read_variables(section)
    if not variables and vendor and inherits and vendor.api_key_env:
        variables = (vendor.api_key_env,)
    if "timeout_seconds" in section.data and "timeouts" in section.data:
        section.complain("is the total of timeouts; give one of them", "timeout_seconds")
    timeouts = read_timeouts(section)
    found |= {
        "type": kind,
        "api_key_env": next(iter(variables), None),
        "spare_key_envs": variables[1:],
        "base_url": base_url,
        "timeout_seconds": float(found.get("timeout_seconds", 600)),
        "extra_headers": _read_headers(section.section("extra_headers")),
        "options": section.section("options").plain(),
        "quirks": section.section("quirks").plain(),
        "rate_limit": read_rate_limit(section),
        "timeouts": None if timeouts is None else Timeouts(**timeouts),
        "connection": read_connection(section),
        "own_wire": wire,
        "auth": read_auth(section),
        "embed": _read_side(section, "embed", EMBED_CODECS, base_url),
        "rerank": _read_side(section, "rerank", RERANK_CODECS, base_url),
    }
    adapter = Adapter(name=name, **found)
    _check_options(adapter, section.section("options"), remarks)
    _check_dialect(adapter, section)
    return adapter


def _read_wire(section: Section, vendor: Vendor | None) -> str | None:
    """Read ``wire``: one that the vendor offers, or any wire if ``base_url`` is set too."""
    wire: str | None = section.get("wire", str)
    if wire is None:
        return None
    is_home = vendor is not None and "base_url" not in section.data
    offered = list(vendor.wires if vendor and is_home else CODECS)
    if wire not in offered:
        who = f"{vendor.name} offers" if vendor and len(offered) < len(CODECS) else "one of"
        near = find_nearest(wire, offered) or f"; {who} {', '.join(offered)}"
        section.complain(f"no such wire {wire!r}{near}", "wire")
        return None
    return wire


def _read_side(
    section: Section, key: str, codecs: Mapping[str, Any], base_url: str | None
) -> RetrievalForm:
    """Read the ``embed`` or ``rerank`` section of an adapter.

    Report an address or quirk that the wire rejects.
    """
    own = section.section(key)
    own.allow("wire", "base_url", "quirks")
    wire = own.choice("wire", tuple(codecs)) or ""
    quirks = own.section("quirks").plain()
    side = RetrievalForm(wire, own.get("base_url", str), quirks)
    if side.wire:
        try:
            codecs[side.wire].connect("m", side.base_url or base_url or _NOWHERE, side.quirks)
        except ValueError as error:
            own.complain(str(error))
    return side


def _same_origin(url: str | None, other: str | None) -> bool:
    """Return whether two URLs have the same scheme, host and port; ``None`` matches any URL."""
    if url is None or other is None:
        return True
    try:
        parts = urlsplit(url)
        others = urlsplit(other)
    except ValueError:  # an invalid address is reported elsewhere, by _check_dialect
        return False
    return (parts.scheme, parts.netloc.lower()) == (others.scheme, others.netloc.lower())


def find_nearest(word: str, known: Collection[str]) -> str:
    """Return a hint at the most similar known word, or an empty string."""
    hint = suggest(word, sorted(known))
    return f"; {hint}" if hint else ""


def _read_variables(section: Section) -> tuple[str, ...]:
    """Read ``api_key_env``: the name of an environment variable, or a list of them."""
    if not isinstance(section.data.get("api_key_env"), list):
        name = section.get("api_key_env", str)
        return () if name is None else (name,)
    names = section.texts("api_key_env") or ()
    if not names:
        section.complain("must be the name of a variable, or a list of them", "api_key_env")
    return names


def _read_headers(section: Section) -> dict[str, str]:
    headers = section.plain()
    for header, value in headers.items():
        if not isinstance(value, str):
            section.complain("must be a string", header)
        elif not value.isprintable():
            section.complain("must be one line of printable text", header)
    return headers


def _header_of(option: str, wire: str) -> str | None:
    """Return the header that an option of an adapter is sent as, if any."""
    options: Mapping[str, str] = getattr(CODECS[wire], "header_options", {})
    return options.get(option.replace("-", "_"))


def _check_options(adapter: Adapter, section: Section, remarks: list[ConfigError]) -> None:
    for option, value in adapter.options.items():
        kind = _OWN_OPTIONS.get(option, str if _header_of(option, adapter.wire) else None)
        # The adapter contract allows any option, so an unknown one is a remark, not an error.
        if kind is None:
            remarks.append(section.fail("no adapter of this type reads this option", option))
        elif type(value) is not kind:
            section.complain(f"must be {'true or false' if kind is bool else 'a string'}", option)
        elif option == "on_loss":
            section.choice(option, ("warn", "reject"))


def _check_dialect(adapter: Adapter, section: Section) -> None:
    """Report an address or quirk that the wire would otherwise reject at the first call."""
    try:
        codec = CODECS[adapter.wire]
    except ValueError as error:  # the package of the wire is broken
        section.complain(str(error), "wire" if "wire" in section.data else "type")
        return
    try:
        base_url = adapter.base_url or _NOWHERE
        quirks = adapter.all_quirks or None
        codec.connect("m", base_url, quirks, Capabilities())
    except ValueError as error:
        is_address = "base_url" in str(error) and "base_url" in section.data
        section.complain(str(error), "base_url" if is_address else "quirks")
