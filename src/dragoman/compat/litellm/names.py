"""Find the vendor that a model name of LiteLLM refers to, by the table ``catalog/litellm.json``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import Struct

from ...registry import load_vendor


class Route(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the models with one prefix are: a vendor of the catalogue, or a compatible API.

    ``path`` is added to addresses that users give. ``template`` is the address of a cloud, and
    ``auth`` its credentials, in which ``settings`` are filled in; with ``variables`` they fill in
    the address of the vendor ``seller`` on ``wire``, as the variables of these names would. An
    address that is given has this wire. ``strip`` and ``prefix`` are beginnings of model names to
    remove and to add; ``only`` that of all models that it has, and ``others`` are routes of other
    models with the same prefix.
    """

    vendor: str = ""
    base_url: str | None = None
    api_key_env: str | None = None
    path: str = ""
    template: str = ""
    settings: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    seller: str = ""
    wire: str | None = None
    auth: dict[str, str] = {}
    strip: tuple[str, ...] = ()
    prefix: str = ""
    only: str = ""
    others: tuple[Route, ...] = ()

    @property
    def key_variable(self) -> str | None:
        """The environment variable that holds the API key."""
        return load_vendor(self.vendor).api_key_env if self.vendor else self.api_key_env

    def find_adapter(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the address and the credentials of an adapter; empty if they are the vendor's."""
        found = {name: given.get(name) for name in self.settings}
        wire = {"wire": self.wire} if self.wire else {}
        if base_url := given.get("api_base"):
            base_url = base_url.rstrip("/")
            complete = base_url if self.path in base_url else base_url + self.path
            return {"base_url": complete, **wire}
        if found and None not in found.values():
            auth = {key: value.format_map(found) for key, value in self.auth.items()}
            return {"base_url": self._fill_address(found), "auth": auth, **wire}
        own = {"base_url": self.base_url, "api_key_env": self.api_key_env}
        return own if self.base_url else {}

    def _fill_address(self, found: dict[str, Any]) -> str | None:
        """Return the address of a cloud with the settings of a call."""
        if not self.variables:
            return self.template.format_map(found)
        given = {self.variables[name]: value for name, value in found.items()}
        return load_vendor(self.seller).address(self.wire, given)


class Named(Struct, frozen=True):
    """A model: LiteLLM's name for its provider, its route, and the vendor's name for it."""

    provider: str
    route: Route
    model: str


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    routes: dict[str, Route]
    unprefixed: tuple[str, ...]  # the providers whose models need no prefix
    strategies: dict[str, str]
    no_effect: dict[str, str]  # parameters of a call without an effect, and what to use instead
    advice: dict[str, str]  # settings of a proxy without an equal, and what to do about them
    options: tuple[str, ...]  # parameters of a call that are not part of the request body
    # for each section of a proxy's configuration, the settings that are converted
    settings: dict[str, tuple[str, ...]]
    errors: dict[str, tuple[int, str, tuple[str, ...]]]  # status, parent, Dragoman's classes
    records: dict[str, dict[str, Any]]  # items that a part of a reply always has


@cache
def read_table() -> _Table:
    """Return the table of LiteLLM's names and settings."""
    data = files("dragoman").joinpath("catalog", "litellm.json").read_bytes()
    return msgspec.json.decode(data, type=_Table)


def find_name(model: str, provider: str | None = None) -> Named | None:
    """Return where a model is; ``None`` if neither its prefix nor its name is known."""
    table = read_table()
    prefix, slash, rest = model.partition("/")
    if slash and prefix == (provider or prefix) and prefix in table.routes:
        provider = prefix
        model = rest
    for each in table.unprefixed if provider is None else ():
        if provider is None and load_vendor(table.routes[each].vendor).lists(model):
            provider = each
    known = table.routes.get(provider or "")
    routes = (known, *known.others) if known is not None else ()
    route = next((each for each in routes if model.startswith(each.only)), None)
    if provider is None or route is None:
        return None
    for start in route.strip:
        model = model.removeprefix(start)
    is_complete = not route.prefix or model.startswith(route.prefix)
    return Named(provider, route, model if is_complete else route.prefix + model)
