"""The betas of the Messages wire: opt-ins in the header ``anthropic-beta``.

A server rejects a field of a beta that the header does not name. Each pattern stands for all
versions of a beta, whose names end with a date.
"""

from __future__ import annotations

HEADER = "anthropic-beta"
VERSION = ("anthropic-version", "2023-06-01")  # the header, and what the codec writes

# The betas of the server's own tools, which ``Request`` represents, by their types.
TOOL_BETAS = {
    "code_execution_20250825": "code-execution-2025-08-25",
    "web_fetch_20250910": "web-fetch-2025-09-10",
    "computer_20250124": "computer-use-2025-01-24",
    "computer_20251124": "computer-use-2025-11-24",
}

COMPACT = "compact-2026-01-12"  # the beta of compaction, also to send a compaction back

_SAFE = (
    "advanced-tool-use advisor-tool cache-diagnosis claude-code code-execution compact "
    "computer-use context-1m context-hint context-management dev-full-thinking effort "
    "extended-cache-ttl fine-grained-tool-streaming inline-tools interleaved-thinking "
    "mcp-client mid-conversation model-context-window-exceeded output pdfs prompt-caching "
    "redact-thinking structured-outputs summarize-connector-text task-budgets thinking "
    "token-counting token-efficient-tools tool-search-tool web-fetch web-search"
)
SAFE = tuple([f"{name}-*" for name in _SAFE.split()])
"""The betas that concern one request and its reply alone.

The others let a client use what belongs to the operator's account: its files, skills and agents
(``files-api-*``, ``skills-*``, ``managed-agents-*``), models and prices that a key is not limited
to (``server-side-fallback-*``, ``fast-mode-*``), or credentials (``oauth-*``).
"""

# Fields that raise the price are sent if the operator's list matches one of these names. Opus 5.5
# answers fast at twice the price without a beta, and ``inference_geo: us`` costs 1.1 times as much
# (docs of SDK 2.10; litellm's page on Opus 5.5; seen 2026-11-18).
SPEED = "fast-mode-"
GEO = "inference-geo"

COMPACTION = ("compact-*", "context-management-*")
FALLBACKS = ("server-side-fallback-*",)
FAST = ("fast-mode-*",)
FILES = ("files-api-*",)
MCP = ("mcp-client-*",)
STREAMED_INPUT = ("fine-grained-tool-streaming-*",)
TASK_BUDGETS = ("task-budgets-*",)
THINKING_BINDING = ("thinking-binding-controls-*",)
TOOL_USE = ("advanced-tool-use-*", "tool-search-tool-*")

# The betas of tools that the server runs or defines, by the beginning of their type.
TOOL_TYPES = {
    "advisor_": ("advisor-tool-*",),
    "bash_20241022": ("computer-use-*",),
    "computer_2": ("computer-use-*",),
    "mcp_toolset": MCP,
    "text_editor_20241022": ("computer-use-*",),
}
