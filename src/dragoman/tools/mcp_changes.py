"""Subscribe to the changes of an MCP server's tools."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

_PAUSE = 10.0  # seconds between two subscriptions


async def watch_tools(client: Any, mark: Callable[[], None]) -> None:
    """Call ``mark`` each time the server's tools may have changed.

    A server of the specification 2026-07-28 sends changes only to those who subscribe; to others,
    it sends notifications unasked. No change is sent again: after the end of a subscription, the
    tools may have changed unnoticed.
    """
    from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
    from mcp.shared.exceptions import MCPError

    tools = client.server_capabilities.tools
    if tools is None or not tools.list_changed:
        return
    while True:
        with contextlib.suppress(SubscriptionLost, TimeoutError):
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        mark()
            except (ListenNotSupportedError, MCPError):
                return  # the server has no subscriptions
        await asyncio.sleep(_PAUSE)
        mark()
