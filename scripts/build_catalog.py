"""Update the ``models:`` part of the catalogue from local copies of public model lists.

LiteLLM's model_prices_and_context_window.json, the api.json of models.dev and OpenRouter's
/api/v1/models are read, plain or gzipped. If several lists have a value, the first list wins. The
changes are printed for review; impossible or implausible values are rejected unless ``--force`` is
given. Everything above ``models:`` in a vendor's file is written by hand and is not changed;
models that no list has are kept.

With ``--only-new`` existing models are not changed. A new model is added if its context window is
known, it is not withdrawn, and clients can use its name; ``listed: true`` marks the list as its
source. With ``--fill`` the models marked ``listed`` get the facts that they lack, and nothing else
changes. ``--vendors`` limits either to some vendors.

    python scripts/build_catalog.py [--dry-run] [--force] [--only-new SOURCE | --fill SOURCE]
        [--vendors NAME,...] 2026-11-15 LIST...
"""

import argparse
import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

from dragoman.prices import PriceTable
from dragoman.registry import ListError, compare, load_vendor, read_list, vendor_names
from dragoman.registry.lists import Listed, ListedModel
from dragoman.registry.vendors import FACTS

CATALOG = Path(__file__).parents[1] / "src" / "dragoman" / "catalog"

# The token vocabulary of each model, as documented by its vendor; the first matching row applies.
# A model without a matching row has no vocabulary and uses the average of all, which is better
# than a wrong one. A distilled or retrained model has the vocabulary of its base model.
FAMILIES = [
    (r"prompt-guard|jamba|codellama|-l2-|wizardlm|nemotron-(?!super-49b)|gemma-?2", None),
    (r"mistral-embed|mistral-7b|mixtral|codestral", None),
    (r"llama-?[34]|distill-llama|llama-guard-[34]|nemotron-super-49b", "llama3"),
    (r"hermes-[34]-(llama|405b|70b)|/l3(\.\d)?-", "llama3"),
    (r"qwen-?[23]|qwq|qwen-(plus|max|flash)|r1-distill-qwen", "qw152k"),
    (r"deepseek|mai-ds", "ds129k"),
    (r"kimi-k2|kimi-latest", "km164k"),
    (r"glm-[45]", "glm"),
    (r"mistral|ministral|devstral|magistral|pixtral|voxtral", "tekken"),
    (r"gemini|gemma", "gemini"),
    (r"claude-opus-(4[.-][789]|5|latest)|claude-sonnet-(5|latest)", "claude-4.7"),
    (r"claude", "claude"),
    (r"gpt-(3\.5|4(?![.o]))", "cl100k"),
    (r"gpt-|(^|/)o[134](-|$)|codex", "o200k"),
]  # fmt: skip


def family(name: str) -> str | None:
    return next((known for pattern, known in FAMILIES if re.search(pattern, name.lower())), None)


def read_lists(paths: list[Path]) -> Listed:
    """Read and merge model lists; if several lists have a value, the first list wins."""
    joined: Listed = {}
    for path in paths:
        data = path.read_bytes()
        _, listed = read_list(gzip.decompress(data) if path.suffix == ".gz" else data)
        for vendor, models in listed.items():
            for name, model in models.items():
                known = joined.setdefault(vendor, {}).get(name, ListedModel({}, {}))
                facts = {**model.facts, **known.facts}
                priced = known if known.prices else model
                joined[vendor][name] = ListedModel(facts, priced.prices, priced.tiers)
    return joined


def withdrawn_models(paths: list[Path], as_of: str) -> set[str]:
    """Return the names of the models that a list marks as withdrawn."""
    gone = set()
    for path in paths:
        data = path.read_bytes()
        content = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        for name, record in content.items() if isinstance(content, dict) else ():
            if isinstance(record, dict) and str(record.get("deprecation_date") or "9") < as_of:
                gone |= {name, name.partition("/")[2]}
            models = record.get("models") if isinstance(record, dict) else None
            if isinstance(models, dict):
                gone |= {
                    each for each, fields in models.items() if fields.get("status") == "deprecated"
                }
    return gone


def add_new(listed: Listed, source: str, as_of: str, gone: set[str]) -> None:
    """Add the models that the catalogue lacks to the vendors' files."""
    for vendor, models in listed.items():
        path = CATALOG / f"{vendor}.yaml"
        known = load_vendor(vendor).models
        head, _, rows = path.read_text().partition("\nmodels:\n")
        usual = next(iter(re.findall(r"^tokens: (\S+)", head, re.MULTILINE)), None)
        lines = [line for line in rows.splitlines() if line.startswith('  "')]
        rest = [line for line in rows.splitlines() if not line.startswith('  "')]
        before = len(lines)
        for name, model in models.items():
            if name in known or name in gone or "context" not in model.facts:
                continue
            tokens = family(name)
            facts = {
                **read_abilities(model),
                **({"tokens": tokens or "default"} if tokens != usual else {}),
                "listed": True,
            }
            if facts.get("output") == facts["context"]:
                # An output limit equal to the context window means that the list does not know the
                # limit.
                del facts["output"]
            lines.append(f"  {json.dumps(name)}: {json.dumps(facts).replace(chr(34), '')}")
        added = len(lines) - before
        if added:
            head = re.sub(r"\nlisted: [^\n]*", "", head.rstrip())
            head += f"\nlisted: {{source: {json.dumps(source)}, as_of: {as_of}}}"
            path.write_text("\n".join([head, "models:", *sorted(lines), *rest]) + "\n")
        print(f"{vendor}: {added} added, {len(lines)} models")


