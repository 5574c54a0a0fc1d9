"""Build src/dragoman/catalog/prices.json from genai-prices, and compare it with litellm's table.

Run it by hand to refresh the prices, in a temporary environment:

    python -m venv /tmp/prices && /tmp/prices/bin/pip install -e . genai-prices
    /tmp/prices/bin/pip download --no-deps litellm -d /tmp/prices
    /tmp/prices/bin/python scripts/build_prices.py --litellm /tmp/prices/litellm-*.whl \\
        --models-dev api.json "models.dev in opencode-ai 1.18.33, 2026-09-28"

genai-prices does not have every vendor. The models of the others get a price if litellm's table and the
api.json of models.dev state the same one; a price that one list alone has, or on which they differ, is
left out. The counts it prints go into docs/concepts/prices.md.

With --list FILE, a local copy of a public list (LiteLLM's JSON, models.dev's or OpenRouter's) is
compared with the bundled table, for review; nothing is written, and prices that look wrong end the
script with status 2.

Nothing is copied from litellm except a price that differs (`disputed`). Before the table is
written, ``dragoman.prices`` loads it, and its prices are compared with those of genai-prices.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import msgspec

from dragoman.events import Usage
from dragoman.prices import Cost, Match, PriceRow, PriceTable, cost
from dragoman.registry import ListError, compare, load_vendor, read_list, vendor_names
from dragoman.registry.lists import Listed

try:
    from genai_prices.data import providers as source_providers
    from genai_prices.types import (
        ClauseAnd,
        ClauseContains,
        ClauseEndsWith,
        ClauseEquals,
        ClauseOr,
        ClauseRegex,
        ClauseStartsWith,
        ModelInfo,
        ModelPrice,
        StartDateConstraint,
        TieredPrices,
        TimeOfDateConstraint,
    )
    from genai_prices.types import Usage as SourceUsage
except ImportError:  # the option --list works without genai-prices
    if "--list" not in sys.argv:
        raise
    source_providers = ClauseAnd = ClauseContains = ClauseEndsWith = ClauseEquals = ClauseOr = (
        ClauseRegex
    ) = Any
    ClauseStartsWith = ModelInfo = ModelPrice = StartDateConstraint = TieredPrices = (
        TimeOfDateConstraint
    ) = Any
    SourceUsage = Any

OUTPUT = Path(__file__).parents[1] / "src" / "dragoman" / "catalog" / "prices.json"

# Each entry: our name for a provider, its name in genai-prices, its `litellm_provider` values in
# litellm's table, and the prefix of its keys in that table.
PROVIDERS = [
    ("openai", "openai", ("openai", "text-completion-openai"), ""),
    ("anthropic", "anthropic", ("anthropic",), ""),
    ("google", "google", ("gemini",), "gemini/"),
    ("openrouter", "openrouter", ("openrouter",), "openrouter/"),
    ("groq", "groq", ("groq",), "groq/"),
    ("deepseek", "deepseek", ("deepseek",), "deepseek/"),
    ("mistral", "mistral", ("mistral",), "mistral/"),
    ("xai", "x-ai", ("xai",), "xai/"),
    ("together", "together", ("together_ai",), "together_ai/"),
    ("fireworks", "fireworks", ("fireworks_ai",), "fireworks_ai/"),
    ("cerebras", "cerebras", ("cerebras",), "cerebras/"),
    ("azure", "azure", ("azure",), "azure/"),
    ("cohere", "cohere", ("cohere", "cohere_chat"), ""),
    ("bedrock", "aws", ("bedrock", "bedrock_converse"), ""),
    ("moonshot", "moonshotai", ("moonshot",), "moonshot/"),
    ("zai", "zai", ("zai",), "zai/"),
    ("minimax", "minimax", ("minimax",), "minimax/"),
    ("novita", "novita", ("novita",), "novita/"),
    ("baseten", "baseten", ("baseten",), "baseten/"),
    ("cloudflare", "cloudflare", ("cloudflare",), "cloudflare/"),
    ("databricks", "databricks", ("databricks",), "databricks/"),
]
# For azure, genai-prices uses the prices of five other vendors. Only the prices of openai could be
# confirmed with the azure rows of litellm's table.
# Its Claude models and those of Vertex AI cost as much as at Anthropic and Google, by 80 of 85 rows of
# litellm's table (1.109.1, seen 2026-11-19); regional endpoints of Vertex AI cost a tenth more.
FALLBACK = {"azure": ["openai", "anthropic"], "vertex": ["google", "anthropic"]}
# OpenRouter chooses a provider, and so a price, for each request, and states the cost in
# ``usage.cost`` (https://openrouter.ai/docs/use-cases/usage-accounting and
# https://docs.stigg.io/documentation/ai-agents/providers/openrouter, seen 2026-11-18).
RESOLVED = ["openrouter"]

# Terms of sale with rates of their own, as multiples of the usual rates. OpenAI renamed priority
# processing to fast mode on 2026-07-30 and answers with either word. Where the cache rate has
# another multiple, ``cache_read`` is the highest one. A model that no row covers has no price under
# these terms. Prepaid capacity (OpenAI's scale, Anthropic's and Mistral's priority, Groq's
# performance, Bedrock's reserved tier) has no price for each token.
_LIST = "litellm 1.109.1, model_prices_and_context_window_backup.json"
_FAST = ["service_tier:priority", "service_tier:fast"]
_FLEX = ["service_tier:flex"]
_OPENAI_FAST = f"https://openai.com/api-fast-mode/; {_LIST}"
_OPENAI_FLEX = f"https://developers.openai.com/api/docs/guides/flex-processing; {_LIST}"
_CLAUDE_FAST = f"https://platform.claude.com/docs/build-with-claude/fast-mode; {_LIST}"
_GEMINI = f"https://docs.llmgateway.io/features/service-tiers; {_LIST}"
_BEDROCK = f"https://aws.amazon.com/bedrock/service-tiers; {_LIST}"
_BEDROCK_MODELS = (
    r"(nova-(2-lite|2-pro|pro|premier)|grok-4\.[67]|kimi-k(3|2\.5)|glm-(5|5\.3|4\.7|4\.7-flash)|"
    r"deepseek\.v3\.2|minimax-m2\.[15]|gpt-oss-(120|20)b|qwen3-(32b|coder-next))(-v?\d.*|-preview.*)?$"
)
TERMS: list[dict[str, Any]] = [
    {"provider": "openai", "terms": _FAST, "factor": "2.5", "source": _OPENAI_FAST,
     "match": {"regex": [r"^gpt-5\.5(-\d|$)"]}},
    {"provider": "openai", "terms": _FAST, "factor": "1.8", "source": _OPENAI_FAST,
     "match": {"regex": [r"^gpt-5-mini(-\d|$)", r"^gpt-5\.1-codex-mini(-\d|$)"]}},
    {"provider": "openai", "terms": _FAST, "factor": "2", "source": _OPENAI_FAST,
     "match": {"regex": [
         r"^gpt-(5|5\.1|5\.2|5\.4|5\.4-mini|5\.6|5\.6-(sol|terra|luna))(-\d|$)",
         r"^gpt-(6-(sol|luna|astra)|6\.1-(sol|terra))(-\d|$)",
         r"^gpt-(5|5\.1|5\.3)-codex(-\d|$)", r"^gpt-4\.1-nano(-\d|$)"]}},
    {"provider": "openai", "terms": _FAST, "factor": "1.82", "source": _LIST,
     "match": {"regex": [r"^o4-mini(-\d|$)"]}},
    {"provider": "openai", "terms": _FAST, "factor": "1.75", "source": _OPENAI_FAST,
     "match": {"regex": [r"^(gpt-4\.1|gpt-4\.1-mini|o3)(-\d|$)"]}},
    {"provider": "openai", "terms": _FAST, "factor": "1.75", "source": _LIST,
     "match": {"regex": [r"^gpt-4o(-mini)?(-\d|$)"]}},
    {"provider": "openai", "terms": ["service_tier:ultrafast"], "factor": "6",
     "match": {"regex": [r"^gpt-(6-astra|6\.1-sol)(-\d|$)"]},
     "source": "https://vercel.com/changelog/openai-ultrafast-mode-now-available-on-ai-gateway; "
     f"https://apidog.com/blog/openai-ultrafast-mode/; {_LIST}"},
    {"provider": "openai", "terms": _FLEX, "factor": "0.5", "cache_read": "0.52",
     "source": _OPENAI_FLEX,
     "match": {"regex": [
         r"^gpt-(5|5\.1|5\.2|5-mini|5-nano)(-\d|$)", r"^o[34](-mini)?(-\d|$)",
         r"^gpt-5\.4(-mini|-nano|-pro)?(-\d|$)", r"^gpt-5\.5(-pro)?(-\d|$)",
         r"^gpt-5\.6(-sol|-terra|-luna)?(-\d|$)",
         r"^gpt-(6-(sol|luna|astra)|6\.1-(sol|terra))(-\d|$)"]}},
    {"provider": "anthropic", "terms": ["speed:fast"], "factor": "2", "source": _CLAUDE_FAST,
     "match": {"regex": [r"^claude-opus-(4-8|5|5-5)(-2\d+|$)"]}},
    {"provider": "anthropic", "terms": ["speed:fast"], "factor": "6",
     "source": "https://code.claude.com/docs/en/fast-mode; "
     "https://octavus.ai/docs/protocol/fast-mode",
     "match": {"regex": [r"^claude-opus-4-[67](-2\d+|$)"]}},
    {"provider": "anthropic", "terms": ["inference_geo:us"], "factor": "1.1",
     "source": f"https://platform.claude.com/docs/en/api/service-tiers; {_LIST}",
     "match": {"regex": [
         r"^claude-(opus|sonnet)-4-[6-9]", r"^claude-(opus|sonnet|haiku|fable|mythos)-5"]}},
    {"provider": "google", "terms": ["service_tier:priority"], "factor": "1.8",
     "source": _GEMINI,
     "match": {"regex": [
         r"^gemini-(2\.5|3|3\.[15678])-(pro|flash)", r"^gemini-4-argon",
         r"^gemini-(pro|flash|flash-lite)-latest$"]}},
    {"provider": "google", "terms": _FLEX, "factor": "0.5", "cache_read": "1",
     "source": _GEMINI,
     "match": {"regex": [
         r"^gemini-(2\.5|3|3\.[15678])-(pro|flash)", r"^gemini-4-argon",
         r"^gemini-(pro|flash|flash-lite)-latest$"]}},
    {"provider": "bedrock", "terms": ["service_tier:priority"], "factor": "1.75",
     "source": _BEDROCK, "match": {"regex": [_BEDROCK_MODELS]}},
    {"provider": "bedrock", "terms": _FLEX, "factor": "0.5", "cache_read": "1",
     "source": _BEDROCK, "match": {"regex": [_BEDROCK_MODELS]}},
    {"provider": "groq", "terms": _FLEX, "factor": "1", "match": {"starts_with": [""]},
     "source": "https://console.groq.com/docs/flex-processing; "
     "https://reference.langchain.com/python/langchain-groq/chat_models/ChatGroq/service_tier"},
]  # fmt: skip
TERMS_SEEN = "2026-11-19"

RATES = {
    "input_mtok": "input",
    "output_mtok": "output",
    "cache_read_mtok": "cache_read",
    "cache_write_mtok": "cache_write",
    "output_reasoning_mtok": "reasoning",
}
MEDIA_OUTPUT = ("output_image_mtok", "output_audio_mtok", "output_video_mtok")
UNIT = re.compile(r"_(mtok|kcount|hours|mchars|kpages)$")
NOT_TEXT = re.compile(
    r"(?:^|[-/:])(audio|realtime|transcribe|image|tts|embed(?:ding)?|rerank|moderation|ocr|whisper|live|lyria|music)(?:$|[-/:\d])"
)


# --- converting price data from the source's format to ours ------------------------------------


def flatten(clause: Any) -> Iterator[tuple[str, str]]:
    """Flatten a tree of match clauses into a list of alternative (kind, text) pairs."""
    match clause:
        case ClauseOr():
            for inner in clause.or_:
                yield from flatten(inner)
        case ClauseEquals():
            yield "equals", clause.equals.lower()
        case ClauseStartsWith():
            yield "starts_with", clause.starts_with.lower()
        case ClauseContains():
            yield "contains", clause.contains.lower()
        case ClauseRegex():
            yield "regex", clause.regex
        case ClauseEndsWith():
            yield "regex", re.escape(clause.ends_with.lower()) + r"\Z"
        case ClauseAnd():
            yield (
                "regex",
                "^"
                + "".join(f"(?={look})" for inner in clause.and_ for look in [look_ahead(inner)]),
            )
        case _:
            raise TypeError(f"unknown clause {clause!r}")


def look_ahead(clause: Any) -> str:
    [(kind, text)] = flatten(clause)
    if kind == "regex":
        return f".*(?:{text})"
    quoted = re.escape(text)
    return {"equals": quoted + r"\Z", "starts_with": quoted, "contains": ".*" + quoted}[kind]


def match_of(model: ModelInfo) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"equals": [], "starts_with": [], "contains": [], "regex": []}
    for kind, text in flatten(model.match):
        if text not in found[kind]:
            found[kind].append(text)
    loose = {kind: texts for kind, texts in found.items() if kind != "equals" and texts}
    if loose:
        cover = Match(**{kind: tuple(texts) for kind, texts in loose.items()})
        found["equals"] = [name for name in found["equals"] if not cover.covers(name)]
    return {kind: texts for kind, texts in found.items() if texts}


def literals(model: ModelInfo) -> list[str]:
    """Return every literal name that genai-prices lists for a model."""
    names = [text for kind, text in flatten(model.match) if kind in ("equals", "starts_with")]
    return list(dict.fromkeys([*names, model.id.lower()]))


Span = tuple[date | None, date | None, tuple[time, time] | None, ModelPrice]


def spans(model: ModelInfo) -> Iterator[Span]:
    """Yield each price of a model with the dates and hours at which it is valid, as (from, until,
    hours, price). Prices for certain hours come first.
    """
    if isinstance(model.prices, ModelPrice):
        yield None, None, None, model.prices
        return
    entries = model.prices
    starts = sorted({entry.constraint.start_date for entry in entries if is_dated(entry)})
    for place, begin in enumerate([None, *starts]):
        until = starts[place] if place < len(starts) else None
        for index in reversed(range(len(entries))):
            entry = entries[index]
            if isinstance(entry.constraint, TimeOfDateConstraint):
                # genai-prices has no date for a price that is valid at certain hours, so such a
                # price would apply to the whole past. It is twice the dated price before it in the
                # list, so it begins at the date of that price here.
                since = max(
                    [e.constraint.start_date for e in entries[:index] if is_dated(e)], default=None
                )
                if since is None or (begin is not None and begin >= since):
                    hours = entry.constraint.start_time, entry.constraint.end_time
                    yield begin, until, hours, entry.prices
            elif entry.constraint is None or (
                begin is not None and entry.constraint.start_date <= begin
            ):
                yield begin, until, None, entry.prices
                break
        else:
            raise ValueError(f"{model.id}: no price for {begin}")


def is_dated(entry: Any) -> bool:
    return isinstance(entry.constraint, StartDateConstraint)


def given(price: ModelPrice) -> dict[str, Any]:
    return {key: value for key, value in vars(price).items() if value is not None}


def rates_of(price: ModelPrice) -> dict[str, Any]:
    """Return the rates of a price from genai-prices, under the field names of our table."""
    base: dict[str, Any] = {}
    tiers: dict[int, dict[str, Any]] = {}
    for key, name in RATES.items():
        value = given(price).get(key)
        if isinstance(value, TieredPrices):
            for tier in value.tiers:
                tiers.setdefault(tier.start, {"above": tier.start})[name] = plain(tier.price)
            value = value.base
        if value is not None:
            base[name] = plain(value)
    if tiers:
        base["tiers"] = complete([tiers[start] for start in sorted(tiers)])
    ignored = sorted({UNIT.sub("", key) for key in given(price) if key not in RATES})
    return base | ({"ignored": ignored} if ignored else {})


def complete(tiers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Complete the price tiers: if a tier omits a rate, copy the rate from the tier below."""
    known: dict[str, Any] = {}
    for tier in tiers:
        known |= tier
        tier |= known
    return tiers


