"""``connect``: open a provider by name or address."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack

from msgspec import Struct
from msgspec.structs import replace

from ..capabilities import Capabilities
from ..prices import PricedAs, PriceRow, name_host
from ..tokens import FAMILIES
from ..transport import HttpTransport, Timeouts, Transport
from ..validate import Settings
from ..validate.fields import suggest, take_renamed
from ..validate.parse import MISPLACED
from ..wire import CODECS
from .contract import Provider
from .http import HttpProvider
from .http_model import ApiKey, read_capabilities
from .model import Model
from .plugins import load_wires

SCHEMES: dict[str, str | Callable[..., Provider]] = {"local": "dragoman.local:LocalProvider"}
"""Model names that need no address, mapped to the function that opens the model or to its import
path."""
SCHEME_SETTINGS = ("capabilities", "timeouts", "on_loss", "keep_raw")
"""The settings of a model that is opened by its scheme; those for HTTP are ignored."""

# Import paths of objects in higher layers, imported on demand: with ``base_url`` they are rarely
# needed.
_REGISTRY = "dragoman.registry:open_name"
_REGISTRY_AT = "dragoman.registry:open_name_at"
_RETRY = "dragoman.middleware:Retry"
_DEFAULTS = "dragoman.middleware:Defaults"

# Settings that have other names in other libraries, and what to write instead.
_OTHER_NAMES = {
    "proxy": "pass transport=HttpTransport(proxy=...), or set HTTPS_PROXY",
    "verify": "pass transport=HttpTransport(ca=...)",
    "http_client": "pass transport=HttpTransport(...)",
    "timeout": "did you mean timeouts? timeouts=30 limits each call to 30 seconds",
    "retry": "did you mean retries?",
    "num_retries": "did you mean retries?",
    "api_base": "did you mean base_url?",
    "url": "did you mean base_url?",
    "key": "did you mean api_key?",
    "token": "did you mean api_key?",
    "default_headers": "did you mean headers?",
    "tools": "pass tools= to complete(), or to a Session, which runs them",
}

ModelT = TypeVar("ModelT", bound=Model)


def connect(
    model: str,
    *,
    base_url: str | None = None,
    wire: str | None = None,
    api_key: ApiKey | None = None,
    retries: int | None = None,
    capabilities: Capabilities | Mapping[str, Any] | None = None,
    quirks: Any = None,
    timeouts: Timeouts | Mapping[str, Any] | float | None = None,
    on_loss: Literal["warn", "reject"] = "warn",
    transport: Transport | None = None,
    name: str | None = None,
    vendor: str | None = None,
    headers: Mapping[str, str] | None = None,
    token_family: str | None = None,
    keep_raw: bool = True,
    canonical: bool | None = None,
    priced_as: PricedAs | PriceRow | str | None = None,
    **defaults: Unpack[Settings],
) -> Provider:
    """Return a provider for a model. Nothing is sent before the first call.

    ``model`` is a name such as ``"openai:gpt-6-sol"``, an alias in ``models.yaml``, or ``"local"`` for
    the embedded model. With ``base_url``, ``"vendor:model"`` is this vendor's model at that
    address, such as a proxy: with the vendor's wire, quirks, limits and prices, but without the
    vendor's key. Any other name is the one that the server at that address has for the model; the
    server's ``wire`` is ``"openai"`` by default.

    A call is sent once. ``retries=2`` adds a ``Retry`` layer, which repeats a call after a
    transient failure, as ``max_retries`` of an adapter in ``models.yaml`` does.

    ``api_key`` and ``headers`` are sent only to the origin of ``base_url``; without ``base_url``,
    the key comes from the environment. ``api_key`` may also be an ``Auth``, or a function that
    returns the key, or a ``Token``, which is renewed before it expires; it may be a coroutine
    function. ``capabilities`` declares what the model supports, and ``quirks`` how the server
    differs from the wire: as ``Capabilities`` and the wire's ``Quirks``, or as mappings of their
    fields. ``timeouts`` sets the four deadlines; a number sets only ``total``. ``name`` is the
    provider's name in events and errors, by default the vendor or the host; ``vendor`` is the
    vendor whose opaque state the endpoint understands; ``token_family`` is the tokenizer family
    for estimates, one of ``tokens.FAMILIES``. ``canonical`` sorts the keys of requests, so that
    equal ones have equal bytes. ``priced_as`` is the price, if the host of ``base_url`` does not
    determine it: ``"vendor:model"`` in a price table, ``"free"``, or a ``PriceRow``.

    ``defaults`` are settings for calls without their own: ``temperature=0``, ``system="Be brief."``.
    """
    retries = take_renamed("connect", defaults, "retries", "max_retries", retries)
    settings: dict[str, Any] = {
        "wire": wire, "api_key": api_key, "capabilities": capabilities, "quirks": quirks,
        "timeouts": timeouts, "on_loss": on_loss, "transport": transport, "name": name,
        "vendor": vendor, "headers": headers, "token_family": token_family,
        "keep_raw": keep_raw, "canonical": canonical, "priced_as": priced_as,
    }  # fmt: skip
    for wrong in defaults.keys() - Settings.__annotations__.keys():
        known = "base_url", "retries", *settings, *Settings.__annotations__
        hint = _OTHER_NAMES.get(wrong) or MISPLACED.get(wrong) or suggest(wrong, known)
        hint = hint or "see help(connect)"
        raise TypeError(f"connect() has no setting {wrong!r}; {hint}")
    opened = _open(model, base_url, retries, settings)
    return load(_DEFAULTS)(opened, **defaults) if defaults else opened


def _open(
    model: str, base_url: str | None, retries: int | None, settings: dict[str, Any]
) -> Provider:
    """Open a model by its name, by a vendor's name and an address, or by an address alone."""
    given = {
        name: value
        for name, value in settings.items()
        if value is not None and (name, value) not in (("on_loss", "warn"), ("keep_raw", True))
    }
    opened: Provider | None = None
    if base_url is None:
        opened = load(_REGISTRY)(model, retries, given)
    elif ":" in model or "/" in model:  # the name may begin with a vendor
        opened = load(_REGISTRY_AT)(model, base_url, retries, given)
    return opened or add_retries(bind(model, base_url or "", **settings), retries)


