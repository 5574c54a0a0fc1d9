"""Read what the Models API of Anthropic states about a model.

Its fields are those of anthropic-sdk-python 2.10.0, ``types/model_info.py`` and the files that it
imports (seen 2026-11-19).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ...errors import InvalidModelError
from ...messages import EFFORTS
from ..described import Description, find_day, find_limit, keep_known
from ..json import dict_of, dig
from ..reasoning import NOT_REASONING, ReasoningStyle


def describe_model(entry: Mapping[str, Any], style: ReasoningStyle | None) -> Description:
    """Return what an entry states; ``style`` is what is believed of the model's reasoning.

    Raise ``InvalidModelError`` for a retired model, which the server still describes.
    """
    if entry.get("lifecycle") == "retired":
        raise InvalidModelError("the server lists the model as retired", status=200)
    can = dict_of(entry.get("capabilities"))
    facts = {
        "max_context_tokens": find_limit(entry, ["max_input_tokens"]),
        "max_output_tokens": find_limit(entry, ["max_tokens"]),
        "end_date": find_day(entry, ["retires_at"]),
        "supports_images": _is_supported(can, "image_input"),
        "supports_documents": _is_supported(can, "pdf_input"),
        "supports_thinking": _is_supported(can, "thinking"),
        "supports_structured_output": _is_supported(can, "structured_outputs"),
    }
    quirks: dict[str, Any] = {}
    if facts["supports_structured_output"] is False:
        quirks["structured"] = "tool"
    if facts["supports_thinking"] is False:
        quirks["reasoning"] = NOT_REASONING
    elif facts["supports_thinking"] and style is not None:
        quirks["reasoning"] = _limit_style(can, style)
    return Description(keep_known(facts), quirks)


def _is_supported(can: Mapping[str, Any], *path: str) -> bool | None:
    found = dig(can, *path, "supported")
    return found if isinstance(found, bool) else None


def _limit_style(can: Mapping[str, Any], style: ReasoningStyle) -> ReasoningStyle:
    """Return a style with the efforts and the kinds of thinking that the server states."""
    if style.effort is not None and _is_supported(can, "effort"):
        efforts = [effort for effort in EFFORTS if _is_supported(can, "effort", effort)]
        style = replace(style, efforts=tuple(efforts) or style.efforts)
    if style.effort is not None and _is_supported(can, "thinking", "types", "enabled") is False:
        style = replace(style, budget=None, with_budget={})
    if _is_supported(can, "thinking", "types", "disabled") is False:
        has_between = _is_supported(can, "thinking", "types", "between_tools")
        return replace(style, off={"thinking.type": "between_tools"} if has_between else None)
    if _is_supported(can, "thinking", "types", "disabled") and style.off is None:
        return replace(style, off={"thinking.type": "disabled"})
    return style
