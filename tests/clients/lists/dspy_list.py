"""The list of features that are tested with DSPy."""
# mypy: ignore-errors
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from typing import Any

import dspy
from listing import TEXT, case, expect, main

URL, SIDE, MODEL = sys.argv[1:4]
BASE = f"{URL}/v1"


def lm(**more: Any) -> Any:
    return dspy.LM(
        f"{SIDE}/{MODEL}", api_base=BASE, api_key="x", cache=False, max_tokens=99, **more
    )


@case
def completes() -> None:
    expect(lm()("Hi")[0], TEXT)


@case
async def completes_async() -> None:
    expect((await lm().acall("Hi"))[0], TEXT)


@case
def turns() -> None:
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": TEXT}]
    expect(lm()(messages=[*said, {"role": "user", "content": "Hi"}])[0], TEXT)


main()
