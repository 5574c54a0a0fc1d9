"""A simulated server of the Messages wire that enforces betas, as Anthropic's server does.

The tables below are taken from the vendor's SDK (fields that only its beta types have) and from
the header that Claude Code sends, not from the tables of the gateway.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request as HttpRequest

from dragoman.errors import InvalidRequestError
from dragoman.sim import SimServer
from dragoman.wire import HttpReply, ServerCodec

RELEASED = frozenset(
    ["model", "messages", "max_tokens", "system", "stream", "tools", "tool_choice", "thinking",
     "output_config", "metadata", "temperature", "top_p", "top_k", "stop_sequences",
     "service_tier", "cache_control", "inference_geo", "diagnostics", "container", "speed"]
)  # fmt: skip
FIELD_BETAS = {
    "context_management": {"context-management-2025-06-27", "compact-2026-01-12"},
    "compaction": {"compact-2026-09-04"},
    "fallbacks": {"server-side-fallback-2026-06-01", "server-side-fallback-2026-07-01"},
    "mcp_servers": {"mcp-client-2025-04-04", "mcp-client-2025-11-20", "mcp-client-2026-09-15"},
    "output_format": {"structured-outputs-2025-11-13", "structured-outputs-2025-12-15"},
    "output_config.task_budget": {"task-budgets-2026-03-13"},
    "thinking.block_binding": {"thinking-binding-controls-2026-08-01"},
}
SYSTEM_BETA = "mid-conversation-system-2026-04-07"
SCOPE_BETA = "prompt-caching-scope-2026-01-05"
FILES_BETA = "files-api-2025-04-14"
KNOWN = frozenset().union(
    *FIELD_BETAS.values(),
    {SYSTEM_BETA, SCOPE_BETA, FILES_BETA},
    {"claude-code-20250219", "interleaved-thinking-2025-05-14", "thinking-token-count-2026-05-13"},
    {"effort-2025-11-24", "context-1m-2025-08-07", "advanced-tool-use-2025-11-20"},
    {"computer-use-2025-01-24", "code-execution-2025-08-25", "web-fetch-2025-09-10"},
    {"fast-mode-2026-02-01"},
)
TOOL_BETAS = {
    "computer_20250124": "computer-use-2025-01-24",
    "mcp_toolset": "mcp-client-2025-11-20",
}


def find_problems(body: Mapping[str, Any], betas: frozenset[str]) -> Iterator[str]:
    """Yield what the vendor's server rejects in a request with these betas."""
    for beta in sorted(betas - KNOWN):
        yield f"Unexpected value(s) `{beta}` for the `anthropic-beta` header"
    for name in body.keys() - RELEASED:
        if betas.isdisjoint(FIELD_BETAS.get(name, ())):
            yield f"{name}: Extra inputs are not permitted"
    for path, needed in FIELD_BETAS.items():
        outer, _, inner = path.partition(".")
        if inner and inner in body.get(outer, {}) and betas.isdisjoint(needed):
            yield f"{path}: Extra inputs are not permitted"
    for at, tool in enumerate(body.get("tools", ())):
        if TOOL_BETAS.get(tool.get("type"), "") not in {"", *betas}:
            yield f"tools.{at}: Input tag {tool['type']!r} does not match any of the expected tags"
    written = json.dumps([body["messages"], body.get("system")])
    if '"scope":' in written and SCOPE_BETA not in betas:
        yield "cache_control.ephemeral.scope: Extra inputs are not permitted"
    if '"file_id":' in written and FILES_BETA not in betas:
        yield "source: Input tag 'file' does not match any of the expected tags"


class StrictServer(SimServer):
    """A simulator that rejects fields whose beta a request of the Messages wire does not name."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.betas: list[frozenset[str]] = []  # of each request
        self.bodies: list[dict[str, Any]] = []
        self.versions: list[str | None] = []
        self.problems: list[str] = []

    async def _answer_chat(self, codec: ServerCodec, request: HttpRequest) -> Any:
        if codec.wire == "anthropic":
            refused = self._check(codec, request.headers, json.loads(await request.body()))
            if refused is not None:
                return refused
        return await super()._answer_chat(codec, request)

    def _check(
        self, codec: ServerCodec, headers: Mapping[str, str], body: dict[str, Any]
    ) -> HttpReply | None:
        named = headers.get("anthropic-beta", "").split(",")
        self.betas.append(frozenset(filter(None, named)))
        self.bodies.append(body)
        self.versions.append(headers.get("anthropic-version"))
        problems = [*find_problems(body, self.betas[-1])]
        self.problems += problems
        return codec.error(InvalidRequestError(problems[0], status=400)) if problems else None
