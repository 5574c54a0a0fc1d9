"""Test each feature in a list with a client, and print the outcomes as one JSON object.

This module runs in the client's environment, where Dragoman is not installed: ``python CLIENT.py
URL SIDE MODEL``. SIDE is the API that the client uses, such as ``responses``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

CASES: dict[str, Callable[..., Any]] = {}
TEXT, RIVER = "Hello there", {"name": "Rhine", "km": 1233}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PNG = "iVBORw0KGgo="


def case(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function that tests one feature."""
    CASES[function.__name__] = function
    return function


class NotOffered(Exception):
    """Raised for a feature that the client does not offer on this wire."""


def expect(found: Any, wanted: Any) -> None:
    """Raise an error if two values differ."""
    if found != wanted:
        raise AssertionError(f"found {found!r}, wanted {wanted!r}")


def main(*settings: Any) -> None:
    """Test all features of the list, and print the outcomes as JSON."""
    found = {}
    for name, function in CASES.items():
        try:
            made = function(*settings)
            if inspect.isawaitable(made):
                asyncio.run(_wait(made))
            found[name] = "yes"
        except NotOffered:
            found[name] = "–"
        except Exception as error:
            traceback.print_exc()
            found[name] = f"no: {type(error).__name__}: {error}"[:600]
    print("\n" + json.dumps(found))
    sys.stdout.flush()


async def _wait(made: Any) -> None:
    async with asyncio.timeout(60):
        await made
