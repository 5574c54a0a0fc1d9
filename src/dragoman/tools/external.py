"""Tools whose calls run outside of the session, such as in another service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..log import SideEffect
from ..messages import Tool
from .runtime import DEFAULT_OUTPUT_LIMIT, ExecutableTool, Observation, ToolFailure


class ExternalTool(ExecutableTool):
    """A tool that a session only proposes, validates and permits, and that another process runs.

    ``dragoman.session.observe`` gives the result of a call; until then the session waits.
    """

    external = True

    def __init__(
        self,
        description: Tool,
        *,
        side_effect: SideEffect = "execute",
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> None:
        super().__init__(
            description, side_effect=side_effect, timeout=None, output_limit=output_limit
        )

    async def execute(self, arguments: Mapping[str, Any]) -> Observation:
        raise ToolFailure("not_started", f"{self.name} runs outside of this process")
