"""List and describe the models that a gateway serves, in the format of each wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..capabilities import Capabilities

_EPOCH = "1970-01-01T00:00:00Z"


def list_models(names: Sequence[str]) -> dict[str, Any]:
    """Return the reply to ``GET /v1/models``, with the openai and the anthropic fields."""
    first, last = (names[0], names[-1]) if names else (None, None)
    data = [show_model(name) for name in names]
    return {"object": "list", "data": data, "has_more": False, "first_id": first, "last_id": last}


def show_model(name: str) -> dict[str, Any]:
    """Return the description of one model for ``/v1/models``."""
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": 0,
        "created_at": _EPOCH,
        "owned_by": "dragoman",
    }


def show_gemini_model(name: str) -> dict[str, Any]:
    """Return a model as the Gemini wire describes it."""
    methods = ["generateContent", "streamGenerateContent", "countTokens"]
    return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods}


_DETAILS = {
    "parent_model": "",
    "format": "",
    "family": "dragoman",
    "families": ["dragoman"],
    "parameter_size": "",
    "quantization_level": "",
}


def show_ollama_tag(name: str) -> dict[str, Any]:
    """Return one entry of ``/api/tags``; size and digest are empty, as no file is stored here."""
    return {
        "name": name,
        "model": name,
        "modified_at": _EPOCH,
        "size": 0,
        "digest": "",
        "details": _DETAILS,
    }


def show_ollama_running(name: str) -> dict[str, Any]:
    """Return one entry of ``/api/ps``; every served model is listed as loaded."""
    return {**show_ollama_tag(name), "expires_at": _EPOCH, "size_vram": 0, "context_length": 0}


def show_ollama_model(capabilities: Capabilities) -> dict[str, Any]:
    """Return a model as ``/api/show`` describes it.

    Unknown capabilities are listed too, since clients hide features that are not listed.
    """
    listed = ["completion"]
    for flag, word in (("tools", "tools"), ("images", "vision"), ("thinking", "thinking")):
        if capabilities.known(f"supports_{flag}") is not False:
            listed.append(word)
    facts: dict[str, Any] = {"general.architecture": "dragoman"}
    if (window := capabilities.known("max_context_tokens")) is not None:
        facts["dragoman.context_length"] = window
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "license": "",
        "modified_at": _EPOCH,
        "details": _DETAILS,
        "model_info": facts,
        "capabilities": listed,
    }
