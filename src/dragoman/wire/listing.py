"""The facts about each model in a server's list of models, in the fields that clients read.

An unknown value is left out, so a client keeps its own default. The names of the fields:

- ``context_length``: OpenRouter and local servers (anomalyco/opencode#40908,
  tashfeenahmed/freellmapi#309); ``context_window``: Groq, Codex's catalogue (openai/codex#37122);
  ``max_model_len``: vLLM, read by Cline (cline/cline#13564, kekzl/imp#921).
- ``max_input_tokens``, ``max_tokens``, ``capabilities``, ``lifecycle``: anthropic-sdk-python
  2.10.0, ``types/model_info.py``; ``shutdown_date``: openai-python 3.48.0, ``types/model.py``.
- ``input_modalities``: OpenRouter's page of models, W&B's ``inference/router``.
- ``pricing``: OpenRouter's list, US dollars a token as strings; OpenRouter's page of models, and
  ``catalog/sources.json``, which reads that list (2026-11-19).

All others seen 2026-11-18.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from msgspec import Struct

from ..capabilities import Capabilities
from .json import known
from .reasoning import ReasoningStyle


class ListedModel(Struct, frozen=True):
    """A served model in a list: its name, and what is known of it.

    ``efforts`` are the amounts of reasoning that the model accepts by name: ``None`` if they are
    unknown, empty if the model has no setting for them. ``rates`` are the prices in US dollars per
    million tokens, by the names of a price row.
    """

    name: str
    capabilities: Capabilities = Capabilities()
    efforts: tuple[str, ...] | None = None
    rates: Mapping[str, Decimal | None] = {}

    def is_known_to(self, ability: str) -> bool | None:
        """Return whether the model has an ability such as ``images``; ``None`` if unknown."""
        found: bool | None = self.capabilities.known(f"supports_{ability}")
        return found

    @property
    def window(self) -> int | None:
        """The context window in tokens, if it is known."""
        found: int | None = self.capabilities.known("max_context_tokens")
        return found

    @property
    def longest_reply(self) -> int | None:
        """The largest number of tokens in a reply, if it is known."""
        found: int | None = self.capabilities.known("max_output_tokens")
        return found

    @property
    def end(self) -> str | None:
        """The day on which the vendor switches the model off, if it is known."""
        found: str | None = self.capabilities.known("end_date")
        return found


def find_efforts(codec: Any) -> tuple[str, ...] | None:
    """Return the amounts of reasoning that a codec's model accepts by name, if they are known.

    They are empty if the model does not reason, or only has a switch.
    """
    style: ReasoningStyle | None = getattr(getattr(codec, "quirks", None), "reasoning", None)
    if style is None or (style.reasons and style.budget is not None and style.effort is None):
        return None
    return () if style.effort is None else style.efforts


def describe_model(model: ListedModel) -> dict[str, Any]:
    """Return the fields of a model that clients of OpenAI's list read."""
    window = model.window
    longest = model.longest_reply
    return known(
        id=model.name,
        object="model",
        type="model",
        display_name=model.name,
        created=0,
        created_at="1970-01-01T00:00:00Z",
        owned_by="dragoman",
        context_window=window,
        context_length=window,
        max_model_len=window,
        max_input_tokens=window,
        max_output_tokens=longest,
        max_tokens=longest,
        input_modalities=_find_modalities(model),
        reasoning_efforts=None if model.efforts is None else list(model.efforts),
        shutdown_date=model.end,
        pricing=_write_prices(model.rates),
    )


_PRICES = {
    "prompt": "input",
    "completion": "output",
    "input_cache_read": "cache_read",
    "input_cache_write": "cache_write",
}


def _write_prices(rates: Mapping[str, Decimal | None]) -> dict[str, str]:
    """Return the price of one token of each kind, as a string without an exponent."""
    found = {field: rates.get(rate) for field, rate in _PRICES.items()}
    return {
        field: format(rate.scaleb(-6).normalize(), "f")
        for field, rate in found.items()
        if rate is not None
    }


def _find_modalities(model: ListedModel) -> list[str] | None:
    """Return what a message may contain, if that is completely known."""
    images = model.is_known_to("images")
    documents = model.is_known_to("documents")
    if images is None or documents is None:
        return None
    found = ["text"]
    if images:
        found.append("image")
    if documents:
        found.append("file")
    return found
