"""Generate the vendor tables of the documentation from the catalogue; ``python -m
tests.test_docs`` updates them.

The comment ``<!-- vendors -->`` marks the table of names and keys, and ``<!-- vendor: ID -->`` the
table for one vendor.
"""

import re

from dragoman.registry import Vendor, load_vendor, vendor_names

from .run_tests import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "providers").glob("*.md"))]

# An example model for each hosted vendor and for well-known self-hosted servers.
EXAMPLES = {
    "openai": "gpt-6-sol", "anthropic": "claude-sonnet-4-6", "google": "gemini-3.8-flash",
    "azure": "gpt-6-sol", "bedrock": "us.anthropic.claude-sonnet-4-6",
    "cohere": "command-a-03-2025", "openrouter": "anthropic/claude-sonnet-4.6",
    "groq": "openai/gpt-oss-120b", "mistral": "mistral-large-latest",
    "deepseek": "deepseek-flash", "xai": "grok-4.3", "together": "openai/gpt-oss-120b",
    "fireworks": "accounts/fireworks/models/gpt-oss-120b", "cerebras": "gpt-oss-120b",
    "moonshot": "kimi-k3", "zai": "glm-5.3", "minimax": "MiniMax-M3", "alibaba": "qwen-plus",
    "xiaomi": "mimo-v2.5-pro",
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
_FACTS = re.compile(r"(<!-- vendor: (\w+) -->\n).*?(<!-- /vendor -->)", re.DOTALL)


def write_tables(text: str) -> str:
    """Replace the vendor tables in the text of a page; return the new text."""
    text = re.sub(
        r"(<!-- vendors -->\n).*?(<!-- /vendors -->)",
        lambda m: m[1] + write_table() + m[2],
        text,
        flags=re.S,
    )
    return re.sub(
        r"(<!-- vendor: (\w+) -->\n).*?(<!-- /vendor -->)",
        lambda m: m[1] + write_facts(m[2]) + m[3],
        text,
        flags=re.S,
    )


def write_table() -> str:
    """Return the table of vendor names and key variables."""
    order = [*EXAMPLES, *vendor_names()]
    vendors = sorted(map(load_vendor, vendor_names()), key=lambda vendor: order.index(vendor.id))
    rows = [f"| {v.name} | `{v.id}:{example(v)}` | {_key(v)} |\n" for v in vendors]
    return "".join(["| vendor | name | key |\n|---|---|---|\n", *rows])


def example(vendor: Vendor) -> str:
    """Return the name of an example model of the vendor."""
    return EXAMPLES.get(vendor.id) or next(iter(vendor.models), "MODEL")


def _key(vendor: Vendor) -> str:
    return f"`{vendor.api_key_env}`" if vendor.api_key_env else "none"


def write_facts(vendor_id: str) -> str:
    """Return a list of what the catalogue contains about one vendor."""
    vendor = load_vendor(vendor_id)
    rows = [("name", f"`{vendor.id}:MODEL`"), ("key", _key(vendor))]
    rows.append(("base URL", f"`{vendor.base_url}`" if vendor.base_url else "your own; see below"))
    if vendor.base_url_env:
        rows.append(("address from", f"`{vendor.base_url_env}`"))
    others = [name for name in vendor.wires if name != vendor.wire]
    rows.append(("wire", f"`{vendor.wire}`" + "".join([f", or `{name}`" for name in others])))
    for side, label in ((vendor.embed, "embeddings"), (vendor.rerank, "reranking")):
        if side is not None:
            rows.append((label, f"wire `{side.wire}`"))
    chat = [caps for name, caps in vendor.models.items() if name not in vendor.not_chat]
    if chat and vendor.chats:
        counts = [
            f"{label} {sum(_knows(caps, field) for caps in chat)}"
            for field, label in _FEATURES.items()
        ]
        rows.append((f"{len(chat)} chat models", ", ".join(counts)))
    rows.append(("documentation", f"<{vendor.docs}>"))
    return "".join([f"- {label}: {value}\n" for label, value in rows])


def _knows(capabilities: object, name: str) -> bool:
    return bool(getattr(capabilities, name).value)
