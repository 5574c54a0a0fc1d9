"""Terms of sale in requests and replies: service tiers and the like, which have their own rates.

The fields are those of OpenAI, Groq, xAI and Anthropic (``service_tier``), of Anthropic
(``speed``, ``inference_geo``), of Gemini (``serviceTier``, and ``trafficType`` on Vertex AI), and
of Bedrock (``serviceTier.type``, ``performanceConfig.latency``). What counts is the reply: vendors
serve and bill a request at the usual terms if the others are not available
(openai.com/api-fast-mode, docs.llmgateway.io/features/service-tiers,
code.claude.com/docs/en/fast-mode; seen 2026-11-19). Without a term in the reply, that of the
request applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import cut
from ..events import Assembler, add_terms
from ..messages import Request
from .json import plain_value

_PLACES = {
    "service_tier": ("service_tier", ""),
    "serviceTier": ("service_tier", "type"),
    "trafficType": ("service_tier", ""),
    "speed": ("speed", ""),
    "inference_geo": ("inference_geo", ""),
    "performanceConfig": ("latency", "latency"),
}
_FIELDS = frozenset(_PLACES)
# The words for the usual rates. A batch has the usual terms too, since its own discount applies.
_USUAL = frozenset(
    {
        "auto", "batch", "default", "global", "not_available", "on_demand", "standard",
        "standard_only", "unspecified",
    }
)  # fmt: skip
_PREFIXES = ("service_tier_", "traffic_type_", "on_demand_")


def read_terms(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the terms of sale that an object of a request or a reply names, by kind.

    The usual terms are an empty string.
    """
    if _FIELDS.isdisjoint(record):
        return {}
    terms: dict[str, str] = {}
    for field, (kind, key) in _PLACES.items():
        value = plain_value(record.get(field))
        if key and isinstance(value, Mapping):
            value = plain_value(value.get(key))
        if isinstance(value, str):
            terms[kind] = _simplify(value)
    return terms


def note_terms(out: Assembler, record: Mapping[str, Any]) -> None:
    """Note the terms of sale that an object of a reply names, in place of the request's."""
    terms = read_terms(record)
    if terms:
        out.terms = {**out.terms, **terms}
        if out.started:
            out.reported = add_terms(out.reported, out.terms)


def list_terms(terms: Mapping[str, str]) -> tuple[str, ...]:
    """Return terms of sale as ``Usage.terms`` has them, without the usual ones."""
    return tuple([f"{kind}:{word}" for kind, word in sorted(terms.items()) if word])


def list_asked(request: Request) -> tuple[str, ...]:
    """Return the terms of sale that a request asks for in its extras, or as a client wrote it."""
    terms = read_terms(request.config.extras)
    for fields in request.native.values():
        terms |= read_terms(fields)
    return list_terms(terms)


def _simplify(word: str) -> str:
    """Return a word in lower case, without the prefix of an enumeration; empty for usual terms."""
    word = word.strip().lower()
    for prefix in _PREFIXES:
        word = word.removeprefix(prefix)
    return "" if word in _USUAL else cut(word)
