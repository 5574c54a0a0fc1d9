"""What the models of this wire refuse, wherever they are served, and the quirks that avoid it.

The rows are for models whose names the catalogue does not know.
"""

from __future__ import annotations

import re
from typing import Any

from ..endpoint import Refusal, has_late_system

# The settings of Claude 4.7 and later, and the values that they use anyway.
_SAMPLING: dict[str, Any] = {"temperature": 1, "top_p": 1, "top_k": None}

REFUSALS = (
    # "`temperature` is deprecated for this model" (router-for-me/CLIProxyAPI#4383)
    Refusal(
        re.compile(r"(temperature|top_[pk])\W+is deprecated for this model", re.IGNORECASE),
        {"refused_settings": _SAMPLING},
    ),
    # "`temperature` may only be set to 1 when thinking is enabled" (mnfst/modelparams.dev#305)
    Refusal(
        re.compile(r"(temperature|top_[pk])\W{1,3}(may|must) .{0,60}thinking", re.IGNORECASE),
        {"refused_while_reasoning": _SAMPLING},
    ),
    # "`temperature` and `top_p` cannot both be specified for this model" (mem0ai/mem0#4147)
    Refusal(
        re.compile(r"temperature\W{1,3}and \W?top_p\W{1,3}cannot both", re.IGNORECASE),
        {"one_setting_of": ("temperature", "top_p")},
    ),
    # "Thinking may not be enabled when tool_choice forces tool use" (can1357/oh-my-pi#333)
    Refusal(
        re.compile(r"thinking.{0,40}tool_choice forces", re.IGNORECASE),
        {"forced_tools": "not_reasoning"},
    ),
    # 'tool_choice: type "tool" and "any" are not supported for this model'
    # (can1357/oh-my-pi#12939)
    Refusal(
        re.compile(r"tool_choice.{0,60}not supported for this model", re.IGNORECASE),
        {"forced_tools": "no"},
    ),
    # "a final `assistant` message must start with a thinking block" (anomalyco/opencode#3077)
    Refusal(
        re.compile(r"must start with a thinking block|position cannot contain .?thinking"),
        {"needs_thinking": True},
    ),
    # "This model does not support assistant message prefill" (anomalyco/opencode#13768)
    Refusal(re.compile(r"assistant message prefill", re.IGNORECASE), {"prefill": False}),
    # "role 'system' is not supported on this model" (BerriAI/litellm#33807); 'Unexpected role
    # "system"' (anthropics/claude-agent-sdk-typescript#350); "messages[7].role: unknown variant
    # `system`" (deepseek-ai/awesome-deepseek-integration#639); all seen 2026-11-19
    Refusal(
        re.compile(
            r"role\W{1,3}system\W{1,3}is not supported|unexpected role\W{1,3}system"
            r"|role: unknown variant\W{1,3}system",
            re.IGNORECASE,
        ),
        {"late_system": "user"},
        applies=lambda request, quirks, reason: (
            quirks.late_system == "in_place" and has_late_system(request)
        ),
    ),
    # "thinking.adaptive.block_binding: Extra inputs are not permitted" (BerriAI/litellm#41203);
    # "Unexpected value(s) `thinking-binding-controls-2026-08-01` for the `anthropic-beta` header"
    Refusal(
        re.compile(
            r"block_binding\S{0,40}: Extra inputs|thinking-binding-controls|invalid beta flag"
        ),
        {"binds_thinking": False},
    ),
)