def plain(number: Decimal) -> str:
    return format(number.normalize(), "f")


def why_not(model: ModelInfo) -> str | None:
    """Return the reason why the price table omits a model, or None if the table includes it."""
    prices = [given(price) for _, _, _, price in spans(model)]
    if NOT_TEXT.search(model.id.lower()):
        return "not a text model"
    if any(key in price for price in prices for key in MEDIA_OUTPUT):
        return "the media it makes are billed at rates of their own"
    if all(not price for price in prices) and model.id.endswith(":free"):
        return None
    if any("input_mtok" not in price or "output_mtok" not in price for price in prices):
        return "the source has no input and output price"
    return None


# The vendors' list prices of embedding and reranking models for which genai-prices has no price or
# no unit. Prices are in dollars per million tokens; ``search`` is in dollars per thousand
# searches.
RETRIEVAL: list[dict[str, Any]] = [
    {
        "provider": "openai",
        "match": {"equals": ["text-embedding-3-small"]},
        "input": "0.02",
        "output": "0",
    },
    {
        "provider": "openai",
        "match": {"equals": ["text-embedding-3-large"]},
        "input": "0.13",
        "output": "0",
    },
    {
        "provider": "openai",
        "match": {"equals": ["text-embedding-ada-002"]},
        "input": "0.1",
        "output": "0",
    },
    {
        "provider": "google",
        "match": {"equals": ["gemini-embedding-001"]},
        "input": "0.15",
        "output": "0",
    },
    {"provider": "mistral", "match": {"equals": ["mistral-embed"]}, "input": "0.1", "output": "0"},
    {"provider": "cohere", "match": {"equals": ["embed-v4.0"]}, "input": "0.12", "output": "0"},
    {
        "provider": "cohere",
        "match": {"equals": ["embed-english-v3.0", "embed-multilingual-v3.0"]},
        "input": "0.1",
        "output": "0",
    },
    {"provider": "cohere", "match": {"equals": ["rerank-v3.5"]}, "search": "2"},
    {
        "provider": "voyage",
        "match": {"equals": ["voyage-3-large", "voyage-code-3"]},
        "input": "0.18",
        "output": "0",
    },
    {"provider": "voyage", "match": {"equals": ["voyage-3.5"]}, "input": "0.06", "output": "0"},
    {
        "provider": "voyage",
        "match": {"equals": ["voyage-3.5-lite"]},
        "input": "0.02",
        "output": "0",
    },
    {"provider": "voyage", "match": {"equals": ["rerank-2.5"]}, "input": "0.05", "output": "0"},
    {
        "provider": "voyage",
        "match": {"equals": ["rerank-2.5-lite"]},
        "input": "0.02",
        "output": "0",
    },
]


