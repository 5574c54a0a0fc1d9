"""Generate the vendor tables of the documentation from the catalogue; ``python -m
tests.test_docs`` updates them.

``write_beliefs`` is the page of all beliefs about models and hosts. In other pages, the comment
``<!-- vendors -->`` marks the table of names and keys, and ``<!-- vendor: ID -->`` the table for one
vendor.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from dragoman.registry import Vendor, load_vendor, vendor_names
from dragoman.wire.beliefs import Belief, read_families

from .run_tests import ROOT

PAGES = [
    ROOT / "README.md", ROOT / "docs" / "index.md",
    *sorted((ROOT / "docs" / "providers").glob("*.md")),
]  # fmt: skip

# An example model for each hosted vendor and for well-known self-hosted servers.
EXAMPLES = {
    "openai": "gpt-6-sol", "anthropic": "claude-sonnet-4-6", "google": "gemini-3.8-flash",
    "azure": "gpt-6-sol", "bedrock": "us.anthropic.claude-sonnet-4-6",
    "cohere": "command-a-03-2025", "openrouter": "anthropic/claude-sonnet-4.6",
    "groq": "openai/gpt-oss-120b", "mistral": "mistral-large-latest",
    "deepseek": "deepseek-flash", "xai": "grok-4.3", "together": "openai/gpt-oss-120b",
    "fireworks": "accounts/fireworks/models/gpt-oss-120b", "cerebras": "gpt-oss-120b",
    "moonshot": "kimi-k3", "zai": "glm-5.3", "minimax": "MiniMax-M3", "alibaba": "qwen-plus",
    "xiaomi": "mimo-v2.5-pro", "perplexity": "sonar-pro", "huggingface": "openai/gpt-oss-120b",
    "nvidia": "deepseek-ai/deepseek-v4-pro", "vercel": "anthropic/claude-opus-4.6",
    "ollama-cloud": "gpt-oss:120b", "volcengine": "doubao-seed-2-1-pro-260628",
    "vertex": "gemini-3.8-flash", "portkey": "@openai/gpt-6-sol", "writer": "palmyra-x5",
    "jina": "jina-embeddings-v4", "voyage": "voyage-3.5", "ollama": "llama3", "vllm": "MODEL",
    "llamacpp": "default", "lmstudio": "MODEL", "sglang": "MODEL", "tei": "MODEL",
}  # fmt: skip
_FEATURES = {
    "supports_tools": "tools",
    "supports_images": "images",
    "supports_documents": "documents",
    "supports_thinking": "reasoning",
    "supports_structured_output": "structured output",
    "supports_prompt_caching": "prompt caching",
}
_TABLE = re.compile(r"(<!-- vendors -->\n).*?(<!-- /vendors -->)", re.DOTALL)
_COUNT = re.compile(r"(\| vendors built in \| )\d+")
_FACTS = re.compile(r"(<!-- vendor: ([\w-]+) -->\n).*?(<!-- /vendor -->)", re.DOTALL)
_BELIEFS_HEAD = """# Beliefs about vendors

