"""What is sent to each hosted vendor of the catalogue, and where its rows were seen.

The vendor's file and ``catalog/families`` name the sources of each address, key and field.
"""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

import dragoman as d
from dragoman.registry import load_vendor, vendor_names

from .rows import read_table

# The variables that users set for vendors whose addresses have parts of their own.
VARIABLES = {
    "ANTHROPIC_FOUNDRY_RESOURCE": "res",
    "AZURE_OPENAI_ENDPOINT": "https://r.openai.azure.com",
    "CLOUDFLARE_ACCOUNT_ID": "a1",
    "DATABRICKS_HOST": "https://dbc.cloud.databricks.com",
    "GOOGLE_CLOUD_PROJECT": "p",
    "LITELLM_PROXY_API_BASE": "https://proxy.test/v1",
    "SNOWFLAKE_ACCOUNT": "acc",
}
# What every request has.
USUAL = {
    "contents", "include", "inferenceConfig", "input", "max_output_tokens", "max_tokens",
    "messages", "model", "store", "stream",
}  # fmt: skip
REQUESTS = read_table("vendor_requests")


def read_fields(model: Any, effort: Any) -> dict[str, Any]:
    """Return the fields of a request that depend on the vendor."""
    config = d.RuntimeConfig(max_tokens=5000, reasoning=effort)
    body = json.loads(model.preview(d.Request([d.User("Hi")], config=config)).http.body)
    body.get("generationConfig", {}).pop("maxOutputTokens", None)
    return {name: value for name, value in body.items() if name not in USUAL}


@pytest.mark.parametrize(
    ("name", "wire", "url", "header", "off", "high"),
    REQUESTS,
    ids=[f"{row[0]}, {row[1]}" for row in REQUESTS],
)
def test_request_has_the_address_and_the_fields_of_the_vendor(
    name: str,
    wire: str,
    url: str,
    header: str,
    off: dict[str, Any],
    high: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable, value in VARIABLES.items():
        monkeypatch.setenv(variable, value)
    model: Any = d.connect(name, wire=wire, api_key="k")
    config = d.RuntimeConfig(max_tokens=9)
    assert model.preview(d.Request([d.User("Hi")], config=config)).http.url == url
    assert [*model.codec.authorise("k")] == [header]
    assert read_fields(model, "off") == off
    assert read_fields(model, "high") == high


def test_every_hosted_vendor_is_in_the_table() -> None:
    hosted = {
        vendor
        for vendor in vendor_names()
        if (known := load_vendor(vendor)).chats and not known.local
    }
    assert {name.partition(":")[0] for name, *_ in REQUESTS} == hosted


@pytest.mark.parametrize("vendor", vendor_names())
def test_every_row_of_a_vendor_has_a_source_and_a_day(vendor: str) -> None:
    known = load_vendor(vendor)
    days = [known.as_of, *[each.as_of for each in known.retirements.values()]]
    sources = [known.source or known.docs, *[each.source for each in known.retirements.values()]]
    if any(row.get("listed") for row in known.rows.values()):
        days.append(known.listed.as_of)
        sources.append(known.listed.source or "")
    for rule in known.rules.values():
        days.append(rule.get("as_of"))
        sources.append(rule.get("source", ""))
    assert all(sources)
    for day in days:
        assert datetime.date.fromisoformat(day or "") <= datetime.date(2030, 1, 1)
    for name, facts in known.models.items():
        for field in ("max_context_tokens", "supports_tools"):
            fact = getattr(facts, field)
            assert fact.source == "unknown" or (fact.at and fact.by), (name, field)
