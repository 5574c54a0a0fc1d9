"""Describe served models as Ollama's own API does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...capabilities import Capabilities
from ..listing import ListedModel

_EPOCH = "1970-01-01T00:00:00Z"


_DETAILS = {
    "parent_model": "",
    "format": "",
    "family": "dragoman",
    "families": ["dragoman"],
    "parameter_size": "",
    "quantization_level": "",
}


def _show_tag(name: str) -> dict[str, Any]:
    """Return one entry of ``/api/tags``; size and digest are empty, as no file is stored here."""
    return {
        "name": name,
        "model": name,
        "modified_at": _EPOCH,
        "size": 0,
        "digest": "",
        "details": _DETAILS,
    }


def _list_tags(models: Sequence[ListedModel], version: str) -> dict[str, Any]:
    return {"models": [_show_tag(model.name) for model in models]}


def _list_running(models: Sequence[ListedModel], version: str) -> dict[str, Any]:
    """Return the models as ``/api/ps`` does; every served model is listed as loaded.

    Ollama always sends a number as ``context_length``; 0 stands for an unknown one.
    """
    loaded = {"expires_at": _EPOCH, "size_vram": 0}
    return {
        "models": [
            {**_show_tag(model.name), **loaded, "context_length": model.window or 0}
            for model in models
        ]
    }


def _show_version(models: Sequence[ListedModel], version: str) -> dict[str, Any]:
    """Return the version of the server; Ollama clients send this request first."""
    return {"version": version}


PAGES = {"/api/tags": _list_tags, "/api/ps": _list_running, "/api/version": _show_version}


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