def add_retries(model: ModelT, retries: int | None) -> ModelT:
    """Wrap a model in a ``Retry``, if retries are requested."""
    retried: ModelT = load(_RETRY)(model, max_retries=retries) if retries else model
    return retried


def open_scheme(model: str, settings: Mapping[str, Any]) -> Provider:
    """Open a provider by a name whose scheme is in ``SCHEMES``, such as ``local:NAME``."""
    provider: Provider = open_by_scheme(SCHEMES, model, settings, SCHEME_SETTINGS)
    return provider


def open_by_scheme(
    schemes: dict[str, Any], model: str, settings: Mapping[str, Any], names: Sequence[str]
) -> Any:
    """Open a model with the function of its scheme, which gets only the settings in ``names``."""
    scheme, _, rest = model.partition(":")
    opener = schemes[scheme]
    if isinstance(opener, str):
        opener = schemes[scheme] = load(opener)
    return opener(rest, **{name: settings[name] for name in names if name in settings})


def bind(
    model: str,
    base_url: str,
    *,
    wire: str | None = None,
    capabilities: Capabilities | Mapping[str, Any] | None = None,
    quirks: Any = None,
    transport: Transport | None = None,
    name: str | None = None,
    vendor: str | None = None,
    token_family: str | None = None,
    keep_raw: bool = True,
    canonical: bool | None = None,
    **settings: Any,
) -> Provider:
    """Return a provider for a model at an address; ``connect`` documents the settings.

    ``hint`` is advice that is added to the error if the server cannot be reached. ``observe``
    receives replies and rejections, from which it derives the server's capabilities.
    """
    wire = wire or "openai"
    token_family = token_family or "default"
    if wire not in CODECS:
        load_wires()
    if wire not in CODECS:
        raise ValueError(f"unknown wire {wire!r}; one of {', '.join(sorted(CODECS))}")
    if token_family not in FAMILIES:
        raise ValueError(f"token_family: {token_family!r} is not one of {', '.join(FAMILIES)}")
    known = read_capabilities(capabilities)
    if canonical:
        is_read = isinstance(quirks, Struct)
        quirks = (
            replace(quirks, canonical=True) if is_read else {**(quirks or {}), "canonical": True}
        )
    codec = CODECS[wire].connect(model, base_url, quirks, known, vendor=vendor, keep_raw=keep_raw)
    return HttpProvider(
        codec,
        transport or HttpTransport(),
        name=name or vendor or name_host(base_url),
        model=model,
        capabilities=known,
        token_family=token_family,
        base_url=base_url,
        **settings,
    )


def load(place: str) -> Any:
    """Import an object by its path ``module:name``."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
