"""Print the names of OpenTelemetry's conventions for generative AI, with their kinds, as JSON.

Run by the interpreter that has the packages installed: ``python otel_names.py``.
"""

from __future__ import annotations

import json
from importlib.metadata import version

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.util.genai import _instruments

PACKAGES = ("opentelemetry-semantic-conventions", "opentelemetry-util-genai")
_MODULES = {
    "attribute": [gen_ai_attributes],
    "metric": [gen_ai_metrics, _instruments],
}


def list_names() -> dict[str, str]:
    """Return each name and whether it is one of an attribute or of a metric."""
    return {
        value: kind
        for kind, modules in _MODULES.items()
        for module in modules
        for name, value in vars(module).items()
        if name.lstrip("_").startswith("GEN_AI_") and isinstance(value, str)
    }


if __name__ == "__main__":
    versions = {package: version(package) for package in PACKAGES}
    print(json.dumps({"names": list_names(), "versions": versions}))
