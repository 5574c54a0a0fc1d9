"""How a name and an address become a provider."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ..capabilities import Capabilities
from ..prices import PricedAs, PriceRow
from ..tokens import FAMILIES
from ..transport import HttpTransport, Timeouts, Transport
from ..wire import CODECS
from .contract import Provider
from .http import HttpProvider

SCHEMES: dict[str, str | Callable[..., Provider]] = {"local": "dragoman.local:open_local"}
"""Names that do not need an address, with the function that opens them, or with its place until it is needed."""


def connect(
    model: str,
    *,
    wire: str = "openai",
    base_url: str | None = None,
    api_key: str | None = None,
    capabilities: Capabilities | Mapping[str, Any] | None = None,
    quirks: Any = None,
    timeouts: Timeouts | Mapping[str, Any] | float | None = None,
    on_loss: Literal["warn", "reject"] = "warn",
    transport: Transport | None = None,
    name: str | None = None,
    vendor: str | None = None,
    headers: Mapping[str, str] | None = None,
    token_family: str = "default",  # noqa: S107 - as above
    keep_raw: bool = True,
    priced_as: PricedAs | PriceRow | str | None = None,
) -> Provider:
    """Bind a model at an address. Nothing is sent before the first call.

    ``api_key`` and ``headers`` go to the origin of ``base_url`` and nowhere else. ``capabilities`` is
    what you know the model can do, by the contract's names; ``quirks`` how the server differs, as the
    wire's ``Quirks`` or a mapping of its fields; ``timeouts`` the four deadlines, or a number for
    ``total``. ``name`` labels the provider in events and errors; ``vendor`` names whose opaque state
    the endpoint understands; ``token_family`` is the vocabulary that lengths are estimated by, one of
    ``tokens.FAMILIES``. ``priced_as`` is what calls are sold as, if the host of ``base_url`` does not tell:
    ``"vendor:model"`` of a price table, ``"free"``, or a ``PriceRow``.
    """
    scheme, _, rest = model.partition(":")
    if base_url is None and scheme in SCHEMES:
        given = {"capabilities": capabilities, "timeouts": timeouts, "on_loss": on_loss, "keep_raw": keep_raw}
        return _opener(scheme)(rest, **{key: value for key, value in given.items() if value is not None})
    if base_url is None:
        raise ValueError(f"connect({model!r}): base_url is required, such as http://127.0.0.1:8080/v1")
    if wire not in CODECS:
        raise ValueError(f"unknown wire {wire!r}; one of {', '.join(sorted(CODECS))}")
    if token_family not in FAMILIES:
        raise ValueError(f"token_family: {token_family!r} is not one of {', '.join(FAMILIES)}")
    if on_loss not in ("warn", "reject"):
        raise ValueError(f"on_loss must be 'warn' or 'reject', not {on_loss!r}")
    known = capabilities if isinstance(capabilities, Capabilities) else Capabilities.of(capabilities or {})
    codec = CODECS[wire].connect(model, base_url, quirks, known, vendor=vendor, keep_raw=keep_raw)
    provider = HttpProvider(
        codec,
        transport or HttpTransport(),
        name=name or vendor or wire,
        model=model,
        api_key=api_key,
        headers=headers,
        capabilities=known,
        token_family=token_family,
        timeouts=_parse_timeouts(timeouts),
        on_loss=on_loss,
        base_url=base_url,
    )
    if priced_as is not None:
        provider.priced_as = priced_as
    return provider


def _opener(scheme: str) -> Callable[..., Provider]:
    opener = SCHEMES[scheme]
    if isinstance(opener, str):
        module, _, name = opener.partition(":")
        opener = SCHEMES[scheme] = getattr(importlib.import_module(module), name)
    assert not isinstance(opener, str)
    return opener


def _parse_timeouts(timeouts: Timeouts | Mapping[str, Any] | float | None) -> Timeouts:
    if timeouts is None or isinstance(timeouts, Timeouts):
        return timeouts or Timeouts()
    if isinstance(timeouts, Mapping):
        for key in timeouts:
            if key not in Timeouts.__struct_fields__:
                raise ValueError(f"timeouts: unknown name {key!r}; one of {', '.join(Timeouts.__struct_fields__)}")
        return Timeouts(**timeouts)
    return Timeouts(total=timeouts)