def fill(listed: Listed, source: str, as_of: str) -> None:
    """Add the facts that the models marked ``listed`` lack, and name the list as a source."""
    for vendor, models in listed.items():
        path = CATALOG / f"{vendor}.yaml"
        head, _, rows = path.read_text().partition("\nmodels:\n")
        lines = [_fill_line(line, models) for line in rows.splitlines()]
        filled = sum(old != new for old, new in zip(rows.splitlines(), lines, strict=True))
        if filled:
            known = load_vendor(vendor).listed.source
            sources = known if known and source in known else f"{known}; {source}"
            head = re.sub(r"\nlisted: [^\n]*", "", head)
            head += f"\nlisted: {{source: {json.dumps(sources)}, as_of: {as_of}}}"
            path.write_text("\n".join([head, "models:", *lines]) + "\n")
        print(f"{vendor}: {filled} models have more facts")


def _fill_line(line: str, models: dict[str, ListedModel]) -> str:
    """Return the line of a model with the facts of a list that it lacks."""
    found = re.fullmatch(r'  ("(?:[^"\\]|\\.)*"): \{(.*)\}', line)
    if found is None or "listed: true" not in found[2]:
        return line
    model = models.get(json.loads(found[1]), ListedModel({}, {}))
    known = dict(part.split(": ", 1) for part in found[2].split(", "))
    added = {
        key: json.dumps(value)
        for key, value in read_abilities(model).items()
        if key not in known and value != model.facts.get("context")
    }
    if "context" not in known and "context" in model.facts:
        added["context"] = str(model.facts["context"])
    if not added:
        return line
    order = [*FACTS, *known]
    facts = sorted((added | known).items(), key=lambda item: order.index(item[0]))
    return f"  {found[1]}: {{{', '.join([f'{key}: {value}' for key, value in facts])}}}"


def read_abilities(model: ListedModel) -> dict[str, Any]:
    """Return the facts that a list states, except what it denies.

    A request that needs what a model lacks is refused before it is sent, and the lists are not
    certain enough for that: they omit what was added to a model later.
    """
    return {key: value for key, value in model.facts.items() if value is not False}


def write_vendor(vendor: str, models: dict[str, ListedModel], as_of: str) -> int:
    path = CATALOG / f"{vendor}.yaml"
    head, _, rows = path.read_text().partition("\nmodels:\n")
    head = re.sub(r"\nas_of: [^\n]*$", "", head.rstrip())
    usual = next(iter(re.findall(r"^tokens: (\S+)", head, re.MULTILINE)), None)
    kept = {
        json.loads(line.strip().partition('":')[0] + '"'): line
        for line in rows.splitlines()
        if '"' in line
    }
    for name, model in models.items():
        tokens = family(name)
        facts = {**model.facts, **({"tokens": tokens or "default"} if tokens != usual else {})}
        kept[name] = f"  {json.dumps(name)}: {json.dumps(facts).replace(chr(34), '')}"
    path.write_text(
        "\n".join([head, f"as_of: {as_of}", "models:", *[kept[name] for name in sorted(kept)]])
        + "\n"
    )
    return len(kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("as_of")
    parser.add_argument("lists", nargs="+", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--only-new", metavar="SOURCE")
    parser.add_argument("--fill", metavar="SOURCE")
    parser.add_argument("--vendors", type=lambda text: text.split(","))
    options = parser.parse_args()
    try:
        listed = read_lists(options.lists)
    except ListError as error:
        sys.exit(f"refused: {error}")
    if options.vendors:
        listed = {vendor: listed[vendor] for vendor in options.vendors}
    if options.fill:
        fill(listed, options.fill, options.as_of)
        print("now: python scripts/compile_catalog.py")
        return
    known = {
        vendor: {
            name: {key: facts.known(fact) for key, fact in FACTS.items()}
            for name, facts in load_vendor(vendor).models.items()
        }
        for vendor in vendor_names()
    }
    if options.only_new:
        if not options.dry_run:
            add_new(
                listed,
                options.only_new,
                options.as_of,
                withdrawn_models(options.lists, options.as_of),
            )
            print("now: python scripts/compile_catalog.py")
        return
    found = compare(known, PriceTable.bundled(), listed)
    print("\n".join([*found.added, *found.changed]))
    for line in found.odd:
        print(f"! {line}", file=sys.stderr)
    if found.odd and not options.force:
        sys.exit(2)
    if not options.dry_run:
        for vendor, models in listed.items():
            print(f"{vendor}: {write_vendor(vendor, models, options.as_of)} models")
        print("now: python scripts/compile_catalog.py")


if __name__ == "__main__":
    main()
