"""Generate the vendor tables of the documentation from the catalogue; ``python -m
tests.test_docs`` updates them.

``write_beliefs`` is the page of all beliefs about models and hosts. Each vendor has a page, of which
``<!-- vendor: ID -->``, ``<!-- connect: ID -->`` and ``<!-- models: ID -->`` mark the generated parts;
a new vendor gets a page of these alone. The comment ``<!-- vendors -->`` marks the table of all.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from dragoman.capabilities import Capabilities
from dragoman.prices import PriceTable
from dragoman.registry import Vendor, load_vendor, vendor_names
from dragoman.wire import CODECS
from dragoman.wire.beliefs import Belief, read_families

from .run_tests import ROOT
from .vendor_rules import write_models, write_rules

_FOLDER = ROOT / "docs" / "providers"
PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md", *sorted(_FOLDER.glob("*.md"))]
NAVIGATION = ROOT / "zensical.toml"

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
_PARTS = re.compile(r"(<!-- (vendor|connect|models): ([\w-]+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)
_CASE = re.compile(r"`(\w+/[\w-]+)`")
_CASES = ROOT / "src" / "dragoman" / "conformance" / "cases"
_LISTED = re.compile(r"(    # vendors \(generated\)\n).*?(    # /vendors\n)", re.DOTALL)
_BELIEFS_HEAD = """# Beliefs about vendors