def rows_of(provider: str, model: ModelInfo, match: dict[str, list[str]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    last: dict[tuple[str, ...], dict[str, Any]] = {}
    for begin, until, hours, price in spans(model):
        rates = rates_of(price) or {"input": "0", "output": "0", "free": True}
        clock = tuple(str(end.replace(tzinfo=None)) for end in hours) if hours else ()
        before = last.get(clock)
        # Do not start a new row for a price change that affects only rates which our table omits.
        follows = before is not None and before["valid_until"] == str(begin)
        if (
            before
            and follows
            and all(
                before.get(key) == rates.get(key) for key in (*RATES.values(), "tiers", "free")
            )
        ):
            before["valid_until"] = until and str(until)
            before["ignored"] = sorted({*before.get("ignored", ()), *rates.get("ignored", ())})
            continue
        row = {"provider": provider, "match": match, **rates}
        row |= {
            "valid_from": begin and str(begin),
            "valid_until": until and str(until),
            "hours": list(clock),
        }
        rows.append(row)
        last[clock] = row
    # Prices for certain hours come first, because the first matching row applies.
    rows.sort(key=lambda row: not row["hours"])
    return [
        {key: value for key, value in row.items() if value not in (None, [], ())} for row in rows
    ]


def collect() -> tuple[list[dict[str, Any]], list[str]]:
    """Return all rows in the order of genai-prices, and remarks about omissions and changes."""
    by_id = {provider.id: provider for provider in source_providers}
    ours_to_source = {ours: theirs for ours, theirs, _, _ in PROVIDERS}
    rows: list[dict[str, Any]] = []
    remarks: list[str] = []
    for ours, theirs, _, _ in PROVIDERS:
        models = by_id[theirs].models
        sellers = [theirs, *[ours_to_source[name] for name in FALLBACK.get(ours, ())]]
        kept = [
            model for seller in sellers for model in by_id[seller].models if why_not(model) is None
        ]
        for place, model in enumerate(models):
            reason = why_not(model)
            match = match_of(model)
            if reason is None:
                alive = [
                    name
                    for name in match.get("equals", [])
                    if not any(m.is_match(name) for m in models[:place])
                ]
                for name in set(match.get("equals", [])) - set(alive):
                    remarks.append(f"{ours}: {name!r} of {model.id} is taken by an earlier row")
                match = {
                    kind: texts for kind, texts in (match | {"equals": alive}).items() if texts
                }
                if match:
                    rows += rows_of(ours, model, match)
                continue
            remarks.append(f"{ours}: {model.id} left out: {reason}")
            # Add a row without a price if a broader row would otherwise match this model.
            if any(other.is_match(name) for name in literals(model) for other in kept):
                rows.append({"provider": ours, "match": match, "unpriced": reason})
    for ours in ("local", *[name for name in vendor_names() if load_vendor(name).local]):
        rows.append(
            {
                "provider": ours,
                "match": {"starts_with": [""]},
                "input": "0",
                "output": "0",
                "free": True,
            }
        )
    return rows, remarks


# --- comparing prices with a second source -----------------------------------------------------


def read_litellm(wheel: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    with zipfile.ZipFile(wheel) as archive:
        table = json.loads(archive.read("litellm/model_prices_and_context_window_backup.json"))
    return wheel.name.split("-")[1], table


def litellm_names(key: str, prefix: str) -> list[str]:
    """Return the names that a litellm entry may have in our table."""
    name = key.removeprefix(prefix)
    return [name, name.removeprefix("accounts/fireworks/models/")]


def litellm_rate(entry: dict[str, Any], key: str) -> Decimal | None:
    """Return a price of litellm in US dollars for a million tokens.

    Its prices are binary fractions of dollars for a token, and those of Databricks were converted
    from other units (1.31999 for 1.32), so they are rounded.
    """
    value = entry.get(key)
    if value is None:
        return None
    rate = Decimal(repr(value)) * 10**6
    return round(rate, 4 if rate > 1 else 6).normalize()


LITELLM_RATES = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cache_read": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
}


# A price that differs between our table and litellm's: the model, our rows, and litellm's prices.
Dispute = tuple[str, list[PriceRow], dict[str, Decimal]]


def rows_today(table: PriceTable, model: str, today: date) -> list[PriceRow]:
    """Return every price row of a model that is valid during some part of today."""
    found: list[PriceRow] = []
    for hour in range(24):
        row = table.find(model, datetime.combine(today, time(hour, 45), UTC))
        if isinstance(row, PriceRow) and row not in found:
            found.append(row)
    return found


def cross_check(
    table: PriceTable, litellm: dict[str, dict[str, Any]], today: date
) -> tuple[dict[str, Counter[str]], list[Dispute]]:
    counts: dict[str, Counter[str]] = {}
    disputes: list[Dispute] = []
    for ours, _, theirs, prefix in PROVIDERS:
        tally = counts.setdefault(ours, Counter())
        for key, entry in litellm.items():
            if entry.get("litellm_provider") not in theirs or entry.get("mode") not in (
                "chat",
                "completion",
                "responses",
            ):
                continue
            other = {
                name: rate
                for name, k in LITELLM_RATES.items()
                if (rate := litellm_rate(entry, k)) is not None
            }
            if not (other.get("input") or other.get("output")):
                continue  # litellm's zeros may mean that the price is not known
            for name in litellm_names(key, prefix):
                if rows := rows_today(table, f"{ours}:{name}", today):
                    break
            else:
                tally["only litellm"] += 1
                continue
            tally["compared"] += 1
            if any((r.input, r.output) == (other.get("input"), other.get("output")) for r in rows):
                tally["agree"] += 1
                caches = [
                    n
                    for n in ("cache_read", "cache_write")
                    if other.get(n) and getattr(rows[0], n) is not None
                ]
                if not all(any(getattr(r, n) == other[n] for r in rows) for n in caches):
                    tally["cache rate differs"] += 1
                    disputes.append((f"{ours}:{name}", rows, {n: other[n] for n in caches}))
            else:
                tally["differ"] += 1
                disputes.append(
                    (
                        f"{ours}:{name}",
                        rows,
                        {n: other[n] for n in ("input", "output") if n in other},
                    )
                )
    return counts, disputes


def print_check(counts: dict[str, Counter[str]], disputes: list[Dispute]) -> None:
    columns = ("compared", "agree", "differ", "cache rate differs", "only litellm")
    print("| provider | " + " | ".join(columns) + " |")
    print("|---|" + "---|" * len(columns))
    whole: Counter[str] = Counter()
    for provider, tally in counts.items():
        whole += tally
        print(f"| {provider} | " + " | ".join(str(tally[column]) for column in columns) + " |")
    print("| all | " + " | ".join(str(whole[column]) for column in columns) + " |")
    for model, rows, other in disputes:
        mine = " or ".join(
            ", ".join(f"{name} {getattr(row, name)}" for name in other) for row in rows
        )
        print(
            f"  {model}: ours {mine}; litellm "
            f"{', '.join(f'{n} {plain(r)}' for n, r in other.items())}"
        )


# --- vendors that genai-prices does not have -----------------------------------------------------


# What a vendor bills besides tokens: Sonar has a fee for each request, which depends on the size of its
# search (docs.perplexity.ai/docs/getting-started/pricing by genai-prices 0.2.3, seen 2026-11-19).
_FEES = {"perplexity": ["requests"]}


def confirm(table: PriceTable, one: Listed, other: Listed) -> list[dict[str, Any]]:
    """Return rows for the models of which the table has no price and two lists state the same one."""
    known = {name for name, *_ in PROVIDERS}
    rows: list[dict[str, Any]] = []
    for vendor in sorted(one.keys() & other.keys() - known):
        for name in sorted(one[vendor].keys() & other[vendor].keys()):
            first = one[vendor][name]
            second = other[vendor][name]
            rates = agree(first.prices, second.prices)
            tiers = [
                {"above": above, **agree(rates_above, second.tiers.get(above, rates_above))}
                for above, rates_above in sorted((first.tiers or second.tiers).items())
            ]
            is_priced = isinstance(table.find(f"{vendor}:{name}"), PriceRow)
            if is_priced or not float(rates.get("input", 0)) or "output" not in rates:
                continue
            row = {"provider": vendor, "match": {"equals": [name.lower()]}, **rates}
            others = {"tiers": tiers, "ignored": _FEES.get(vendor)}
            rows.append(row | {key: value for key, value in others.items() if value})
    return rows


def agree(one: dict[str, str], other: dict[str, str]) -> dict[str, str]:
    """Return the rates that two lists state, or one of them alone for cached tokens.

    Prices that were converted from other units differ in the fifth digit.
    """
    rates: dict[str, str] = {}
    for name in ("input", "output", "cache_read", "cache_write"):
        found = {round(float(rates[name]), 4) for rates in (one, other) if name in rates}
        is_enough = found != {0} if name.startswith("cache") else name in one and name in other
        if len(found) == 1 and is_enough:
            rates[name] = plain(Decimal(str(found.pop())))
    return rates


# --- checking and writing the price table ------------------------------------------------------


def moments(model: ModelInfo, today: date) -> list[datetime]:
    """Return the times at which to compare prices: several hours of today, of every day on which a
    price changes, and of the day before each change.
    """
    starts = [begin for begin, _, _, _ in spans(model) if begin is not None]
    days = {today, *starts, *[start - timedelta(days=1) for start in starts]}
    if starts and any(hours for _, _, hours, _ in spans(model)):
        # Skip days before the last price change: genai-prices gives no date for hourly prices, so
        # it applies them to the whole past (see ``spans``).
        days = {day for day in days if day >= max(starts)}
    return [
        datetime.combine(day, time(hour, 45), UTC)
        for day in sorted(days)
        for hour in (0, 2, 5, 7, 12, 20)
    ]


def prove(table: PriceTable, today: date) -> int:
    """Price the same calls with our table and with genai-prices; return the number of compared
    calls, or raise an error at the first difference.
    """
    answers = 0
    by_id = {provider.id: provider for provider in source_providers}
    sizes = [(1_000, 200, 100), (150_000, 30_000, 7), (900_000, 0, 0)]
    for ours, theirs, _, _ in PROVIDERS:
        provider = by_id[theirs]
        for name in dict.fromkeys(name for model in provider.models for name in literals(model)):
            model = provider.find_model(name)
            if model is None or why_not(model) is not None:
                continue
            for at in moments(model, today):
                for whole, cached, written in sizes:
                    usage = Usage(
                        whole,
                        5_000,
                        cached_input_tokens=cached,
                        cache_creation_input_tokens=written,
                        reasoning_tokens=0,
                    )
                    mine = cost(usage, f"{ours}:{name}", at, table=table)
                    assert isinstance(mine, Cost), (ours, name, at, mine)
                    price = model.get_prices(at)
                    # If genai-prices has no rate for cached tokens, it bills them as input.
                    theirs_usage = SourceUsage(
                        input_tokens=whole,
                        output_tokens=5_000,
                        cache_read_tokens=cached,
                        cache_write_tokens=written,
                    )
                    total = price.calc_price(theirs_usage)["total_price"]
                    assert mine.total == total, (ours, name, at, usage, mine.total, total)
                    answers += 1
    return answers


def serialise(rows: list[dict[str, Any]], head: dict[str, Any]) -> str:
    """Return the table as JSON with one row per line, so that a refresh gives a readable diff."""
    lines = ",\n".join(json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in rows)
    return (
        json.dumps(head, indent=0, ensure_ascii=False)[:-2] + ',\n"rows": [\n' + lines + "\n]\n}\n"
    )


def terms_of() -> list[dict[str, Any]]:
    """Return the rows of terms of sale, with the day on which they were seen."""
    return [{**row, "as_of": TERMS_SEEN} for row in TERMS]


def digest(rows: list[dict[str, Any]]) -> str:
    return hashlib.sha256(
        json.dumps(rows, separators=(",", ":"), ensure_ascii=False).encode()
    ).hexdigest()[:8]


def read_licence() -> str:
    package = distribution("genai-prices")
    [path] = [
        path
        for path in package.files or []
        if "licenses" in path.parts and path.name.upper().startswith("LICENSE")
    ]
    return Path(str(package.locate_file(path))).read_text("utf-8").strip()


def mark_disputes(
    rows: list[dict[str, Any]], table: PriceTable, disputes: Iterable[Dispute], by: str
) -> int:
    """Add litellm's price to each row with which it disagrees; return the number of these rows."""
    marked = set()
    for model, mine, other in disputes:
        provider, _, name = model.partition(":")
        says = (
            f"{by} has "
            + ", ".join(f"{rate} {plain(value)}" for rate, value in other.items())
            + f" for {name}"
        )
        for place, row in enumerate(table.rows):
            # Mark only the rows of the provider itself, not those of the provider that it falls
            # back to.
            if row.provider == provider and any(row is one for one in mine):
                rows[place].setdefault("disputed", says)
                marked.add(place)
    return len(marked)


def compare_list(path: Path) -> int:
    """Print the differences between a public list and the bundled price table. Return 2 as the
    exit code if the list is invalid or a difference is implausible, otherwise 0.
    """
    try:
        _, listed = read_list(path.read_bytes())
    except ListError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    found = compare(
        {vendor: {name: {} for name in models} for vendor, models in listed.items()},
        PriceTable.bundled(),
        listed,
    )
    print("\n".join(found.changed))
    for line in found.odd:
        print(f"! {line}", file=sys.stderr)
    return 2 if found.odd else 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--litellm", type=Path, help="a litellm wheel, to compare with")
    parser.add_argument(
        "--list", type=Path, help="only compare the bundled table with this public list"
    )
    parser.add_argument(
        "--models-dev", nargs=2, metavar=("FILE", "EDITION"),
        help="the api.json of models.dev, and where and when it was published",
    )  # fmt: skip
    parser.add_argument("--date", type=date.fromisoformat, default=datetime.now(UTC).date())
    parser.add_argument("--out", type=Path, default=OUTPUT)
    parser.add_argument(
        "--quiet", action="store_true", help="leave out the list of models that were left out"
    )
    options = parser.parse_args(arguments)
    if options.list is not None:
        return compare_list(options.list)
    if options.litellm is None or options.models_dev is None:
        parser.error("--litellm and --models-dev are required")

    rows, remarks = collect()
    rows += RETRIEVAL
    version, litellm = read_litellm(options.litellm)
    source = f"genai-prices {distribution('genai-prices').version}"
    path, edition = options.models_dev
    _, one = read_list(json.dumps(litellm).encode())
    _, other = read_list(Path(path).read_bytes())
    unconfirmed = read_back(serialise(rows, {"fallback": FALLBACK}))
    confirmed = confirm(unconfirmed, one, other)
    rows += confirmed
    both = f"litellm {version} and {edition}"
    head = {
        "generated_at": str(options.date),
        "source": source,
        "sources": dict.fromkeys(sorted({row["provider"] for row in confirmed}), both),
        "licence": read_licence(),
        "fallback": FALLBACK,
        "resolved": RESOLVED,
        "terms": terms_of(),
    }

    draft = read_back(serialise(rows, head))
    counts, disputes = cross_check(draft, litellm, options.date)
    marked = mark_disputes(rows, draft, disputes, f"litellm {version}")
    text = serialise(rows, {"version": f"{options.date}.{digest(rows + head['terms'])}", **head})
    answers = prove(read_back(text), options.date)

    if not options.quiet:
        print("\n".join(remarks))
    print_check(counts, disputes)
    print(
        f"rows by provider: {dict(Counter(row['provider'] for row in rows))}; {len(remarks)} "
        "remarks"
    )
    print(
        f"{len(rows)} rows, {marked} of them disputed by litellm {version}; {answers} answers "
        f"equal to {source}'s"
    )
    options.out.write_text(text, "utf-8")
    print(f"{options.out.name}: {len(text.encode())} bytes")
    return 0


def read_back(text: str) -> PriceTable:
    return msgspec.json.decode(text, type=PriceTable)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
