"""What coding agents send with every request is accepted by models that refuse what vendors refuse.

The fields are those that the agents sent in reports of this year: Copilot CLI
(github/copilot-cli#4950), VS Code (microsoft/vscode#323110), Codex for models that it knows as
Responses Lite (openai/codex#27946), its compaction (farion1231/cc-switch#3640) and Claude Code
(anthropics/claude-code#49370); seen on 2026-11-18.
"""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from dragoman.gateway import create_app
from tests.loops import LOOKS, UPSTREAMS, Upstream, serve

from .serving import serving

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
FUNCTION = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
MARK = {"cache_control": {"type": "ephemeral"}}
COPILOT: dict[str, Any] = {
    "model": "m", "stream": True, "stream_options": {"include_usage": True}, "n": 1,
    "temperature": 0, "top_p": 0.95, "frequency_penalty": 0, "presence_penalty": 0,
    "max_tokens": 9000, "tool_choice": "auto", "tools": [{"type": "function", "function": FUNCTION}],
    "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}],
}  # fmt: skip
CLAUDE_CODE: dict[str, Any] = {
    "model": "m", "max_tokens": 32000, "stream": True, "temperature": 1,
    "system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", **MARK}],
    "thinking": {"type": "adaptive", "display": "summarized"},
    "output_config": {"effort": "xhigh"}, "metadata": {"user_id": "u"},
    "tools": [{"name": "look", "description": "L", "input_schema": SCHEMA, **MARK}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **MARK}]}],
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
}  # fmt: skip
ASKED = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "p", "format": GRAMMAR}
ADDED = {
    "type": "additional_tools", "role": "developer",
    "tools": [{"type": "function", **FUNCTION, "strict": False}, PATCH],
}  # fmt: skip
# Codex 0.149 and later offers its agents, and every MCP server, as a namespace (coder/coder#28656).
SPAWN = {
    "type": "namespace", "name": "agents", "description": "a",
    "tools": [{"type": "function", "name": "spawn", "parameters": SCHEMA}],
}  # fmt: skip
# Codex searches cached pages alone by default (NOirBRight/CodexHub#517).
CACHED = {"type": "web_search", "external_web_access": False}
CODEX: dict[str, Any] = {
    "model": "m", "instructions": "i", "stream": True, "store": False, "tool_choice": "auto",
    "include": ["reasoning.encrypted_content"], "parallel_tool_calls": False,
    "prompt_cache_key": "k", "reasoning": {"effort": "xhigh", "summary": "auto"},
    "input": [ADDED, ASKED],
}  # fmt: skip
BETAS = "claude-code-20250219,context-management-2025-06-27,effort-2025-11-24"
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages?beta=true"
RESPONSES = "/v1/responses"

# The path, the body, the betas, and the tools that must reach the model.
REQUESTS: dict[str, tuple[str, dict[str, Any], str, list[str]]] = {
    "Copilot CLI": (CHAT, COPILOT, "", ["look"]),
    "VS Code": (CHAT, {**COPILOT, "temperature": 0.1, "top_p": 1}, "", ["look"]),
    "Claude Code": (MESSAGES, CLAUDE_CODE, BETAS, ["look"]),
    "Codex": (RESPONSES, CODEX, "", ["look", "apply_patch"]),
    "Codex, with MCP": (
        RESPONSES,
        {**CODEX, "input": [ASKED], "tools": [*ADDED["tools"], SPAWN]},
        "",
        ["look", "apply_patch", "agents__spawn"],
    ),
    "Codex, with a search of cached pages": (
        RESPONSES,
        {**CODEX, "input": [ASKED], "tools": [ADDED["tools"][0], CACHED]},
        "",
        ["look"],
    ),
    "Codex, compaction": (RESPONSES, {**CODEX, "input": [ASKED]}, "", []),
}


@pytest.mark.parametrize("upstream", UPSTREAMS, ids=[each.name for each in UPSTREAMS])
async def test_requests_of_agents_are_accepted_with_their_tools(upstream: Upstream) -> None:
    for agent, (path, body, betas, tools) in REQUESTS.items():
        headers = {"anthropic-beta": betas} if betas else {}
        with serve(upstream, LOOKS[0]) as sim:
            model = sim.connect(upstream.wire, upstream.model, vendor=upstream.vendor)
            async with (
                model,
                serving(create_app({"m": model})) as url,
                aiohttp.ClientSession(url) as http,
                http.post(path, json=body, headers=headers) as reply,
            ):
                text = await reply.text()
                assert reply.status == 200, (agent, text)
        assert sim.refused == [], agent
        assert [tool.name for tool in sim.requests[0].tools] == tools, agent