What vendors demand and refuse changes from model to model, and few of it is documented. This page lists the rows of
`src/dragoman/catalog/families`, by which requests are written: the models (a regular expression), the vendor at which the row
applies, the wires, the [quirks](glossary.md#quirk) that it sets, where this was seen, and on which day the source was read. Of the
rows that match a model, the most specific one decides each quirk. What you set yourself, and what a server's errors teach,
precedes every row. A row with *guess* has one source, or none that states it outright. `python -m scripts.old_beliefs` lists rows
that are older than half a year. This page is generated.
"""
_PAGE = """# {name}

<!-- vendor: {id} -->
<!-- /vendor -->

## Connect

<!-- connect: {id} -->
<!-- /connect -->

<!-- models: {id} -->
<!-- /models -->
"""
_MODELS_HEAD = (
    "## Models\n\nPrices are US dollars per million tokens on {day}; `?` is unknown, and `+` means that long"
    " inputs cost more.{listed}\n\n"
)
_LISTED_HEAD = " *Listed* models come from public lists and have not been tried: {source}."
_BELIEFS_COLUMNS = (
    "| models | vendor | wires | quirks | source | seen |\n|---|---|---|---|---|---|\n"
)


def write_tables(text: str) -> str:
    """Replace the generated parts in the text of a page; return the new text."""
    text = _TABLE.sub(lambda found: found[1] + write_table() + found[2], text)
    text = _COUNT.sub(lambda found: f"{found[1]}{len(vendor_names())}", text)
    cases = len({name for name in _CASE.findall(text) if list(_CASES.glob(f"{name}.*"))})
    write = {
        "vendor": lambda vendor: write_facts(vendor, cases),
        "connect": write_connect,
        "models": write_rows,
    }
    return _PARTS.sub(lambda found: found[1] + write[found[2]](found[3]) + found[4], text)


def find_pages() -> dict[str, list[str]]:
    """Return the names of the pages that have the facts of each vendor."""
    found: dict[str, list[str]] = {vendor: [] for vendor in vendor_names()}
    for page in PAGES:
        for each in _PARTS.finditer(page.read_text()):
            if each[2] == "vendor":
                found[each[3]].append(page.name)
    return found


def write_missing_pages() -> None:
    """Write a page for each vendor without one."""
    for vendor, pages in find_pages().items():
        if not pages:
            text = _PAGE.format(name=load_vendor(vendor).name, id=vendor)
            PAGES.append(_FOLDER / f"{vendor}.md")
            PAGES[-1].write_text(write_tables(text))


def write_navigation(text: str) -> str:
    """Return ``zensical.toml`` with the pages of all vendors that the navigation does not name."""
    others = _LISTED.sub("", text)
    names = {vendor: pages[0] for vendor, pages in find_pages().items() if pages}
    rows = [
        f'      {{ "{load_vendor(vendor).name}" = "providers/{page}" }},\n'
        for vendor, page in names.items()
        if f'"providers/{page}"' not in others
    ]
    listed = "".join(sorted(rows, key=str.lower))
    return _LISTED.sub(lambda found: f"{found[1]}{listed}{found[2]}", text)


def write_table() -> str:
    """Return the table of vendor names and key variables, for a page next to those of the vendors."""
    pages = find_pages()
    rows = [
        f"| [{vendor.name}]({pages[vendor.id][0]}) | `{vendor.id}:{example(vendor)}` | {_key(vendor)} |\n"
        for vendor in list_vendors()
    ]
    return "".join(["| vendor | name | key |\n|---|---|---|\n", *rows])


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


def write_facts(vendor_id: str, cases: int) -> str:
    """Return a list of what the catalogue contains about one vendor.

    ``cases`` is the number of conformance cases that its page names.
    """
    vendor = load_vendor(vendor_id)
    others = [f", or `{name}`" for name in vendor.key_aliases]
    rows = [("name", f"`{vendor.id}:MODEL`"), ("key", _key(vendor) + "".join(others))]
    if vendor.aliases:
        rows.append(("other names", ", ".join([f"`{name}:`" for name in vendor.aliases])))
    rows.append(("base URL", f"`{vendor.base_url}`" if vendor.base_url else "your own; see below"))
    variables = [vendor.base_url_env] if vendor.base_url_env else []
    variables += [part.env[0] for part in vendor.parts.values()]
    if variables:
        names = dict.fromkeys(variables)
        rows.append(("address from", ", ".join([f"`{name}`" for name in names])))
    if vendor.api_key_env:
        rows.append(("authentication", _authentication(vendor)))
    rows += _wires(vendor)
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
    if vendor.source:
        rows.append(("seen in", vendor.source))
    proven = f"{cases} conformance cases, below" if cases else "none recorded: listed only"
    rows.append(("replies", proven))
    models = max([day for day in (vendor.as_of, vendor.listed.as_of) if day is not None])
    checked = max([models, *_days_of_rules(vendor.id)])
    day = checked if checked == models else f"{checked}, list of models {models}"
    rows.append(("checked", f"{day}; [rules by model](../reference/beliefs.md)"))
    return "".join([f"- {label}: {value}\n" for label, value in rows])


def _authentication(vendor: Vendor) -> str:
    """Return the headers that a key is sent in, and the credentials that may replace it."""
    headers: dict[str, None] = {}
    for wire in vendor.wires if vendor.chats else ():
        codec = CODECS[wire].connect(
            "MODEL", vendor.base_url or "https://YOURS", vendor.quirks_of(wire), Capabilities()
        )
        for header, value in codec.authorise("KEY").items():
            headers[f"`{header}: {value}`"] = None
    shown = ", or ".join(headers) or "`authorization: Bearer KEY`"
    if vendor.auth.type:
        shown += (
            f"; or credentials of {vendor.auth.type}, if one of "
            + ", ".join([f"`{name}`" for name in vendor.auth.env])
            + " is set"
        )
    return shown


def _wires(vendor: Vendor) -> Iterator[tuple[str, str]]:
    """Yield the wires of a vendor, and the addresses that differ from its base URL."""
    others = [name for name in vendor.wires if name != vendor.wire]
    if vendor.chats:
        yield "wire", f"`{vendor.wire}`" + "".join([f", or `{name}`" for name in others])
    for name, form in vendor.other_wires.items():
        if form.base_url and form.base_url != vendor.base_url:
            yield f"address of the wire {name}", f"`{form.base_url}`"


def write_connect(vendor_id: str) -> str:
    """Return how to call an example model of a vendor."""
    vendor = load_vendor(vendor_id)
    name = f"{vendor.id}:{example(vendor)}"
    lines = [f"export {vendor.api_key_env}=...\n"] if vendor.api_key_env else []
    missing = [
        f"export {part.env[0]}=...\n" for key, part in vendor.parts.items() if key.isupper()
    ]
    lines += dict.fromkeys(missing)
    if vendor.chats:
        lines.append(f'dragoman ask {name} "Where does the Rhine rise?"\n')
        lines.append(
            f"dragoman check --vendor {vendor.id}   # what is believed, and the price of asking\n"
        )
    else:
        lines.append(f'dragoman embed {name} "the Rhine"\n')
    opener = "connect" if vendor.chats else "connect_embedder"
    return f'```bash\n{"".join(lines)}```\n\nIn Python: `{opener}("{name}")`.\n'


def write_rows(vendor_id: str) -> str:
    """Return the sections with the rules and the models of a vendor."""
    vendor = load_vendor(vendor_id)
    rules = "".join(write_rules(vendor)) if vendor.chats else ""
    models = "".join(write_models(vendor, example(vendor)))
    parts = [f"## Rules\n\n{rules}\n"] if rules else []
    if models:
        day = PriceTable.bundled().generated_at
        is_listed = any(row.get("listed") for row in vendor.rows.values())
        listed = _LISTED_HEAD.format(source=vendor.listed.source) if is_listed else ""
        parts.append(_MODELS_HEAD.format(day=day, listed=listed) + models)
    else:
        parts.append("## Models\n\nNone is listed; any name is sent as you write it.\n")
    return "".join(parts)


def _days_of_rules(vendor: str) -> list[str]:
    """Return the days on which the rules that name a vendor were seen."""
    rows = [row for family in read_families().values() for row in family.rows]
    return [row.as_of for row in rows if vendor in row.vendors]


def _knows(capabilities: object, name: str) -> bool:
    return bool(getattr(capabilities, name).value)
