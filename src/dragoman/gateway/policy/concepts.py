"""Settings that several wires have under different names, and their field on each wire.

A ``Place`` is the path of a field in the wire's body, optionally with a function that converts
the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Place = str | tuple[str, Callable[[Any], Any]]


def _opposite(value: Any) -> bool:
    return not value


CONCEPTS: dict[str, dict[str, Place]] = {
    "top_k": {
        "anthropic": "top_k",
        "gemini": "generationConfig.topK",
        "ollama": "options.top_k",
        "cohere": "k",
        "bedrock": "additionalModelRequestFields.top_k",
    },
    "min_p": {"ollama": "options.min_p"},
    "repeat_penalty": {"ollama": "options.repeat_penalty"},
    "parallel_tool_calls": {
        "openai": "parallel_tool_calls",
        "responses": "parallel_tool_calls",
        "anthropic": ("tool_choice.disable_parallel_tool_use", _opposite),
    },
    "json_mode": {
        "openai": ("response_format", lambda _: {"type": "json_object"}),
        "responses": ("text.format", lambda _: {"type": "json_object"}),
        "gemini": ("generationConfig.responseMimeType", lambda _: "application/json"),
        "ollama": ("format", lambda _: "json"),
        "cohere": ("response_format", lambda _: {"type": "json_object"}),
    },
    "verbosity": {"openai": "verbosity", "responses": "text.verbosity"},
    "user": {"openai": "user", "responses": "user", "anthropic": "metadata.user_id"},
    "prompt_cache_key": {"openai": "prompt_cache_key", "responses": "prompt_cache_key"},
    "prompt_cache_retention": {
        "openai": "prompt_cache_retention",
        "responses": "prompt_cache_retention",
    },
    "safety_identifier": {"openai": "safety_identifier", "responses": "safety_identifier"},
    "service_tier": {"openai": "service_tier", "responses": "service_tier"},
}


def write_concept(concept: str, value: Any, wire: str) -> dict[str, Any] | None:
    """Return the fields of a wire's body that express a setting; ``None`` if there are none."""
    place = CONCEPTS.get(concept, {}).get(wire)
    if place is None:
        return None
    path, convert = place if isinstance(place, tuple) else (place, None)
    made = value if convert is None else convert(value)
    for name in reversed(path.split(".")):
        made = {name: made}
    return made  # type: ignore[no-any-return]
