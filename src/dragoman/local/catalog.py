"""The catalogue of models that can be downloaded by name, read from ``catalog.yaml``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

_FILE = Path(__file__).with_name("catalog.yaml")


class Wheel(Struct, frozen=True, forbid_unknown_fields=True):
    """A package on the package index that contains a model's file, or one part of it."""

    package: str
    version: str
    member: str
    sha256: str


class Hub(Struct, frozen=True, forbid_unknown_fields=True):
    """A model hub: its address, and environment variables that set another address or a token."""

    url: str
    url_env: str
    token_env: str


class ModelDefaults(Struct, frozen=True, forbid_unknown_fields=True):
    """The values sent to a model if a call does not set them."""

    system: str | None = None
    temperature: float | None = None
    extras: dict[str, Any] = {}
    max_tokens: int = 400  # a default limit, since llama.cpp may generate text without end


class CatalogModel(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model in the catalogue; ``catalog.yaml`` documents the fields."""

    model: str
    about: str
    licence: str
    file: str
    size: int
    sha256: str
    wheels: tuple[Wheel, ...]
    context: int = 4096
    threads: int = 1
    calls_tools: bool = False
    embeds: bool = False
    prefixes: dict[str, str] = {}
    template: str | None = None
    defaults: ModelDefaults = ModelDefaults()

    def template_text(self) -> str:
        """Return the chat template to use instead of the model file's own, or an empty string."""
        return _FILE.with_name(self.template).read_text(encoding="utf-8") if self.template else ""


class Catalog(Struct, frozen=True, forbid_unknown_fields=True):
    """The catalogue: models by name, the names of the defaults, hubs by prefix such as ``hf``."""

    default: str
    hubs: dict[str, Hub]
    models: dict[str, CatalogModel]
    default_embedder: str = ""


@functools.cache
def load_catalog() -> Catalog:
    """Read the bundled catalogue."""
    return msgspec.yaml.decode(_FILE.read_bytes(), type=Catalog)
