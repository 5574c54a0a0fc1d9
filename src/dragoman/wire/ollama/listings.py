"""Describe served models as Ollama's own API does."""

from __future__ import annotations

from typing import Any

from ...capabilities import Capabilities

_EPOCH = "1970-01-01T00:00:00Z"


_DETAILS = {
    "parent_model": "",
    "format": "",
    "family": "dragoman",
    "families": ["dragoman"],
    "parameter_size": "",
    "quantization_level": "",
}


def show_tag(name: str) -> dict[str, Any]:
    """Return one entry of ``/api/tags``; size and digest are empty, as no file is stored here."""
    return {
        "name": name,
        "model": name,
        "modified_at": _EPOCH,
        "size": 0,
        "digest": "",
        "details": _DETAILS,
    }


def show_running(name: str) -> dict[str, Any]:
    """Return one entry of ``/api/ps``; every served model is listed as loaded."""
    return {**show_tag(name), "expires_at": _EPOCH, "size_vram": 0, "context_length": 0}


def show_model(capabilities: Capabilities) -> dict[str, Any]:
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
