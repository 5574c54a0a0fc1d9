"""The tool runtime: define tools, validate their input, execute them and observe the result.

Box: agent.

::

    @tool(side_effect="read")
    def look_up(word: str) -> str:
        "Find a word in the dictionary."
        return DICTIONARY[word]


    tools = [look_up, *workspace_tools("."), *server.tools]

Functions, programs and MCP servers are all ``ExecutableTool``. A provider receives only their
descriptions. A session validates a call, asks for permission and records it before it runs.
"""

from __future__ import annotations

from .call_context import ToolContext
from .external import ExternalTool
from .function import FunctionTool, make_observation, tool
from .mcp import McpServer, McpTool
from .mcp_oauth import KeyringTokens, McpOAuth, TokenStore, describe_client, log_in_by_browser
from .pins import AcceptChange, ToolChange, ToolPins
from .plugins import Tools, gather_tools, plugin_tools
from .process import ProcessTool, clean_environment
from .protection import Protection, hide_memory, list_protections
from .recorded import RecordedRun, RecordedTool
from .runtime import (
    DEFAULT_OUTPUT_LIMIT,
    DEFAULT_TIMEOUT,
    CallWaits,
    ExecutableTool,
    FailureKind,
    Observation,
    Toolbox,
    ToolFailure,
    limit_output,
)
from .sandbox import Sandbox, find_sandbox
from .search import SearchTools, add_search
from .workspace import BashTool, PathError, Workspace, workspace_tools

__all__ = [
    "DEFAULT_OUTPUT_LIMIT", "DEFAULT_TIMEOUT", "AcceptChange", "BashTool", "CallWaits", "ExecutableTool",
    "ExternalTool", "FailureKind", "FunctionTool", "KeyringTokens", "McpOAuth", "McpServer",
    "McpTool",
    "Observation", "PathError", "ProcessTool", "Protection", "RecordedRun", "RecordedTool",
    "Sandbox", "SearchTools", "TokenStore", "ToolChange", "ToolContext", "ToolFailure", "ToolPins", "Toolbox", "Tools",
    "Workspace", "add_search", "clean_environment", "describe_client", "find_sandbox", "gather_tools", "hide_memory",
    "limit_output", "list_protections", "log_in_by_browser", "make_observation", "plugin_tools",
    "tool", "workspace_tools",
]  # fmt: skip
