"""Resolve a name to an entry of ``models.yaml`` or of the bundled catalogue."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property, lru_cache

from msgspec.structs import replace

from ..capabilities import Capabilities, join_candidates
from ..errors import InvalidModelError
from ..prices import PricedAs, PriceTable, find_seller
from ..provider import SCHEMES
from ..wire import CODECS
from ..wire.beliefs import vendor_of
from ..wire.listing import find_efforts
from ..wire.reasoning import join_efforts
from .adapters import Adapter
from .entries import File, ModelEntry
from .groups import Candidate, Group, expand_group
from .observed import ObservedFacts, observed_path
from .updates import read_update, update_prices
from .vendors import find_vendor, load_vendor, vendor_names

# The tags of Ollama's models: sizes, quantizations and variants.
_TAG = re.compile(r"latest|v?\d.{0,100}|(instruct|text|chat|code)([-_].{0,100})?")


class Names:
    """An index of the names in one version of ``models.yaml``.

    It is replaced atomically when the file changes, so a lookup never mixes two versions.
    """

    def __init__(self, file: File) -> None:
        self.file = file
        self.adapters = {adapter.name: adapter for adapter in file.adapters}
        self.models = {model.id: model for model in file.models}
        self.groups = {group.name: group for group in file.groups}
        named: list[tuple[str, ModelEntry | Group]] = [*self.models.items(), *self.groups.items()]
        self.aliases = {alias: name for name, each in named for alias in each.aliases}
        self.observed = ObservedFacts(observed_path() if file.observed else None)

    @property
    def own_prices(self) -> PriceTable | None:
        """The price table for these names; ``None`` to use the default table.

        It is the table that ``models.yaml`` names or, without one, the bundled prices plus those
        of the catalogue update. It is ``None`` if ``DRAGOMAN_PRICES`` names a table, or if
        ``models.yaml`` names none and the catalogue has not been updated.
        """
        if os.environ.get("DRAGOMAN_PRICES"):
            return None
        update = read_update()
        own = self.file.prices
        if own is not None or not update.vendors:
            return own
        return _add_prices(update.source, update.as_of, id(update))

    def adapter(self, name: str) -> Adapter:
        """Return an adapter by name, from ``models.yaml`` or otherwise from the catalogue."""
        if name in self.adapters:
            return self.adapters[name]
        vendor = load_vendor(name)
        return Adapter(
            name=name, type=name, api_key_env=vendor.api_key_env, base_url=vendor.address()
        )

    def listed(self) -> list[str]:
        """Return the names of all groups and models.

        Those in ``models.yaml`` come first, then the other models in the catalogue.
        """
        listed = [
            f"{vendor}:{name}"
            for vendor in vendor_names()
            for name in load_vendor(vendor).listed_models()
        ]
        return [*self.groups, *self.models, *[name for name in listed if name not in self.models]]

    @cached_property
    def served(self) -> Mapping[str, str]:
        """Map each name that a gateway serves to the name that opens its model.

        These are the models, groups and aliases of ``models.yaml``, and what its ``serve`` adds.
        Without a file, they are all models of the catalogue.
        """
        own = [*self.models, *self.groups]
        if not own and not self.file.is_read:
            own = self.listed()
        served = {name: name for name in [*self.aliases, *own]}
        return {**self.expand(self.file.serve), **served}

    def expand(self, named: Mapping[str, str]) -> dict[str, str]:
        """Map each name that patterns such as ``openai/*: openai:*`` stand for to its model.

        The catalogue and ``models.yaml`` list the models: a client cannot create names. A target
        without ``*`` is one model, for all names that match.
        """
        found: dict[str, str] = {}
        for name, target in named.items():
            if "*" not in target:
                found[name] = target
                continue
            start, _, end = target.partition("*")
            before, _, after = name.partition("*")
            for model in self.listed():
                if model.startswith(start) and model.endswith(end) and len(model) >= len(target):
                    part = model[len(start) : len(model) - len(end)]
                    found.setdefault(f"{before}{part}{after}", model)
        return found

    def group(self, name: str) -> Group | None:
        """Return the group with this name or alias, or ``None``."""
        return self.groups.get(self.aliases.get(name, name))

    def candidates(self, name: str) -> list[Candidate]:
        """Return the models that a name may call: itself, or those of a group and its groups."""
        return expand_group(name, self.groups, self.aliases)

    def find(self, name: str) -> ModelEntry:
        """Return the model with this name or alias.

        If there is none, raise ``InvalidModelError``, which suggests other names.
        """
        name = self.aliases.get(name, name)
        if name in self.groups:
            return self._join(self.groups[name])
        entry = self.models.get(name)
        if entry is None:
            prefix, _, model = name.partition(":")
            adapter = prefix if prefix in self.adapters else find_vendor(prefix)
            if not model or adapter is None:
                raise InvalidModelError(
                    f"no model is named {name!r}{self._suggest(name)}", model=name
                )
            name = f"{adapter}:{model}"
            entry = self.models.get(name) or ModelEntry(id=name, adapter=adapter, wire_name=model)
        return self._complete(entry)

    def find_at(self, name: str, base_url: str) -> tuple[ModelEntry, Adapter] | None:
        """Return the model and the adapter that a name means at an address.

        Return ``None`` if the whole name is the server's own name for a model. ``vendor:model`` is
        a vendor's model, but ``mistral:7b`` and ``mistral:latest`` are names of Ollama. Routers
        have models named ``vendor/model``, so such a name is a vendor's model only if the vendor
        lists the model and the address is not that of another vendor.
        """
        prefix, separator, model = name.partition(":")
        if not separator:
            prefix, separator, model = name.partition("/")
        own = prefix if prefix in self.adapters else find_vendor(prefix)
        if not model or own is None:
            return None
        vendor = self.adapter(own).vendor
        is_listed = vendor is not None and vendor.lists(model)
        if separator == "/" and (not is_listed or vendor_of(base_url) not in (None, own)):
            return None
        if not is_listed and own not in self.adapters and _TAG.fullmatch(model):
            return None
        address = base_url if vendor is None else vendor.complete(base_url)
        adapter = self.adapter(own).at(address, model)
        entry = self.models.get(f"{own}:{model}") or ModelEntry(
            id=f"{own}:{model}", adapter=own, wire_name=model
        )
        return self._complete(entry, adapter), adapter

    def _complete(self, entry: ModelEntry, adapter: Adapter | None = None) -> ModelEntry:
        """Complete a model's entry with catalogue data, observations, price and status."""
        adapter = adapter or self.adapter(entry.adapter)
        vendor = adapter.vendor
        listed = vendor.facts_of(entry.wire_name) if vendor else None
        return replace(
            entry,
            capabilities=(listed or Capabilities())
            .merged(self.observed.find(adapter.base_url, entry.wire_name))
            .merged(entry.capabilities),
            status="configured" if adapter.is_configured else "not_configured",
            tokens=entry.tokens or (vendor.token_family(entry.wire_name) if vendor else "default"),
            priced_as=replace(_price(entry, adapter), table=self.own_prices),
        )

    def _join(self, group: Group) -> ModelEntry:
        """Return a group's entry.

        It is a copy of the first candidate's entry, with the features that any candidate has and
        the limits that every candidate keeps.
        """
        entries = [self._candidate(candidate.model) for candidate in group.candidates]
        usable = any(entry.status == "configured" for entry in entries)
        return replace(
            entries[0],
            id=group.name,
            tier=None,
            aliases=group.aliases,
            capabilities=join_candidates([entry.capabilities for entry in entries]),
            status="configured" if usable else "not_configured",
            group=group,
        )

    def _candidate(self, name: str) -> ModelEntry:
        if not self.is_scheme(name):
            return self.find(name)
        scheme, _, rest = name.partition(":")
        return ModelEntry(
            id=name,
            adapter=scheme,
            wire_name=rest or scheme,
            priced_as=PricedAs.of("free", rest or scheme),
        )

    def find_efforts(self, entry: ModelEntry) -> tuple[str, ...] | None:
        """Return the amounts of reasoning that a model accepts by name, if they are known."""
        if entry.group is not None:
            candidates = [self._candidate(each.model) for each in entry.group.candidates]
            return join_efforts([self.find_efforts(each) for each in candidates])
        if self.is_scheme(entry.id):
            return None
        adapter = self.adapter(entry.adapter).for_model(entry.wire_name)
        if adapter.wire not in CODECS or adapter.base_url is None:
            return None
        vendor = adapter.vendor.id if adapter.vendor else None
        # No request is sent: the codec has the quirks of the model's family and of its server.
        codec = CODECS[adapter.wire].connect(
            entry.wire_name,
            adapter.base_url,
            adapter.all_quirks,
            entry.capabilities,
            vendor=vendor,
        )
        return find_efforts(codec)

    def is_scheme(self, name: str, schemes: Collection[str] = SCHEMES) -> bool:
        """Return whether a name, such as ``local``, opens a model that needs no address.

        The result is false if ``models.yaml`` defines the name.
        """
        is_own = name in self.aliases or name in self.models or name in self.groups
        return not is_own and name.partition(":")[0] in schemes

    def chats(self, entry: ModelEntry) -> bool:
        """Return whether a model accepts messages; some only embed or transcribe."""
        vendor = self.adapter(entry.adapter).vendor
        return vendor is None or (vendor.chats and entry.wire_name not in vendor.not_chat)

    def retries(self, entry: ModelEntry) -> int:
        """Return an adapter's number of retries: 0 unless ``models.yaml`` has the adapter."""
        configured = self.adapters.get(entry.adapter)
        return 0 if configured is None else configured.max_retries

    def find_typo(self, entry: ModelEntry) -> str | None:
        """Return a warning if an unlisted model's name is close to one of its vendor's models."""
        vendor = self.adapter(entry.adapter).vendor
        if vendor is None or entry.id in self.models or vendor.lists(entry.wire_name):
            return None
        near = difflib.get_close_matches(entry.wire_name, vendor.models, 1, 0.85)
        # Names that differ only in numbers are probably versions of one model, not a typo.
        if not near or _unnumbered(near[0]) == _unnumbered(entry.wire_name):
            return None
        return f"{entry.id} is not in the catalogue; did you mean {entry.adapter}:{near[0]}?"

    def _suggest(self, name: str) -> str:
        own = find_vendor(name)
        if own is not None:
            return f"; {name} is a vendor: write {own}:MODEL, with a model that it serves"
        vendor, slash, model = name.partition("/")
        if slash and vendor in vendor_names():  # the form of other libraries
            return f"; did you mean {vendor}:{model}?"
        if ":" in name:
            known = [*self.aliases, *self.listed(), *[f"{vendor}:" for vendor in vendor_names()]]
            near = difflib.get_close_matches(name, known, 3, 0.5)
        else:
            near = [*dict.fromkeys(self._near_without_vendor(name))][:3]
        if not near:
            return "; a name is an alias or adapter:model"
        return f"; did you mean {' or '.join(near)}?"

    def _rank_seller(self, name: str) -> tuple[bool, bool]:
        """Return the place of a model among those of its name that other vendors sell.

        A vendor without an address of its own needs more settings, and a model that was only
        copied from a public list may not be sold any more.
        """
        adapter, _, model = name.partition(":")
        if adapter in self.adapters:
            return False, False
        vendor = load_vendor(adapter)
        return bool(vendor.rows.get(model, {}).get("listed")), vendor.address() is None

    def _near_without_vendor(self, name: str) -> Iterator[str]:
        """Yield names similar to a name without a vendor.

        First come groups and aliases, then a vendor, then models with a similar name, and last
        models whose name contains a similar word.
        """
        yield from difflib.get_close_matches(name, [*self.groups, *self.aliases], 3, 0.7)
        yield from [
            f"{vendor}:" for vendor in difflib.get_close_matches(name, vendor_names(), 1, 0.8)
        ]
        names: dict[str, list[str]] = {}
        words: dict[str, list[str]] = {}
        for listed in self.listed():
            own = listed.partition(":")[2]
            names.setdefault(own, []).append(listed)
            for word in re.split(r"[-/:_ ]", own.lower()):
                words.setdefault(word, []).append(listed)
        for own in difflib.get_close_matches(name, names, 3, 0.7):
            yield from sorted(names[own], key=self._rank_seller)
        for word in (
            difflib.get_close_matches(name.lower(), words, 1, 0.8) if len(name) > 2 else ()
        ):
            newest_first = sorted(words[word], reverse=True)
            yield from sorted(newest_first, key=lambda each: each.partition(":")[0])


@lru_cache(maxsize=4)
def _add_prices(source: str, as_of: str, changed: int) -> PriceTable:
    """Return the bundled prices, plus those of the update for models without a price.

    The parameters identify the update, so that the table of another one is not used.
    """
    return update_prices(PriceTable.bundled(), read_update())


def _unnumbered(name: str) -> str:
    return re.sub(r"[-.:@\d]+", "", name)


def _price(entry: ModelEntry, adapter: Adapter) -> PricedAs:
    """Return how a model is priced: by its setting in ``models.yaml``, its vendor or its host."""
    if entry.sold_as is not None:
        return PricedAs.of(entry.sold_as, entry.wire_name)
    if adapter.vendor is not None:
        return PricedAs.of("free" if adapter.vendor.local else adapter.vendor.id, entry.wire_name)
    return find_seller(adapter.base_url or "", entry.wire_name)
