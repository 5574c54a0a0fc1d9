"""The bundled catalogue: one YAML file per vendor, read when the vendor is first named."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from msgspec import Struct, field

from ..capabilities import Capabilities
from .config import Section, read_yaml

__all__ = ["Vendor", "load_vendor", "vendor_names"]

_FACTS = {
    "context": "max_context_tokens",
    "output": "max_output_tokens",
    "images": "supports_images",
    "documents": "supports_documents",
    "tools": "supports_tools",
    "thinking": "supports_thinking",
    "structured": "supports_structured_output",
}


class Vendor(Struct, frozen=True):
    """Where a vendor is, how its wire differs, and what its models are known to do."""

    id: str
    name: str
    wire: str
    base_url: str | None
    api_key_env: str | None
    docs: str
    tokens: str | None = None
    local: bool = False
    quirks: dict[str, Any] = field(default_factory=dict)
    proofs: dict[str, str] = field(default_factory=dict)
    models: dict[str, Capabilities] = field(default_factory=dict)


@cache
def vendor_names() -> tuple[str, ...]:
    """Every vendor there is a file for."""
    folder = files("dragoman").joinpath("catalog")
    names = [entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")]
    return tuple(sorted(names))


@cache
def load_vendor(vendor: str) -> Vendor:
    """Read a vendor's file."""
    path = files("dragoman").joinpath("catalog", f"{vendor}.yaml")
    root = read_yaml(path, f"catalog/{vendor}.yaml")
    root.allow("name", "wire", "base_url", "api_key_env", "docs", "tokens", "local", "quirks", "proofs", "models")
    return Vendor(
        vendor,
        root.get("name", str, vendor),
        root.get("wire", str, "openai"),
        root.get("base_url", str),
        root.get("api_key_env", str),
        root.get("docs", str, ""),
        root.get("tokens", str),
        root.get("local", bool, False),
        root.section("quirks").plain(),
        root.section("proofs").plain(),
        {name: _facts(section, vendor) for name, section in root.section("models").sections()},
    )


def _facts(section: Section, vendor: str) -> Capabilities:
    section.allow(*_FACTS)
    values = {_FACTS[key]: section.get(key, int if key in ("context", "output") else bool) for key in section.data}
    return Capabilities.of(values, "catalogue", by=f"catalog/{vendor}.yaml")