What vendors demand and refuse changes from model to model, and few of it is documented. This page lists the rows of
`src/dragoman/catalog/families`, by which requests are written: the models (a regular expression), the vendor at which the row
applies, the wires, the [quirks](glossary.md#quirk) that it sets, where this was seen, and on which day the source was read. Of the
rows that match a model, the most specific one decides each quirk. What you set yourself, and what a server's errors teach,
precedes every row. A row with *guess* has one source, or none that states it outright. `python -m scripts.old_beliefs` lists rows
that are older than half a year. This page is generated.
"""
_MORE_HEAD = """# More vendors

These vendors work by name as well, such as `connect("huggingface:openai/gpt-oss-120b")`. Their addresses, key variables and models
come from public lists; their replies have not been recorded, except where [another page](index.md) says so. `dragoman check BASE_URL
--model MODEL --api-key-env VARIABLE` checks what a server really does. A vendor whose base URL is your own needs an adapter in
[`models.yaml`](../reference/models-yaml.md), as [Azure](azure.md) does.

- *Address from* names the variables whose values are parts of the address, such as the account of Cloudflare and Snowflake, or
  project and location of Vertex AI.
- **Claude on Vertex AI** and its open models have the same name as Gemini there: `vertex:claude-opus-5-5`,
  `vertex:openai/gpt-oss-120b-maas`. Install the extra `google` and log in with `gcloud auth application-default login`.
- **Claude in Microsoft Foundry** is `foundry:claude-opus-5-5`, another name of [`azure:`](azure.md).
- A token of IBM Cloud for watsonx lives an hour: an adapter with [`auth: {type: command}`](../reference/models-yaml.md#auth) renews it.
- Perplexity sends a cumulative `message` next to each `delta`; only the delta is used (case `openai/message-beside-delta`). Its
  sources become [citations](../concepts/citations.md) (case `openai/citations-of-a-search`).

This page is generated.
"""
_BELIEFS_COLUMNS = (
    "| models | vendor | wires | quirks | source | seen |\n|---|---|---|---|---|---|\n"
)


def write_tables(text: str) -> str:
    """Replace the vendor tables in the text of a page; return the new text."""
    text = _TABLE.sub(lambda found: found[1] + write_table() + found[2], text)
    text = _COUNT.sub(lambda found: f"{found[1]}{len(vendor_names())}", text)
    return _FACTS.sub(lambda found: found[1] + write_facts(found[2]) + found[3], text)


def write_table() -> str:
    """Return the table of vendor names and key variables."""
    rows = [f"| {v.name} | `{v.id}:{example(v)}` | {_key(v)} |\n" for v in list_vendors()]
    return "".join(["| vendor | name | key |\n|---|---|---|\n", *rows])


def write_more() -> str:
    """Return the page of the vendors that no other page describes."""
    others = [page.read_text() for page in PAGES if page.stem != "more"]
    described = {found[2] for text in others for found in _FACTS.finditer(text)}
    parts = [_MORE_HEAD]
    for vendor in list_vendors():
        if vendor.id not in described:
            parts.append(f"\n## {vendor.name}\n\n{write_facts(vendor.id)}")
            parts += [f"- seen in: {vendor.source}\n"] if vendor.source else []
    return "".join(parts)


def list_vendors() -> list[Vendor]:
    """Return all vendors, those with an example model first."""
    order = [*EXAMPLES, *vendor_names()]
    return sorted(map(load_vendor, vendor_names()), key=lambda vendor: order.index(vendor.id))


def write_beliefs() -> str:
    """Return the page with every row of ``catalog/families``."""
    parts = [_BELIEFS_HEAD]
    for name, family in read_families().items():
        parts.append(f"\n## {name}\n\n{_BELIEFS_COLUMNS}")
        parts += [f"| {' | '.join(_cells(row))} |\n" for row in family.rows]
    parts.append("\n## Hosts that reject unknown fields\n\n")
    for family in read_families().values():
        for vendor, known in family.fields.items():
            names = ", ".join(f"`{name}`" for name in known.names)
            parts.append(f"- {vendor} (seen {known.as_of}: {known.rejects}) accepts {names}")
            parts.append(f" ({known.source}).\n")
    parts += _write_decisions()
    return "".join(parts)


def read_decisions() -> dict[str, Any]:
    """Return what was decided where a vendor needs no row, and what changed this year."""
    return dict(json.loads((ROOT / "scripts" / "decisions.json").read_bytes()))


def _write_decisions() -> Iterator[str]:
    known = read_decisions()
    yield "\n## Decisions\n\nWhat vendors do beyond these rows, and what was decided about it"
    yield f" (sources read on {known['as_of']}).\n\n"
    for row in known["decisions"]:
        yield f"- **{row['about']}**: {row['decision']} Source: {row['source']}."
        yield f" Proof: `{row['proof']}`.\n"
    yield "\n## What changed in 2026\n\nThe vendors and clients that are used most, since January,"
    yield " with the case or test of each change.\n\n| who | change | since | proof |\n|---|---|---|---|\n"
    for row in known["changes"]:
        yield f"| {row['who']} | {row['change']} | {row['since']} | `{row['proof']}` |\n"


def _cells(row: Belief) -> Iterator[str]:
    """Yield the cells of a row of beliefs."""
    yield f"`{_escape(row.models)}`" if row.models else "all"
    yield ", ".join(row.vendors) or "any"
    yield ", ".join(row.wires)
    yield "; ".join(
        [f"{name}: `{_escape(json.dumps(value))}`" for name, value in row.quirks.items()]
    )
    yield _escape(row.source)
    yield f"{row.as_of}, *guess*" if row.guess else row.as_of


def _escape(text: str) -> str:
    """Escape the character that separates the cells of a table."""
    return text.replace("|", "\\|")


def example(vendor: Vendor) -> str:
    """Return the name of an example model of the vendor."""
    return EXAMPLES.get(vendor.id) or next(iter(vendor.models), "MODEL")


def _key(vendor: Vendor) -> str:
    return f"`{vendor.api_key_env}`" if vendor.api_key_env else "none"


def write_facts(vendor_id: str) -> str:
    """Return a list of what the catalogue contains about one vendor."""
    vendor = load_vendor(vendor_id)
    others = [f", or `{name}`" for name in vendor.key_aliases]
    rows = [("name", f"`{vendor.id}:MODEL`"), ("key", _key(vendor) + "".join(others))]
    if vendor.aliases:
        rows.append(("other names", ", ".join(vendor.aliases)))
    rows.append(("base URL", f"`{vendor.base_url}`" if vendor.base_url else "your own; see below"))
    variables = [vendor.base_url_env] if vendor.base_url_env else []
    variables += [part.env[0] for part in vendor.parts.values()]
    if variables:
        names = dict.fromkeys(variables)
        rows.append(("address from", ", ".join([f"`{name}`" for name in names])))
    others = [name for name in vendor.wires if name != vendor.wire]
    rows.append(("wire", f"`{vendor.wire}`" + "".join([f", or `{name}`" for name in others])))
    for side, label in ((vendor.embed, "embeddings"), (vendor.rerank, "reranking")):
        if side is not None:
            rows.append((label, f"wire `{side.wire}`"))
    chat = [caps for name, caps in vendor.models.items() if name not in vendor.not_chat]
    if chat and vendor.chats:
        counts = {
            label: sum(_knows(caps, field) for caps in chat) for field, label in _FEATURES.items()
        }
        known = ", ".join([f"{label} {count}" for label, count in counts.items()])
        features = known if any(counts.values()) else "only the names are known"
        rows.append((f"{len(chat)} chat models", features))
    rows.append(("documentation", f"<{vendor.docs}>"))
    models = max([day for day in (vendor.as_of, vendor.listed.as_of) if day is not None])
    checked = max([models, *_days_of_rules(vendor.id)])
    day = checked if checked == models else f"{checked}, list of models {models}"
    rows.append(("checked", f"{day}; [rules by model](../reference/beliefs.md)"))
    return "".join([f"- {label}: {value}\n" for label, value in rows])


def _days_of_rules(vendor: str) -> list[str]:
    """Return the days on which the rules that name a vendor were seen."""
    rows = [row for family in read_families().values() for row in family.rows]
    return [row.as_of for row in rows if vendor in row.vendors]


def _knows(capabilities: object, name: str) -> bool:
    return bool(getattr(capabilities, name).value)
