"""Validate replies against ``openresponses-types``; the environment of that package runs this file.

It reads a list of ``[row, column, objects]`` and writes the first fault of each.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from typing import Any

import openresponses_types as types
from pydantic import BaseModel, ValidationError


def find_events() -> dict[str, type[BaseModel]]:
    """Return the model of each type of event."""
    found = {}
    for name in dir(types):
        model = getattr(types, name)
        if name.endswith("StreamingEvent"):
            (kind,) = model.model_fields["type"].annotation
            found[kind.value] = model
    return found


def find_fault(event: dict[str, Any], events: dict[str, type[BaseModel]]) -> str:
    """Return the first fault of a body or an event."""
    model = events.get(event["type"]) if "sequence_number" in event else types.ResponseResource
    if model is None:
        return f"the type of event {event['type']} is not known"
    try:
        model.model_validate(event)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return f"{model.__name__}.{where}: {first['msg']} ({error.error_count()} in all)"
    return ""


def main() -> None:
    """Read the replies and write their faults."""
    events = find_events()
    faults = []
    for row, column, objects in json.load(sys.stdin):
        found = [fault for each in objects if (fault := find_fault(each, events))]
        faults.append([row, column, found[0] if found else ""])
    version = importlib.metadata.version("openresponses-types")
    json.dump({"version": version, "faults": faults}, sys.stdout)


if __name__ == "__main__":
    main()
