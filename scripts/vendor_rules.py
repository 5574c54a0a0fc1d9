"""Describe the rules and the models of a vendor on its page: ``<!-- models: ID -->``.

The rules are the rows of ``catalog/families`` that decide for the vendor's models, as sentences.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from dragoman.capabilities import Capabilities
from dragoman.prices import PriceRow, PriceTable
from dragoman.registry import Vendor
from dragoman.wire.beliefs import find_rows, strict_vendors
from dragoman.wire.reasoning import ReasoningStyle

# Pages stay short: a longer list ends with a count, and the command that prints all of it.
MOST_MODELS = 30
_MOST_RULES = 6
_MOST_NAMES = 4
_ABILITIES = {
    "supports_tools": "tools",
    "supports_images": "images",
    "supports_documents": "documents",
    "supports_thinking": "reasoning",
    "supports_structured_output": "schemas",
    "supports_prompt_caching": "caching",
}
_BELIEFS = "../reference/beliefs.md"


# --- rules ----------------------------------------------------------------------------------------


def _describe_reasoning(value: Any) -> str:
    if value is None:
        return ""
    style = msgspec.convert(value, ReasoningStyle)
    if not style.reasons:
        return "no setting for reasoning"
    words = [style.words.get(each, each) for each in style.efforts]
    efforts = ", ".join(f"`{each}`" for each in dict.fromkeys(words))
    ways = [f"{efforts} in `{style.effort}`"] if style.effort else []
    ways += [f"a number of tokens in `{style.budget}`"] if style.budget else []
    is_switch = not ways and bool(style.with_effort)
    ways += [f"a switch, {_show_fields(style.with_effort)}"] if is_switch else []
    if not ways:
        return "no setting for reasoning" if style.off is None else ""
    off = "cannot be turned off"
    if style.off is not None:
        off = f"off: {_show_fields(style.off)}" if style.off else "off by default"
    return f"reasoning: {' or '.join(ways)}; {off}"


def _show_fields(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}: {json.dumps(value)}`" for name, value in fields.items())


def _describe_settings(value: Mapping[str, Any]) -> str:
    refused = [f"`{name}`" for name, only in value.items() if only is None]
    fixed = [
        f"`{name}` {json.dumps(only)}"
        for name, only in value.items()
        if only is not None and only is not False
    ]
    parts = [f"refuses {', '.join(refused)}"] if refused else []
    parts += [f"accepts only {', '.join(fixed)}"] if fixed else []
    return " and ".join(parts)


def _describe_settings_while_reasoning(value: Mapping[str, Any]) -> str:
    text = _describe_settings(value)
    return f"while it reasons, it {text}" if text else ""


def _by_value(**texts: str) -> Callable[[Any], str]:
    """Return a function that describes each value by its text, and others with nothing."""
    return lambda value: texts.get(json.dumps(value).strip('"'), "")


DESCRIBERS: dict[str, Callable[[Any], str]] = {
    "reasoning": _describe_reasoning,
    "send_reasoning": lambda value: (
        f"earlier thinking is sent back in `{value}`"
        if value
        else "earlier thinking is not sent back"
    ),
    "reasoning_required": _by_value(true="demands the thinking of every turn back"),
    "forced_tools": _by_value(
        no="cannot be forced to call a tool", not_reasoning="a forced tool turns reasoning off"
    ),
    "tools_while_reasoning": _by_value(false="no tools while it reasons"),
    "refused_settings": _describe_settings,
    "refused_while_reasoning": _describe_settings_while_reasoning,
    "one_setting_of": lambda value: f"accepts one of {', '.join(f'`{name}`' for name in value)}",
    "prefill": _by_value(false="refuses a conversation that ends with its own text"),
    "late_system": _by_value(
        user="later instructions become user messages", first="instructions come first"
    ),
    "structured": _by_value(
        prompt="schemas are written into the prompt", tool="schemas are sent as a tool"
    ),
    "structured_streamed": _by_value(prompt="in streams, schemas are written into the prompt"),
    "structured_with_tools": _by_value(
        prompt="next to tools, schemas are written into the prompt"
    ),
    "seed_field": lambda value: f"the seed is sent as `{value}`",
    "stream_usage": _by_value(false="`stream_options` is not sent"),
    "unary_reasoning": _by_value(false="reasons in streams only"),
    "body": lambda value: f"every request has {_show_fields(value)}",
    "binds_thinking": _by_value(true="thinking is valid only after the same conversation"),
    "reasoning_details": _by_value(true="thinking arrives in `reasoning_details`"),
}
# Details of a wire, which the page of beliefs explains and a page of a vendor omits.
UNDESCRIBED = frozenset(
    {
        "additional_tools", "cache_form", "call_ids", "call_placeholder", "compaction",
        "external_web_access", "max_tokens", "needs_thinking", "placeholder_signature",
        "reasoning_beside_text", "reasons_unasked", "server_invocations", "server_tools", "tool_kinds", "tool_search", "unsigned_thinking",
    }
)  # fmt: skip


def _describe_model(vendor: Vendor, model: str) -> tuple[tuple[str, ...], str]:
    """Return the rules of a model as phrases, and the day on which the newest of them was seen."""
    texts: list[str] = []
    days: list[str] = []
    rows = find_rows(vendor.wire_of(model), vendor.id, model)
    for quirk, describe in DESCRIBERS.items():
        row = rows.get(quirk)
        text = describe(row.quirks[quirk]) if row is not None else ""
        if text:
            texts.append(text)
            days.append(row.as_of)
    return tuple(texts), max(days, default="")


def write_rules(vendor: Vendor) -> Iterator[str]:
    """Yield the lines of a list of rules, one for each group of models with the same rules."""
    if vendor.id in strict_vendors():
        yield "- All models: a request with an unknown field is refused.\n"
    models = [name for name in _list_current(vendor) if name not in vendor.not_chat]
    groups: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for model in models or ["MODEL"]:
        groups.setdefault(_describe_model(vendor, model), []).append(model)
    ruled = {key: names for key, names in groups.items() if key[0]}
    largest = sorted(ruled.items(), key=lambda item: -len(item[1]))
    for (texts, day), names in largest[:_MOST_RULES]:
        who = "All models" if len(names) == max(1, len(models)) else _join(names)
        yield f"- {who}: {'; '.join(texts)} (seen {day}).\n"
    if others := sum(len(names) for _, names in largest[_MOST_RULES:]):
        yield f"- {others} other models have [rules of their own]({_BELIEFS}).\n"


def _join(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return shown if more <= 0 else f"{shown} and {more} more"


# --- models --------------------------------------------------------------------------------------


def write_models(vendor: Vendor, example: str) -> Iterator[str]:
    """Yield the lines of the table of models, the example and the models with prices first."""
    prices = PriceTable.bundled()
    rows = {name: _row(vendor, prices, name) for name in _list_current(vendor)}
    if not rows:
        return
    order = sorted(rows, key=lambda name: (name != example, not rows[name][3].strip("?")))
    yield "| model | context | output | $ in | $ out | abilities | seen |\n"
    yield "|---|---|---|---|---|---|---|\n"
    for name in order[:MOST_MODELS]:
        yield f"| {' | '.join(rows[name])} |\n"
    if len(order) > MOST_MODELS:
        yield f"\n{len(order) - MOST_MODELS} more: `dragoman models '{vendor.id}:*'`.\n"


def _list_current(vendor: Vendor) -> list[str]:
    """Return the models that had not ended on the day of the price table."""
    today = str(PriceTable.bundled().generated_at)
    return [name for name in vendor.models if (_find_end(vendor, name) or today) >= today]


def _find_end(vendor: Vendor, name: str) -> str | None:
    """Return the day on which a model is switched off, if it is known."""
    known = vendor.models[name].merged(vendor.ends.get(name, Capabilities()))
    end = known.end_date.value
    return None if end is None else str(end)


def _row(vendor: Vendor, prices: PriceTable, name: str) -> list[str]:
    """Return the cells of a model; prices are those of the day of the price table."""
    known = vendor.models[name]
    price = prices.find(f"{vendor.id}:{name}", prices.generated_at)
    paid = ["?", "?"]
    if isinstance(price, PriceRow):
        more = "+" if price.tiers else ""
        paid = [
            f"{rate.normalize():f}{more}" if rate is not None else "?"
            for rate in (price.input, price.output)
        ]
    end = _find_end(vendor, name)
    seen = "listed" if vendor.rows[name].get("listed") else str(vendor.as_of)
    return [
        f"`{name}`", _number(known.max_context_tokens.value), _number(known.max_output_tokens.value),
        *paid, _list_abilities(vendor, known, name), f"{seen}, ends {end}" if end else seen,
    ]  # fmt: skip


def _list_abilities(vendor: Vendor, known: Capabilities, name: str) -> str:
    if name in vendor.not_chat:
        sides = {"supports_embeddings": "embeds", "supports_reranking": "ranks"}
        return (
            ", ".join([text for field, text in sides.items() if getattr(known, field).value])
            or "no chat"
        )
    return (
        ", ".join([text for field, text in _ABILITIES.items() if getattr(known, field).value])
        or "?"
    )


def _number(value: Any) -> str:
    return "?" if value is None else f"{value:,}"
